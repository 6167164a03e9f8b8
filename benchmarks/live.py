"""The accuracy of the simulator. One small trace, simulated, and run by the engine with ``sleep`` for every job.

Time is scaled so that both take a minute or two. What is compared is the mean queueing delay (finish minus submission
minus duration, as the papers validate their simulators); the engine's own costs, starting processes and noticing their
ends, are in the live figure.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hived.engines.local.devices import Simulated
from hived.engines.local.engine import Engine
from hived.engines.local.model import JobSpec
from hived.engines.local.store import Store
from hived.simulator import Scenario, Sharing, run_experiment
from hived.simulator.traces import Trace, TraceJob, generate_table1, read_trace
from hived.spec import ClusterSpec, parse_spec, spec_from_quotas

from .measuring import Figure
from .simulation import TRACE_VARIABLE

#: the cluster: so many nodes of 8, shared by the largest tenants of the trace
NODES, TENANTS, JOBS = 4, 3, 70
#: approximate time in which jobs arrive, in seconds
SPAN_S = 30.0
#: requested GPUs over existing GPUs; above 1, so that jobs wait
LOAD = 1.15


def small(trace: Trace, span_s: float = SPAN_S, most_jobs: int = JOBS) -> tuple[ClusterSpec, Trace]:
    """Some jobs of the trace's largest tenants, and a cluster for them; time scaled to ``span_s``.

    Left out are jobs shorter than 10 minutes (scaled, they would be shorter than starting a process takes), longer than
    12 hours (one of them would be all of it), and larger than a tenant's share.
    """
    counts: dict[str, int] = {}
    for job in trace.jobs:
        counts[job.tenant] = counts.get(job.tenant, 0) + 1
    tenants = sorted(counts, key=lambda name: (-counts[name], name))[:TENANTS]
    share = NODES * 8 // TENANTS // 8 * 8
    chosen = [
        job
        for job in trace.jobs
        if job.tenant in tenants and 600_000 <= job.duration_ms <= 43_200_000 and job.gpus <= share
    ][:most_jobs]
    spec = parse_spec(spec_from_quotas(NODES, [(name, 100.0 / TENANTS) for name in tenants]), "largest tenants")
    work = sum(job.gpus * job.duration_ms for job in chosen)
    window = work / (NODES * 8 * LOAD)  # over which they have to come for that load
    first, last = chosen[0].submit_ms, chosen[-1].submit_ms
    scale = span_s * 1000 / (window * 1.3)
    squeeze = window / max(1, last - first) * scale
    jobs = [
        TraceJob(
            job.job_id,
            job.tenant,
            round((job.submit_ms - first) * squeeze),
            max(1, round(job.duration_ms * scale)),
            job.gpus,
            job.status,
        )
        for job in chosen
    ]
    return spec, Trace(f"{len(jobs)} jobs of {trace.name}", tuple(jobs), trace.synthetic)


def simulated_delays(spec: ClusterSpec, trace: Trace) -> list[float]:
    """Queueing delay of every job in seconds, without loans."""
    results = run_experiment(spec, trace, Scenario(schemes=Sharing.HIVED, opportunistic=False))
    (record,) = results.records
    return [record.queue(number) / 1000 for number in range(len(trace.jobs))]


def as_submitted(job: TraceJob) -> JobSpec:
    """A job of the trace as a submission: up to a node in one task, above that in whole nodes."""
    tasks = -(-job.gpus // 8)
    gpus = job.gpus if tasks == 1 else 8
    return JobSpec(
        vc=job.tenant, command=("sleep", f"{job.duration_ms / 1000:.3f}"), gpus=gpus, tasks=tasks, name="job"
    )


async def live_delays(spec: ClusterSpec, jobs: Sequence[TraceJob], folder: Path) -> list[float]:
    """The same from an engine that runs the jobs."""
    engine = Engine(spec, Store(folder), Simulated())
    await engine.start()
    loop = asyncio.get_running_loop()
    start = loop.time() + 0.5
    submitted = []
    try:
        for job in jobs:
            await asyncio.sleep(max(0.0, start + job.submit_ms / 1000 - loop.time()))
            submitted.append(engine.submit(as_submitted(job)))
        while engine.job_scheduler.jobs:
            await engine.changed(engine.last_event)
    finally:
        await engine.stop()
    delays = []
    for job, ran in zip(jobs, submitted, strict=True):
        assert ran.exit_code == 0, f"{ran.name} {ran.state}: {ran.reason}"
        assert ran.ended_at is not None
        delays.append(ran.ended_at - ran.submitted_at - job.duration_ms / 1000)
    return delays


def measure() -> list[Figure]:
    """Both, and their difference."""
    named = os.environ.get(TRACE_VARIABLE)
    spec, trace = small(read_trace(Path(named)) if named else generate_table1(jobs=20_000))
    simulated = simulated_delays(spec, trace)
    with tempfile.TemporaryDirectory(prefix="hived-live-") as folder:
        live = asyncio.run(live_delays(spec, trace.jobs, Path(folder)))
    simulated_mean, live_mean = sum(simulated) / len(simulated), sum(live) / len(live)
    kind = "synthetic, " if trace.synthetic else ""
    name = f"{kind}{trace.name}, {NODES} nodes"
    apart = 100 * abs(live_mean - simulated_mean) / simulated_mean
    return [
        Figure(f"mean queueing delay, simulated: {name}", simulated_mean, "s", better="same"),
        Figure(f"mean queueing delay, live: {name}", live_mean, "s", better="same"),
        Figure(f"live against simulated: {name}", apart, "%", "< 7 %"),
    ]


if __name__ == "__main__":
    print("\n".join(f"{figure.name}: {figure.value:.3f} {figure.unit}" for figure in measure()))
