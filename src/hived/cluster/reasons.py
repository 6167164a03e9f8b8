"""Why a group waits: plain data with the numbers attached, recorded while deciding.

Nothing here is a sentence; :mod:`.explain.sentences` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class ReasonKind(Enum):
    """The kinds of things that can stand in the way."""

    MISCONFIGURED = "misconfigured"
    NEVER_FITS = "never fits"
    VC_EXHAUSTED = "vc exhausted"
    FRAGMENTED = "fragmented"
    WAITING_FOR_PREEMPTION = "waiting for preemption"
    WAITING_FOR_GANG = "waiting for gang"
    BAD_HARDWARE = "bad hardware"
    BEHIND_OTHERS = "behind others"
    SHARE_USED_UP = "opportunistic share used up"
    NOTHING_IDLE = "nothing idle"
    NOT_SUGGESTED = "not suggested"
    PREEMPTED = "preempted"
    LOST_RESERVATION = "lost reservation"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class Misconfigured:
    """The request cannot be right for this cluster."""

    kind: ClassVar[ReasonKind] = ReasonKind.MISCONFIGURED
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class NeverFits:
    """Not even with everything of the VC (for opportunistic groups: of the cluster) free and healthy."""

    kind: ClassVar[ReasonKind] = ReasonKind.NEVER_FITS
    vc: str
    need: int  #: leaf cells
    have: int  #: leaf cells that the VC (the cluster) has of the kind asked for
    largest_pod: int  #: leaf cells of the largest pod
    largest_host: int  #: leaf cells that one pod can have at most there
    within: str | None  #: the cap asked for


@dataclass(frozen=True, slots=True)
class VcExhausted:
    """Too few leaf cells of the VC are free at this priority."""

    kind: ClassVar[ReasonKind] = ReasonKind.VC_EXHAUSTED
    vc: str
    need: int  #: leaf cells
    have: int  #: healthy ones free, or held by groups of lower priority
    size: int  #: leaf cells of the VC of the kind asked for
    held_by: tuple[tuple[str, int], ...]  #: some of the groups that hold the rest, oldest first, and their leaf cells
    more: int  #: how many groups are not named


@dataclass(frozen=True, slots=True)
class Fragmented:
    """Enough leaf cells of the VC are free, but not close enough together."""

    kind: ClassVar[ReasonKind] = ReasonKind.FRAGMENTED
    vc: str
    need: int  #: leaf cells
    have: int  #: leaf cells free at this priority
    largest_pod: int  #: leaf cells of the largest pod
    largest_free: int  #: most leaf cells free on one node
    within: str | None  #: the cap asked for


@dataclass(frozen=True, slots=True)
class WaitingForPreemption:
    """Reserved, and waiting for these groups to be gone."""

    kind: ClassVar[ReasonKind] = ReasonKind.WAITING_FOR_PREEMPTION
    victims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WaitingForGang:
    """Some of the pods would fit, but a group is placed all or none."""

    kind: ClassVar[ReasonKind] = ReasonKind.WAITING_FOR_GANG
    fit: int  #: pods that would fit now
    pods: int  #: pods of the group


@dataclass(frozen=True, slots=True)
class BadHardware:
    """It would fit if these leaf cells were healthy."""

    kind: ClassVar[ReasonKind] = ReasonKind.BAD_HARDWARE
    leaf_cells: int  #: bad leaf cells among those that the group could have
    nodes: tuple[str, ...]  #: some of the nodes they are on, in the order of the spec
    more: int  #: how many nodes are not named


@dataclass(frozen=True, slots=True)
class BehindOthers:
    """Others of the same VC, of no lower priority, asked before and wait too."""

    kind: ClassVar[ReasonKind] = ReasonKind.BEHIND_OTHERS
    position: int  #: 1: one group is ahead
    ahead: tuple[str, ...]  #: some of them, first in line first


@dataclass(frozen=True, slots=True)
class ShareUsedUp:
    """The tenant holds its fair share of what is lent; it gets more only while GPUs are idle."""

    kind: ClassVar[ReasonKind] = ReasonKind.SHARE_USED_UP
    vc: str
    need: int  #: leaf cells
    held: int  #: leaf cells the tenant holds opportunistically
    share: int  #: leaf cells that are its weighted max-min share, rounded down


@dataclass(frozen=True, slots=True)
class NothingIdle:
    """No idle leaf cells, or not close enough together."""

    kind: ClassVar[ReasonKind] = ReasonKind.NOTHING_IDLE
    need: int  #: leaf cells
    idle: int  #: healthy leaf cells that nobody uses, of the kind asked for


@dataclass(frozen=True, slots=True)
class NotSuggested:
    """It would fit, but not on the suggested nodes."""

    kind: ClassVar[ReasonKind] = ReasonKind.NOT_SUGGESTED
    suggested: int  #: how many of the cluster's nodes were suggested
    searched_all: bool  #: whether all ways to place it there were tried


@dataclass(frozen=True, slots=True)
class PreemptedBy:
    """It ran, and had (or has) to go for another."""

    kind: ClassVar[ReasonKind] = ReasonKind.PREEMPTED
    group: str  #: for whom
    vc: str  #: of that group
    priority: int  #: of that group
    own_priority: int  #: of the one that goes
    ended: bool  #: whether it has ended


@dataclass(frozen=True, slots=True)
class LostReservation:
    """It had a placement reserved and lost it; it has to ask again. Neither a group nor a node: a new spec came."""

    kind: ClassVar[ReasonKind] = ReasonKind.LOST_RESERVATION
    group: str | None  #: the higher group that took it
    node: str | None  #: the node that turned bad under it


@dataclass(frozen=True, slots=True)
class Suspended:
    """It ran, and has given its leaf cells up for now; it has not asked again."""

    kind: ClassVar[ReasonKind] = ReasonKind.SUSPENDED
    leaf_cells: int  #: those that it had
    owner: str | None = None  #: the group of which it was a guest, and which has them no longer; None: it was told to


Reason = (
    Misconfigured
    | NeverFits
    | VcExhausted
    | Fragmented
    | WaitingForPreemption
    | WaitingForGang
    | BadHardware
    | BehindOthers
    | ShareUsedUp
    | NothingIdle
    | NotSuggested
    | PreemptedBy
    | LostReservation
    | Suspended
)
