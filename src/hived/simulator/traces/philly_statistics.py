"""Summary statistics of the Philly trace, from which the synthetic trace is drawn; they contain none of its jobs.

Source: "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", Jeon et al., USENIX
ATC'19; trace published under CC-BY-4.0 at https://github.com/msr-fiddle/philly-traces. ``philly_statistics.json`` was
computed by ``tools/philly_statistics.py`` from 89,392 of its jobs in 61 days (2017-10-01 to 12-01), their virtual
clusters named after HiveD's tenants; do not edit it by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pydantic import TypeAdapter

from .quantiles import QuantileTable


@dataclass(frozen=True, slots=True)
class Durations:
    """The seconds that jobs of ``from_gpus`` to ``to_gpus`` GPUs held their GPUs, all attempts summed.

    Of the sorted seconds, those at up to 17 ranks; for each piece between two ranks, the bend that gives it its real
    mean.
    """

    group: str | None  #: the first word of the tenants' names, "res" or "prod"; None: both, where jobs are few
    from_gpus: int
    to_gpus: int
    seconds: QuantileTable


@dataclass(frozen=True, slots=True)
class Submissions:
    """The submission pattern of a tenant.

    A *sweep* is a longest run of jobs of one tenant and size class, each submitted at most 60 s after the one before.
    """

    tenant: str
    small_sweeps: QuantileTable  #: jobs in a sweep of 1-GPU jobs
    large_sweeps: QuantileTable | None  #: jobs in a sweep of larger jobs; None: it has no larger ones
    gaps: QuantileTable  #: seconds from one job of a sweep to the next


@dataclass(frozen=True, slots=True)
class Statistics:
    """All statistics of the trace."""

    durations: tuple[Durations, ...]
    pass_shares: tuple[float, ...]  #: by size class, the share of jobs whose status is ``pass``
    #: how many jobs have each multiple of 8 GPUs from 16 on: (GPUs, jobs). Other sizes (12, 20) are left out
    large_jobs: tuple[tuple[int, int], ...]
    submissions: tuple[Submissions, ...]
    hour_weights: tuple[int, ...]  #: how many sweeps begin in each hour of the day, by the log's clock
    #: on each day of the week, Sunday first: the count over how often the day occurs in the trace, times 1,000
    day_weights: tuple[int, ...]


@cache
def philly() -> Statistics:
    """The statistics of the Philly trace."""
    file = files(__package__) / "philly_statistics.json"
    return TypeAdapter(Statistics).validate_json(file.read_bytes())
