"""Turns on GPUs that jobs share: who runs there now, and is told to pause or to go on. Pure.

A turn is a wish of the scheduler, a suspension a fact. A job is on its GPUs until it is known that it stands still, or
that it has ended: so no two are on one that may not be.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from hived.cluster.decisions import Placement, PodPlacement
from hived.engine.dispatcher import Usage
from hived.engine.states import JobEvent, JobState
from hived.scheduling import Scheduler, Status
from hived.scheduling.instructions import Turn

from .guests import Guests
from .instructions import ResumeTasks, ScaleTasks, SuspendTasks
from .model import Job, JobSpec

#: why a job that takes turns is suspended, or goes on
OTHERS_TURN, ITS_TURN = "others of its VC have their turn on these GPUs", "its turn has come"

GOES_ELSEWHERE = "its turn has come on other GPUs, where it goes on"
NO_LONGER = "its turn has come on other GPUs, which it has to wait for"
ONCE_HELD = "it was to pause when it was a guest, and is to go on"
NO_TURNS = "its VC has no GPUs on which it could take turns any more"
NO_GUESTS = "it ran beside others, where no guests are accepted any more"
#: a job that does not pause for so long, in seconds, does not take turns: it is no training job, or evaluates for long
OBEYS_WITHIN_S = 300.0
#: why an elastic job has other GPUs, and why it is stopped
GROWS, SHRINKS = "it grows into GPUs that nobody asks for", "it gives up what it has grown into, for others"
NOT_READY = "it had ended no mini-batch when its GPUs were wanted, and so could not pause"
OUT_OF_REACH = "its control pages are gone, and it could not be told to pause or to go on: it starts anew"
RIGID = "it does not give up the GPUs that it has grown into"
NOT_ALONE = "it does not pause for others, whose GPUs these are; it waits for some of its own"


class Door(Protocol):
    """What the turns ask of the job scheduler."""

    jobs: dict[int, Job]
    usage: Usage[Job]
    guests: Guests | None

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler."""

    def becomes(
        self, job: Job, event: JobEvent, placement: Placement | None, at: float, data: dict[str, object]
    ) -> None:
        """Apply an event to a job."""

    def instruct(self, *instructions: SuspendTasks | ResumeTasks | ScaleTasks) -> None:
        """Queue instructions to be carried out."""

    def start_on(self, job: Job, placement: Placement, at: float) -> None:
        """Start a job on these GPUs."""

    def stop(self, job: Job, at: float, cause: str, why: str) -> None:
        """Stop a job."""

    def count_wait(self, job: Job, at: float) -> None:
        """Count how long a job that is started has waited."""

    def may_take_turns(self, job: Job) -> bool:
        """Whether the policy of its VC has a job take turns."""

    def own_placement(self, job: Job) -> Placement | None:
        """Its own cells; None: it has none."""


