"""What the HTTP API asks of an engine, in the words of :mod:`.schema`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from .schema import (
    About,
    Device,
    Drain,
    Events,
    Explanation,
    Job,
    Jobs,
    LogPage,
    Plan,
    Reconfigured,
    SpecText,
    Submission,
)


class Service(Protocol):
    """An engine, as the API sees it. One thread: that of the event loop.

    ``ref`` is a job's id (``12``), its name (``train-12``), or the name asked for (``train``: the latest of them).
    Raises what :mod:`hived.errors` has: :class:`~hived.errors.NotFoundError` for an unknown job, node or device,
    :class:`~hived.errors.InputError` (often a :class:`~hived.errors.RequestError` with the field),
    :class:`~hived.errors.NeverFitsError`, :class:`~hived.errors.ConflictError`, :class:`~hived.errors.StorageError`,
    :class:`~hived.errors.UnavailableError`.
    """

    def about(self) -> About:
        """The engine."""

    async def submit(self, submission: Submission, user: str) -> Job:
        """Take a job in; it is kept from the moment that this returns."""

    def plan(self, submission: Submission) -> Plan:
        """What a submission would come to now; nothing is remembered."""

    def jobs(self, states: Sequence[str], vc: str | None, limit: int, before: int | None) -> Jobs:
        """Jobs in one of ``states`` (none: all), the latest first, with ids below ``before``."""

    def job(self, ref: str) -> Job:
        """One job."""

    def explain(self, ref: str) -> Explanation:
        """Why it waits, where it runs, how it ended."""

    async def cancel(self, ref: str) -> Job:
        """Withdraw or stop it; one that has ended is a conflict."""

    def log(self, ref: str, rank: int, attempt: int | None, offset: int, limit: int) -> LogPage:
        """Output of a task from byte ``offset`` (below 0: from the end), at most ``limit`` bytes."""

    def events(self, after: int, limit: int, ref: str | None) -> Events:
        """The first events after number ``after``; of one job, or of all. After -1: the latest ones."""

    async def changed(self, after: int) -> None:
        """Return once there is an event after number ``after``."""

    async def log_grown(self, ref: str, rank: int, attempt: int | None, offset: int) -> None:
        """Return once there is output beyond ``offset``, or the task has ended."""

    def devices(self, node: str | None = None, offset: int = 0, limit: int = 1000) -> list[Device]:
        """Devices in the order of the spec: ``limit`` of them from number ``offset`` on; of one node, or of all."""

    async def drain(self, drain: Drain) -> list[Device]:
        """Keep jobs off devices, or let them come again; the devices that this was about."""

    async def reconfigure(self, spec: SpecText) -> Reconfigured:
        """Go on under a new spec; every job runs on (work-preserving)."""

    def decisions(self) -> Iterator[str]:
        """The core's event log: lines of JSON, oldest first (docs/tour.md)."""
