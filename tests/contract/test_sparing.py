"""Loans that lose the least work make room where cells are bound, and nothing else of a decision changes by it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

from hypothesis import strategies as st

from hived import Bind, Cluster, Preempt, Request
from hived.cluster.decisions import Decision, Record

from ..strategies import given_in_tiers
from .driver import devices
from .specs import flat, lent, racks, wants

#: GPUs of a node, and by how many its cells are got; those of a number of GPUs are aligned to it
SIZE = 4
CELLS = {1: range(4), 2: range(0, 4, 2), 4: range(1)}


def opened(nodes: int, spares: bool = True) -> Cluster:
    """One VC has the nodes, and others have jobs on loan there."""
    cluster = Cluster.from_spec(flat({"a": nodes, "b": 0}))
    cluster.spare_work(spares)
    return cluster


def lend(cluster: Cluster, request: Request, at: float, *nodes: str) -> None:
    decision = cluster.schedule(request, suggested_nodes=nodes or None, now=at)
    assert isinstance(decision, Bind)
    cluster.commit(decision)


def victims(decision: Decision) -> tuple[str, ...]:
    return decision.victims if isinstance(decision, Preempt) else ()


def test_an_hour_on_one_gpu_stays() -> None:
    for spares, loses in ((True, ("minute",)), (False, ("hour",))):
        cluster = opened(2, spares)
        lend(cluster, lent("hour", "b", 1), 0.0, "n0")
        lend(cluster, lent("minute", "b", 2), 3540.0, "n1")
        assert victims(cluster.schedule(wants("job", "a", 4), now=3600.0)) == loses


def test_who_saves_its_state_makes_room() -> None:
    cluster = opened(2)
    lend(cluster, replace(lent("hour", "b", 2), saves_work=True), 0.0, "n0")
    lend(cluster, lent("minute", "b", 1), 3540.0, "n1")
    assert victims(cluster.schedule(wants("job", "a", 4), now=3600.0)) == ("hour",)


def test_a_gang_ends_once() -> None:
    """It has both nodes: what it loses is lost for the first of them."""
    cluster = opened(4)
    lend(cluster, lent("gang", "b", 4, 4), 90.0, "n0", "n1")
    lend(cluster, lent("one", "b", 4), 70.0, "n2")
    lend(cluster, lent("other", "b", 4), 70.0, "n3")
    assert victims(cluster.schedule(wants("job", "a", 4, 4), now=100.0)) == ("gang",)


def test_inside_a_node() -> None:
    cluster = opened(1)
    for at, name in enumerate(("oldest", "older", "newer", "newest")):
        lend(cluster, lent(name, "b", 1), float(at))
    decision = cluster.schedule(wants("job", "a", 1), now=10.0)
    assert victims(decision) == ("newest",)
    cluster.release("older")
    decision = cluster.schedule(wants("job", "a", 1), now=10.0)
    assert isinstance(decision, Bind), "an idle GPU costs nothing"


def test_in_a_rack_that_is_split() -> None:
    cluster = Cluster.from_spec(racks({"a": {"RACK.NODE": 2}, "b": {}}, count=1, nodes=2))
    cluster.spare_work(True)
    lend(cluster, lent("old", "b", 1), 0.0, "r0n0")
    lend(cluster, lent("new", "b", 3), 95.0, "r0n1")
    assert victims(cluster.schedule(wants("job", "a", 4), now=100.0)) == ("new",)


def test_after_a_restart_and_a_new_spec() -> None:
    """What has run for how long is known from the records."""
    cluster = opened(2)
    lend(cluster, lent("hour", "b", 1), 0.0, "n0")
    lend(cluster, lent("minute", "b", 2), 3540.0, "n1")
    again = opened(2)
    started = {"hour": 0.5, "minute": 3540.0}
    again.recover([Record(*record[:3], started[record.group]) for record in cluster.records()])
    again.reconfigure(flat({"b": 0, "a": 2}))
    assert again.spares_work
    assert victims(again.schedule(wants("job", "a", 4), now=3600.0)) == ("minute",)


@given_in_tiers(40, 400, st.integers(0, 10**6), st.sampled_from(sorted(CELLS)))
def test_least_of_all_cells(seed: int, gpus: int) -> None:
    """By trying every cell."""
    random = Random(seed)
    cluster, since, now = opened(3), dict[str, float](), 0.0
    while random.random() < 0.9:
        now += random.choice([1.0, 10.0, 100.0])
        request = lent(f"loan-{len(since)}", "b", random.choice([1, 1, 2, 3, 4]))
        decision = cluster.schedule(request, now=now)
        if not isinstance(decision, Bind):
            break
        cluster.commit(decision)
        since[request.group] = now
    now += 1.0
    loans = [placement for name in since if (placement := cluster.group(name).placement) is not None]

    def lost(places: set[tuple[str, int]]) -> float:
        runs = zip(since.values(), loans, strict=True)
        return sum(loan.gpus * (now - began) for began, loan in runs if devices(loan.pods) & places)

    cells = product(("n0", "n1", "n2"), CELLS[gpus])
    best = min(lost({(node, first + leaf) for leaf in range(gpus)}) for node, first in cells)
    cluster.spare_work(False)
    plain = cluster.schedule(wants("job", "a", gpus), now=now)
    cluster.spare_work(True)
    decision = cluster.schedule(wants("job", "a", gpus), now=now)
    assert isinstance(plain, Bind | Preempt)
    assert isinstance(decision, Bind | Preempt)
    assert lost(devices(decision.placement.pods)) == best <= lost(devices(plain.placement.pods))
    cluster.commit(decision)
    cluster.validate()


def test_loans_that_are_equal_in_all_of_it() -> None:
    """As old, as large, and as early in the order of loans: either makes room."""
    cluster = opened(1)
    for name in ("one", "other"):
        lend(cluster, lent(name, "b", 2), 5.0)
        cluster.state_now().groups[name].lent_at = 0
    assert victims(cluster.schedule(wants("job", "a", 4), now=10.0)) == ("one", "other")
