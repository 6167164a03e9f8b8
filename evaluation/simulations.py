"""Simulations as data: a workload, what is changed of it, and the arms that are compared on it.

A :class:`Simulation` says everything that determines its result, so that equal ones of several experiments run once,
and an interrupted reproduction continues. :func:`carry_out` runs one and returns plain data, which :mod:`~.results`
reads.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import yaml

from hived import __version__
from hived.cluster.sharing import BindingKind, Sharing
from hived.errors import InputError
from hived.simulator.experiment import Results, run_experiment
from hived.simulator.models import assign_models
from hived.simulator.parallel import Task
from hived.simulator.planner import Levels, demands_of, equal_base, make_plan
from hived.simulator.scenario import Scenario
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
from hived.spec import ClusterSpec, parse_spec, share_nodes
from hived.spec.quotas import equal_nodes, share_out

from .measures import measured

#: of the measures and of what is simulated: results that were kept under another one are not read
MEASURES = 3
GPUS_PER_NODE = 8
QUOTAS = tuple((row.tenant, Decimal(repr(row.quota_percent))) for row in TABLE1)
TENANTS = tuple(tenant for tenant, _ in QUOTAS)
#: the one VC of a cluster without quotas
EVERYBODY = "everybody"
#: what of a workload determines a result: the clock is the simulation's
_DETERMINE = ("sha256", "jobs", "days", "window", "skip_bad_rows", "still_running")
_HALVES = {8: "NODE", 4: "NODE.SOCKET", 2: "NODE.SOCKET.GPU-PAIR", 1: "NODE.SOCKET.GPU-PAIR.GPU"}


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace, and the clocks at which it loads the clusters of the paper."""

    name: str  #: in the names of files
    path: str | None  #: None: the synthetic trace
    sha256: str | None
    jobs: int  #: of the synthetic trace
    days: int
    clock: float  #: on 279 nodes
    crowded: float  #: on 200 nodes
    window: tuple[float, float] | None  #: days of the trace, before the clock is changed
    skip_bad_rows: bool = False
    still_running: str = StillRunning.KEEP.value

    def read(self) -> Trace:
        """The whole trace."""
        if self.path is None:
            return generate_table1(self.jobs, self.days)
        return read_trace(self.path, skip_bad_rows=self.skip_bad_rows, still_running=StillRunning(self.still_running))

    @property
    def identity(self) -> dict[str, Any]:
        """What of it determines a result."""
        return {name: value for name, value in asdict(self).items() if name in _DETERMINE}


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of a simulation."""

    name: str
    scheme: str
    policy: str = "yarn-cs"
    binding: str = BindingKind.DYNAMIC.value
    levels: str = Levels.NODE.value  #: of the cells: nodes alone, or from a GPU to a node by each tenant's demand
    quotas: bool = True  #: False: one VC for all tenants


def arms(policy: str = "yarn-cs") -> tuple[Arm, ...]:
    """Private, quota and hived."""
    return tuple([Arm(scheme.value, scheme.value, policy) for scheme in Sharing])


@dataclass(frozen=True, slots=True)
class Simulation:
    """A workload on a cluster, under several arms."""

    workload: Workload
    nodes: int
    arms: tuple[Arm, ...]
    clock: float = 1.0
    gone: tuple[str, ...] = ()  #: tenants that have left, with their nodes
    reshaped: tuple[str, ...] = ()  #: tenants all of whose jobs are of 8 GPUs; then those of the others are of one
    soft: float = 0.0
    #: a window of so many days that begins at a random time, with each job at random, by seed; 0: the whole trace
    days: int = 0
    share: float = 1.0
    seed: int = 1
    mix: str = ""  #: models of the jobs, drawn by these weights; "": none

    def task(self, label: str) -> Task:
        """The task that runs it."""
        changes = {name: value for name, value in asdict(self).items() if name != "workload"}
        identity = {"hived": __version__, "measures": MEASURES, "workload": self.workload.identity, **changes}
        return Task(label, carry_out, (self,), identity)

    @property
    def cost(self) -> float:
        """Roughly, to begin with the longest."""
        weights = {"yarn-cs": 1.0, "gandiva": 10.0}
        return (self.share if self.days else 10.0) * sum(weights.get(arm.policy, 5.0) for arm in self.arms)


def digest(path: Path) -> str:
    """The SHA-256 of a file. Raises :class:`~hived.errors.InputError`."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


