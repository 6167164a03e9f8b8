"""The core at 65,536 and 1,048,576 GPUs: building it, requests to it, and the bare allocator.

A request is timed alone, from the call to the answer, with its effect on all state: the VC's choice, the bindings, the
physical indexes, preemption. The mix is DESIGN.md's: 1, 2, 4 or 8 GPUs, 30% opportunistic, on a cluster kept about 80%
full by ending old jobs between requests. Releases are timed apart. Synthetic.
"""

from __future__ import annotations

import random
import time

from hived.cells import BuddyAllocator, Hierarchy
from hived.cluster import Allocation, HivedCluster
from hived.policies import YarnCS

from .clusters import TENANTS, racks_of_1024_nodes
from .measuring import Figure, quantile, quiet, seconds

SIZES = {"65,536": 8, "1,048,576": 128}
ROUNDS = 3


def build(racks: int) -> float:
    """Seconds from a spec's text to a cluster that answers requests."""
    return seconds(lambda: HivedCluster(racks_of_1024_nodes(racks)), repeat=3)


def requests(racks: int, number: int = 30_000, seed: int = 1) -> tuple[list[float], list[float]]:
    """Seconds of each of ``number`` requests that were granted, and of each release, ascending."""
    cluster = HivedCluster(racks_of_1024_nodes(racks))
    place = YarnCS().place
    rng = random.Random(seed)
    clock = time.perf_counter
    full = int(0.8 * racks * 1024 * 8)
    held: dict[Allocation, int] = {}
    running: list[Allocation] = []  # preempted ones are dropped when they are drawn
    in_use = 0
    taken: list[float] = []
    released: list[float] = []
    with quiet():
        while len(taken) < number:
            measuring = in_use >= full or taken
            while in_use >= full or (measuring and rng.random() < 0.5):
                drawn = rng.randrange(len(running))
                running[drawn], running[-1] = running[-1], running[drawn]
                job = running.pop()
                if job in held:
                    in_use -= held.pop(job)
                    start = clock()
                    cluster.release(job)
                    released.append(clock() - start)
            job = Allocation("job", rng.randrange(TENANTS), rng.choice((1, 2, 4, 8)))
            victims: tuple[Allocation, ...] = ()
            start = clock()
            if rng.random() < 0.3:
                granted = cluster.lend(job)
            else:
                grant = cluster.guarantee(job, place)
                granted = grant is not None
                victims = () if grant is None else grant.victims
            elapsed = clock() - start
            for victim in victims:
                in_use -= held.pop(victim)
            if granted:
                running.append(job)
                held[job] = job.held
                in_use += job.held
                if measuring:
                    taken.append(elapsed)
    cluster.chains[0].validate()
    return sorted(taken), sorted(released)


def allocator(racks: int, number: int = 100_000, seed: int = 1) -> float:
    """Seconds per operation of the bare buddy allocator, allocations and releases alike, at every level."""
    hierarchy = Hierarchy(racks_of_1024_nodes(racks).chains[0])
    buddy = BuddyAllocator(hierarchy)
    rng = random.Random(seed)
    work = [(rng.random(), rng.randrange(1, 5)) for _ in range(number)]

    def run() -> None:
        held: list[tuple[int, int]] = []
        for chance, level in work:
            if chance < 0.45 and held:
                buddy.release(*held.pop())
            else:
                cell = buddy.allocate(level)
                if cell >= 0:
                    held.append((level, cell))
        for level, cell in held:
            buddy.release(level, cell)

    return seconds(run) / number


def measure() -> list[Figure]:
    """All figures of the core."""
    runs: dict[str, list[tuple[list[float], list[float]]]] = {name: [] for name in SIZES}
    for _ in range(ROUNDS):  # in turns, and the quickest round counts: a virtual machine has slow minutes
        for name, racks in SIZES.items():
            runs[name].append(requests(racks))
    figures = []
    means = {}
    for name, racks in SIZES.items():
        aim = "< 1 s" if racks == 8 else ""
        figures.append(Figure(f"build the cluster, {name} GPUs", build(racks), "s", aim))
        taken, released = min(runs[name], key=lambda run: sum(run[0]) / len(run[0]))
        means[name] = sum(taken) / len(taken)
        small = racks == 8
        figures += [
            Figure(f"a request, mean, {name} GPUs", 1e3 * means[name], "ms", "< 0.03 ms" if small else ""),
            Figure(f"a request, median, {name} GPUs", 1e3 * quantile(taken, 0.5), "ms"),
            Figure(f"a request, p99, {name} GPUs", 1e3 * quantile(taken, 0.99), "ms", "< 0.15 ms" if small else ""),
            Figure(f"a release, mean, {name} GPUs", 1e3 * sum(released) / len(released), "ms"),
            Figure(f"the bare allocator, per operation, {name} GPUs", 1e3 * allocator(racks), "ms"),
        ]
    ratio = means["1,048,576"] / means["65,536"]
    figures.append(Figure("mean request at 1,048,576 GPUs over that at 65,536", ratio, "x", "< 1.5 x"))
    return figures
