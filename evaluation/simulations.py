"""Simulations as data: a workload, what is changed of it, and the arms that are compared on it.

A :class:`Simulation` says everything that determines its result, so that equal ones of several experiments run once,
and an interrupted reproduction continues. :func:`carry_out` runs one and returns plain data, which :mod:`~.results`
reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from hived import InputError, __version__, simulate
from hived.simulator.metrics import interval_means
from hived.simulator.models import Models
from hived.simulator.parallel import Task
from hived.simulator.planner import Levels
from hived.simulator.record import Record
from hived.simulator.sizing import cluster_for
from hived.simulator.traces import (
    StillRunning,
    Trace,
    TraceJob,
    compress_clock,
    cut_window,
    generate_table1,
    read_trace,
)
from hived.spec import ClusterSpec

from .clusters import CROWDED_NODES, EVERYBODY, GPUS_PER_NODE, cluster_of, shares_of
from .measures import HOUR_MS, Floats, measured

#: of what is simulated and measured: results that were kept under another one are not read
MEASURES = 5
MINUTE_MS, DAY_MS = HOUR_MS // 60, 24 * HOUR_MS
#: what of a workload determines a result: the clock is the simulation's
_DETERMINE = ("sha256", "jobs", "days", "window", "skip_bad_rows", "still_running")


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

    def clock_on(self, nodes: int) -> float:
        """How much faster than the trace its clock goes on so many nodes."""
        return self.crowded if nodes == CROWDED_NODES else self.clock

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
    binding: str = "dynamic"
    levels: str = Levels.NODE.value  #: of the cells: nodes alone, or from a GPU to a node by each tenant's demand
    quotas: bool = True  #: False: one VC for all tenants


def arms(policy: str = "yarn-cs") -> tuple[Arm, ...]:
    """Private, quota and hived."""
    return tuple([Arm(scheme, scheme, policy) for scheme in ("private", "quota", "hived")])


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

    @property
    def identity(self) -> dict[str, Any]:
        """What determines its result."""
        return asdict(self) | {"workload": self.workload.identity}

    @property
    def cost(self) -> float:
        """Roughly, to begin with the longest."""
        weights = {"yarn-cs": 1.0, "gandiva": 10.0}
        return (self.share if self.days else 10.0) * sum(weights.get(arm.policy, 5.0) for arm in self.arms)


@dataclass(frozen=True, slots=True)
class Trial:
    """A function of a module, whose arguments are plain data, workloads or simulations, and whose result is plain."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    cost: float = 1.0  #: roughly, to begin with the longest

    def task(self, label: str) -> Task:
        """The task that runs it."""
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        given = [getattr(one, "identity", one) for one in self.arguments]
        identity = {"hived": __version__, "measures": MEASURES, "function": name, "arguments": given}
        return Task(label, self.function, self.arguments, identity)


def simulation(workload: Workload, nodes: int, arms: tuple[Arm, ...], clock: float = 0, **more: Any) -> Trial:
    """A :class:`Simulation` as a trial. ``clock``: 0 for that of so many nodes."""
    one = Simulation(workload, nodes, arms, clock or workload.clock_on(nodes), **more)
    return Trial(carry_out, (one,), one.cost)


def trace_label(workload: Workload) -> str:
    """The trace in a title: a synthetic one is called so."""
    label = "synthetic trace of Table 1" if workload.path is None else workload.name
    return label if workload.window is None else f"{label}, days {workload.window[0]:g} to {workload.window[1]:g}"


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


def played(workload: Workload, nodes: int) -> Trace:
    """The trace at the clock of so many nodes."""
    return compress_clock(trace_of(workload), workload.clock_on(nodes))


def play(
    spec: ClusterSpec, jobs: Sequence[TraceJob], policy: str = "yarn-cs", scheme: str = "private", **parameters: Any
) -> Record:
    """The record of one run of :func:`hived.simulate`; without loans, unless ``opportunistic`` is given."""
    given = {"opportunistic": False, **parameters}
    return simulate(spec, list(jobs), policy=policy, schemes=scheme, **given).record()


#: a quantity of the job models as it is; and other laws of contention: overlaps cost nothing, and a light job loses
#: beside one that fills the GPU what was measured on an H100
UNCHANGED = ("", 1.0)
LAWS = (("overlap", 0.0), ("wait", 0.05))


