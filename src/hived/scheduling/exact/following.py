"""Real jobs after a virtual timeline: each has the GPUs of its virtual cells whenever these run, and loans besides.

At a virtual start, a job that runs on a loan is promoted where it is, if the cells of its VC can be bound there.
Otherwise it moves to them. What moving costs is charged against its head start, the work that it has done beyond its
virtual job; without enough of it, the job starts anew, as its virtual job does. A job that its policy has stopped takes
a loan only with enough head start to give it back at once. So it is never behind (docs/explanation/exact-safety.md).
"""

from __future__ import annotations

from math import inf

from hived.errors import InvariantError, PolicyError
from hived.spec.compiled import EXACT, ClusterSpec

from ..checked_policy import CheckedPolicy, Policies
from ..numbers import ROUNDED
from ..policy import Displaced, JobView, Policy, Reaction
from ..queue import Entry
from ..scheduler import Scheduler, sharing_of
from .timeline import VirtualTimeline


class TimelineFollower:
    """One scheduler, whose jobs in VCs of exact safety follow a virtual timeline. O(1) more per event."""

    def __init__(self, timeline: VirtualTimeline, scheduler: Scheduler) -> None:
        self.timeline = timeline
        self._scheduler = scheduler
        #: jobs of this instant, which wait for loans from its end on
        self._new: dict[int, Entry] = {}
        #: those that have not ended
        self._entries: dict[int, Entry] = {}
        # whether they may take loans at all
        self._borrows: dict[int, bool] = {}
        # those without work
        self._empty: dict[int, Entry] = {}

    def follows(self, entry: Entry) -> bool:
        """Whether a job is of the timeline."""
        return entry.vc in self.timeline.vcs and not entry.request.opportunistic

    def submit(self, entry: Entry, now: float, empty: bool = False) -> None:
        """Submit a job; ``empty``: one without work, which ends as it starts."""
        self._new[entry.number] = self._entries[entry.number] = entry
        self._borrows[entry.number] = entry.early
        if empty:
            self._empty[entry.number] = entry
        self.timeline.submit(entry, now, 0 if empty else inf)

    def ended(self, number: int, work: float, now: float) -> None:
        """A job has ended; ``work``: what it has done, in the engine's unit of time."""
        del self._entries[number], self._borrows[number]
        self._empty.pop(number, None)
        self.timeline.ended(number, work, now)

    @property
    def has_changed(self) -> bool:
        """Whether :meth:`settle` has something to do."""
        return bool(self._new) or self.timeline.has_changed

    def settle(self, now: float) -> list[int]:
        """Carry out what the timeline has decided at ``now``; the caller dispatches. O(its changes + jobs without work)

        Returns the jobs without work whose turn has come, and which have ended by that.
        """
        scheduler = self._scheduler
        stops, starts = self.timeline.changes(now)
        over = [number for number in self._empty if not self.timeline.has(number)]
        for number in over:
            scheduler.withdraw(self._empty[number])
            self._new.pop(number, None)
            self.ended(number, 0, now)
        for stop in stops:
            entry = self._entries.get(stop.job)
            if entry is not None:
                scheduler.displace(entry, stop, now)
        new, self._new = self._new, {}
        for entry in new.values():
            scheduler.wait(entry)
        for number, leaves in starts:
            entry = self._entries.get(number)
            if entry is not None:
                scheduler.start_on(entry, leaves, now)
        return over

    def may_borrow(self, number: int, done: float, resume: float, now: float) -> bool:
        """Whether a job that has lost its GPUs may take a loan, which it may have to give back at once.

        ``done``: the work that it has kept, less what its next start costs; ``resume``: what a start costs.
        """
        if not self._borrows[number]:
            return False
        virtual = self.timeline.done(number, now)
        if virtual <= 0:
            return True  # at worst it starts anew, as its virtual job does
        policy = self._scheduler.policies[self._entries[number].vc]
        return policy.always_keeps_work and done - resume >= virtual - ROUNDED

    def check(self, number: int, done: float, now: float) -> None:
        """Raise :class:`~hived.errors.InvariantError` if a job that has done so much is behind its virtual one."""
        virtual = self.timeline.done(number, now)
        if done < virtual - ROUNDED:
            raise InvariantError(f"job {number} has done {done:g}, less than alone, which is {virtual:g}")


class Borrowing(Policy):
    """How the jobs of a VC of exact safety take loans: in the order in which their virtual jobs are.

    Nothing else is left to decide: what has cells of the VC, and which, is of the timeline.
    """

    def __init__(self, inner: CheckedPolicy, timeline: VirtualTimeline) -> None:
        self._inner, self._timeline = inner, timeline
        self.name = inner.name
        self.patience, self.clairvoyant, self.resume_s = inner.patience, inner.clairvoyant, inner.resume_s
        self.always_keeps_work = inner.always_keeps_work

    def order(self, job: JobView) -> tuple[float, ...]:
        view = self._timeline.view(job.job)
        return self._inner.order(job if view is None else view, job.submitted)

    def react(self, event: Displaced) -> Reaction:
        keeps = self._inner.keeps_work(event.victim, event.by, event.victim.submitted)
        return Reaction.SUSPEND if keeps else Reaction.RESTART


def borrowing_policies(policies: Policies, timeline: VirtualTimeline) -> Policies:
    """The policies of the real scheduler: those of VCs of exact safety only order loans."""
    return policies.replaced({vc: Borrowing(policies[vc], timeline) for vc in sorted(timeline.vcs)})


def check_exact(policies: Policies, vcs: frozenset[str]) -> None:
    """Raise :class:`~hived.errors.PolicyError` for a policy under which the safety of these VCs cannot be exact."""
    for vc in sorted(vcs):
        policy = policies[vc]
        if policy.gpu_sharing:
            raise PolicyError(
                policy.name,
                f"its jobs share GPUs, so how fast they run depends on others; the safety of {vc} can be exact under "
                "policies that give a job GPUs of its own: yarn-cs, fifo, greedy, fair, sjf, srtf, tiresias",
            )


def check_together(policies: Policies, spec: ClusterSpec) -> None:
    """Raise :class:`~hived.errors.PolicyError` for policies that VCs of a spec cannot have, or not side by side."""
    sharing_of(policies)
    check_exact(policies, frozenset(vc.name for vc in spec.virtual_clusters if vc.safety == EXACT))
