"""Whose loans go, where bad hardware, several chains or several hosts come into it."""

from __future__ import annotations

from hived import Preempt, Wait
from hived.cluster.reasons import ShareUsedUp

from .driver import Driver
from .specs import Spec, cluster_spec, flat, lent, reserves, wants


def test_the_fairest_nodes_are_not_taken_where_one_of_them_is_partly_bad() -> None:
    driver = Driver(flat({"a": 1, "b": 1, "c": 2}))
    driver.bind(lent("a-1", "a", 4), suggested=["n1"])
    driver.bind(lent("b-1", "b", 1), suggested=["n2"])
    driver.bind(lent("b-2", "b", 1), suggested=["n3"])
    driver.bind(lent("a-2", "a", 3), suggested=["n0"])
    driver.set_device("n0", 3, healthy=False)
    decision = driver.preempt(wants("gang", "c", (2, 4)))
    assert "n0" not in {pod.node for pod in decision.placement.pods}


def two_chains() -> Spec:
    """Four nodes of two V100 in two chains; ``a`` and ``b`` reserve nodes in the first alone, ``c`` in the second."""
    types: Spec = {
        "NODE": {"childCellType": "V100", "childCellNumber": 2, "isNodeLevel": True},
        "2-NODE": {"childCellType": "NODE", "childCellNumber": 2},
    }
    cells: list[Spec] = [
        {"cellType": "NODE", "cellAddress": "n0"},
        {"cellType": "NODE", "cellAddress": "n1"},
        {"cellType": "2-NODE", "cellChildren": [{"cellAddress": "m0"}, {"cellAddress": "m1"}]},
    ]
    vcs = {"a": reserves({"NODE": 1}), "b": reserves({"NODE": 1}), "c": reserves({"2-NODE": 1})}
    return cluster_spec(types, cells, vcs)


def test_shares_count_all_chains_of_one_device_type() -> None:
    driver = Driver(two_chains())
    for node in ("n0", "n1"):
        driver.bind(lent(f"a-{node}", "a", 2), suggested=[node])
    for node in ("m0", "m1"):
        driver.bind(lent(f"b-{node}", "b", 2), suggested=[node])
    # both have half of all there is: in the first chain alone, a would be above its share and b below
    decision = driver.ask(lent("b-more", "b", 1))
    assert isinstance(decision, Wait)
    assert ShareUsedUp("b", need=1, held=4, share=4) in decision.reasons


def test_a_loan_that_is_only_reserved_does_not_count_as_one_that_runs() -> None:
    driver = Driver(flat({"a": 1, "b": 1, "c": 1}))
    driver.bind(lent("a-runs", "a", 4), suggested=["n0"])
    driver.bind(lent("b-1", "b", 4), suggested=["n1"])
    driver.bind(lent("b-2", "b", 4), suggested=["n2"])
    assert driver.preempt(lent("a-reserved", "a", 2)).victims == ("b-2",)
    driver.release("b-2")
    # a has 6 of 12, c has none: a loses what it runs, since nothing is won by what it has reserved
    decision = driver.ask(lent("c", "c", 4))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("a-runs",)


def test_of_two_tenants_above_their_shares_the_farthest_by_weight_gives_first() -> None:
    weights = {"a": 0.5, "b": 1.0, "c": 1.0}
    driver = Driver(flat({"a": 1, "b": 1, "c": 1}, nodes=5, weights=weights))
    for node, vc in enumerate("aabbb"):
        driver.bind(lent(f"{vc}-{node}", vc, 4), suggested=[f"n{node}"])
    # c is to have 4 of 20; a has 8 where its share is 5 1/3, b has 12 where it is 10 2/3
    assert driver.preempt(lent("c", "c", 4)).victims == ("a-1",)


def test_idle_gpus_beside_a_loan_count_for_its_preemptor() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("b-whole", "b", 4), suggested=["n1"])
    driver.bind(lent("b-half", "b", 2), suggested=["n0"])
    assert driver.preempt(lent("a", "a", 4)).victims == ("b-half",)


def test_a_tenant_at_its_share_gives_no_more_although_its_next_loan_would_do() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    for i in range(4):
        driver.bind(lent(f"b-{i}", "b", 2), suggested=[f"n{i % 2}"])
    # the latest two are on different nodes: without them b is at its share, and no node is free
    waits = driver.wait(lent("a", "a", 4))
    assert not any(isinstance(reason, ShareUsedUp) for reason in waits.reasons)
    assert driver.preempt(lent("a", "a", 2)).victims == ("b-3",)


def test_a_fair_place_is_the_same_when_another_was_asked_in_between() -> None:
    spec = flat({"a": 1, "b": 1}, nodes=3)
    spec["virtualClusters"]["c"] = reserves({"NODE.SOCKET": 2})
    driver = Driver(spec)
    for node in ("n0", "n1", "n2"):
        driver.bind(lent(f"b-{node}", "b", 1), suggested=[node])
        driver.bind(lent(f"a-{node}", "a", 3), suggested=[node])
    plan = driver.ask(wants("job", "c", 2))
    assert isinstance(plan, Preempt)
    driver.ask(wants("other", "c", 2))
    driver.commit(plan)
    assert set(driver.cluster.group("job").victims) == set(plan.victims)
