"""What an event costs while something else grows: tenants, preemptors that wait, pods of a gang. Synthetic.

Each curve is a ratio: the cost at the largest size over that at the smallest, in CPU time, both in one run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median

from hived.cluster import Cluster, Member, Request
from hived.policies import YarnCS
from hived.scheduling import Entry, JobView, Policies, Scheduler
from hived.simulator.simulation import simulate
from hived.simulator.traces.model import TraceJob

from .measuring import Figure, quiet

_RANDOM_SEED = 1


def measure() -> list[Figure]:
    """All curves, with the values at both ends."""
    return [
        *_curve("a simulated job", "tenants", job_among_tenants, (8, 64, 512), "us"),
        *_curve(
            "a dispatch after an end in another VC", "preemptors that wait", dispatch_beside_preemptors, (50, 400), "us"
        ),
        *_curve("an end in an engine where jobs of all tenants wait", "tenants", end_among_tenants, (8, 64, 512), "us"),
        *_curve("a gang of unequal pods that does not fit, per pod", "pods", unequal_gang, (512, 8192), "us"),
    ]


def _curve(what: str, of: str, cost: Callable[[int], float], sizes: tuple[int, ...], unit: str) -> list[Figure]:
    values = [1e6 * min(cost(size) for _ in range(3)) for size in sizes]
    figures = [Figure(f"{what}, {size:,} {of}", value, unit) for size, value in zip(sizes, values, strict=True)]
    ratio = values[-1] / values[0]
    return [*figures, Figure(f"{what}: {sizes[-1]:,} {of} over {sizes[0]:,}", ratio, "times the time", "nearly 1")]


def _spec(nodes: int, vcs: dict[str, int]) -> dict[str, object]:
    """One rack of nodes of 8 GPUs; VCs reserve nodes."""
    return {
        "physicalCluster": {
            "cellTypes": {
                "NODE": {"childCellType": "GPU", "childCellNumber": 8, "isNodeLevel": True},
                "RACK": {"childCellType": "NODE", "childCellNumber": nodes},
            },
            "physicalCells": [{"cellType": "RACK"}],
        },
        "virtualClusters": {
            name: {"virtualCells": [{"cellType": "RACK.NODE", "cellNumber": cells}]} for name, cells in vcs.items()
        },
    }


def job_among_tenants(tenants: int, number: int = 6000, nodes: int = 512) -> float:
    """CPU seconds of a simulated job, the same load of jobs on the same nodes, divided among so many tenants."""
    rng = random.Random(_RANDOM_SEED)
    jobs, at = [], 0
    for i in range(number):
        at += rng.randrange(900)
        gpus, tenant = rng.choice((1, 1, 2, 4, 8)), f"t{rng.randrange(tenants)}"
        jobs.append(TraceJob(f"j{i}", tenant, at, rng.randrange(1, 1_200_000), gpus, "pass"))
    policies = Policies(YarnCS())
    cluster = Cluster.from_spec(_spec(nodes, {f"t{i}": nodes // tenants for i in range(tenants)}))
    with quiet():
        start = time.thread_time()
        simulate(cluster, policies, jobs, True)
        return (time.thread_time() - start) / number


def dispatch_beside_preemptors(waiting: int) -> float:
    """CPU seconds of a dispatch after a job of VC b has ended, while so many preemptors of VC a wait for victims."""
    policies = Policies(YarnCS())
    cluster = Cluster.from_spec(_spec(waiting + 20, {"a": waiting, "b": 20}))
    scheduler = Scheduler(cluster, policies, lambda instruction: None)
    entries: dict[str, Entry] = {}

    def submit(name: str, vc: str, gpus: int, priority: int) -> None:
        number = len(entries)
        view = JobView(name, gpus, float(number), number, vc, priority=priority)
        entries[name] = Entry(number, Request(name, vc, priority, (Member(1, gpus),)), view)
        scheduler.wait(entries[name])

    for i in range(waiting):
        submit(f"low-{i}", "a", 8, 0)
    for i in range(20):
        submit(f"b-{i}", "b", 1, 0)
    scheduler.dispatch(0.0)
    for i in range(waiting):
        submit(f"high-{i}", "a", 8, 5)
    scheduler.dispatch(1.0)  # each has a reservation, and its victim does not end
    took = []
    with quiet():
        for i in range(20):
            scheduler.release(entries[f"b-{i}"], False, 2.0 + i)
            start = time.thread_time()
            scheduler.dispatch(2.0 + i)
            took.append(time.thread_time() - start)
    return median(took)


def end_among_tenants(tenants: int, nodes: int = 512) -> float:
    """CPU seconds of an end, and what follows, where all tenants have jobs in line that may start on loans."""
    cluster = Cluster.from_spec(_spec(nodes, {f"t{i}": nodes // tenants for i in range(tenants)}))
    scheduler = Scheduler(cluster, Policies(YarnCS()), lambda instruction: None)
    running: list[Entry] = []
    for number in range(3 * nodes):
        vc = f"t{number % tenants}"
        view = JobView(f"j{number}", 8, float(number), number, vc)
        entry = Entry(number, Request(view.job, vc, 0, (Member(1, 8),)), view, early=True)
        scheduler.wait(entry)
        scheduler.dispatch(float(number))
        running += [entry] if entry.holds else []
    random.Random(_RANDOM_SEED).shuffle(running)
    took = []
    with quiet():
        for number, entry in enumerate(running[:50]):
            start = time.thread_time()
            scheduler.release(entry)
            scheduler.dispatch(1e6 + number)
            took.append(time.thread_time() - start)
    return median(took)


def unequal_gang(pods: int) -> float:
    """CPU seconds per pod of a gang whose GPUs are there and whose pods do not pack: pods of 5, 3, 4 and 2 GPUs."""
    nodes = pods // 2
    cluster = Cluster.from_spec(_spec(nodes, {"a": nodes}))
    members = (Member(nodes, 5), Member(nodes - 4, 3), Member(2, 4), Member(2, 2))
    with quiet():
        start = time.thread_time()
        cluster.schedule(Request("gang", "a", 0, members))
        return (time.thread_time() - start) / pods
