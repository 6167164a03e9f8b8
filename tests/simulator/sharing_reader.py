"""Reads a simulation's runs from outside, and checks what holds whoever shares GPUs with whom.

It knows the contract of ``runs.csv`` alone: work is conserved, GPUs are not used beyond their time and memory, gangs
are whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from hived.scheduling import Kind
from hived.simulator.models import Models
from hived.simulator.record import Record, Run
from hived.simulator.traces import TraceJob
from hived.spec.compiled import ClusterSpec


def _leaves(run: Run) -> list[tuple[str, int]]:
    return [(pod.node, leaf) for pod in run.placement.pods for leaf in pod.leaf_cells]


def _whole(run: Run, gpus: int | None) -> None:
    """A run takes time, and has every GPU once, and all that its gang asks for."""
    leaves = _leaves(run)
    assert run.start < run.end, run
    assert len({*leaves}) == len(leaves), f"a GPU twice: {run}"
    assert gpus in (None, len(leaves)), f"a gang is whole: {run} of {gpus} GPUs"


def _moments(record: Record) -> Iterator[tuple[tuple[str, int], int, list[Run]]]:
    """The runs on each GPU from a moment to the next at which one begins or ends."""
    on: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in record.runs:
        for leaf in _leaves(run):
            on[leaf].append(run)
    for gpu, runs in on.items():
        edges = sorted({time for run in runs for time in (run.start, run.end)})
        for start, end in pairwise(edges):
            yield gpu, start, [run for run in runs if run.start <= start and run.end >= end]


def check_runs(record: Record, memory: Mapping[str, float], gpu_memory: float = 24.0) -> None:
    """Check a record; ``memory``: GiB per GPU by model."""
    jobs = record.jobs
    _check_work(record, jobs)
    for run in record.runs:
        job = jobs[run.job]
        _whole(run, None if job.elastic or job.gpus > 4 else job.gpus)
        assert 0 < run.share <= 1 + 1e-9, run
        assert run.rate >= 0, run
    _check_gpus(record, jobs, memory, gpu_memory)


def _check_work(record: Record, jobs: Sequence[TraceJob]) -> None:
    """The integral of the rate is the job's work, and no job is in two places for more than all of its time."""
    done: dict[int, float] = defaultdict(float)
    by_job: dict[int, list[Run]] = defaultdict(list)
    for run in record.runs:
        done[run.job] += run.rate * (run.end - run.start)
        by_job[run.job].append(run)
    for number, job in enumerate(jobs):
        if record.finish[number] >= 0:
            assert abs(done[number] - job.duration_ms) <= 16 + 1e-6 * job.duration_ms, (job, done[number])
            assert record.finish[number] >= job.submit_ms
        else:
            assert done[number] <= job.duration_ms + 16
    for number, runs in by_job.items():
        intervals: dict[tuple[int, int], float] = defaultdict(float)
        for run in runs:
            intervals[run.start, run.end] += run.share
        ordered = sorted(intervals)
        assert all(a[1] <= b[0] for a, b in pairwise(ordered)), f"job {number} runs twice"
        assert all(share <= 1 + 1e-9 for share in intervals.values()), f"job {number} has more than its time"
        assert ordered[0][0] >= jobs[number].submit_ms


def _check_gpus(record: Record, jobs: Sequence[TraceJob], memory: Mapping[str, float], gpu_memory: float) -> None:
    """At every moment, on every GPU: shares of units sum to at most 1, and what runs together fits its memory.

    Jobs of one interval, placement and share may be packed: they count once if their models' memories fit together.
    """
    for gpu, start, runs in _moments(record):
        here = [run for run in runs if run.kind is not Kind.GUEST]
        if sum(run.share for run in here) <= 1 + 1e-9:
            continue
        units: dict[tuple[object, ...], list[Run]] = defaultdict(list)
        for run in here:
            units[run.placement.pods, run.share].append(run)
        room = 0.0
        for packed in units.values():
            # as few units as the memory allows
            bins: list[float] = []
            for need in sorted((memory.get(jobs[run.job].model, memory["*"]) for run in packed), reverse=True):
                at = next((at for at, used in enumerate(bins) if used + need <= gpu_memory), None)
                if at is None:
                    bins.append(need)
                else:
                    bins[at] += need
            room += packed[0].share * len(bins)
        assert room <= 1 + 1e-9, f"GPU {gpu} at {start}: {here}"


def check_guests(record: Record, models: Models, spec: ClusterSpec, gpu_memory: float) -> None:
    """Check a record of AntMan: who runs beside whom, in what memory, and what that does to quotas."""
    jobs = record.jobs
    _check_work(record, jobs)
    of_vc = {vc.name: vc for vc in spec.virtual_clusters}
    for run in record.runs:
        _whole(run, jobs[run.job].gpus)
        assert 0 <= run.rate <= 1 + 1e-9, run
        assert run.share == 1, run
    beside: dict[Run, set[int]] = defaultdict(set)
    for gpu, start, here in _moments(record):
        owners = [run for run in here if run.kind is Kind.GUARANTEED]
        guests = [run for run in here if run.kind is not Kind.GUARANTEED]
        assert len(owners) <= 1, f"two guaranteed jobs on {gpu} at {start}: {owners}"
        need = sum(models.of(jobs[run.job].model).memory_gib for run in owners)
        need += sum(models.of(jobs[run.job].model).memory_min_gib for run in guests if run.rate)
        assert need <= gpu_memory + 1e-9, f"{need} GiB on {gpu} at {start}: {here}"
        for owner in owners:
            for guest in guests:
                beside[guest].add(owner.job)
                sharing, tenant = of_vc[jobs[owner.job].tenant].guests, jobs[guest.job].tenant
                assert sharing == "all" or (sharing == "own" and tenant == jobs[owner.job].tenant), (owner, guest)
    for run in record.runs:
        if run.kind is not Kind.GUARANTEED:
            assert (run.kind is Kind.GUEST) == bool(beside[run]), f"{run} beside {beside[run]}"
        assert run.kind is not Kind.GUARANTEED or jobs[run.job].mode != "opportunistic"
    for name, vc in of_vc.items():
        owned = [run for run in record.runs if run.kind is Kind.GUARANTEED and jobs[run.job].tenant == name]
        changes = [(run.start, jobs[run.job].gpus) for run in owned] + [(run.end, -jobs[run.job].gpus) for run in owned]
        used = 0
        for _, gpus in sorted(changes):
            used += gpus
            assert used <= spec.reserved(vc), f"{name} has {used} GPUs of its {spec.reserved(vc)}"
    if all(vc.guests == "all" for vc in of_vc.values()):
        assert not sum(record.preemptions), "nobody is killed"
