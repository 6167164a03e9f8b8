"""A group gets exactly the leaf cells of its VC that it has in a private cluster, whatever others run."""

from __future__ import annotations

from random import Random

from hypothesis import assume, given, settings

from hived import Bind, Cluster, Preempt, RecordedCluster, Request, replay
from hived.cluster.cluster import compiled_spec
from hived.cluster.sharing import Sharing
from hived.spec import ClusterSpec

from .specs import Spec, flat, lent, racks, wants
from .test_any_events import SEEDS, SPECS


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


@settings(max_examples=60)
@given(SPECS, SEEDS)
def test_it_gets_them_whatever_runs_on_them(spec: ClusterSpec, seed: int) -> None:
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


def test_leaves_that_others_hold_are_not_taken() -> None:
    pair = Pair(flat({"a": 1, "b": 1}))
    assert pair.start(wants("first", "a", 4))
    assert pair.real.place(wants("second", "a", 4), at=pair.private.virtual_leaves("first")) is None
    pair.check()


def test_a_loan_is_promoted_where_it_runs_if_the_cells_can_be_bound_there() -> None:
    pair = Pair(racks({"a": {"RACK.NODE": 1}, "b": {"RACK.NODE": 1}}))
    pair.real.place(lent("early", "a", 4), keep=True, idle=True)
    before = pair.real.group("early").placement
    assert pair.start(wants("early", "a", 4))
    after = pair.real.group("early").placement
    assert before is not None
    assert after is not None
    assert before.pods == after.pods
    assert after.guaranteed
