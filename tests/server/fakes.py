"""Fakes of both engines' services: their jobs and groups do what a test says, behind the real HTTP server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI
from starlette.types import ASGIApp

from hived.engine.states import JobState
from hived.engines.trading import LiveTrading
from hived.errors import ConflictError, ForbiddenError, NeverFitsError, NotFoundError, RequestError, UnavailableError
from hived.server import pictures, schema
from hived.server.app import make_app, new_app
from hived.server.exchange import ExchangeService
from hived.server.failures import declared
from hived.server.guard import Guard
from hived.server.kubernetes import schema as kubernetes
from hived.server.kubernetes.app import api_routes
from hived.server.kubernetes.engine_service import EngineService
from hived.server.limits import Limits
from hived.server.local_service import LocalService
from hived.server.serving import Server
from hived.spec import spec_from_dict

from ..contract.specs import flat

TOKEN = "let-me-in"
VCS = ("vision", "speech")
NODES, PER_NODE = ("node-0", "node-1"), 4
ENDED = ("succeeded", "failed", "cancelled")
#: why a job waits that finds no GPUs
WAITING = "needs 4 GPUs of vision's cells; 2 are free, train-1 has the others"
#: why a group waits, where a test says no other reason
WHY = "needs 8 GPUs of vision's cells; 4 are free"
FAILURES = {
    503: UnavailableError("it lists pods and nodes; come back in a moment"),
    403: ForbiddenError("hived may not patch nodes"),
    409: ConflictError("this replica stands by"),
}
T = TypeVar("T")


# -- the engine of one machine ----------------------------------------------------------------------------------------


class FakeTrader:
    """A market of two tenants with two nodes each; time stands still."""

    def __init__(self, service: FakeService) -> None:
        self._service = service
        self.reset()

    def reset(self) -> None:
        self._trading = LiveTrading(spec_from_dict(flat({"vision": 2, "speech": 2})))

    @property
    def trading(self) -> LiveTrading:
        self._service.check()
        return self._trading

    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        return act(self.trading, 1_000.0)


class FakeService(LocalService):
    """What the API and the dashboard ask of a machine with two nodes of 4 GPUs, which are given out in order.

    ``fails``: what every call raises from now on.
    """

    def __init__(self, *, live: bool = True) -> None:
        self.live = live
        self._trader = FakeTrader(self)
        self.market = ExchangeService(self._trader)
        self.reset()

    def reset(self) -> None:
        """An engine where nothing has happened yet, in the same application."""
        self._trader.reset()
        self.all: list[schema.Job] = []
        self.submissions: dict[int, schema.Submission] = {}
        self.users: list[str] = []
        self.happened: list[schema.JobEvent] = []
        self.output: dict[tuple[int, int, int], bytes] = {}  #: by job, attempt, rank
        self.over: set[tuple[int, int]] = set()  #: attempts whose tasks have ended
        self.nodes: tuple[str, ...] = NODES
        self.per_node = PER_NODE
        self.drained: set[tuple[str, int]] = set()
        self.vcs = list(VCS)
        self.asked: list[str] = []  #: jobs that somebody looked at
        self.pictures = 0  #: that were asked for
        self.rebuilt = 0  #: number of the latest event that came with other nodes
        self.log_lines = ['{"n":0}', '{"n":1}']
        self.fails: Exception | None = None

    # -- what a test does

    def add(
        self, *, name: str = "train", vc: str = "vision", gpus: int = 1, tasks: int = 1, priority: int = 0
    ) -> schema.Job:
        """A job, running if there is room, else waiting."""
        return self._take(
            schema.Submission(vc=vc, command=["true"], gpus=gpus, tasks=tasks, priority=priority, name=name), "ann"
        )

    def print(self, job: schema.Job, text: str | bytes, rank: int = 0) -> None:
        """Output of the attempt that runs."""
        key = (job.id, self.all[job.id - 1].attempt, rank)
        self.output[key] = self.output.get(key, b"") + (text.encode() if isinstance(text, str) else text)

    def end(self, job: schema.Job, code: int = 0) -> None:
        """It exits."""
        self.over.add((job.id, self.all[job.id - 1].attempt))
        state = "succeeded" if code == 0 else "failed"
        self.change(job, state=state, exit_code=code, ended_at=time.time(), placement=[])

    def start(self, job: schema.Job, node: int = 0) -> None:
        """A waiting one runs."""
        gpus = list(range(self.all[job.id - 1].gpus))
        self._run(job, [schema.TaskPlace(rank=0, node=self.nodes[node], devices=gpus)])

    def preempt(self, job: schema.Job) -> None:
        """It is sent back to the queue."""
        now = self.all[job.id - 1]
        self.over.add((job.id, now.attempt))
        self.change(job, state="queued", placement=[], kind=None, resumes=now.resumes + 1, reason="was preempted")

    def change(self, job: schema.Job, **fields: object) -> schema.Job:
        """Any other fields of it."""
        if "state" in fields:
            fields["state"] = JobState(str(fields["state"]))
        now = self.all[job.id - 1].model_copy(update=fields)
        self.all[job.id - 1] = now
        self.tell(f"{now.name} is {now.state}", now.state, now.id)
        return now

    def tell(self, text: str, kind: str = "said", job: int | None = None) -> None:
        """An event."""
        seq = len(self.happened) + 1
        self.happened.append(schema.JobEvent(seq=seq, at=time.time(), kind=kind, job=job, text=text))

    def rebuild(self, *nodes: str) -> None:
        """Other nodes under the same jobs."""
        self.nodes = nodes
        self.tell("reconfigured")
        self.rebuilt = len(self.happened)

    def check(self) -> None:
        if self.fails is not None:
            raise self.fails

    @property
    def gpus(self) -> int:
        return self.per_node * len(self.nodes)

    # -- the API

    def about(self) -> schema.About:
        self.check()
        counts: dict[str, int] = {}
        for job in self.all:
            counts[job.state] = counts.get(job.state, 0) + 1
        return schema.About(
            version="9.9.9", started_at=1.0e9, pid=1, simulated=True, source="a test", gpus=self.gpus,
            nodes=len(self.nodes), vcs=self.vcs, draining=False, jobs=counts, safety_margin=0,
        )  # fmt: skip

    async def submit(self, submission: schema.Submission, user: str) -> schema.Job:
        self.check()
        return self._take(submission, user)

    def _take(self, asked: schema.Submission, user: str) -> schema.Job:
        self._fits(asked)
        number = len(self.all) + 1
        job = schema.Job(
            id=number, name=f"{asked.name or Path(asked.command[0]).name}-{number}", vc=asked.vc,
            gpus=asked.gpus * asked.tasks, gpus_per_task=asked.gpus, tasks=asked.tasks, priority=asked.priority,
            state=JobState.QUEUED, kind=None, placement=[], command=asked.command, cwd=asked.cwd or "/", user=user,
            attempt=0,
            resumes=0, retries=0, max_retries=asked.retries, time_limit_s=asked.time_limit_s, submitted_at=time.time(),
            started_at=None, ended_at=None, exit_code=None, reason="",
        )  # fmt: skip
        self.all.append(job)
        self.users.append(user)
        self.submissions[number] = asked
        if sum(other.gpus for other in self.all if other.placement) + job.gpus > self.gpus:
            return self.change(job, reason=WAITING)
        free = [(one.node, one.device) for one in self.devices() if one.job is None]
        free = [place for place in free if sum(other[0] == place[0] for other in free) >= asked.gpus]
        places = []
        for rank in range(asked.tasks):
            mine, free = free[: asked.gpus], free[asked.gpus :]
            places.append(schema.TaskPlace(rank=rank, node=mine[0][0], devices=[device for _, device in mine]))
        return self._run(job, places)

    def _run(self, job: schema.Job, places: list[schema.TaskPlace]) -> schema.Job:
        now = self.all[job.id - 1]
        kind = "opportunistic" if now.priority < 0 else "guaranteed"
        return self.change(
            job,
            state="running",
            attempt=now.attempt + 1,
            started_at=time.time(),
            placement=places,
            kind=kind,
            reason="",
        )

    def _fits(self, submission: schema.Submission) -> None:
        if submission.vc not in self.vcs:
            raise RequestError("vc", f"no virtual cluster {submission.vc!r}; there are {', '.join(self.vcs)}")
        if submission.gpus * submission.tasks > self.gpus:
            raise NeverFitsError(f"{submission.vc} has 4 GPUs, this needs {submission.gpus * submission.tasks}")

    def plan(self, submission: schema.Submission) -> schema.Plan:
        """Now; with 3 GPUs, once train-1 has gone; with more than a node has, it would wait."""
        self.check()
        if submission.gpus * submission.tasks > self.gpus:
            return schema.Plan(
                outcome="never", text=f"there are {self.gpus} GPUs", placement=[], victims=[], reasons=[]
            )
        self._fits(submission)
        if submission.gpus > self.per_node:
            why: list[dict[str, object]] = [{"kind": "need"}]
            return schema.Plan(outcome="waits", text=WAITING, placement=[], victims=["train-1"], reasons=why)
        place = schema.TaskPlace(rank=0, node="node-0", devices=list(range(submission.gpus)))
        victims = ["train-1"] if submission.gpus == 3 else []
        return schema.Plan(outcome="now", text="", placement=[place], victims=victims, reasons=[])

    def jobs(self, states: Sequence[str], vc: str | None, limit: int, before: int | None) -> schema.Jobs:
        self.check()
        found = [
            job
            for job in reversed(self.all)
            if (not states or job.state in states)
            and (vc is None or job.vc == vc)
            and (before is None or job.id < before)
        ]
        return schema.Jobs(jobs=found[:limit], total=len(found))

    def job(self, ref: str) -> schema.Job:
        self.check()
        self.asked.append(ref)
        if ref.isdigit():
            int(ref).to_bytes(8, "big", signed=True)  # as large as a database can take; beyond, an OverflowError
        for job in reversed(self.all):
            if ref in (str(job.id), job.name, job.name.rpartition("-")[0]):
                return job
        raise NotFoundError(f"no job {ref!r}; hived ps --all lists them")

    def explain(self, ref: str) -> schema.Explanation:
        job = self.job(ref)
        text = f"{job.name} is {job.state}\n  {job.reason}"
        return schema.Explanation(job=job.id, text=text, reasons=[{"kind": "need"}])

    async def cancel(self, ref: str) -> schema.Job:
        job = self.job(ref)
        if job.state in ENDED:
            raise ConflictError(f"{job.name} has ended already")
        return self.change(job, state="stopping" if job.placement else "cancelled")

    def log(self, ref: str, rank: int, attempt: int | None, offset: int, limit: int) -> schema.LogPage:
        job = self.job(ref)
        number = attempt or job.attempt
        written = self.output.get((job.id, number, rank), b"")
        start = max(0, len(written) + offset) if offset < 0 else min(offset, len(written))
        page = written[start : start + limit]
        end = (job.id, number) in self.over
        return schema.LogPage(text=page.decode("utf-8", "replace"), offset=start, next=start + len(page), end=end)

    async def log_grown(self, ref: str, rank: int, attempt: int | None, offset: int) -> None:
        while (page := self.log(ref, rank, attempt, offset, 1)).next <= offset and not page.end:
            await asyncio.sleep(0.01)

    def events(self, after: int, limit: int, ref: str | None) -> schema.Events:
        self.check()
        number = None if ref is None else self.job(ref).id
        of_job = [event for event in self.happened if number is None or event.job == number]
        found = of_job[-limit:] if after == -1 else [event for event in of_job if event.seq > after][:limit]
        return schema.Events(events=found, last=len(self.happened))

    async def changed(self, after: int) -> None:
        while len(self.happened) <= after:
            await asyncio.sleep(0.01)

    def devices(self, node: str | None = None, offset: int = 0, limit: int = 1000) -> list[schema.Device]:
        self.check()
        jobs = {(task.node, device): job.id for job in self.all for task in job.placement for device in task.devices}
        return [
            schema.Device(
                node=node, device=device, state="used" if (node, device) in jobs else "free", healthy=True,
                drained=(node, device) in self.drained, why_bad="", job=jobs.get((node, device)),
            )
            for node in self.nodes
            for device in range(self.per_node)
        ]  # fmt: skip

    async def drain(self, drain: schema.Drain) -> list[schema.Device]:
        if drain.node is not None and drain.node not in self.nodes:
            raise NotFoundError(f"no node {drain.node!r}; there are {', '.join(self.nodes)}")
        about = {
            (one.node, one.device)
            for one in self.devices()
            if drain.node in (None, one.node) and drain.device in (None, one.device)
        }
        self.drained = self.drained - about if drain.undo else self.drained | about
        return [one for one in self.devices() if (one.node, one.device) in about]

    async def reconfigure(self, spec: schema.SpecText) -> schema.Reconfigured:
        self.check()
        return schema.Reconfigured(kept=[], downgraded=[], lost=[], cancelled=[])

    def decisions(self) -> Iterator[str]:
        self.check()
        return iter(self.log_lines)

    # -- the dashboard

    def layout(self) -> pictures.Layout:
        levels = [pictures.Level(cell_type="GPU", gpus=1), pictures.Level(cell_type="NODE", gpus=self.per_node)]
        chain = pictures.Chain(name="NODE", levels=levels, node_level=2, nodes=list(self.nodes))
        cells = [pictures.Reserved(cell_type="NODE", gpus=self.per_node, number=1)]
        return pictures.Layout(
            title="a test", clock="unix", synthetic=True, start=0, end=None,
            vcs=[pictures.VirtualCluster(name=vc, gpus=self.per_node, reserved=cells) for vc in self.vcs],
            views=[pictures.View(key="live", label="now", chains=[chain])],
        )  # fmt: skip

    def picture(self, view: str, at: float | None = None) -> pictures.Picture:
        self._look(view)
        self.pictures += 1
        return self._picture()

    def _look(self, view: str) -> None:
        if view != "live":
            raise NotFoundError(f"there is no view {view!r}; there is live")

    def _picture(self) -> pictures.Picture:
        now = time.time()
        holding = [job for job in self.all if job.placement]
        waiting = [job for job in self.all if job.state in ("queued", "backoff", "reserved")]
        used = {vc: sum(job.gpus for job in holding if job.vc == vc and job.priority >= 0) for vc in self.vcs}
        lent = {vc: sum(job.gpus for job in holding if job.vc == vc and job.priority < 0) for vc in self.vcs}
        held = {(task.node, device) for job in holding for task in job.placement for device in task.devices}
        return pictures.Picture(
            seq=len(self.happened),
            at=now,
            holders=[
                pictures.Holder(
                    id=str(job.id), name=job.name, vc=job.vc, kind=job.kind or "guaranteed", gpus=job.gpus,
                    since=job.started_at or now, priority=job.priority,
                    parts=[(0, self.nodes.index(t.node), t.devices[0], len(t.devices)) for t in job.placement],
                )
                for job in holding
            ],
            bad=[],
            drained=[(0, self.nodes.index(node), device, 1) for node, device in sorted(self.drained)],
            queue=[
                pictures.Waiting(
                    id=str(job.id), name=job.name, vc=job.vc, gpus=job.gpus, priority=job.priority,
                    since=job.submitted_at, state="queued", why=[job.reason],
                )
                for job in waiting
            ],
            queue_total=len(waiting),
            usage=[
                pictures.Usage(
                    vc=vc, reserved=self.per_node, used=used[vc], lent=0, borrowed=lent[vc], waiting=len(waiting)
                )
                for vc in self.vcs
            ],
            totals=pictures.Totals(
                gpus=self.gpus, guaranteed=sum(used.values()), opportunistic=sum(lent.values()), reserved=0, bad=0,
                drained=len(self.drained - held), drained_used=len(self.drained & held), fragmentation=0.5,
            ),
        )  # fmt: skip

    def update(self, view: str, seq: int) -> pictures.Update | None:
        if seq < self.rebuilt:
            return None
        now = self._picture()
        touched = {str(event.job) for event in self.happened if event.seq > seq and event.job is not None}
        held = [holder for holder in now.holders if holder.id in touched]
        return pictures.Update(
            seq=now.seq, at=now.at, gone=sorted(touched - {holder.id for holder in held}), holders=held, bad=None,
            queue=now.queue, queue_total=now.queue_total, usage=now.usage, totals=now.totals, sample=None,
        )  # fmt: skip

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> pictures.Queue:
        self._look(view)
        now = self._picture()
        return pictures.Queue(jobs=now.queue[offset : offset + limit], total=now.queue_total)

    def curves(self, view: str) -> pictures.Curves:
        self._look(view)
        return pictures.Curves(at=[0.0], guaranteed=[None], opportunistic=[0.0], fragmentation=[0.0], waiting=[0])

    def story(self, view: str, job: str) -> pictures.Story:
        self._look(view)
        of = self.job(job)
        return pictures.Story(
            id=job, name=of.name, vc=of.vc, gpus=of.gpus, priority=of.priority, state=of.state, command="",
            explanation="", stays=[], moments=[],
        )  # fmt: skip

    def timeline(self, view: str, node: str, start: float, end: float) -> pictures.GpuTimeline:
        self._look(view)
        raise NotFoundError(f"there is no node {node!r}")

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> pictures.EndedJobs:
        self._look(view)
        return pictures.EndedJobs(jobs=[], total=0)

    def comparison(self) -> pictures.Comparison | None:
        return None


@cache
def local_app(service: FakeService, token: str | None = None, hosts: tuple[str, ...] = ()) -> FastAPI:
    """The application of one machine: with a token as over TCP, without one as on the Unix socket."""
    return make_app(service, service, token=token, hosts=hosts, local=token is None)


# -- the engine on Kubernetes -----------------------------------------------------------------------------------------

KUBERNETES_NODES = ("gpu1", "gpu2")


class FakeKubernetes(EngineService):
    """A service without an engine: groups are kept in a list, and a test scripts the plans.

    ``fails``: what every call raises from now on.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """A cluster where nothing has happened yet, in the same application."""
        self.all: list[kubernetes.GroupInfo] = []
        self.drained: set[str] = set()
        self.planned: list[kubernetes.PlanRequest] = []
        self.asked: list[str] = []
        self.outcomes: dict[str, kubernetes.PlannedGroup] = {}  #: by the name of the object
        self.changes: dict[str, object] = {}  #: of the status
        self.doomed: list[str] = []
        self.fails: Exception | None = None

    # -- what a test does

    def add(
        self,
        name: str,
        vc: str = "vision",
        state: str = "running",
        gpus: int = 4,
        priority: int = 0,
        why: tuple[str, ...] = (),
        kind: str | None = None,
    ) -> kubernetes.GroupInfo:
        """Add a group of one pod, on gpu1 if it is placed."""
        placed = state in ("running", "reserved")
        kind = kind or ("opportunistic" if priority < 0 else "guaranteed")
        pod = kubernetes.GroupPod(
            namespace="team", name=f"{name.rpartition('/')[2]}-0", uid=f"uid-{name}",
            state="bound" if state == "running" else "waiting", node="gpu1" if placed else "",
            devices=list(range(gpus)) if placed else [],
        )  # fmt: skip
        group = kubernetes.GroupInfo.model_validate(
            {
                "name": name, "vc": vc, "priority": priority, "state": JobState(state),
                "kind": kind if placed else None,
                "gpus": gpus, "size": 2, "pods": [pod], "since": time.time() - 200, "victims": [], "why": list(why),
            }
        )  # fmt: skip
        self.all.append(group)
        return group

    def plans(self, name: str, outcome: str, text: str = "", *, victims: tuple[str, ...] = ()) -> None:
        """Script the plan of the object ``name``."""
        place = kubernetes.PodPlace(node="gpu1", devices=[0, 1, 2, 3])
        self.outcomes[name] = kubernetes.PlannedGroup.model_validate(
            {
                "group": f"default/{name}", "vc": "vision", "gpus": 4, "outcome": outcome, "text": text,
                "placement": [place] if outcome == "now" else [], "victims": list(victims),
                "reasons": [] if outcome == "now" else [{"kind": "vc_exhausted", "need": 4}],
            }
        )  # fmt: skip

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails

    # -- the API

    def _of_vc(self, name: str) -> kubernetes.VcSummary:
        def gpus(kind: str) -> int:
            return sum(group.gpus for group in self.all if (group.vc, group.kind) == (name, kind))

        waiting = sum(group.vc == name and group.state == "queued" for group in self.all)
        return kubernetes.VcSummary(
            name=name, reserved=8, used=gpus("guaranteed"), borrowed=gpus("opportunistic"), waiting=waiting
        )

    def status(self) -> kubernetes.Status:
        self._check()
        states = [group.state for group in self.all]
        spec = kubernetes.SpecStatus(source="configmap/hived/spec", loaded_at=time.time() - 60, problem="")
        status = kubernetes.Status(
            version="9.9.9", started_at=time.time() - 7200, identity="hived-0", leader=True, holder="hived-0",
            ready=True, spec=spec, gpus=16, reserved=0, bad=0, foreign=0, foreign_pods=[], doomed=0, unavailable=0,
            nodes=kubernetes.NodeCounts(total=2, healthy=2, bad=0, why=[], missing=[], unmanaged=0), safety_margin=1,
            guaranteed=sum(group.gpus for group in self.all if group.kind == "guaranteed"),
            opportunistic=sum(group.gpus for group in self.all if group.kind == "opportunistic"),
            groups={state: states.count(state) for state in dict.fromkeys(states)},
            vcs=[self._of_vc(name) for name in VCS],
        )  # fmt: skip
        return status.model_copy(update=self.changes)

    def vc(self, name: str) -> kubernetes.VcDetail:
        self._check()
        if name not in VCS:
            raise NotFoundError(f"there is no virtual cluster {name!r}; there are {', '.join(VCS)}")
        of = [group for group in self.all if group.vc == name]
        cells = [
            pictures.Reserved(cell_type="RACK.NODE", gpus=4, number=1, pinned=pinned) for pinned in (None, "corner")
        ]
        return kubernetes.VcDetail(
            summary=self._of_vc(name),
            cells=cells,
            doomed=self.doomed,
            running=[group for group in of if group.kind is not None][:100],
            waiting=[group for group in of if group.kind is None][:100],
        )

    def groups(self, vc: str | None, state: str | None, limit: int, offset: int) -> kubernetes.Groups:
        self._check()
        found = sorted(
            (group for group in self.all if vc in (None, group.vc) and state in (None, group.state)),
            key=lambda group: group.name,
        )
        return kubernetes.Groups(groups=found[offset : offset + limit], total=len(found))

    def group(self, ref: str) -> kubernetes.GroupInfo:
        self._check()
        self.asked.append(ref)
        for group in self.all:
            if ref == group.name or any(ref == f"{pod.namespace}/{pod.name}" for pod in group.pods):
                return group
        raise NotFoundError(f"there is no group and no pod {ref!r}")

    def explain(self, ref: str) -> kubernetes.GroupExplanation:
        group = self.group(ref)
        text = "\n".join([f"{group.name} is {group.state}", *(f"- {why}" for why in group.why)])
        pod = "" if ref == group.name else ref
        reasons: list[dict[str, object]] = [{"kind": "vc_exhausted", "need": 8}]
        return kubernetes.GroupExplanation(group=group.name, pod=pod, text=text, reasons=reasons)

    def plan(self, request: kubernetes.PlanRequest) -> kubernetes.PlanAnswer:
        self._check()
        self.planned.append(request)
        groups = []
        for number, thing in enumerate(request.objects):
            metadata = thing.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if name == "wrong":
                raise RequestError(f"objects.{number}", f"{thing['kind']} wrong: it asks for no GPUs")
            if name in self.outcomes:
                groups.append(self.outcomes[name])
        return kubernetes.PlanAnswer(groups=groups)

    async def drain(self, request: kubernetes.DrainRequest) -> kubernetes.Drained:
        self._check()
        if request.node not in KUBERNETES_NODES:
            raise NotFoundError(f"there is no node {request.node!r}; there are {', '.join(KUBERNETES_NODES)}")
        self.drained = self.drained - {request.node} if request.undo else self.drained | {request.node}
        there = [group.name for group in self.all if any(pod.node == request.node for pod in group.pods)]
        return kubernetes.Drained(node=request.node, drained=not request.undo, gpus=8, groups=there)


