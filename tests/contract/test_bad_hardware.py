"""Bad nodes and devices: never placed on, lived with, absorbed by spare capacity, and forgotten once they heal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived import Bind, Preempt, RequestError
from hived.cluster.explain.reasons import BadHardware
from hived.cluster.states import GroupState

from .driver import Driver, devices, replays, running, states
from .specs import flat, lent, wants

HIGH = wants("high", "a", 4, priority=1)


def test_partly_bad_node_is_used() -> None:
    """The healthy devices of it; a pair keeps off the socket with the bad one."""
    driver = Driver(flat({"a": 1}))
    driver.set_device("n0", 1, healthy=False)
    waits = driver.wait(wants("whole", "a", 4))
    assert BadHardware(1, ("n0",), 0) in waits.reasons
    driver.bind(wants("most", "a", 3))
    assert devices(driver.running["most"].pods) == {("n0", 0), ("n0", 2), ("n0", 3)}
    driver.release("most")
    driver.bind(wants("pair", "a", 2))
    assert devices(driver.running["pair"].pods) == {("n0", 2), ("n0", 3)}


@pytest.mark.parametrize("lazy", [False, True])
def test_broken_reservation_is_had_elsewhere(lazy: bool) -> None:
    driver = running(flat({"a": 2}), wants("wide", "a", (2, 3), lazy_preemption=lazy))
    first = driver.preempt(HIGH).placement.pods[0].node
    driver.set_device(first, 0, healthy=False)
    assert states(driver, "high", "wide") == [GroupState.PENDING, GroupState.ALLOCATED], "it spares its victims"
    second = driver.preempt(HIGH)
    assert second.victims == ("wide",)
    assert second.placement.pods[0].node != first
    driver.release("wide")
    driver.bind(HIGH)


def test_marking_twice_is_marking_once() -> None:
    driver = Driver(flat({"a": 1}, spare=1))
    before = driver.cluster.snapshot()
    driver.set_node("n0", healthy=True)
    assert driver.cluster.snapshot() == before
    driver.set_node("n0", healthy=False)
    broken = driver.cluster.snapshot()
    driver.set_node("n0", healthy=False)
    assert driver.cluster.snapshot() == broken
    driver.set_node("n0", healthy=True)
    assert driver.cluster.snapshot() == before


def test_hardware_that_does_not_exist() -> None:
    driver = Driver(flat({"a": 1}))
    with pytest.raises(RequestError):
        driver.cluster.set_node_health("elsewhere", healthy=False)
    for node, device in (("elsewhere", 0), ("n0", 4), ("n0", -1)):
        with pytest.raises(RequestError):
            driver.cluster.set_device_health(node, device, healthy=False)
    driver.check()


def test_what_is_unavailable_is_counted() -> None:
    """To each VC, were it first, and to all at once; safety is not affected."""
    driver = Driver(flat({"a": 2, "b": 2}))
    assert driver.cluster.unavailable() == {"a": 0, "b": 0}
    driver.set_node("n0", healthy=False)
    driver.set_device("n1", 2, healthy=False)
    assert driver.cluster.unavailable() == {"a": 0, "b": 0}, "each could have all of its own, were it first"
    assert driver.cluster.unavailable_to_all() == 5
    driver.set_node("n0", healthy=True)
    assert driver.cluster.unavailable_to_all() == 1
    driver.bind(wants("job", "a", 4), suggested=["n0"])
    driver.set_node("n0", healthy=False)
    assert driver.cluster.unavailable() == {"a": 4, "b": 0}
    for name in ("n1", "n2", "n3"):
        driver.set_node(name, healthy=False)
    assert driver.cluster.unavailable() == {"a": 8, "b": 8}
    assert min(row.margin for row in driver.cluster.check_safety()) == 0


DEVICE = st.tuples(st.integers(0, 4), st.integers(0, 3))


@given(st.sets(DEVICE, max_size=8), st.integers(1, 4))
def test_vc_never_notices_while_enough_is_healthy(broken: set[tuple[int, int]], gpus: int) -> None:
    driver = Driver(flat({"a": 2}, spare=3))
    for node, device in sorted(broken):
        driver.set_device(f"n{node}", device, healthy=False)
    whole = 5 - len({node for node, _ in broken})
    decision = driver.run(wants("job", "a", (2, gpus)))
    if whole >= 2:
        assert isinstance(decision, Bind)


def test_reservation_beside_bad_hardware_stays() -> None:
    """It is asked for again at once: nothing else has changed, so neither has where it is."""
    driver = running(flat({"a": 1, "b": 1}, size=8, kind="NODE.SOCKET", nodes=1), wants("b-1", "b", 4), log=True)
    broken = 4 - driver.running["b-1"].pods[0].leaf_cells[0]
    driver.set_device("n0", broken, healthy=False)
    for number in range(3):
        driver.bind(lent(f"loan-{number}", "b", 1))
    beside = next(name for name in driver.running if devices(driver.running[name].pods) == {("n0", broken + 1)})
    for name in [name for name in driver.running if name not in (beside, "b-1")]:
        driver.release(name)
    request = wants("a-1", "a", 1)
    first, again = driver.preempt(request), driver.ask(request)
    assert isinstance(again, Preempt)
    assert (again.placement, again.victims) == (first.placement, (beside,))
    assert replays(driver)
