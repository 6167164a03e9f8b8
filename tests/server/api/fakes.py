"""An engine and a source without anything behind them: jobs are kept in a list, and time stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hived.engines.trading import LiveTrading
from hived.errors import ConflictError, HivedError, NotFoundError, RequestError
from hived.server.exchange import ExchangeService
from hived.server.local_service import LocalService
from hived.server.pictures import (
    Chain,
    Comparison,
    Curves,
    EndedJobs,
    GpuTimeline,
    Layout,
    Level,
    Picture,
    Queue,
    Reserved,
    Story,
    Totals,
    Update,
    View,
    VirtualCluster,
)
from hived.server.schema import (
    About,
    Device,
    Drain,
    Events,
    Explanation,
    Job,
    JobEvent,
    Jobs,
    LogPage,
    Plan,
    Reconfigured,
    SpecText,
    Submission,
    TaskPlace,
)
from hived.spec import spec_from_dict

from ...contract.specs import flat

ENDED = ("succeeded", "failed", "cancelled")
T = TypeVar("T")


class FakeTrader:
    """A market of two tenants with two nodes each; time stands still."""

    def __init__(self, service: FakeService) -> None:
        self._service = service
        self._trading = LiveTrading(spec_from_dict(flat({"vision": 2, "speech": 2})))

    @property
    def trading(self) -> LiveTrading:
        if self._service.fails is not None:
            raise self._service.fails
        return self._trading

    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        return act(self.trading, 1_000.0)


class FakeService(LocalService):
    """A service in memory. ``fails``: what every call raises from now on."""

    def __init__(self) -> None:
        self.market = ExchangeService(FakeTrader(self))
        self.all: list[Job] = []
        self.asked: list[str] = []  #: jobs that somebody looked at
        self.users: list[str] = []
        self.happened: list[JobEvent] = []
        self.printed: dict[int, bytes] = {}
        self.fails: Exception | None = None
        self.log_lines: list[str] = []

    # -- what tests do with it

    def happen(self, kind: str, job: int | None, text: str = "") -> None:
        """Something happens."""
        seq = len(self.happened) + 1
        self.happened.append(JobEvent(seq=seq, at=time.time(), kind=kind, job=job, text=text or f"{kind} {job}"))

    def prints(self, job: int, text: bytes) -> None:
        self.printed[job] = self.printed.get(job, b"") + text

    def ends(self, job: int, state: str = "succeeded") -> None:
        self.all[job - 1] = self.all[job - 1].model_copy(update={"state": state, "ended_at": time.time()})
        self.happen(state, job)

    def made(self, submission: Submission, user: str, name: str = "job", **fields: object) -> Job:
        """A job as it was submitted, and these fields of it."""
        number = len(self.all) + 1
        job = Job(
            id=number, name=f"{submission.name or name}-{number}", vc=submission.vc,
            gpus=submission.gpus * submission.tasks, gpus_per_task=submission.gpus, tasks=submission.tasks,
            priority=submission.priority, state="queued", kind=None, placement=[], command=submission.command,
            cwd=submission.cwd or "/", user=user, attempt=0, resumes=0, retries=0, max_retries=submission.retries,
            time_limit_s=submission.time_limit_s, submitted_at=time.time(), started_at=None, ended_at=None,
            exit_code=None, reason="",
        )  # fmt: skip
        self.all.append(job.model_copy(update=fields))
        self.users.append(user)
        return self.all[-1]

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails

    # -- what the API asks

    def about(self) -> About:
        self._check()
        counts: dict[str, int] = {}
        for job in self.all:
            counts[job.state] = counts.get(job.state, 0) + 1
        return About(
            version="0",
            started_at=1.0e9,
            pid=1,
            simulated=True,
            source="fake",
            gpus=8,
            nodes=1,
            vcs=["vision", "speech"],
            draining=False,
            jobs=counts,
            safety_margin=0,
        )

    async def submit(self, submission: Submission, user: str) -> Job:
        self._check()
        if submission.vc not in ("vision", "speech"):
            raise RequestError("vc", f"there is no virtual cluster {submission.vc!r}; there are vision and speech")
        job = self.made(
            submission, user, state="running", attempt=1, started_at=time.time(),
            kind="guaranteed" if submission.priority >= 0 else "opportunistic",
            placement=[TaskPlace(rank=0, node="gpu1", devices=[0])],
        )  # fmt: skip
        self.happen("submitted", job.id)
        return job

    def plan(self, submission: Submission) -> Plan:
        self._check()
        return Plan(outcome="now", text="it starts now", placement=[], victims=[], reasons=[{"kind": "Now", "have": 8}])

    def jobs(self, states: Sequence[str], vc: str | None, limit: int, before: int | None) -> Jobs:
        self._check()
        found = [
            job
            for job in reversed(self.all)
            if (not states or job.state in states)
            and (vc is None or job.vc == vc)
            and (before is None or job.id < before)
        ]
        return Jobs(jobs=found[:limit], total=len(found))

    def job(self, ref: str) -> Job:
        self._check()
        self.asked.append(ref)
        if ref.isdigit():
            int(ref).to_bytes(8, "big", signed=True)  # as large as a database can take; beyond, an OverflowError
        for job in reversed(self.all):
            if ref in (str(job.id), job.name, job.name.rpartition("-")[0]):
                return job
        raise NotFoundError(f"no job {ref!r}; hived ps --all lists them")

    def explain(self, ref: str) -> Explanation:
        return Explanation(job=self.job(ref).id, text="it runs", reasons=[])

    async def cancel(self, ref: str) -> Job:
        job = self.job(ref)
        if job.state in ENDED:
            raise ConflictError(f"job {job.name} has ended")
        self.ends(job.id, "cancelled")
        return self.all[job.id - 1]

    def log(self, ref: str, rank: int, attempt: int | None, offset: int, limit: int) -> LogPage:
        job = self.job(ref)
        if rank >= job.tasks:
            raise RequestError("rank", f"job {job.name} has {job.tasks} tasks")
        data = self.printed.get(job.id, b"")
        start = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        part = data[start : start + limit]
        return LogPage(
            text=part.decode("utf-8", "replace"), offset=start, next=start + len(part), end=job.state in ENDED
        )

    def events(self, after: int, limit: int, ref: str | None) -> Events:
        self._check()
        number = None if ref is None else self.job(ref).id
        of_job = [event for event in self.happened if number is None or event.job == number]
        found = of_job[-limit:] if after == -1 else [event for event in of_job if event.seq > after][:limit]
        return Events(events=found, last=len(self.happened))

    async def changed(self, after: int) -> None:
        while len(self.happened) <= after:
            await asyncio.sleep(0.01)

    async def log_grown(self, ref: str, rank: int, attempt: int | None, offset: int) -> None:
        while (page := self.log(ref, rank, attempt, offset, 1)).next <= offset and not page.end:
            await asyncio.sleep(0.01)

    def devices(self, node: str | None = None, offset: int = 0, limit: int = 1000) -> list[Device]:
        self._check()
        return [Device(node="gpu1", device=0, state="free", healthy=True, drained=False, why_bad="", job=None)]

    async def drain(self, drain: Drain) -> list[Device]:
        self._check()
        if drain.node not in (None, "gpu1"):
            raise NotFoundError(f"there is no node {drain.node!r}")
        return [device.model_copy(update={"drained": not drain.undo}) for device in self.devices()]

    async def reconfigure(self, spec: SpecText) -> Reconfigured:
        self._check()
        return Reconfigured(kept=[], downgraded=[], lost=[], cancelled=[])

    def decisions(self) -> Iterator[str]:
        self._check()
        return iter(self.log_lines)


class FakeSource:
    """A :class:`~hived.server.dashboard.Source` with one view of one node."""

    def __init__(self, live: bool = True) -> None:
        self.live = live

    def layout(self) -> Layout:
        chain = Chain(
            name="NODE",
            levels=[Level(cell_type="V100", gpus=1), Level(cell_type="NODE", gpus=8)],
            node_level=2,
            nodes=["gpu1"],
        )
        tenant = VirtualCluster(name="vision", gpus=8, reserved=[Reserved(cell_type="NODE", gpus=8, number=1)])
        return Layout(
            title="fake",
            clock="unix",
            synthetic=True,
            start=0.0,
            end=None,
            vcs=[tenant],
            views=[View(key="live", label="now", chains=[chain])],
        )

    def _look(self, view: str) -> None:
        if view != "live":
            raise NotFoundError(f"there is no view {view!r}; there is live")

    def picture(self, view: str, at: float | None = None) -> Picture:
        self._look(view)
        totals = Totals(gpus=8, guaranteed=0, opportunistic=0, reserved=0, bad=0, fragmentation=0.0)
        return Picture(
            seq=1, at=at or 0.0, holders=[], bad=[(0, 0, 3, 1)], queue=[], queue_total=0, usage=[], totals=totals
        )

    def update(self, view: str, seq: int) -> Update | None:
        return None

    async def changed(self, seq: int) -> None:
        await asyncio.Event().wait()

    def curves(self, view: str) -> Curves:
        self._look(view)
        return Curves(at=[0.0], guaranteed=[None], opportunistic=[0.0], fragmentation=[0.0], waiting=[0])

    def story(self, view: str, job: str) -> Story:
        self._look(view)
        raise NotFoundError(f"there is no job {job!r}")

    def timeline(self, view: str, node: str, start: float, end: float) -> GpuTimeline:
        self._look(view)
        raise NotFoundError(f"there is no node {node!r}")

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> Queue:
        self._look(view)
        return Queue(jobs=[], total=0)

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> EndedJobs:
        self._look(view)
        return EndedJobs(jobs=[], total=0)

    def comparison(self) -> Comparison | None:
        return None


def bug() -> Exception:
    """Something that nobody expected."""
    return ZeroDivisionError("a secret of the engine")


def purpose(kind: type[HivedError]) -> HivedError:
    """An error of a kind, as an engine would raise it."""
    return kind("what, where, and the way out")