def kubernetes_app(service: FakeKubernetes, token: str | None = None) -> FastAPI:
    """The API of ``service`` alone, behind the guard that it really has."""
    app = new_app("a fake", "", "kubernetes")
    app.include_router(api_routes(service), responses=declared() if token is None else declared(401))
    app.add_middleware(Limits)
    app.add_middleware(Guard, token=token, hosts=("testserver", "hived"), local=False)
    return app


# -- over HTTP --------------------------------------------------------------------------------------------------------


class Answering:
    """An application served from a thread, on a port and on sockets as it is told, until it is closed.

    ``stop`` and ``start`` make it restart.
    """

    def __init__(self, app: ASGIApp, **more: Any) -> None:
        self._apps = {"app": app, **more}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    def start(self) -> None:
        """Listen."""
        self._server = Server()
        self._wait(self._server.start(**self._apps, listen=("127.0.0.1", 0)))
        self.answers = True

    def stop(self) -> None:
        """Answer no more."""
        self._wait(self._server.stop())
        self.answers = False

    def close(self) -> None:
        """For good."""
        self.stop()
        self._wait(_end_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    @property
    def url(self) -> str:
        """Where it listens on TCP."""
        return f"http://127.0.0.1:{self._server.port}"

    def _wait(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(120)


async def _end_the_rest() -> None:
    """Tasks that a library keeps for as long as its loop lives."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


class Running(Answering):
    """A machine's engine that answers on ``folder/hived.sock``, and on a port."""

    def __init__(self, folder: Path) -> None:
        self.engine = FakeService()
        self.folder = folder
        local = local_app(self.engine)
        super().__init__(local_app(self.engine, TOKEN), socket_app=local, socket=folder / "hived.sock")
