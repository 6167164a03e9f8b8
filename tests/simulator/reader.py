"""An independent reader of simulation results: it believes nothing, and checks every promise of the files.

Written from the contract alone (columns, units, hard affinity, what the schemes mean); nothing of hived is imported.
Every check raises ``AssertionError`` with the scheme and the job.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from .hardware import Chain, Gpu, Hardware, read_hardware

JOB_COLUMNS = (
    "scheme,policy,job_id,tenant,gpus,submit_s,duration_s,start_s,finish_s,queue_s,preemptions,finished,alone_s"
)
RUN_COLUMNS = "scheme,policy,job_id,start_s,end_s,kind,placement,share,rate"


@dataclass(frozen=True)
class TraceRow:
    """A job of the trace; times in milliseconds here and everywhere below."""

    job_id: str
    tenant: str
    submit: int
    duration: int
    gpus: int


@dataclass(frozen=True)
class Interval:
    """A row of runs.csv."""

    job_id: str
    start: int
    end: int
    kind: str
    placement: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def held(self) -> list[Gpu]:
        return [(node, device) for node, devices in self.placement for device in devices]


@dataclass(frozen=True)
class JobRow(TraceRow):
    """A row of jobs.csv."""

    start: int | None
    finish: int | None
    queue: int | None
    preemptions: int
    finished: bool


@dataclass(frozen=True)
class Asked:
    """What the simulation was asked for."""

    opportunistic: bool = True
    preempted: str = "resume"
    until: int | None = None
    clock_compression: float = 1.0


class Outcome:
    """One scheme and policy: the jobs in the order of the trace, and the intervals of each."""

    def __init__(self, scheme: str, policy: str, jobs: Sequence[JobRow], runs: Iterable[Interval]) -> None:
        self.scheme = scheme
        self.policy = policy
        self.jobs = {job.job_id: job for job in jobs}
        assert len(self.jobs) == len(jobs), f"{scheme}: a job has two rows"
        self.runs: dict[str, list[Interval]] = {job.job_id: [] for job in jobs}
        for run in runs:
            assert run.job_id in self.runs, f"{scheme}: {run.job_id} is in runs.csv and not in jobs.csv"
            self.runs[run.job_id].append(run)

    def all_runs(self, kind: str | None = None) -> list[tuple[JobRow, Interval]]:
        """Every interval with its job."""
        return [(self.jobs[n], run) for n, runs in self.runs.items() for run in runs if kind in (None, run.kind)]

    def kinds(self, job_id: str) -> list[tuple[float, float, str, str]]:
        """The intervals of a job, in seconds, with the placement as text."""
        return [
            (r.start / 1000, r.end / 1000, r.kind, ";".join(f"{n}:{','.join(map(str, d))}" for n, d in r.placement))
            for r in self.runs[job_id]
        ]


def ms(text: str) -> int:
    """Seconds as whole milliseconds; finer is an error."""
    value = Decimal(text) * 1000
    assert value == int(value), f"{text} is finer than a millisecond"
    return int(value)


def read_jobs_of(trace: Path, clock_compression: float = 1.0) -> list[TraceRow]:
    """A trace in order of submission, its clock compressed (exactly, then rounded half up to milliseconds)."""
    data = trace.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    factor = Fraction(clock_compression)
    rows = [
        TraceRow(
            row["job_id"], row["tenant"], int(Fraction(ms(row["submit_s"])) / factor + Fraction(1, 2)),
            ms(row["duration_s"]), int(row["gpus"]),
        )
        for row in csv.DictReader(io.StringIO(text, newline=""))
    ]  # fmt: skip
    return sorted(rows, key=lambda row: row.submit)


def read_outcomes(folder: Path) -> dict[tuple[str, str], Outcome]:
    """jobs.csv and runs.csv, by scheme and policy."""
    jobs: dict[tuple[str, str], list[JobRow]] = defaultdict(list)
    for row in _rows(folder / "jobs.csv", JOB_COLUMNS):
        assert row["finished"] in ("true", "false"), row
        assert row["alone_s"] == "", "alone_s, and jobs run without models"
        times = [None if row[name] == "" else ms(row[name]) for name in ("start_s", "finish_s", "queue_s")]
        jobs[row["scheme"], row["policy"]].append(
            JobRow(
                row["job_id"], row["tenant"], ms(row["submit_s"]), ms(row["duration_s"]), int(row["gpus"]),
                times[0], times[1], times[2], int(row["preemptions"]), row["finished"] == "true",
            )
        )  # fmt: skip
    runs: dict[tuple[str, str], list[Interval]] = defaultdict(list)
    for row in _rows(folder / "runs.csv", RUN_COLUMNS):
        placement = tuple(_part(text) for text in row["placement"].split(";"))
        assert row["share"] == row["rate"] == "1.0", "a job has its GPUs for itself"
        run = Interval(row["job_id"], ms(row["start_s"]), ms(row["end_s"]), row["kind"], placement)
        runs[row["scheme"], row["policy"]].append(run)
    assert runs.keys() <= jobs.keys(), "a scheme is in runs.csv and not in jobs.csv"
    return {key: Outcome(*key, jobs[key], runs[key]) for key in jobs}


def _rows(path: Path, columns: str) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        assert file.readline() == columns + "\n", f"columns of {path.name}"
        return list(csv.DictReader(file, columns.split(","), strict=True))


def _part(text: str) -> tuple[str, tuple[int, ...]]:
    node, _, devices = text.rpartition(":")
    return node, tuple(map(int, devices.split(",")))


def audit(folder: Path, spec: Path, trace: Path, asked: Asked | None = None) -> dict[tuple[str, str], Outcome]:
    """Check everything that the files of ``folder`` say, and return it."""
    asked = asked or Asked()
    hardware = read_hardware(spec)
    rows = read_jobs_of(trace, asked.clock_compression)
    outcomes = read_outcomes(folder)
    for outcome in outcomes.values():
        one_row_per_job(outcome, rows)
        for job in outcome.jobs.values():
            try:
                times_agree(outcome, job, asked)
                intervals_agree(outcome, job, asked)
                affinity_holds(outcome, job, hardware)
            except AssertionError as error:
                raise AssertionError(
                    f"{outcome.scheme}, job {job.job_id}: {error}\n{outcome.runs[job.job_id]}"
                ) from error
        jobs_that_fit_finish(outcome, hardware, asked)
        no_gpu_is_held_twice(outcome)
        first_come_first_served(outcome, hardware)
        if outcome.scheme == "private":
            private_nodes_are_ones_own(outcome, hardware)
        elif outcome.scheme == "quota":
            quotas_hold(outcome, hardware)
        else:
            cells_hold(outcome, hardware)
    return outcomes


def one_row_per_job(outcome: Outcome, rows: Sequence[TraceRow]) -> None:
    """The trace is repeated as it was, in its order."""
    said = [TraceRow(j.job_id, j.tenant, j.submit, j.duration, j.gpus) for j in outcome.jobs.values()]
    assert said == list(rows), f"{outcome.scheme}: jobs.csv is not the trace"


def times_agree(outcome: Outcome, job: JobRow, asked: Asked) -> None:
    """Times are there exactly for jobs that ran to their end."""
    assert job.finished == (job.finish is not None) == (job.start is not None) == (job.queue is not None), "times"
    if job.start is not None and job.finish is not None and job.queue is not None:
        assert job.queue == job.finish - job.submit - job.duration, "queue_s = finish - submit - duration"
        assert job.submit <= job.start <= job.finish, "submit, start, finish in this order"
        assert job.queue >= 0, "no job ends before its work is done"
        assert asked.until is None or job.finish <= asked.until, "nothing happens after --until"


def intervals_agree(outcome: Outcome, job: JobRow, asked: Asked) -> None:
    """Intervals follow one another, each for a reason, and hold the job's work."""
    runs = outcome.runs[job.job_id]
    assert all(run.start < run.end for run in runs), "an empty interval"
    assert all(run.kind in ("guaranteed", "opportunistic") for run in runs), "kind"
    for run in runs:
        assert run.start >= job.submit, "runs before its submission"
        assert asked.until is None or run.end <= asked.until, "runs after --until"
    lost = 0  # preemptions that can be seen: a move to guaranteed GPUs need not be one
    for before, after in pairwise(runs):
        assert before.end <= after.start, "in two places at once"
        assert before.kind == "opportunistic", "guaranteed GPUs are never taken"
        together = before.end == after.start
        changed = before.placement != after.placement
        assert not together or changed or before.kind != after.kind, "one interval in two rows"
        lost += not together or after.kind == "opportunistic"
    unseen = sum(a.end == b.start and a.placement != b.placement and b.kind == "guaranteed" for a, b in pairwise(runs))
    unseen += bool(runs) and not job.finished  # preempted, and not back before --until
    assert lost <= job.preemptions <= lost + unseen, f"{lost} preemptions seen, {job.preemptions} in the file"
    lends = asked.opportunistic and outcome.scheme != "private"
    if not lends:
        assert job.preemptions == 0, "no job is preempted without loans"
        assert all(run.kind == "guaranteed" for run in runs), "nothing is lent"
    if not job.finished:
        if asked.preempted == "resume":
            worked = sum(run.end - run.start for run in runs)
            assert worked < job.duration or not runs, "has done its work, and is not finished"
    elif job.duration == 0:
        assert not runs, "holds GPUs for no work"
        assert job.start == job.finish, "a job of no work ends as it starts"
    else:
        assert runs, "finished without GPUs"
        assert runs[0].start == job.start, "start_s is the start of the first interval"
        assert runs[-1].end == job.finish, "finish_s is the end of the last interval"
        assert job.duration in works(runs, asked), f"work {works(runs, asked)}"


