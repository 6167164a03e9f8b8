"""The reasons why a group waits: plain data with numbers, recorded while deciding.

:mod:`.explain.sentences` turns them into sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class ReasonKind(Enum):
    """The kinds of reasons."""

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
    KEPT_FOR_ENDED = "kept for ended"
    CELLS_GIVEN = "cells given"
    OUT_OF_SERVICE = "out of service"


@dataclass(frozen=True, slots=True)
class Misconfigured:
    """The request is wrong for this cluster."""

    kind: ClassVar[ReasonKind] = ReasonKind.MISCONFIGURED
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class NeverFits:
    """The request would not fit an empty, healthy VC (for opportunistic groups: cluster)."""

    kind: ClassVar[ReasonKind] = ReasonKind.NEVER_FITS
    vc: str
    need: int  #: leaf cells
    have: int  #: leaf cells of the requested kind in the VC (the cluster)
    largest_pod: int  #: leaf cells of the largest pod
    largest_host: int  #: most leaf cells that one pod can get there
    within: str | None  #: the requested cap


@dataclass(frozen=True, slots=True)
class VcExhausted:
    """Too few leaf cells of the VC are free at this priority."""

    kind: ClassVar[ReasonKind] = ReasonKind.VC_EXHAUSTED
    vc: str
    need: int  #: leaf cells
    have: int  #: healthy ones free, or held by groups of lower priority
    size: int  #: leaf cells of the VC of the requested kind
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
    """The placement is reserved, and these victims have not ended yet."""

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
    """The group would fit if these leaf cells were healthy."""

    kind: ClassVar[ReasonKind] = ReasonKind.BAD_HARDWARE
    leaf_cells: int  #: bad leaf cells among the otherwise obtainable ones
    nodes: tuple[str, ...]  #: some of their nodes, in the order of the spec
    more: int  #: how many nodes are not named


@dataclass(frozen=True, slots=True)
class BehindOthers:
    """Groups of the same VC, of no lower priority, are ahead in line."""

    kind: ClassVar[ReasonKind] = ReasonKind.BEHIND_OTHERS
    position: int  #: 1: one group is ahead
    ahead: tuple[str, ...]  #: some of these groups, the head of line first


@dataclass(frozen=True, slots=True)
class ShareUsedUp:
    """The tenant holds its fair share of loans; it gets more only while GPUs are idle."""

    kind: ClassVar[ReasonKind] = ReasonKind.SHARE_USED_UP
    vc: str
    need: int  #: leaf cells
    held: int  #: leaf cells the tenant holds opportunistically
    share: int  #: its weighted max-min share in leaf cells, rounded down


@dataclass(frozen=True, slots=True)
class NothingIdle:
    """No idle leaf cells, or not close enough together."""

    kind: ClassVar[ReasonKind] = ReasonKind.NOTHING_IDLE
    need: int  #: leaf cells
    idle: int  #: idle healthy leaf cells of the requested kind


@dataclass(frozen=True, slots=True)
class NotSuggested:
    """The group would fit, but not on the suggested nodes."""

    kind: ClassVar[ReasonKind] = ReasonKind.NOT_SUGGESTED
    suggested: int  #: how many of the cluster's nodes were suggested
    searched_all: bool  #: whether the search for a placement there was exhaustive


@dataclass(frozen=True, slots=True)
class PreemptedBy:
    """The group was (or is being) preempted by another."""

    kind: ClassVar[ReasonKind] = ReasonKind.PREEMPTED
    group: str  #: the preemptor
    vc: str  #: of the preemptor
    priority: int  #: of the preemptor
    own_priority: int  #: of the victim
    ended: bool  #: whether the victim has ended


@dataclass(frozen=True, slots=True)
class LostReservation:
    """The group lost its reservation, and has to be scheduled again. Without group and node: by a new spec."""

    kind: ClassVar[ReasonKind] = ReasonKind.LOST_RESERVATION
    group: str | None  #: the higher group that took it
    node: str | None  #: the node that turned bad under it


@dataclass(frozen=True, slots=True)
class Suspended:
    """The group was suspended, and has not been scheduled again."""

    kind: ClassVar[ReasonKind] = ReasonKind.SUSPENDED
    leaf_cells: int  #: the number that it had
    owner: str | None = None  #: for an evicted guest: the group that got some of its leaf cells


@dataclass(frozen=True, slots=True)
class KeptForEnded:
    """Leaf cells of the VC are kept for groups that have ended early (exact safety)."""

    kind: ClassVar[ReasonKind] = ReasonKind.KEPT_FOR_ENDED
    vc: str
    leaf_cells: int
    groups: tuple[str, ...]  #: some of them
    more: int = 0  #: how many others


@dataclass(frozen=True, slots=True)
class CellsGiven:
    """The VC has given cells of its own to another one for a while (cell exchange)."""

    kind: ClassVar[ReasonKind] = ReasonKind.CELLS_GIVEN
    vc: str
    to: str  #: the VC that has them
    cell_type: str
    number: int
    until: float  #: seconds since the epoch
    trade: int


#: devices by node
Places = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class OutOfService:
    """It would start if these devices of one machine were in service again, each by its own cure: no fewer would do.

    Without devices: there is no such cure, since others come before it.
    """

    kind: ClassVar[ReasonKind] = ReasonKind.OUT_OF_SERVICE
    drained: Places
    broken: Places
    kept: Places  #: the spec of now gives them to no job that could free them
    kept_by: tuple[str, ...]  #: the jobs that hold these since an earlier spec
    before: tuple[str, ...] = ()  #: without devices: jobs of its VC that wait for the same, some of them


@dataclass(frozen=True, slots=True)
class PodsMissing:
    """Some pods of the gang do not exist, or cannot be bound; it is placed once all do and can."""

    kind: ClassVar[ReasonKind] = ReasonKind.WAITING_FOR_GANG
    there: int
    pods: int
    held_back: int  #: of those that exist


@dataclass(frozen=True, slots=True)
class NotAsked:
    """The scheduler that asks for the pods of the gang has not asked for it yet."""

    kind: ClassVar[ReasonKind] = ReasonKind.WAITING_FOR_GANG
    scheduler: str  #: schedulerName of its pods
    said: str  #: the scheduler's message about one of them; "" for none


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
    | KeptForEnded
    | CellsGiven
    | OutOfService
    | PodsMissing
    | NotAsked
)
