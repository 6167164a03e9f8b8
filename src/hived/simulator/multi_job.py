"""Multi-jobs: configurations of hyper-parameters explored together (Gandiva, OSDI'18, 2 and 6.2).

A multi-job submits a few configurations at a time. Each is evaluated at every ``every`` of its run: an estimate of its
final accuracy, whose error shrinks as it trains. A configuration that promises too little is ended. Where jobs take
turns, the ``top`` configurations with the best estimates have the highest priority, and so GPUs for themselves; those
that have not been evaluated come next, for early feedback; the others have the turns that are left. A multi-job ends
at the first evaluation that finds the accuracy that it looks for, which may be long before that training ends.

The paper gives no learning curves. They are data, of a form that is ours, and the error of an estimate is a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, inf, log
from random import Random

from ..errors import ModelError
from ..policies.gandiva.search import Goal, Search
from .driver import Live
from .traces import TraceJob
from .traces.model import MS

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Curve:
    """The accuracy of a configuration over its training: it saturates, exponentially. Ours.

    :class:`~hived.errors.ModelError` unless the accuracies are from 0 to 1, the last at least the first, and ``slow``
    is above 0.
    """

    final: float  #: accuracy at the end of the run
    #: the part of a run in which it comes closer to what it would reach without end by a factor of e; infinity: a line
    slow: float = 0.1
    first: float = 0.1  #: accuracy untrained: that of guessing one class of ten

    def __post_init__(self) -> None:
        if not (0 <= self.first <= self.final <= 1 and self.slow > 0):
            raise ModelError(
                f"learning curve from {self.first:g} to {self.final:g}, slow {self.slow:g}: accuracies must be from 0 "
                "to 1 and not fall, and slow above 0"
            )

    def at(self, done: float) -> float:
        """The accuracy when this part of the run is done, 0 to 1."""
        if done >= 1:
            return self.final
        part = done if self.slow == inf else expm1(-done / self.slow) / expm1(-1 / self.slow)
        return self.first + (self.final - self.first) * part


def draw_slow(random: Random, middle: float = 0.1, most: float = 2.0) -> float:
    """How slow a curve is, within a factor ``most`` of ``middle`` either way: uniform in its logarithm. Ours."""
    return middle * exp(random.uniform(-log(most), log(most)))


@dataclass(frozen=True, slots=True)
class MultiJob:
    """A search. Times in seconds, accuracies from 0 to 1."""

    name: str
    tenant: str
    gpus: int  #: of a configuration
    run_s: float  #: of a whole training, alone
    curves: tuple[Curve, ...]  #: of the configurations, in the order of their submission
    target: float  #: the accuracy that it looks for
    start_s: float = 0.0
    first: int = 2  #: configurations that are submitted at its start
    more: int = 2  #: and each time when ``every`` of a run's time has passed
    every: float = 0.03  #: of a run: until the next evaluation (1,000 mini-batches in Figure 14)
    top: int = 2
    least: float = 0.3  #: configurations that promise less are ended
    error: float = 0.05  #: standard deviation of the first estimate; none at the end of the run
    model: str = "*"
    seed: int = 1
    soft: bool = False  #: whether a configuration runs on any GPUs


class _Exploring:
    """The state of one multi-job."""

    def __init__(self, multi_job: MultiJob, first: int) -> None:
        """``first``: the number of its first configuration."""
        self.of, self.first = multi_job, first
        goal = Goal(multi_job.target, multi_job.least, multi_job.top, multi_job.first, multi_job.more)
        self.search = Search(len(multi_job.curves), goal)
        self.next_ms = round(multi_job.start_s * MS)
        self.evaluations: dict[int, int] = {}
        self.random = Random(multi_job.seed)


class Explorer:
    """The driver of multi-jobs. An evaluation costs O(configurations that run)."""

    def __init__(self, multi_jobs: Sequence[MultiJob], first: int, prioritize: bool) -> None:
        """``first``: the number of jobs of the trace; ``prioritize``: whether the scheduler knows priorities."""
        self._prioritize = prioritize
        #: the configurations of all multi-jobs
        self.jobs: Sequence[TraceJob] = [_job(one, at) for one in multi_jobs for at in range(len(one.curves))]
        self._all: list[_Exploring] = []
        self._of: dict[int, _Exploring] = {}
        for multi_job in multi_jobs:
            one = _Exploring(multi_job, first)
            self._all.append(one)
            after = first + len(multi_job.curves)
            self._of.update(dict.fromkeys(range(first, after), one))
            first = after
        #: by multi-job: (time in ms, configurations evaluated by then), at each evaluation of a new one
        self.explored: dict[str, list[tuple[int, int]]] = {one.name: [] for one in multi_jobs}
        #: by multi-job: (time in ms, accuracy), at each evaluation that finds a higher one than all before
        self.best: dict[str, list[tuple[int, float]]] = {one.name: [] for one in multi_jobs}
        #: by multi-job: when it ended, in ms
        self.ended: dict[str, int] = {}

    @property
    def next_wake(self) -> int:
        """When configurations are submitted next."""
        return min([one.next_ms for one in self._all], default=_NEVER)

    def wake(self, live: Live) -> None:
        """Submit configurations."""
        for one in self._all:
            if one.next_ms > live.now:
                continue
            of, search = one.of, one.search
            for at in search.submit():
                live.submit(one.first + at)
                live.tell(one.first + at, of.every * of.run_s * MS)
            self._prioritize_all(one, live)
            left = search.submitted < search.configurations
            one.next_ms = live.now + max(1, round(of.every * of.run_s * MS)) if left else _NEVER

    def reached(self, job: int, live: Live) -> None:
        """Evaluate a configuration."""
        one = self._of[job]
        of, at = one.of, job - one.first
        if of.name in self.ended:  # at this moment, by another configuration
            return
        times = one.evaluations[at] = one.evaluations.get(at, 0) + 1
        if times == 1:
            explored = self.explored[of.name]
            explored.append((live.now, len(explored) + 1))
        done = min(1.0, times * of.every)
        curve = of.curves[at]
        estimate = curve.final + one.random.gauss(0.0, of.error) * (1 - done)
        self._evaluate(one, at, curve.at(done), estimate, live)
        self._prioritize_all(one, live)
        if at in one.search.running and done + of.every < 1:
            live.tell(job, (times + 1) * of.every * of.run_s * MS)

    def finished(self, job: int, live: Live) -> None:
        """A configuration has trained to its end: its last evaluation."""
        one = self._of.get(job)
        if one is None or one.of.name in self.ended:
            return
        final = one.of.curves[job - one.first].final
        self._evaluate(one, job - one.first, final, inf, live)
        one.search.leave(job - one.first)
        self._prioritize_all(one, live)

    def _evaluate(self, one: _Exploring, at: int, accuracy: float, estimate: float, live: Live) -> None:
        before = one.search.best
        for over in one.search.evaluate(at, accuracy, estimate):
            live.end(one.first + over)
        if one.search.best != before:
            self.best[one.of.name].append((live.now, accuracy))
        if one.search.found is not None:
            self.ended[one.of.name] = live.now
            one.next_ms = _NEVER

    def _prioritize_all(self, one: _Exploring, live: Live) -> None:
        for at, priority in one.search.priorities().items() if self._prioritize else ():
            live.set_priority(one.first + at, priority)


def _job(of: MultiJob, at: int) -> TraceJob:
    duration = round(of.run_s * MS)
    return TraceJob(f"{of.name}-{at}", of.tenant, 0, duration, of.gpus, "pass", model=of.model, soft=of.soft)
