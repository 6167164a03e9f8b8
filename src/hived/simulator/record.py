"""The raw record of one simulation, in milliseconds; every metric and figure is derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hived.cluster.decisions import Placement
from hived.exchange import Trade
from hived.scheduling import Kind

from .exchange import Sample
from .traces import TraceJob


def gpus_of(placement: Placement) -> int:
    """GPUs of all pods."""
    return sum([len(pod.leaf_cells) for pod in placement.pods])


class Run(NamedTuple):
    """An interval in which a job ran without a change of placement, kind, share or rate. Never empty.

    A sliced job that changes GPUs has several of one time, one for each placement; its share and rate are their sums.
    """

    job: int  #: number in the trace
    start: int
    end: int
    kind: Kind
    placement: Placement
    share: float = 1.0  #: fraction of the time for which it has these GPUs; below 1 if it takes turns on them
    rate: float = 1.0  #: work done here per second, against running alone at best affinity

    @property
    def gpus(self) -> int:
        """GPUs that it held."""
        return gpus_of(self.placement)


@dataclass(slots=True)
class Record:
    """One scheme and policy on one trace. Lists are indexed by the job's number in the trace."""

    scheme: str
    policy: str
    jobs: Sequence[TraceJob]
    end: int = 0  #: time of the last event, or of ``--until``
    runs: list[Run] = field(default_factory=list)  #: in the order in which they ended
    first_start: list[int] = field(default_factory=list)  #: -1: never started
    finish: list[int] = field(default_factory=list)  #: -1: never finished
    preemptions: list[int] = field(default_factory=list)
    #: time that each job takes alone at best affinity; empty: no job models, and its duration counts
    alone: list[int] = field(default_factory=list)
    waits: NDArray[np.int64] | None = None  #: every job's queueing delay, cached by :func:`~.metrics.queues`
    preempted_gpus: int = 0  #: GPUs taken from opportunistic jobs, summed over all preemptions
    preempted_at: list[tuple[int, int]] = field(default_factory=list)  #: the same: time and GPUs of each preemption

    trades: list[Trade] = field(default_factory=list)  #: of cells, between tenants
    looks: list[Sample] = field(default_factory=list)  #: what each tenant had and used whenever they might trade

    def queue(self, job: int) -> int:
        """The queueing delay of a finished job, including waits after preemptions and time lost to sharing GPUs."""
        alone = self.alone[job] if self.alone else self.jobs[job].duration_ms
        return self.finish[job] - self.jobs[job].submit_ms - alone
