"""What becomes of jobs on loans when the cells are wanted: killed and requeued, or suspended in place (AntMan, 5.2).

A loaded hour, simulated: tenants whose jobs ask for more than there is, at the rates of the job models.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hived import simulate
from hived.simulator.traces import Trace, generate_table1, read_trace

from .live import LOAD, small
from .measuring import Figure
from .simulation import TRACE_VARIABLE

HOUR_S = 3600.0
#: how jobs on loans make room, and as what the simulator knows it
ARMS: dict[str, tuple[str, Literal["none", "all"], str, str]] = {
    "killed and requeued, those on the fewest GPUs": ("yarn-cs", "none", "restart", "fewest-gpus"),
    "killed and requeued, those that lose the least work": ("yarn-cs", "none", "restart", "least-work"),
    "saved and requeued": ("yarn-cs", "none", "resume", "least-work"),
    "suspended in place": ("antman", "all", "resume", "least-work"),
}


def measure() -> list[Figure]:
    """Preemptions, work done again and mean completion in each way."""
    named = os.environ.get(TRACE_VARIABLE)
    spec, trace = small(read_trace(Path(named)) if named else generate_table1(jobs=20_000), HOUR_S, 140)
    kind = "synthetic, " if trace.synthetic else ""
    figures = []
    for way, (policy, guests, keeps, victims) in ARMS.items():
        accepting = replace(spec, virtual_clusters=tuple(replace(vc, guests=guests) for vc in spec.virtual_clusters))
        study = simulate(
            accepting,
            Trace(trace.name, trace.jobs, trace.synthetic),
            schemes="hived",
            policy=policy,
            preempted=keeps,
            victims=victims,
            mix="cv=10,nlp=60,speech=30",
        )
        (run,) = study.report.runs
        record = study.record()
        completion = [finish - job.submit_ms for finish, job in zip(record.finish, trace.jobs, strict=True)]
        where = f"{kind}{trace.name}, a load of {LOAD:g} for an hour, jobs on loans {way}"
        figures += [
            Figure(f"preemptions: {where}", run.preemptions, "jobs"),
            Figure(f"work lost: {where}", run.lost_gpu_s / 3600, "GPU hours"),
            Figure(f"mean completion: {where}", sum(completion) / len(completion) / 1000, "s"),
        ]
    return figures
