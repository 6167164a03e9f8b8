"""A search: configurations explored together, the most promising first (Gandiva, OSDI'18, 2 and 6.2). Pure.

A few configurations are submitted at a time. Each is evaluated again and again while it trains. One that promises too
little is ended; the ``top`` of those with the best estimates have the highest priority, and so GPUs for themselves
where jobs take turns; those that have not been evaluated come next, for early feedback; the others have the turns that
are left. The search ends at the first evaluation that finds the accuracy that it looks for.

The simulator's multi-jobs (:mod:`hived.simulator.multi_job`) and ``hived train search`` decide by this.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

#: priorities among the configurations of a search
TOP, NEW, OTHER = 2, 1, 0


@dataclass(frozen=True, slots=True)
class Goal:
    """What a search looks for, and how."""

    target: float  #: the accuracy that ends it
    least: float = -inf  #: a configuration whose estimate is below is ended
    top: int = 2  #: configurations with GPUs for themselves
    first: int = 2  #: configurations that are submitted at its start
    more: int = 2  #: and each time later


class Search:
    """Which configurations of a search run, and how urgent each is. An evaluation costs O(those that run)."""

    def __init__(self, configurations: int, goal: Goal) -> None:
        self.goal, self.configurations = goal, configurations
        #: those that have been submitted are the first ones
        self.submitted = 0
        #: the estimate of each that runs and has been evaluated; of one that has not: None
        self.running: dict[int, float | None] = {}
        #: the configuration that had the accuracy that is looked for, and the best one so far with its accuracy
        self.found: int | None = None
        self.best: tuple[float, int] | None = None
        self._told: dict[int, int] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be expected any more."""
        return self.found is not None or (self.submitted == self.configurations and not self.running)

    def submit(self) -> range:
        """The configurations that are submitted now."""
        number = self.goal.more if self.submitted else self.goal.first
        last = self.submitted if self.found is not None else min(self.submitted + number, self.configurations)
        new = range(self.submitted, last)
        self.submitted = last
        self.running.update(dict.fromkeys(new))
        return new

    def evaluate(self, one: int, accuracy: float, estimate: float) -> list[int]:
        """A configuration has this accuracy, and is expected to reach ``estimate``. Returns those to be ended now."""
        if self.found is not None or one not in self.running:
            return []
        if self.best is None or accuracy > self.best[0]:
            self.best = accuracy, one
        if accuracy >= self.goal.target:
            self.found = one
            ended, self.running = list(self.running), {}
            return ended
        if estimate < self.goal.least:
            del self.running[one]
            return [one]
        self.running[one] = estimate
        return []

    def leave(self, one: int) -> None:
        """A configuration has trained to its end, or has failed."""
        self.running.pop(one, None)
        self._told.pop(one, None)

    def priorities(self) -> dict[int, int]:
        """The priorities that are others than this has said before."""
        known = [(estimate, one) for one, estimate in self.running.items() if estimate is not None]
        top = {one for _, one in sorted(known, key=lambda each: (-each[0], each[1]))[: self.goal.top]}
        now = {one: TOP if one in top else NEW if estimate is None else OTHER for one, estimate in self.running.items()}
        changed = {one: priority for one, priority in now.items() if self._told.get(one) != priority}
        self._told = now
        return changed
