"""Which job to pack with which, on the server where both take turns (Gandiva, OSDI'18, 4.2.2)."""

from __future__ import annotations

from math import inf

from hived.scheduling.probe import Probe

from .parameters import TimeSlicing
from .run_queue import RunQueue, Seat, Unit


def throughput(unit: Unit, probe: Probe) -> float:
    """Work per second of a unit while it has its slice: the sum of its jobs' rates, each against running alone."""
    return 1.0 if len(unit) == 1 else sum([probe.rate(seat.job) for seat in unit])


def members(unit: Unit, seat: Seat) -> tuple[int, ...]:
    """The jobs of a unit with one more."""
    return tuple(sorted([seat.job, *[other.job for other in unit]]))


def next_packing(
    queue: RunQueue, probe: Probe, parameters: TimeSlicing, now: float, per_second: float
) -> tuple[tuple[Seat, Unit] | None, float]:
    """The next packing to try: the job of the lowest utilization, with the unit of the lowest that has not failed yet.

    All jobs have been profiled, their memories fit, and they are of one number of GPUs and one priority. Without one,
    also when the next job has been profiled. O(jobs squared).
    """
    enough = parameters.profile_s * per_second
    next_profiled = inf
    profiled: set[Seat] = set()
    for seat in queue.seats:
        if seat.ran_by(now) >= enough * (1 - 1e-9):
            profiled.add(seat)
        elif seat.share:
            next_profiled = min(next_profiled, seat.since + (enough - seat.ran) / seat.share)
    ready = [unit for unit in queue.units if all(seat in profiled for seat in unit)]
    used = {unit: sum([probe.utilization(seat.job) for seat in unit]) for unit in ready}
    ready.sort(key=lambda unit: (used[unit], unit[0].job))
    memory = {unit: sum([probe.memory_gib(seat.job) for seat in unit]) for unit in ready}
    for single in ready:
        seat = single[0]
        if len(single) > 1 or seat.trials >= parameters.most_trials:
            continue
        for unit in ready:
            fits = memory[unit] + memory[single] <= parameters.gpu_memory_gib
            alike = unit[0].gpus == seat.gpus and unit[0].priority == seat.priority
            if unit is single or not fits or not alike:
                continue
            if members(unit, seat) not in queue.undone:
                return (seat, unit), next_profiled
    return None, next_profiled
