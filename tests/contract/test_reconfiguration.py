"""A new spec under running groups: nothing dies for it, what fits stays guaranteed, the rest becomes opportunistic."""

from __future__ import annotations

import pytest

from hived import Bind, Cluster, Preempt, Request, RequestError, Wait
from hived.errors import InfeasibleError

from .driver import Driver, devices, running
from .specs import Spec, cluster_spec, flat, lent, reserves, wants


def pools(small: int = 4, big: int = 1, a: int = 1, a_big: int = 1, b: int | None = 2, first: int = 0) -> Spec:
    """A pool of ``small`` nodes (k0, ...) and one of ``big`` nodes (m0, ...), for VCs a and b."""
    types: Spec = {
        "K80-2": {"childCellType": "K80", "childCellNumber": 2},
        "K80-NODE": {"childCellType": "K80-2", "childCellNumber": 2, "isNodeLevel": True},
        "K80-POOL": {"childCellType": "K80-NODE", "childCellNumber": small},
        "M60-NODE": {"childCellType": "M60", "childCellNumber": 4, "isNodeLevel": True},
        "M60-POOL": {"childCellType": "M60-NODE", "childCellNumber": max(big, 1)},
    }
    k80 = [{"cellAddress": f"k{i}"} for i in range(first, first + small)]
    cells: list[Spec] = [{"cellType": "K80-POOL", "cellChildren": k80}]
    if big:
        m60 = [{"cellAddress": f"m{i}"} for i in range(big)]
        cells.append({"cellType": "M60-POOL", "cellChildren": m60})
    mine = {"K80-POOL.K80-NODE": a} | ({"M60-POOL.M60-NODE": a_big} if big else {})
    vcs = {"a": reserves(mine)}
    if b is not None:
        vcs["b"] = reserves({"K80-POOL.K80-NODE": b})
    return cluster_spec(types, cells, vcs)


def busy() -> Driver:
    """Groups on every reserved cell: a on k0 and m0, b on k1 and k2; k3 is spare."""
    return running(
        pools(),
        (wants("a-k80", "a", 4, leaf_cell_type="K80"), "k0"),
        wants("a-m60", "a", 4, leaf_cell_type="M60"),
        (wants("b-1", "b", 4), "k1"),
        (wants("b-2", "b", 4, leaf_cell_type="K80"), "k2"),
    )


def wants_k80(name: str) -> Request:
    """A node of VC a in the pool of small nodes."""
    return wants(name, "a", 4, leaf_cell_type="K80")


ALL = ["a-k80", "a-m60", "b-1", "b-2"]


def assert_restarts(driver: Driver, spec: Spec) -> None:
    """A fresh cluster takes over all that still runs."""
    fresh = Cluster.from_spec(spec)
    fresh.recover(driver.cluster.records())
    fresh.validate()
    assert (fresh.records(), fresh.snapshot()) == (driver.cluster.records(), driver.cluster.snapshot())


@pytest.mark.parametrize(
    ("after", "kept", "lost", "request_", "starts"),
    [
        (pools(), ALL, [], lent("next", "a", 1), True),
        (pools(big=2, a_big=2), ALL, [], wants("next", "a", 4, leaf_cell_type="M60"), True),
        (pools(small=3), ALL, [], lent("next", "a", 1), False),
        (pools(small=3, first=1, b=2), ["a-m60", "b-1", "b-2"], ["a-k80"], wants_k80("next"), True),
        (pools(big=0), ["a-k80", "b-1", "b-2"], ["a-m60"], lent("next", "a", 1), True),
    ],
    ids=["the same", "a node more", "an idle node less", "a node in use less", "a type less"],
)
def test_nodes_come_and_go(after: Spec, kept: list[str], lost: list[str], request_: Request, starts: bool) -> None:
    driver = busy()
    before = driver.cluster.snapshot()
    assert driver.reconfigure(after) == {"kept": kept, "downgraded": lost, "lost": lost}
    assert (driver.cluster.snapshot() == before) == (after == pools())
    if not lost:
        assert_restarts(driver, after)
    driver.release(*lost)
    assert isinstance(driver.ask(request_), Bind if starts else Wait)


def test_gang_that_lost_a_node() -> None:
    """It goes on with the rest, and can be recovered."""
    driver = running(pools(), (wants("gang", "b", (2, 3)), "k0 k1"), wants_k80("other"))
    after = pools(small=3, first=1)
    assert driver.reconfigure(after)["lost"] == ["gang"]
    assert {node for node, _ in devices(driver.running["gang"].pods)} == {"k1"}
    assert_restarts(driver, after)
    driver.release("gang")
    driver.bind(wants("again", "b", (2, 4)))


