"""The schedulers that AntMan is compared with (5.2), and what is measured of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import policies_of
from hived.policies.antman import GuestSharing, as_guests
from hived.scheduling import Policy, Reaction
from hived.simulator.models import Models
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.simulator.work import Work
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

MINUTE_MS = 60_000
#: tenants of the testbed: one has the quota of all GPUs, the other none
GUARANTEED, OPPORTUNISTIC = "guaranteed", "opportunistic"
ARMS = ("YARN-CS", "YARN-CS with preemption", "packing with profiles", "AntMan")


class Packing(Policy):
    """Gandiva's packing with profiles (5.2): jobs of one queue join running ones where, by their profiles, this gains.

    Every job is opportunistic: nobody has a turn, and nothing is protected.
    """

    name = "packing"

    def __init__(self) -> None:
        self.gpu_sharing = as_guests(GuestSharing(_ANY, moves=False, limits=False))


#: more than the jobs of a GPU use together
_ANY = 100.0


def testbed(servers: int) -> ClusterSpec:
    """Servers of 8 GPUs, all of them the first tenant's."""
    data = {
        "physicalCluster": {
            "cellTypes": {
                "SERVER": {"childCellType": "GPU", "childCellNumber": 8, "isNodeLevel": True},
                "CLUSTER": {"childCellType": "SERVER", "childCellNumber": servers},
            },
            "physicalCells": [
                {"cellType": "CLUSTER", "cellChildren": [{"cellAddress": f"server-{n}"} for n in range(servers)]}
            ],
        },
        "virtualClusters": {
            tenant: {"guests": "all", "virtualCells": [{"cellType": "CLUSTER.SERVER", "cellNumber": number}]}
            for tenant, number in ((GUARANTEED, servers), (OPPORTUNISTIC, 0))
        },
    }
    return spec_from_dict(data)


def play(arm: str, jobs: Sequence[TraceJob], servers: int, models: Models) -> Record:
    """Simulate one of :data:`ARMS`. Tenants are those of the jobs, and with them who may be preempted or is a guest."""
    spec = testbed(servers)
    early = arm != ARMS[0]
    played = [_as_of(arm, job) for job in jobs]
    by_arm: dict[str, str | Policy] = {ARMS[2]: Packing(), ARMS[3]: "antman"}
    policies = policies_of(spec, by_arm.get(arm, "yarn-cs"))
    if arm == ARMS[1]:
        for policy in policies.all:
            policy.displace(Reaction.RESTART)
    cluster = Cluster(spec, sharing=Sharing.QUOTA, rank=policies.rank, ranks=policies.ranks)
    record = simulate(cluster, policies, played, early, work=Work(played, spec, models))
    record.jobs = jobs
    return record


def _as_of(arm: str, job: TraceJob) -> TraceJob:
    """A job as the scheduler of an arm sees it: YARN-CS without preemption and packing have one queue for all."""
    if arm == ARMS[0]:
        return job._replace(tenant=GUARANTEED, mode="guaranteed")
    if arm == ARMS[2]:
        return job._replace(tenant=GUARANTEED, mode="opportunistic")
    return job._replace(mode=job.tenant)


def completion(record: Record, tenant: str = "") -> float:
    """Mean completion time of the jobs of a tenant, or of all, in minutes."""
    ended = zip(record.jobs, record.finish, strict=True)
    times = [end - one.submit_ms for one, end in ended if end >= 0 and tenant in ("", one.tenant)]
    return float(np.mean(times)) / MINUTE_MS if times else float("nan")


def in_use(record: Record, models: Models, gpus: int, until: int) -> tuple[float, float]:
    """The mean share of the GPUs with a job up to ``until``, and their mean utilization."""
    changes: dict[tuple[str, int], list[tuple[int, int]]] = {}
    used = 0.0
    for run in record.runs:
        start, end = min(run.start, until), min(run.end, until)
        if start < end:
            used += run.gpus * run.rate * models.of(record.jobs[run.job].model).utilization * (end - start)
            for pod in run.placement.pods:
                for leaf in pod.leaf_cells:
                    changes.setdefault((pod.node, leaf), []).extend(((start, 1), (end, -1)))
    busy = 0
    for of_gpu in changes.values():
        of_gpu.sort()
        jobs = since = 0
        for time, change in of_gpu:
            if not jobs:
                since = time
            jobs += change
            if not jobs:
                busy += time - since
    return busy / (until * gpus), used / (until * gpus)
