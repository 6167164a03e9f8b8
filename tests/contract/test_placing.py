"""Placing for a scheduler with queues of its own: on leaf cells that it names, by a demand made before, at once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume

from hived import Bind, Cluster, Preempt, RecordedCluster, Request, RequestError, replay
from hived.cluster.cluster import compiled_spec
from hived.cluster.sharing import Sharing
from hived.spec import ClusterSpec

from ..strategies import given_in_tiers
from .specs import Spec, flat, lent, racks, wants
from .walks import SEEDS, SPECS


class Pair:
    """Private clusters, and one that follows them while loans come and go."""

    def __init__(self, spec: Spec | ClusterSpec) -> None:
        self.lines: list[str] = []
        self.real = RecordedCluster(compiled_spec(spec), self.lines.append)
        self.private = Cluster(compiled_spec(spec), Sharing.PRIVATE)

    def check(self) -> None:
        """Every guaranteed group has the same leaves of its VC in both."""
        self.real.validate()
        self.real.check_safety()
        for name in self.private.groups():
            ours, alone = self.real.virtual_leaves(name), self.private.virtual_leaves(name)
            assert (ours.pool, sorted(ours.spots)) == (alone.pool, sorted(alone.spots))

    def start(self, request: Request) -> bool:
        """Start a group in both, if it fits its VC; in the real one its loan is promoted or given up."""
        if not isinstance(self.private.place(request, keep=True), Bind):
            return False
        leaves, on_loan = self.private.virtual_leaves(request.group), request.group in self.real.groups()
        if on_loan and self.real.promote(request, leaves):
            return True
        if on_loan:
            self.real.release(request.group)
        answer = self.real.place(request, keep=True, at=leaves)
        assert answer is not None
        if isinstance(answer, Preempt):
            for victim in answer.victims:
                assert not self.real.group(victim).guaranteed
                self.real.release(victim)
            bound = self.real.schedule(request)
            assert isinstance(bound, Bind)
            self.real.commit(bound)
        return True


@given_in_tiers(15, 100, SPECS, SEEDS)
def test_leaves_of_a_private_cluster(spec: ClusterSpec, seed: int) -> None:
    """A group gets exactly the leaf cells of its VC that it has in a private cluster, whatever others run."""
    assume(any(vc.reserved() for vc in spec.virtual_clusters))
    rng, pair = Random(seed), Pair(spec)
    vcs = [vc.name for vc in pair.real.spec.virtual_clusters]
    runs: list[str] = []
    for step in range(40):
        vc, gpus, pods = rng.choice(vcs), rng.choice([1, 1, 2, 4, 8]), rng.choice([1, 1, 1, 2, 3])
        turn = rng.random()
        if turn < 0.35:
            name = f"g{step}"
            if rng.random() < 0.5:  # it has started early
                pair.real.place(lent(name, vc, (pods, gpus)), keep=True, idle=True)
            if pair.start(wants(name, vc, (pods, gpus))):
                runs.append(name)
        elif turn < 0.7:
            pair.real.place(lent(f"l{step}", vc, (pods, gpus)), keep=True, idle=True)
        elif runs:
            name = runs.pop(rng.randrange(len(runs)))
            pair.private.release(name)
            pair.real.release(name)
        pair.check()
    assert replay(pair.lines, Cluster).snapshot() == pair.real.snapshot()


def test_leaves_in_use_are_not_placed_on() -> None:
    pair = Pair(flat({"a": 1, "b": 1}))
    assert pair.start(wants("first", "a", 4))
    assert pair.real.place(wants("second", "a", 4), at=pair.private.virtual_leaves("first")) is None
    pair.check()


def test_promoted_where_cells_can_be_bound() -> None:
    pair = Pair(racks({"a": {"RACK.NODE": 1}, "b": {"RACK.NODE": 1}}))
    pair.real.place(lent("early", "a", 4), keep=True, idle=True)
    before = pair.real.group("early").placement
    assert pair.start(wants("early", "a", 4))
    after = pair.real.group("early").placement
    assert before is not None
    assert after is not None
    assert (before.pods, after.guaranteed) == (after.pods, True)


def test_demand_changes_no_answer() -> None:
    """It is made once for requests that differ by name; one of another spec, or a name that is none, is seen."""
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    demand = cluster.demand(wants("any", "b", 4))
    placed = cluster.place(wants("one", "b", 4), demand=demand)
    assert placed == cluster.place(wants("one", "b", 4))
    with pytest.raises(RequestError, match="group"):
        cluster.place(wants("", "b", 4), demand=demand)
    cluster.reconfigure(flat({"b": 1, "a": 1}))  # the tenants have other numbers now
    after = cluster.place(wants("one", "b", 4), demand=demand)
    assert after is not None
    cluster.commit(after)
    assert cluster.group("one").guaranteed
    assert cluster.place(wants("two", "b", 4), demand=demand) is None
    assert cluster.place(wants("three", "a", 4)) is not None


def test_kept_at_once_is_what_a_commit_keeps() -> None:
    """Starts, a lazy group that becomes opportunistic, a loan that has to go: answer by answer and state by state."""
    spec = flat({"a": 1, "b": 1, "c": 1})
    at_once, in_two = Cluster.from_spec(spec), Cluster.from_spec(spec)
    requests = [
        replace(wants("lazy", "a", 4), lazy_preemption=True),
        lent("loan", "a", 4),
        wants("high", "a", 4, priority=5),
        wants("own", "b", 4),
    ]
    seen = []
    for request in requests:
        kept, placed = at_once.place(request, keep=True), in_two.place(request)
        assert placed is not None
        in_two.commit(placed)
        assert kept == placed
        assert at_once.snapshot() == in_two.snapshot()
        at_once.commit(placed)  # carried out already
        assert at_once.snapshot() == in_two.snapshot()
        at_once.validate()
        seen.append((type(placed), placed.downgraded))
    assert seen == [(Bind, ()), (Bind, ()), (Bind, ("lazy",)), (Preempt, ())]
    assert at_once.place(wants("none", "b", 4), keep=True) is None
