"""An affinity group as the cluster knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hived.errors import RequestError

from .decisions import Bind, Placement, Preempt
from .parts import Part
from .reasons import Reason
from .requests import EVERY_NODE, Asked, Given, Request
from .states import GroupEvent, GroupState, next_group_state

if TYPE_CHECKING:
    from .pool import Pool


_PREEMPTING = GroupState.PREEMPTING

#: what a group cannot change while it has its placement
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
    """A group from the moment it is placed; one that is not kept is forgotten with its transaction.

    Those that only wait are kept as :class:`Waiting`.
    """

    #: how late it gives way in its VC, as of when it took its virtual leaves (:func:`.pool.precedence_of`)
    precedence = -1
    #: place among all groups by when they were bound or reserved; breaks ties
    sequence = 0
    state = GroupState.PENDING
    #: number of the chain
    chain = -1
    #: its VC's pool that it stands in; None: opportunistic
    pool: Pool | None = None
    #: whether it runs beside the owners of its leaves, as none of them
    guest = False
    #: per pod: virtual host and mask; () for an opportunistic group
    spots: tuple[tuple[int, int], ...] = ()
    #: per pod: its physical leaf cells
    parts: tuple[Part, ...] = ()
    #: the same by name
    placement: Placement | None = None
    #: where it ran before a new spec took some of its devices away; None where none are missing
    origin: Placement | None = None
    #: lowest level at which one cell of the VC (of the cluster) holds all pods, 0 for none
    level = 0
    #: the cell type of that level
    within: str | None = None
    #: names of the cell types given up as caps
    relaxed: tuple[str, ...] = ()
    #: while preempting: who still has to go, in the order in which they started; replaced, never changed
    victims: dict[Group, None] = {}  # noqa: RUF012 - replaced as a whole, never changed
    #: while preempting: the state's version and the suggested nodes when it was last found to start nowhere else
    replanned: tuple[int, Given] = (-1, EVERY_NODE)
    #: as it is promoted: the opportunistic group that it runs as
    loan: Group | None = None
    #: as it is promoted: whether only the very leaves of its loan will do
    in_place = False
    #: as it is placed: where it ran, and would stay
    near: tuple[Part, ...] = ()
    #: as it is placed: lazy groups of its VC that become opportunistic for it
    downgraded: Sequence[Group] = ()
    #: as it is placed: the groups whose reservations it takes
    overtaken: Sequence[Group] = ()
    #: while opportunistic: place among all such groups by when they became so
    lent_at = 0
    #: while being preempted: for whom; replaced, never changed
    preempted_by: dict[Group, None] = {}  # noqa: RUF012 - replaced as a whole, never changed
    #: the group for whose sake it became opportunistic (lazy preemption)
    displaced_by: Group | None = None
    #: the levels of the reserved cells it stood in before that
    former_levels: tuple[int, ...] = ()

    def __init__(self, request: Request, tenant: int, since: float) -> None:
        self.name = request.group
        self.request = request
        #: number of the tenant
        self.tenant = tenant
        #: the priority that counts now: that of the request, or -1 while it runs as opportunistic
        self.priority = request.priority
        #: when it was bound or reserved, by the clock of the caller
        self.since = since

    @property
    def guaranteed(self) -> bool:
        """Whether it stands (or will stand) in cells of its VC."""
        return self.pool is not None

    @property
    def running(self) -> bool:
        """Whether somebody runs on its leaf cells, rather than waiting for them."""
        return self.state is not _PREEMPTING

    @property
    def chains(self) -> tuple[int, ...]:
        """The chains that it is in: one, but where a new spec has torn it apart."""
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

    def answer(self, asked: Asked | None = None) -> Bind | Preempt:
        """The decision about a group that has its placement; ``asked``: by which it gets it. O(pods + victims)."""
        assert self.placement is not None
        downgraded: tuple[str, ...] = ()
        overtaken: tuple[str, ...] = ()
        if asked is not None and (self.downgraded or self.overtaken):
            downgraded = tuple([other.name for other in self.downgraded])
            overtaken = tuple([other.name for other in self.overtaken])
        if self.victims:
            names = tuple([victim.name for victim in self.victims])
            return Preempt(self.name, self.placement, names, self.within, self.relaxed, downgraded, overtaken, asked)
        return Bind(self.name, self.placement, self.within, self.relaxed, downgraded, overtaken, asked)

    def refuse_another(self, request: Request) -> None:
        """It is asked for again: :class:`RequestError` unless by the same request."""
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
    sequence: int  #: place among all that wait, by when they first asked
    since: float
    state: GroupState = GroupState.PENDING

    def happens(self, event: GroupEvent) -> None:
        """``event`` moves it to its next state, as the table of groups has it."""
        self.state = next_group_state(self.state, event)
