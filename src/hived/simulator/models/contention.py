"""The law of contention: how fast jobs run that share GPUs at the same time (``docs/reference/models.md``). Pure.

Packed jobs (Gandiva, OSDI'18, 4.1 and Table 1) are equal. A model's *load* is its utilization over its capacity, which
is 1 / (1 + gain) with the gain of Table 1: the part of a packed GPU that it needs to run at full speed. Guests (AntMan,
OSDI'20, 3.1.2 and 3.3) have the time that the owner of the GPU leaves idle.
"""

from __future__ import annotations

from collections.abc import Sequence

from .table import JobModel

#: what an owner loses to guests that may use all of its idle time: 91.8 minutes for 91.1 (AntMan, Table 2). Figure 12
#: has 20.8 for 20.1, which is 3.4%
OWNER_LOSS = 1 - 91.1 / 91.8


def packed_rate(models: Sequence[JobModel]) -> float:
    """The rate of each job of a packed set, all on the same GPUs, against running alone: above 0, at most 1. O(jobs).

    1. No load is above 1: the rate is min(1, C / D). D is the sum of the utilizations; C is the mean of the capacities
       weighted by them (the harmonic one, so C / D = 1 / sum of loads, and no further demand makes a set faster).
       The sum of the rates is at least 1.
    2. Some load is above 1: kernels of this model fill the GPU, and the driver slices time between processes, with a
       loss. The sum of the rates is that of the worst member, 1 / its load, below 1, in equal parts.
    """
    if len(models) < 2:
        return 1.0
    loads = [model.load for model in models]
    worst = max(loads)
    if worst > 1:
        return 1 / (worst * len(loads))
    return min(1.0, 1 / sum(loads))


def guest_rates(
    owner: JobModel, guests: Sequence[JobModel], compute_limit: float = 1.0
) -> tuple[float, tuple[float, ...]]:
    """The rate of the owner of GPUs and those of its guests, while it trains, against each alone. O(guests).

    Kernels of guests start in the owner's idle time only: together they have at most ``compute_limit`` (0 to 1) of it,
    in proportion to their utilizations. A guest's rate is its GPU time over its utilization, at most 1, and 0 if it has
    none. The owner loses ``compute_limit`` of :data:`OWNER_LOSS` while guests compute.
    """
    time = compute_limit * (1 - owner.utilization)
    if not guests or time <= 0:
        return 1.0, (0.0,) * len(guests)
    rate = min(1.0, time / sum([guest.utilization for guest in guests]))
    return 1 - OWNER_LOSS * compute_limit, (rate,) * len(guests)


def packed_memory(models: Sequence[JobModel]) -> float:
    """The most memory, in GiB, that jobs on the same GPU allocate together. O(jobs)."""
    return sum([model.memory_gib for model in models])
