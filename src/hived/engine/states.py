"""The life of a job, processes of one machine or a gang of pods: one table of states and events for both engines.

Views, lists, metrics and colours are derived from this table or tied to it by tests.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from hived.errors import InvariantError


class Phase(StrEnum):
    """What states of a job have in common."""

    WAITING = "waiting"  #: it has no GPUs yet
    HOLDING = "holding"  #: it holds its GPUs
    ENDED = "ended"  #: final


class JobState(StrEnum):
    """Lifecycle state of a job; every transition is in :data:`JOB_TABLE`, what a state means in :data:`PHASES`."""

    QUEUED = "queued"  #: waits for GPUs
    RESERVED = "reserved"  #: has a reservation, and its victims are being stopped
    RUNNING = "running"  #: holds its GPUs: its tasks are there, or will be
    SUSPENDED = "suspended"  #: holds its GPUs, and its tasks are suspended between two mini-batches
    STOPPING = "stopping"  #: holds its GPUs, and its tasks are being stopped or evicted
    BACKOFF = "backoff"  #: failed, and is queued again after a while
    HELD = "held"  #: waits for other jobs to end, or to be released by somebody: it is not in line
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ENDED = "ended"  #: its pods are gone: how it ended is known to whoever made them

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return PHASES[self] is Phase.ENDED

    @property
    def holds(self) -> bool:
        """Whether a job in this state holds GPUs."""
        return PHASES[self] is Phase.HOLDING

    @property
    def waits(self) -> bool:
        """Whether a job in this state has no GPUs yet."""
        return PHASES[self] is Phase.WAITING

    @property
    def stays(self) -> bool:
        """Whether a job in this state holds GPUs, and nobody is stopping it."""
        return self.holds and self is not JobState.STOPPING

    @property
    def aside(self) -> bool:
        """Whether a job in this state waits for something else than GPUs: its own reason says for what."""
        return self in _ASIDE


_Q, _V, _R, _P = JobState.QUEUED, JobState.RESERVED, JobState.RUNNING, JobState.SUSPENDED
_S, _B, _H = JobState.STOPPING, JobState.BACKOFF, JobState.HELD

#: what every state means for whoever lists, counts or explains jobs
PHASES: dict[JobState, Phase] = {
    **dict.fromkeys((_Q, _V, _B, _H), Phase.WAITING),
    **dict.fromkeys((_R, _P, _S), Phase.HOLDING),
    **dict.fromkeys((JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.ENDED), Phase.ENDED),
}
#: of those that wait, the ones that the scheduler is to find no GPUs for
_ASIDE = (_B, _H)


class JobEvent(StrEnum):
    """Event of a job; the kinds of :class:`~hived.engine.job.Event` that are about a job's life."""

    RESERVED = "reserved"  #: it has a reservation, and the victims are being stopped
    UNRESERVED = "unreserved"  #: it lost its reservation, or gave it up
    STARTED = "started"  #: it holds its GPUs: its tasks are started, or its pods are bound there
    SUSPENDED = "suspended"  #: its tasks stand still, and most of the memory of its GPUs is free
    RESUMED = "resumed"  #: its tasks go on
    LIMITED = "limited"  #: it has other limits of memory or compute than before
    SHARED = "shared"  #: it runs beside other jobs on its GPUs than before: as their guest, or with guests of its own
    PRIORITIZED = "prioritized"  #: it has another priority: in line, or among those that share its GPUs
    EDITED = "edited"  #: it asks for something else than it was submitted with
    STOPPING = "stopping"  #: its tasks are being stopped, and why
    STOP_CANCELLED = "stop_cancelled"  #: its preemption is cancelled before a pod was evicted
    TASK_ENDED = "task_ended"
    DOWNGRADED = "downgraded"  #: it runs on as opportunistic
    RESTORED = "restored"  #: it is guaranteed again
    PROMOTED = "promoted"  #: its turn has come where it runs on a loan: it is guaranteed from now on
    REBOUND = "rebound"  #: it is bound to other cells than before: a new spec
    RESHAPED = "reshaped"  #: it gave up places on lost hardware, got places for pods that came later, grew or shrank
    REQUEUED = "requeued"  #: none of its tasks has GPUs any more, and it waits again: one more resume
    RETRYING = "retrying"  #: failed, and is requeued after a pause: one more retry
    QUEUED = "queued"  #: that pause is over, or nothing holds it any more
    HELD = "held"  #: it is taken out of line, or is out of it for another reason than before
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ENDED = "ended"  #: its last pod is gone


class Effect(Enum):
    """What an event does to the GPUs that a job holds or has reserved."""

    KEEP = "keep"
    TAKE = "take"  #: those of the event's placement are its own, or reserved for it
    REBIND = "rebind"  #: the same, in other cells or in none; or fewer, or more of them
    RELEASE = "release"


