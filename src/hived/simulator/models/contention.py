"""The law of contention: how fast jobs run that share GPUs at the same time (``docs/reference/models.md``). Pure.

A model's *load* is its utilization over its capacity, which is 1 / (1 + gain) with the gain of Gandiva's Table 1
(OSDI'18): the part of a packed GPU that it needs to run at full speed. Packed jobs (4.1) get in each other's way by
chance, and have what the GPU gives; a model whose load is above 1 *fills* the GPU, and has most of it. Guests (AntMan,
OSDI'20, 3.1.2 and 3.3) have the time that the owner of the GPU leaves idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from .table import LAW, Contention, JobModel

#: what an owner loses to guests that may use all of its idle time: 91.8 minutes for 91.1 (AntMan, Table 2). Figure 12
#: has 20.8 for 20.1, which is 3.4%
OWNER_LOSS = 1 - 91.1 / 91.8
#: of a GPU with models that fill it, the most that the others of the set have together: between two slices of the
#: driver of its own a job that fills the GPU waits for no more than that. Ours
_OTHERS = 0.5


def packed_rates(models: Sequence[JobModel], law: Contention = LAW) -> tuple[float, ...]:
    """The rates of the jobs of a packed set, all on the same GPUs, against running alone: above 0, at most 1.

    1. No load is above 1: a job of the load l asks for the rate 1 / (1 + w * l), w being ``law.overlap`` times the
       probability that some other job uses the GPU. Where they ask for more than the GPU, all are cut in proportion:
       the sum of rate * load is at most 1.
    2. Some load is above 1: the kernels of these models fill the GPU. The others have the rates of 1 without them, over
       1 + ``law.wait`` * l, since they find the GPU in use whenever they need it; and at most half of the GPU. What
       they leave is for those that fill it, in equal parts, with the loss of the worst of these: over its load.

    O(jobs squared); remembered by loads.
    """
    return _rates(tuple([model.load for model in models]), law)


@lru_cache(maxsize=50_000)
def _rates(loads: tuple[float, ...], law: Contention) -> tuple[float, ...]:
    if len(loads) < 2:
        return (1.0,) * len(loads)
    others = [load for load in loads if load <= 1]
    asked = []
    for at, load in enumerate(others):
        used = 1 - prod([1 - other for other in (*others[:at], *others[at + 1 :])])
        asked.append(1 / (1 + law.overlap * used * load))
    cut = max(1.0, sum([rate * load for rate, load in zip(asked, others, strict=True)]))
    full, left = [load for load in loads if load > 1], 0.0
    if full:
        asked = [rate / (1 + law.wait * load) for rate, load in zip(asked, others, strict=True)]
        taken = sum([load / (1 + law.wait * load) for load in others])
        cut *= max(1.0, taken / _OTHERS)
        left = (1 - min(taken, _OTHERS)) / (len(full) * max(full))
    rates = iter(asked)
    return tuple([left if load > 1 else next(rates) / cut for load in loads])


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