def works(runs: Sequence[Interval], asked: Asked) -> list[int]:
    """The work that is not lost at the end: one answer, or several where a loss need not show in the file."""
    if asked.preempted == "resume":
        return [sum(run.end - run.start for run in runs)]
    found = [0]
    after: Interval | None = None
    for run in reversed(runs):
        if after is not None:
            if run.end != after.start or run.placement != after.placement:
                break  # it lost everything before this
            found.append(found[-1])
        found[-1] += run.end - run.start
        after = run
    return found


def affinity_holds(outcome: Outcome, job: JobRow, hardware: Hardware) -> None:
    """In one node where it fits one, else in whole nodes, as many as it takes."""
    for run in outcome.runs[job.job_id]:
        nodes = [node for node, _ in run.placement]
        assert len(set(nodes)) == len(nodes), "a node twice in one placement"
        assert all(len(set(devices)) == len(devices) > 0 for _, devices in run.placement), "a device twice"
        if outcome.scheme == "private":
            sizes = {r.chain.node_gpus for r in hardware.tenants[job.tenant]}
            assert any(_closest(run, job.gpus, size) for size in sizes), "affinity"
            continue
        unknown = [gpu for gpu in run.held if gpu not in hardware.place]
        assert not unknown, f"no such GPU: {unknown}"
        chain = hardware.place[run.held[0]][0]
        assert all(hardware.place[gpu][0] is chain for gpu in run.held), "GPUs of two chains"
        assert _closest(run, job.gpus, chain.node_gpus), "affinity"


