"""What keeps jobs out of line: somebody, jobs that have to end first, a limit of their array or member. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import Protocol

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.engine.dispatcher import Usage
from hived.engine.states import JobEvent, JobState, ended_text
from hived.words import counted

from .model import Job

_HOW = {"any": "has ended", "ok": "has succeeded", "fail": "has failed"}
#: of several
_HOW_MANY = {"any": "have ended", "ok": "have succeeded", "fail": "have failed"}
#: how a job has to end that is of an array of which one has to fail at least; the array's id follows
_SOME_FAILS = "fail:"


def some_fails(array: int) -> str:
    """How the jobs of an array have to end, for a job that is to run once all have, and one has failed at least."""
    return f"{_SOME_FAILS}{array}"


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
    """Who is held, and why. What ends costs O(jobs that are in line by it x sizes of jobs of one member)."""

    def __init__(self, line: Line) -> None:
        self._jobs = line
        #: by job, those that wait for its end, and how it has to end for each
        self._waiting: defaultdict[int, dict[int, list[str]]] = defaultdict(dict)
        #: for how many jobs each still waits; and of them, by their array, those of which one has to fail
        self._left: Counter[int] = Counter()
        self._left_of: Counter[tuple[int, str]] = Counter()
        #: by array: those of it that are out (in line, at work, or held for another reason); and those that wait
        self._out: defaultdict[int, set[int]] = defaultdict(set)
        self._next: defaultdict[int, _ByPriority] = defaultdict(_ByPriority)
        #: by virtual cluster and user, and by their GPUs: those that the limit of a member holds
        self._over: dict[tuple[str, str], dict[int, _ByPriority]] = {}
        #: by virtual cluster and user: those in line that such a limit is for
        self._in_line: defaultdict[tuple[str, str], _ByPriority] = defaultdict(_ByPriority)
        #: whose jobs may go on: others of theirs have given up GPUs since the last :meth:`settle`
        self._freed: dict[tuple[str, str], None] = {}
        #: whether there may be other limits
        self._other_limits = False
        #: arrays of which another one may be out, since the last :meth:`settle`
        self._to_fill: dict[int, None] = {}
        #: jobs that have ended, and that are to be held, since the last :meth:`settle`
        self._ended: deque[Job] = deque()
        self._to_hold: list[Job] = []
        #: jobs that are back in line, of arrays of which more are out than may be by now
        self._too_many: list[Job] = []

    def add(self, job: Job) -> None:
        """A job that was just submitted. O(jobs that it waits for)."""
        self._follow(job)
        self._lines_up(job)
        if not job.spec.hold:
            self.returns(job)

    def returns(self, job: Job) -> None:
        """Nobody holds a job: of its array it is out, if another one may be, or next."""
        array, most = job.spec.array_id, job.spec.array_most
        if array and most and job.id not in self._out[array]:
            if len(self._out[array]) < most:
                self._out[array].add(job.id)
            else:
                self._next[array].add(job)

    def _lines_up(self, job: Job) -> None:
        if _is_limited(job):
            self._in_line[_whose(job)].add(job)

    def take_over(self, at: float) -> None:
        """Those that there are after a restart. O(jobs)."""
        for job in self._jobs.jobs.values():
            self._follow(job)
            array = job.spec.array_id
            if array and job.spec.array_most and not (job.state is JobState.HELD and job.held_by_hand):
                if job.state is JobState.HELD:
                    self._next[array].add(job)
                else:
                    self._out[array].add(job.id)
        for array in list(self._next):
            self._fill(array)
        for job in self._jobs.jobs.values():
            self.changed(job)
        for number in list(self._jobs.jobs):  # the version before may have held what this one does not
            self.review(number, at)
        self.limits_changed()

    def _follow(self, job: Job) -> None:
        for number, when in job.spec.waits_for:
            if number in self._jobs.jobs:
                ways = self._waiting[number].setdefault(job.id, [])
                self._left[job.id] += not ways
                ways.append(when)
                if when.startswith(_SOME_FAILS):
                    self._left_of[job.id, when] += 1

    def _fill(self, array: int) -> list[int]:
        """Those of an array that may be out now."""
        found = []
        line, out = self._next[array], self._out[array]
        while line and len(out) < self._jobs.jobs[first := line.first[1]].spec.array_most:
            line.discard(first)
            out.add(first)
            found.append(first)
        if not (out or line):
            del self._out[array], self._next[array]
        return found

    def array_limited(self, array: int, jobs: Sequence[Job], at: float) -> None:
        """Another number of an array may be out; ``jobs``: of it, that have not ended. O(them x log them)."""
        most = jobs[0].spec.array_most
        out, line = self._out[array], self._next[array]
        # without a limit nobody counts those that are out
        out |= {job.id for job in jobs if job.id not in line and not (job.state is JobState.HELD and job.held_by_hand)}
        back = [job for job in jobs if job.id in out and job.state in (JobState.QUEUED, JobState.HELD)]
        for job in sorted(back, key=lambda job: (job.priority, -job.id)):
            if most and len(out) > most and not job.entry.holds:
                out.discard(job.id)
                line.add(job)
        free = self._fill(array) if most else [number for _, number in line]
        if not most:
            del self._out[array], self._next[array]
        for job in back:
            if self._is_next(job) and job.state is JobState.QUEUED:
                self.hold(job, self.why(job), False, at)
        for number in [*free, *(number for _, number in self._next.get(array, ()))]:
            self.review(number, at)

    def forget(self, job: Job) -> None:
        """A job whose submission was not stored."""
        self._forget(job)
        for number, _ in job.spec.waits_for:
            if (others := self._waiting.get(number)) is not None:
                others.pop(job.id, None)
                if not others:
                    del self._waiting[number]
        self._leave(job)

    def _forget(self, job: Job) -> None:
        self._left.pop(job.id, None)
        for _, when in job.spec.waits_for:
            self._left_of.pop((job.id, when), None)

    def _leave(self, job: Job) -> None:
        """It is held by no limit, and out no more."""
        if (line := self._in_line.get(_whose(job))) is not None:
            line.discard(job.id)
        if array := job.spec.array_id:
            self._out[array].discard(job.id)
            self._next[array].discard(job.id)
            if not (self._out[array] or self._next[array]):
                del self._out[array], self._next[array]
        self._goes_on(job)

    def _goes_on(self, job: Job) -> None:
        """The limit of a member holds it no more."""
        sizes = self._over.get(_whose(job), {})
        if (jobs := sizes.get(job.gpus)) is not None and job.id in jobs:
            jobs.discard(job.id)
            if not jobs:
                del sizes[job.gpus]
            if not sizes:
                del self._over[_whose(job)]

    def why(self, job: Job) -> str:
        """What keeps a job out of line, as a sentence; "": nothing."""
        if self._left[job.id] > _NAMED:  # the same text until few are left: each end would be an event otherwise
            numbers, ways = [number for number, _ in job.spec.waits_for], {when for _, when in job.spec.waits_for}
            how = next(iter(ways)) if len(ways) == 1 else "any"
            said = _HOW_MANY.get(how, "have ended, and one has failed at least")
            return f"until {counted(len({*numbers}), 'job')} {said}, {min(numbers)} to {max(numbers)}"
        if pending := self._pending(job):
            names = [f"{self._jobs.jobs[number].name} {_HOW.get(when, 'has ended')}" for number, when in pending]
            some = any(when not in _HOW and int(when[len(_SOME_FAILS) :]) not in job.failed_of for _, when in pending)
            return f"until {', '.join(names)}" + (", and one of its array has failed at least" if some else "")
        if self._is_next(job):
            return f"{job.spec.array_most} of its array are out, and no more may be"
        if job.gpus <= self._room(job):
            return self._behind_urgent(job)
        # without what they have now, which would be another sentence whenever that changes
        return self._over_limit(job.vc, job.spec.user, job.gpus)

    def why_not_yet(self, vc: str, user: str, gpus: int, priority: int) -> str:
        """What would keep a member's guaranteed job out of line, were it submitted now; "": no limit of theirs."""
        room = self._most_in(vc) - self._jobs.usage.gpus_of[vc, user]
        if gpus > room and not self._step_back((vc, user), priority, gpus, room):
            return self._over_limit(vc, user, gpus)
        urgent = self._most_urgent((vc, user))
        return "" if urgent is None or urgent.priority <= priority else _behind(urgent)

    def _behind_urgent(self, job: Job) -> str:
        """A more urgent one of its member is held too, and goes first."""
        urgent = self._most_urgent(_whose(job)) if _is_limited(job) else None
        return "" if urgent is None or urgent.priority <= job.priority else _behind(urgent)

    def _most_urgent(self, whose: tuple[str, str]) -> Job | None:
        """Of those that the limit of a member holds, and that could go on under it at all."""
        if whose not in self._over:
            return None
        most = self._most_in(whose[0])
        firsts = [jobs.first for gpus, jobs in self._over[whose].items() if gpus <= most]
        return self._jobs.jobs[min(firsts)[1]] if firsts else None

    def _over_limit(self, vc: str, user: str, gpus: int) -> str:
        if gpus > self._most_in(vc):
            return f"maxGpus of a member of {vc} is {self._most_in(vc)} by now, and it needs {counted(gpus, 'GPU')}"
        return (
            f"maxGpus of a member of {vc} is {self._most_in(vc)}, and other jobs of {user} in line or at work leave no "
            f"room for {counted(gpus, 'GPU')}"
        )

    def _pending(self, job: Job) -> list[tuple[int, str]]:
        if not self._left[job.id]:
            return []
        return [(number, when) for number, when in job.spec.waits_for if number in self._jobs.jobs]

    def _is_next(self, job: Job) -> bool:
        return bool(job.spec.array_id) and job.id in self._next.get(job.spec.array_id, ())

    def _is_too_many(self, job: Job) -> bool:
        """Whether a job is out of whose array more are than may be: those had GPUs when that was changed."""
        out = self._out.get(job.spec.array_id, ())
        return 0 < job.spec.array_most < len(out) and job.id in out

    def _most(self, job: Job) -> float:
        """The GPUs of guaranteed jobs in line or at work that its member may have in its virtual cluster."""
        return self._most_in(job.vc) if _is_limited(job) else inf

    def _most_in(self, vc: str) -> float:
        spec = self._jobs.cluster.spec
        most = next((of.access.max_gpus for of in spec.virtual_clusters if of.name == vc and of.access), None)
        return inf if most is None else most

    def _room(self, job: Job) -> float:
        """The GPUs that its member may have for it."""
        own = 0 if job.state is JobState.HELD else job.gpus
        return self._most(job) - (self._jobs.usage.gpus_of[_whose(job)] - own)

    def changed(self, job: Job) -> None:
        """A job has changed: the limit of a member may hold it from now on, or it may have given up GPUs."""
        held, whose = job.state is JobState.HELD, _whose(job)
        if held and not job.held_by_hand and _is_limited(job) and not (self._pending(job) or self._is_next(job)):
            self._over.setdefault(whose, {}).setdefault(job.gpus, _ByPriority()).add(job)
        else:
            self._goes_on(job)
        if job.state is JobState.QUEUED:
            self._lines_up(job)
            if self._is_too_many(job):
                self._too_many.append(job)
        elif (line := self._in_line.get(whose)) is not None:
            line.discard(job.id)
            if not line:
                del self._in_line[whose]
        if held and job.held_by_hand and job.spec.array_most:
            self._stays_away(job)
        elif self._is_next(job):
            self._next[job.spec.array_id].add(job)  # perhaps with another priority
        if (held or job.state.ended or job.state is JobState.QUEUED) and whose in self._over:
            self._freed[whose] = None

    def _stays_away(self, job: Job) -> None:
        """Somebody holds one of an array, in whose place another one may be out."""
        array = job.spec.array_id
        self._out[array].discard(job.id)
        self._next[array].discard(job.id)
        self._to_fill[array] = None

    def resizes(self, job: Job) -> None:
        """A job is about to ask for another number of GPUs."""
        self._goes_on(job)

    def resized(self, job: Job, at: float) -> None:
        """And does: a limit may hold it now, or others no more."""
        if job.state is JobState.QUEUED and (why := self.why(job)):
            self.hold(job, why, False, at)
        self.review(job.id, at)
        if _whose(job) in self._over:
            self._freed[_whose(job)] = None

    def limits_changed(self) -> None:
        """Another spec is in force, perhaps with other limits."""
        self._other_limits = True

    def hold(self, job: Job, why: str, by_hand: bool, at: float, by: str = "") -> None:
        """Take a job that waits out of line; ``by``: who has told so, if somebody has."""
        self._jobs.becomes(job, JobEvent.HELD, None, at, {"why": why, "by_hand": by_hand, "by": by})

    def settle(self, at: float) -> None:
        """Act on the jobs that have ended, or given up GPUs: those that wait for them are in line, or cancelled."""
        for job in self._to_hold:
            if job.state is JobState.QUEUED:
                self.hold(job, job.reason or "by hand", True, at, job.held_by)
        self._to_hold.clear()
        for job in self._too_many:
            if job.state is JobState.QUEUED and self._is_too_many(job):
                self._out[job.spec.array_id].discard(job.id)
                self._next[job.spec.array_id].add(job)
                self.hold(job, self.why(job), False, at)
        self._too_many.clear()
        while self._ended:
            ended = self._ended.popleft()
            again = self._waiting.pop(ended.id, {})
            for number, ways in again.items():
                if number in self._left:
                    self._left[number] -= 1
                waiting = self._jobs.jobs.get(number)
                if waiting is None or not waiting.state.waits:
                    continue
                why = _in_vain(ways, ended)
                for when in ways:
                    if when.startswith(_SOME_FAILS):
                        why = self._of_array(waiting, when, ended, at) or why
                if why:
                    self._jobs.becomes(waiting, JobEvent.CANCELLED, None, at, {"why": why})
            self._let_go(at)  # those that have waited for room, before those that come to wait for it
            few = [number for number in again if self._left[number] <= _NAMED]
            for number in [*few, *(self._fill(ended.spec.array_id) if ended.spec.array_id else ())]:
                self.review(number, at)
        while self._to_fill:
            for number in self._fill(self._to_fill.popitem()[0]):
                self.review(number, at)
        if self._other_limits:
            self._other_limits = False
            every = (number for sizes in self._over.values() for jobs in sizes.values() for _, number in jobs)
            for number in sorted(every):
                self.review(number, at)
        self._let_go(at)

    def _of_array(self, waiting: Job, when: str, ended: Job, at: float) -> str:
        """Take in the end of one of an array of which one has to fail; why that was in vain for a job, "": it was not.

        That one has failed is an event of who waits for it, by which it is known after a restart.
        """
        self._left_of[waiting.id, when] -= 1
        array = int(when[len(_SOME_FAILS) :])
        if ended.state is not JobState.SUCCEEDED and array not in waiting.failed_of:
            data = {"why": waiting.reason, "by_hand": waiting.held_by_hand, "by": waiting.held_by, "failed_of": array}
            self._jobs.becomes(waiting, JobEvent.HELD, None, at, data)
        if self._left_of[waiting.id, when] or array in waiting.failed_of:
            return ""
        return f"it was to run once one of array {array} had failed, and all have succeeded"

    def _let_go(self, at: float) -> None:
        """Put into line what there is room for where members have given up GPUs: of those that fit the most urgent.

        By priority, and of one priority the oldest that fit. For a more urgent one, jobs of its member that are only in
        line step back, and less urgent ones do not pass it.
        """
        while self._freed:
            whose, _ = self._freed.popitem()
            while (urgent := self._most_urgent(whose)) is not None:
                room = self._room(urgent)
                back = self._step_back(whose, urgent.priority, urgent.gpus, room) if urgent.gpus > room else []
                for job in back:
                    self.hold(job, self._over_limit(job.vc, job.spec.user, job.gpus), False, at)
                if back:
                    continue
                firsts = sorted(jobs.first for jobs in self._over[whose].values())
                alike = [self._jobs.jobs[number] for key, number in firsts if -key == urgent.priority]
                fit = next((job for job in alike if job.gpus <= room), None)
                if fit is None:
                    break
                self.review(fit.id, at)
                if fit.state is JobState.HELD:  # for another reason: it is looked at again once that has changed
                    break

    def _step_back(self, whose: tuple[str, str], priority: int, gpus: int, room: float) -> list[Job]:
        """Less urgent jobs of a member in line, without which there is room for so many GPUs; [] where there is not."""
        found: list[Job] = []
        for _, number in reversed(self._in_line.get(whose, ())):
            job = self._jobs.jobs[number]
            if room >= gpus or job.priority >= priority:
                break
            found.append(job)
            room += job.gpus
        return found if room >= gpus else []

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
        self._leave(job)
        self._forget(job)
        if job.id in self._waiting or job.spec.array_id:
            self._ended.append(job)

    def requeued(self, job: Job) -> None:
        """A job is back in line that somebody wants held."""
        self._to_hold.append(job)