def test_vc_is_removed() -> None:
    """Its groups run on as opportunistic."""
    driver = busy()
    assert driver.reconfigure(pools(a=4, b=None))["downgraded"] == ["b-1", "b-2"]
    assert_restarts(driver, pools(a=4, b=None))
    driver.bind(wants_k80("a-2"))
    for i in (3, 4):
        assert isinstance(driver.run(wants_k80(f"a-{i}")), Preempt)
    assert {"b-1", "b-2"}.isdisjoint(driver.running)
    driver.refused(wants("b-3", "b", 1), "vc")


def test_higher_priorities_stay_guaranteed() -> None:
    driver = running(flat({"a": 3, "b": 1}), *(wants(f"a-{i}", "a", 4, priority=p) for i, p in enumerate([1, 9, 5])))
    report = driver.reconfigure(flat({"a": 1, "b": 3}))
    assert (report["kept"], report["downgraded"]) == (["a-1"], ["a-0", "a-2"])


def test_node_loses_some_devices() -> None:
    """The others are not given away under a running pod."""

    def spec(kind: str, gpus: int) -> Spec:
        types: Spec = {kind: {"childCellType": "GPU", "childCellNumber": gpus, "isNodeLevel": True}}
        return cluster_spec(types, [{"cellType": kind, "cellAddress": "n0"}], {"a": reserves({kind: 1})})

    driver = running(spec("FOUR", 4), wants("wide", "a", 4))
    driver.cluster.reconfigure(spec("TWO", 2))
    new = driver.cluster.schedule(wants("new", "a", 1))
    assert not isinstance(new, Bind), "wide runs on these devices, and has not ended"


def pinned(node: int, owner: str) -> Spec:
    """Two VCs of a node each, one of which has another pinned."""
    return flat({"a": 1, "b": 1}, spare=1, pinned={node: owner})


def test_pinned_cell_goes_to_another_vc() -> None:
    driver = running(pinned(2, "a"), wants("pinned", "a", 4, pinned_cell_id="pin-2"), wants("b", "b", 4))
    report = driver.reconfigure(pinned(2, "b"))
    assert "b" in report["kept"]
    assert {*report["kept"], *report["downgraded"]} == {"pinned", "b"}
    assert driver.preempt(wants("new", "b", 4, pinned_cell_id="pin-2")).victims == ("pinned",)


def test_node_becomes_pinned() -> None:
    """Its group ends only when the pinned cell is asked for."""
    driver = running(flat({"a": 1, "b": 1}, spare=1), (wants("a", "a", 4), "n0"))
    assert driver.reconfigure(pinned(0, "b"))["downgraded"] == ["a"]
    assert driver.preempt(wants("b", "b", 4, pinned_cell_id="pin-0")).victims == ("a",)


def test_decision_from_before() -> None:
    """It is refused."""
    driver = Driver(flat({"a": 1, "b": 1}))
    late = driver.ask(lent("late", "a", 1), suggested=["n1"])
    driver.bind(wants("b", "b", 4), suggested=["n1"])
    driver.reconfigure(flat({"a": 2}))
    before = driver.cluster.snapshot()
    with pytest.raises(RequestError):
        driver.cluster.commit(late)
    assert driver.cluster.snapshot() == before
    driver.check()


def test_nodes_removed_and_added_again() -> None:
    """The group there keeps its devices."""
    driver = running(flat({"a": 2}), (wants("job", "a", 4), "n1"))
    driver.cluster.reconfigure(flat({"a": 1}))
    driver.cluster.reconfigure(flat({"a": 2}))
    driver.cluster.validate()
    decision = driver.cluster.schedule(wants("new", "a", (2, 4)))
    assert not isinstance(decision, Bind), "job runs on n1, and has not ended"


@pytest.mark.parametrize("broken", [{"a": 9}, {"a": 1, "b": 2}])
def test_new_spec_that_does_not_fit(broken: dict[str, int]) -> None:
    """It is refused, and changes nothing."""
    driver = running(flat({"a": 2}), wants("job", "a", 4))
    before = driver.cluster.snapshot()
    with pytest.raises(InfeasibleError):
        driver.cluster.reconfigure(flat(broken, nodes=2))
    assert driver.cluster.snapshot() == before
    driver.check()