def _closest(run: Interval, gpus: int, node_gpus: int) -> bool:
    held = [len(devices) for _, devices in run.placement]
    return held == ([gpus] if gpus <= node_gpus else [node_gpus] * -(-gpus // node_gpus))


def jobs_that_fit_finish(outcome: Outcome, hardware: Hardware, asked: Asked) -> None:
    """Without an end, exactly the jobs that fit somewhere finish."""
    if asked.until is not None:
        return
    lends = asked.opportunistic and outcome.scheme != "private"
    for job in outcome.jobs.values():
        can = _has_a_turn(outcome, hardware, job) or (lends and hardware.fits_cluster(job.gpus))
        assert job.finished == can, f"{outcome.scheme}, job {job.job_id}: finished {job.finished}, could {can}"
        assert can or not outcome.runs[job.job_id], f"{outcome.scheme}, job {job.job_id} runs where it does not fit"


def _has_a_turn(outcome: Outcome, hardware: Hardware, job: JobRow) -> bool:
    if outcome.scheme == "quota":
        return hardware.fits_quota(job.tenant, job.gpus)
    return hardware.fits_cells(job.tenant, job.gpus)


def no_gpu_is_held_twice(outcome: Outcome) -> None:
    """Sweep every device of every node."""
    held: dict[Gpu, list[tuple[int, int, str]]] = defaultdict(list)
    for _, run in outcome.all_runs():
        for gpu in run.held:
            held[gpu].append((run.start, run.end, run.job_id))
    for gpu, intervals in held.items():
        intervals.sort()
        for (_, end, first), (start, _, second) in pairwise(intervals):
            assert end <= start, f"{outcome.scheme}: {first} and {second} both hold {gpu} at {start}"


def first_come_first_served(outcome: Outcome, hardware: Hardware) -> None:
    """Of one tenant's jobs that have a turn, none is guaranteed while an earlier one still waits for its own."""
    earliest: dict[str, tuple[int, str]] = {}
    for job in reversed(outcome.jobs.values()):
        if not _has_a_turn(outcome, hardware, job):
            assert not any(run.kind == "guaranteed" for run in outcome.runs[job.job_id]), f"{job.job_id} has no turn"
            continue
        turn = next((run.start for run in outcome.runs[job.job_id] if run.kind == "guaranteed"), None)
        settled = turn if turn is not None else job.finish
        if job.tenant in earliest:
            later, name = earliest[job.tenant]
            in_time = settled is not None and settled <= later
            assert in_time, f"{outcome.scheme}: {name} was guaranteed at {later}, before {job.job_id} at {settled}"
        if turn is not None:
            earliest[job.tenant] = min((turn, job.job_id), earliest.get(job.tenant, (turn, job.job_id)))


def private_nodes_are_ones_own(outcome: Outcome, hardware: Hardware) -> None:
    """No node serves two tenants, and no tenant has more or larger nodes than it reserved."""
    owner: dict[str, str] = {}
    size: dict[str, dict[str, int]] = {tenant: {} for tenant in hardware.tenants}
    for job, run in outcome.all_runs():
        for node, devices in run.placement:
            assert owner.setdefault(node, job.tenant) == job.tenant, f"node {node} serves two tenants"
            own = size[job.tenant]
            own[node] = max(own.get(node, 0), max(devices) + 1)
    for tenant, nodes in size.items():
        hosts = sorted((n for r in hardware.tenants[tenant] for n in r.hosts()), reverse=True)
        used = sorted(nodes.values(), reverse=True)
        assert len(used) <= len(hosts), f"{tenant} reserved {len(hosts)} nodes, and has {len(used)}"
        assert all(u <= h for u, h in zip(used, hosts, strict=False)), f"{tenant} has {used} of {hosts}"


def peak(changes: Iterable[tuple[int, int]]) -> int:
    """The highest running sum of (time, change); what ends at an instant ends before what begins."""
    now = highest = 0
    for _, change in sorted(changes):
        now += change
        highest = max(highest, now)
    return highest


def quotas_hold(outcome: Outcome, hardware: Hardware) -> None:
    """Guaranteed GPUs of a tenant, per device type, at any time."""
    changes: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for job, run in outcome.all_runs("guaranteed"):
        held = run.held
        key = job.tenant, hardware.place[held[0]][0].device
        changes[key] += [(run.start, len(held)), (run.end, -len(held))]
    for (tenant, device), of_tenant in changes.items():
        most = peak(of_tenant)
        assert most <= hardware.quota(tenant).get(device, 0), f"quota: {tenant} has {most} guaranteed {device}"


def cells_hold(outcome: Outcome, hardware: Hardware) -> None:
    """A tenant's guaranteed GPUs stand in cells, no more of them than it reserved, and nobody else's are in those."""
    held: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    cells: dict[tuple[str, int], list[tuple[int, int, str]]] = defaultdict(list)
    nodes: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    grain = {chain.name: _smallest_cell(chain, hardware) for chain in hardware.chains}
    pinned = {chain.leaves[at] for chain in hardware.chains for leaves in chain.pinned.values() for at in leaves}
    for job, run in outcome.all_runs("guaranteed"):
        assert pinned.isdisjoint(run.held), f"hived: {job.job_id} runs in a pinned cell without naming it"
        places = [hardware.place[gpu] for gpu in run.held]
        chain = places[0][0]
        held[job.tenant, chain.name] += [(run.start, len(places)), (run.end, -len(places))]
        for cell in {at // grain[chain.name] for _, at in places}:
            cells[chain.name, cell].append((run.start, run.end, job.tenant))
        for node in {at // chain.node_gpus for _, at in places}:
            nodes[job.tenant, chain.name, node].append((run.start, run.end))
    for (tenant, name), changes in held.items():
        reserved = sum(r.gpus for r in hardware.tenants[tenant] if r.chain.name == name)
        assert peak(changes) <= reserved, f"hived: {tenant} has {peak(changes)} guaranteed GPUs in {name}"
    for (name, cell), intervals in cells.items():
        intervals.sort()
        for n, (start, end, tenant) in enumerate(intervals):
            for start_2, _, tenant_2 in intervals[n + 1 :]:
                if start_2 >= end:
                    break
                assert tenant == tenant_2, f"hived: {tenant} and {tenant_2} in cell {cell} of {name} at {start}"
    on_nodes: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (tenant, name, _), spans in nodes.items():
        for start, end in _union(spans):
            on_nodes[tenant, name] += [(start, 1), (end, -1)]
    for (tenant, name), changes in on_nodes.items():
        hosts = sum(len(r.hosts()) for r in hardware.tenants[tenant] if r.chain.name == name)
        assert peak(changes) <= hosts, f"hived: {tenant} stands on {peak(changes)} nodes of {name}, reserved {hosts}"


def _smallest_cell(chain: Chain, hardware: Hardware) -> int:
    """GPUs of the smallest cell that anybody reserved in the chain, a node at most."""
    reserved = [r.chain.gpus[r.level] for cells in hardware.tenants.values() for r in cells if r.chain is chain]
    return min([chain.node_gpus, *reserved])


def _union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
