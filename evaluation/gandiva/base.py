"""Clusters, jobs and measures of Gandiva's experiments."""

from __future__ import annotations

from collections.abc import Sequence

from hived.simulator.models import Models
from hived.simulator.record import Record
from hived.simulator.traces import TraceJob

from ..clusters import servers
from ..experiment import Evaluation
from ..simulations import LAWS, play

GANDIVA = Evaluation("gandiva", table1=False)
#: what a figure that depends on the contention law is repeated with: quantity and factor
PERTURBED = (("utilization", 0.7), ("utilization", 1.3), ("capacity", 0.7), ("capacity", 1.3), *LAWS)


def played(jobs: Sequence[TraceJob], number: int, policy: str, models: Models | None = None) -> Record:
    """Simulate on so many servers of 4 GPUs, all of one tenant."""
    return play(servers(4, {"all": number}), jobs, policy, models=models or Models.load())


def migrations(record: Record) -> int:
    """Intervals in which a job holds GPUs that it has moved to, and does no work yet."""
    return sum(run.rate == 0 for run in record.runs)
