"""Jobs of one machine as plain data: what was asked for, where a job stands, what happened to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hived.cluster.requests import OPPORTUNISTIC


class JobState(StrEnum):
    """Where a job is in its life; every change goes by the table in :mod:`.lifecycle`."""

    QUEUED = "queued"  #: waits for GPUs
    RESERVED = "reserved"  #: its GPUs are reserved, and those who have to go are being stopped
    RUNNING = "running"
    STOPPING = "stopping"  #: its processes were told to end: cancelled, preempted, or one task of the gang failed
    BACKOFF = "backoff"  #: failed, and is queued again after a while
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    @property
    def holds(self) -> bool:
        """Whether it has GPUs."""
        return self in (JobState.RUNNING, JobState.STOPPING)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What somebody submitted."""

    vc: str  #: the virtual cluster (tenant)
    command: tuple[str, ...]  #: program and arguments; never through a shell
    gpus: int = 1  #: per task
    tasks: int = 1  #: processes of the gang, started and ended together
    priority: int = 0  #: -1: opportunistic; 0 to 1000: guaranteed
    name: str = ""  #: "": the base name of the program
    cwd: str = "/"  #: absolute path of the folder to run in
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)  #: beside what hived adds
    retries: int = 0  #: how often it is started again when it fails
    backoff_s: float = 5.0  #: pause before the first retry; doubles each time, up to 5 minutes
    time_limit_s: float | None = None  #: of one run, after which it is stopped and has failed
    grace_s: float = 30.0  #: between SIGTERM and SIGKILL
    lazy_preemption: bool = False  #: when its own VC preempts it: it runs on as opportunistic while it can
    user: str = ""  #: who submitted it
    early: bool = False  #: it may start on idle GPUs before its turn, and keeps its place in line

    @property
    def opportunistic(self) -> bool:
        """Whether it asks for what others leave idle."""
        return self.priority == OPPORTUNISTIC
