"""Trades of like and unlike levels among jobs, bad hardware, new specs and restarts: equations 1 and 2 hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import strategies as st

from hived import Bind, Cluster, Preempt
from hived.cluster.feasibility import shortages
from hived.errors import InputError
from hived.exchange import Cells, Market, Offer, Request, make_arbiter
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from ..contract.specs import cell_types, cluster_spec, lent, reserves, wants
from ..strategies import given_in_tiers

_KINDS = ("RACK", "RACK.NODE", "RACK.NODE.SOCKET", "RACK.NODE.SOCKET.GPU")


def made(rng: Random) -> ClusterSpec:
    """Three racks of two nodes of 4 GPUs; tenants reserve cells of any level, as many as fit."""
    cells = [{"cellType": "RACK", "cellChildren": [{"cellAddress": f"r{r}n{n}"} for n in range(2)]} for r in range(3)]
    vcs: dict[str, Counter[str]] = {name: Counter() for name in "abc"}

    def spec() -> ClusterSpec:
        return spec_from_dict(cluster_spec(cell_types(), cells, {name: reserves(of) for name, of in vcs.items()}))

    for _ in range(30):
        name, kind = rng.choice("abc"), rng.choice(_KINDS)
        vcs[name][kind] += 1
        if shortages(spec()):
            vcs[name][kind] -= 1
    return spec()


class Walk:
    """A cluster whose tenants trade, at a clock of its own."""

    def __init__(self, seed: int, arbiter: str) -> None:
        self.rng = Random(seed)
        self.base = made(self.rng)
        self.cluster = Cluster(self.base)
        self.arbiter = make_arbiter(arbiter)
        self.market = self._market()
        self.now = 0.0
        self.bad: set[str] = set()
        self.names = 0
        self.counts: Counter[str] = Counter()

    def _market(self) -> Market:
        return Market(
            self.base, self.arbiter, lambda tenant: self.cluster.cells_in_use(tenant),
            lambda spec: self.cluster.would_downgrade(spec), lambda tenant, spec: (),
        )  # fmt: skip

    def event(self) -> None:
        self.now += self.rng.choice([0.0, 0.5, 3.0])
        self._apply()
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._start, 30), (self._end, 25), (self._post, 25), (self._match, 15), (self._hardware, 4),
            (self._new_spec, 2), (self._restart, 1),
        ]  # fmt: skip
        act = self.rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        act()
        self.counts[act.__name__] += 1
        self.check()

    def check(self) -> None:
        self.cluster.check_safety()
        assert not shortages(self.market.trades.in_force())

    def _apply(self) -> None:
        """What each tenant has by now."""
        before = self._guaranteed()
        over = self.market.expire(self.now)
        due = self.market.begin_due(self.now)
        self.counts["called off"] += len(due.called_off)
        self.counts["begun later"] += len(due.begun)
        self._go_on(self.market.trades.in_force())
        # a trade begins with cells that nobody uses, and only its end takes cells that somebody uses
        assert over.trades or before <= self._guaranteed()

    def _go_on(self, spec: ClusterSpec) -> None:
        if spec.virtual_clusters == self.cluster.spec.virtual_clusters:
            return
        effect = self.cluster.trade(spec)  # its effect on the jobs: tests/contract/walks.py
        if effect is None:
            self.cluster.reconfigure(spec)
            self.counts["reconfigured"] += 1
            return
        self.counts["in place"] += 1
        self.counts["downgraded"] += len(effect.downgraded)
        assert self.cluster.spec == spec
        self.cluster.validate()
        self._compare_with_a_restart()

    def _guaranteed(self) -> set[str]:
        return {name for name in self.cluster.groups() if self.cluster.group(name).guaranteed}

    def _compare_with_a_restart(self) -> None:
        """Taken over under the new spec, all groups have the same cells."""
        again = Cluster(self.cluster.spec)
        again.recover(self.cluster.records())
        again.validate()
        for node in self.bad:
            again.set_node_health(node, False)
        assert again.snapshot()[0] == self.cluster.snapshot()[0]
        if not self.bad:  # anchors and doomed cells depend on when it turned bad
            assert again.snapshot() == self.cluster.snapshot()

    def _start(self) -> None:
        self.names += 1
        name, vc, gpus = f"g{self.names}", self.rng.choice("abc"), self.rng.choice([1, 1, 2, 4])
        make = wants if self.rng.random() < 0.7 else lent
        answer = self.cluster.schedule(make(name, vc, (self.rng.choice([1, 1, 2]), gpus)))
        if isinstance(answer, Preempt):
            for victim in answer.victims:
                self.cluster.release(victim)
            answer = self.cluster.schedule(make(name, vc, answer.provenance.arguments[0].members[0]))  # type: ignore[union-attr]
        if isinstance(answer, Bind):
            self.cluster.commit(answer)
        else:
            self.cluster.cancel(name)

    def _end(self) -> None:
        running = self.cluster.groups()
        if running:
            self.cluster.release(self.rng.choice(running))

    def _post(self) -> None:
        """An offer, or a request; or both sides of a spatial trade."""
        rng, board = self.rng, self.market.board
        start = self.now + rng.choice([0.0, 0.0, 2.0])
        end, (tenant, other) = start + rng.choice([2.0, 10.0, 30.0]), rng.sample("abc", 2)
        of = {vc.name: [cells.level for cells in vc.cells] or [1] for vc in self.base.virtual_clusters}
        level, back = rng.choice([*of[tenant], rng.randint(1, 4)]), None
        cells = Cells("RACK", level, rng.choice([1, 1, 1, 2]))
        if rng.random() < 0.4:
            back = Cells("RACK", rng.choice(of[other]), rng.choice([1, 1, 2, 4]))
        offer = Offer(tenant, cells, start, end, back, rng.random())
        request = Request(other, cells, start, end, back, rng.random() * 3)
        posts: list[Offer | Request] = [offer, request]
        for post in posts if rng.random() < 0.7 else [rng.choice(posts)]:
            try:
                if isinstance(post, Offer):
                    board.offer(post, self.now)
                else:
                    board.request(post, self.now)
                self.counts["posted"] += 1
            except InputError:
                self.counts["refused posts"] += 1

    def _match(self) -> None:
        before = self._guaranteed()
        trades, refused = self.market.match(self.now)
        self.counts["trades"] += len(trades)
        self.counts["spatial"] += sum(trade.back is not None for trade in trades)
        self.counts["refused"] += len(refused)
        self._go_on(self.market.trades.in_force())
        # an offer has only cells that nobody uses
        assert before <= self._guaranteed()

    def _hardware(self) -> None:
        node, healthy = f"r{self.rng.randrange(3)}n{self.rng.randrange(2)}", self.rng.random() < 0.7
        self.cluster.set_node_health(node, healthy)
        (self.bad.discard if healthy else self.bad.add)(node)

    def _new_spec(self) -> None:
        """Another spec: trades that cannot stand under it end, with their reasons."""
        self.base = made(self.rng)
        rebased = self.market.under(self.base)
        self.market.adopt(rebased, self.now)
        assert all(why for _, why in rebased.ended)
        assert all(why for _, _, why in rebased.dropped)
        self.counts["ended by a spec"] += len(rebased.ended)
        self._go_on(self.market.trades.in_force())

    def _restart(self) -> None:
        """All is made anew from records: what runs, the trades, and the surplus."""
        records = self.cluster.records()
        self.cluster = Cluster(self.cluster.spec)
        self.bad.clear()
        self.cluster.recover(records)
        state, in_force = self.market.state(), self.market.trades.in_force()
        self.market = self._market()
        self.market.restore(state)
        assert self.market.trades.in_force() == in_force


@given_in_tiers(6, 50, st.integers(0, 1 << 40), st.sampled_from(["balanced", "auction"]))
def test_no_trade_breaks_safety(seed: int, arbiter: str) -> None:
    walk = Walk(seed, arbiter)
    for step in range(80):
        walk.event()
        if step % 8 == 0:
            walk.cluster.validate()
    assert abs(sum(walk.market.surplus.values())) < 1e-6


@pytest.mark.parametrize("arbiter", ["balanced", "auction"])
@pytest.mark.parametrize(
    "events", [pytest.param(3_000, marks=pytest.mark.slow), pytest.param(500_000, marks=pytest.mark.release)]
)
def test_long_walk_has_everything_in_it(events: int, arbiter: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(events // 1000):
        walk = Walk(seed, arbiter)
        for _ in range(1000):
            walk.event()
        walk.cluster.validate()
        counts += walk.counts
    print(arbiter, dict(counts))
    for kind in (
        "trades", "spatial", "refused", "refused posts", "ended by a spec", "called off", "begun later",
        "in place", "reconfigured", "_restart", "_hardware",
    ):  # fmt: skip
        assert counts[kind], kind