class _ByPriority:
    """Jobs, the most urgent first, and of those the oldest."""

    def __init__(self) -> None:
        self._order: list[tuple[int, int]] = []
        self._keys: dict[int, tuple[int, int]] = {}

    def add(self, job: Job) -> None:
        """Add a job, or move it to where its priority has it now. O(jobs) to move them, at most."""
        self.discard(job.id)
        key = self._keys[job.id] = (-job.priority, job.id)
        insort(self._order, key)

    def discard(self, number: int) -> None:
        """Remove a job, if it is there."""
        if (key := self._keys.pop(number, None)) is not None:
            del self._order[bisect_left(self._order, key)]

    @property
    def first(self) -> tuple[int, int]:
        """Its priority, negated, and its number."""
        return self._order[0]

    def __contains__(self, number: int) -> bool:
        return number in self._keys

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._order)

    def __reversed__(self) -> Iterator[tuple[int, int]]:
        return reversed(self._order)

    def __len__(self) -> int:
        return len(self._order)


def _is_limited(job: Job) -> bool:
    """Whether ``maxGpus`` of a member is for it: a loan takes nothing from anybody."""
    return job.spec.is_limited and job.priority >= 0


def _whose(job: Job) -> tuple[str, str]:
    """The virtual cluster and the user of a job."""
    return job.vc, job.entry.view.user


def _behind(urgent: Job) -> str:
    return f"{urgent.name} of the same member is more urgent, and is held by maxGpus"


def _in_vain(ways: Sequence[str], ended: Job) -> str:
    """Why a job can never run after one that has ended in none of the ways that it was to; "": it can."""
    good = ended.state is JobState.SUCCEEDED
    if ("fail" if good else "ok") not in ways:
        return ""
    ended_so = f"it {ended_text(ended.state)}" + (f": {ended.reason}" if ended.reason and not good else "")
    return f"it was to run once {ended.name} {_HOW['fail' if good else 'ok']}, and {ended_so}"
