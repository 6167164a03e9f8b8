"""Simulations of jobs that share GPUs: small clusters, jobs with models, and what became of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import AntMan, Gandiva
from hived.scheduling import Policies, Policy
from hived.scheduling.checks import check_scheduler
from hived.simulator.models import Models
from hived.simulator.record import Record, Run
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.simulator.traces.model import MS
from hived.simulator.work import Work
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from .sharing_reader import check_guests, check_runs

MINUTE = 60 * MS
MODELS = Models.load()


def cluster_spec(vcs: int | Mapping[str, int], gpus: int = 4, guests: str | Mapping[str, str] = "all") -> ClusterSpec:
    """Nodes of so many GPUs for each VC, or for one, and whose guests these have."""
    vcs = {"a": vcs} if isinstance(vcs, int) else vcs
    nodes = sum(vcs.values())
    accept = {vc: guests if isinstance(guests, str) else guests.get(vc, "none") for vc in vcs}
    spec: dict[str, Any] = {
        "physicalCluster": {
            "cellTypes": {
                "NODE": {"childCellType": "GPU", "childCellNumber": gpus, "isNodeLevel": True},
                "RACK": {"childCellType": "NODE", "childCellNumber": nodes},
            },
            "physicalCells": [{"cellType": "RACK", "cellChildren": [{"cellAddress": f"n{i}"} for i in range(nodes)]}],
        },
        "virtualClusters": {
            vc: {"guests": accept[vc], "virtualCells": [{"cellType": "RACK.NODE", "cellNumber": number}]}
            for vc, number in vcs.items()
        },
    }
    return spec_from_dict(spec)


def job(
    name: str, gpus: int, minutes: float, at: float = 0.0, model: str = "*", priority: int = 0, *,
    elastic: bool = False, mode: str = "", tenant: str = "a",
) -> TraceJob:  # fmt: skip
    """A job of so many minutes, submitted at a minute."""
    times = round(at * MINUTE), round(minutes * MINUTE)
    found = TraceJob(name, tenant, *times, gpus, "pass", model=model, priority=priority)
    return found._replace(mode=mode, elastic=elastic)


def play(
    spec: ClusterSpec, jobs: Sequence[TraceJob], policy: Policy | Policies, sharing: Sharing = Sharing.HIVED,
    early: bool = True, models: Models = MODELS,
) -> Record:  # fmt: skip
    """Simulate, with every index re-derived after every event, and the runs checked from outside."""
    work = Work(jobs, spec, models)
    cluster = Cluster(spec, sharing=sharing)
    record = simulate(cluster, policy, jobs, early, after_event=check_scheduler, work=work)
    if isinstance(policy, AntMan):
        check_guests(record, models, spec, policy.gpu_sharing.parameters.gpu_memory_gib if policy.gpu_sharing else 0.0)
    elif isinstance(policy, Gandiva):
        check_runs(record, {model.model: model.memory_gib for model in models})
    return record


def named(record: Record, name: str) -> list[Run]:
    """The runs of a job, in order of time."""
    number = next(number for number, one in enumerate(record.jobs) if one.job_id == name)
    return sorted([run for run in record.runs if run.job == number], key=lambda run: (run.start, run.placement.pods))
