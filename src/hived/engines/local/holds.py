"""What keeps jobs out of line: somebody, jobs that have to end first, and the limit of their array. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Protocol

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.engine.dispatcher import Usage
from hived.engine.states import JobEvent, JobState

from .model import Job

_HOW = {"any": "has ended", "ok": "has succeeded", "fail": "has failed"}
#: jobs that are named
_NAMED = 3


class Line(Protocol):
    """The jobs of an engine, as this changes them."""

    @property
    def jobs(self) -> dict[int, Job]:
        """Those that have not ended, by number."""

    @property
    def cluster(self) -> Cluster:
        """The core, with the spec in force."""

    @property
    def usage(self) -> Usage[Job]:
        """Sums over the jobs."""

    def becomes(
        self, job: Job, event: JobEvent, placement: Placement | None, at: float, data: dict[str, object]
    ) -> None:
        """Apply an event to a job."""


class Holds:
    """Who is held, and why. A job that ends costs O(jobs that wait for it)."""

    def __init__(self, line: Line) -> None:
        self._jobs = line
        #: by job, those that wait for its end
        self._waiting: defaultdict[int, list[int]] = defaultdict(list)
        #: by array: those of it that are out (in line, at work, or held for another reason); and those that wait
        self._out: defaultdict[int, set[int]] = defaultdict(set)
        self._next: defaultdict[int, deque[int]] = defaultdict(deque)
        #: by virtual cluster and user, those that are held
        self._held: defaultdict[tuple[str, str], dict[int, None]] = defaultdict(dict)
        #: whose jobs may go on: others of theirs have given up GPUs since the last :meth:`settle`
        self._freed: dict[tuple[str, str], None] = {}
        #: jobs that have ended, and that are to be held, since the last :meth:`settle`
        self._ended: list[Job] = []
        self._to_hold: list[Job] = []

    def add(self, job: Job) -> None:
        """A job that was just submitted."""
        self._follow(job)
        array, most = job.spec.array_id, job.spec.array_most
        if array and most:
            if len(self._out[array]) < most:
                self._out[array].add(job.id)
            else:
                self._next[array].append(job.id)

    def take_over(self, at: float) -> None:
        """Those that there are after a restart. O(jobs)."""
        for job in self._jobs.jobs.values():
            self._follow(job)
            array = job.spec.array_id
            if array and job.spec.array_most:
                if job.state is JobState.HELD:
                    self._next[array].append(job.id)
                else:
                    self._out[array].add(job.id)
            self.changed(job)
        for array in list(self._next):
            for number in self._fill(array):
                self.review(number, at)
        self.limits_changed()

    def _follow(self, job: Job) -> None:
        for number, _ in job.spec.waits_for:
            if number in self._jobs.jobs:
                self._waiting[number].append(job.id)

    def _fill(self, array: int) -> list[int]:
        """Those of an array that may be out now."""
        found = []
        while (line := self._next[array]) and len(self._out[array]) < self._jobs.jobs[line[0]].spec.array_most:
            found.append(line.popleft())
            self._out[array].add(found[-1])
        if not (self._out[array] or self._next[array]):
            del self._out[array], self._next[array]
        return found

    def forget(self, job: Job) -> None:
        """A job whose submission was not stored."""
        for number, _ in job.spec.waits_for:
            if job.id in self._waiting.get(number, ()):
                self._waiting[number].remove(job.id)
        self._leave_array(job)

    def _leave_array(self, job: Job) -> None:
        if array := job.spec.array_id:
            self._out[array].discard(job.id)
            if job.id in self._next[array]:
                self._next[array].remove(job.id)

    def why(self, job: Job) -> str:
        """What keeps a job out of line, as a sentence; "": nothing."""
        pending = [(number, when) for number, when in job.spec.waits_for if number in self._jobs.jobs]
        if pending:
            said = [f"{self._jobs.jobs[number].name} {_HOW[when]}" for number, when in pending[:_NAMED]]
            more = f" and {len(pending) - _NAMED:,} more" if len(pending) > _NAMED else ""
            return f"until {', '.join(said)}{more}"
        array = job.spec.array_id
        if array and job.id in self._next[array]:
            return f"{job.spec.array_most} of its array are out, and no more may be"
        return self._over_limit(job)

    def _over_limit(self, job: Job) -> str:
        """Why a member may have no more GPUs in line or at work; "": they may have those of this job."""
        if not job.spec.is_limited:
            return ""
        spec = self._jobs.cluster.spec
        most = next((vc.access.max_gpus for vc in spec.virtual_clusters if vc.name == job.vc and vc.access), None)
        others = self._jobs.usage.gpus_of[_whose(job)] - (job.gpus if job.state is not JobState.HELD else 0)
        if most is None or others + job.gpus <= most:
            return ""
        return f"other jobs of {job.spec.user} have {others} GPUs of {job.vc}, and maxGpus of a member is {most}"

    def changed(self, job: Job) -> None:
        """A job has changed: it may be held from now on, or have given up GPUs of its user's."""
        if job.state is JobState.HELD:
            self._held[_whose(job)][job.id] = None
        elif (others := self._held.get(_whose(job))) is not None:
            others.pop(job.id, None)
            if not others:
                del self._held[_whose(job)]
        if (job.state is JobState.HELD or job.state.ended) and _whose(job) in self._held:
            self._freed[_whose(job)] = None

    def limits_changed(self) -> None:
        """Another spec is in force, perhaps with other limits."""
        self._freed |= dict.fromkeys(self._held)

    def hold(self, job: Job, why: str, by_hand: bool, at: float) -> None:
        """Take a job that waits out of line."""
        self._jobs.becomes(job, JobEvent.HELD, None, at, {"why": why, "by_hand": by_hand})

    def settle(self, at: float) -> None:
        """Act on the jobs that have ended: those that wait for them are in line, or cancelled. O(these)."""
        for job in self._to_hold:
            if job.state is JobState.QUEUED:
                self.hold(job, job.reason or "by hand", True, at)
        self._to_hold.clear()
        while self._ended:
            ended = self._ended.pop(0)
            again = dict.fromkeys(self._waiting.pop(ended.id, ()))
            for number in again:
                waiting = self._jobs.jobs.get(number)
                if waiting is not None and waiting.state.waits and (why := _in_vain(waiting, ended)):
                    self._jobs.becomes(waiting, JobEvent.CANCELLED, None, at, {"why": why})
            for number in [*again, *(self._fill(ended.spec.array_id) if ended.spec.array_id else ())]:
                self.review(number, at)
        freed, self._freed = self._freed, {}
        for number in [number for whose in freed for number in self._held.get(whose, ())]:
            self.review(number, at)
        self._freed.clear()  # by a reason that is another now

    def review(self, number: int, at: float) -> None:
        """Put a job into line that nothing keeps out of it, or say what does now."""
        job = self._jobs.jobs.get(number)
        if job is None or job.state is not JobState.HELD or job.held_by_hand:
            return
        why = self.why(job)
        if not why:
            self._jobs.becomes(job, JobEvent.QUEUED, None, at, {})
        elif why != job.reason:
            self.hold(job, why, False, at)

    def ended(self, job: Job) -> None:
        """A job has ended."""
        self._leave_array(job)
        if job.id in self._waiting or job.spec.array_id:
            self._ended.append(job)

    def requeued(self, job: Job) -> None:
        """A job is back in line that somebody wants held."""
        self._to_hold.append(job)


def _whose(job: Job) -> tuple[str, str]:
    """The virtual cluster and the user of a job."""
    return job.vc, job.entry.view.user


def _in_vain(waiting: Job, ended: Job) -> str:
    """Why a job can never run after one that has ended otherwise than it was to; "": it can."""
    good = ended.state is JobState.SUCCEEDED
    if all(when != ("fail" if good else "ok") for number, when in waiting.spec.waits_for if number == ended.id):
        return ""
    ended_so = "it has succeeded" if good else f"it was {ended.reason or ended.state.value}"
    return f"cancelled: it was to run once {ended.name} {_HOW['fail' if good else 'ok']}, and {ended_so}"
