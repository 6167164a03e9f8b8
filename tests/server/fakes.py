"""Fakes of both engines' services: their jobs and groups do what a test says, behind the real HTTP server."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fastapi import FastAPI
from starlette.types import ASGIApp

from hived.access import Access, Person, Role, Session, Sessions, Tokens
from hived.cli.logs import attempt_of
from hived.engine.holdings import Use
from hived.engine.job import JobFilter
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.engines.submission import Model, indexes_of
from hived.errors import (
    ConflictError,
    ForbiddenError,
    NeverFitsError,
    NotFoundError,
    RequestError,
    UnavailableError,
    UnsupportedError,
)
from hived.server import pictures, schema
from hived.server.app import add_api, make_app, new_app, private
from hived.server.guard import Guard
from hived.server.kubernetes.engine_service import EngineService
from hived.server.limits import Limits, local_user
from hived.server.local_service import LocalService, shown_token
from hived.server.metrics import Metrics
from hived.server.permits import Whose
from hived.server.service import whole_number
from hived.server.serving import Server
from hived.server.trades import ExchangeService
from hived.spec import spec_from_dict
from hived.spec.writing import spec_text

from ..contract.specs import flat

TOKEN = "let-me-in"
SPEC = spec_text(spec_from_dict(flat({"vision": 2, "speech": 2})))
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
Answer = TypeVar("Answer", bound=Model)


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

    policy = "fair"  #: of all virtual clusters

    def __init__(self, *, live: bool = True) -> None:
        self.live = live
        self._trader = FakeTrader(self)
        self.market = ExchangeService(self._trader)
        self.reset()

    def reset(self) -> None:
        """An engine where nothing has happened yet, in the same application."""
        self._trader.reset()
        self.all: list[schema.Job] = []
        self.submissions: dict[str, schema.Submission] = {}
        self.refuses_again = False
        #: of arrays: a job, and the indexes
        self.resubmitted: list[tuple[str, str]] = []
        self.users: list[str] = []
        self.happened: list[schema.Event] = []
        self.output: dict[tuple[str, int, int], bytes] = {}  #: by job, attempt, rank
        self.over: set[tuple[str, int]] = set()  #: attempts whose tasks have ended
        self.names: tuple[str, ...] = NODES
        self.per_node = PER_NODE
        self.drained: set[tuple[str, int]] = set()
        self.drain_reasons: dict[tuple[str, int], str] = {}
        self.names_of_vcs = list(VCS)
        self.asked: list[str] = []  #: jobs that somebody looked at
        self.pictures = 0  #: that were asked for
        self.rebuilt = 0  #: number of the latest event that came with other nodes
        self.log_lines = ['{"n":0}', '{"n":1}']
        self.spec_text = SPEC
        self.keeps_files = True  #: whether files of ended jobs are there
        self.kept_from = 0  #: the first byte of outputs that is kept
        self.applied: list[str] = []  #: specs that were put in its place
        self.reconfigured = schema.Reconfigured(
            dry_run=False, kept=[], downgraded=[], on_removed_devices=[], requeued=[], warnings=[]
        )
        self.fails: Exception | None = None
        self.known = Tokens()
        self._sessions, self.address = Sessions(), None

    # -- what a test does

    def add(
        self, *, name: str = "train", vc: str = "vision", gpus: int = 1, tasks: int = 1, priority: int = 0
    ) -> schema.Job:
        """A job, running if there is room, else waiting."""
        return self._take(
            schema.Submission(vc=vc, command=("true",), gpus=gpus, tasks=tasks, priority=priority, name=name), "ann"
        )

    def print(self, job: schema.Job, text: str | bytes, rank: int = 0) -> None:
        """Output of the attempt that runs."""
        key = (job.id, attempt_of(self.now(job)), rank)
        self.output[key] = self.output.get(key, b"") + (text.encode() if isinstance(text, str) else text)

    def end(self, job: schema.Job, code: int = 0) -> None:
        """It exits."""
        self.over.add((job.id, attempt_of(self.now(job))))
        state = "succeeded" if code == 0 else "failed"
        self.change(job, state=state, exit_code=code, ended_at=time.time(), tasks=[])

    def start(self, job: schema.Job, node: int = 0) -> None:
        """A waiting one runs."""
        self._run(job, [task(0, self.names[node], range(self.now(job).gpus))])

    def preempt(self, job: schema.Job) -> None:
        """It is sent back to the queue."""
        now = process_of(self.now(job))
        self.over.add((job.id, now.attempt))
        self.change(job, state="queued", tasks=[], kind=None, resumes=now.resumes + 1, why=["was preempted"])

    def now(self, job: schema.Job) -> schema.Job:
        """It as it is now."""
        return self.all[int(job.id) - 1]

    def change(self, job: schema.Job, **fields: object) -> schema.Job:
        """Any other fields of it, those of its process too."""
        if "state" in fields:
            fields["state"] = JobState(str(fields["state"]))
        before = self.now(job)
        of_process = {name: fields.pop(name) for name in list(fields) if name in schema.Process.model_fields}
        fields["process"] = process_of(before).model_copy(update=of_process)
        now = before.model_copy(update=fields)
        self.all[int(job.id) - 1] = now
        self.tell(f"{now.name} is {now.state}", now.state, now.id)
        return now

    def tell(self, text: str, kind: str = "said", job: str | None = None) -> None:
        """An event."""
        seq = len(self.happened) + 1
        self.happened.append(schema.Event(seq=seq, at=time.time(), kind=kind, job=job, text=text))

    def rebuild(self, *nodes: str) -> None:
        """Other nodes under the same jobs."""
        self.names = nodes
        self.tell("reconfigured")
        self.rebuilt = len(self.happened)

    def check(self) -> None:
        if self.fails is not None:
            raise self.fails

    @property
    def gpus(self) -> int:
        return self.per_node * len(self.names)

    # -- who asks

    @property
    def owner(self) -> Person:
        return local_user(os.geteuid())

    def access(self) -> Access:
        return Access(self._trader.trading.base, self.owner.name)

    def named(self, ref: str, user: str) -> str:
        return ref

    def whose(self, ref: str) -> Whose:
        job = self.job(ref)
        self.asked.pop()  # nobody looks at it
        return Whose(job.name, job.user, job.vc)

    def clock(self) -> float:
        return time.time()

    def _signed_in(self, session: Session) -> None:
        self.check()

    def _signed_out(self, session: Session, by: str) -> None:
        self.check()

    async def holder(self, text: str) -> Person | None:
        return self._person(self.known.shown(text, time.time()))

    def by_id(self, number: str) -> Person | None:
        return self._person(self.known.known(number, time.time()))

    def tokens(self, user: str | None) -> list[schema.Token]:
        self.check()
        return [shown_token(token) for token in self.known if user in (None, token.user)]

    async def create_token(self, new: schema.NewToken, user: str) -> schema.MadeToken:
        self.check()
        number = f"{len(list(self.known)) + 1:08x}"
        made, text = self.known.create(number, "secret", new.user, time.time(), new.lasts_s, new.vcs, user)
        return schema.MadeToken(token=shown_token(made), text=text, roles={})

    async def accounts(self, start: float, end: float) -> schema.Accounts:
        self.check()
        used = schema.Account(user="ann", vc="vision", use=Use.GUARANTEED, gpu_seconds=7_200.0, jobs=2)
        kept = schema.Account(user="", vc="vision", use=Use.RESERVED, gpu_seconds=14_400.0, jobs=0)
        return schema.Accounts(
            start=start, end=end, accounts=[used, kept], jobs=[schema.JobsOf(user="ann", vc="vision", jobs=2)]
        )

    async def revoke_token(self, number: str, user: str) -> schema.Token:
        self.check()
        return shown_token(self.known.revoke(number))

    # -- the API

    def scheduler(self) -> NoReturn:
        raise UnavailableError("a fake has no jobs but those that it says")

    def engine(self) -> schema.Engine:
        self.check()
        return schema.Engine(
            engine="local", version="9.9.9", started_at=1.0e9, ready=True, simulated=True, replica=None,
            settings=schema.Settings(jobs="run as who submitted them", fences=[], files_s=None, output_bytes=None),
        )  # fmt: skip

    def spec(self) -> schema.Spec:
        self.check()
        return schema.Spec(
            source="a test", loaded_at=1.0e9, problem="", gpus=self.gpus, nodes=len(self.names), vcs=self.names_of_vcs,
            text=self.spec_text,
        )  # fmt: skip

    def usage(self) -> schema.Usage:
        self.check()
        return usage_of(self.all, self.gpus, self.vcs())

    def vcs(self) -> list[schema.VcUsage]:
        self.check()
        return [vc_usage(self.all, name, self.per_node) for name in self.names_of_vcs]

    def vc(self, name: str) -> schema.Vc:
        found = vc_of(self.all, name, self.vcs(), [])
        rules = found.rules if self.policy == "fair" else schema.Rules(policy=self.policy)
        return found.model_copy(update={"rules": rules})

    async def submit(self, submission: schema.Submission, person: Person) -> schema.Job:
        self.check()
        return self._take(submission, person.name)

    def _take(self, asked: schema.Submission, user: str) -> schema.Job:
        self._fits(asked)
        number = str(len(self.all) + 1)
        process = schema.Process(
            command=list(asked.command), cwd=asked.cwd or "/", gpus_per_task=asked.gpus, attempt=0, resumes=0,
            retries=0, max_retries=asked.retries, time_limit_s=asked.time_limit_s, exit_code=None,
        )  # fmt: skip
        job = schema.Job(
            id=number, name=f"{asked.name or Path(asked.command[0]).name}-{number}", vc=asked.vc,
            gpus=asked.gpus * asked.tasks, size=asked.tasks, priority=asked.priority, state=JobState.QUEUED, kind=None,
            tasks=[], victims=[], why=[], user=user, submitted_at=time.time(), since=time.time(), started_at=None,
            ended_at=None, finished=None, process=process,
        )  # fmt: skip
        self.all.append(job)
        self.users.append(user)
        self.submissions[number] = asked
        if sum(other.gpus for other in self.all if other.tasks) + job.gpus > self.gpus:
            return self.change(job, why=[WAITING])
        free = [(node.name, one.device) for node in self._nodes() for one in node.devices if not one.jobs]
        free = [place for place in free if sum(other[0] == place[0] for other in free) >= asked.gpus]
        places = []
        for rank in range(asked.tasks):
            mine, free = free[: asked.gpus], free[asked.gpus :]
            places.append(task(rank, mine[0][0], (device for _, device in mine)))
        return self._run(job, places)

    def _run(self, job: schema.Job, tasks: list[schema.Task]) -> schema.Job:
        now = self.now(job)
        kind = "opportunistic" if now.priority < 0 else "guaranteed"
        return self.change(
            job,
            state="running",
            attempt=attempt_of(now) + 1,
            started_at=time.time(),
            since=time.time(),
            tasks=tasks,
            kind=kind,
            why=[],
        )

    def _fits(self, submission: schema.Submission) -> None:
        if submission.vc not in self.names_of_vcs:
            raise RequestError("vc", f"no virtual cluster {submission.vc!r}; there are {', '.join(self.names_of_vcs)}")
        if submission.gpus * submission.tasks > self.gpus:
            raise NeverFitsError(f"{submission.vc} has 4 GPUs, this needs {submission.gpus * submission.tasks}")

    def plan(self, request: schema.PlanRequest, person: Person) -> schema.Plan:
        """Now; with 3 GPUs, once train-1 has gone; with more than a node has, it would wait."""
        self.check()
        submission = request.job
        if submission is None and not request.manifests:
            return schema.Plan(jobs=[])
        if submission is None or request.manifests:
            raise UnsupportedError("manifests are for Kubernetes, and this is the engine of one machine; plan a job")
        found: dict[str, Any] = {"outcome": "now", "text": "", "placement": [], "victims": [], "reasons": []}
        if submission.gpus * submission.tasks > self.gpus:
            found |= {"outcome": "never", "text": f"there are {self.gpus} GPUs"}
        else:
            self._fits(submission)
            if submission.gpus > self.per_node:
                found |= {"outcome": "waits", "text": WAITING, "victims": ["train-1"], "reasons": [{"kind": "need"}]}
            else:
                found["placement"] = [schema.Place(node="node-0", devices=list(range(submission.gpus)))]
                found["victims"] = ["train-1"] if submission.gpus == 3 else []
        gpus = submission.gpus * submission.tasks
        return schema.Plan(
            jobs=[schema.PlannedJob(name=submission.name or "true", vc=submission.vc, gpus=gpus, **found)]
        )

    def jobs(self, chosen: JobFilter, limit: int, page: str | None) -> schema.Jobs:
        self.check()
        before = None if page is None else whole_number("page", page)
        matching = [
            job
            for job in reversed(self.all)
            if (not chosen.states or job.state in chosen.states)
            and chosen.vc in (None, job.vc)
            and chosen.user in (None, job.user)
            and (chosen.name or "") in job.name
            and (chosen.array is None or (job.process is not None and job.process.array == chosen.array))
            and (chosen.ended_since is None or (job.ended_at or 0.0) >= chosen.ended_since)
            and (chosen.ended_before is None or (job.ended_at or inf) < chosen.ended_before)
        ]
        found = [job for job in matching if before is None or int(job.id) < before]
        more = found[limit - 1].id if len(found) > limit else None
        return schema.Jobs(jobs=found[:limit], total=len(matching), next=more)

    def job(self, ref: str) -> schema.Job:
        self.check()
        self.asked.append(ref)
        for job in reversed(self.all):
            process = process_of(job)
            if ref in (job.id, job.name, job.name.rpartition("-")[0], f"{process.array}_{process.array_index}"):
                return job
        raise NotFoundError(f"no job {ref!r}; hived ps --all lists them")

    def explain(self, ref: str) -> schema.Explanation:
        job = self.job(ref)
        text = f"{job.name} is {job.state}\n  {'; '.join(job.why)}"
        return schema.Explanation(job=job.id, task="", text=text, reasons=[{"kind": "need"}])

    async def cancel(self, ref: str, user: str, now: bool = False) -> schema.Job:
        job = self.job(ref)
        if job.state in ENDED:
            raise ConflictError(f"{job.name} has ended already")
        return self.change(job, state="stopping" if job.tasks else "cancelled", why=[])

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def hold(self, ref: str, user: str) -> schema.Job:
        job = self.job(ref)
        if not job.state.waits or job.state == "held":
            raise ConflictError(f"{job.name} is {job.state.value}, and only a job that waits is held")
        return self.change(job, state="held", why=[f"by {user}"])

    def holder_of(self, ref: str) -> str:
        return ""

    async def release(self, ref: str, user: str) -> schema.Job:
        job = self.job(ref)
        if job.state != "held":
            raise ConflictError(f"{job.name} is {job.state.value}; nobody holds it")
        return self.change(job, state="queued", why=[WAITING])

    async def resubmit(self, ref: str, person: Person, indexes: str | None = None) -> schema.Job:
        if self.refuses_again:
            raise ForbiddenError(f"{person.name} is no member of vision")
        found = self._take(self.submissions[self.job(ref).id], person.name)
        if indexes is not None:
            self.resubmitted.append((ref, indexes))
            found = self.change(found, array=int(found.id), array_index=indexes_of(indexes)[0][0])
        return found.model_copy(update={"finds_files": self.keeps_files})

    async def requeue(self, ref: str, how: schema.Requeueing, user: str) -> schema.Job:
        job = self.job(ref)
        if not job.state.stays:
            raise ConflictError(f"{job.name} is {job.state.value}: only what runs can be queued again")
        return self.change(job, state="stopping", why=[f"queued again by {user}"])

    def _trains(self, ref: str) -> schema.Job:
        job = self.job(ref)
        if not job.state.stays:
            raise ConflictError(f"{job.name} is {job.state}: only what runs can be told something")
        return job

    async def suspend(self, ref: str, how: schema.Suspension, user: str) -> schema.Job:
        return self.change(self._trains(ref), state="suspended", why=[f"it is suspended: told so by {user}"])

    async def resume(self, ref: str, how: schema.Resumption, user: str) -> schema.Job:
        return self.change(self._trains(ref), state="running", why=[])

    async def limit(self, ref: str, how: schema.Limiting, user: str) -> schema.Job:
        if how.memory is None and how.share is None:
            raise RequestError("share", "nothing to change; give memory, share or both")
        limits = schema.Limits(memory=how.memory or 0, share=how.share or 1.0, why=f"told so by {user}", since=0.0)
        return self.change(self._trains(ref), limits=limits)

    async def scale(self, ref: str, how: schema.Scaling, user: str) -> schema.Job:
        return self._trains(ref)

    async def prioritize(self, ref: str, how: schema.Prioritizing, user: str) -> schema.Job:
        return self.change(self._trains(ref), priority=how.priority)

    async def edit(self, ref: str, how: schema.Editing, person: Person) -> schema.Job:
        return self.change(self._trains(ref), gpus=how.gpus or 1)

    async def training(self, ref: str) -> schema.Training:
        job = self._trains(ref)
        process = schema.TrainingProcess(
            rank=0, pid=71, state="suspended" if job.state == "suspended" else "running", state_s=3.0, tier="framework",
            why="", note="", not_now_s=0.0, device="cuda:0", mini_batches=12, mini_batch_s=0.25, device_bytes=2**30,
            used_bytes=2**29, peak_bytes=2**29, least_bytes=2**28, host_bytes=0, utilization=0.9, sample_age_s=0.1,
            memory_limit=None if job.limits is None else job.limits.memory or None,
            share=1.0 if job.limits is None else job.limits.share, last_change_s=0.05, last_change_bytes=2**20,
        )  # fmt: skip
        return schema.Training(name=job.name, command="true", launching=False, processes=[process])

    def log(self, ref: str, rank: int, attempt: int | None, offset: int, limit: int) -> schema.LogPage:
        job = self.job(ref)
        number = attempt or attempt_of(job)
        written = self.output.get((job.id, number, rank), b"")
        start = max(0, len(written) + offset) if offset < 0 else min(offset, len(written))
        start = min(max(start, self.kept_from), len(written))
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

    def _nodes(self) -> list[schema.Node]:
        jobs = {(task.node, device): [job.id] for job in self.all for task in job.tasks for device in task.devices}
        return [
            schema.Node(
                name=node, why="",
                devices=[
                    schema.Device(
                        device=device, state="used" if (node, device) in jobs else "free", healthy=True,
                        drained=(node, device) in self.drained, why="", jobs=jobs.get((node, device), []),
                    )
                    for device in range(self.per_node)
                ],
            )
            for node in self.names
        ]  # fmt: skip

    def nodes(self, name: str | None, offset: int, limit: int) -> schema.Nodes:
        self.check()
        found = [node for node in self._nodes() if name in (None, node.name)]
        return schema.Nodes(
            nodes=found[offset : offset + limit], total=len(found), bad=0, missing=[], unmanaged=0, foreign_pods=[]
        )

    async def _drain(self, drain: schema.Drain, user: str) -> schema.Drained:
        if drain.node is not None and drain.node not in self.names:
            raise NotFoundError(f"no node {drain.node!r}; there are {', '.join(self.names)}")
        about = {
            (node.name, one.device)
            for node in self._nodes()
            for one in node.devices
            if drain.node in (None, node.name) and drain.device in (None, one.device)
        }
        self.drained = self.drained - about if drain.undo else self.drained | about
        self.drain_reasons |= dict.fromkeys(about, drain.reason)
        nodes = [
            node.model_copy(update={"devices": [one for one in node.devices if (node.name, one.device) in about]})
            for node in self._nodes()
            if drain.node in (None, node.name)
        ]
        return schema.Drained(nodes=nodes, undone=drain.undo)

    async def reconfigure(self, spec: schema.SpecText, user: str, dry_run: bool = False) -> schema.Reconfigured:
        """As a test says; the text is in force from then on, whatever it is."""
        self.check()
        if not dry_run:
            assert spec.instead_of in (None, 1.0e9)
            self.applied.append(spec.yaml)
            self.spec_text = spec.yaml
        return self.reconfigured.model_copy(update={"dry_run": dry_run})

    def decisions(self) -> Iterator[str]:
        self.check()
        return iter(self.log_lines)

    # -- the dashboard

    def layout(self) -> pictures.Layout:
        levels = [pictures.Level(cell_type="GPU", gpus=1), pictures.Level(cell_type="NODE", gpus=self.per_node)]
        chain = pictures.Chain(name="NODE", levels=levels, node_level=2, nodes=list(self.names))
        cells = [schema.Reserved(cell_type="NODE", gpus=self.per_node, number=1)]
        return pictures.Layout(
            title="a test", clock="unix", synthetic=True, start=0, end=None,
            vcs=[pictures.VirtualCluster(name=vc, gpus=self.per_node, reserved=cells) for vc in self.names_of_vcs],
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
        holding = [job for job in self.all if job.tasks]
        waiting = [job for job in self.all if job.state in ("queued", "backoff", "reserved")]
        used = {vc: sum(job.gpus for job in holding if job.vc == vc and job.priority >= 0) for vc in self.names_of_vcs}
        lent = {vc: sum(job.gpus for job in holding if job.vc == vc and job.priority < 0) for vc in self.names_of_vcs}
        held = {(task.node, device) for job in holding for task in job.tasks for device in task.devices}
        return pictures.Picture(
            seq=len(self.happened),
            at=now,
            holders=[
                pictures.Holder(
                    id=job.id, name=job.name, vc=job.vc, kind=job.kind or "guaranteed", gpus=job.gpus,
                    since=job.started_at or now, priority=job.priority,
                    parts=[(0, self.names.index(t.node), t.devices[0], len(t.devices)) for t in job.tasks],
                )
                for job in holding
            ],
            bad=[],
            drained=[(0, self.names.index(node), device, 1) for node, device in sorted(self.drained)],
            queue=[
                pictures.Waiting(
                    id=job.id, name=job.name, vc=job.vc, gpus=job.gpus, priority=job.priority,
                    since=job.submitted_at, kind="waiting", why=job.why,
                )
                for job in waiting
            ],
            queue_total=len(waiting),
            usage=[
                pictures.VcTotals(
                    vc=vc, reserved=self.per_node, used=used[vc], lent=0, borrowed=lent[vc], waiting=len(waiting)
                )
                for vc in self.names_of_vcs
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
        touched = {event.job for event in self.happened if event.seq > seq and event.job is not None}
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

    async def timeline(self, view: str, node: str, start: float, end: float) -> pictures.GpuTimeline:
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


class Anything(Access):
    """Nobody is asked who they are."""

    def role(self, person: Person, vc: str | None = None) -> Role:
        return Role.OPERATOR


class FakeKubernetes(EngineService):
    """A service without an engine: groups are kept in a list, and a test scripts the plans.

    ``fails``: what every call raises from now on.
    """

    def __init__(self) -> None:
        self.market = ExchangeService(self)
        self.reset()

    def reset(self) -> None:
        """A cluster where nothing has happened yet, in the same application."""
        self.all: list[schema.Job] = []
        self.drained: set[str] = set()
        self.planned: list[schema.PlanRequest] = []
        self.asked: list[str] = []
        self.outcomes: dict[str, schema.PlannedJob] = {}  #: by the name of the object
        self.changes: dict[str, object] = {}  #: of usage, nodes, spec or engine
        self.doomed: list[str] = []
        self.happened: list[schema.Event] = []
        self.fails: Exception | None = None
        self._trading = LiveTrading(spec_from_dict(flat({"vision": 2, "speech": 2})))

    async def accounts(self, start: float, end: float) -> schema.Accounts:
        self._check()
        return schema.Accounts(start=start, end=end, begins=0.0, accounts=[], jobs=[])

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
    ) -> schema.Job:
        """Add a group of one pod of two, on gpu1 if it is placed."""
        placed = state in ("running", "reserved")
        kind = kind or ("opportunistic" if priority < 0 else "guaranteed")
        pod = schema.Task(
            name=f"team/{name.rpartition('/')[2]}-0", state="running" if state == "running" else "waiting",
            node="gpu1" if placed else "", devices=list(range(gpus)) if placed else [],
        )  # fmt: skip
        at = time.time() - 200
        group = schema.Job.model_validate(
            {
                "id": name, "name": name, "vc": vc, "priority": priority, "state": JobState(state),
                "kind": kind if placed else None, "gpus": gpus, "size": 2, "tasks": [pod], "since": at,
                "submitted_at": at, "started_at": at if placed else None, "ended_at": None, "victims": [],
                "finished": state == "ended" or None,
                "why": list(why), "process": None,
            }
        )  # fmt: skip
        self.all.append(group)
        seq = len(self.happened) + 1
        self.happened.append(schema.Event(seq=seq, at=at, kind=state, job=name, text=f"{name} is {state}"))
        return group

    def plans(self, name: str, outcome: str, text: str = "", *, victims: tuple[str, ...] = ()) -> None:
        """Script the plan of the object ``name``."""
        place = schema.Place(node="gpu1", devices=[0, 1, 2, 3])
        self.outcomes[name] = schema.PlannedJob.model_validate(
            {
                "name": f"default/{name}", "vc": "vision", "gpus": 4, "outcome": outcome, "text": text,
                "placement": [place] if outcome == "now" else [], "victims": list(victims),
                "reasons": [] if outcome == "now" else [{"kind": "vc_exhausted", "need": 4}],
            }
        )  # fmt: skip

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails

    def _changed(self, answer: Answer) -> Answer:
        known = {name: value for name, value in self.changes.items() if name in type(answer).model_fields}
        return answer.model_copy(update=known)

    # -- who asks

    def access(self) -> Access:
        self._check()
        return Anything(self._trading.base, "")

    # -- the API

    def scheduler(self) -> NoReturn:
        raise UnavailableError("a fake has no groups but those that it says")

    def engine(self) -> schema.Engine:
        self._check()
        replica = schema.Replica(identity="hived-0", leader=True, holder="hived-0")
        return self._changed(
            schema.Engine(
                engine="kubernetes", version="9.9.9", started_at=time.time() - 7200, ready=True, simulated=False,
                replica=replica, settings=None,
            )
        )  # fmt: skip

    def spec(self) -> schema.Spec:
        self._check()
        at = time.time() - 60
        return self._changed(
            schema.Spec(
                source="configmap/hived/spec", loaded_at=at, problem="", gpus=16, nodes=2, vcs=list(VCS), text=SPEC
            )
        )

    def usage(self) -> schema.Usage:
        self._check()
        return self._changed(usage_of(self.all, 16, self.vcs()))

    def vcs(self) -> list[schema.VcUsage]:
        self._check()
        return [vc_usage(self.all, name, 8) for name in VCS]

    def vc(self, name: str) -> schema.Vc:
        return vc_of(self.all, name, self.vcs(), self.doomed)

    def nodes(self, name: str | None, offset: int, limit: int) -> schema.Nodes:
        self._check()
        found = [self.node(node, range(8)) for node in KUBERNETES_NODES if name in (None, node)]
        return self._changed(
            schema.Nodes(
                nodes=found[offset : offset + limit], total=len(found), bad=0, missing=[], unmanaged=0, foreign_pods=[]
            )
        )

    def node(self, name: str, devices: Iterable[int]) -> schema.Node:
        jobs = {(task.node, device): [job.id] for job in self.all for task in job.tasks for device in task.devices}
        return schema.Node(
            name=name, why="it is cordoned" if name in self.drained else "",
            devices=[
                schema.Device(
                    device=device, state="used" if (name, device) in jobs else "free", healthy=True,
                    drained=name in self.drained, why="", jobs=jobs.get((name, device), []),
                )
                for device in devices
            ],
        )  # fmt: skip

    def jobs(self, chosen: JobFilter, limit: int, page: str | None) -> schema.Jobs:
        self._check()
        states, vc = chosen.states, chosen.vc
        found = sorted(
            (group for group in self.all if vc in (None, group.vc) and (not states or group.state in states)),
            key=lambda group: group.name,
        )
        left = [group for group in found if page is None or group.name > page]
        more = left[limit - 1].name if len(left) > limit else None
        return schema.Jobs(jobs=left[:limit], total=len(found), next=more)

    def job(self, ref: str) -> schema.Job:
        self._check()
        self.asked.append(ref)
        for group in self.all:
            if ref == group.name or any(ref == pod.name for pod in group.tasks):
                return group
        raise NotFoundError(f"there is no group and no pod {ref!r}")

    def explain(self, ref: str) -> schema.Explanation:
        group = self.job(ref)
        text = "\n".join([f"{group.name} is {group.state}", *(f"- {why}" for why in group.why)])
        pod = "" if ref == group.name else ref
        reasons: list[dict[str, object]] = [{"kind": "vc_exhausted", "need": 8}]
        return schema.Explanation(job=group.id, task=pod, text=text, reasons=reasons)

    def plan(self, request: schema.PlanRequest, person: Person) -> schema.Plan:
        self._check()
        self.planned.append(request)
        jobs = []
        for number, thing in enumerate(request.manifests):
            metadata = thing.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if name == "wrong":
                raise RequestError(f"manifests.{number}", f"{thing['kind']} wrong: it asks for no GPUs")
            if name in self.outcomes:
                jobs.append(self.outcomes[name])
        if request.job is not None and "job" in self.outcomes:
            jobs.append(self.outcomes["job"])
        return schema.Plan(jobs=jobs)

    def events(self, after: int, limit: int, ref: str | None) -> schema.Events:
        self._check()
        of_job = [event for event in self.happened if ref is None or event.job == self.job(ref).id]
        found = of_job[-limit:] if after == -1 else [event for event in of_job if event.seq > after][:limit]
        return schema.Events(events=found, last=len(self.happened))

    async def changed(self, after: int) -> None:
        while len(self.happened) <= after:
            await asyncio.sleep(0.01)

    async def _drain(self, drain: schema.Drain, user: str) -> schema.Drained:
        self._check()
        if drain.node not in KUBERNETES_NODES:
            raise NotFoundError(f"there is no node {drain.node!r}; there are {', '.join(KUBERNETES_NODES)}")
        self.drained = self.drained - {drain.node} if drain.undo else self.drained | {drain.node}
        return schema.Drained(nodes=[self.node(drain.node, range(8))], undone=drain.undo)

    @property
    def trading(self) -> LiveTrading:
        self._check()
        return self._trading

    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        return act(self.trading, 1_000.0)


@cache
def kubernetes_app(service: FakeKubernetes, token: str | None = None) -> FastAPI:
    """The API of ``service`` alone, behind the guard that it really has."""
    app = new_app("a fake", "", "kubernetes")
    add_api(app, service, Metrics(service), private(token))
    app.add_middleware(Limits)
    app.add_middleware(Guard, token=token, hosts=("testserver", "hived"), local=False)
    return app


# -- what both say ----------------------------------------------------------------------------------------------------


def task(rank: int, node: str, devices: Iterable[int]) -> schema.Task:
    """A task that runs."""
    return schema.Task(name=f"task {rank}", state="running", node=node, devices=list(devices))


def process_of(job: schema.Job) -> schema.Process:
    """What only a job of processes has."""
    assert job.process is not None
    return job.process


def usage_of(jobs: Sequence[schema.Job], gpus: int, vcs: list[schema.VcUsage]) -> schema.Usage:
    """GPUs and jobs in use, where nothing is bad."""
    states = [job.state.value for job in jobs]
    return schema.Usage(
        gpus=gpus, reserved=0, bad=0, foreign=0, unavailable=0, doomed=0, vcs=vcs, safety_margin=1,
        guaranteed=sum(job.gpus for job in jobs if job.kind == "guaranteed"),
        opportunistic=sum(job.gpus for job in jobs if job.kind == "opportunistic"),
        jobs={state: states.count(state) for state in dict.fromkeys(states)},
    )  # fmt: skip


def vc_usage(jobs: Sequence[schema.Job], name: str, reserved: int) -> schema.VcUsage:
    """A virtual cluster, by its jobs."""

    def gpus(kind: str) -> int:
        return sum(job.gpus for job in jobs if (job.vc, job.kind) == (name, kind))

    waiting = sum(job.vc == name and job.state == "queued" for job in jobs)
    return schema.VcUsage(
        name=name, reserved=reserved, used=gpus("guaranteed"), borrowed=gpus("opportunistic"), waiting=waiting
    )


def vc_of(jobs: Sequence[schema.Job], name: str, vcs: list[schema.VcUsage], doomed: list[str]) -> schema.Vc:
    """One virtual cluster in detail."""
    usage = next((vc for vc in vcs if vc.name == name), None)
    if usage is None:
        raise NotFoundError(f"there is no virtual cluster {name!r}; there are {', '.join(VCS)}")
    cells = [schema.Reserved(cell_type="RACK.NODE", gpus=4, number=1, pinned=pinned) for pinned in (None, "corner")]
    of = [job for job in jobs if job.vc == name]
    return schema.Vc(
        usage=usage,
        rules=schema.Rules(policy="fair", members=("ann", "group:gpu"), max_jobs=1000, max_gpus=4) if of else None,
        cells=cells,
        doomed=doomed,
        running=[job for job in of if job.kind is not None][:100],
        waiting=[job for job in of if job.kind is None][:100],
    )


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
