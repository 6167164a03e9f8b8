"""What a scheduler that shares GPUs measures of running jobs; never what it could not measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Served(Protocol):
    """Of a live engine, whose jobs pause when they come to the end of a mini-batch, and not when they are told."""

    def served(self, job: int, now: float) -> float:
        """Seconds for which a job has run by ``now``."""


class Probe(Protocol):
    """Measurements of jobs, by number: of the simulator, from job models; live, from the agents of the nodes."""

    def utilization(self, job: int) -> float:
        """Share of the time of its GPUs that a job uses alone, 0 to 1: from its profile."""

    def memory_gib(self, job: int) -> float:
        """Most memory that a job uses on each of its GPUs."""

    def memory_min_gib(self, job: int) -> float:
        """Least memory with which a job can go on, on each of its GPUs: between two mini-batches."""

    def packed(self, job: int, others: Sequence[int]) -> float:
        """The rate of a job that is packed with others on the same GPUs, against running alone there."""

    def rate(self, job: int) -> float:
        """Mini-batches per second now, while it has its slice, against running alone on its GPUs."""
