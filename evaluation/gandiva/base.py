"""Clusters, jobs and measures of Gandiva's experiments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import policies_of
from hived.simulator.models import Models
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.simulator.traces.model import MS
from hived.simulator.work import Work
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from ..results import Floats

MINUTE_MS = 60 * MS
GPUS_PER_SERVER = 4
#: what a figure that depends on the contention law is repeated with: quantity and factor
PERTURBED = (("", 1.0), ("utilization", 0.7), ("utilization", 1.3), ("capacity", 0.7), ("capacity", 1.3))


def cluster_of(servers: int) -> ClusterSpec:
    """Servers of 4 GPUs, all of one tenant."""
    data = {
        "physicalCluster": {
            "cellTypes": {
                "SERVER": {"childCellType": "GPU", "childCellNumber": GPUS_PER_SERVER, "isNodeLevel": True},
                "CLUSTER": {"childCellType": "SERVER", "childCellNumber": servers},
            },
            "physicalCells": [
                {"cellType": "CLUSTER", "cellChildren": [{"cellAddress": f"server-{n}"} for n in range(servers)]}
            ],
        },
        "virtualClusters": {"all": {"virtualCells": [{"cellType": "CLUSTER.SERVER", "cellNumber": servers}]}},
    }
    return spec_from_dict(data)


def job(name: str, gpus: int, minutes: float, at: float = 0.0, model: str = "*", *, elastic: bool = False) -> TraceJob:
    """A job that takes ``minutes`` alone; ``at``: the minute of its submission."""
    return TraceJob(
        name, "all", round(at * MINUTE_MS), round(minutes * MINUTE_MS), gpus, "pass", model=model, elastic=elastic
    )


def play(jobs: Sequence[TraceJob], servers: int, policy: str, models: Models | None = None) -> Record:
    """Simulate on a cluster of one tenant."""
    spec = cluster_of(servers)
    policies = policies_of(spec, policy)
    cluster = Cluster(spec, sharing=Sharing.PRIVATE, rank=policies.rank, ranks=policies.ranks)
    work = Work(jobs, spec, models or Models.load())
    return simulate(cluster, policies, jobs, opportunistic=False, work=work)


def perturbed(quantity: str, factor: float) -> Models:
    """The models, with one quantity scaled."""
    models = Models.load()
    return models.scaled(quantity, factor) if quantity else models


def progress(record: Record, minutes: Floats, what: str = "rate") -> dict[str, list[float]]:
    """The rate (or share, or GPUs) of each job at these minutes. O(runs * minutes)."""
    found = {one.job_id: np.zeros(len(minutes)) for one in record.jobs}
    for run in record.runs:
        inside = (minutes * MINUTE_MS >= run.start) & (minutes * MINUTE_MS < run.end)
        found[record.jobs[run.job].job_id][inside] += run.gpus if what == "gpus" else getattr(run, what)
    return {name: values.tolist() for name, values in found.items()}


def nodes_at(record: Record, name: str, minute: float) -> list[str]:
    """The servers of a job at a minute."""
    runs = [run for run in record.runs if run.start <= minute * MINUTE_MS < run.end]
    return sorted({pod.node for run in runs if record.jobs[run.job].job_id == name for pod in run.placement.pods})


def completion(record: Record) -> float:
    """Mean completion time of the jobs that ended, in minutes."""
    times = [end - one.submit_ms for one, end in zip(record.jobs, record.finish, strict=True) if end >= 0]
    return float(np.mean(times)) / MINUTE_MS


def makespan(record: Record) -> float:
    """Minutes from the first submission to the last end."""
    return (max(record.finish) - record.jobs[0].submit_ms) / MINUTE_MS


def migrations(record: Record) -> int:
    """Intervals in which a job holds GPUs that it has moved to, and does no work yet."""
    return sum(run.rate == 0 for run in record.runs)
