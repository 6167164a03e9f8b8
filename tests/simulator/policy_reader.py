"""An independent reader of schedules: at every moment, which jobs a policy has to run, from its documented rule alone.

Nothing of hived is imported. It reads the jobs and the intervals in which each held GPUs, and re-derives the rest:
what every job has attained, which jobs wait, and what fits beside the jobs that run. A running job keeps its place, so
where a policy packs its jobs is taken from the intervals, and which jobs it runs is checked.

A virtual cluster is a number of whole nodes, private or under hived without loans. A job fits into a node with as many
free GPUs as it asks for; a larger one into whole nodes that are free.

A strict policy: the first in the order that waits does not fit, and nobody starts while a job before it waits.
A passing one: no job that waits fits, but nobody starts behind one that has waited for too long.
A preempting one: jobs are taken in order as far as they fit beside those taken before them.
Everywhere a higher priority comes first, and takes the GPUs of lower ones.

With loans, where every job asks for one GPU, so that only their number counts (:func:`check_loans`): a tenant's first
jobs run on what it reserved, its others on what is idle, in the same order, and nothing is idle while a job waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

NODE = 8


@dataclass
class Job:
    """A job of the trace, with what became of it; times in milliseconds."""

    number: int
    name: str
    tenant: str
    submit: int
    duration: int
    gpus: int
    priority: int
    finish: int | None
    #: start, end, GPUs per node, in order
    runs: list[tuple[int, int, dict[str, int]]] = field(default_factory=list)
    #: start and end of those on loan: beyond what its tenant reserved
    lent: list[tuple[int, int]] = field(default_factory=list)

    def run_at(self, now: int) -> dict[str, int] | None:
        """Where it runs from ``now`` on."""
        return next((held for start, end, held in self.runs if start <= now < end), None)

    def is_lent_at(self, now: int) -> bool:
        return any(start <= now < end for start, end in self.lent)

    def runs_at(self, now: int) -> bool:
        """Whether it runs, and not on a loan: that is still waiting for its turn."""
        return self.run_at(now) is not None and not self.is_lent_at(now)

    def waits_at(self, now: int) -> bool:
        there = self.submit <= now and (self.finish is None or now < self.finish)
        return there and self.run_at(now) is None

    def starts_at(self, now: int) -> bool:
        """Or goes on; a job of no work starts when it ends."""
        return any(start == now for start, _, _ in self.runs) or (not self.runs and self.finish == now)

    def stops_at(self, now: int) -> bool:
        return any(end == now for _, end, _ in self.runs) and self.finish != now

    def ran(self, until: int) -> int:
        """For how long it has held its GPUs."""
        return sum(min(end, until) - start for start, end, _ in self.runs if start < until)

    def ran_for(self, time: float) -> int:
        """The first moment at which it has held its GPUs for ``time``."""
        for start, end, _ in self.runs:
            if end - start >= time:
                return -int(-(start + time) // 1)
            time -= end - start
        raise AssertionError(f"{self.name} has not run for {time}")


Key = tuple[float, ...]


@dataclass(frozen=True)
class Rule:
    """A policy as documented."""

    #: the order: of a job, at a moment
    order: Callable[[Job, int], Key]
    preempts: bool = False
    #: milliseconds from its submission on for which a job that does not fit is passed
    patience: float = 0
    #: moments between events at which the order of a job changes
    changes: Callable[[Job], Iterable[int]] = lambda job: ()

    def key(self, job: Job, now: int) -> Key:
        return (-job.priority, *self.order(job, now), job.number)


def _remaining(job: Job, now: int) -> Key:
    return job.duration - job.ran(now), not job.runs_at(now), job.submit


def _tiresias(limits: Sequence[float]) -> Rule:
    """Limits in GPU-seconds."""

    def demotions(job: Job) -> list[int]:
        total = sum(end - start for start, end, _ in job.runs)
        return [job.ran_for(limit * 1000 / job.gpus) for limit in limits if total * job.gpus >= limit * 1000]

    def order(job: Job, now: int) -> Key:
        queue = sum(job.ran(now) * job.gpus >= limit * 1000 for limit in limits)
        return queue, not job.runs_at(now), demotions(job)[queue - 1] if queue else job.submit

    return Rule(order, preempts=True, patience=inf, changes=demotions)


def rule(policy: str) -> Rule:
    """The rule of a policy here, by its name; ``greedy:SECONDS`` and ``tiresias:LIMIT/LIMIT`` have parameters."""
    name, _, given = policy.partition(":")
    value = given.partition("=")[2]
    if name == "greedy":
        return Rule(lambda job, now: (job.submit,), patience=float(value or 86_400) * 1000)
    if name == "tiresias":
        return _tiresias([float(limit) for limit in value.split("/")] if value else (3250, 7200))
    return {
        "fifo": Rule(lambda job, now: (job.submit,)),
        "yarn-cs": Rule(lambda job, now: (job.submit,)),
        "sjf": Rule(lambda job, now: (job.duration, job.submit)),
        "srtf": Rule(_remaining, preempts=True, patience=inf),
    }[name]


def fits(gpus: int, held: Iterable[Mapping[str, int]], nodes: int) -> bool:
    """Whether a job fits into so many nodes beside what others hold."""
    used: dict[str, int] = {}
    for one in held:
        for node, number in one.items():
            used[node] = used.get(node, 0) + number
    assert len(used) <= nodes, f"{len(used)} nodes in use, of {nodes}"
    assert max(used.values(), default=0) <= NODE, f"more than a node has: {used}"
    empty = nodes - len(used)
    if gpus > NODE:
        return empty * NODE >= gpus
    return empty > 0 or any(NODE - number >= gpus for number in used.values())


def _moments(jobs: Sequence[Job], rules: Mapping[str, Rule]) -> list[int]:
    """When anything happens or an order changes."""
    moments = {job.submit for job in jobs}
    moments |= {moment for job in jobs for start, end, _ in job.runs for moment in (start, end)}
    return sorted(moments | {moment for job in jobs for moment in rules[job.tenant].changes(job)})


def jobs_of(record: Any) -> list[Job]:
    """The jobs of a record of a simulation, or of anything with its fields."""
    jobs = [
        Job(number, j.job_id, j.tenant, j.submit_ms, j.duration_ms, j.gpus, j.priority, end if end >= 0 else None)
        for number, (j, end) in enumerate(zip(record.jobs, record.finish, strict=True))
    ]
    for run in record.runs:
        held = {pod.node: len(pod.leaf_cells) for pod in run.placement.pods}
        assert len(held) == len(run.placement.pods), "a node twice"
        jobs[run.job].runs.append((run.start, run.end, held))
        if run.kind.value == "opportunistic":
            jobs[run.job].lent.append((run.start, run.end))
    for job in jobs:
        job.runs.sort(key=lambda run: run[0])
        work = sum(end - start for start, end, _ in job.runs)
        assert job.finish is None or work == job.duration, f"{job.name} has run for {work} of {job.duration}"
    return jobs


def check(record: Any, nodes: Mapping[str, int], policies: Mapping[str, str]) -> int:
    """Check a record against the policy of each tenant, on so many nodes each; returns the number of moments."""
    moments = 0
    everybody = jobs_of(record)
    for tenant, policy in policies.items():
        jobs = [job for job in everybody if job.tenant == tenant and fits(job.gpus, (), nodes[tenant])]
        assert all(job.finish is not None for job in jobs), "a job that fits has not finished"
        asked = rule(policy)
        events = _moments(jobs, {tenant: asked})
        for now in events:
            there = [job for job in jobs if job.submit <= now and (job.finish is None or now <= job.finish)]
            try:
                _check_moment(asked, there, nodes[tenant], now)
            except AssertionError as error:
                raise AssertionError(f"{policy}, {tenant}, at {now} ms: {error}") from error
        moments += len(events)
    return moments


def _check_moment(asked: Rule, jobs: Sequence[Job], nodes: int, now: int) -> None:
    keys = {job.number: asked.key(job, now) for job in jobs}
    waiting = sorted((job for job in jobs if job.waits_at(now)), key=lambda job: keys[job.number])
    running = {job.number: (job, held) for job in jobs if (held := job.run_at(now)) is not None}
    for job in waiting:
        before = [
            held
            for other, held in running.values()
            if (keys[other.number] < keys[job.number] if asked.preempts else other.priority >= job.priority)
        ]
        assert not fits(job.gpus, before, nodes), (
            f"{job.name} waits, and fits: it comes before others, or they are free"
        )
        if now - job.submit >= asked.patience:
            break
    holding = [job for job in waiting if now - job.submit >= asked.patience]
    for job in jobs if holding else ():
        if not job.starts_at(now):
            continue
        for other in holding:
            # what is submitted at this moment comes after what ends, and one after another
            later = other.submit == now and (job.submit < now or job.number < other.number)
            stopped = other.stops_at(now) and any(j.submit == now and j.starts_at(now) for j in jobs)
            if not later and not stopped:
                assert keys[job.number] < keys[other.number], f"{job.name} starts, and {other.name} waits before it"


def check_loans(record: Any, reserved: Mapping[str, int], policies: Mapping[str, str]) -> None:
    """Check a record with loans of jobs of one GPU, on so many GPUs of each tenant."""
    jobs = jobs_of(record)
    assert all(job.gpus == 1 and job.finish is not None for job in jobs)
    rules = {tenant: rule(policy) for tenant, policy in policies.items()}
    for now in _moments(jobs, rules):
        there = [job for job in jobs if job.submit <= now and now < (job.finish or 0)]
        running = sum(job.run_at(now) is not None for job in there)
        assert running == min(len(there), sum(reserved.values())), f"at {now} ms: {running} of {len(there)} jobs run"
        begin = [job for job in there if job.runs_at(now) and not job.runs_at(now - 1)]
        for tenant, asked in rules.items():
            mine = [job for job in there if job.tenant == tenant]
            try:
                _check_loans_of(asked, mine, reserved[tenant], now, begin)
            except AssertionError as error:
                raise AssertionError(f"{policies[tenant]}, {tenant}, at {now} ms: {error}") from error


def _check_loans_of(asked: Rule, jobs: Sequence[Job], reserved: int, now: int, begin: Sequence[Job]) -> None:
    """``begin``: the jobs of all tenants that begin at ``now``, and not on loan."""
    own = [job for job in jobs if job.runs_at(now)]
    lent = [job for job in jobs if job.is_lent_at(now)]
    waiting = [job for job in jobs if job.waits_at(now)]
    assert len(own) == min(reserved, len(jobs)), f"{len(own)} run on the {reserved} GPUs reserved, of {len(jobs)} jobs"
    for job in own:
        for other in lent + waiting:
            before = asked.key(other, now) < asked.key(job, now)
            if asked.preempts or other.priority > job.priority:
                assert not before, f"{other.name} comes before {job.name}, which runs in its place"
            elif job in begin and not _displaced(other, now, [j for j in begin if j.priority > other.priority]):
                assert not before, f"{job.name} starts, and {other.name} is before it"
    for job in lent:
        for other in waiting:
            before = asked.key(other, now) < asked.key(job, now)
            if asked.preempts or not (job.is_lent_at(now - 1) or _displaced(other, now, begin)):
                assert not before, f"{other.name} comes before {job.name}, which is on loan in its place"


def _displaced(job: Job, now: int, begin: Sequence[Job]) -> bool:
    """Whether a job that waits may have run at ``now`` until others began: if for no time, that leaves no trace."""
    return job.submit == now or job.stops_at(now) or bool(begin)
