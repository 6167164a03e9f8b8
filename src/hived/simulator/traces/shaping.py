"""Clock compression of a trace, to raise or lower its load."""

from __future__ import annotations

import math
from dataclasses import replace

from ...errors import InputError
from .fields import MAX_SECONDS
from .model import MS, Trace


def compress_clock(trace: Trace, factor: float) -> Trace:
    """``trace`` with every submission at its time divided by ``factor``; durations and order stay. O(jobs).

    ``factor`` above 1 raises the offered load by as much, below 1 lowers it. The division is exact, then
    rounded half up to whole milliseconds: the same on every machine. The factor is added to the name; a factor
    of 1 gives ``trace`` itself.

    Raises :class:`~hived.errors.InputError` if ``factor`` is not finite, not above 0, or so small that times
    leave the range of a trace.
    """
    if not math.isfinite(factor) or factor <= 0:
        raise InputError(f"the clock cannot be compressed by {factor}: give a finite factor above 0")
    if factor == 1:
        return trace
    above, below = factor.as_integer_ratio()
    jobs = tuple(job._replace(submit_ms=(2 * job.submit_ms * below + above) // (2 * above)) for job in trace.jobs)
    if jobs and max(job.submit_ms for job in jobs) > MAX_SECONDS * MS:
        raise InputError(f"a clock compressed by {factor} runs past {MAX_SECONDS} seconds: give a larger factor")
    return replace(trace, name=f"{trace.name}, clock x{factor:g}", jobs=jobs)
