"""Trades under the jobs of a simulation: queues are those of the new cells, whatever trades and whoever preempts."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.cluster.cluster import Cluster
from hived.exchange import Balanced, Cells, Offer, Request, TenantView, Trade
from hived.exchange.cells import changed
from hived.policies import YarnCS, policies_of
from hived.scheduling import Kind, Scheduler
from hived.scheduling.checks import check_scheduler
from hived.scheduling.states import Status
from hived.simulator.exchange import HourlyTrading, Sample
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from ..contract.specs import flat, racks

_SPECS = (
    flat({"a": 3, "b": 2, "c": 1}),
    racks({"a": {"RACK": 1, "RACK.NODE": 1}, "b": {"RACK.NODE": 2}, "c": {"RACK.NODE.SOCKET": 2}}, count=3),
)


class AnyTrades:
    """Cells change hands all the time, without a market."""

    def __init__(self, spec: ClusterSpec, rng: Random) -> None:
        self._base, self._rng = spec, rng
        self.next_look = 5_000
        self.made: list[Trade] = []
        self.samples: list[Sample] = []

    def recall(self, tenant: str, now: int, scheduler: Scheduler) -> None:
        """Whoever lacks cells waits."""

    def look(self, now: int, scheduler: Scheduler) -> ClusterSpec | None:
        self.next_look = now + self._rng.choice([1_000, 20_000])
        if self._rng.random() < 0.2:
            return self._base
        spec = scheduler.cluster.spec
        giver, taker = self._rng.sample(spec.virtual_clusters, 2)
        if not giver.cells:
            return None
        cells = self._rng.choice(giver.cells)
        kind, number = (cells.chain, cells.level), self._rng.randint(1, cells.number)
        return changed(spec, {giver.name: {kind: -number}, taker.name: {kind: number}})


class Eager:
    """Offers and asks for whatever it may."""

    def offers(self, view: TenantView) -> list[Offer]:
        cells = Cells(*view.kind, view.own)
        return [Offer(view.tenant, cells, view.now, view.now + 30)] if view.own else []

    def requests(self, view: TenantView) -> list[Request]:
        return [Request(view.tenant, Cells(*view.kind), view.now, view.now + 30, times=2)]


class Watch:
    """Looks at the scheduler after every event."""

    def __init__(self) -> None:
        self._fresh: Cluster | None = None
        #: by job: when it was seen on GPUs, and whether it was guaranteed
        self.seen: dict[int, list[tuple[float, bool]]] = {}

    def __call__(self, scheduler: Scheduler) -> None:
        check_scheduler(scheduler)
        spec = scheduler.cluster.spec
        if self._fresh is None or self._fresh.spec != spec:
            self._fresh = Cluster(spec)
        for number, entry in scheduler.jobs.items():
            if entry.status in (Status.WAITING, Status.LENT) and not entry.request.opportunistic:
                fits = not self._fresh.never_fits(entry.request)
                assert (entry.line is not None) == fits, f"{entry} has a turn where it fits its VC"
            if entry.holds:
                self.seen.setdefault(number, []).append((scheduler.now, entry.status is Status.GUARANTEED))


def play(policy: str, seed: int) -> None:
    rng = Random(seed)
    spec = spec_from_dict(rng.choice(_SPECS))
    policies = policies_of(spec, policy)
    jobs, at = [], 0
    for number in range(40):
        at += rng.choice([0, 500, 3_000])
        tenant, lasts, gpus = rng.choice("abc"), rng.choice([1_000, 5_000, 60_000]), rng.choice([1, 2, 4, 8, 16])
        mode, priority = rng.choice(["", "", "guaranteed", "opportunistic"]), rng.choice([0, 0, 1])
        jobs.append(TraceJob(f"j{number}", tenant, at, lasts, gpus, "", mode=mode, priority=priority))
    cluster = Cluster(spec, rank=policies.rank, ranks=policies.ranks)
    watch = Watch()
    record = simulate(cluster, policies, jobs, trading=AnyTrades(spec, rng), after_event=watch)
    for run in record.runs:  # loans are recorded as loans, also where a trade made them such
        seen = [guaranteed for at, guaranteed in watch.seen.get(run.job, ()) if run.start < at < run.end]
        assert set(seen) <= {run.kind is Kind.GUARANTEED}


def test_no_job_lacks_what_its_tenant_reserved() -> None:
    """Whatever proxies post: cells that a job in line needs are not given, or come back at once."""
    for seed in range(20):
        rng = Random(seed)
        spec = spec_from_dict(_SPECS[0])
        trading = HourlyTrading(spec, Balanced(), dict.fromkeys("abc", Eager()), every_ms=2_000, idle_looks=1)
        jobs, at = [], 0
        for number in range(60):
            at += rng.choice([0, 1_000, 20_000])
            lasts, gpus = rng.choice([1_000, 5_000, 60_000]), rng.choice([1, 4, 4, 8, 12, 16])
            jobs.append(TraceJob(f"j{number}", rng.choice("abc"), at, lasts, gpus, ""))

        def check(scheduler: Scheduler, spec: ClusterSpec = spec) -> None:
            check_scheduler(scheduler)
            now = scheduler.cluster.spec
            assert [scheduler.stranded(vc, now, spec) for vc in "abc"] == [[], [], []]

        simulate(Cluster(spec), YarnCS(), jobs, trading=trading, after_event=check)
        assert len({trade.end - trade.start for trade in trading.made}) > 1, "some have ended early"


@pytest.mark.parametrize("examples", [3, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["yarn-cs", "fifo", "srtf", "tiresias"])
def test_jobs_go_on_whatever_their_tenants_trade(policy: str, examples: int) -> None:
    settings(max_examples=examples)(given(seed=st.integers(0, 1 << 40))(lambda seed: play(policy, seed)))()
