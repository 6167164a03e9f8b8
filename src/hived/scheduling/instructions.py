"""Instructions of a scheduler to an engine: frozen, each carried out before the next is decided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from hived.cluster.decisions import Placement
from hived.cluster.explain.reasons import Reason


class Kind(Enum):
    """How a job holds its GPUs (HiveD, OSDI'20, section 3.3)."""

    GUARANTEED = "guaranteed"  #: within its tenant's reservation
    OPPORTUNISTIC = "opportunistic"  #: on idle GPUs of any tenant; preemptible by guaranteed jobs
    GUEST = "guest"  #: beside an owner, on its GPUs, without cells of its own; limited, never killed


@dataclass(frozen=True, slots=True)
class Start:
    """Start ``job`` on these GPUs."""

    job: int
    kind: Kind
    placement: Placement


@dataclass(frozen=True, slots=True)
class Reserve:
    """Reserve GPUs for ``job``, which starts once the victims have ended; a :class:`Stop` for each follows."""

    job: int
    placement: Placement
    victims: tuple[str, ...]  #: group names, in the order of their starts


@dataclass(frozen=True, slots=True)
class Unreserve:
    """The reservation of ``job`` has ended. The engine requeues it."""

    job: int
    #: the job of a higher priority that overtook it; itself: its turn is over; None: its nodes are not usable any more
    by: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Evict ``job`` in favour of ``by``."""

    job: int
    by: int | None  #: None: one of its VC that has ended early, and goes on in the virtual timeline (exact safety)
    keeps_work: bool


@dataclass(frozen=True, slots=True)
class Promote:
    """Opportunistic ``job`` becomes guaranteed in place, on the GPUs that it holds."""

    job: int


@dataclass(frozen=True, slots=True)
class Move:
    """The turn of opportunistic ``job`` has come on other GPUs: it stops here and then starts there."""

    job: int
    keeps_work: bool


@dataclass(frozen=True, slots=True)
class Downgrade:
    """Guaranteed ``job`` continues as opportunistic and gives up its cells to ``by`` (lazy preemption)."""

    job: int
    by: int


class Turn(NamedTuple):
    """GPUs that a job has for a fraction of the time, and the jobs that run there at the same time."""

    placement: Placement
    share: float = 1.0  #: of the time
    beside: tuple[int, ...] = ()  #: packed with it; or owner and guests, on the GPU with the least room
    owner: int | None = None  #: of it and those beside: whose GPUs they are; None: they are equal


class Share(NamedTuple):
    """``job`` starts, or goes on, and has these turns from now on."""

    job: int
    kind: Kind
    turns: tuple[Turn, ...]  #: none: it is suspended; else their shares sum to at most 1
    resumes: float = 0.0  #: how often it is resumed, per second
    moved: bool = False  #: whether it was migrated from another server, or its number of GPUs changed
    limit: float = 1.0  #: of a guest: the part of the owner's idle GPU time that it may use; of an owner: the most


@dataclass(frozen=True, slots=True)
class Shares:
    """Jobs have other turns from now on: those of one server whose turns have changed."""

    jobs: tuple[Share, ...]

    @property
    def job(self) -> int:
        """The first of them."""
        return self.jobs[0].job


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """``job`` was tried and has to wait, for these reasons."""

    job: int
    reasons: tuple[Reason, ...]  #: the decisive one first


Instruction = Start | Reserve | Unreserve | Stop | Promote | Move | Downgrade | Shares | Unschedulable
