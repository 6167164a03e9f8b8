"""The record of an affinity group in the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hived.errors import RequestError

from .decisions import Bind, Placement, Preempt
from .explain.reasons import Reason
from .parts import Part
from .requests import EVERY_NODE, NodeFilter, Provenance, Request
from .states import GroupEvent, GroupState, next_group_state

_PREEMPTING = GroupState.PREEMPTING

#: fields of its request that a group cannot change while it has a placement
FIXED = (
    "vc",
    "priority",
    "members",
    "leaf_cell_type",
    "pinned_cell_id",
    "within",
    "soft_affinity",
    "lazy_preemption",
    "whole_nodes",
    "guest",
)


class Group:
    """A group that has, or tries, a placement; without a commit it is dropped with its transaction.

    Groups that only wait are kept as :class:`Waiting`.
    """

    #: its place in the order of preemption in its VC, set as it takes virtual leaves (:func:`.pool.precedence_of`)
    precedence = -1
    #: position among all groups in the order of their bindings and reservations; breaks ties
    sequence = 0
    state = GroupState.PENDING
    #: number of the chain
    chain = -1
    #: number of the pool, among those of its VC, whose leaves it has; -1: opportunistic
    pool = -1
    #: whether it is a guest of the owners of its leaves
    guest = False
    #: per pod: virtual host and mask; () for an opportunistic group
    spots: tuple[tuple[int, int], ...] = ()
    #: per pod: its physical leaf cells
    parts: tuple[Part, ...] = ()
    #: the same by name
    placement: Placement | None = None
    #: its placement before a new spec removed some of its devices; None where none are missing
    origin: Placement | None = None
    #: lowest level at which one cell of the VC (of the cluster) holds all pods, 0 for none
    level = 0
    #: the cell type of that level
    within: str | None = None
    #: names of the cell types given up as caps
    relaxed: tuple[str, ...] = ()
    #: while preempting: its remaining victims, in the order in which they started; replaced, never changed
    victims: dict[Group, None] = {}  # noqa: RUF012 - replaced as a whole, never changed
    #: while preempting: the state's version and the suggested nodes of the last vain search for another placement
    rescheduling_failed_at: tuple[int, NodeFilter] = (-1, EVERY_NODE)
    #: during promotion: the opportunistic group that it runs as
    loan: Group | None = None
    #: during placement: the leaves where it ran, which it prefers
    near: tuple[Part, ...] = ()
    #: during placement: lazy groups of its VC that become opportunistic for it
    downgraded: Sequence[Group] = ()
    #: during placement: the groups whose reservations it takes
    overtaken: Sequence[Group] = ()
    #: while opportunistic: position among all such groups in the order in which they became so
    lent_at = 0
    #: while being preempted: its preemptors; replaced, never changed
    preempted_by: dict[Group, None] = {}  # noqa: RUF012 - replaced as a whole, never changed
    #: the group for which it was downgraded (lazy preemption)
    downgraded_by: Group | None = None
    #: the levels of the reserved cells it was in before the downgrade
    former_levels: tuple[int, ...] = ()

    def __init__(self, request: Request, tenant: int, since: float) -> None:
        self.name = request.group
        self.request = request
        #: number of the tenant
        self.tenant = tenant
        #: the effective priority: that of the request, or -1 while it runs as opportunistic
        self.priority = request.priority
        #: when it was bound or reserved, by the clock of the caller
        self.since = since

    @property
    def guaranteed(self) -> bool:
        """Whether it has, or has reserved, leaves of its VC."""
        return self.pool >= 0

    @property
    def running(self) -> bool:
        """Whether it runs, rather than waits for its victims."""
        return self.state is not _PREEMPTING

    @property
    def chains(self) -> tuple[int, ...]:
        """The chains that it is in: one, unless a new spec has split it."""
        first = self.chain
        if len(self.parts) == 1:
            return (first,)
        for part in self.parts:
            if part.chain != first:
                return tuple(dict.fromkeys(part.chain for part in self.parts))
        return (first,)

    def gpus_in(self, chain: int) -> int:
        """Leaf cells in one chain."""
        return sum([part.mask.bit_count() for part in self.parts if part.chain == chain])

    @property
    def gpus(self) -> int:
        """Leaf cells of all pods."""
        return sum([part.mask.bit_count() for part in self.parts])

    def answer(self, provenance: Provenance | None = None) -> Bind | Preempt:
        """The decision about a placed group; ``provenance``: the call that it answers. O(pods + victims)."""
        assert self.placement is not None
        downgraded: tuple[str, ...] = ()
        overtaken: tuple[str, ...] = ()
        if provenance is not None and (self.downgraded or self.overtaken):
            downgraded = tuple([other.name for other in self.downgraded])
            overtaken = tuple([other.name for other in self.overtaken])
        if self.victims:
            names = tuple([victim.name for victim in self.victims])
            return Preempt(
                self.name, self.placement, names, self.within, self.relaxed, downgraded, overtaken, provenance
            )
        return Bind(self.name, self.placement, self.within, self.relaxed, downgraded, overtaken, provenance)

    def refuse_another(self, request: Request) -> None:
        """Raise :class:`RequestError` where a repeated request differs from the group's own."""
        known = self.request
        for name in FIXED if known != request else ():
            was, wanted = getattr(known, name), getattr(request, name)
            if was != wanted:
                raise RequestError(
                    name,
                    f"group {self.name!r} is {self.state.value} with {was!r}, not {wanted!r}; use another group name",
                )

    def __repr__(self) -> str:
        return f"Group({self.name!r}, {self.state.value}, priority {self.priority})"


@dataclass(slots=True)
class Waiting:
    """A group that holds nothing: it asked and could not start, or lost its reservation."""

    request: Request
    reasons: tuple[Reason, ...]
    sequence: int  #: position in line, in the order of first requests
    since: float
    state: GroupState = GroupState.PENDING

    def transition(self, event: GroupEvent) -> None:
        """Move to the next state on ``event``, by the table of groups."""
        self.state = next_group_state(self.state, event)
