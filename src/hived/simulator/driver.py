"""What acts on a simulation while it runs: submits jobs, ends them, and changes their priorities (Gandiva, 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .traces import TraceJob


class Live(Protocol):
    """A running simulation, as a driver has it. Jobs go by their numbers: the driver's follow those of the trace."""

    @property
    def now(self) -> int:
        """The time, in milliseconds."""

    def submit(self, job: int) -> None:
        """Submit a job of the driver now."""

    def end(self, job: int) -> None:
        """End a job before it has done its work; it never finishes. Nothing if it has ended."""

    def set_priority(self, job: int, priority: int) -> None:
        """Change the priority of a job among those that take turns.

        Raises :class:`~hived.errors.InvariantError` where jobs do not take turns.
        """

    def tell(self, job: int, work_ms: float) -> None:
        """Have the driver told once a job has done so much work, at least what it has done by now."""


class Driver(Protocol):
    """It is called at its own times, and when its jobs get on; jobs that it has changed are scheduled then."""

    jobs: Sequence[TraceJob]  #: submitted by it alone, whatever their times say

    @property
    def next_wake(self) -> int:
        """When it is to be called, in milliseconds; a time that never comes: never."""

    def wake(self, live: Live) -> None:
        """Its time has come; :attr:`next_wake` is later from now on."""

    def reached(self, job: int, live: Live) -> None:
        """A job has done the work of :meth:`Live.tell`."""

    def finished(self, job: int, live: Live) -> None:
        """A job, of the trace or of its own, has done all of its work."""
