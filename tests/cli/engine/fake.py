"""An engine that does what a test says, behind the real HTTP server, on a Unix socket and on a port."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from hived.errors import ConflictError, NeverFitsError, NotFoundError, RequestError
from hived.server.app import make_app
from hived.server.pictures import (
    Chain,
    Holder,
    Layout,
    Level,
    Picture,
    Queue,
    Reserved,
    Totals,
    Update,
    Usage,
    View,
    VirtualCluster,
    Waiting,
)
from hived.server.schema import (
    About,
    Device,
    Drain,
    Explanation,
    Job,
    LogPage,
    Plan,
    Submission,
    TaskPlace,
)
from hived.server.serving import Server

from ...server.api.fakes import ENDED, FakeService, FakeSource

NODES, PER_NODE = ("node-0", "node-1"), 4
VCS = ("vision", "speech")
TOKEN = "let-me-in"
WAITING = "needs 4 GPUs of vision's cells; 2 are free, train-1 has the others"


class Engine(FakeService, FakeSource):
    """Both what the API and what the dashboard ask. Its devices are given out in order; nothing runs."""

    live = True

    def __init__(self) -> None:
        FakeService.__init__(self)
        self.submissions: dict[int, Submission] = {}
        self.output: dict[tuple[int, int, int], bytes] = {}  #: by job, attempt, rank
        self.over: set[tuple[int, int]] = set()  #: attempts whose tasks have ended
        self.drained: set[tuple[str, int]] = set()
        self.vcs = list(VCS)
        self.pictures = 0  #: that were asked for
        self.log_lines = ['{"n":0}', '{"n":1}']

    # -- what a test does

    def add(self, *, name: str = "train", vc: str = "vision", gpus: int = 1, tasks: int = 1, priority: int = 0) -> Job:
        """A job, running if there is room, else waiting."""
        return self._take(
            Submission(vc=vc, command=["true"], gpus=gpus, tasks=tasks, priority=priority, name=name), "ann"
        )

    def print(self, job: Job, text: str | bytes, rank: int = 0) -> None:
        """Output of the attempt that runs."""
        now = self.all[job.id - 1]
        key = (job.id, now.attempt, rank)
        self.output[key] = self.output.get(key, b"") + (text.encode() if isinstance(text, str) else text)

    def end(self, job: Job, code: int = 0) -> None:
        """It exits."""
        self.over.add((job.id, self.all[job.id - 1].attempt))
        self.change(
            job, state="succeeded" if code == 0 else "failed", exit_code=code, ended_at=time.time(), placement=[]
        )

    def start(self, job: Job, node: int = 0) -> None:
        """A waiting one runs."""
        now = self.all[job.id - 1]
        place = TaskPlace(rank=0, node=NODES[node], devices=list(range(now.gpus)))
        self.change(
            job, state="running", attempt=now.attempt + 1, started_at=time.time(), placement=[place],
            kind="opportunistic" if now.priority < 0 else "guaranteed", reason="",
        )  # fmt: skip

    def preempt(self, job: Job) -> None:
        """It is sent back to the queue."""
        now = self.all[job.id - 1]
        self.over.add((job.id, now.attempt))
        self.change(job, state="queued", placement=[], kind=None, resumes=now.resumes + 1, reason="was preempted")

    def change(self, job: Job, **fields: object) -> Job:
        """Any other fields of it."""
        now = self.all[job.id - 1].model_copy(update=fields)
        self.all[job.id - 1] = now
        self.tell(f"{now.name} is {now.state}", now.state, now.id)
        return now

    def tell(self, text: str, kind: str = "said", job: int | None = None) -> None:
        """An event."""
        self.happen(kind, job, text)

    # -- the API

    def about(self) -> About:
        return super().about().model_copy(update={"version": "9.9.9", "source": "a test", "nodes": 2, "vcs": self.vcs})

    async def submit(self, submission: Submission, user: str) -> Job:
        return self._take(submission, user)

    def _take(self, submission: Submission, user: str) -> Job:
        self._fits(submission)
        self.made(submission, user, Path(submission.command[0]).name)
        self.submissions[len(self.all)] = submission
        total = submission.gpus * submission.tasks
        used = sum(job.gpus for job in self.all if job.placement)
        if used + total > 8:
            return self.change(self.all[-1], reason=WAITING)
        free = [(one.node, one.device) for one in self.devices() if one.job is None]
        free = [place for place in free if sum(other[0] == place[0] for other in free) >= submission.gpus]
        places = []
        for rank in range(submission.tasks):
            mine, free = free[: submission.gpus], free[submission.gpus :]
            places.append(TaskPlace(rank=rank, node=mine[0][0], devices=[device for _, device in mine]))
        kind = "opportunistic" if submission.priority < 0 else "guaranteed"
        return self.change(
            self.all[-1], state="running", placement=places, kind=kind, attempt=1, started_at=time.time()
        )

    def _fits(self, submission: Submission) -> None:
        if submission.vc not in self.vcs:
            raise RequestError("vc", f"no virtual cluster {submission.vc!r}; there are {', '.join(self.vcs)}")
        if submission.gpus * submission.tasks > 8:
            raise NeverFitsError(f"{submission.vc} has 4 GPUs, this needs {submission.gpus * submission.tasks}")

    def plan(self, submission: Submission) -> Plan:
        if submission.gpus * submission.tasks > 8:
            return Plan(outcome="never", text="there are 8 GPUs", placement=[], victims=[], reasons=[])
        self._fits(submission)
        if submission.gpus > 4:
            return Plan(outcome="waits", text=WAITING, placement=[], victims=["train-1"], reasons=[{"kind": "need"}])
        place = TaskPlace(rank=0, node="node-0", devices=list(range(submission.gpus)))
        victims = ["train-1"] if submission.gpus == 3 else []
        return Plan(outcome="now", text="", placement=[place], victims=victims, reasons=[])

    def explain(self, ref: str) -> Explanation:
        job = self.job(ref)
        return Explanation(job=job.id, text=f"{job.name} is {job.state}\n  {job.reason}", reasons=[{"kind": "need"}])

    async def cancel(self, ref: str) -> Job:
        job = self.job(ref)
        if job.state in ENDED:
            raise ConflictError(f"{job.name} has ended already")
        return self.change(job, state="stopping" if job.placement else "cancelled")

    def log(self, ref: str, rank: int, attempt: int | None, offset: int, limit: int) -> LogPage:
        job = self.job(ref)
        number = attempt or job.attempt
        written = self.output.get((job.id, number, rank), b"")
        start = max(0, len(written) + offset) if offset < 0 else min(offset, len(written))
        page = written[start : start + limit]
        end = (job.id, number) in self.over
        return LogPage(text=page.decode("utf-8", "replace"), offset=start, next=start + len(page), end=end)

    def devices(self, node: str | None = None, offset: int = 0, limit: int = 1000) -> list[Device]:
        jobs = {(task.node, device): job.id for job in self.all for task in job.placement for device in task.devices}
        return [
            Device(
                node=node, device=device, state="used" if (node, device) in jobs else "free", healthy=True,
                drained=(node, device) in self.drained, why_bad="", job=jobs.get((node, device)),
            )
            for node in NODES
            for device in range(PER_NODE)
        ]  # fmt: skip

    async def drain(self, drain: Drain) -> list[Device]:
        if drain.node is not None and drain.node not in NODES:
            raise NotFoundError(f"no node {drain.node!r}; there are {', '.join(NODES)}")
        about = {
            (one.node, one.device)
            for one in self.devices()
            if drain.node in (None, one.node) and drain.device in (None, one.device)
        }
        self.drained = self.drained - about if drain.undo else self.drained | about
        return [one for one in self.devices() if (one.node, one.device) in about]

    # -- the dashboard

    def layout(self) -> Layout:
        chain = Chain(
            name="NODE",
            levels=[Level(cell_type="GPU", gpus=1), Level(cell_type="NODE", gpus=PER_NODE)],
            node_level=2,
            nodes=list(NODES),
        )
        cells = [Reserved(cell_type="NODE", gpus=PER_NODE, number=1)]
        return Layout(
            title="a test", clock="unix", synthetic=True, start=0, end=None,
            vcs=[VirtualCluster(name=vc, gpus=PER_NODE, reserved=cells) for vc in self.vcs],
            views=[View(key="live", label="now", chains=[chain])],
        )  # fmt: skip

    def picture(self, view: str, at: float | None = None) -> Picture:
        self.pictures += 1
        return self._picture()

    def _picture(self) -> Picture:
        now = time.time()
        holding = [job for job in self.all if job.placement]
        waiting = [job for job in self.all if job.state in ("queued", "backoff", "reserved")]
        used = {vc: sum(job.gpus for job in holding if job.vc == vc and job.priority >= 0) for vc in self.vcs}
        lent = {vc: sum(job.gpus for job in holding if job.vc == vc and job.priority < 0) for vc in self.vcs}
        return Picture(
            seq=len(self.happened),
            at=now,
            holders=[
                Holder(
                    id=str(job.id), name=job.name, vc=job.vc, kind=job.kind or "guaranteed", gpus=job.gpus,
                    since=job.started_at or now, priority=job.priority,
                    parts=[(0, NODES.index(task.node), task.devices[0], len(task.devices)) for task in job.placement],
                )
                for job in holding
            ],
            bad=[],
            drained=[(0, NODES.index(node), device, 1) for node, device in sorted(self.drained)],
            queue=[
                Waiting(
                    id=str(job.id), name=job.name, vc=job.vc, gpus=job.gpus, priority=job.priority,
                    since=job.submitted_at, state="queued", why=[job.reason],
                )
                for job in waiting
            ],
            queue_total=len(waiting),
            usage=[
                Usage(vc=vc, reserved=PER_NODE, used=used[vc], lent=0, borrowed=lent[vc], waiting=len(waiting))
                for vc in self.vcs
            ],
            totals=Totals(
                gpus=8, guaranteed=sum(used.values()), opportunistic=sum(lent.values()), reserved=0, bad=0,
                drained=len(
                    self.drained - {(task.node, at) for job in holding for task in job.placement for at in task.devices}
                ),
                fragmentation=0.5,
            ),
        )  # fmt: skip

    def update(self, view: str, seq: int) -> Update | None:
        now = self._picture()
        touched = {str(event.job) for event in self.happened if event.seq > seq and event.job is not None}
        held = [holder for holder in now.holders if holder.id in touched]
        return Update(
            seq=now.seq, at=now.at, gone=sorted(touched - {holder.id for holder in held}), holders=held, bad=None,
            queue=now.queue, queue_total=now.queue_total, usage=now.usage, totals=now.totals, sample=None,
        )  # fmt: skip

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> Queue:
        now = self._picture()
        return Queue(jobs=now.queue[offset : offset + limit], total=now.queue_total)


class Running:
    """``engine`` served from a thread: ``folder/hived.sock``, and a port. ``stop`` and ``start`` make it restart."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    def start(self) -> None:
        """Listen."""
        self._server = Server()
        apps = [
            make_app(self.engine, self.engine, token=None if local else TOKEN, hosts=[], local=local)
            for local in (True, False)
        ]
        start = self._server.start(
            apps[1], listen=("127.0.0.1", 0), socket_app=apps[0], socket=self.folder / "hived.sock"
        )
        asyncio.run_coroutine_threadsafe(start, self._loop).result(30)

    def stop(self) -> None:
        """Answer no more."""
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(30)

    def close(self) -> None:
        """For good."""
        self.stop()
        asyncio.run_coroutine_threadsafe(_end_the_rest(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    @property
    def url(self) -> str:
        """Where it listens on TCP."""
        return f"http://127.0.0.1:{self._server.port}"


async def _end_the_rest() -> None:
    """Tasks that a library keeps for as long as its loop lives."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
