"""Explain waiting jobs and dry runs of requests, for both engines: reasons as data, lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from hived.cluster.decisions import Bind, Preempt, Wait
from hived.cluster.explain.queries import PlanAnswer
from hived.cluster.explain.reasons import (
    BehindOthers,
    Fragmented,
    NeverFits,
    NothingIdle,
    PreemptedBy,
    Reason,
    ShareUsedUp,
    VcExhausted,
)
from hived.cluster.explain.sentences import MAX_NAMED, explained, in_lines, say
from hived.cluster.requests import OPPORTUNISTIC
from hived.scheduling import Entry, Scheduler
from hived.scheduling.exact import ExactScheduler
from hived.words import counted

from .job import EngineJob
from .trading import LiveTrading

R = TypeVar("R")


def behind(position: int, ahead: Sequence[Entry]) -> list[Reason]:
    """The backlog as a reason: how many jobs are ahead in line, and the first of them."""
    return [BehindOthers(position, tuple(other.name for other in ahead))] if position else []


def why_it_waits(
    scheduler: ExactScheduler, trading: LiveTrading, job: EngineJob, core: Iterable[R], lent: Counter[str]
) -> list[R | Reason]:
    """Reasons of a waiting job, the decisive one first: the core's, the cells given away, the line, its preemptor."""
    of_core = but_the_line(core, lent)
    found = scheduler.with_ended(job.entry, of_core, MAX_NAMED)
    given = sum(gpus for (giver, _), gpus in trading.gpus_given().items() if giver == job.vc)
    if given and any(_short(reason, given) for reason in of_core):
        found += [given for given in trading.given() if given.vc == job.vc][:MAX_NAMED]
    found += behind(*scheduler.ahead(job.entry, MAX_NAMED))
    if job.displaced_by is not None:
        group, vc, priority = job.displaced_by
        # a guaranteed job yields only to a higher priority of its own VC: to any other preemptor it was on a loan
        own = job.priority if vc == job.vc and priority > job.priority else OPPORTUNISTIC
        found.append(PreemptedBy(group, vc, priority, own, True))
    return found


def _short(reason: object, given: int) -> bool:
    """Whether a VC could have room for a job with the GPUs that it has given away."""
    if isinstance(reason, NeverFits) and not reason.vc:
        return False  # the whole cluster is too small
    return isinstance(reason, VcExhausted | Fragmented | NeverFits) and reason.have + given >= reason.need


def but_the_line(reasons: Iterable[R], lent: Counter[str]) -> list[R]:
    """The core's reasons without its :class:`BehindOthers`, since the scheduler's line is more exact.

    And without a fair share where a larger one would change nothing. ``lent``: GPUs on loan to each VC.
    """
    found = list(reasons)
    idle = next((reason.idle for reason in found if isinstance(reason, NothingIdle)), 0)

    def counts(reason: R) -> bool:
        if isinstance(reason, ShareUsedUp):
            return lent.total() - lent[reason.vc] + idle >= reason.need  # there are loans of others to take
        return not isinstance(reason, BehindOthers)

    return [reason for reason in found if counts(reason)]


def cells_taken(trading: LiveTrading, vc: str) -> list[str]:
    """The cells of others that a VC has for a while, as sentences for its guaranteed jobs."""
    taken = [given for given in trading.given() if given.to == vc]
    return [f"{say(given)}; what runs on them then, and has no room in its VC, runs on as opportunistic"
            for given in taken[:MAX_NAMED]]  # fmt: skip


def early_text(scheduler: Scheduler, job: Entry) -> str:
    """The prospects of a job that runs on a loan and not at its own wish, or before its turn, as a sentence."""
    if job.line is None:
        return f"it runs on a loan; {job.vc} is too small for it, so its turn never comes"
    position, _ = scheduler.ahead(job, 0)
    before = f"{counted(position, 'job')} of {job.vc} before it in line" if position else "it is next in line"
    return f"it runs on a loan{', before' if job.early else ' until'} its turn in {job.vc}; {before}"


def planned(
    answer: PlanAnswer,
    line: tuple[int, Sequence[Entry]],
    name: str,
    in_words: Callable[[Sequence[Reason]], list[str]],
    lent: Counter[str],
    pod: Callable[[int], str] = "pod {}: ".format,
) -> tuple[Literal["now", "waits", "never"], str, Bind | Preempt | None, Sequence[Reason]]:
    """The outcome of a dry run: in a word, as text, the placement if it would start now, and else the reasons.

    Combines the core's answer with the jobs ahead in ``line``. ``name``, ``pod``: names of the request and its pods.
    """
    if answer.outcome == "now" and not line[0] and not isinstance(answer.decision, Wait):
        decision = replace(answer.decision, group=name)
        return "now", in_lines(explained(decision, pod=pod)), decision, ()
    found = but_the_line(answer.reasons, lent)
    if answer.outcome == "never":
        return "never", in_lines(["it can never start:", *in_words(found)]), None, found
    found += behind(*line)
    return "waits", in_lines(["it would wait:", *in_words(found)]), None, found
