"""A run that has ended, made up: the same jobs in private clusters, under quota, under hived, by a toy scheduler."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

from hived.errors import NotFoundError
from hived.server.pictures import (
    Chain,
    Comparison,
    Curves,
    Ended,
    EndedJobs,
    Holder,
    Layout,
    Level,
    Moment,
    Outcome,
    Picture,
    Queue,
    Reserved,
    Stay,
    Story,
    Stretch,
    TenantOutcome,
    Totals,
    Update,
    Usage,
    View,
    VirtualCluster,
    Waiting,
)

NODES = {"prod-a": 6, "res-b": 4, "speech": 3, "vision": 3}
DAY = 86400.0
SPAN = 10 * DAY
HOSTS = sum(NODES.values())
LEVELS = [
    Level(cell_type="GPU", gpus=1),
    Level(cell_type="SOCKET", gpus=4),
    Level(cell_type="NODE", gpus=8),
]


@dataclass
class ToyJob:
    """A job, and in each view when it ran, where, and how."""

    ref: str
    tenant: str
    gpus: int
    submit: float
    lasts: float
    start: dict[str, float] = field(default_factory=dict)
    parts: dict[str, list[Stretch]] = field(default_factory=dict)
    kind: dict[str, Literal["guaranteed", "opportunistic"]] = field(default_factory=dict)


def toy_jobs() -> list[ToyJob]:
    """Jobs of four tenants over ten days, more than there is room for at times."""
    rng = random.Random(11)
    jobs = []
    for number in range(900):
        tenant = rng.choices(list(NODES), weights=[5, 4, 3, 2])[0]
        gpus = rng.choices([1, 2, 4, 8, 16], weights=[4, 3, 3, 4, 1])[0]
        lasts = rng.lognormvariate(9.5, 1.1)
        jobs.append(ToyJob(f"{number}", tenant, gpus, rng.uniform(0, SPAN * 0.9), lasts))
    return sorted(jobs, key=lambda job: job.submit)


def toy_run(key: str, jobs: list[ToyJob]) -> None:
    """First come, first served per tenant; private: its own nodes, quota: anywhere, hived: its own, or lent ones."""
    masks = [[False] * 8 for _ in range(HOSTS)]
    own: dict[str, range] = {}
    at = 0
    for tenant, many in NODES.items():
        own[tenant] = range(at, at + many)
        at += many
    quota = {tenant: 8 * many for tenant, many in NODES.items()}
    lines: dict[str, list[ToyJob]] = {tenant: [] for tenant in NODES}
    ends: list[tuple[float, int, ToyJob]] = []
    order = 0

    def place(job: ToyJob, hosts: list[int]) -> list[Stretch] | None:
        if job.gpus >= 8:
            empty = [host for host in hosts if not any(masks[host])][: job.gpus // 8]
            return [(0, host, 0, 8) for host in empty] if len(empty) == job.gpus // 8 else None
        for host in hosts:
            for first in range(0, 8, job.gpus):
                if not any(masks[host][first : first + job.gpus]):
                    return [(0, host, first, job.gpus)]
        return None

    def settle(now: float) -> None:
        nonlocal order
        for tenant, line in lines.items():
            while line:
                job = line[0]
                hosts = list(range(HOSTS)) if key == "quota" else list(own[tenant])
                kind: Literal["guaranteed", "opportunistic"] = "guaranteed"
                parts = place(job, hosts) if quota[tenant] >= job.gpus or key != "quota" else None
                if parts is None and key == "hived":
                    others = [host for host in range(HOSTS) if host not in own[tenant]]
                    parts, kind = place(job, others), "opportunistic"
                if parts is None:
                    break
                line.pop(0)
                for _, host, first, many in parts:
                    masks[host][first : first + many] = [True] * many
                quota[tenant] -= job.gpus if kind == "guaranteed" else 0
                job.start[key], job.parts[key], job.kind[key] = now, parts, kind
                order += 1
                heappush(ends, (now + job.lasts, order, job))

    def end_until(now: float) -> None:
        while ends and ends[0][0] <= now:
            when, _, job = heappop(ends)
            for _, host, first, many in job.parts[key]:
                masks[host][first : first + many] = [False] * many
            quota[job.tenant] += job.gpus if job.kind[key] == "guaranteed" else 0
            settle(when)

    for job in jobs:
        end_until(job.submit)
        lines[job.tenant].append(job)
        settle(job.submit)
    end_until(float("inf"))


class FinishedStub:
    """Three views of one trace."""

    live = False
    keys = ("private", "quota", "hived")

    def __init__(self, name_of_first: str = "job-0") -> None:
        self.jobs = toy_jobs()
        self.names = {job.ref: f"job-{job.ref}" for job in self.jobs}
        self.names["0"] = name_of_first
        self._curves: dict[str, Curves] = {}
        for key in self.keys:
            toy_run(key, self.jobs)
        nodes = [f"{tenant}-{i}" for tenant, many in NODES.items() for i in range(many)]
        shared = [
            Chain(
                name="V100", levels=[*LEVELS, Level(cell_type="RACK", gpus=64)], node_level=3, nodes=self._names(HOSTS)
            )
        ]
        self.private: list[Chain] = []
        at = 0
        for tenant, many in NODES.items():
            self.private.append(Chain(name=f"{tenant}'s own", levels=LEVELS, node_level=3, nodes=nodes[at : at + many]))
            at += many
        views = [
            View(key="private", label="private yarn-cs", chains=self.private),
            View(key="quota", label="quota yarn-cs", chains=shared),
            View(key="hived", label="hived yarn-cs", chains=shared),
        ]
        vcs = [
            VirtualCluster(name=tenant, gpus=8 * many, reserved=[Reserved(cell_type="RACK.NODE", gpus=8, number=many)])
            for tenant, many in NODES.items()
        ]
        self._layout = Layout(
            title="a made-up trace on 16 nodes",
            clock="trace",
            synthetic=True,
            start=0.0,
            end=SPAN,
            vcs=vcs,
            views=views,
        )

    @staticmethod
    def _names(many: int) -> list[str]:
        return [f"node-{i:02}" for i in range(many)]

    def _parts(self, key: str, job: ToyJob) -> list[Stretch]:
        if key != "private":
            return job.parts[key]
        starts = [0]
        for many in NODES.values():
            starts.append(starts[-1] + many)
        found: list[Stretch] = []
        for _, host, first, many in job.parts[key]:
            chain = bisect_right(starts, host) - 1
            found.append((chain, host - starts[chain], first, many))
        return found

    def layout(self) -> Layout:
        return self._layout

    def picture(self, view: str, at: float | None = None) -> Picture:
        if view not in self.keys:
            raise NotFoundError(f"no view {view}")
        now = SPAN if at is None else at
        holders, queue = [], []
        for job in self.jobs:
            start = job.start[view]
            if start <= now < start + job.lasts:
                holders.append(
                    Holder(
                        id=job.ref,
                        name=self.names[job.ref],
                        vc=job.tenant,
                        kind=job.kind[view],
                        gpus=job.gpus,
                        since=start,
                        parts=self._parts(view, job),
                    )
                )
            elif job.submit <= now < start:
                queue.append(
                    Waiting(
                        id=job.ref,
                        name=self.names[job.ref],
                        vc=job.tenant,
                        gpus=job.gpus,
                        priority=0,
                        since=job.submit,
                        state="queued",
                        why=[f"{job.tenant} has no {job.gpus} GPUs together"],
                    )
                )
        used = dict.fromkeys(NODES, 0)
        borrowed = dict.fromkeys(NODES, 0)
        for holder in holders:
            (used if holder.kind == "guaranteed" else borrowed)[holder.vc] += holder.gpus
        usage = [
            Usage(
                vc=tenant,
                reserved=8 * many,
                used=used[tenant],
                lent=0,
                borrowed=borrowed[tenant],
                waiting=sum(job.vc == tenant for job in queue),
            )
            for tenant, many in NODES.items()
        ]
        broken = len({part[:2] for holder in holders for part in holder.parts if part[3] < 8})
        totals = Totals(
            gpus=8 * HOSTS,
            guaranteed=sum(used.values()),
            opportunistic=sum(borrowed.values()),
            reserved=0,
            bad=0,
            fragmentation=broken / HOSTS,
        )
        return Picture(
            seq=0, at=now, holders=holders, bad=[], queue=queue, queue_total=len(queue), usage=usage, totals=totals
        )

    def update(self, view: str, seq: int) -> Update | None:
        return None

    async def changed(self, seq: int) -> None:
        raise AssertionError("nobody waits for what has ended")

    def curves(self, view: str) -> Curves:
        if view not in self._curves:
            self._curves[view] = self._make_curves(view)
        return self._curves[view]

    def _make_curves(self, view: str) -> Curves:
        at = [SPAN * step / 240 for step in range(241)]
        pictures = [self.picture(view, moment) for moment in at]
        return Curves(
            at=at,
            guaranteed=[picture.totals.guaranteed / picture.totals.gpus for picture in pictures],
            opportunistic=[picture.totals.opportunistic / picture.totals.gpus for picture in pictures],
            fragmentation=[picture.totals.fragmentation for picture in pictures],
            waiting=[picture.queue_total for picture in pictures],
            delay={tenant: [self._delay(view, tenant, moment) for moment in at] for tenant in NODES},
        )

    def _delay(self, view: str, tenant: str, at: float) -> float | None:
        """Mean of the jobs submitted in the last twelve hours."""
        delays = [
            job.start[view] - job.submit
            for job in self.jobs
            if job.tenant == tenant and at - DAY / 2 < job.submit <= at
        ]
        return sum(delays) / len(delays) if delays else None

    def story(self, view: str, job: str) -> Story:
        of = next((one for one in self.jobs if one.ref == job), None)
        if of is None:
            raise NotFoundError(f"no job {job}")
        start = of.start[view]
        where = ";".join(f"node-{host:02}:{first}-{first + many - 1}" for _, host, first, many in of.parts[view])
        return Story(
            id=of.ref,
            name=self.names[of.ref],
            vc=of.tenant,
            gpus=of.gpus,
            priority=0,
            state="succeeded",
            command="",
            explanation=f"It waited {(start - of.submit) / 60:.0f} minutes, then ran {of.kind[view]}.",
            stays=[
                Stay(start=of.submit, end=start, kind="waiting", where=""),
                Stay(start=start, end=start + of.lasts, kind=of.kind[view], where=where),
            ],
            moments=[Moment(at=of.submit, text="submitted"), Moment(at=start, text=f"started on {where}")],
        )

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> Queue:
        line = self.picture(view, at).queue
        return Queue(jobs=line[offset : offset + limit], total=len(line))

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> EndedJobs:
        now = SPAN if at is None else at
        over = [job for job in self.jobs if job.start[view] + job.lasts <= now]
        over.sort(key=lambda job: -(job.start[view] + job.lasts))
        return EndedJobs(
            jobs=[
                Ended(
                    id=job.ref,
                    name=self.names[job.ref],
                    vc=job.tenant,
                    gpus=job.gpus,
                    priority=0,
                    state="finished",
                    at=job.start[view] + job.lasts,
                    why="",
                )
                for job in over[offset : offset + limit]
            ],
            total=len(over),
        )

    def comparison(self) -> Comparison | None:
        return Comparison(outcomes=[self._outcome(key) for key in self.keys])

    def _outcome(self, key: str) -> Outcome:
        curves = self.curves(key)

        def of(jobs: list[ToyJob], tenant: str) -> TenantOutcome:
            delays = sorted(job.start[key] - job.submit for job in jobs)
            private = [job.start["private"] - job.submit for job in jobs]
            mean = sum(delays) / len(delays)
            return TenantOutcome(
                tenant=tenant,
                jobs=len(jobs),
                mean_delay_s=mean,
                p95_delay_s=delays[int(0.95 * len(delays))],
                to_private=mean / (sum(private) / len(private)),
                worse_jobs=sum(job.start[key] > job.start["private"] + 1 for job in jobs),
            )

        return Outcome(
            view=key,
            label={"private": "private", "quota": "quota", "hived": "HiveD"}[key] + " · yarn-cs",
            utilization=sum(value or 0 for value in curves.guaranteed) / len(curves.at),
            opportunistic=sum(value or 0 for value in curves.opportunistic) / len(curves.at),
            fragmentation=sum(value or 0 for value in curves.fragmentation) / len(curves.at),
            preemptions=0,
            finished=len(self.jobs),
            unfinished=0,
            overall=of(self.jobs, "all"),
            tenants=[of([job for job in self.jobs if job.tenant == tenant], tenant) for tenant in NODES],
        )
