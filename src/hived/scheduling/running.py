"""The running jobs of policies that preempt: their attained service, their order, and when that changes.

Attained service is the GPU time that a job has had (Tiresias, NSDI'19): GPUs times the time for which it had them, on
cells of its VC or on loan. A policy orders by it, or by what it implies, such as the work that is left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf, nextafter

from .queue import Entry, Key
from .states import GUARANTEED, LEAVING

_Order = list[tuple[Key, Entry]]


def work_left(duration: float, kept: float, per_second: float) -> float:
    """Seconds of a duration that are left when ``kept`` of the engine's units are done.

    The difference is taken in that unit, in which the times of a trace are whole: what is equal stays equal.
    """
    return max(0.0, round(duration * per_second, 6) - kept) / per_second


class RunningJobs:
    """Follows the jobs of one scheduler whose policies preempt. O(log jobs) per start and end."""

    def __init__(self, key_of: Callable[[Entry], Key], per_second: float) -> None:
        """``key_of``: the place of a job in the order of its VC; ``per_second``: the engine's units of time."""
        self._key_of, self._per_second = key_of, per_second
        #: every job that holds GPUs, with the time up to which its attained service is counted
        self._counted: dict[Entry, float] = {}
        #: per VC, and whether they run guaranteed or on loan: these jobs in the policy's order
        self._orders: dict[tuple[str, bool], _Order] = {}
        #: where each job is in them
        self._places: dict[Entry, tuple[_Order, Key]] = {}
        #: as the orders, where these change all the time: when one was last computed anew
        self._sorted_at: dict[tuple[str, bool], float] = {}
        #: when the loans of a VC were last counted for that
        self._loans_at: dict[str, float] = {}
        #: when the policy reviews a job, earliest first; void unless it is the time in ``_review_at``
        self._reviews: list[tuple[float, int, Entry]] = []
        self._review_at: dict[Entry, float] = {}

    def follow(self, entry: Entry, now: float) -> None:
        """Count what a job attained up to ``now``, and follow it if it holds GPUs from then on."""
        self.count(entry, now)
        self._remove(entry)
        if not entry.holds:
            self._counted.pop(entry, None)
            self._review_at.pop(entry, None)
            return
        entry.held = 0 if entry.placement is None else entry.placement.gpus
        guaranteed = entry.status is GUARANTEED
        if guaranteed is not entry.view.running:
            entry.view = entry.view._replace(running=guaranteed)
        if entry not in self._counted:
            self._counted[entry] = now
            self._schedule_review(entry, now)
        if guaranteed:
            entry.key = self._key_of(entry)
        if entry.status is not LEAVING:
            order = self._orders.setdefault((entry.vc, guaranteed), [])
            insort(order, (entry.key, entry))
            self._places[entry] = order, entry.key

    def _remove(self, entry: Entry) -> None:
        order, key = self._places.pop(entry, (None, ()))
        if order is not None:
            del order[bisect_left(order, (key,))]

    def behind(self, entry: Entry, guaranteed: bool, now: float) -> list[Entry]:
        """The running jobs of the VC, guaranteed ones or loans, that are behind a job in the order, the last one first.

        O(log jobs + those found); O(those that run) where the order changes all the time.
        """
        order = self._orders.get((entry.vc, guaranteed))
        if not order:
            return []
        drifts = order[0][1] not in self._review_at
        if drifts and self._sorted_at.get((entry.vc, guaranteed)) != now:
            self._sorted_at[entry.vc, guaranteed] = now  # what starts at ``now`` is placed by a key of ``now``
            for _, other in list(order):
                self.count(other, now)
                if guaranteed:  # the key of a job on loan is also its place in line
                    other.key = self._key_of(other)
            order[:] = sorted((other.key if guaranteed else self._key_of(other), other) for _, other in order)
            for key, other in order:
                self._places[other] = order, key
        return [other for _, other in reversed(order[bisect_right(order, (entry.key, entry)) :])]

    def drifting_loans(self, vc: str, now: float) -> list[Entry]:
        """The jobs of a VC on loan that change their order all the time, counted; once per ``now``. O(these)."""
        order = self._orders.get((vc, False))
        if not order or order[0][1] in self._review_at or self._loans_at.get(vc) == now:
            return []
        self._loans_at[vc] = now
        for _, entry in order:
            self.count(entry, now)
        return [entry for _, entry in order]

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
            self.count(entry, now)
            entry.view = entry.view._replace(reviewed=now / self._per_second)
            found.append(entry)
        for entry in found:
            self._schedule_review(entry, now)
        return found

    def count(self, entry: Entry, now: float) -> None:
        """Count what a running job attained up to ``now``."""
        counted = self._counted.get(entry)
        if counted is not None and counted < now:
            more = now - counted
            entry.attained += more * entry.view.gpus
            entry.kept += more
            view = entry.view
            remaining = None
            if view.duration is not None:
                remaining = work_left(view.duration, entry.kept, self._per_second)
            entry.view = view._replace(attained=entry.attained / self._per_second, remaining=remaining)
            self._counted[entry] = now

    def _schedule_review(self, entry: Entry, now: float) -> None:
        self._review_at.pop(entry, None)
        policy = entry.policy
        after = None if policy is None else policy.review_after(entry.view, now / self._per_second)
        if after is not None:
            # a sum of seconds is rounded to a millionth of the engine's unit, so that it does not fall just behind it
            at = self._review_at[entry] = max(now + round(after * self._per_second, 6), nextafter(now, inf))
            if at < inf:
                heappush(self._reviews, (at, entry.number, entry))
