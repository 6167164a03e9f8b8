"""The state machine of jobs: one table. docs/states.md shows it, and every pair is tested."""

from __future__ import annotations

from enum import StrEnum

from hived.errors import InvariantError

from .model import JobState


class JobEvent(StrEnum):
    """What happens to a job; the kinds of :class:`~.model.Event` that have one."""

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

#: state and event to the next state; what is not here is a bug
JOB_TABLE: dict[tuple[JobState, JobEvent], JobState] = {
    (_Q, JobEvent.RESERVED): _V,
    (_V, JobEvent.UNRESERVED): _Q,
    (_Q, JobEvent.STARTED): _R,
    (_V, JobEvent.STARTED): _R,
    (_R, JobEvent.STOPPING): _S,
    (_S, JobEvent.STOPPING): _S,
    (_R, JobEvent.TASK_ENDED): _R,
    (_S, JobEvent.TASK_ENDED): _S,
    (_R, JobEvent.DOWNGRADED): _R,
    (_S, JobEvent.DOWNGRADED): _S,
    (_R, JobEvent.RESTORED): _R,
    (_S, JobEvent.RESTORED): _S,
    (_R, JobEvent.PROMOTED): _R,
    (_S, JobEvent.PROMOTED): _S,  # who it was to make room for went elsewhere
    (_R, JobEvent.REBOUND): _R,
    (_S, JobEvent.REBOUND): _S,
    (_R, JobEvent.PREEMPTED): _Q,  # its tasks were lost with the machine's restart
    (_S, JobEvent.PREEMPTED): _Q,
    (_R, JobEvent.RETRYING): _B,
    (_S, JobEvent.RETRYING): _B,
    (_B, JobEvent.QUEUED): _Q,
    (_R, JobEvent.SUCCEEDED): JobState.SUCCEEDED,
    (_S, JobEvent.SUCCEEDED): JobState.SUCCEEDED,  # it was done before it could be told to stop
    (_R, JobEvent.FAILED): JobState.FAILED,
    (_S, JobEvent.FAILED): JobState.FAILED,
    (_Q, JobEvent.CANCELLED): JobState.CANCELLED,
    (_V, JobEvent.CANCELLED): JobState.CANCELLED,
    (_B, JobEvent.CANCELLED): JobState.CANCELLED,
    (_S, JobEvent.CANCELLED): JobState.CANCELLED,
}


def next_job_state(state: JobState, event: JobEvent) -> JobState:
    """The table's answer; :class:`InvariantError` for what the table does not have."""
    after = JOB_TABLE.get((state, event))
    if after is None:
        raise InvariantError(f"a job that is {state.value} cannot be {event.value}")
    return after
