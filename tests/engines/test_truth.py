"""The engine's mind and the simulator decide alike: the same trace, both without a clock of the world.

``python -m benchmarks live`` measures the same with real processes.
"""

from __future__ import annotations

from heapq import heappop, heappush

import pytest
from benchmarks.live import as_submitted, simulated_delays, small

from hived import Cluster
from hived.simulator.traces import Trace, generate_table1
from hived.spec.compiled import ClusterSpec

from .driver import Driver


def virtual_delays(spec: ClusterSpec, trace: Trace) -> list[float]:
    """Queueing delays of an engine whose tasks end to the millisecond, and cost nothing to start."""
    engine = Driver(spec, Cluster)
    ends: list[tuple[int, int]] = []
    submitted = []
    durations: dict[int, int] = {}
    for number, row in enumerate([*trace.jobs, None]):
        while ends and (row is None or ends[0][0] <= row.submit_ms):
            at, done = heappop(ends)
            engine.now = at / 1000
            engine.end(engine.jobs[done])
            _schedule(engine, ends, durations)
        if row is not None:
            engine.now = row.submit_ms / 1000
            durations[number + 1] = row.duration_ms
            submitted.append(engine.submit(as_submitted(row)))
            _schedule(engine, ends, durations)
    return [
        (job.ended_at or 0) - job.submitted_at - row.duration_ms / 1000
        for job, row in zip(submitted, trace.jobs, strict=True)
    ]


def _schedule(engine: Driver, ends: list[tuple[int, int]], durations: dict[int, int]) -> None:
    """Whoever has started will end."""
    known = {number for _, number in ends}
    for number in {key[0] for key in engine.alive} - known:
        heappush(ends, (round(engine.now * 1000) + durations[number], number))


@pytest.mark.parametrize("seed", range(3))
def test_the_engine_and_the_simulator_agree_on_who_waits_how_long(seed: int) -> None:
    spec, trace = small(generate_table1(jobs=20_000, seed=seed + 1))
    simulated, virtual = simulated_delays(spec, trace), virtual_delays(spec, trace)
    assert sum(simulated) / len(simulated) > 1, "nobody waits: nothing is compared"
    assert virtual == pytest.approx(simulated, abs=0.002)  # every single job; a millisecond is rounded away
