"""What a scheduler has an engine do: frozen, each carried out before the next is decided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hived.cluster.decisions import Placement
from hived.cluster.reasons import Reason


class Kind(Enum):
    """How a job holds its GPUs (HiveD, OSDI'20, section 3.3)."""

    GUARANTEED = "guaranteed"  #: inside its tenant's own share
    OPPORTUNISTIC = "opportunistic"  #: on what others leave idle; gives way to guaranteed jobs


@dataclass(frozen=True, slots=True)
class Start:
    """Run ``job`` on these GPUs."""

    job: int
    kind: Kind
    placement: Placement


@dataclass(frozen=True, slots=True)
class Reserve:
    """These GPUs are kept for ``job``, which starts once the victims are gone; a :class:`Stop` for each follows."""

    job: int
    placement: Placement
    victims: tuple[str, ...]  #: names, in the order in which they started


@dataclass(frozen=True, slots=True)
class Unreserve:
    """Nothing is reserved for ``job`` any more. It waits again once the engine says so."""

    job: int
    by: int | None = None  #: the job of a higher priority that took it; None: its nodes are not to be used any more


@dataclass(frozen=True, slots=True)
class Stop:
    """Take all GPUs from ``job``, for ``by``."""

    job: int
    by: int
    keeps_work: bool


@dataclass(frozen=True, slots=True)
class Promote:
    """Opportunistic ``job`` is guaranteed from now on, on the very GPUs that it has."""

    job: int


@dataclass(frozen=True, slots=True)
class Move:
    """The turn of opportunistic ``job`` has come, on other GPUs: once it is gone from its own, it starts there."""

    job: int
    keeps_work: bool


@dataclass(frozen=True, slots=True)
class Downgrade:
    """Guaranteed ``job`` runs on as an opportunistic one, so that ``by`` can have its cells (lazy preemption)."""

    job: int
    by: int


@dataclass(frozen=True, slots=True)
class Hold:
    """``job`` was asked for, and waits: nothing is to be done but to know why."""

    job: int
    reasons: tuple[Reason, ...]  #: the decisive one first


Instruction = Start | Reserve | Unreserve | Stop | Promote | Move | Downgrade | Hold