@lru_cache(maxsize=1)
def trace_of(workload: Workload) -> Trace:
    """The trace of a workload at its own clock."""
    trace = workload.read()
    return trace if workload.window is None else cut_window(trace, *workload.window)


def prepared(simulation: Simulation) -> Trace:
    """The jobs that a simulation plays."""
    trace = trace_of(simulation.workload)
    if simulation.gone:
        trace = replace(trace, jobs=tuple([job for job in trace.jobs if job.tenant not in simulation.gone]))
    if simulation.reshaped:
        trace = reshape(trace, simulation.reshaped, simulation.seed)
    if simulation.days:
        last = trace.jobs[-1].submit_ms / 86_400_000
        first = Random(simulation.seed).uniform(0, max(0.0, last - simulation.days))
        trace = cut_window(trace, first, first + simulation.days)
    if simulation.share < 1:
        trace = sample_jobs(trace, simulation.share, simulation.seed)
    if simulation.mix:
        trace = replace(trace, jobs=assign_models(trace.jobs, simulation.mix, simulation.seed))
    return compress_clock(trace, simulation.clock)


def reshape(trace: Trace, large: Sequence[str], seed: int) -> Trace:
    """``trace`` with jobs of 8 GPUs for the tenants ``large`` and of one GPU for the others (Figure 8 of HiveD).

    Each GPU that a tenant asks for keeps its duration: a job of g GPUs becomes g jobs of one GPU. Those of similar
    durations become jobs of 8 GPUs, of their mean duration, so that the GPU time of the tenant stays. A tenant's
    submission times are drawn from its own: without repetition as far as there are enough. Deterministic. O(GPUs).
    """
    random = Random(seed)
    jobs: list[TraceJob] = []
    for tenant in sorted({job.tenant for job in trace.jobs}):
        own = [job for job in trace.jobs if job.tenant == tenant]
        spans = sorted(job.duration_ms for job in own for _ in range(job.gpus))
        size = GPUS_PER_NODE if tenant in large else 1
        durations = [sum(spans[at : at + size]) // size for at in range(0, len(spans), size)]
        random.shuffle(durations)
        times = [job.submit_ms for job in own]
        number = len(durations)
        drawn = random.sample(times, number) if number <= len(times) else random.choices(times, k=number)
        jobs += [
            TraceJob(f"{tenant}-{at}", tenant, submit, duration, size, "pass")
            for at, (submit, duration) in enumerate(zip(drawn, durations, strict=True))
        ]
    jobs.sort(key=lambda job: (job.submit_ms, job.job_id))
    return replace(trace, name=f"{trace.name}, {' '.join(large)} in 8 GPUs, others in 1", jobs=tuple(jobs))


def shares_of(nodes: int) -> dict[str, int]:
    """GPUs of each tenant of Table 1: whole nodes, or single GPUs of a cluster too small for that."""
    if nodes >= 100:
        return {
            tenant: GPUS_PER_NODE * number for tenant, number in zip(TENANTS, share_nodes(nodes, QUOTAS), strict=True)
        }
    percents = [int(100 * percent) for _, percent in QUOTAS]
    return dict(zip(TENANTS, share_out(GPUS_PER_NODE * nodes, percents, [1] * len(QUOTAS)), strict=True))


def cluster_of(nodes: int, gone: Sequence[str] = (), *, quotas: bool = True, guests: str = "none") -> ClusterSpec:
    """``nodes`` nodes of 8 GPUs shared by Table 1's quotas, without the tenants ``gone`` and their GPUs.

    ``guests``: whose guests every tenant accepts.

    Each tenant's GPUs are as many nodes as possible, and one cell of each smaller size where the rest has it.
    """
    shares = {tenant: gpus for tenant, gpus in shares_of(nodes).items() if tenant not in gone}
    left = nodes - sum(gpus for tenant, gpus in shares_of(nodes).items() if tenant in gone) // GPUS_PER_NODE
    if not quotas:
        shares = {EVERYBODY: GPUS_PER_NODE * left}
    clusters = {}
    for tenant, gpus in shares.items():
        cells = [(GPUS_PER_NODE, gpus // GPUS_PER_NODE), *((size, gpus // size % 2) for size in (4, 2, 1))]
        clusters[tenant] = {
            "guests": guests,
            "virtualCells": [{"cellType": _HALVES[size], "cellNumber": number} for size, number in cells if number],
        }
    data = {"physicalCluster": equal_nodes(left, GPUS_PER_NODE), "virtualClusters": clusters}
    return parse_spec(yaml.safe_dump(data, sort_keys=False), f"Table 1's quotas of {nodes} nodes")


def planned_cluster(nodes: int, trace: Trace) -> ClusterSpec:
    """The same GPUs of each tenant, as cells from a GPU to a node, by its GPU time per size of job in ``trace``."""
    demands = {demand.tenant: demand for demand in demands_of(trace)}
    shares = {tenant: gpus for tenant, gpus in shares_of(nodes).items() if tenant in demands}
    base = equal_base(nodes, GPUS_PER_NODE, list(shares))
    return make_plan(base, [demands[tenant] for tenant in shares], list(shares.values()), Levels.ALL).spec


def carry_out(simulation: Simulation) -> dict[str, Any]:
    """Run every arm; the measures of all of them, as plain data."""
    trace = prepared(simulation)
    runs: dict[str, Results] = {}
    for arm in simulation.arms:
        if arm.levels == Levels.ALL:
            spec = planned_cluster(simulation.nodes, trace)
        else:
            spec = cluster_of(simulation.nodes, simulation.gone, quotas=arm.quotas)
        played = trace if arm.quotas else _merged(trace)
        scenario = Scenario(
            schemes=arm.scheme, policy=arm.policy, binding=arm.binding, soft=simulation.soft, seed=simulation.seed
        )
        runs[arm.name] = run_experiment(spec, played, scenario)
    quotas = {tenant: gpus for tenant, gpus in shares_of(simulation.nodes).items() if tenant not in simulation.gone}
    return measured(trace, runs, quotas)


def _merged(trace: Trace) -> Trace:
    return replace(trace, jobs=tuple([job._replace(tenant=EVERYBODY) for job in trace.jobs]))


def offered_load(trace: Trace, nodes: int) -> float:
    """Mean GPUs asked for while jobs are submitted, over those of the cluster."""
    asked = sum(job.gpus * job.duration_ms for job in trace.jobs)
    return asked / max(1, trace.jobs[-1].submit_ms) / (GPUS_PER_NODE * nodes)


def demand_over_time(jobs: Sequence[TraceJob], step_ms: int, steps: int) -> list[float]:
    """Mean GPUs asked for in each step, if every job ran at once. O(jobs + steps)."""
    change: Counter[int] = Counter()
    for job in jobs:
        for time, sign in ((job.submit_ms, 1), (job.submit_ms + job.duration_ms, -1)):
            at, inside = divmod(min(time, step_ms * steps), step_ms)
            change[at] += sign * job.gpus * (step_ms - inside)
            change[at + 1] += sign * job.gpus * inside
    return [value / step_ms for value in accumulate(change[at] for at in range(steps))]


def tenants_of(trace: Trace) -> Mapping[str, int]:
    """Jobs of each tenant."""
    return Counter(job.tenant for job in trace.jobs)
