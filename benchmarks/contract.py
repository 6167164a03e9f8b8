"""The public contract (``hived.Cluster``) at 65,536 and 1,048,576 GPUs: the cost per request.

A request is timed from the call of ``schedule`` to the return of ``commit``, so with its reasons, its placement by name
and all its effects. The mix: 1, 2, 4 or 8 GPUs, 30% opportunistic, at about 80% full. Beside it: gangs
of 64 pods of 8 GPUs and of 4, requests that wait (all reasons collected), preemptions inside a VC, and the
memory of the whole process. Synthetic.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial

from hived import Bind, Cluster, Member, Preempt, Request, Wait

from .clusters import SIZES, TENANTS, racks_of_1024_nodes
from .measuring import Figure, quantile, quiet, seconds

ROUNDS = 3


@dataclass(slots=True)
class Load:
    """A cluster and the groups that run on it."""

    cluster: Cluster
    rng: random.Random
    held: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    in_use: int = 0
    number: int = 0

    def ask(self, request: Request) -> tuple[float, bool]:
        """Seconds to schedule and commit, and whether the group runs then (its victims ended, where there are any)."""
        cluster, clock = self.cluster, time.perf_counter
        start = clock()
        decision = cluster.schedule(request)
        cluster.commit(decision)
        elapsed = clock() - start
        if isinstance(decision, Wait):
            cluster.cancel(request.group)
            return elapsed, False
        if isinstance(decision, Preempt):
            for victim in decision.victims:
                self.end(victim)
            again = cluster.schedule(request)
            assert isinstance(again, Bind)
            cluster.commit(again)
        gpus = sum(len(pod.leaf_cells) for pod in decision.placement.pods)
        self.held[request.group] = gpus
        self.names.append(request.group)
        self.in_use += gpus
        return elapsed, True

    def end(self, name: str) -> float:
        """Seconds to release a group."""
        self.in_use -= self.held.pop(name)
        start = time.perf_counter()
        self.cluster.release(name)
        return time.perf_counter() - start

    def end_any(self) -> float:
        """Seconds to release a group drawn at random."""
        while True:
            drawn = self.rng.randrange(len(self.names))
            self.names[drawn], self.names[-1] = self.names[-1], self.names[drawn]
            name = self.names.pop()
            if name in self.held:
                return self.end(name)

    def new(self, members: tuple[Member, ...], priority: int = 0, tenant: int = -1) -> Request:
        """A request of a tenant, any by default."""
        self.number += 1
        vc = self.rng.randrange(TENANTS) if tenant < 0 else tenant
        return Request(f"g{self.number}", f"t{vc}", priority, members)


def _build(racks: int) -> Cluster:
    return Cluster(racks_of_1024_nodes(racks))


def mixed(racks: int, number: int, seed: int = 1) -> tuple[Load, list[float], list[float]]:
    """A cluster about 80% full, and the seconds of each of ``number`` requests and of the releases, ascending."""
    load = Load(Cluster(racks_of_1024_nodes(racks)), random.Random(seed))
    full = racks * 8192 * 8 // 10
    taken: list[float] = []
    released: list[float] = []
    shapes = [(Member(1, gpus),) for gpus in (1, 2, 4, 8)]
    with quiet():
        while len(taken) < number:
            measuring = load.in_use >= full or taken
            while load.in_use >= full or (measuring and load.rng.random() < 0.5):
                released.append(load.end_any())
            request = load.new(load.rng.choice(shapes), -1 if load.rng.random() < 0.3 else 0)
            elapsed, runs = load.ask(request)
            if measuring and runs:
                taken.append(elapsed)
    return load, sorted(taken), sorted(released)


def gangs(load: Load, gpus: int, number: int = 300) -> list[float]:
    """Seconds of gangs of 64 pods on a loaded cluster; each ends before the next comes."""
    times = []
    members = (Member(64, gpus),)
    with quiet():
        for i in range(number):
            request = load.new(members, tenant=1 + i % (TENANTS - 1))
            elapsed, runs = load.ask(request)
            if runs:
                times.append(elapsed)
                load.names.pop()
                load.end(request.group)
    return sorted(times)


def onto_loans(racks: int, number: int = 1000) -> list[float]:
    """Seconds of guaranteed requests on a cluster whose every GPU is lent, to eight tenants in turn."""
    load = Load(Cluster(racks_of_1024_nodes(racks)), random.Random(1))
    for node in range(racks * 1024):
        load.ask(load.new((Member(1, 8),), -1, node % TENANTS))
    with quiet():
        return sorted(load.ask(load.new((Member(1, load.rng.choice((1, 2, 4, 8))),)))[0] for _ in range(number))


def beside_bad(load: Load, nodes: int, number: int = 1000) -> list[float]:
    """Seconds of the mixed requests after ``nodes`` nodes turned bad; each ends when the next has come."""
    names = load.cluster.spec.chains[0].node_names
    for node in load.rng.sample(range(len(names)), nodes):
        load.cluster.set_node_health(names[node], healthy=False)
    times = []
    with quiet():
        for _ in range(number):
            gpus = load.rng.choice((1, 2, 4, 8))
            elapsed, runs = load.ask(load.new((Member(1, gpus),), -1 if load.rng.random() < 0.3 else 0))
            if runs:
                times.append(elapsed)
                load.end_any()
    return sorted(times)


def waits(load: Load, number: int = 1000) -> list[float]:
    """Seconds of gangs of 64 pods that wait, since their VC is full."""
    times = []
    with quiet():
        for _ in range(number):
            elapsed, runs = load.ask(load.new((Member(64, 8),), tenant=3))
            if runs:
                raise RuntimeError("a request that was to wait runs")
            times.append(elapsed)
    return sorted(times)


def preemptions(load: Load, number: int = 1000) -> list[float]:
    """Seconds of requests of a higher priority into a VC that is full of lower ones."""
    times = []
    while load.ask(load.new((Member(1, 8),), tenant=3))[1]:
        pass
    while load.ask(load.new((Member(1, 1),), tenant=3))[1]:
        pass
    with quiet():
        for _ in range(number):
            elapsed, _ = load.ask(load.new((Member(1, 8),), priority=5, tenant=3))
            times.append(elapsed)
    return sorted(times)


_MEMORY = """
import pathlib, resource
from benchmarks.contract import mixed
load, _, _ = mixed({racks}, 2000)
pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
print(pages * resource.getpagesize() / 2**20)
"""


def memory(racks: int) -> float:
    """MB resident in a process with such a cluster, 80% full, the interpreter and all imports included (Linux)."""
    command = [sys.executable, "-c", _MEMORY.format(racks=racks)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure() -> list[Figure]:
    """All figures of the contract."""
    runs: dict[str, list[tuple[Load, list[float], list[float]]]] = {name: [] for name in SIZES}
    for _ in range(ROUNDS):  # alternating, and the quickest round counts: a virtual machine has slow minutes
        for name, racks in SIZES.items():
            runs[name] = sorted([*runs[name], mixed(racks, 20_000)], key=lambda run: sum(run[1]))[:1]
    figures = []
    means = {}
    for name, racks in SIZES.items():
        small = racks == 8
        ((load, taken, released),) = runs[name]
        means[name] = sum(taken) / len(taken)
        build = seconds(partial(_build, racks), 3)
        figures += [
            Figure(f"Cluster: build, {name} GPUs", build, "s", "< 1 s" if small else ""),
            Figure(f"Cluster: a request, mean, {name} GPUs", 1e3 * means[name], "ms", "< 0.02 ms" if small else ""),
            Figure(f"Cluster: a request, median, {name} GPUs", 1e3 * quantile(taken, 0.5), "ms"),
            Figure(
                f"Cluster: a request, p99, {name} GPUs", 1e3 * quantile(taken, 0.99), "ms", "< 0.1 ms" if small else ""
            ),
            Figure(f"Cluster: a release, mean, {name} GPUs", 1e3 * sum(released) / len(released), "ms"),
        ]
        for gpus in (8, 4):
            times = gangs(load, gpus)
            what = f"Cluster: a gang of 64 x {gpus} GPUs"
            figures.append(Figure(f"{what}, mean, {name} GPUs", 1e3 * sum(times) / max(1, len(times)), "ms"))
            figures.append(Figure(f"{what}, p99, {name} GPUs", 1e3 * quantile(times, 0.99), "ms"))
        times = preemptions(load)
        figures.append(Figure(f"Cluster: a preemption in a VC, mean, {name} GPUs", 1e3 * sum(times) / len(times), "ms"))
        times = waits(load)
        figures.append(
            Figure(f"Cluster: a gang of 64 x 8 that waits, {name} GPUs", 1e3 * sum(times) / len(times), "ms")
        )
        load.cluster.check_safety()
        times = onto_loans(racks if small else 16)
        where = name if small else "131,072"
        figures.append(
            Figure(f"Cluster: a request onto loans, mean, {where} GPUs", 1e3 * sum(times) / len(times), "ms")
        )
        for bad in (10, 100):
            times = beside_bad(load, bad - (10 if bad > 10 else 0))
            what = f"Cluster: a request with {bad} bad nodes, mean, {name} GPUs"
            figures.append(Figure(what, 1e3 * sum(times) / len(times), "ms"))
        figures.append(Figure(f"Cluster: memory, {name} GPUs", memory(racks), "MB", "< 300 MB" if small else ""))
    ratio = means["1,048,576"] / means["65,536"]
    figures.append(Figure("Cluster: mean request at 1,048,576 GPUs over that at 65,536", ratio, "x", "< 1.5 x"))
    return figures