def ended_text(state: JobState) -> str:
    """How a job has ended, after its name."""
    return f"{'is' if state is JobState.CANCELLED else 'has'} {state.value}"


#: the first event of a job, by which it is queued: there is no state before it
SUBMITTED = "submitted"

#: an event of a job that has its GPUs for another part of the time, or works at another rate, and keeps its state
PACE = "pace"

#: state and event to the next state and what becomes of its GPUs; any other pair is a bug
JOB_TABLE: dict[tuple[JobState, JobEvent], tuple[JobState, Effect]] = {
    (_Q, JobEvent.RESERVED): (_V, Effect.TAKE),
    (_V, JobEvent.UNRESERVED): (_Q, Effect.RELEASE),
    **{(state, JobEvent.STARTED): (_R, Effect.TAKE) for state in (_Q, _V)},
    **{(state, JobEvent.SUSPENDED): (_P, Effect.KEEP) for state in (_R, _P)},
    (_P, JobEvent.RESUMED): (_R, Effect.REBIND),  # perhaps on other GPUs, of those with whose jobs it takes turns
    **{
        (state, event): (state, Effect.KEEP)
        for state in (_R, _P)
        for event in (JobEvent.LIMITED, JobEvent.SHARED, JobEvent.PRIORITIZED)
    },
    **{(state, JobEvent.STOPPING): (_S, Effect.KEEP) for state in (_R, _P, _S)},
    (_S, JobEvent.STOP_CANCELLED): (_R, Effect.KEEP),
    **{(state, JobEvent.TASK_ENDED): (state, Effect.KEEP) for state in (_R, _P, _S)},
    **{
        # promoted while it is being stopped: its preemptor was placed elsewhere
        (state, event): (state, Effect.REBIND)
        for state in (_R, _P, _S)
        for event in (JobEvent.DOWNGRADED, JobEvent.RESTORED, JobEvent.PROMOTED, JobEvent.REBOUND)
    },
    (_R, JobEvent.RESHAPED): (_R, Effect.REBIND),
    # of a job that was not being stopped: its tasks were lost in a reboot, or its pods were deleted
    **{(state, JobEvent.REQUEUED): (_Q, Effect.RELEASE) for state in (_R, _P, _S)},
    **{(state, JobEvent.RETRYING): (_B, Effect.RELEASE) for state in (_R, _P, _S)},
    **{(state, JobEvent.QUEUED): (_Q, Effect.KEEP) for state in (_B, _H)},
    **{(state, JobEvent.HELD): (_H, Effect.RELEASE) for state in (_Q, _V, _B, _H)},
    **{
        (state, event): (state, Effect.KEEP)
        for state in (_Q, _B, _H)
        for event in (JobEvent.PRIORITIZED, JobEvent.EDITED)
    },
    # its time limit, or the limit of its array
    **{(state, JobEvent.EDITED): (state, Effect.KEEP) for state in (_V, _R, _P, _S)},
    # of a job that was being stopped: it was done before it could be
    **{(state, JobEvent.SUCCEEDED): (JobState.SUCCEEDED, Effect.RELEASE) for state in (_R, _P, _S)},
    **{(state, JobEvent.FAILED): (JobState.FAILED, Effect.RELEASE) for state in (_R, _P, _S)},
    **{(state, JobEvent.CANCELLED): (JobState.CANCELLED, Effect.RELEASE) for state in (_Q, _V, _B, _H, _S)},
    **{(state, JobEvent.ENDED): (JobState.ENDED, Effect.RELEASE) for state in (_Q, _V, _R, _P, _S, _B, _H)},
}

_EVENTS = {event.value: event for event in JobEvent}
#: the state that an event leads to where the one before it is not remembered
_USUALLY = {event: after for (_, event), (after, _) in reversed(JOB_TABLE.items())}


def transition(state: JobState, event: JobEvent) -> tuple[JobState, Effect]:
    """The state after ``event``, and what it does to the job's GPUs. O(1).

    Raises :class:`~hived.errors.InvariantError` for a pair that is not in the table.
    """
    found = JOB_TABLE.get((state, event))
    if found is None:
        raise InvariantError(f"a job that is {state.value} cannot be {event.value}")
    return found


def state_after(state: JobState | None, kind: str) -> JobState | None:
    """The state of a job after an event of ``kind`` in its history; ``state``: before it, as far as it is known.

    Events that are not about its life leave it as it is. A history may have lost its older part.
    """
    if kind == SUBMITTED:
        return JobState.QUEUED
    event = _EVENTS.get(kind)
    if event is None:
        return state
    found = None if state is None else JOB_TABLE.get((state, event))
    return _USUALLY[event] if found is None else found[0]
