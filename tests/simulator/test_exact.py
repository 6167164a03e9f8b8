"""Exact safety: under every policy that qualifies, the virtual timeline is the private run, and no job is later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import inf
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import reject
from hypothesis import strategies as st

from hived.cells import HostClass
from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.cluster.sharing import Sharing
from hived.errors import PolicyError
from hived.scheduling import Displaced, JobView, Policy, Reaction
from hived.scheduling.checks import check_scheduler
from hived.simulator import Preempted, Scenario
from hived.simulator.experiment import make_policies, soft_jobs
from hived.simulator.models import Models
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import Trace, TraceJob
from hived.simulator.work import Work
from hived.spec import parse_spec
from hived.spec.compiled import ClusterSpec

from ..strategies import given_in_tiers
from .helpers import nodes_of_8, spec_text, trace_of, trace_text
from .strategies import Case, policies, prioritised

#: policies under which jobs share GPUs
SHARING = ("gandiva", "antman")
#: what is otherwise of a job
KINDS: list[dict[str, Any]] = [
    {}, {}, {"duration_ms": 0}, {"mode": "guaranteed"}, {"model": "RHN"},
]  # fmt: skip
#: job, start, end, GPUs
VirtualRuns = list[tuple[int, int, int, Placement]]


def both(
    spec: ClusterSpec, trace: Trace, scenario: Scenario, exact: Sequence[str]
) -> tuple[Record, Record, VirtualRuns]:
    """The private run of these tenants without loans; the run of all with loans; the runs of virtual jobs.

    Jobs of the first two have their numbers in the private run.
    """

    def run(scheme: Sharing, jobs: Sequence[TraceJob], early: bool, **more: Any) -> Record:
        made = make_policies(spec, scenario, scenario.policies[0])
        work = None if scenario.models is None else Work(jobs, spec, scenario.models)
        return simulate(Cluster(spec, scheme, made.rank, ranks=made.ranks), made, jobs, early, work=work, **more)

    soft = soft_jobs(trace.jobs, scenario.soft, scenario.seed)
    kept = [number for number, job in enumerate(trace.jobs) if job.tenant in exact]
    numbers = {number: at for at, number in enumerate(kept)}
    ours_soft = {numbers[number] for number in soft if number in numbers}
    private = run(Sharing.PRIVATE, [trace.jobs[number] for number in kept], False, soft=ours_soft)
    virtual = VirtualRuns()
    ours = run(
        Sharing.HIVED, trace.jobs, True, soft=soft, exact=exact, after_event=check_scheduler,
        on_virtual_run=lambda number, *run: virtual.append((numbers[number], *run)),
    )  # fmt: skip
    ours.finish = [ours.finish[number] for number in kept]
    return private, ours, virtual


def check(private: Record, ours: Record, virtual: VirtualRuns) -> None:
    """The virtual timeline is the private run, and no job ends later than there."""
    own = [job.mode != "opportunistic" for job in private.jobs]
    alone = [(*run[:3], run.placement) for run in private.runs if own[run.job]]
    assert sorted(virtual, key=lambda run: run[:3]) == sorted(alone, key=lambda run: run[:3])
    for job, has_turn, ends, in_private in zip(private.jobs, own, ours.finish, private.finish, strict=True):
        if has_turn and in_private >= 0:
            assert 0 <= ends <= in_private, job


def with_pinned(text: str, owners: Sequence[int]) -> str:
    """A spec with more cells that belong to one VC by name: per owner a top cell, or a node in one of several nodes.

    They are lent like others, and bound to no other cell of a VC.
    """
    spec = json.loads(text)
    cells, vcs = spec["physicalCluster"]["physicalCells"], spec["virtualClusters"]
    tops = [*cells]
    for number, owner in enumerate(owners):
        like, name = tops[number % len(tops)], f"own-{number}"
        pinned = {"pinnedCellId": name}
        if "cellChildren" in like:
            others = [{"cellAddress": f"{name}-n{n}"} for n in range(1, len(like["cellChildren"]))]
            cells.append({**like, "cellChildren": [{"cellAddress": f"{name}-n0", **pinned}, *others]})
        else:
            cells.append({**like, "cellAddress": f"{name}-n0", **pinned})
        vc = vcs[sorted(vcs)[owner % len(vcs)]]
        vc.setdefault("pinnedCells", []).append(pinned)
    return json.dumps(spec)


@given_in_tiers(20, 300,
    prioritised(), policies(SHARING), st.lists(policies(SHARING), max_size=2), st.sampled_from(Preempted),
    st.sampled_from([0.0, 0.5]), st.lists(st.sampled_from(KINDS), min_size=1, max_size=7), st.booleans(),
    st.lists(st.integers(0, 2), max_size=2),
)  # fmt: skip
def test_no_job_is_later_than_alone(
    given: tuple[Case, Trace], policy: str | Policy, own: Sequence[str | Policy], preempted: Preempted, soft: float,
    kinds: list[dict[str, Any]], models: bool, pins: list[int],
) -> None:  # fmt: skip
    """With several policies and priorities, soft affinity, gangs, pinned cells; no work, and models of jobs."""
    case, trace = given
    jobs = tuple(job._replace(**changes) for job, changes in zip(trace.jobs, cycle(kinds), strict=False))
    trace = replace(trace, jobs=jobs)
    spec = parse_spec(with_pinned(case.spec, pins), "any")
    tenants = sorted({job.tenant for job in trace.jobs})
    scenario = Scenario(
        models=Models.load() if models else None,
        policy=[policy, dict(zip(tenants, own, strict=False))],
        preempted=preempted,
        soft=soft,
    )
    known = [vc.name for vc in spec.virtual_clusters]
    try:
        private, ours, virtual = both(spec, trace, scenario, known)
    except PolicyError:  # a made-up policy may have two jobs stop each other for ever
        reject()
    check(private, ours, virtual)


@dataclass(kw_only=True)
class Adversary(Policy):
    """Orders, preempts, places, lets pass and takes work away by a seed; what a job has had moves it back alone."""

    seed: int
    preempts: bool
    patience: float
    resume_s: float
    slice_s: float
    loses: int  #: in how many of ten displacements the work is lost
    name: str = "adversary"

    def _drawn(self, *of: object) -> int:
        return crc32(repr((self.seed, *of)).encode())

    def order(self, job: JobView) -> tuple[float, ...]:
        return min(3, job.attained // (self.slice_s * job.gpus)), self._drawn(job.job) % 5, job.sequence

    def review_after(self, job: JobView) -> float | None:
        had = job.attained / job.gpus
        return self.slice_s - had % self.slice_s if had < 3 * self.slice_s else inf

    def rank(self, host: HostClass, gpus: int) -> tuple[float, ...] | None:
        return (self._drawn(host.free.free, host.guaranteed, gpus),)

    def react(self, event: Displaced) -> Reaction:
        loses = self._drawn(event.victim.job, event.victim.attained) % 10 < self.loses
        return Reaction.RESTART if loses else Reaction.SUSPEND


def adversary(rng: Random) -> Adversary:
    return Adversary(
        seed=rng.randrange(1 << 30),
        preempts=rng.random() < 0.8,
        patience=rng.choice([0.0, 5.0, inf]),
        resume_s=rng.choice([0.0, 0.5, 2.0, 10.0]),
        slice_s=rng.choice([5.0, 20.0, 60.0]),
        loses=rng.choice([0, 0, 3, 10]),
    )


class Suspending(Adversary):
    """One whose displaced jobs always keep their work, which the scheduler can see."""

    react = Policy.react


def crowded(rng: Random) -> tuple[ClusterSpec, Trace]:
    """A few nodes and many jobs at the same seconds: one tenant has too much to do, others lend."""
    tenants = {name: rng.randint(1, 3) for name in "abc"[: rng.randint(2, 3)]}
    rows = []
    for name in tenants:
        for _ in range(rng.choice([5, 20, 40])):
            submit, lasts = rng.randrange(200), rng.choice([1, 5, 30, 100, 200])
            rows.append((submit, name, lasts, rng.choice([1, 1, 2, 4, 8, 8, 16])))
    rows.sort()
    trace = trace_of(trace_text((f"j{n}", name, at, lasts, gpus) for n, (at, name, lasts, gpus) in enumerate(rows)))
    levels = rng.choice([(0,), (0, 0, 5)])
    jobs = tuple(job._replace(priority=rng.choice(levels), soft=rng.random() < 0.2) for job in trace.jobs)
    spec = parse_spec(nodes_of_8(sum(tenants.values()) + rng.randint(0, 1), tenants), "crowded")
    return spec, replace(trace, jobs=jobs)


@given_in_tiers(4, 200, st.integers(0, 1 << 40))
def test_no_job_is_later_by_an_adversary(seed: int) -> None:
    """Each tenant has its own; also beside VCs that are work-conserving."""
    rng = Random(seed)
    spec, trace = crowded(rng)
    own = dict[str, Policy]()
    for vc in spec.virtual_clusters:
        made = adversary(rng)
        own[vc.name] = Suspending(**vars(made)) if rng.random() < 0.6 else made
    exact = [vc.name for vc in spec.virtual_clusters if rng.random() < 0.8]
    scenario = Scenario(policy=own, soft=rng.choice([0.0, 0.5]))
    check(*both(spec, trace, scenario, exact))


def test_a_head_start_changes_no_successor() -> None:
    """A job that ended early keeps its place in the VC: its successor starts as in private, or on a loan."""
    spec = parse_spec(nodes_of_8(2, {"a": 1, "b": 1}), "two")
    rows = [("a1", "a", 0, 100, 8), ("a2", "a", 0, 100, 4), ("a3", "a", 0, 50, 8), ("b1", "b", 60, 100, 8)]
    private, ours, virtual = both(spec, trace_of(trace_text(rows)), Scenario(), ("a", "b"))
    check(private, ours, virtual)
    assert [ms / 1000 for ms in private.finish] == [100, 200, 250, 160]
    # a2 runs beside a1 on the idle node of b until that is needed
    assert ours.finish[0] == 100_000
    assert ours.finish[3] == 160_000


@pytest.mark.parametrize("name", SHARING)
def test_policies_that_share_gpus_refused(name: str) -> None:
    spec = parse_spec(nodes_of_8(1, {"a": 1}), "one")
    with pytest.raises(PolicyError, match="share GPUs"):
        both(spec, trace_of(trace_text([("a1", "a", 0, 1, 1)])), Scenario(policy=name), ("a",))


class EveryOther(Policy):
    """The even submissions of its tenant first."""

    name = "every-other"

    def order(self, job: JobView) -> tuple[float, ...]:
        return job.sequence % 2, job.submitted


def test_submissions_are_counted_per_tenant() -> None:
    """A policy that counts them decides by what happens in its VC."""
    spec = parse_spec(nodes_of_8(2, {"a": 1, "b": 1}), "two")
    mine = [("a0", "a", 0, 100, 8), ("a1", "a", 1, 100, 8), ("a2", "a", 2, 100, 8)]
    check(*both(spec, trace_of(trace_text([*mine, ("b0", "b", 0.5, 1000, 8)])), Scenario(policy=EveryOther()), "a"))


@pytest.mark.parametrize("safety", [(), ("a", "b")])
def test_loans_taken_back_are_no_fault_of_a_policy(monkeypatch: pytest.MonkeyPatch, safety: tuple[str, ...]) -> None:
    """However often others do, and a job begins anew each time."""
    for module in ("simulator.simulation", "scheduling.exact.timeline"):
        monkeypatch.setattr(f"hived.{module}.MAX_STOPS", 5)
    spec = parse_spec(nodes_of_8(2, {"a": 1, "b": 1}), "two")
    rows = [("long", "a", 0, 500, 8), ("lent", "a", 0, 60, 8), *((f"b{n}", "b", 2 * n + 1, 1, 8) for n in range(20))]
    scenario = Scenario(preempted=Preempted.RESTART)
    trace = trace_of(trace_text(rows))
    made = make_policies(spec, scenario, "yarn-cs")
    record = simulate(Cluster(spec, Sharing.HIVED, made.rank), made, trace.jobs, exact=safety)
    assert record.preemptions[1] == 20
    assert record.finish[1] == 100_000


def test_exact_beside_a_vc_whose_jobs_share_gpus() -> None:
    spec = parse_spec(nodes_of_8(2, {"a": 1, "b": 1}), "two")
    trace = trace_of(trace_text([("a1", "a", 0, 10, 8), ("b1", "b", 0, 10, 8), ("b2", "b", 0, 10, 8)]))
    scenario = Scenario(policy={"b": "gandiva"})
    made = make_policies(spec, scenario, "yarn-cs")
    record = simulate(Cluster(spec, Sharing.HIVED, made.rank, ranks=made.ranks), made, trace.jobs, exact=("a",))
    assert record.finish[0] == 10_000


class Boasting(Policy):
    """It says what is not so."""

    name, preempts, always_keeps_work = "boasting", True, True
    displaced = Reaction.RESTART

    def order(self, job: JobView) -> tuple[float, ...]:
        return job.gpus, job.submitted


def test_work_is_kept_where_a_policy_says_so() -> None:
    spec = parse_spec(nodes_of_8(1, {"a": 1}), "one")
    trace = trace_of(trace_text([("large", "a", 0, 10, 8), ("small", "a", 1, 10, 1)]))
    with pytest.raises(PolicyError, match="always_keeps_work says that no displaced job loses its work"):
        both(spec, trace, Scenario(policy=Boasting()), ("a",))


@pytest.mark.parametrize("later", [{"priority": 5}, {"duration_ms": 1000}])
@pytest.mark.parametrize("policy", ["yarn-cs", "sjf"])
def test_job_without_work_ends_before_the_next_comes(policy: str, later: dict[str, Any]) -> None:
    """As alone: it takes the only GPU for no time, and one of the same moment that would pass it has that next."""
    spec = parse_spec(nodes_of_8(2, {"a": 1, "b": 1}), "two")
    rows = [("none", "a", 10, 0, 8), ("some", "a", 10, 100, 8), ("last", "a", 10, 50, 8)]
    trace = trace_of(trace_text(rows))
    trace = replace(trace, jobs=(*trace.jobs[:2], trace.jobs[2]._replace(**later)))
    check(*both(spec, trace, Scenario(policy=policy), ("a",)))


def test_opportunistic_job_of_the_tenant_is_an_event() -> None:
    """In private the order of running jobs is reviewed as it comes, before another of the same millisecond does."""
    spec = parse_spec(nodes_of_8(2, {"a": 2}), "two")
    rows = [(3, 8, 4), (4, 3, 8), (5, 6, 2), (6, 5, 6), (10, 1, 2), (10, 1, 4)]
    jobs = tuple(TraceJob(f"j{n}", "a", at, lasts, gpus, "pass") for n, (at, lasts, gpus) in enumerate(rows))
    jobs = (*jobs[:4], jobs[4]._replace(mode="opportunistic"), jobs[5])
    scenario = Scenario(policy="tiresias:limits=0.006/0.02", preempted=Preempted.RESTART)
    check(*both(spec, Trace("own", jobs), scenario, ("a",)))


def test_same_cells_of_a_vc_bound_elsewhere() -> None:
    """A job loses them for no time to one without work, and they are bound to other GPUs: it goes on as in private."""
    types = {"NODE": ("GPU", 2)}
    cells = [{"cellType": "NODE", "cellAddress": "n[0-3]"}]
    spec = parse_spec(spec_text(types, cells, {"a": {"NODE.GPU": 4, "NODE": 2}}), "four")
    rows = [("x", "a", 0, 14, 2), ("y", "a", 13, 100, 1), ("z", "a", 14, 0, 8)]
    jobs = trace_of(trace_text(rows)).jobs
    jobs = (*jobs[:2], jobs[2]._replace(priority=2, soft=True))
    scenario = Scenario(preempted=Preempted.RESTART)
    ends = []
    for scheme in (Sharing.PRIVATE, Sharing.HIVED):
        made = make_policies(spec, scenario, "yarn-cs")
        ends.append(simulate(Cluster(spec, scheme, made.rank), made, jobs, False).finish)
    assert ends[0] == ends[1]