def perturbed(quantity: str, factor: float) -> Models:
    """The models, with one quantity scaled."""
    models = Models.load()
    return models.scaled(quantity, factor) if quantity else models


def made(
    name: str, gpus: int, minutes: float, at: float = 0.0, model: str = "", *,
    tenant: str = "all", soft: bool = False, elastic: bool = False,
) -> TraceJob:  # fmt: skip
    """A job that takes ``minutes`` alone; ``at``: the minute of its submission."""
    submit, duration = round(at * MINUTE_MS), round(minutes * MINUTE_MS)
    return TraceJob(name, tenant, submit, duration, gpus, "pass", model=model, soft=soft, elastic=elastic)


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


def carry_out(simulation: Simulation) -> dict[str, Any]:
    """Run every arm; the measures of all of them, as plain data."""
    trace, quotas = trace_of(simulation.workload), shares_of(simulation.nodes)
    if simulation.gone:
        trace = replace(trace, jobs=tuple([job for job in trace.jobs if job.tenant not in simulation.gone]))
        quotas = {tenant: gpus for tenant, gpus in quotas.items() if tenant not in simulation.gone}
    if simulation.reshaped:
        trace = reshape(trace, simulation.reshaped, simulation.seed)
    window = None
    if simulation.days:
        last = trace.jobs[-1].submit_ms / DAY_MS
        first = Random(simulation.seed).uniform(0, max(0.0, last - simulation.days))
        window = first, first + simulation.days
    studies = {}
    for arm in simulation.arms:
        if arm.levels == Levels.ALL:
            asking = {job.tenant for job in trace.jobs}
            own = {tenant: gpus for tenant, gpus in quotas.items() if tenant in asking}
            spec = cluster_for(trace, simulation.nodes, own, Levels.ALL)
        else:
            spec = cluster_of(simulation.nodes, simulation.gone, quotas=arm.quotas)
        everybody = [job._replace(tenant=EVERYBODY) for job in trace.jobs]
        studies[arm.name] = simulate(
            spec,
            trace if arm.quotas else replace(trace, jobs=tuple(everybody)),
            schemes=arm.scheme,
            policy=arm.policy,
            binding=arm.binding,
            window=window,
            sample=simulation.share if simulation.share < 1 else None,
            mix=simulation.mix or None,
            clock_compression=simulation.clock,
            soft=simulation.soft,
            seed=simulation.seed,
        )
    return measured(studies, quotas)


def offered_load(trace: Trace, nodes: int) -> float:
    """Mean GPUs asked for while jobs are submitted, over those of the cluster."""
    asked = sum(job.gpus * job.duration_ms for job in trace.jobs)
    return asked / max(1, trace.jobs[-1].submit_ms) / (GPUS_PER_NODE * nodes)


def demand_over_time(jobs: Sequence[TraceJob], step_ms: int, steps: int) -> Floats:
    """Mean GPUs asked for in each step, if every job ran at once. (steps,)"""
    submit, duration, gpus = np.asarray([(job.submit_ms, job.duration_ms, job.gpus) for job in jobs]).reshape(-1, 3).T
    return interval_means(submit, submit + duration, gpus, np.arange(steps + 1) * step_ms)


def power_of_two(gpus: int) -> int:
    """Rounded up."""
    return 1 << (gpus - 1).bit_length()


def drawn(workload: Workload, gpus: float, days: float, seed: int = 1) -> list[TraceJob]:
    """Jobs that keep ``gpus`` GPUs busy in the mean, in order of submission.

    For papers that give a distribution of durations alone. Drawn at random from the trace, of at most 8 GPUs, which
    count rounded up to a power of two, and of a minute to a day; each at its own time modulo ``days``. O(jobs of the
    trace).
    """
    left = gpus * days * 24 * 60
    fitting = [one for one in trace_of(workload).jobs if one.gpus <= 8 and 1 <= one.duration_ms / MINUTE_MS <= 1440]
    Random(seed).shuffle(fitting)
    chosen = []
    for one in fitting:
        minutes = one.duration_ms / MINUTE_MS
        chosen.append((one.submit_ms / MINUTE_MS % (days * 24 * 60), one.gpus, minutes))
        left -= power_of_two(one.gpus) * minutes
        if left <= 0:
            break
    return [made(f"job-{at}", size, minutes, time) for at, (time, size, minutes) in enumerate(sorted(chosen))]
