"""Changes of a trace before it is simulated: jobs chosen by an expression, a window of days, a sample, a faster clock.

Each is added to the trace's name, so that every title has it. A change that leaves no job is an error.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import replace

from ...errors import InputError
from ...words import counted
from .fields import MAX_SECONDS, shown
from .frames import FILTER_COLUMNS, job_frame
from .model import MS, Trace

_DAY_MS = 86_400 * MS
_MOST_DAYS = MAX_SECONDS // 86_400


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


def read_window(text: str) -> tuple[float, float]:
    """The days of ``DAY:DAY``, for example ``10:20`` or ``0.5:2``; ``10:`` has no end, ``:20`` begins at 0.

    Raises :class:`~hived.errors.InputError` for any other text.
    """
    first, colon, last = text.partition(":")
    days = 0.0, 0.0
    try:
        days = float(first or 0), float(last or _MOST_DAYS)
    except ValueError:
        colon = ""
    if not colon:
        raise InputError(f"window {shown(text)}: give two days, DAY:DAY, for example 10:20")
    return days


def cut_window(trace: Trace, first: float, last: float) -> Trace:
    """The jobs submitted from day ``first`` on and before day ``last``, the window's start at 0. O(jobs).

    Days count from time 0 of the trace. Raises :class:`~hived.errors.InputError` unless 0 <= ``first`` < ``last``, and
    for a window without jobs.
    """
    if not 0 <= first < last <= _MOST_DAYS:
        raise InputError(f"window {first:g}:{last:g}: give two days from 0 on, the earlier one first")
    low, high = round(first * _DAY_MS), round(last * _DAY_MS)
    jobs = tuple(job._replace(submit_ms=job.submit_ms - low) for job in trace.jobs if low <= job.submit_ms < high)
    days = f"days {first:g}:{last:g}" if last < _MOST_DAYS else f"days from {first:g} on"
    if not jobs:
        raise InputError(f"{trace.name}: no job is submitted on {days}: {_range(trace)}")
    return replace(trace, name=f"{trace.name}, {days}", jobs=jobs)


def sample_jobs(trace: Trace, share: float, seed: int) -> Trace:
    """Each job of ``trace`` with the probability ``share``, drawn by ``seed`` and its name. O(jobs).

    A job is kept if a hash of seed and name, uniform in 0 to 1, is below ``share``: the same jobs on every machine,
    whatever other jobs the trace has, and a larger share keeps those of a smaller one. Raises
    :class:`~hived.errors.InputError` unless 0 < ``share`` <= 1, and for a sample without jobs.
    """
    if not 0 < share <= 1:
        raise InputError(f"sample {share:g}: give the share of the jobs to keep, above 0, at most 1")
    limit = share * 2.0**64  # exact
    jobs = tuple(job for job in trace.jobs if _draw(seed, job.job_id) < limit)
    if not jobs:
        raise InputError(f"{trace.name}: a sample of {share:g} with seed {seed} has no job: {_range(trace)}")
    return replace(trace, name=f"{trace.name}, sample {share:g} seed {seed}", jobs=jobs)


def _draw(seed: int, job_id: str) -> int:
    """64 random bits for a job."""
    digest = hashlib.blake2b(f"{seed}:{job_id}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def filter_jobs(trace: Trace, expression: str) -> Trace:
    """The jobs for which ``expression`` is true; Polars' SQL, in :data:`~.frames.FILTER_COLUMNS`. O(jobs).

    For example ``gpus >= 8 and duration > 3600``, ``tenant in ('a', 'b')``, ``model like 'BERT%'``; ``submit`` and
    ``duration`` are in seconds. Raises :class:`~hived.errors.InputError` for an expression that cannot be read or is
    not true or false, for one that no job meets.
    """
    import polars as pl

    where = f"filter {shown(expression, 80)}"
    # in SQL, user is a function unless it is in quotation marks
    words = re.sub(r"""'[^']*'|"[^"]*"|\buser\b""", lambda word: '"user"' if word[0] == "user" else word[0], expression)
    try:
        found = job_frame(trace.jobs).select(pl.sql_expr(words))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).partition("\n")[0].partition("; valid columns")[0]
        columns = ", ".join(FILTER_COLUMNS)
        raise InputError(f"{where}: {reason}; columns are {columns}; text is in single quotes") from None
    if found.dtypes != [pl.Boolean] or len(found) not in (1, len(trace.jobs)):
        raise InputError(f"{where}: is not true or false of a job; compare something, for example gpus >= 8")
    kept = found.to_series()
    if len(kept) == 1:  # without a column, or of all jobs together
        kept = kept.new_from_index(0, len(trace.jobs))
    jobs = tuple(job for job, keep in zip(trace.jobs, kept, strict=True) if keep)
    if not jobs:
        raise InputError(f"{trace.name}: no job meets the {where}: {_range(trace)}")
    return replace(trace, name=f"{trace.name}, {' '.join(expression.split())}", jobs=jobs)


def _range(trace: Trace) -> str:
    """What ``trace`` has, for an error."""
    if not trace.jobs:
        return "the trace has no jobs"
    days = [job.submit_ms / _DAY_MS for job in trace.jobs]
    gpus = [job.gpus for job in trace.jobs]
    spans = [job.duration_ms // MS for job in trace.jobs]
    return (
        f"the trace has {counted(len(trace.jobs), 'job')}, submitted on days {min(days):.2f} to {max(days):.2f}, "
        f"of {min(gpus)} to {max(gpus)} GPUs and {min(spans)} to {max(spans)} s"
    )