class Turns:
    """The jobs that take turns with others, or are held as guests. A dispatch costs O(these)."""

    def __init__(self, jobs: Door) -> None:
        self._jobs = jobs
        #: by job that takes turns with others of its VC, or may: its turn now, None while others have it
        self.of: dict[int, Turn | None] = {}
        #: jobs that were told to let others have their turn, and are not known to have paused; those of them that were
        #: told to go on since
        self.told_to_pause: set[int] = set()
        self.called_back: set[int] = set()
        #: jobs of an earlier engine, which may have told them to pause
        self.unsure: set[int] = set()
        #: guests that have paused to go on elsewhere, at their turn
        self.moved: set[int] = set()
        #: by elastic job: its workers, as seen last, and those that it is told to have
        self.workers: dict[int, int] = {}
        self.scaling: dict[int, int] = {}

    def left(self, number: int) -> None:
        """It is on its GPUs no more."""
        self.forget(number)
        self.moved.discard(number)
        self.stays_as_it_is(number)

    def stays_as_it_is(self, number: int) -> None:
        """It grows and shrinks no more."""
        self.workers.pop(number, None)
        self.scaling.pop(number, None)

    def forget(self, number: int) -> None:
        """It has paused, or goes on, or has no turns any more: what it was told is over."""
        self.told_to_pause.discard(number)
        self.called_back.discard(number)
        self.unsure.discard(number)

    def wishes(self, number: int) -> bool | None:
        """Whether a job is to run by its turns; None: it takes none."""
        job = self._jobs.jobs.get(number)
        if job is None or number not in self.of:
            return None
        return number in self.called_back or (number not in self.told_to_pause and job.state is not JobState.SUSPENDED)

    def goes_on(self, job: Job, why: str, at: float) -> None:
        """Have a suspended job go on, as soon as nobody else is on its GPUs, or at its turn."""
        if job.state is JobState.SUSPENDED and job.placement is not None:
            if job.id not in self.of and not self.is_taken(job, job.placement):
                self._begin(job, job.placement, at, why)
                return
            self.of.setdefault(job.id, Turn(job.placement))
            if job.by_hand:
                self._jobs.becomes(
                    job, JobEvent.SUSPENDED, None, at, {"why": f"it is to go on: {why}", "by_hand": False}
                )

    def hold(self, job: Job, why: str, until: float | None, at: float) -> None:
        """A job was suspended by hand: it has no turns until it is to go on, at ``until`` by itself."""
        if job.state is JobState.SUSPENDED and not (job.by_hand and until is None):
            self._jobs.becomes(job, JobEvent.SUSPENDED, None, at, {"why": why, "by_hand": True, "until": until})

    def take(self, at: float) -> None:
        """Pause the jobs whose turn is over; start and resume those whose GPUs are free of others.

        A job is on its GPUs until it is known to be suspended, or has ended; so no two are on one that may not be.
        """
        for number in list(self.of):
            job = self._jobs.jobs[number]
            turn = self._turn_of(job)
            if job.state.stays and job.entry.status in (Status.WAITING, Status.NOWHERE, Status.RESERVED):
                self._jobs.scheduler.withdraw(job.entry)
                self._jobs.stop(job, at, "moved", self._why_not_here(job))
            elif job.state is JobState.RUNNING and self._scales(job, turn, at):
                continue
            elif job.state is JobState.RUNNING:
                here = turn is not None and set(turn.placement.devices()) == set(job.devices())
                if number in self.unsure:
                    self.unsure.discard(number)
                    self.told_to_pause.add(number)
                    if here:
                        self.called_back.add(number)
                    self._jobs.instruct((ResumeTasks if here else SuspendTasks)(number, job.attempt))
                elif here and number in self.told_to_pause:
                    if number not in self.called_back:  # it may have paused, which is not known yet
                        self.called_back.add(number)
                        self._jobs.instruct(ResumeTasks(number, job.attempt))
                elif not here and job.entry.alone:
                    self._jobs.stop(job, at, "moved", NOT_ALONE)
                elif not here and (number not in self.told_to_pause or number in self.called_back):
                    self.told_to_pause.add(number)
                    self.called_back.discard(number)
                    self._jobs.instruct(SuspendTasks(number, job.attempt))
            elif job.entry.status in (Status.WAITING, Status.NOWHERE, Status.RESERVED):
                if job.state.waits:
                    del self.of[number]
            elif turn is None or job.state is JobState.STOPPING or job.by_hand:
                continue
            elif not self.is_taken(job, turn.placement, turn.beside):
                self._begin(job, turn.placement, at)

    def _why_not_here(self, job: Job) -> str:
        """A job is stopped where it runs, and has to wait."""
        if job.entry.alone and job.spec.share is not False:
            return NOT_ALONE
        if job.id in self.moved:
            return NO_LONGER
        return NO_GUESTS if was_beside(job) else NO_TURNS

    def has_workers(self, job: Job, workers: int) -> None:
        """An elastic job has so many workers now."""
        self.workers[job.id] = workers
        if self.scaling.get(job.id) == workers:
            del self.scaling[job.id]

    def shrinks(self, job: Job) -> bool:
        """Whether a job has more GPUs than it is to have."""
        turn = self.of.get(job.id)
        return turn is not None and job.placement is not None and turn.placement.gpus < job.placement.gpus

    def _scales(self, job: Job, turn: Turn | None, at: float) -> bool:
        """Have an elastic job grow into the GPUs of its turn, or shrink to them; whether it is about to.

        While it runs, it holds all GPUs on which its workers may be. Before it pauses it has what it asked for.
        """
        workers = self.workers.get(job.id)
        if workers is None or job.placement is None or job.id in self.told_to_pause:
            return False
        placement = _first(job.placement, job.gpus) if turn is None else turn.placement
        if placement.gpus > job.placement.gpus:
            if not self.is_taken(job, placement):
                self._jobs.becomes(job, JobEvent.RESHAPED, by_task(placement, job.spec), at, {"why": GROWS})
        elif placement.gpus < job.placement.gpus and workers <= placement.gpus:
            self._jobs.becomes(job, JobEvent.RESHAPED, by_task(placement, job.spec), at, {"why": SHRINKS})
        wanted = min(placement.gpus, job.placement.gpus)
        if workers != wanted and self.scaling.get(job.id) != wanted:
            self.scaling[job.id] = wanted
            self._jobs.instruct(ScaleTasks(job.id, job.attempt, wanted))
        return placement.gpus != job.placement.gpus or workers != wanted

    def give_to_guest(self, job: Job) -> None:
        """Have a guest pause and go on as its coordinators say, and who was one go on."""
        if job.entry.placement is not None and (
            job.entry.runs_as_guest or job.id in self.told_to_pause or job.state is JobState.SUSPENDED
        ):
            self.of[job.id] = Turn(job.entry.placement)

    def _turn_of(self, job: Job) -> Turn | None:
        """The turn of a job now; of one that shares no GPUs any more, those that are its own."""
        if self._jobs.guests is not None and job.entry.holds:
            return None if self._jobs.guests.may_run(job) is False else self.of[job.id]
        if job.entry.holds and not (job.entry.status is Status.GUARANTEED and self._jobs.may_take_turns(job)):
            own = self._jobs.own_placement(job)
            if own is not None and own.gpus == job.gpus:
                return Turn(own)
            if job.placement is not None:  # the spec lacks some
                return Turn(job.placement)
        return self.of[job.id]

    def _begin(self, job: Job, placement: Placement, at: float, why: str = "") -> None:
        if job.state.waits:
            self._jobs.count_wait(job, at)
            self._jobs.start_on(job, placement, at)
        else:
            self.moved.discard(job.id)
            why = why or (self._jobs.guests.why(job.id) if self._jobs.guests is not None else "") or ITS_TURN
            self._jobs.becomes(job, JobEvent.RESUMED, by_task(placement, job.spec), at, {"why": why})
            self._jobs.instruct(ResumeTasks(job.id, job.attempt))

    def is_taken(self, job: Job, placement: Placement, beside: Collection[int] = ()) -> bool:
        """Whether others than those ``beside`` a job are on these GPUs, and are not known to be suspended."""
        there = job.holds and set(placement.devices()) == set(job.devices())
        return any(
            other is not job
            and other.id not in beside
            and other.state is not JobState.SUSPENDED
            and not self._may_meet(job, other, there)
            for place in placement.devices()
            for other in self._jobs.usage.on(place)
        )

    def in_the_way(self, job: Job) -> list[Job]:
        """The guests that have not paused yet on the GPUs on which a job is about to start."""
        turn = self.of.get(job.id)
        if self._jobs.guests is None or turn is None or not (job.state.waits or job.id in self.moved):
            return []
        on = {other.id: other for place in turn.placement.devices() for other in self._jobs.usage.on(place)}
        return [other for other in on.values() if other is not job and other.state is not JobState.SUSPENDED]

    def _may_meet(self, job: Job, other: Job, there: bool) -> bool:
        """Whether a job may run where another runs: a guest does; an owner comes once guests there have paused.

        ``there``: it is on these GPUs already.
        """
        if self._jobs.guests is None or (other.state is JobState.STOPPING and other.stopping_for == "preempted"):
            return False
        return job.entry.runs_as_guest or (there and other.entry.runs_as_guest)


def _first(placement: Placement, gpus: int) -> Placement:
    """So many devices of a placement on one node."""
    (pod, *_) = placement.pods
    return replace(placement, pods=(pod._replace(leaf_cells=pod.leaf_cells[:gpus]),))


def was_beside(job: Job) -> bool:
    """Whether a job ran beside others, and not as their owner."""
    return bool(job.beside) and not job.guaranteed


def by_task(placement: Placement, spec: JobSpec) -> Placement:
    """A placement with a pod for each task: where jobs take turns they have GPUs of a server, whosever these are."""
    if len(placement.pods) == spec.tasks and all(len(pod.leaf_cells) == spec.gpus for pod in placement.pods):
        return placement
    devices = list(placement.devices())
    if len(devices) != spec.tasks * spec.gpus:
        return placement  # some are no more
    tasks = [devices[at : at + spec.gpus] for at in range(0, len(devices), spec.gpus)]
    pods = tuple(PodPlacement(of[0][0], tuple(device for _, device in of)) for of in tasks)
    return replace(placement, pods=pods, reserved_levels=placement.reserved_levels[:1] * len(pods))
