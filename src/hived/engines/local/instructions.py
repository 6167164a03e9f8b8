"""What the job scheduler of a machine has the engine do. Each is idempotent: it is repeated after a kill."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Limiting


@dataclass(frozen=True, slots=True)
class StartTasks:
    """Start the tasks of this attempt that have not been started."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StopTasks:
    """Stop the tasks of this attempt."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SuspendTasks:
    """Suspend the tasks of this attempt: others have their turn. What comes of it is a fact."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ResumeTasks:
    """Let the tasks of this attempt go on: they have their turn."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ScaleTasks:
    """Have the elastic job of this attempt go on with so many workers. What comes of it is a fact."""

    job: int
    attempt: int
    workers: int


@dataclass(frozen=True, slots=True)
class LimitTasks:
    """Limit the tasks of this attempt, from their next mini-batch on."""

    job: int
    attempt: int
    limiting: Limiting
    why: str


@dataclass(frozen=True, slots=True)
class LimitTime:
    """Have the tasks of this attempt keep another time limit than they were started with."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call ``JobScheduler.due`` at time ``at``, in seconds since the epoch."""

    job: int
    at: float


Instruction = StartTasks | StopTasks | SuspendTasks | ResumeTasks | ScaleTasks | LimitTasks | LimitTime | WakeAt
