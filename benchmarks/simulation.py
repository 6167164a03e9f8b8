"""The simulator in jobs a second on one core, beside a bare event loop over the same jobs.

The bare loop is the floor of what a simulation in plain Python costs: a heap of ends and a number of free GPUs per
tenant, first come first served. It keeps no cells, no records and no decisions; the ratio to it is what all of that
costs.
"""

from __future__ import annotations

import os
from collections import deque
from functools import partial
from heapq import heappop, heappush
from pathlib import Path

from hived.cluster import Cluster
from hived.exchange import make_arbiter
from hived.policies import YarnCS
from hived.scheduling import Policies
from hived.simulator import Sharing, simulate
from hived.simulator.exchange import HourlyTrading
from hived.simulator.traces import TABLE1, Trace, compress_clock, generate_table1, read_trace
from hived.spec import ClusterSpec, parse_spec, spec_from_quotas

from .measuring import Figure, seconds

#: a trace to measure on, instead of the synthetic one
TRACE_VARIABLE = "HIVED_BENCHMARK_TRACE"


def bare_loop(trace: Trace, nodes: dict[str, int]) -> None:
    """FIFO per tenant over a count of GPUs."""
    free = {tenant: 8 * number for tenant, number in nodes.items()}
    waiting: dict[str, deque[int]] = {tenant: deque() for tenant in nodes}
    ends: list[tuple[int, int]] = []
    starts = [0] * len(trace.jobs)

    def start(tenant: str, now: int) -> None:
        queue = waiting[tenant]
        while queue and trace.jobs[queue[0]].gpus <= free[tenant]:
            number = queue.popleft()
            free[tenant] -= trace.jobs[number].gpus
            starts[number] = now
            heappush(ends, (now + trace.jobs[number].duration_ms, number))

    def end() -> None:
        now, number = heappop(ends)
        job = trace.jobs[number]
        free[job.tenant] += job.gpus
        start(job.tenant, now)

    for number, job in enumerate(trace.jobs):
        while ends and ends[0][0] <= job.submit_ms:
            end()
        if job.gpus <= 8 * nodes[job.tenant]:
            waiting[job.tenant].append(number)
            start(job.tenant, job.submit_ms)
    while ends:
        end()


def measure() -> list[Figure]:
    """Jobs a second per scheme, and where tenants trade cells, at the paper's cluster and at a crowded one."""
    named = os.environ.get(TRACE_VARIABLE)
    trace = read_trace(Path(named)) if named else generate_table1(jobs=80_000)
    figures = []
    for nodes, compression, wanted in ((279, 1.0, "> 45,000"), (200, 1.5, "> 28,000")):
        jobs = compress_clock(trace, compression)
        spec = parse_spec(spec_from_quotas(nodes, [(row.tenant, row.quota_percent) for row in TABLE1]), "Table 1")
        what = f"{jobs.name} on {nodes} nodes"
        bare = partial(bare_loop, jobs, {vc.name: vc.cells[0].number for vc in spec.virtual_clusters})
        figures.append(_rate("bare event loop", what, trace, seconds(bare, 3)))
        for scheme, lending in (
            (Sharing.PRIVATE, True),
            (Sharing.QUOTA, True),
            (Sharing.HIVED, True),
            (Sharing.HIVED, False),
        ):
            name = scheme.value if lending else f"{scheme.value}, nothing lent"
            aim = wanted if scheme is Sharing.HIVED and lending else ""
            took = seconds(partial(_simulate, spec, jobs, scheme, lending), 3)
            figures.append(_rate(f"simulate {name}", what, trace, took, aim))
        alone = seconds(partial(_simulate, spec, jobs, Sharing.HIVED, True), 3)
        took = seconds(partial(_simulate, spec, jobs, Sharing.HIVED, True, trades=True), 3)
        figures.append(_rate("simulate hived, cells traded", what, trace, took))
        figures.append(Figure(f"cells traded over none: {what}", took / alone, "times the time"))
    return figures


def _simulate(spec: ClusterSpec, trace: Trace, scheme: Sharing, lending: bool, trades: bool = False) -> None:
    policies = Policies(YarnCS())
    cluster = Cluster(spec, sharing=scheme, rank=policies.rank)
    trading = HourlyTrading(spec, make_arbiter("balanced")) if trades else None
    simulate(cluster, policies, trace.jobs, lending, trading=trading)


def _rate(name: str, what: str, trace: Trace, took: float, aim: str = "") -> Figure:
    return Figure(f"{name}: {what}", len(trace.jobs) / took, "jobs/s", aim, "higher")
