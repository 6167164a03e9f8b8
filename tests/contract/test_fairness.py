"""Idle GPUs are shared among the tenants' opportunistic groups by weighted max-min fairness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hived import Preempt, Request, Wait
from hived.cluster.reasons import ReasonKind, ShareUsedUp

from .driver import Driver
from .specs import flat, lent, wants


def held(driver: Driver) -> Counter[str]:
    """GPUs in opportunistic use per tenant."""
    count: Counter[str] = Counter()
    for run in driver.running.values():
        if run.request.opportunistic:
            count[run.request.vc] += sum(len(pod.leaf_cells) for pod in run.pods)
    return count


def fill(driver: Driver, vc: str, most: int, gpus: int = 1, tag: str = "") -> int:
    """Opportunistic groups of a tenant, one by one, until one has to wait; how many started."""
    for i in range(most):
        if isinstance(driver.run(lent(f"{vc}{tag}-{i}", vc, gpus)), Wait):
            return i
    return most


def max_min(capacity: int, weights: Mapping[str, int], demands: Mapping[str, int]) -> dict[str, Fraction]:
    """Weighted max-min shares, by filling all glasses at the same speed."""
    shares = dict.fromkeys(weights, Fraction(0))
    left, thirsty = Fraction(capacity), {vc for vc in weights if demands[vc]}
    while thirsty and left:
        step = min((demands[vc] - shares[vc]) / weights[vc] for vc in thirsty)
        step = min(step, left / sum(weights[vc] for vc in thirsty))
        for vc in thirsty:
            shares[vc] += step * weights[vc]
            left -= step * weights[vc]
        thirsty = {vc for vc in thirsty if shares[vc] < demands[vc]}
    return shares


def test_one_tenant_alone_may_have_all_that_is_idle() -> None:
    driver = Driver(flat({"a": 1, "b": 3}))
    assert fill(driver, "a", 20) == 16


@pytest.mark.parametrize(
    ("weights", "late"), [({"a": 1, "b": 1}, 4), ({"a": 1, "b": 3}, 6), ({"a": 3, "b": 1}, 2), ({"a": 7, "b": 1}, 1)]
)
def test_a_late_tenant_gets_its_weighted_share_back_and_no_more(weights: dict[str, float], late: int) -> None:
    driver = Driver(flat({"a": 1, "b": 1}, weights=weights))
    assert fill(driver, "a", 8) == 8
    assert fill(driver, "b", 8) == late
    assert held(driver) == {"a": 8 - late, "b": late}
    waits = driver.wait(lent("again", "a", 1))
    assert ReasonKind.SHARE_USED_UP in {reason.kind for reason in waits.reasons}


def test_the_default_weight_is_the_size_of_the_vc() -> None:
    driver = Driver(flat({"a": 1, "b": 3}))
    assert fill(driver, "a", 16) == 16
    assert fill(driver, "b", 16) == 12


def test_pinned_cells_count_for_the_default_weight() -> None:
    spec = flat({"a": 1, "b": 1}, nodes=4)
    for pin in (2, 3):
        spec["physicalCluster"]["physicalCells"][pin]["pinnedCellId"] = f"pin-{pin}"
    spec["virtualClusters"]["b"]["pinnedCells"] = [{"pinnedCellId": "pin-2"}, {"pinnedCellId": "pin-3"}]
    driver = Driver(spec)
    assert fill(driver, "a", 16) == 16
    assert fill(driver, "b", 16) == 12


def test_what_is_in_guaranteed_use_is_not_shared() -> None:
    driver = Driver(flat({"a": 1, "b": 1, "c": 1}))
    driver.bind(wants("job", "c", 4))
    fill(driver, "a", 12)
    assert fill(driver, "b", 12) == 4


def test_a_share_used_up_is_reported_with_its_numbers() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    fill(driver, "a", 8)
    fill(driver, "b", 8)
    waits = driver.wait(lent("more", "b", 1))
    (reason,) = [reason for reason in waits.reasons if isinstance(reason, ShareUsedUp)]
    assert (reason.vc, reason.need, reason.held, reason.share) == ("b", 1, 4, 4)


@pytest.mark.parametrize("weights", [{"a": 1, "b": 4, "c": 1}, {"a": 2, "b": 8, "c": 1}])
def test_above_the_share_is_by_weight_and_not_by_number(weights: dict[str, float]) -> None:
    driver = Driver(flat({"a": 1, "b": 3, "c": 1}, weights=weights))
    nodes = iter(["n0", "n1", "n2", "n3", "n4"])
    for vc in "aabbb":
        node = next(nodes)
        driver.bind(lent(f"{vc}-{node}", vc, 4), suggested=[node])
    decision = driver.run(wants("job", "c", 4))
    assert isinstance(decision, Preempt)
    assert decision.victims[0].startswith("a-")


def test_inside_one_node_the_tenant_above_its_share_yields_first() -> None:
    spec = flat({"a": 1, "b": 1, "c": 0}, nodes=3)
    spec["virtualClusters"]["c"] = {"virtualCells": [{"cellType": "NODE.SOCKET", "cellNumber": 2}]}
    driver = Driver(spec)
    for node in ("n0", "n1", "n2"):
        driver.bind(lent(f"b-{node}", "b", 1), suggested=[node])
        driver.bind(lent(f"a-{node}", "a", 3), suggested=[node])
    driver.run(wants("job", "c", 2))
    assert held(driver) == {"a": 6, "b": 3}


def test_an_opportunistic_request_preempts_only_tenants_above_their_share() -> None:
    driver = Driver(flat({"a": 1, "b": 1, "c": 1}))
    fill(driver, "a", 8)
    fill(driver, "b", 4)
    for i in range(4):
        decision = driver.run(lent(f"c-{i}", "c", 1))
        assert isinstance(decision, Preempt)
        assert all(victim.startswith("a-") for victim in decision.victims)
    driver.wait(lent("c-4", "c", 1))


def test_two_tenants_at_their_shares_leave_each_other_alone() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    fill(driver, "a", 8)
    fill(driver, "b", 8)
    for _ in range(5):
        for vc in "ab":
            driver.wait(lent(f"{vc}-again", vc, 1))


def test_a_tenant_that_would_exceed_its_share_preempts_no_group() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("a-0", "a", 4))
    driver.bind(lent("a-1", "a", 1))
    driver.bind(lent("b-0", "b", 3))
    driver.wait(lent("b-1", "b", (2, 4)))
    assert held(driver) == {"a": 5, "b": 3}


def run_until_stable(driver: Driver, jobs: list[Request], rounds: int) -> None:
    """Schedule every waiting group and every victim again and again, until nothing changes any more."""
    for _ in range(rounds):
        changed = False
        for job in jobs:
            if job.group not in driver.running:
                changed |= not isinstance(driver.run(job), Wait)
        if not changed:
            return
    raise AssertionError("the tenants take the same GPUs from each other for ever")


WEIGHTS = st.fixed_dictionaries({vc: st.integers(1, 4) for vc in "abc"})


@given(
    WEIGHTS,
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 1, 2, 3, 4, 8])), min_size=2, max_size=12),
    st.integers(0, 4),
)
def test_loans_do_not_preempt_endlessly(weights: dict[str, int], jobs: list[tuple[str, int]], used: int) -> None:
    driver = Driver(flat({"a": 1, "b": 1, "c": 1}, weights=weights))
    if used:
        driver.bind(wants("guaranteed", "c", used))
    asked = [
        lent(f"{vc}-{i}", vc, (2, 4)) if gpus == 8 else lent(f"{vc}-{i}", vc, gpus) for i, (vc, gpus) in enumerate(jobs)
    ]
    run_until_stable(driver, asked, rounds=30)


@given(WEIGHTS, st.fixed_dictionaries({vc: st.integers(0, 12) for vc in "abc"}), st.integers(0, 4), st.randoms())
def test_single_gpus_end_up_at_the_weighted_max_min_shares(
    weights: dict[str, int], demands: dict[str, int], used: int, order: Random
) -> None:
    assume(sum(demands.values()) > 0)
    driver = Driver(flat({"a": 1, "b": 1, "c": 1}, weights=weights))
    if used:
        driver.bind(wants("guaranteed", "c", used))
    jobs = [lent(f"{vc}-{i}", vc, 1) for vc, demand in demands.items() for i in range(demand)]
    order.shuffle(jobs)
    run_until_stable(driver, jobs, rounds=30)
    shares = max_min(12 - used, weights, demands)
    after = held(driver)
    assert sum(after.values()) == min(12 - used, sum(demands.values())), "GPUs in demand are idle"
    for vc, share in shares.items():
        assert after[vc] >= int(share), f"{vc} has {after[vc]}, its share is {share}"


def test_the_gpus_of_a_guaranteed_group_go_back_to_the_loans_when_it_ends() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    fill(driver, "a", 8)
    assert isinstance(driver.run(wants("job", "b", 4)), Preempt)
    assert held(driver) == {"a": 4}
    driver.release("job")
    assert fill(driver, "b", 8) == 4
