"""What comes of facts: events to be kept, and then instructions to be carried out."""

from __future__ import annotations

from dataclasses import dataclass

from hived.engines.event import Event

from .jobs import Job


@dataclass(frozen=True, slots=True)
class StartTasks:
    """Start the tasks of this attempt, unless they have been."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StopTasks:
    """Tell the tasks of this attempt to end."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Say so (``JobScheduler.due``) when it is ``at``, in seconds since the epoch."""

    job: int
    at: float


Instruction = StartTasks | StopTasks | WakeAt


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of some facts."""

    events: tuple[Event, ...]  #: to be kept first
    jobs: tuple[Job, ...]  #: that the events are about
    instructions: tuple[Instruction, ...]  #: to be carried out then
