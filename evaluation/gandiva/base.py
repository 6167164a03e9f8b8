"""Clusters, jobs and measures of Gandiva's experiments."""

from __future__ import annotations

from collections.abc import Sequence

from ..experiment import Evaluation
from ..inside import Models, Record, TraceJob, play, servers
from ..simulations import MINUTE_MS

GANDIVA = Evaluation("gandiva", table1=False)
#: what a figure that depends on the contention law is repeated with: quantity and factor
PERTURBED = (("utilization", 0.7), ("utilization", 1.3), ("capacity", 0.7), ("capacity", 1.3))


def job(name: str, gpus: int, minutes: float, at: float = 0.0, model: str = "*", *, elastic: bool = False) -> TraceJob:
    """A job that takes ``minutes`` alone; ``at``: the minute of its submission."""
    submit, duration = round(at * MINUTE_MS), round(minutes * MINUTE_MS)
    return TraceJob(name, "all", submit, duration, gpus, "pass", model=model, elastic=elastic)


def played(jobs: Sequence[TraceJob], number: int, policy: str, models: Models | None = None) -> Record:
    """Simulate on so many servers of 4 GPUs, all of one tenant."""
    return play(servers(4, {"all": number}), jobs, policy, models=models or Models.load())


def perturbed(quantity: str, factor: float) -> Models:
    """The models, with one quantity scaled."""
    models = Models.load()
    return models.scaled(quantity, factor) if quantity else models


def makespan(record: Record) -> float:
    """Minutes from the first submission to the last end."""
    return (max(record.finish) - record.jobs[0].submit_ms) / MINUTE_MS


def migrations(record: Record) -> int:
    """Intervals in which a job holds GPUs that it has moved to, and does no work yet."""
    return sum(run.rate == 0 for run in record.runs)
