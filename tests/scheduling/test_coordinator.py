"""The local coordinator, second by second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.errors import InvariantError
from hived.policies.antman import GuestSharing
from hived.policies.antman.coordinator import (
    Coordinator,
    Event,
    GuestArrived,
    Instruction,
    Left,
    LimitCompute,
    LimitMemory,
    MiniBatch,
    OwnerArrived,
    Paused,
    Protection,
    Tick,
)

OWNER = 9


def told(coordinator: Coordinator, *events: Event) -> list[Instruction]:
    """All that is instructed, with every invariant checked after every event."""
    found: list[Instruction] = []
    for event in events:
        found += coordinator.handle(event)
        coordinator.validate()
    return found


def second(at: float, owner: float | None = 0.5, **guests: float) -> Iterator[Event]:
    """A second: each job ends a mini-batch, the owner with 10 GiB and a time of ``owner``."""
    if owner is not None:
        yield MiniBatch(at, OWNER, owner, 10.0)
    for name, gib in guests.items():
        yield MiniBatch(at, int(name[1:]), 0.2, gib)
    yield Tick(at)


def compute(instructions: list[Instruction]) -> dict[int, float]:
    return {i.job: i.limit for i in instructions if isinstance(i, LimitCompute)}


def memory(instructions: list[Instruction]) -> dict[int, float]:
    return {i.job: i.gib for i in instructions if isinstance(i, LimitMemory)}


def test_owner_arrives_beside_two_guests() -> None:
    gpu = Coordinator(32.0)
    assert told(gpu, GuestArrived(0, 1, 2.0)) == [LimitMemory(1, 32.0), LimitCompute(1, 1.0)], "alone: no limits"
    both = told(gpu, GuestArrived(1, 2, 1.0))
    assert both == [LimitMemory(2, 1.0), LimitCompute(2, 1.0)], "the memory of the first changes at its boundary"
    assert memory(told(gpu, MiniBatch(2, 1, 0.2, 14.0), MiniBatch(2, 2, 0.2, 1.0, 7.0))) == {1: 14.0, 2: 8.0}
    # the owner comes: compute at once, memory at the end of each mini-batch
    assert told(gpu, OwnerArrived(10, OWNER)) == [
        LimitCompute(1, 0.0), LimitCompute(2, 0.0), LimitMemory(OWNER, 10.0),  # what they have left it, for now
    ]  # fmt: skip
    assert told(gpu, MiniBatch(10.1, 1, 0.2, 14.0)) == [LimitMemory(1, 2.0)]
    assert told(gpu, MiniBatch(10.2, 2, 0.2, 8.0)) == [LimitMemory(2, 1.0)]
    log = {}
    for at in range(11, 60):
        if found := told(gpu, *second(at)):
            log[at] = found
    assert log == {
        11: [LimitMemory(OWNER, 29.0)],
        30: [
            LimitMemory(1, 14.0), LimitCompute(1, 0.25),  # of the 22 GiB that the owner leaves
            LimitMemory(2, 8.0), LimitCompute(2, 0.25),
            LimitMemory(OWNER, 10.0),
        ],
        35: [LimitCompute(1, 0.5), LimitCompute(2, 0.5)],
        40: [LimitCompute(1, 0.75), LimitCompute(2, 0.75)],
        45: [LimitCompute(1, 1.0), LimitCompute(2, 1.0)],
    }  # fmt: skip
    # a surge of the owner: 4 GiB on the host for a moment, and the last guest shrinks at its boundary
    assert told(gpu, MiniBatch(60, OWNER, 0.5, 10.0, 4.0)) == []
    assert memory(told(gpu, *second(61, g1=14.0, g2=8.0))) == {2: 4.0}
    # it leaves
    assert memory(told(gpu, Left(70, OWNER), MiniBatch(70, 2, 0.2, 4.0, 4.0))) == {2: 8.0}


def beside(owner: Callable[[int, float], float]) -> tuple[Coordinator, list[tuple[int, float]]]:
    """A guest for 200 seconds beside an owner with these mini-batch times, by the second and the guest's limit.

    Returns the changes of the limit, by the second.
    """
    gpu, changes = Coordinator(32.0), []
    told(gpu, GuestArrived(0, 1, 1.0), OwnerArrived(0, OWNER))
    for at in range(1, 200):
        seconds = owner(at, gpu.guests[1].compute or 0.0)
        changes += [(at, limit) for limit in compute(told(gpu, *second(at, seconds, g1=1.0))).values()]
    return gpu, changes


RAISED = [(20, 0.25), (25, 0.5), (30, 0.75), (35, 1.0)]


@pytest.mark.parametrize(
    ("owner", "changes"),
    [
        # it becomes slower by itself, at the first step too, and is measured anew
        (
            lambda at, limit: 0.5 if at < 100 else 0.7,
            [*RAISED, (102, 0.25), (105, 0.0), (125, 0.25), (130, 0.5), (135, 0.75), (140, 1.0)],
        ),
        # it becomes faster than it was alone: it has another phase, and is measured anew
        (
            lambda at, limit: 0.5 if at < 100 else 0.3,
            [*RAISED, (104, 0.0), (124, 0.25), (129, 0.5), (134, 0.75), (139, 1.0)],
        ),
        # its times vary by themselves, as of a dynamic model
        (lambda at, limit: 0.5 + 0.1 * (at % 2), RAISED),
        # one slow mini-batch
        (lambda at, limit: 0.56 if at in (22, 33) else 0.5, RAISED),
        # differences below a millisecond do not count
        (lambda at, limit: 0.020 + 0.0009 * (limit > 0), RAISED),
    ],
    ids=["slower by itself", "faster by itself", "varies", "one slow", "below a millisecond"],
)
def test_limits_follow_the_owners_times(owner: Callable[[int, float], float], changes: list[tuple[int, float]]) -> None:
    assert beside(owner)[1] == changes


@pytest.mark.parametrize("varies", [False, True], ids=["steady", "varies"])
def test_guest_is_raised_while_the_owner_is_fast(varies: bool) -> None:
    """At the step that slows the owner down it goes to half of the steps, up to one below, and there again later."""

    def owner(at: int, limit: float) -> float:
        return (0.5 + 0.1 * (varies and at % 2)) * (1.1 if limit >= 0.75 else 1.0)

    gpu, changes = beside(owner)
    limits = [limit for _, limit in changes]
    assert limits[:4] == [0.25, 0.5, 0.75, 0.25]
    assert 1.0 not in limits
    slow = [at - before for (before, high), (at, _) in pairwise(changes) if high == 0.75]
    assert max(slow) <= 6, "three of five mini-batches tell"
    tried = [at for at, limit in changes if limit == 0.75]
    assert all(b - a >= 60 for a, b in pairwise(tried[1:]))
    assert len(tried) >= 3
    assert compute(told(gpu, GuestArrived(200, 2, 1.0))) == {2: 0.25}, "others are tried anew"


def test_owner_that_is_away_leaves_the_gpu_to_its_guests() -> None:
    """In a phase on the processor (Figure 3). Before its first mini-batch it may be no training job."""
    gpu = Coordinator(32.0)
    log: list[tuple[int, float]] = []

    def pass_seconds(first: int, last: int, owner: float | None) -> None:
        for at in range(first, last):
            log.extend((at, limit) for limit in compute(told(gpu, *second(at, owner, g1=1.0))).values())

    told(gpu, GuestArrived(0, 1, 1.0), OwnerArrived(0, OWNER))
    pass_seconds(1, 60, None)
    assert log == [], "it may use the GPU without mini-batches"
    pass_seconds(60, 87, 0.5)
    assert log == [(80, 0.25), (85, 0.5)]
    pass_seconds(87, 363, None)
    assert log[2:] == [(88, 1.0)]
    assert compute(told(gpu, MiniBatch(363, OWNER, 276.0, 10.0))) == {1: 0.5}, "the phase is no slow mini-batch"
    pass_seconds(364, 380, 0.5)
    assert log[3:] == [(367, 0.75), (372, 1.0)]


def test_memory_follows_what_is_used() -> None:
    """A peak of the owner is kept for it for a while, and not for ever (Figure 7b); so is one of a guest."""
    gpu = Coordinator(32.0)
    told(gpu, GuestArrived(0, 1, 2.0), OwnerArrived(0, OWNER))
    for at in range(1, 40):
        told(gpu, *second(at, g1=20.0))
    assert (gpu.guests[1].memory, gpu.owner_limit) == (20.0, 12.0)
    told(gpu, MiniBatch(40, OWNER, 0.5, 12.0, 8.0))  # 20 GiB, 8 of them on the host
    told(gpu, *second(41, g1=20.0))
    told(gpu, *second(42, g1=12.0))
    assert (gpu.guests[1].memory, gpu.owner_limit) == (12.0, 20.0)
    for at in range(43, 99):
        told(gpu, *second(at, g1=12.0))
    assert gpu.guests[1].memory == 12.0
    for at in range(99, 104):
        told(gpu, MiniBatch(at, 1, 0.2, 12.0, 8.0), *second(at))
    assert gpu.guests[1].memory == 20.0, "it has back what the owner needs no more"
    for at in range(104, 180):
        told(gpu, *second(at, g1=4.0))
    assert (gpu.guests[1].memory, gpu.owner_limit) == (4.0, 28.0)


def test_guest_that_has_paused_has_no_memory() -> None:
    """The owner has all but its least: it is measured as it is alone."""
    gpu = Coordinator(32.0)
    told(gpu, GuestArrived(0, 1, 1.0), *second(1, None, g1=20.0))
    assert memory(told(gpu, OwnerArrived(2, OWNER))) == {OWNER: 0.0}, "it may have all until it has paused"
    assert memory(told(gpu, Paused(3, 1))) == {1: 1.0, OWNER: 31.0}
    assert told(gpu, Paused(4, 1)) == []


def test_guest_without_its_least_memory_is_held() -> None:
    gpu = Coordinator(24.0)
    told(gpu, GuestArrived(0, 1, 8.0), GuestArrived(0, 2, 8.0), OwnerArrived(0, OWNER))
    for at in range(1, 60):
        told(gpu, *second(at, g1=8.0, g2=8.0) if at == 1 else second(at, g1=8.0))
    assert [(guest.memory, guest.compute) for guest in gpu.guests.values()] == [(8.0, 1.0), (0.0, 0.0)]
    assert told(gpu, Left(60, 1)) == [LimitMemory(2, 8.0), LimitCompute(2, 1.0)]


def test_guests_alone_divide_memory_by_its_worth() -> None:
    gpu = Coordinator(16.0, Protection(trial_s=4))
    told(gpu, GuestArrived(0, 1, 2.0), GuestArrived(0, 2, 2.0))
    wants = {1: 14.0, 2: 10.0}
    for at in range(1, 400):
        for job, slope in (1, 0.01), (2, 0.2):  # memory is worth much to the second
            has = gpu.guests[job].memory or 0.0
            on_host = max(0.0, wants[job] - has)
            told(gpu, MiniBatch(at, job, 0.2 * (1 + slope * on_host), min(has, wants[job]), on_host))
        assert sum(guest.memory or 0.0 for guest in gpu.guests.values()) <= 17.0 + 1e-6, "but for one boundary"
    assert (gpu.guests[2].memory or 0.0) >= 9.0
    assert (gpu.guests[1].memory or 0.0) >= 2.0


def test_gpu_has_one_owner() -> None:
    gpu = Coordinator(32.0)
    told(gpu, OwnerArrived(0, OWNER))
    with pytest.raises(InvariantError, match="owns the GPU"):
        gpu.handle(OwnerArrived(1, 8))


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 120), min_size=1, max_size=4),
    st.integers(0, 60),
    st.integers(1, 30),
    st.integers(1, 10),
    st.integers(1, 6),
)
def test_steps_are_those_of_the_closed_form(
    arrivals: list[int], owner: int, settle_s: int, step_s: int, steps: int
) -> None:
    """Of the simulator; for a job with a steady mini-batch time, every second."""
    sharing = GuestSharing(settle_s=settle_s, step_s=step_s, steps=steps)
    gpu = Coordinator(32.0, Protection(settle_s, step_s, steps))
    for now in range(180):
        if now == owner:
            told(gpu, OwnerArrived(now, OWNER))
        for number, at in enumerate(arrivals):
            if at == now:
                told(gpu, GuestArrived(now, number, 1.0))
        told(gpu, *(second(now) if now >= owner else (Tick(now),)))
        for number, at in enumerate(arrivals):
            if at <= now:
                since = now - max(at, owner + settle_s)
                assert gpu.guests[number].compute == (sharing.limit(since) if now >= owner else 1.0), now


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["owner", "guest", "left", "batch", "batch", "batch", "tick"]),
        st.integers(0, 3),
        st.sampled_from([0.1, 0.1, 0.5, 1.0, 7.0]),
        st.sampled_from([0.5, 3.0, 9.0, 30.0]),
        st.sampled_from([0.0, 0.0, 1.0, 20.0]),
    ),
    max_size=80,
)


@settings(max_examples=80)
@given(EVENTS)
def test_owner_comes_first_whatever_happens(
    steps: list[tuple[str, int, float, float, float]],
) -> None:
    gpu, now = Coordinator(32.0), 0.0
    for kind, job, passed, gib, host in steps:
        now += passed
        event: Event = Tick(now)
        if kind == "owner" and gpu.owner is None:
            event = OwnerArrived(now, OWNER)
        elif kind == "guest" and job not in gpu.guests:
            event = GuestArrived(now, job, gib)
        elif kind == "left" and (job in gpu.guests or gpu.owner is not None):
            event = Left(now, job if job in gpu.guests else OWNER)
        elif kind == "batch" and (job in gpu.guests or gpu.owner is not None):
            event = MiniBatch(now, job if job in gpu.guests else OWNER, passed, gib, host)
        computing = {n for n, guest in gpu.guests.items() if guest.compute}
        found = told(gpu, event)
        ended = event.job if isinstance(event, MiniBatch) else None
        assert not {job for job in memory(found) if job in computing and job != ended}, "in its mini-batch"
        if isinstance(event, OwnerArrived):
            assert all(guest.compute == 0 for guest in gpu.guests.values())
        assert told(gpu, Tick(now)) == [] or gpu.owner is None, "said once"
