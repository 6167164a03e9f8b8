"""The two state machines of scheduling, each as one table: affinity groups, and leaf cells.

docs/states.md shows the same tables; a test compares them, and every transition, allowed or not, is tested.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from hived.errors import InvariantError


class GroupState(StrEnum):
    """Where an affinity group is in its life."""

    PENDING = "pending"  #: has asked or was suspended, holds nothing
    PREEMPTING = "preempting"  #: has a placement reserved, and waits for its victims to be gone
    ALLOCATED = "allocated"  #: runs
    BEING_PREEMPTED = "being preempted"  #: runs on leaf cells that a preempting group has reserved
    DELETED = "deleted"  #: ended or withdrawn; nothing of it is left

    __hash__ = str.__hash__  # an enum's own is slow


class GroupEvent(StrEnum):
    """What happens to a group."""

    WAIT = "wait"  #: it cannot start now
    PREEMPT = "preempt"  #: a placement is reserved for it
    BIND = "bind"  #: it starts
    OVERTAKE = "overtake"  #: a higher group takes its reservation, or hardware under it turns bad
    CHOOSE = "choose"  #: it becomes the victim of a preempting group
    SPARE = "spare"  #: nobody wants its leaf cells any more
    DOWNGRADE = "downgrade"  #: it runs on as opportunistic (lazy preemption, reconfiguration)
    RESTORE = "restore"  #: it is guaranteed from now on, where it runs
    SUSPEND = "suspend"  #: it gives its leaf cells up, and is kept as one that waits
    END = "end"  #: released or cancelled

    __hash__ = str.__hash__


P, R, A, B, D = GroupState
#: state and event to the next state; what is not here is a bug
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
    (B, GroupEvent.SUSPEND): P,
    (B, GroupEvent.END): D,
}


class LeafState(StrEnum):
    """What a physical leaf cell is doing."""

    FREE = "free"
    USED = "used"  #: somebody runs on it
    RESERVING = "reserving"  #: somebody runs on it, who is being preempted for who has reserved it
    RESERVED = "reserved"  #: nobody runs on it, it is kept for who has reserved it


class LeafEvent(StrEnum):
    """What happens to a leaf cell."""

    ALLOCATE = "allocate"  #: a group starts on it at once
    RESERVE = "reserve"  #: a preempting group wants it
    RELEASE = "release"  #: who runs on it ends
    BIND = "bind"  #: who has reserved it starts
    CANCEL = "cancel"  #: the reservation ends, and nobody starts


# members are looked up slowly in an enum before Python 3.12
ALLOCATE, RESERVE, RELEASE, BIND, CANCEL = LeafEvent
#: state and event to the next state; what is not here is a bug
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
    """The table's answer; :class:`InvariantError` for what the table does not have."""
    after = GROUP_TABLE.get((state, event))
    if after is None:
        raise InvariantError(f"a group that is {state.value} cannot {event.value}")
    return after


class LeafEffect(NamedTuple):
    """An event in terms of the two bits of a leaf, *used* and *reserved*, so that many leaves change in one step."""

    used: int | None  #: what the bit has to be, None where it does not matter
    reserved: int | None
    then_used: int | None  #: what it is afterwards, None where it stays
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


#: per event: what it needs of the two bits of a leaf, and what it does to them
LEAF_EFFECTS = _effects()
