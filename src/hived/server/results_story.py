"""The life of a job in one scheme and policy of a finished simulation: its history as an engine would record it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hived.engine.job import Event
from hived.engine.sentences import AS_GOOD_AS_ALONE, sharing_text
from hived.engine.states import PACE, SUBMITTED, JobEvent
from hived.words import counted

from .histories import moments, stays
from .pictures import Places, Story, Stretch
from .results_files import NEVER, Fates, Jobs, Runs, Tenant, pods_of

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
Kind = Literal["guaranteed", "opportunistic", "guest"]
KINDS: tuple[Kind, ...] = ("guaranteed", "opportunistic", "guest")  #: by their numbers


def length(ms: int) -> str:
    """A length of time, its two largest units: ``2 d 4 h``, ``40 min``, ``0.5 s``.

    >>> length(187_200_000), length(2_400_000), length(500), length(0)
    ('2 d 4 h', '40 min', '0.5 s', '0 s')
    """
    for place, (name, size) in enumerate(_UNITS[:-1]):
        if ms >= size:
            small, of = _UNITS[place + 1]
            rest = ms % size // of
            return f"{ms // size} {name}" + (f" {rest} {small}" if rest else "")
    return f"{ms / 1000:g} s"


class Span(NamedTuple):
    """An interval of one job: a run, or several of one time where it took turns on several sets of GPUs."""

    start: int
    end: int
    kind: Kind
    parts: tuple[Stretch, ...]  #: all GPUs that it had
    places: tuple[str, ...]  #: as in the file; several where it took turns
    gpus: int  #: at a time
    share: float = 1.0
    rate: float = 1.0

    @property
    def pace(self) -> float:
        """The lower of share and rate; 1 of a job that has its GPUs for itself."""
        return 1.0 if min(self.share, self.rate) >= AS_GOOD_AS_ALONE else min(self.share, self.rate)

    @property
    def levels(self) -> list[int]:
        """Not empty: it is guaranteed. The files do not have the levels."""
        return [1] if self.kind == "guaranteed" else []


def joined(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """The stretches without what is in several of them.

    >>> joined([(0, 1, 2, 2), (0, 1, 0, 1), (0, 1, 3, 4), (0, 2, 0, 1)])
    ((0, 1, 0, 1), (0, 1, 2, 5), (0, 2, 0, 1))
    """
    found: list[Stretch] = []
    for chain, node, first, number in sorted(stretches):
        if found and found[-1][:2] == (chain, node) and first <= found[-1][2] + found[-1][3]:
            begun = found[-1][2]
            found[-1] = chain, node, begun, max(begun + found[-1][3], first + number) - begun
        else:
            found.append((chain, node, first, number))
    return tuple(found)


class Life(NamedTuple):
    """A job in one scheme and policy. Times in milliseconds."""

    submit: int
    finish: int  #: :data:`~.results_files.NEVER`: it did not
    end: int  #: of the simulation
    state: Literal["finished", "running", "queued", "not submitted"]  #: where it had come to at the end
    spans: Sequence[Span]


def history(life: Life, job: Mapping[str, Any]) -> list[Event]:
    """A job's events, as an engine would have recorded them: with its runs of one time as one. ``job``: its header.

    A walk of :data:`hived.engine.states.JOB_TABLE`, but for a job without work, which is done at its turn. O(its runs).
    """
    found: list[Event] = []

    def note(at: int, kind: str, **data: object) -> None:
        found.append(Event(len(found) + 1, at / 1000, kind, job["id"], data))

    if life.state == "not submitted":
        return []
    note(life.submit, SUBMITTED, vc=job["vc"], gpus=job["gpus"])
    before: Span | None = None
    starts = 0
    for span in life.spans:
        placement, *turns = ({"pods": pods_of(place), "levels": span.levels} for place in span.places)
        where = {"placement": placement, "turns": turns, "share": span.share, "rate": span.rate}
        goes_on = before is not None and before.end == span.start
        if before is not None and goes_on and before.kind == span.kind and min(before.pace, span.pace) < 1:
            if before.parts == span.parts:
                note(span.start, PACE, share=span.share, rate=span.rate)
            else:
                note(span.start, JobEvent.RESHAPED, **where)
        elif before is not None and goes_on and before.parts == span.parts and span.kind == "guaranteed":
            note(span.start, JobEvent.PROMOTED, why=f"its turn in {job['vc']} has come", guest=False, **where)
        else:
            if before is not None:
                turn = goes_on and span.kind == "guaranteed" and before.kind != "guaranteed"
                why = f"its turn in {job['vc']} has come, on other GPUs" if turn else _lost(before)
                note(before.end, JobEvent.REQUEUED, why=why)
            starts += 1
            note(span.start, JobEvent.STARTED, attempt=starts, guest=span.kind == "guest", **where)
        before = span
    if life.state == "finished":
        note(life.finish, JobEvent.SUCCEEDED)
    elif life.state == "queued" and before is not None:
        note(before.end, JobEvent.REQUEUED, why=_lost(before))
    return found


def _lost(span: Span) -> str:
    return "preempted" if span.kind == "opportunistic" else "it lost its GPUs"


class Stories:
    """What the tables of one scheme and policy say of each job."""

    def __init__(
        self, tenants: Sequence[Tenant], jobs: Jobs, fates: Fates, places: Places, runs: Runs,
        outsized: NDArray[np.bool_], end: int,
    ) -> None:  # fmt: skip
        """``outsized``: which jobs are too large for their VC (jobs,); ``end``: of the simulation, in milliseconds."""
        self.jobs, self.fates, self.places, self.runs, self.end = jobs, fates, places, runs, end
        self._tenants, self._outsized = tenants, outsized

    def of(self, job: int) -> dict[str, Any]:
        """The fields of :class:`~.schema.JobHeader`."""
        jobs = self.jobs
        vc, gpus = self._tenants[jobs.tenant[job]].name, int(jobs.gpus[job])
        return {"id": jobs.ids[job], "name": jobs.ids[job], "vc": vc, "gpus": gpus, "priority": 0}

    def waited(self, job: int) -> str:
        """How long a job waited in all, in words."""
        waited = int(self.fates.finish[job] - self.jobs.submit[job] - self.jobs.alone[job])
        return length(waited) if self.fates.finish[job] < NEVER else "not finished"

    def history(self, job: int) -> list[Event]:
        """A job's events, as an engine would have recorded them. O(its runs)."""
        return history(self._life(job), self.of(job))

    def story(self, job: int, elsewhere: Sequence[str]) -> Story:
        """A job's history; ``elsewhere``: how long it waited in the other views, in words. O(its runs)."""
        jobs = self.jobs
        life, asked, work = self._life(job), int(jobs.gpus[job]), int(jobs.alone[job])
        of = self.of(job)
        lines = [f"Asks for {counted(asked, 'GPU')} of {of['vc']}, for {length(work)}."]
        held = max((span.gpus for span in life.spans), default=asked)
        if held > asked:
            lines.append(f"Holds {held:,}: a job larger than a node takes whole nodes.")
        lines.append(self._course(job, life, work))
        length_of_all = sum(span.end - span.start for span in life.spans)
        if length_of_all and (words := sharing_text(*_means(life.spans, length_of_all))):
            lines.append(f"While it ran it {'had its GPUs' if words[0].isdigit() else 'worked'} {words}.")
        if elsewhere:
            lines.append(f"Waiting elsewhere: {'; '.join(elsewhere)}.")
        events, until = self.history(job), life.end / 1000 if life.state == "running" else None
        return Story(
            **of,
            state=life.state,
            command="",
            explanation="\n".join(lines),
            stays=[stay for stay in stays(events, until) if stay.end != stay.start],
            moments=moments(events, jobs.ids[job]),
        )

    def _course(self, job: int, life: Life, work: int) -> str:
        """The outcome of a job, as a sentence."""
        times = int(self.fates.preemptions[job])
        preempted = f", and was preempted {counted(times, 'time')}" if times else ""
        if life.state == "finished":
            if self.jobs.modelled:  # ends are rounded up to milliseconds, at every change
                done = sum((span.end - span.start) * (span.rate or span.share) for span in life.spans)
                again = max(0, round((done - work) / 1000)) * 1000
            else:
                again = sum(span.end - span.start for span in life.spans) - work
            lost = f", {length(again)} of it for work that it had to do again" if again else ""
            none = "" if life.spans else ", and had no work to do at its turn"
            return f"Waited {self.waited(job)} in all{lost}{preempted}{none}."
        if life.state == "not submitted":
            return "The simulation stopped before it was submitted."
        if life.state == "running":
            return f"Still ran when the simulation stopped{preempted}."
        if self._outsized[job]:
            return f"Is too large for its virtual cluster, and never finished{preempted}."
        return f"Still waited when the simulation stopped{preempted}."

    def _life(self, job: int) -> Life:
        runs = self.runs
        spans = [
            Span(
                int(runs.start[run]),
                int(runs.end[run]),
                KINDS[runs.kind[run]],
                runs.parts[run],
                (runs.place[run],),
                int(runs.held[run]),
                float(runs.share[run]),
                float(runs.rate[run]),
            )
            for run in range(runs.of_job[job], runs.of_job[job + 1])
        ]
        if self.jobs.modelled:
            spans = _of_one_time(spans)
        submit, finish = int(self.jobs.submit[job]), int(self.fates.finish[job])
        if finish < NEVER:
            return Life(submit, finish, self.end, "finished", spans)
        if spans and spans[-1].end == self.end:
            return Life(submit, finish, self.end, "running", spans)
        return Life(submit, finish, self.end, "queued" if submit <= self.end else "not submitted", spans)


def _of_one_time(spans: Sequence[Span]) -> list[Span]:
    """Turns of one time as one span."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].start == span.start:
            one = found[-1]
            found[-1] = one._replace(
                parts=joined([*one.parts, *span.parts]),
                places=one.places + span.places,
                share=one.share + span.share,
                rate=one.rate + span.rate,
            )
        else:
            found.append(span)
    return found


def _means(spans: Sequence[Span], of: int) -> tuple[float, float]:
    """Mean share and rate over the time ``of`` all spans."""
    share = sum((span.end - span.start) * span.share for span in spans)
    return share / of, sum((span.end - span.start) * span.rate for span in spans) / of
