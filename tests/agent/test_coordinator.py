"""The local coordinator, second by second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.agent.coordinator import (
    Coordinator,
    Event,
    GuestArrived,
    Instruction,
    Left,
    LimitCompute,
    LimitMemory,
    MiniBatch,
    OwnerArrived,
    Protection,
    Tick,
)
from hived.errors import InvariantError
from hived.scheduling import GuestSharing

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


def test_a_guaranteed_job_arrives_beside_two_guests_second_by_second() -> None:
    gpu = Coordinator(32.0)
    assert told(gpu, GuestArrived(0, 1, 2.0)) == [LimitMemory(1, 32.0), LimitCompute(1, 1.0)], "alone: no limits"
    both = told(gpu, GuestArrived(1, 2, 1.0))
    assert both == [LimitMemory(2, 1.0), LimitCompute(2, 1.0)], "the memory of the first changes at its boundary"
    assert memory(told(gpu, MiniBatch(2, 1, 0.2, 14.0), MiniBatch(2, 2, 0.2, 1.0, 7.0))) == {1: 14.0, 2: 8.0}
    # the owner comes: compute at once, memory at the end of each mini-batch
    assert told(gpu, OwnerArrived(10, OWNER)) == [LimitCompute(1, 0.0), LimitCompute(2, 0.0)]
    assert told(gpu, MiniBatch(10.1, 1, 0.2, 14.0)) == [LimitMemory(1, 2.0)]
    assert told(gpu, MiniBatch(10.2, 2, 0.2, 8.0)) == [LimitMemory(2, 1.0)]
    log = {}
    for at in range(11, 60):
        if found := told(gpu, *second(at)):
            log[at] = found
    assert log == {
        30: [
            LimitMemory(1, 14.0), LimitCompute(1, 0.25),  # of the 22 GiB that the owner leaves
            LimitMemory(2, 8.0), LimitCompute(2, 0.25),
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


def test_guests_are_raised_only_while_the_owner_is_as_fast_as_alone() -> None:
    gpu = Coordinator(32.0)
    told(gpu, GuestArrived(0, 1, 1.0), OwnerArrived(0, OWNER))
    limits = []
    for at in range(1, 200):
        limit = gpu.guests[1].compute or 0.0
        slower = 0.5 * (1.0 if limit < 0.75 else 1.1)
        limits.append((at, compute(told(gpu, *second(at, slower, g1=1.0))).get(1)))
    changes = [(at, limit) for at, limit in limits if limit is not None]
    assert changes == [(20, 0.25), (25, 0.5), (30, 0.75), (31, 0.0), (51, 0.25), (56, 0.5)], "and never 3/4 again"
    assert compute(told(gpu, GuestArrived(200, 2, 1.0))) == {2: 0.25}, "others are tried anew"


def test_an_owner_that_becomes_slower_by_itself_is_measured_anew() -> None:
    gpu = Coordinator(32.0)
    told(gpu, GuestArrived(0, 1, 1.0), OwnerArrived(0, OWNER))
    found = {at: compute(told(gpu, *second(at, 0.5 if at < 100 else 0.7, g1=1.0))).get(1) for at in range(1, 200)}
    assert [(at, limit) for at, limit in found.items() if limit is not None] == [
        (20, 0.25), (25, 0.5), (30, 0.75), (35, 1.0), (100, 0.0), (120, 0.25), (125, 0.5), (130, 0.75), (135, 1.0),
    ]  # fmt: skip


def test_an_owner_whose_mini_batch_times_differ_is_not_stable_and_has_the_gpu_for_itself() -> None:
    gpu = Coordinator(32.0)
    told(gpu, GuestArrived(0, 1, 1.0), OwnerArrived(0, OWNER))
    for at in range(1, 100):
        assert told(gpu, *second(at, 0.5 + 0.1 * (at % 2))) == []
    assert gpu.guests[1].compute == 0.0


def test_differences_below_ten_milliseconds_do_not_count() -> None:
    gpu = Coordinator(32.0)
    told(gpu, GuestArrived(0, 1, 1.0), OwnerArrived(0, OWNER))
    found = [compute(told(gpu, *second(at, 0.020 + 0.009 * (at % 2)))).get(1) for at in range(1, 50)]
    assert [limit for limit in found if limit is not None] == [0.25, 0.5, 0.75, 1.0]


def test_a_guest_whose_least_memory_does_not_fit_is_held_on_the_host() -> None:
    gpu = Coordinator(24.0)
    told(gpu, GuestArrived(0, 1, 8.0), GuestArrived(0, 2, 8.0), OwnerArrived(0, OWNER))
    for at in range(1, 60):
        told(gpu, *second(at, g1=8.0, g2=8.0) if at == 1 else second(at, g1=8.0))
    assert [(guest.memory, guest.compute) for guest in gpu.guests.values()] == [(8.0, 1.0), (0.0, 0.0)]
    assert told(gpu, Left(60, 1)) == [LimitMemory(2, 8.0), LimitCompute(2, 1.0)]


def test_guests_without_an_owner_divide_memory_by_what_it_adds_to_the_sum_of_their_rates() -> None:
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


def test_a_gpu_has_one_owner() -> None:
    gpu = Coordinator(32.0)
    told(gpu, OwnerArrived(0, OWNER))
    with pytest.raises(InvariantError, match="owns the GPU"):
        gpu.handle(OwnerArrived(1, 8))


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 120), min_size=1, max_size=4),
    st.integers(0, 60),
    st.integers(1, 30),
    st.integers(1, 10),
    st.integers(1, 6),
)
def test_the_steps_are_those_of_the_simulators_closed_form(
    arrivals: list[int], owner: int, settle_s: int, step_s: int, steps: int
) -> None:
    """For a job with a steady mini-batch time, every second."""
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


@settings(max_examples=200)
@given(EVENTS)
def test_whatever_happens_the_owner_comes_first_and_memory_changes_at_boundaries(
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
