"""All that the evaluation takes from the insides of the simulator: nothing else here imports them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import policies_of
from hived.policies.antman import GuestSharing, as_guests
from hived.scheduling import Kind, Policy, Reaction
from hived.simulator.exchange import HOUR_MS, HourlyTrading
from hived.simulator.exchange_report import exchanged
from hived.simulator.experiment import Results, run_experiment, some
from hived.simulator.figures import styled
from hived.simulator.fragmentation import Pods, Spans
from hived.simulator.intervals import estimate
from hived.simulator.metrics import (
    WINDOW_MS,
    Usage,
    arrival_window,
    comparable_jobs,
    interval_means,
    queues,
    series,
    step,
    time_alone,
    window_means,
)
from hived.simulator.models import Models, assign_models
from hived.simulator.multi_job import Explorer, MultiJob
from hived.simulator.parallel import Kept, Task, all_cores, kept_results, run_tasks, write_whole
from hived.simulator.planner import Levels, demands_of, equal_base, make_plan
from hived.simulator.record import Record, Run
from hived.simulator.scenario import Scenario
from hived.simulator.simulation import simulate
from hived.simulator.traces import (
    TABLE1,
    StillRunning,
    Trace,
    TraceJob,
    compress_clock,
    cut_window,
    generate_table1,
    read_trace,
    sample_jobs,
)
from hived.simulator.traces.table1 import TOTAL_JOBS
from hived.simulator.work import Work
from hived.spec import ClusterSpec, parse_spec, share_nodes, spec_from_dict
from hived.spec.quotas import equal_nodes, share_out

__all__ = [
    "HOUR_MS",
    "TABLE1",
    "TOTAL_JOBS",
    "WINDOW_MS",
    "ClusterSpec",
    "Explorer",
    "GuestSharing",
    "HourlyTrading",
    "Kept",
    "Kind",
    "Levels",
    "Models",
    "MultiJob",
    "Pods",
    "Policy",
    "Record",
    "Results",
    "Run",
    "Sharing",
    "Spans",
    "StillRunning",
    "Task",
    "Trace",
    "TraceJob",
    "Usage",
    "all_cores",
    "arrival_window",
    "as_guests",
    "assign_models",
    "comparable_jobs",
    "compared",
    "compress_clock",
    "cut_window",
    "demands_of",
    "equal_base",
    "equal_nodes",
    "estimate",
    "exchanged",
    "generate_table1",
    "interval_means",
    "kept_results",
    "make_plan",
    "parse_spec",
    "play",
    "queues",
    "read_trace",
    "run_tasks",
    "sample_jobs",
    "series",
    "servers",
    "share_nodes",
    "share_out",
    "some",
    "spec_from_dict",
    "step",
    "styled",
    "time_alone",
    "window_means",
    "write_whole",
]  # fmt: skip


def play(
    spec: ClusterSpec,
    jobs: Sequence[TraceJob],
    policy: str | Policy = "yarn-cs",
    sharing: Sharing = Sharing.PRIVATE,
    loans: bool = False,
    *,
    models: Models | None = None,
    restarts: bool = False,
    **more: Any,
) -> Record:
    """Simulate ``jobs`` under a policy in every VC. ``more``: of the simulator.

    ``loans``: whether jobs run on cells that others leave idle; ``restarts``: whether a preempted job begins anew;
    ``models``: how fast jobs run on GPUs that they share.
    """
    policies = policies_of(spec, policy)
    if restarts:
        for one in policies.all:
            one.displace(Reaction.RESTART)
    cluster = Cluster(spec, sharing=sharing, rank=policies.rank, ranks=policies.ranks)
    driver = more.get("driver")
    work = None if models is None else Work([*jobs, *(driver.jobs if driver is not None else ())], spec, models)
    return simulate(cluster, policies, jobs, loans, work=work, **more)


def compared(
    spec: ClusterSpec, trace: Trace, schemes: Sequence[str], policy: str = "yarn-cs", binding: str = "dynamic",
    soft: float = 0.0, seed: int = 1,
) -> Results:  # fmt: skip
    """Play a trace under sharing schemes, as ``hived simulate`` does."""
    scenario = Scenario(schemes=schemes, policy=policy, binding=binding, soft=soft, seed=seed)
    return run_experiment(spec, trace, scenario)


def servers(gpus: int, shares: dict[str, int], guests: str = "none") -> ClusterSpec:
    """Equal servers of so many GPUs, shared by tenants in servers."""
    number = sum(shares.values())
    types = {
        "SERVER": {"childCellType": "GPU", "childCellNumber": gpus, "isNodeLevel": True},
        "CLUSTER": {"childCellType": "SERVER", "childCellNumber": number},
    }
    cells = [{"cellType": "CLUSTER", "cellChildren": [{"cellAddress": f"server-{n}"} for n in range(number)]}]
    clusters = {
        tenant: {"guests": guests, "virtualCells": [{"cellType": "CLUSTER.SERVER", "cellNumber": of}]}
        for tenant, of in shares.items()
    }
    data = {"physicalCluster": {"cellTypes": types, "physicalCells": cells}, "virtualClusters": clusters}
    return spec_from_dict(data)
