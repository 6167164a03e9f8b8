"""How fast jobs work in the simulator: affinity, turns, jobs beside, and what suspending and migrating cost.

The rate of a job is its work per second, against running alone on the GPUs that it asks for at best affinity. Between
two changes it is constant, so no slice is simulated for itself: a job that is resumed ``n`` times a second, at
``suspend_s`` each, loses ``n * suspend_s`` of its time. A suspend comes up to a mini-batch late; that time is booked to
the job that ran, whose next slices are the shorter (Gandiva, OSDI'18, 4.1), so shares are what they should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hived.cluster.decisions import Placement
from hived.scheduling import Share, Turn
from hived.spec.compiled import ClusterSpec

from .models import JobModel, Locality, Models, guest_rates, packed_rates
from .traces import TraceJob
from .traces.model import MS


class Progress(NamedTuple):
    """The turns of a job, and its work per second."""

    turns: tuple[Turn, ...]
    rates: tuple[float, ...]  #: in each of them, times its share
    rate: float  #: in all


#: on GPUs of its own, at best affinity
ALONE = Progress((), (), 1.0)


class Work:
    """The rates of the jobs of a trace, and what a scheduler may measure of them (:class:`~hived.scheduling.Probe`)."""

    def __init__(self, jobs: Sequence[TraceJob], spec: ClusterSpec, models: Models) -> None:
        self._jobs = jobs
        self._models: list[JobModel] = [models.of(job.model) for job in jobs]
        self._law = models.law
        self._locality = Locality(spec.chains)
        # whether every node is one socket, so that GPUs of one node have the best affinity
        self._flat = all(chain.node_level <= 2 for chain in spec.chains)
        # by job: its placement, and its speed there
        self._speeds: dict[int, tuple[Placement, float]] = {}
        #: by job that shares GPUs: its rate while it has its turn, against running alone there
        self._beside: dict[int, float] = {}

    def alone_on(self, job: int, placement: Placement) -> Progress:
        """The progress of a job that has GPUs for itself."""
        of = self._jobs[job]
        if of.gpus == 1 and not of.elastic:  # at best affinity, wherever it is
            return ALONE
        speed = self._speed(job, placement)
        return ALONE if speed == 1.0 else Progress((Turn(placement),), (speed,), speed)

    def shared(self, instruction: Share) -> Progress:
        """The progress of a job with the turns of an instruction."""
        job = instruction.job
        beside = self._beside[job] = self._beside_others(instruction) if instruction.turns[0].beside else 1.0
        factor = beside
        of_job = instruction.turns
        if instruction.resumes:
            total = sum([turn.share for turn in of_job])
            factor *= max(0.0, 1.0 - instruction.resumes * self._models[job].suspend_s / total)
        of = self._jobs[job]
        if (of.gpus == 1 or (self._flat and len(of_job[0].placement.pods) == 1)) and not of.elastic:
            rates = [turn.share * factor for turn in of_job]
        else:
            rates = [turn.share * factor * self._speed(job, turn.placement) for turn in of_job]
        return Progress(of_job, tuple(rates), sum(rates))

    def _beside_others(self, instruction: Share) -> float:
        """The rate of a job beside others: as a guest, as their owner, or packed with them.

        The limits of the guests of an owner may differ while one of them is new. Each has its part of the idle time as
        if all had its own limit, and the owner loses what guests with the highest limit cost it.
        """
        job, mates, owner = instruction.job, instruction.turns[0].beside, instruction.turns[0].owner
        models, limit = self._models, instruction.limit
        if owner is None:
            return self.packed(job, mates) * limit
        if owner == job:
            return guest_rates(models[job], [models[other] for other in mates], limit)[0]
        guests = [job, *(other for other in mates if other != owner)]
        return guest_rates(models[owner], [models[guest] for guest in guests], limit)[1][0]

    def pause_ms(self, instruction: Share) -> int:
        """How long a job holds its GPUs before it works: it was migrated."""
        return round(self._models[instruction.job].migrate_s * MS) if instruction.moved else 0

    def _speed(self, job: int, placement: Placement) -> float:
        """By affinity and, for an elastic job, the number of GPUs (linear)."""
        known = self._speeds.get(job)
        if known is not None and known[0] is placement:
            return known[1]
        of = self._jobs[job]
        speed = self._locality.rate(self._models[job], placement)
        if of.elastic:
            speed *= placement.gpus / of.gpus
        self._speeds[job] = placement, speed
        return speed

    # -- measurements -------------------------------------------------------------------------------------------------

    def utilization(self, job: int) -> float:
        """Share of the time of its GPUs that the job uses alone."""
        return self._models[job].utilization

    def memory_gib(self, job: int) -> float:
        """Most memory that the job uses on a GPU."""
        return self._models[job].memory_gib

    def memory_min_gib(self, job: int) -> float:
        """Least memory with which the job can go on."""
        return self._models[job].memory_min_gib

    def packed(self, job: int, others: Sequence[int]) -> float:
        """The rate of a job that is packed with others."""
        models = self._models
        return packed_rates([models[job], *[models[other] for other in others]], self._law)[0]

    def rate(self, job: int) -> float:
        """Its rate while it has its turn, against running alone there."""
        return self._beside.get(job, 1.0)
