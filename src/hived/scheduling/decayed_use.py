"""GPU time per user of a virtual cluster, of which older time counts less: what fair share orders users by.

A second of a GPU counts half as much after each half-life, as in Slurm's multifactor priority. All of it decays by the
same factor, so that of two users without GPUs the one who has had less stays the one who has had less. The *rank* of a
user is therefore taken on a scale on which nothing decays: the base-2 logarithm of decayed use, plus the half-lives
that have gone by. It changes only while the user has GPUs, and ranks of different times compare. It is counted in whole
steps of a hundredth: a user's jobs are placed anew only once its use has changed by so much, and users
who are nearer to each other than that take turns by submission.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, inf, log, log2

from .queue import Entry

#: of the rank, in each doubling of use: one is 1.1% of it
STEPS = 64
#: seconds from one review of the ranks of a virtual cluster to the next, at least
REVIEW_S = 30.0


class DecayedUse:
    """The use of one virtual cluster by user. Times are in the engine's unit. O(1) per event."""

    def __init__(self, half_life: float) -> None:
        """``half_life``: after which use counts half; infinity: never."""
        self.half_life = half_life
        #: when the ranks were last looked at
        self.reviewed = -inf
        #: by user, GPU time as it counted at the time of the next
        self._used: dict[str, float] = {}
        self._at: dict[str, float] = {}
        #: GPUs that each has now, and those of each job
        self._gpus: dict[str, int] = {}
        self._held: dict[int, int] = {}
        self._ranks: dict[str, float] = {}
        #: users who have had GPUs since the last review
        self._changed: dict[str, None] = {}
        #: by user, the jobs that wait or hold GPUs, by number
        self.jobs: dict[str, dict[int, Entry]] = {}

    def restore(self, used: Mapping[str, float], at: float) -> None:
        """Begin with what users have had until ``at``, as it counts then."""
        for user, amount in used.items():
            self._used[user], self._at[user] = amount, at
            self._ranks[user] = self._rank_at(amount, at)

    def know(self, entry: Entry) -> None:
        """A job waits or holds GPUs from now on."""
        self.jobs.setdefault(entry.view.user, {})[entry.number] = entry

    def forget(self, entry: Entry) -> None:
        """It does not any more."""
        its = self.jobs[entry.view.user]
        del its[entry.number]
        if not its:
            del self.jobs[entry.view.user]

    def hold(self, entry: Entry, now: float, stays: bool = True) -> None:
        """Count what a job has from ``now`` on; ``stays``: False for nothing."""
        gpus = entry.placement.gpus if stays and entry.holds and entry.placement is not None else 0
        before = self._held.pop(entry.number, 0)
        if gpus:
            self._held[entry.number] = gpus
        if gpus == before:
            return
        user = entry.view.user
        self._settle(user, now)
        self._gpus[user] = self._gpus.get(user, 0) + gpus - before
        self._changed[user] = None

    def used(self, user: str, now: float) -> float:
        """GPU time of a user as it counts at ``now``."""
        known, at, gpus = self._used.get(user, 0.0), self._at.get(user, now), self._gpus.get(user, 0)
        past = max(0.0, now - at)
        if self.half_life == inf:
            return known + gpus * past
        left: float = 0.5 ** (past / self.half_life)
        return known * left + gpus * (1.0 - left) * self.half_life / log(2.0)

    def rank(self, user: str) -> float:
        """The rank of a user at the last review: minus infinity of one who has had nothing."""
        return self._ranks.get(user, -inf)

    def review(self, now: float) -> list[str]:
        """The users whose ranks are others from now on. O(those with GPUs)."""
        self.reviewed = now
        found = []
        for user in list(self._changed):
            if now < self._at[user]:
                self._settle(user, now)
            rank = self._rank_at(self.used(user, now), now)
            if rank != self._ranks.get(user):
                self._ranks[user] = rank
                found.append(user)
            if not self._gpus.get(user):
                del self._changed[user]
        return found

    def held(self) -> dict[str, int]:
        """GPUs of each user who has some."""
        return {user: gpus for user, gpus in self._gpus.items() if gpus}

    def _settle(self, user: str, now: float) -> None:
        self._used[user], self._at[user] = self.used(user, now), now  # also where a clock was set back

    def _rank_at(self, used: float, now: float) -> float:
        return floor((log2(used) + now / self.half_life) * STEPS) if used > 0.0 else -inf
