"""Jobs of one machine as plain data: what is asked for, their states, and what brings one into another."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hived.cluster.requests import OPPORTUNISTIC


class JobState(StrEnum):
    """Where a job is in its life; every change goes by :data:`JOB_TABLE`."""

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


class JobEvent(StrEnum):
    """What happens to a job; the kinds of :class:`~hived.engines.event.Event` that have one."""

    RESERVED = "reserved"  #: a placement is kept for it, and victims are told to go
    UNRESERVED = "unreserved"  #: it lost that
    STARTED = "started"  #: its tasks are started: one more attempt
    STOPPING = "stopping"  #: its tasks are told to end, and why
    TASK_ENDED = "task_ended"
    DOWNGRADED = "downgraded"  #: it runs on as opportunistic
    RESTORED = "restored"  #: it is guaranteed again
    PROMOTED = "promoted"  #: its turn has come where it runs early: it is guaranteed from now on
    REBOUND = "rebound"  #: it stands in other cells than it did: a new spec
    PREEMPTED = "preempted"  #: gone, queued again: one more resume
    RETRYING = "retrying"  #: failed, and is queued again after a pause: one more retry
    QUEUED = "queued"  #: that pause is over
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_Q, _V, _R, _S, _B = JobState.QUEUED, JobState.RESERVED, JobState.RUNNING, JobState.STOPPING, JobState.BACKOFF
#: what leaves a job where it is
_RUNS_ON = (
    JobEvent.TASK_ENDED,
    JobEvent.DOWNGRADED,
    JobEvent.RESTORED,
    JobEvent.PROMOTED,  # of one that is being stopped: who it was to make room for went elsewhere
    JobEvent.REBOUND,
)

#: state and event to the next state; what is not here is a bug. docs/states.md shows it, and every pair is tested
JOB_TABLE: dict[tuple[JobState, JobEvent], JobState] = {
    (_Q, JobEvent.RESERVED): _V,
    (_V, JobEvent.UNRESERVED): _Q,
    **dict.fromkeys([(_Q, JobEvent.STARTED), (_V, JobEvent.STARTED)], _R),
    **dict.fromkeys([(_R, JobEvent.STOPPING), (_S, JobEvent.STOPPING)], _S),
    **{(state, event): state for state in (_R, _S) for event in _RUNS_ON},
    # of one that was not stopped: its tasks were lost with the machine's restart
    **dict.fromkeys([(_R, JobEvent.PREEMPTED), (_S, JobEvent.PREEMPTED)], _Q),
    **dict.fromkeys([(_R, JobEvent.RETRYING), (_S, JobEvent.RETRYING)], _B),
    (_B, JobEvent.QUEUED): _Q,
    # of one that was stopped: it was done before it could be
    **dict.fromkeys([(_R, JobEvent.SUCCEEDED), (_S, JobEvent.SUCCEEDED)], JobState.SUCCEEDED),
    **dict.fromkeys([(_R, JobEvent.FAILED), (_S, JobEvent.FAILED)], JobState.FAILED),
    **{(state, JobEvent.CANCELLED): JobState.CANCELLED for state in (_Q, _V, _B, _S)},
}


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
