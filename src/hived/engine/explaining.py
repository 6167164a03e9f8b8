"""Explain jobs and dry runs of requests, for both engines: reasons as data, lines for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

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
    WaitingForPreemption,
)
from hived.cluster.explain.sentences import MAX_NAMED, explained, in_lines, say
from hived.cluster.requests import OPPORTUNISTIC, Request
from hived.scheduling import Entry, Scheduler, Status, loan_of
from hived.scheduling.extension import TakingTurns
from hived.words import counted, duration, limits_text

from .dispatcher import Dispatcher
from .job import EngineJob
from .sentences import beside_text
from .states import JobState
from .trading import LiveTrading

J = TypeVar("J", bound=EngineJob)

#: of a job that has no reason left to wait
_ABOUT = "its turn is about to come"


class Planned(NamedTuple):
    """What would become of a request now."""

    outcome: Literal["now", "waits", "never"]
    text: str  #: lines
    decision: Bind | Preempt | None  #: its placement, if it would start now
    reasons: Sequence[Reason]  #: why not, else


class Explainer(Generic[J]):
    """Why the jobs of an engine wait, where they are, how they ended: reasons as data, and lines for people.

    An engine adds what only its world can do to a job.
    """

    #: the prefix of a line about a pod of a request, by its number from 1
    pod: Callable[[int], str] = staticmethod("pod {}: ".format)

    def __init__(self, jobs: Dispatcher[J, Any]) -> None:
        self._jobs = jobs

    # -- what an engine adds ------------------------------------------------------------------------------------------

    def say(self, reason: Reason) -> str:
        """A reason as a sentence."""
        return say(reason)

    def _of_core(self, job: J) -> Iterable[Reason]:
        """Why the core does not place a job: its last answer."""
        return job.reasons

    def _before_line(self, job: J) -> Iterable[Reason]:
        """Why a queued job is not in line yet."""
        return ()

    def _briefly(self, job: J) -> Sequence[Reason]:
        """The reasons of a waiting job that lists show."""
        return self.reasons(job)

    def _aside(self, job: J, at: float | None) -> list[str]:
        """Why a job waits that is not in line."""
        return [job.reason or f"it is {job.state.value}"]

    def _about(self, job: J) -> str:
        """What is said of a job that has no reason left to wait."""
        return _ABOUT

    def _waits_on(self, job: J, at: float | None) -> list[str]:
        """What is said of a waiting job beside its reasons."""
        return []

    def _placed(self, job: J) -> list[str]:
        """Where a job runs: a headline, and a line per pod."""
        return self._jobs.cluster.explained(job.name)

    def held_up(self, job: J) -> list[str]:
        """Why a job that has its GPUs does not run yet, or not all of it."""
        return []

    def _keeps(self, victim: J, vc: str) -> str:
        """How a job keeps its work when its GPUs go to a job of this VC; "": as far as is known, it does not."""
        return ""

    def _takes(self, victim: J) -> list[str]:
        """What is said of a job that may take long to give up its GPUs."""
        return []

    def _beside(self, job: J) -> list[str]:
        """What is said of a job that has its GPUs, beside why it has them."""
        return []

    def _stops(self, job: J, at: float | None) -> list[str]:
        """How far the end of a job is that is being stopped."""
        return []

    def _ended(self, job: J) -> list[str]:
        """What is said of a job that has ended, beside how."""
        return []

    # -- what both share ----------------------------------------------------------------------------------------------

    def in_words(self, reasons: Iterable[Reason]) -> list[str]:
        """Reasons as sentences."""
        return [self.say(reason) for reason in reasons]

    def reasons(self, job: J) -> list[Reason]:
        """Why a job waits, the decisive reason first; [] for one that does not.

        The core's reasons, the cells given away, the line, its preemptor. O(log jobs) beside the core's.
        """
        if job.state is JobState.RESERVED:
            return [WaitingForPreemption(self._jobs.cluster.group(job.name).victims)]
        if job.state.aside or not job.state.waits or self._has_turns(job):
            return []
        scheduler, trading = self._jobs.scheduler, self._jobs.trading
        of_core = self.but_the_line(self._of_core(job))
        found = [*self._before_line(job), *scheduler.with_ended(job.entry, of_core, MAX_NAMED)]
        found += given_away(trading, job.vc, of_core)
        found += behind(*scheduler.ahead(job.entry, MAX_NAMED))
        if job.displaced_by is not None:
            group, vc, priority = job.displaced_by
            # a guaranteed job yields only to a higher priority of its own VC: to any other it was on a loan
            own = job.priority if vc == job.vc and priority > job.priority else OPPORTUNISTIC
            found.append(PreemptedBy(group, vc, priority, own, True))
        return found

    def shortly(self, job: J) -> list[str]:
        """Why a job is where it is, as sentences for lists; [] where its state says all."""
        if job.state.aside or not job.state.waits:
            said = [*self.obeying(job), *self.held_up(job)] if job.state.stays else []
            return said or ([job.reason] if job.reason else [])
        lines = self.turns(job) if self._has_turns(job) else self.in_words(self._briefly(job))
        return (lines or [self._about(job)]) + self._waits_on(job, None)

    def explain(self, job: J, at: float | None) -> list[str]:
        """A headline and lines about a job; ``at``: now (None: without the time that it waits)."""
        if job.state.ended:
            return [_ended_text(job), *self._ended(job), *self._by(job)]
        if job.holds:
            return [*self._running(job, at), *self._by(job)]
        since = "" if at is None else f", for {duration(at - job.since)} now"
        if job.state.aside:
            what = "is held" if job.state is JobState.HELD else "waits"
            return [f"{job.name} of {job.vc} {what}{since}:", *self._aside(job, at), *self._by(job)]
        head = f"{job.name} of {job.vc} waits for {counted(job.gpus, 'GPU')}{since}:"
        lines = self.turns(job) if self._has_turns(job) else self.in_words(self.reasons(job))
        lines = lines or [self._about(job)]
        if job.state is JobState.RESERVED:
            lines += self.costs(self._jobs.cluster.group(job.name).victims, job.vc, at)
        if job.reason and not job.reserved and job.displaced_by is None:
            lines.append(job.reason)
        lines += self._of_the_first(job)
        return [head, *lines, *self._waits_on(job, at), *self._use_of(job, at), *self._by(job)]

    def _of_the_first(self, job: J) -> list[str]:
        """What keeps the first of those in line whom a job does not pass."""
        _, ahead = self._jobs.scheduler.blocking(job.entry, 1)
        if not ahead:
            return []
        first = self._jobs.job(ahead[0].number)
        said = ["it runs on a loan, and is in line for GPUs of its VC"] if first.holds else self._briefly(first)[:1]
        why = [one if isinstance(one, str) else self.say(one) for one in said]
        policy = self._jobs.policies[job.vc].name
        return [
            f"by policy {policy} of {job.vc} it does not pass the first of them, {first.name}: {one}" for one in why
        ]

    def _by(self, job: J) -> list[str]:
        """Who has submitted it."""
        user = job.entry.view.user
        return [f"submitted by {user}"] if user else []

    def _use_of(self, job: J, at: float | None) -> list[str]:
        """What its user has had, where the policy of its VC goes by that."""
        used = None if at is None else self._jobs.scheduler.used(job.entry, at)
        if used is None:
            return []
        policy, user = self._jobs.policies[job.vc], job.entry.view.user or "its user"
        had = f"{used / 3600:.1f} GPU hours of late, of which half count after {duration(policy.half_life_s)}"
        return [f"users of {job.vc} with less come first: {user} has had {had}"]

    def _running(self, job: J, at: float | None) -> list[str]:
        lines = [*self._placed(job), *self.obeying(job), *self.held_up(job)]
        if job.state.stays and not job.guaranteed and job.priority >= 0:
            if job.reason:
                lines.append(f"why: {job.reason}")
            if job.entry.early or job.entry.place_in is not None:
                lines.append(early_text(self._jobs.scheduler, job.entry))
        if job.guaranteed:
            lines += cells_taken(self._jobs.trading, job.vc)
        lines += self._beside(job)
        return lines + (self._stops(job, at) if job.state is JobState.STOPPING else [])

    def _has_turns(self, job: J) -> bool:
        """Whether a job has got turns on the GPUs of its VC, and waits at most for the first of them."""
        return job.entry.status in (Status.SHARING, Status.GUARANTEED)

    def turns_of(self, job: J) -> TakingTurns | None:
        """How a job takes turns with others of its VC; None: it does not. O(jobs of its server)."""
        extension = self._jobs.scheduler.extension
        return None if extension is None else extension.describe(job.entry)

    def turns(self, job: J) -> list[str]:
        """The same as a sentence; [] where it does not."""
        found = self.turns_of(job)
        if found is None:
            return []
        others = f"{counted(found.jobs, 'job')} {'shares' if found.jobs == 1 else 'share'} {counted(found.gpus, 'GPU')}"
        beside = f", beside {', '.join(found.packed_with[:MAX_NAMED])}" if found.packed_with else ""
        return [f"it has its turn {found.share:.0%} of the time{beside}: {others}, in slices of {found.slice_s:g} s"]

    def obeying(self, job: J) -> list[str]:
        """How a job under the runtime shares GPUs, and what it was told: that it is suspended, and its limits."""
        lines = self.turns(job) + ([f"it {beside_text(job.guest, job.beside)}"] if job.beside else [])
        lines += [f"it is suspended: {job.suspended_for}"] if job.state is JobState.SUSPENDED else []
        if (limits := job.limits) is not None:
            lines.append(f"it {limits_text(limits.memory, limits.share)}: {limits.why}")
        return lines

    def costs(self, victims: Sequence[str], vc: str, at: float | None) -> list[str]:
        """The work that jobs lose when a job of a VC gets their GPUs ``at`` this time, as sentences. O(victims)."""
        lines: list[str] = []
        if at is None:
            return lines
        for name in victims[:MAX_NAMED]:
            entry = self._jobs.scheduler.by_name.get(name)
            if entry is None:  # it has ended
                continue
            job = self._jobs.job(entry.number)
            keeps = self._keeps(job, vc)
            if keeps:
                lines.append(f"{name} loses nothing: {keeps}")
            elif job.started_at is not None and job.holds:
                work = duration(max(0.0, at - job.started_at))
                gpus = counted(len(list(job.devices())), "GPU")
                lines.append(f"{name} loses {work} of work on {gpus}, but for what it has saved itself")
            lines += self._takes(job)
        return lines

    def but_the_line(self, reasons: Iterable[Reason]) -> list[Reason]:
        """The core's reasons without its :class:`BehindOthers`, since the scheduler's line is more exact.

        And without a fair share where a larger one would change nothing.
        """
        found, lent = list(reasons), self._jobs.usage.lent
        idle = next((reason.idle for reason in found if isinstance(reason, NothingIdle)), 0)

        def counts(reason: Reason) -> bool:
            if isinstance(reason, ShareUsedUp):
                return lent.total() - lent[reason.vc] + idle >= reason.need  # there are loans of others to take
            return not isinstance(reason, BehindOthers)

        return [reason for reason in found if counts(reason)]

    def planned(self, request: Request, answer: PlanAnswer, plan: Callable[[Request], PlanAnswer], name: str,
                early: bool = False, at: float | None = None) -> Planned:  # fmt: skip
        """What would become of a request, behind the jobs of its VC that come first, by the core's ``answer``.

        ``plan``: asks the core, here about a loan if it may start ``early``; ``name``: of the request in the text;
        ``at``: now.
        """
        fits = answer.outcome == "now"
        line = self._jobs.scheduler.before(request.vc, request.priority, MAX_NAMED, fits)
        found = self._planned(answer, line, name, request.vc)
        if isinstance(found.decision, Preempt):
            costs = self.costs(found.decision.victims, request.vc, at)
            found = found._replace(text=in_lines([found.text, *costs]))
        if early and found.outcome != "now":
            loan = plan(loan_of(request))
            if isinstance(loan.decision, Bind) or (found.outcome == "never" and loan.outcome != "never"):
                return self._planned(loan, (0, ()), name, request.vc)
        return found

    def _planned(self, answer: PlanAnswer, line: tuple[int, Sequence[Entry]], name: str, vc: str) -> Planned:
        if answer.outcome == "now" and not line[0] and not isinstance(answer.decision, Wait):
            decision = replace(answer.decision, group=name)
            return Planned("now", in_lines(explained(decision, pod=self.pod)), decision, ())
        found = self.but_the_line(answer.reasons)
        if answer.outcome == "never" and (given := given_away(self._jobs.trading, vc, found)):
            found += given
        elif answer.outcome == "never":
            return Planned("never", in_lines(["it can never start:", *self.in_words(found)]), None, found)
        found += behind(*line)
        return Planned("waits", in_lines(["it would wait:", *self.in_words(found)]), None, found)


def behind(position: int, ahead: Sequence[Entry]) -> list[Reason]:
    """The backlog as a reason: how many jobs are ahead in line, and the first of them."""
    return [BehindOthers(position, tuple(other.name for other in ahead))] if position else []


def given_away(trading: LiveTrading, vc: str, reasons: Iterable[Reason]) -> list[Reason]:
    """The cells that a VC has given to others for a while, if one of its jobs could have room with them. O(trades)."""
    given = sum(gpus for (giver, _), gpus in trading.gpus_given().items() if giver == vc)
    if not given or not any(_short(reason, given) for reason in reasons):
        return []
    return list[Reason](one for one in trading.given() if one.vc == vc)[:MAX_NAMED]


def _short(reason: object, given: int) -> bool:
    """Whether a VC could have room for a job with the GPUs that it has given away."""
    if isinstance(reason, NeverFits) and not reason.vc:
        return False  # the whole cluster is too small
    return isinstance(reason, VcExhausted | Fragmented | NeverFits) and reason.have + given >= reason.need


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


def _ended_text(job: EngineJob) -> str:
    began = job.started_at if job.state in (JobState.SUCCEEDED, JobState.FAILED) else None
    began = job.submitted_at if began is None else began
    ran = f" after {duration(max(0.0, job.ended_at - began))}" if job.ended_at is not None else ""
    why = f": {job.reason}" if job.reason and job.reason != job.state.value else ""
    return f"{job.name} {'was ' if job.state is JobState.CANCELLED else ''}{job.state.value}{ran}{why}"
