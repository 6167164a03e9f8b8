"""Guests beside the owners of GPUs, live (AntMan, OSDI'20): which jobs run, with which limits, and what is said of it.

The scheduler says who is beside whom (:mod:`hived.policies.antman.guest_scheduler`); a :class:`~.coordination
.Coordination` how much each may use. Here that becomes turns, of guests that are held for a while, and limits. A limit
of a guest holds for a lease: where no engine renews it, the guest has little of the time.
"""

from __future__ import annotations

from typing import Protocol

from hived.cluster.decisions import Placement
from hived.engine.job import NO_LIMITS
from hived.engine.states import JobEvent, JobState
from hived.policies.antman.parameters import GuestSharing
from hived.scheduling.instructions import Kind, Share

from .coordination import Coordination
from .instructions import LimitTasks
from .measured import MeasuredProbe
from .model import Job, Limiting, Obeying

#: share of the time of a job that was started as a guest, if nobody takes care of it
FLOOR = 0.05
#: of a limit of a guest, in seconds; it is renewed at a third of that
LEASE_S = 30.0
#: after which a limit that a job has not taken note of is told again
_AGAIN_S = 5.0


class Door(Protocol):
    """What the guests ask of the job scheduler."""

    jobs: dict[int, Job]
    probe: MeasuredProbe

    def becomes(
        self, job: Job, event: JobEvent, placement: Placement | None, at: float, data: dict[str, object]
    ) -> None:
        """Apply an event to a job."""

    def instruct(self, *instructions: LimitTasks) -> None:
        """Queue instructions to be carried out."""

    def shares_gpus(self, job: Job) -> bool:
        """Whether a job runs under the runtime, and may have guests beside it."""


class Guests:
    """The guests of a machine, and the jobs beside which they run. A fact costs O(its GPUs * jobs there)."""

    def __init__(self, jobs: Door, sharing: GuestSharing) -> None:
        self.sharing = sharing
        self.coordination = Coordination(jobs.probe.utilization, sharing)
        self._jobs = jobs
        #: jobs that may run now, but for what is on their GPUs yet
        self._may_run: dict[int, bool] = {}
        #: by job: whether it is a guest and beside whom, as its next event is to say
        self._untold: dict[int, tuple[bool, tuple[str, ...]]] = {}
        #: by job, the limits that it was told last, and when
        self._said: dict[int, tuple[Limiting, float]] = {}

    # -- jobs come and go ---------------------------------------------------------------------------------------------

    def follow(self, job: Job, placement: Placement, at: float) -> None:
        """A job has these GPUs, or is about to start there, as their owner or as a guest."""
        guest, probe = job.entry.runs_as_guest, self._jobs.probe
        apart = not guest and not self._jobs.shares_gpus(job)
        least = probe.memory_min_gib(job.id)
        self.coordination.follow(job.id, job.name, placement.devices(), not guest, apart, least, at)
        if not guest:
            self._may_run.pop(job.id, None)
        self.carry_out(at)

    def beside_nobody(self, job: Job) -> None:
        """A job of an earlier engine, or that goes on elsewhere: beside nobody, unless the scheduler says so."""
        self._untold[job.id] = False, ()

    def left(self, job: Job, at: float) -> None:
        """A job has left its GPUs."""
        self.coordination.leave(job.id, at)
        for of in self._may_run, self._untold, self._said:
            of.pop(job.id, None)
        self.carry_out(at)

    def share(self, job: Job, share: Share) -> None:
        """The scheduler says beside whom a job runs."""
        names = [self._jobs.jobs[other].name for other in share.turns[0].beside if other in self._jobs.jobs]
        self._untold[job.id] = share.kind is Kind.GUEST, tuple(names)

    def tell(self, at: float) -> None:
        """Record beside whom jobs run, where that has changed."""
        for number, (guest, beside) in list(self._untold.items()):
            job = self._jobs.jobs[number]
            if not job.state.waits:
                del self._untold[number]
            if job.state.stays and (guest, beside) != (job.guest, job.beside):
                self._jobs.becomes(job, JobEvent.SHARED, None, at, {"guest": guest, "beside": list(beside)})

    # -- what they use ------------------------------------------------------------------------------------------------

    def measure(self, job: Job, doing: Obeying, at: float) -> None:
        """What the pages of a job say now."""
        self.coordination.measure(job.id, doing, at)
        self.carry_out(at)
        self._limit(job, at)

    def pass_time(self, at: float) -> None:
        """It is ``at`` now."""
        self.coordination.pass_time(at)
        self.carry_out(at)

    def may_run(self, job: Job) -> bool | None:
        """Whether a guest may run; None: it is none."""
        return self._may_run.get(job.id)

    def why(self, number: int) -> str:
        """A guest is held, or may use what it may."""
        allowed = self.coordination.allowed(number)
        return "" if allowed is None else allowed.why

    def why_limited(self, number: int, doing: Obeying) -> str:
        """A guest has the limits that it has now."""
        allowed = self.coordination.allowed(number)
        if allowed is not None and allowed.share == doing.share:
            return allowed.why
        return "it has not taken note yet that it may use more, or less"

    def is_ours(self, job: Job, doing: Obeying) -> bool:
        """Whether the limits of a job are such as it has from here, or from its start as a guest; not by hand."""
        said = self._said.get(job.id)
        return job.entry.runs_as_guest or (
            said is not None and said[0].memory in (None, doing.memory) and said[0].share in (None, doing.share)
        )

    def carry_out(self, at: float) -> None:
        """Hold guests, let them go on, and limit jobs, as the coordinators say."""
        changed = [(self._jobs.jobs[number], allowed) for number, allowed in self.coordination.take_changed()]
        for job, allowed in changed:
            if job.entry.runs_as_guest:
                self._may_run[job.id] = bool(allowed.share)
        for job, _ in changed:
            self._limit(job, at)

    def _limit(self, job: Job, at: float) -> None:
        """Limit a job that runs, if its limits are others than they should be, or its lease is to be renewed."""
        allowed, now, last = self.coordination.allowed(job.id), job.limits or NO_LIMITS, self._said.get(job.id)
        guest = job.entry.runs_as_guest
        if allowed is None or job.state is not JobState.RUNNING or (guest and not allowed.share):
            return
        memory = allowed.memory if guest or allowed.memory or (now.memory and not now.by_hand) else None
        share = allowed.share if guest or (now.share < 1.0 and not now.by_hand) else None
        limiting = Limiting(memory, share, memory or 0, LEASE_S if guest and allowed.protects else 0.0)
        differs = memory not in (None, now.memory) or share not in (None, now.share)
        again = _AGAIN_S if differs else LEASE_S / 3
        if (differs or limiting.lease_s) and (last is None or last[0] != limiting or at - last[1] >= again):
            self._said[job.id] = limiting, at
            self._jobs.instruct(LimitTasks(job.id, job.attempt, limiting, allowed.why or "nobody else uses its GPUs"))
