"""The two state machines of scheduling, each as one table: affinity groups, and leaf cells.

docs/reference/states.md has the same tables; tests compare the two, and try every transition, allowed or not.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from hived.errors import InvariantError


class GroupState(StrEnum):
    """The state of an affinity group."""

    PENDING = "pending"  #: is requested, or was evicted as a guest, and holds nothing
    PREEMPTING = "preempting"  #: has a reserved placement, and waits for its victims to end
    ALLOCATED = "allocated"  #: runs
    BEING_PREEMPTED = "being preempted"  #: runs on leaf cells that a preempting group has reserved
    DELETED = "deleted"  #: ended or withdrawn; it holds nothing

    __hash__ = str.__hash__  # an enum's own is slow


class GroupEvent(StrEnum):
    """An event of a group."""

    WAIT = "wait"  #: it cannot start now
    PREEMPT = "preempt"  #: a placement is reserved for it
    BIND = "bind"  #: it starts
    OVERTAKE = "overtake"  #: a higher group takes its reservation, or its hardware turns bad
    CHOOSE = "choose"  #: it becomes the victim of a preempting group
    SPARE = "spare"  #: no preempting group needs its leaf cells any more
    DOWNGRADE = "downgrade"  #: it runs on as opportunistic (lazy preemption, reconfiguration, trade)
    RESTORE = "restore"  #: it becomes guaranteed again, where it runs
    SUSPEND = "suspend"  #: a guest releases its leaf cells and is requeued
    END = "end"  #: released or cancelled

    __hash__ = str.__hash__


P, R, A, B, D = GroupState
#: next state by state and event; any other pair is a bug
GROUP_TABLE: dict[tuple[GroupState, GroupEvent], GroupState] = {
    (P, GroupEvent.WAIT): P,
    (P, GroupEvent.PREEMPT): R,
    (P, GroupEvent.BIND): A,
    (P, GroupEvent.END): D,
    (R, GroupEvent.BIND): A,
    (R, GroupEvent.OVERTAKE): P,
    (R, GroupEvent.END): D,
    (A, GroupEvent.CHOOSE): B,
    (A, GroupEvent.DOWNGRADE): A,
    (A, GroupEvent.RESTORE): A,
    (A, GroupEvent.SUSPEND): P,
    (A, GroupEvent.END): D,
    (B, GroupEvent.CHOOSE): B,
    (B, GroupEvent.SPARE): A,
    (B, GroupEvent.END): D,
}


class LeafState(StrEnum):
    """The state of a physical leaf cell."""

    FREE = "free"
    USED = "used"  #: a group runs on it
    RESERVING = "reserving"  #: a group runs on it, and a preempting group has reserved it
    RESERVED = "reserved"  #: it is idle, and kept for the preempting group that has reserved it


class LeafEvent(StrEnum):
    """An event of a leaf cell."""

    ALLOCATE = "allocate"  #: a group starts on it at once
    RESERVE = "reserve"  #: a preempting group reserves it
    RELEASE = "release"  #: the group that runs on it ends
    BIND = "bind"  #: the group that has reserved it starts
    CANCEL = "cancel"  #: the reservation ends without a start


# enum members are slow to look up before Python 3.12
ALLOCATE, RESERVE, RELEASE, BIND, CANCEL = LeafEvent
#: next state by state and event; any other pair is a bug
LEAF_TABLE: dict[tuple[LeafState, LeafEvent], LeafState] = {
    (LeafState.FREE, ALLOCATE): LeafState.USED,
    (LeafState.FREE, RESERVE): LeafState.RESERVED,
    (LeafState.USED, RESERVE): LeafState.RESERVING,
    (LeafState.USED, RELEASE): LeafState.FREE,
    (LeafState.RESERVING, RELEASE): LeafState.RESERVED,
    (LeafState.RESERVING, CANCEL): LeafState.USED,
    (LeafState.RESERVED, BIND): LeafState.USED,
    (LeafState.RESERVED, CANCEL): LeafState.FREE,
}


def next_group_state(state: GroupState, event: GroupEvent) -> GroupState:
    """The next state by the table; :class:`InvariantError` for a pair that the table does not have."""
    after = GROUP_TABLE.get((state, event))
    if after is None:
        raise InvariantError(f"a group that is {state.value} cannot {event.value}")
    return after


class LeafEffect(NamedTuple):
    """An event as an operation on the bits *used* and *reserved* of a leaf, so that many leaves change in one step."""

    used: int | None  #: required value of the bit, None for any
    reserved: int | None
    then_used: int | None  #: value of the bit afterwards, None for no change
    then_reserved: int | None


def _effects() -> dict[LeafEvent, LeafEffect]:
    bits = {LeafState.FREE: (0, 0), LeafState.USED: (1, 0), LeafState.RESERVING: (1, 1), LeafState.RESERVED: (0, 1)}
    effects = {}
    for event in LeafEvent:
        steps = [(bits[state], bits[after]) for (state, when), after in LEAF_TABLE.items() if when is event]
        needs, thens = [], []
        for bit in (0, 1):
            before = {was[bit] for was, _ in steps}
            after = {now[bit] for _, now in steps}
            needs.append(before.pop() if len(before) == 1 else None)
            thens.append(None if all(was[bit] == now[bit] for was, now in steps) else after.pop())
        effects[event] = LeafEffect(*needs, *thens)
    return effects


#: the effect of each event on the two bits of a leaf
LEAF_EFFECTS = _effects()
