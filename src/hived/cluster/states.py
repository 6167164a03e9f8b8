"""The two state machines of scheduling, each as one table: affinity groups, and leaf cells.

docs/states.md shows the same tables; a test compares them, and every transition, allowed or not, is tested.
"""

from __future__ import annotations

from enum import Enum

from hived.errors import InvariantError


class GroupState(Enum):
    """Where an affinity group is in its life."""

    PENDING = "pending"  #: has asked, holds nothing
    PREEMPTING = "preempting"  #: has a placement reserved, and waits for its victims to be gone
    ALLOCATED = "allocated"  #: runs
    BEING_PREEMPTED = "being preempted"  #: runs on leaf cells that a preempting group has reserved
    DELETED = "deleted"  #: ended or withdrawn; nothing of it is left


class GroupEvent(Enum):
    """What happens to a group."""

    WAIT = "wait"  #: it cannot start now
    PREEMPT = "preempt"  #: a placement is reserved for it
    BIND = "bind"  #: it starts
    OVERTAKE = "overtake"  #: a higher group takes its reservation, or hardware under it turns bad
    CHOOSE = "choose"  #: it becomes the victim of a preempting group
    SPARE = "spare"  #: nobody wants its leaf cells any more
    DOWNGRADE = "downgrade"  #: it runs on as opportunistic (lazy preemption, reconfiguration)
    RESTORE = "restore"  #: it is guaranteed again
    END = "end"  #: released or cancelled


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
    (A, GroupEvent.END): D,
    (B, GroupEvent.CHOOSE): B,
    (B, GroupEvent.SPARE): A,
    (B, GroupEvent.END): D,
}


class LeafState(Enum):
    """What a physical leaf cell is doing."""

    FREE = "free"
    USED = "used"  #: somebody runs on it
    RESERVING = "reserving"  #: somebody runs on it, who is being preempted for who has reserved it
    RESERVED = "reserved"  #: nobody runs on it, it is kept for who has reserved it


class LeafEvent(Enum):
    """What happens to a leaf cell."""

    ALLOCATE = "allocate"  #: a group starts on it at once
    RESERVE = "reserve"  #: a preempting group wants it
    RELEASE = "release"  #: who runs on it ends
    BIND = "bind"  #: who has reserved it starts
    CANCEL = "cancel"  #: the reservation ends, and nobody starts


#: state and event to the next state; what is not here is a bug
LEAF_TABLE: dict[tuple[LeafState, LeafEvent], LeafState] = {
    (LeafState.FREE, LeafEvent.ALLOCATE): LeafState.USED,
    (LeafState.FREE, LeafEvent.RESERVE): LeafState.RESERVED,
    (LeafState.USED, LeafEvent.RESERVE): LeafState.RESERVING,
    (LeafState.USED, LeafEvent.RELEASE): LeafState.FREE,
    (LeafState.RESERVING, LeafEvent.RELEASE): LeafState.RESERVED,
    (LeafState.RESERVING, LeafEvent.CANCEL): LeafState.USED,
    (LeafState.RESERVED, LeafEvent.BIND): LeafState.USED,
    (LeafState.RESERVED, LeafEvent.CANCEL): LeafState.FREE,
}


def next_group_state(state: GroupState, event: GroupEvent) -> GroupState:
    """The table's answer; :class:`InvariantError` for what the table does not have."""
    after = GROUP_TABLE.get((state, event))
    if after is None:
        raise InvariantError(f"a group that is {state.value} cannot {event.value}")
    return after


def _used(state: LeafState) -> bool:
    return state in (LeafState.USED, LeafState.RESERVING)


def _reserved(state: LeafState) -> bool:
    return state in (LeafState.RESERVED, LeafState.RESERVING)


class LeafStates:
    """The states of all leaf cells of a chain, as two masks per node: *used* and *reserved* tell the four apart."""

    __slots__ = ("reserved", "used")

    #: per event: what it does to the two bits, and the (used, reserved) pairs that it cannot happen in
    _EFFECTS: dict[LeafEvent, tuple[int, int, tuple[tuple[bool, bool], ...]]]

    def __init__(self, nodes: int) -> None:
        #: leaves that somebody runs on, per node
        self.used = [0] * nodes
        #: leaves that a preempting group has reserved, per node
        self.reserved = [0] * nodes

    def apply(self, event: LeafEvent, node: int, mask: int) -> None:
        """``event`` happens to the leaves ``mask`` of ``node``; :class:`InvariantError` where the table forbids it."""
        used, reserved = self.used[node], self.reserved[node]
        set_used, set_reserved, forbidden = self._EFFECTS[event]
        for is_used, is_reserved in forbidden:
            if mask & (used if is_used else ~used) & (reserved if is_reserved else ~reserved):
                raise InvariantError(
                    f"node {node}: {event.value} of leaf cells {mask:#b} in state {used:#b}/{reserved:#b}"
                )
        if set_used:
            self.used[node] = used | mask if set_used > 0 else used & ~mask
        if set_reserved:
            self.reserved[node] = reserved | mask if set_reserved > 0 else reserved & ~mask

    def state(self, node: int, leaf: int) -> LeafState:
        """The state of one leaf cell."""
        used, reserved = self.used[node] >> leaf & 1, self.reserved[node] >> leaf & 1
        if used:
            return LeafState.RESERVING if reserved else LeafState.USED
        return LeafState.RESERVED if reserved else LeafState.FREE


def _effects() -> dict[LeafEvent, tuple[int, int, tuple[tuple[bool, bool], ...]]]:
    """The table in terms of the two bits, so that many leaves change in one step."""
    effects = {}
    for event in LeafEvent:
        changes = set()
        forbidden = []
        for state in LeafState:
            after = LEAF_TABLE.get((state, event))
            if after is None:
                forbidden.append((_used(state), _reserved(state)))
            else:
                changes.add((_used(after) - _used(state), _reserved(after) - _reserved(state)))
        ((used, reserved),) = changes  # an event does the same to the bits in every state it can happen in
        effects[event] = (used, reserved, tuple(forbidden))
    return effects


LeafStates._EFFECTS = _effects()
