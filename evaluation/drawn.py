"""Jobs of a trace for experiments whose papers give a distribution of durations alone."""

from __future__ import annotations

from random import Random

from .simulations import Workload, trace_of

_MINUTE_MS = 60_000


def drawn(workload: Workload, gpus: float, days: float, seed: int = 1) -> list[tuple[float, int, float]]:
    """Minute of submission, GPUs and minutes alone of jobs that keep ``gpus`` GPUs busy in the mean, in order.

    Drawn at random from the trace, of at most 8 GPUs, which count rounded up to a power of two, and of a minute to a
    day; each at its own time modulo ``days``. O(jobs of the trace).
    """
    left = gpus * days * 24 * 60
    fitting = [one for one in trace_of(workload).jobs if one.gpus <= 8 and 1 <= one.duration_ms / _MINUTE_MS <= 1440]
    Random(seed).shuffle(fitting)
    chosen = []
    for one in fitting:
        minutes = one.duration_ms / _MINUTE_MS
        chosen.append((one.submit_ms / _MINUTE_MS % (days * 24 * 60), one.gpus, minutes))
        left -= (1 << (one.gpus - 1).bit_length()) * minutes
        if left <= 0:
            break
    return sorted(chosen)
