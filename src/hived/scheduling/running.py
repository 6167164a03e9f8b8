"""The running jobs of a policy that preempts: their attained service, their order, and when that changes.

Attained service is the GPU time that a job has had (Tiresias, NSDI'19): GPUs times the time for which it had them, on
cells of its VC or on loan. A policy orders by it, or by what it implies, such as the work that is left.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf, nextafter

from hived.errors import ensure

from .policy import Policy
from .queue import GUARANTEED, Entry, Key


class RunningJobs:
    """Follows the jobs of one scheduler. O(log jobs) per start and end."""

    def __init__(self, policy: Policy, key_of: Callable[[Entry], Key]) -> None:
        """``key_of``: the place of a job in the order of its VC."""
        self._policy, self._key_of = policy, key_of
        #: every job that holds GPUs, with the time up to which its attained service is counted
        self._counted: dict[Entry, float] = {}
        #: per VC: the jobs that run guaranteed
        self._guaranteed: dict[str, dict[Entry, None]] = {}
        #: when the policy reviews a job, earliest first; void unless it is the time in ``_review_at``
        self._reviews: list[tuple[float, int, Entry]] = []
        self._review_at: dict[Entry, float] = {}

    def follow(self, entry: Entry, now: float) -> None:
        """Count what a job attained up to ``now``, and follow it if it holds GPUs from then on."""
        self._count(entry, now)
        of_vc = self._guaranteed.setdefault(entry.vc, {})
        of_vc.pop(entry, None)
        if entry.status is GUARANTEED:
            of_vc[entry] = None
        if not entry.holds:
            self._counted.pop(entry, None)
            self._review_at.pop(entry, None)
        elif entry not in self._counted:
            self._counted[entry] = now
            self._schedule_review(entry, now)

    def behind(self, entry: Entry, now: float) -> list[str]:
        """Names of the guaranteed running jobs of the VC that are behind a job in the order, the last one first.

        O(jobs of the VC that run guaranteed).
        """
        found: list[tuple[Key, str]] = []
        for other in self._guaranteed.get(entry.vc, ()):
            if other not in self._review_at:  # its key changes all the time
                self._count(other, now)
                other.key = self._key_of(other)
            if other.key > entry.key:
                found.append((other.key, other.name))
        return [name for _, name in sorted(found, reverse=True)]

    @property
    def next_review(self) -> float:
        """When the order of a running job changes next; infinity for never."""
        reviews = self._reviews
        while reviews and self._review_at.get(reviews[0][2]) != reviews[0][0]:
            heappop(reviews)
        return reviews[0][0] if reviews else inf

    def due(self, now: float) -> list[Entry]:
        """The jobs whose order has changed by ``now``, with what they attained. Their next reviews are scheduled."""
        found = []
        while self.next_review <= now:
            entry = heappop(self._reviews)[2]
            self._count(entry, now)
            found.append(entry)
        for entry in found:
            self._schedule_review(entry, now)
        return found

    def _count(self, entry: Entry, now: float) -> None:
        counted = self._counted.get(entry)
        if counted is not None and counted < now:
            view = entry.view
            entry.view = view._replace(attained=view.attained + (now - counted) * view.gpus)
            self._counted[entry] = now

    def _schedule_review(self, entry: Entry, now: float) -> None:
        self._review_at.pop(entry, None)
        after = self._policy.review_after(entry.view)
        if after is not None:
            ensure(after > 0, f"policy {self._policy.name}: review_after is above 0, and not {after} for {entry}")
            at = self._review_at[entry] = max(now + after, nextafter(now, inf))
            if at < inf:
                heappush(self._reviews, (at, entry.number, entry))

    def validate(self, holding: set[Entry]) -> None:
        """The jobs that are followed are those that hold GPUs, by VC those that run guaranteed. O(jobs)."""
        ensure(self._counted.keys() == holding, "jobs whose attained service is counted")
        guaranteed = {entry for of_vc in self._guaranteed.values() for entry in of_vc}
        ensure(guaranteed == {entry for entry in holding if entry.status is GUARANTEED}, "jobs that run guaranteed")
        ensure(self._review_at.keys() <= holding, "only jobs that run are reviewed")
