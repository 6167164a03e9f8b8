"""What a scheduler answers to an event: frozen, in the order in which to carry them out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hived.cluster.decisions import Placement


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
class Stop:
    """Take all GPUs from opportunistic ``job`` for guaranteed ``by``."""

    job: int
    by: int
    keeps_work: bool


@dataclass(frozen=True, slots=True)
class Promote:
    """Opportunistic ``job`` is guaranteed from now on, on the very GPUs that it has."""

    job: int


@dataclass(frozen=True, slots=True)
class Move:
    """Opportunistic ``job`` is guaranteed from now on, on these GPUs in place of those that it has."""

    job: int
    placement: Placement
    keeps_work: bool


Instruction = Start | Stop | Promote | Move
