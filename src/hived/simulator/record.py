"""What happened in one simulation: raw, in milliseconds, enough to derive every metric and figure from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hived.cluster.decisions import Placement
from hived.scheduling import Kind

from .traces import TraceJob


def gpus_of(placement: Placement) -> int:
    """GPUs of all pods."""
    return sum([len(pod.leaf_cells) for pod in placement.pods])


class Run(NamedTuple):
    """A job held GPUs, without a change of place or kind. Never empty."""

    job: int  #: number in the trace
    start: int
    end: int
    kind: Kind
    placement: Placement

    @property
    def gpus(self) -> int:
        """How many it held."""
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
    waits: NDArray[np.int64] | None = None  #: every job's queueing delay, once :func:`~.metrics.queues` was asked
    preempted_gpus: int = 0  #: GPUs taken from opportunistic jobs, all preemptions added up

    def queue(self, job: int) -> int:
        """All the waiting of a finished job, that after a preemption too."""
        return self.finish[job] - self.jobs[job].submit_ms - self.jobs[job].duration_ms
