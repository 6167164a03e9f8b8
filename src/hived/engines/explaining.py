"""Explain waiting jobs and dry runs of requests, for both engines: reasons as data, lines for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from hived.cluster.decisions import Bind, Preempt, Wait
from hived.cluster.explain.queries import PlanAnswer
from hived.cluster.explain.sentences import MAX_NAMED, explained, in_lines
from hived.cluster.reasons import BehindOthers, PreemptedBy, Reason
from hived.cluster.requests import OPPORTUNISTIC
from hived.scheduling import Entry, Scheduler
from hived.scheduling.exact import ExactScheduler
from hived.words import counted

from .job import EngineJob

R = TypeVar("R")


def behind(position: int, ahead: Sequence[Entry]) -> list[Reason]:
    """The backlog as a reason: how many jobs are ahead in line, and the first of them."""
    return [BehindOthers(position, tuple(other.name for other in ahead))] if position else []


def why_it_waits(scheduler: ExactScheduler, job: EngineJob, core: Iterable[R]) -> list[R | Reason]:
    """Reasons of a waiting job, the decisive one first: the core's reasons, the jobs ahead in line, its preemptor."""
    found = scheduler.with_ended(job.entry, but_the_line(core), MAX_NAMED)
    found += behind(*scheduler.ahead(job.entry, MAX_NAMED))
    if job.displaced_by is not None:
        group, vc, priority = job.displaced_by
        # a guaranteed job yields only to a higher priority of its own VC: to any other preemptor it was on a loan
        own = job.priority if vc == job.vc and priority > job.priority else OPPORTUNISTIC
        found.append(PreemptedBy(group, vc, priority, own, True))
    return found


def but_the_line(reasons: Iterable[R]) -> list[R]:
    """Reasons without the core's own :class:`BehindOthers`: the scheduler's line is more exact."""
    return [reason for reason in reasons if not isinstance(reason, BehindOthers)]


def early_text(scheduler: Scheduler, job: Entry) -> str:
    """The prospects of a job that runs on a loan before its turn, as a sentence."""
    if job.line is None:
        return f"it runs on a loan; {job.vc} is too small for it, so its turn never comes"
    position, _ = scheduler.ahead(job, 0)
    before = f"{counted(position, 'job')} of {job.vc} before it in line" if position else "it is next in line"
    return f"it runs on a loan, before its turn in {job.vc}; {before}"


def planned(
    answer: PlanAnswer,
    line: tuple[int, Sequence[Entry]],
    name: str,
    in_words: Callable[[Sequence[Reason]], list[str]],
    pod: Callable[[int], str] = "pod {}: ".format,
) -> tuple[Literal["now", "waits", "never"], str, Bind | Preempt | None, Sequence[Reason]]:
    """The outcome of a dry run: in a word, as text, the placement if it would start now, and else the reasons.

    Combines the core's answer with the jobs ahead in ``line``. ``name``, ``pod``: names of the request and its pods.
    """
    if answer.outcome == "now" and not line[0] and not isinstance(answer.decision, Wait):
        decision = replace(answer.decision, group=name)
        return "now", in_lines(explained(decision, pod=pod)), decision, ()
    found = but_the_line(answer.reasons)
    if answer.outcome == "never":
        return "never", in_lines(["it can never start:", *in_words(found)]), None, found
    found += behind(*line)
    return "waits", in_lines(["it would wait:", *in_words(found)]), None, found
