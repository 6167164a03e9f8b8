"""Idle GPUs are shared among the tenants' opportunistic groups by weighted max-min fairness."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hived import Preempt, Request, Wait
from hived.cluster.explain.reasons import ReasonKind, ShareUsedUp
from hived.cluster.fairness import shares, whole

from .driver import Case, Driver, running
from .specs import flat, lent, reserves, two_chains, wants


def held(driver: Driver) -> Counter[str]:
    """GPUs in opportunistic use per tenant."""
    count: Counter[str] = Counter()
    for run in driver.running.values():
        if run.request.opportunistic:
            count[run.request.vc] += sum(len(pod.leaf_cells) for pod in run.pods)
    return count


def fill(driver: Driver, vc: str, most: int) -> int:
    """Opportunistic groups of a tenant, one GPU each, until one has to wait; how many started."""
    for i in range(most):
        if isinstance(driver.run(lent(f"{vc}-{i}", vc, 1)), Wait):
            return i
    return most


WANTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=6)


@given(st.integers(0, 60), WANTS)
def test_shares_are_max_min(total: int, tenants: list[tuple[int, int]]) -> None:
    wanted, weights = [want for want, _ in tenants], [weight for _, weight in tenants]
    found = shares(total, wanted, weights)
    assert all(0 <= share <= want for share, want in zip(found, wanted, strict=True))
    assert sum(found) == min(total, sum(wanted)), "nothing in demand is left over"
    for share, want, weight in zip(found, wanted, weights, strict=True):
        if share < want and weight:
            for other, its in zip(found, weights, strict=True):
                assert its == 0 or other / its <= share / weight, "a tenant with more per weight could yield"
                assert its or not other, "a tenant without weight gets the remainder"


@given(st.integers(0, 60), WANTS, st.integers(2, 5))
def test_only_proportions_count(total: int, tenants: list[tuple[int, int]], factor: int) -> None:
    wanted, weights = [want for want, _ in tenants], [weight for _, weight in tenants]
    assert shares(total, wanted, [factor * weight for weight in weights]) == shares(total, wanted, weights)


def test_whole_weights() -> None:
    assert whole([Fraction(1, 2), Fraction(2, 3), Fraction(3)]) == [3, 4, 18]
    assert whole([]) == []


@pytest.mark.parametrize(
    ("weights", "late"), [({"a": 1, "b": 1}, 4), ({"a": 1, "b": 3}, 6), ({"a": 3, "b": 1}, 2), ({"a": 7, "b": 1}, 1)]
)
def test_late_tenant_gets_its_share(weights: dict[str, float], late: int) -> None:
    """One tenant alone may have all that is idle; another gets its weighted share of it back, and no more."""
    driver = Driver(flat({"a": 1, "b": 1}, weights=weights))
    assert fill(driver, "a", 8) == 8
    assert fill(driver, "b", 8) == late
    assert held(driver) == {"a": 8 - late, "b": late}
    for vc, has in (("a", 8 - late), ("b", late)):
        waits = driver.wait(lent(f"{vc}-again", vc, 1))
        (reason,) = [reason for reason in waits.reasons if isinstance(reason, ShareUsedUp)]
        assert (reason.vc, reason.need, reason.held, reason.share) == (vc, 1, has, has)


@pytest.mark.parametrize("pinned", [False, True])
def test_default_weight_is_the_size_of_the_vc(pinned: bool) -> None:
    pins = {2: "b", 3: "b"} if pinned else {}
    driver = Driver(flat({"a": 1, "b": 3 - len(pins)}, nodes=4, pinned=pins))
    assert fill(driver, "a", 16) == 16
    assert fill(driver, "b", 16) == 12


def test_shares_beside_guaranteed_use() -> None:
    """What is in guaranteed use is not shared, and goes back to the loans when it ends."""
    driver = running(flat({"a": 1, "b": 1, "c": 1}), wants("job", "c", 4))
    fill(driver, "a", 12)
    assert fill(driver, "b", 12) == 4
    driver.release("job")
    assert fill(driver, "c", 8) == 4
    assert held(driver) == {"a": 4, "b": 4, "c": 4}


def loans(*runs: str) -> list[Request | tuple[Request, str]]:
    """Loans as ``VC GPUs node``, called ``VC-node``."""
    made: list[Request | tuple[Request, str]] = []
    for run in runs:
        vc, gpus, node = run.split()
        made.append((lent(f"{vc}-{node}", vc, int(gpus)), node))
    return made


CASES = {
    # by number b has more
    "above its share by weight": Case(
        flat({"a": 1, "b": 3, "c": 1}, weights={"a": 1, "b": 4, "c": 1}),
        loans("a 4 n0", "a 4 n1", "b 4 n2", "b 4 n3", "b 4 n4"),
        wants("job", "c", 4),
        ("a-n0",),
    ),
    "by weight among all": Case(
        flat({"a": 1, "b": 3, "c": 1}, weights={"a": 2, "b": 8, "c": 1}),
        loans("a 4 n0", "a 4 n1", "b 4 n2", "b 4 n3", "b 4 n4"),
        wants("job", "c", 4),
        ("a-n0",),
    ),
    # c is to have 4 of 20; a has 8 where its share is 5 1/3, b has 12 where it is 10 2/3
    "the farthest above by weight": Case(
        flat({"a": 1, "b": 1, "c": 1}, nodes=5, weights={"a": 0.5, "b": 1.0, "c": 1.0}),
        loans("a 4 n0", "a 4 n1", "b 4 n2", "b 4 n3", "b 4 n4"),
        lent("loan", "c", 4),
        ("a-n1",),
    ),
    "idle GPUs beside a loan count": Case(
        flat({"a": 1, "b": 1}), loans("b 4 n1", "b 2 n0"), lent("loan", "a", 4), ("b-n0",)
    ),
    "none to exceed its own share": Case(
        flat({"a": 1, "b": 1}),
        [lent("a-0", "a", 4), lent("a-1", "a", 1), lent("b-0", "b", 3)],
        lent("b-1", "b", (2, 4)),
        None,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whose_loans_end(case: Case) -> None:
    case.check()


def test_only_tenants_above_their_share_yield() -> None:
    driver = Driver(flat({"a": 1, "b": 1, "c": 1}))
    fill(driver, "a", 8)
    fill(driver, "b", 4)
    for i in range(4):
        decision = driver.run(lent(f"c-{i}", "c", 1))
        assert isinstance(decision, Preempt)
        assert all(victim.startswith("a-") for victim in decision.victims)
    driver.wait(lent("c-4", "c", 1))


def test_partly_bad_node_is_not_the_fairest() -> None:
    driver = running(flat({"a": 1, "b": 1, "c": 2}), *loans("a 4 n1", "b 1 n2", "b 1 n3", "a 3 n0"))
    driver.set_device("n0", 3, healthy=False)
    decision = driver.preempt(wants("gang", "c", (2, 4)))
    assert "n0" not in {pod.node for pod in decision.placement.pods}


def test_shares_count_all_chains_of_a_type() -> None:
    """Four nodes of two V100 in two chains: in the first chain alone, a would be above its share and b below."""
    vcs = {"a": reserves({"NODE": 1}), "b": reserves({"NODE": 1}), "c": reserves({"2-NODE": 1})}
    driver = running(two_chains(2, vcs), *loans("a 2 n0", "a 2 n1", "b 2 m0", "b 2 m1"))
    assert ShareUsedUp("b", need=1, held=4, share=4) in driver.wait(lent("b-more", "b", 1)).reasons


def test_reserved_loan_does_not_count_as_running() -> None:
    driver = running(flat({"a": 1, "b": 1, "c": 1}), *loans("a 4 n0", "b 4 n1", "b 4 n2"))
    assert driver.preempt(lent("a-reserved", "a", 2)).victims == ("b-n2",)
    driver.release("b-n2")
    # a has 6 of 12, c has none: a loses what it runs, since nothing is won by what it has reserved
    assert driver.preempt(lent("c", "c", 4)).victims == ("a-n0",)


def test_tenant_at_its_share_gives_no_more() -> None:
    """The latest two loans of b are on different nodes: without them it is at its share, and no node is free."""
    driver = running(flat({"a": 1, "b": 1}), *((lent(f"b-{i}", "b", 2), f"n{i % 2}") for i in range(4)))
    waits = driver.wait(lent("a", "a", 4))
    assert ReasonKind.SHARE_USED_UP not in {reason.kind for reason in waits.reasons}
    assert driver.preempt(lent("a", "a", 2)).victims == ("b-3",)


def test_above_its_share_inside_a_node() -> None:
    """It is the same place when it is decided again."""
    spec = flat({"a": 1, "b": 1}, nodes=3)
    spec["virtualClusters"]["c"] = reserves({"NODE.SOCKET": 2})
    driver = running(spec, *loans("b 1 n0", "a 3 n0", "b 1 n1", "a 3 n1", "b 1 n2", "a 3 n2"))
    plan = driver.ask(wants("job", "c", 2))
    assert isinstance(plan, Preempt)
    driver.ask(wants("other", "c", 2))
    driver.commit(plan)
    driver.step(wants("job", "c", 2))
    assert held(driver) == {"a": 6, "b": 3}


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


@settings(max_examples=30)
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


@settings(max_examples=30)
@given(WEIGHTS, st.fixed_dictionaries({vc: st.integers(0, 12) for vc in "abc"}), st.integers(0, 4), st.randoms())
def test_single_gpus_end_at_max_min_shares(
    weights: dict[str, int], demands: dict[str, int], used: int, order: Random
) -> None:
    assume(sum(demands.values()) > 0)
    driver = Driver(flat({"a": 1, "b": 1, "c": 1}, weights=weights))
    if used:
        driver.bind(wants("guaranteed", "c", used))
    jobs = [lent(f"{vc}-{i}", vc, 1) for vc, demand in demands.items() for i in range(demand)]
    order.shuffle(jobs)
    run_until_stable(driver, jobs, rounds=30)
    after, exact = held(driver), shares(12 - used, list(demands.values()), [weights[vc] for vc in demands])
    assert sum(after.values()) == min(12 - used, sum(demands.values())), "GPUs in demand are idle"
    for vc, share in zip(demands, exact, strict=True):
        assert after[vc] >= int(share), f"{vc} has {after[vc]}, its share is {share}"
