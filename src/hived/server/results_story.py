"""The life of a job in one scheme and policy of a finished simulation, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hived.words import counted

from .pictures import Chain, Moment, Places, Stay, Story, Stretch, named
from .results_files import NEVER, Fates, Jobs, Runs, Tenant

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_NODES_NAMED = 3
#: shares and rates that say nothing
_AS_GOOD_AS_ALONE = 0.9995
Kind = Literal["guaranteed", "opportunistic", "guest"]
KINDS: tuple[Kind, ...] = ("guaranteed", "opportunistic", "guest")  #: by their numbers
_HOW = {"guaranteed": "guaranteed", "opportunistic": "lent", "guest": "a guest"}


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


def place_words(parts: Sequence[Stretch], chains: Sequence[Chain]) -> str:
    """``node-3:0-3``, with the device indices; of many nodes the first few."""
    words, more = named(parts, chains, _NODES_NAMED)
    return ", ".join(words) + (f" and {counted(more, 'more node')}" if more else "")


class Span(NamedTuple):
    """An interval of one job: a run, or several of one time where it took turns on several sets of GPUs."""

    start: int
    end: int
    kind: Kind
    parts: tuple[Stretch, ...]  #: all GPUs that it had
    place: str  #: as in the file
    gpus: int  #: at a time
    share: float = 1.0
    rate: float = 1.0

    @property
    def words(self) -> str:
        """``60% of the time, at 0.58 of its speed alone``; "" for a job that has its GPUs for itself."""
        return sharing_words(self.share, self.rate)


def sharing_words(share: float, rate: float) -> str:
    """``60% of the time, at 0.58 of its speed alone``; "" where both are 1.

    >>> sharing_words(0.6, 0.58), sharing_words(1.0, 0.75), sharing_words(1.0, 1.0)
    ('60% of the time, at 0.58 of its speed alone', 'at 0.75 of its speed alone', '')
    """
    if min(share, rate) >= _AS_GOOD_AS_ALONE:
        return ""
    turns = "" if share >= _AS_GOOD_AS_ALONE else f"{100 * share:.3g}% of the time, "
    return f"{turns}at {rate:.3g} of its speed alone"


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


def stays(life: Life) -> list[Stay]:
    """Its runs, and the waiting between them."""
    found = [_stay(span.start, span.end, span.kind, span.place, span.share, span.rate) for span in life.spans]
    waited_from = [life.submit, *(span.end for span in life.spans)]
    until = [span.start for span in life.spans]
    if life.state in ("finished", "queued"):
        until.append(life.finish)
    found += [_stay(start, end, "waiting") for start, end in zip(waited_from, until, strict=False) if end > start]
    return sorted(found, key=lambda stay: stay.start)


def _stay(
    start: int, end: int, kind: Kind | Literal["waiting"], where: str = "", share: float = 1.0, rate: float = 1.0
) -> Stay:
    until = None if end == NEVER else end / 1000
    return Stay(start=start / 1000, end=until, kind=kind, where=where, share=share, rate=rate)


def moments(life: Life, chains: Sequence[Chain]) -> list[Moment]:
    """The moments of a job's life, in order."""
    if life.state == "not submitted":
        return []
    found = [Moment(at=life.submit / 1000, text="submitted")]

    def say(at: int, text: str) -> None:
        found.append(Moment(at=at / 1000, text=text))

    before: Span | None = None
    for span in life.spans:
        kind = _HOW[span.kind]
        where = f"on {place_words(span.parts, chains)}"
        if span.words:
            where += f", {span.words}"
        if before is None:
            say(span.start, f"started, {kind}, {where}")
        elif before.end == span.start and before.kind == span.kind and (before.words or span.words):
            stays_there = before.parts == span.parts
            say(span.start, (span.words or "at full speed") + " from now on" if stays_there else f"goes on, {where}")
        elif before.end == span.start and before.kind != "guaranteed" and span.kind == "guaranteed":
            stays_there = before.parts == span.parts
            say(span.start, "its turn came: guaranteed from now on" + ("" if stays_there else f", {where}"))
        else:
            say(before.end, _lost(before))
            say(span.start, f"started again, {kind}, {where}")
        before = span
    if life.state == "finished":
        if before is None:
            say(life.finish, "its turn came, and with no work to do it was finished")
        else:
            say(life.finish, "finished")
    elif life.state == "running":
        say(life.end, "was running when the simulation stopped")
    elif before is not None:
        say(before.end, _lost(before))
    return found


def _lost(span: Span) -> str:
    return "preempted" if span.kind == "opportunistic" else "lost its GPUs"


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

    def story(self, job: int, elsewhere: Sequence[str]) -> Story:
        """A job's history; ``elsewhere``: how long it waited in the other views, in words. O(its runs)."""
        life, asked, work = self._life(job), int(self.jobs.gpus[job]), int(self.jobs.alone[job])
        of = self.of(job)
        lines = [f"Asks for {counted(asked, 'GPU')} of {of['vc']}, for {length(work)}."]
        held = max((span.gpus for span in life.spans), default=asked)
        if held > asked:
            lines.append(f"Holds {held:,}: a job larger than a node takes whole nodes.")
        lines.append(self._course(job, life, work))
        length_of_all = sum(span.end - span.start for span in life.spans)
        if length_of_all and (words := sharing_words(*_means(life.spans, length_of_all))):
            lines.append(f"While it ran it {'had its GPUs' if words[0].isdigit() else 'worked'} {words}.")
        if elsewhere:
            lines.append(f"Waiting elsewhere: {'; '.join(elsewhere)}.")
        return Story(
            **of,
            state=life.state,
            command="",
            explanation="\n".join(lines),
            stays=stays(life),
            moments=moments(life, self.places.chains),
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
            return f"Waited {self.waited(job)} in all{lost}{preempted}."
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
                runs.place[run],
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
                place=f"{one.place} or {span.place}",
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
