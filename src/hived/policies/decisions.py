"""What a scheduler answers to an event: frozen, in the order in which to carry them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hived.cluster import Kind, Part


@dataclass(frozen=True, slots=True)
class Start:
    """Run ``job`` on these GPUs."""

    job: int
    kind: Kind
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Preempt:
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
    parts: Sequence[Part]
    keeps_work: bool


Decision = Start | Preempt | Promote | Move
