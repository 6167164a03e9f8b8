"""Why somebody waits, and what would become of a request, as both engines say it: reasons as data, lines for people."""

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
from hived.words import counted

from .job import EngineJob

R = TypeVar("R")


def behind(position: int, ahead: Sequence[Entry]) -> list[Reason]:
    """The line as a reason: so many are ahead, these first."""
    return [BehindOthers(position, tuple(other.name for other in ahead))] if position else []


def why_it_waits(scheduler: Scheduler, job: EngineJob, core: Iterable[R]) -> list[R | Reason]:
    """Reasons of a job that waits, the decisive one first: what the core says, who is before it, who preempted it.

    What the core has in mind of who asked before is left out: the line says it better.
    """
    found: list[R | Reason] = [*but_the_line(core), *behind(*scheduler.ahead(job.entry, MAX_NAMED))]
    if job.displaced_by is not None:
        group, vc, priority = job.displaced_by
        # guaranteed jobs go for higher ones of their own VC alone: for anybody else it was one that ran on a loan
        own = job.priority if vc == job.vc and priority > job.priority else OPPORTUNISTIC
        found.append(PreemptedBy(group, vc, priority, own, True))
    return found


def but_the_line(reasons: Iterable[R]) -> list[R]:
    """Reasons without what the core has in mind of who asked before: an engine's own line says it better."""
    return [reason for reason in reasons if not isinstance(reason, BehindOthers)]


def early_text(scheduler: Scheduler, job: Entry) -> str:
    """What is to become of a job that runs on a loan before its turn, in words."""
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
    """What would become of a request now: in a word, as text, where it would start, and else why not.

    By the core's answer and whoever is in ``line`` before it; ``name``, ``pod``: what it and its pods are called.
    """
    if answer.outcome == "now" and not line[0] and not isinstance(answer.decision, Wait):
        decision = replace(answer.decision, group=name)
        return "now", in_lines(explained(decision, pod=pod)), decision, ()
    found = but_the_line(answer.reasons)
    if answer.outcome == "never":
        return "never", in_lines(["it can never start:", *in_words(found)]), None, found
    found += behind(*line)
    return "waits", in_lines(["it would wait:", *in_words(found)]), None, found
