"""A job as both engines see it, processes of one machine or a gang of pods; and its events, as data.

Sentences for people are made from events at the edge (CLI, server).
"""

from __future__ import annotations

from collections.abc import Iterator, Reversible, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.explain.reasons import Reason, ReasonKind
from hived.cluster.requests import Request
from hived.engine.states import Effect, JobEvent, JobState, transition
from hived.errors import InvariantError
from hived.scheduling import Entry, JobView
from hived.spec.compiled import Device


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job, of hardware, or of the engine."""

    seq: int  #: sequence number among all events, from 1, without gaps
    at: float  #: seconds since the epoch
    kind: str
    job: Any = None  #: number or name, as the engine calls its jobs; None: the event is about no job
    data: dict[str, Any] = field(default_factory=dict)  #: the fields of its kind; plain JSON


def after(recent: Reversible[Event], seq: int) -> list[Event]:
    """Events after number ``seq``. O(events returned)."""
    found: list[Event] = []
    for event in reversed(recent):
        if event.seq <= seq:
            break
        found.append(event)
    return found[::-1]


def placement_data(placement: Placement) -> dict[str, object]:
    """A placement as plain data."""
    pods = [[pod.node, list(pod.leaf_cells)] for pod in placement.pods]
    return {"chain": placement.chain, "pods": pods, "levels": list(placement.reserved_levels)}


def placement_from(plain: Any) -> Placement:
    """The inverse of :func:`placement_data`."""
    pods = tuple(PodPlacement(node, tuple(devices)) for node, devices in plain["pods"])
    return Placement(plain["chain"], pods, tuple(plain["levels"]))


class Limits(NamedTuple):
    """What a job is limited to, beside others on its GPUs or by hand."""

    memory: int  #: device bytes per process; 0: none
    share: float  #: of its GPUs' time, 1: all of it
    why: str
    since: float
    by_hand: bool = True  #: not by what shares GPUs among jobs

    @property
    def any(self) -> bool:
        """Whether these limit anything."""
        return bool(self.memory) or self.share < 1.0


NO_LIMITS = Limits(0, 1.0, "", 0.0)


class JobFilter(NamedTuple):
    """Which jobs are asked for: all, but for what is given here."""

    states: Sequence[str] = ()
    vc: str | None = None
    user: str | None = None
    name: str | None = None  #: a part of theirs
    array: int | None = None  #: id of the first job of their array
    ended_since: float | None = None  #: seconds since the epoch
    ended_before: float | None = None


class EngineJob:
    """The state of a job that both engines keep and views show. Its events determine it: see :meth:`apply`."""

    #: its lifecycle state
    state = JobState.QUEUED
    #: its number or name, as its events have it
    ref: int | str
    #: tasks that it consists of
    size: int

    def __init__(
        self,
        number: int,
        request: Request,
        gpus: int,
        submitted_at: float,
        since: float,
        early: bool,
        sequence: int,
        user: str = "",
        duration: float | None = None,
    ) -> None:
        """``sequence``: submissions of its VC before it; ``user``, ``duration`` (its longest, in s): for the policy."""
        #: rank among all jobs of the engine
        self.id = number
        #: unique; the name of its affinity group in the core
        self.name = request.group
        #: of all its pods or tasks
        self.gpus = gpus
        #: seconds since the epoch, here and below
        self.submitted_at = submitted_at
        #: start of its current state; a queued job that gets a reservation counts as waiting all along
        self.since = since
        #: the devices that it holds or has reserved
        self.placement: Placement | None = None
        #: its latest start, and its end
        self.started_at: float | None = None
        self.ended_at: float | None = None
        #: why it is in its state, as a sentence; "" where the state says all
        self.reason = ""
        #: why it is being stopped: preempted, moved, cancelled, drained, time_limit or task_failed
        self.stopping_for = ""
        #: why it is suspended, while it is, as a sentence
        self.suspended_for = ""
        #: and whether somebody has told it so, past the scheduler
        self.by_hand = False
        #: when it goes on by itself; None: when it is told to
        self.resumes_at: float | None = None
        #: whether it is a guest of the owner of its GPUs; and beside whom it runs, by name: that one, or its own guests
        self.guest = False
        self.beside: tuple[str, ...] = ()
        #: limits in force of a job under the runtime; None: there are none
        self.limits: Limits | None = None
        #: why it waits, by the core's last answer
        self.reasons: tuple[Reason, ...] = ()
        #: its latest preemptor: group, VC, priority
        self.displaced_by: tuple[str, str, int] | None = None
        #: its entry in the scheduler
        view = JobView(
            self.name,
            gpus,
            round(submitted_at, 3),
            sequence,
            request.vc,
            user,
            priority=request.priority,
            duration=duration,
        )
        self.entry = Entry(number, request, view, early)

    def apply(self, event: Event) -> Effect:
        """Become what an event makes of it, with the GPUs that :data:`.states.JOB_TABLE` says.

        Raises :class:`~hived.errors.InvariantError` for an event that its state does not allow, or that has no GPUs
        where it gives some, or some where it gives none.
        """
        kind, data, before = JobEvent(event.kind), event.data, self.state
        self.state, effect = transition(before, kind)
        given = placement_from(data["placement"]) if "placement" in data else None
        gives = effect in (Effect.TAKE, Effect.REBIND)
        if gives is (given is None):
            raise InvariantError(f"{self.name}: {kind.value} {'without' if gives else 'with'} a placement")
        if effect is not Effect.KEEP:
            self.placement = given
        if self.state is not before and not {before, self.state} <= {JobState.QUEUED, JobState.RESERVED}:
            self.since = event.at
        if effect is Effect.RELEASE or kind in (JobEvent.STARTED, JobEvent.STOP_CANCELLED):
            self.stopping_for = ""
        if effect is Effect.RELEASE:
            self.limits, self.guest, self.beside = None, False, ()
        if self.state is not JobState.SUSPENDED:
            self.suspended_for, self.by_hand, self.resumes_at = "", False, None
        if before.aside and not self.state.aside:
            self.reason = ""
        match kind:
            case JobEvent.SUSPENDED:  # why it runs, or runs as it does, stays
                self.suspended_for, self.by_hand = str(data["why"]), bool(data.get("by_hand"))
                self.resumes_at = data.get("until")
            case JobEvent.PRIORITIZED:
                if before.waits:
                    self.entry.ask(int(data["priority"]))
                self.entry.priority = int(data["priority"])
            case JobEvent.LIMITED:
                by_hand = bool(data.get("by_hand", True))
                limits = Limits(int(data["memory"]), float(data["share"]), str(data["why"]), event.at, by_hand)
                self.limits = limits if limits.any else None
            case JobEvent.SHARED:
                self.guest, self.beside = bool(data["guest"]), tuple(map(str, data["beside"]))
            case JobEvent.STARTED:
                self.started_at, self.reason = event.at, ""
            case JobEvent.STOP_CANCELLED:  # it has run on all the time
                self.since, self.reason = event.at if self.started_at is None else self.started_at, ""
            case JobEvent.RESERVED:
                victims = data["victims"]
                self.reason = f"waits until {', '.join(victims)} {'is' if len(victims) == 1 else 'are'} gone"
            case JobEvent.RESHAPED | JobEvent.RESUMED:
                pass  # why it has other GPUs is not why it runs
            case _ if "why" in data:
                self.reason = str(data["why"])
        if kind is JobEvent.STOPPING:
            self.stopping_for = str(data["cause"])
            if (by := data.get("by")) is not None:
                self.displaced_by = (by[0], by[1], by[2])
        if self.state.ended:
            self.ended_at = event.at
        return effect

    @property
    def key(self) -> str:
        """Its identifier in URLs."""
        return str(self.ref)

    @property
    def holds(self) -> bool:
        """Whether it holds GPUs."""
        return self.state.holds

    @property
    def vc(self) -> str:
        """Its virtual cluster."""
        return self.entry.vc

    @property
    def priority(self) -> int:
        """The requested priority, or the one that it was given since; -1: opportunistic."""
        return self.entry.priority

    def devices(self) -> Iterator[Device]:
        """Devices that it holds or has reserved."""
        return self.placement.devices() if self.placement is not None else iter(())

    @property
    def guaranteed(self) -> bool:
        """Whether its placement is bound to cells of its VC."""
        return self.placement is not None and self.placement.guaranteed

    @property
    def decisive(self) -> ReasonKind:
        """The decisive reason of a waiting job, by its own state alone. O(1)."""
        if self.state is JobState.RESERVED:
            return ReasonKind.WAITING_FOR_PREEMPTION
        # the core is asked about the head of line only, so other jobs may have no reasons
        return self.reasons[0].kind if self.reasons else ReasonKind.BEHIND_OTHERS

    @property
    def reserved(self) -> bool:
        """Whether it has a reservation, and waits for the victims on those GPUs to end."""
        return self.placement is not None and not self.holds
