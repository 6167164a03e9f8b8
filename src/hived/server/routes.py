"""``/v1``, the same for both engines: its operations and streams; what they take, with its bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BeforeValidator
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse

from hived.engine.job import JobFilter
from hived.engine.states import PHASES, JobState, Phase
from hived.engines.submission import ANY_TEXT, Model
from hived.errors import HivedError, RequestError

from . import schema
from .failures import answer_to, declared
from .limits import asking
from .permits import Permits
from .schema import LogPage
from .service import Service
from .several import each
from .trades import BODY, add_trades

EVENTS_AT_ONCE = 200
LOG_BYTES_AT_ONCE = 65_536
LINES_AT_ONCE = 1_000
_CHARACTER = 4  #: bytes at most, of which a full page may lack the last ones
#: minimum seconds between two reads of growing output: a job that prints a character at a time is sent in larger pieces
PAUSE_S = 0.05


async def follow_events(
    service: Service[Any], after: int | None, ref: str | None
) -> AsyncGenerator[ServerSentEvent, None]:
    """Events after number ``after`` (None: from now on), of one job or of all. Each has its number as id.

    A number that there is not yet (of an engine whose state is gone) counts as now.
    """
    newest = service.events(-1, 1, ref).last
    after = newest if after is None else min(after, newest)
    while True:
        page = service.events(after, EVENTS_AT_ONCE, ref)
        for event in page.events:
            yield _event("event", event, event.seq)
        if len(page.events) == EVENTS_AT_ONCE:
            after = page.events[-1].seq
            await asyncio.sleep(0)  # let other tasks run
        else:
            after = max(after, page.last)
            await service.changed(after)


async def output(
    service: Service[Any], ref: str, rank: int, attempt: int | None, first: LogPage
) -> AsyncGenerator[ServerSentEvent, None]:
    """Output of a task, ``first`` and what follows it, until the task has ended.

    Each page has the offset to go on from as id. Without ``attempt`` it is the one that runs, or the first that will.
    """
    page = first
    while True:
        if page.next > page.offset:
            yield _event("log", page, page.next)
        elif page.end:
            yield _event("end", page, page.next)
            return
        if not page.end and page.next - page.offset <= LOG_BYTES_AT_ONCE - _CHARACTER:
            await service.log_grown(ref, rank, attempt, page.next)
            await asyncio.sleep(PAUSE_S)
        else:
            await asyncio.sleep(0)
        attempt = attempt or _attempt(service.job(ref))
        page = service.log(ref, rank, attempt, page.next, LOG_BYTES_AT_ONCE)


async def to_the_end(stream: AsyncGenerator[ServerSentEvent, None]) -> AsyncIterator[ServerSentEvent]:
    """``stream``; an error on the way becomes its last event, ``failure``, since the status has been sent already."""
    try:
        async with contextlib.aclosing(stream):
            async for event in stream:
                yield event
    except HivedError as error:
        yield ServerSentEvent(bytes(answer_to(error).body).decode(), event="failure")


async def lines(first: list[str], rest: Iterator[str]) -> AsyncIterator[bytes]:
    """Lines as bytes, many at a time, in the thread of the event loop, which runs other tasks in between."""
    batch = first
    while batch:
        yield "".join(line if line.endswith("\n") else line + "\n" for line in batch).encode("utf-8", "replace")
        await asyncio.sleep(0)
        batch = list(islice(rest, LINES_AT_ONCE))


def _event(name: str, data: Model, number: int) -> ServerSentEvent:
    # ASCII alone, since some clients split lines at every line end of Unicode
    return ServerSentEvent(json.dumps(data.model_dump(mode="json")), event=name, id=str(number))


_TELLING = (404, 409, 503)  #: statuses of what a training job is told, beside those of a body
_LARGEST = 2**63 - 1  #: integer that the engine can store
_LATEST = 4e9  #: seconds since the epoch: in more than fifty years
_REF_WORDS = (
    "A job: its id (`12`), its name (`train-12`), or the name asked for (`train`: the latest of them). On Kubernetes "
    "an affinity group by its name, or by a pod of it: `namespace/name`, or `name` in the namespace `default`."
)


def streamed(**events: str) -> dict[int | str, dict[str, Any]]:
    """The answer of a route that streams events of these names, with data of these models, as its ``responses``.

    Each event is described as OpenAPI 3.2 does it; any stream can end with ``failure``.
    """
    kinds = [_described(name, model) for name, model in {**events, "failure": "ErrorAnswer"}.items()]
    return {
        200: {"description": "Server-sent events.", "content": {"text/event-stream": {"itemSchema": {"oneOf": kinds}}}}
    }


def _described(name: str, model: str) -> dict[str, Any]:
    data = {"$ref": f"#/components/schemas/{model}"}
    properties = {
        "event": {"const": name},
        "id": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": data},
    }
    return {"type": "object", "required": ["event", "data"], "properties": properties}


async def refuse_repeats(request: Request) -> None:
    """A parameter of the query that takes one value is given once. Raises :class:`RequestError` for more. O(query)."""
    times = Counter(name for name, _ in request.query_params.multi_items())
    if times and max(times.values()) > 1:
        described = request.app.openapi()["paths"][request.scope["route"].path_format][request.method.lower()]
        for parameter in described.get("parameters", ()):
            name = parameter["name"]
            if parameter["in"] == "query" and times[name] > 1 and parameter["schema"].get("type") != "array":
                raise RequestError(name, f"given {times[name]} times; give it once")


def _in_digits(value: object) -> object:
    """Refuse a whole number that is not written as one, such as ``5.0``."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise ValueError("a whole number, in digits")
    return value


Ref = Annotated[str, Path(min_length=1, max_length=1_024, pattern=ANY_TEXT, description=_REF_WORDS, examples=["12"])]
OfJob = Annotated[
    str | None,
    Query(
        min_length=1, max_length=1_024, pattern=ANY_TEXT, description=f"Only of one job. {_REF_WORDS}", examples=["12"]
    ),
]
VcName = Annotated[str, Path(min_length=1, max_length=253, description="A virtual cluster.", examples=["vision"])]

States = Annotated[
    list[JobState], Query(alias="state", max_length=16, description="Only in one of these states; none: in any.")
]
Phases = Annotated[
    list[Phase],
    Query(alias="phase", max_length=3, description="Only in a state of one of these phases, or of `state`."),
]
OfVc = Annotated[str | None, Query(min_length=1, max_length=253, description="Only of this virtual cluster.")]
OfUser = Annotated[str | None, Query(min_length=1, max_length=253, pattern=ANY_TEXT, description="Only of this user.")]
Named = Annotated[
    str | None, Query(min_length=1, max_length=253, pattern=ANY_TEXT, description="Only with this in their names.")
]
OfArray = Annotated[
    int | None, Query(ge=1, le=10**18, description="Only of the array whose first job has this id.", examples=[12])
]
EndedSince = Annotated[
    float | None, Query(ge=0, le=_LATEST, description="Only ended since then, in seconds since the epoch.")
]
EndedBefore = Annotated[
    float | None, Query(ge=0, le=_LATEST, description="Only ended before then, in seconds since the epoch.")
]
DryRun = Annotated[bool, Query(description="Change nothing: check it, and say what would become of jobs.")]
AtOnce = Annotated[bool, Query(description="Without its grace.")]
AtMost = Annotated[int, Query(ge=1, le=1_000, description="At most so many.")]
Page = Annotated[
    str | None,
    Query(
        min_length=1, max_length=1_024, pattern=ANY_TEXT, description="`next` of the answer before; none: the first."
    ),
]

Rank = Annotated[int, Query(ge=0, le=4_095, description="Which task of the gang.")]
Attempt = Annotated[int | None, Query(ge=1, le=2**31, description="Which run of the job; left out: the latest.")]
Offset = Annotated[
    int, Query(ge=-_LARGEST, le=_LARGEST, description="Of the first byte; below 0: so many bytes before the end.")
]
LogLimit = Annotated[int, Query(ge=1, le=1_048_576, description="At most so many bytes.")]

TokenId = Annotated[
    str, Path(min_length=1, max_length=64, pattern=ANY_TEXT, description="Id of a token.", examples=["3f9a1c02"])
]
_Time = Query(allow_inf_nan=False, ge=0, le=1e11, description="Seconds since the epoch.", examples=[1_767_225_600.0])
Start = Annotated[float, _Time]
End = Annotated[float, _Time]
OfNode = Annotated[str | None, Query(min_length=1, max_length=253, description="Only of this node.")]
First = Annotated[int, Query(ge=0, le=_LARGEST, description="How many to leave out: the pages before.")]

After = Annotated[int, Query(ge=-1, le=_LARGEST, description="Events after this number; -1: the latest ones.")]
AfterOrNow = Annotated[
    int | None, Query(ge=0, le=_LARGEST, description="Events after this number; left out: from now on.")
]
LastEventId = Annotated[
    int | None,
    BeforeValidator(_in_digits),
    Header(ge=0, le=_LARGEST, description="Where a stream broke off: what a browser sends when it reconnects."),
]

_EXAMPLES: dict[str, Any] = {
    "four GPUs": {"value": {"vc": "vision", "command": ["python", "train.py"], "gpus": 4, "cwd": "/home/ann/model"}},
    "two tasks of eight GPUs": {
        "value": {"vc": "vision", "command": ["./run.sh"], "gpus": 8, "tasks": 2, "priority": 10}
    },
    "whatever is idle": {"value": {"vc": "speech", "command": ["python", "sweep.py"], "priority": -1, "retries": 2}},
}
#: what can be asked of a job that was submitted, for clients that follow links
_LINKS: dict[int | str, dict[str, Any]] = {
    201: {
        "description": "The job as it is now.",
        "links": {
            name: {"operationId": name, "parameters": {"ref": "$response.body#/id"}}
            for name in ("get_job", "cancel_job", "explain_job", "read_log")
        },
    }
}
Asked = Annotated[schema.Submission, Body(openapi_examples=_EXAMPLES)]
_POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "labels": {"hived.io/vc": "vision"}},
    "spec": {"containers": [{"name": "train", "image": "train", "resources": {"limits": {"nvidia.com/gpu": 4}}}]},
}
_PLANS: dict[str, Any] = {
    "a job of four GPUs": {"value": {"job": {"vc": "vision", "command": ["true"], "gpus": 4}}},
    "a pod of four GPUs": {"value": {"manifests": [_POD]}},
}
_DRAINS: dict[str, Any] = {
    "one device": {"value": {"node": "gpu1", "device": 3}},
    "everything, at once": {"value": {"now": True}},
    "let jobs come again": {"value": {"undo": True}},
}
_YAML = """\
physicalCluster:
  cellTypes:
    NODE: {childCellType: V100, childCellNumber: 8, isNodeLevel: true}
  physicalCells:
  - {cellType: NODE, cellAddress: gpu1}
virtualClusters:
  vision:
    virtualCells:
    - {cellType: NODE.V100, cellNumber: 6}
"""
_SPECS: dict[str, Any] = {"one node of 8 GPUs, 6 of them of one tenant": {"value": {"yaml": _YAML}}}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Lines of JSON.", "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
}


def api_routes(service: Service[Any], errors: dict[int | str, dict[str, Any]]) -> list[APIRouter]:
    """``/v1`` of ``service``, which is asked in the event loop's thread; ``errors``: that every route may answer."""

    def router(tag: str) -> APIRouter:
        return APIRouter(prefix="/v1", tags=[tag], responses=errors, dependencies=[Depends(refuse_repeats)])

    jobs, events, cluster = router("jobs"), router("events"), router("cluster")
    permits = Permits(service)

    @jobs.post("/jobs", status_code=201, responses={**_LINKS, **declared(*BODY, 404, 409, 503, 507)})
    async def submit_job(submission: Asked, request: Request, response: Response) -> schema.Job:
        """Submit a job. It is kept from the moment that this is answered, and starts when its GPUs are free."""
        job = await service.submit(submission, asking(request))
        response.headers["Location"] = f"/v1/jobs/{job.id}"
        return job

    @jobs.get("/jobs", responses=declared(403, 404, 422, 503))
    async def list_jobs(
        states: States = [],  # noqa: B006
        phases: Phases = [],  # noqa: B006
        vc: OfVc = None,
        user: OfUser = None,
        name: Named = None,
        array: OfArray = None,
        ended_since: EndedSince = None,
        ended_before: EndedBefore = None,
        limit: AtMost = 100,
        page: Page = None,
    ) -> schema.Jobs:
        """Jobs: the latest first; on Kubernetes affinity groups by name, those that have ended only if asked for."""
        wanted = [*states, *(state for state in JobState if PHASES[state] in phases and state not in states)]
        return service.jobs(JobFilter(wanted, vc, user, name, array, ended_since, ended_before), limit, page)

    @jobs.post(
        "/jobs/{ref:path}/cancel", status_code=202, responses=declared(403, 404, 408, 409, 413, 422, 429, 503, 507)
    )
    async def cancel_job(ref: Ref, request: Request, now: AtOnce = False) -> schema.Job:
        """Withdraw a job that waits, or stop one that runs: SIGTERM, its grace period, then SIGKILL."""
        person, ref = permits.of_job(request, ref, "cancel")
        return await service.cancel(ref, person.name, now)

    @jobs.post("/jobs/cancel", responses=declared(*BODY, 409, 503, 507))
    async def cancel_jobs(these: schema.CancellingSeveral, request: Request) -> schema.JobOutcomes:
        """Withdraw jobs that wait, and stop those that run."""
        return await each(service, these.jobs, lambda ref: cancel_job(ref, request, these.now))

    @jobs.post("/jobs/{ref:path}/hold", responses=declared(403, 404, 408, 409, 413, 422, 429, 503, 507))
    async def hold_job(ref: Ref, request: Request) -> schema.Job:
        """Keep a job that waits out of line, until it is released."""
        person, ref = permits.of_job(request, ref, "hold")
        return await service.hold(ref, person.name)

    @jobs.post("/jobs/hold", responses=declared(*BODY, 409, 503, 507))
    async def hold_jobs(these: schema.Several, request: Request) -> schema.JobOutcomes:
        """Keep jobs that wait out of line, until they are released."""
        return await each(service, these.jobs, lambda ref: hold_job(ref, request))

    @jobs.post("/jobs/{ref:path}/release", responses=declared(403, 404, 408, 409, 413, 422, 429, 503, 507))
    async def release_job(ref: Ref, request: Request) -> schema.Job:
        """Let a held job go into line again."""
        person, ref = permits.to_release(request, ref)
        return await service.release(ref, person.name)

    @jobs.post("/jobs/release", responses=declared(*BODY, 409, 503, 507))
    async def release_jobs(these: schema.Several, request: Request) -> schema.JobOutcomes:
        """Let held jobs go into line again."""
        return await each(service, these.jobs, lambda ref: release_job(ref, request))

    @jobs.post("/jobs/{ref:path}/requeue", responses=declared(*BODY, 404, 409, 503, 507))
    async def requeue_job(ref: Ref, how: schema.Requeueing, request: Request) -> schema.Job:
        """Stop a job that runs, and queue it again, in the place in line that it has by its submission."""
        person, ref = permits.of_job(request, ref, "queue again")
        return await service.requeue(ref, how, person.name)

    @jobs.post("/jobs/requeue", responses=declared(*BODY, 409, 503, 507))
    async def requeue_jobs(these: schema.RequeueingSeveral, request: Request) -> schema.JobOutcomes:
        """Stop jobs that run, and queue them again."""
        how = schema.Requeueing(hold=these.hold)
        return await each(service, these.jobs, lambda ref: requeue_job(ref, how, request))

    @jobs.post("/jobs/{ref:path}/resubmit", status_code=201, responses=declared(*BODY, 404, 408, 409, 429, 503, 507))
    async def resubmit_job(
        ref: Ref, request: Request, response: Response, how: schema.Resubmitting | None = None
    ) -> schema.Job:
        """Submit a job of one's own again, as it was submitted, whatever has become of it: a new job, or an array."""
        indexes = None if how is None else how.indexes
        job = await service.resubmit(permits.named(request, ref), asking(request), indexes)
        response.headers["Location"] = f"/v1/jobs/{job.id}"
        return job

    @jobs.post("/jobs/{ref:path}/suspend", responses=declared(*BODY, *_TELLING))
    async def suspend_job(ref: Ref, how: schema.Suspension, request: Request) -> schema.Job:
        """Suspend a training job at the end of a mini-batch: its device memory is free, and its GPUs stay its own."""
        person, ref = permits.of_job(request, ref, "suspend")
        return await service.suspend(ref, how, person.name)

    @jobs.post("/jobs/{ref:path}/resume", responses=declared(*BODY, *_TELLING))
    async def resume_job(ref: Ref, how: schema.Resumption, request: Request) -> schema.Job:
        """Let a suspended training job go on."""
        person, ref = permits.of_job(request, ref, "resume")
        return await service.resume(ref, how, person.name)

    @jobs.post("/jobs/{ref:path}/limit", responses=declared(*BODY, *_TELLING))
    async def limit_job(ref: Ref, how: schema.Limiting, request: Request) -> schema.Job:
        """Limit a training job from its next mini-batch on."""
        person, ref = permits.of_job(request, ref, "limit")
        return await service.limit(ref, how, person.name)

    @jobs.post("/jobs/{ref:path}/scale", responses=declared(*BODY, *_TELLING))
    async def scale_job(ref: Ref, how: schema.Scaling, request: Request) -> schema.Job:
        """Have an elastic training job go on with another number of workers."""
        person, ref = permits.of_job(request, ref, "scale")
        return await service.scale(ref, how, person.name)

    @jobs.post("/jobs/{ref:path}/priority", responses=declared(*BODY, *_TELLING))
    async def prioritize_job(ref: Ref, how: schema.Prioritizing, request: Request) -> schema.Job:
        """Give a job that takes turns another priority: a higher one is never suspended for a lower one."""
        person, ref = permits.priority(request, ref, how.priority)
        return await service.prioritize(ref, how, person.name)

    @jobs.post("/jobs/{ref:path}/edit", responses=declared(*BODY, 404, 409, 503, 507))
    async def edit_job(ref: Ref, how: schema.Editing, request: Request) -> schema.Job:
        """Have a job that waits ask for something else: its place in line stays."""
        person, ref = permits.of_job(request, ref, "edit")
        return await service.edit(ref, how, person)

    @jobs.get("/training/{ref:path}", responses=declared(403, 404, 409, 422, 503))
    async def get_training(ref: Ref, request: Request) -> schema.Training:
        """What the processes of a training job say of themselves: mini-batches, memory, limits, what they were told."""
        return await service.training(permits.named(request, ref))

    @jobs.get("/jobs/{ref:path}", responses=declared(403, 404, 422, 503))
    async def get_job(ref: Ref, request: Request) -> schema.Job:
        """One job."""
        return service.job(permits.named(request, ref))

    @jobs.get("/explain/{ref:path}", responses=declared(403, 404, 422, 503))
    async def explain_job(ref: Ref, request: Request) -> schema.Explanation:
        """Why a job waits and whom it waits for, where it runs, or how it ended; on Kubernetes also of a single pod."""
        return service.explain(permits.named(request, ref))

    @jobs.post("/plan", responses=declared(*BODY, 404, 409, 503))
    async def plan_jobs(
        request: Annotated[schema.PlanRequest, Body(openapi_examples=_PLANS)], asked: Request
    ) -> schema.Plan:
        """What a submission, or manifests, would come to now; nothing is created, nothing is remembered."""
        return service.plan(request, asking(asked))

    @jobs.get(
        "/logs/{ref:path}/stream",
        response_class=EventSourceResponse,
        responses={**streamed(log="LogPage", end="LogPage"), **declared(403, 404, 409, 422, 429, 503)},
    )
    async def stream_log(
        ref: Ref,
        request: Request,
        rank: Rank = 0,
        attempt: Attempt = None,
        offset: Offset = 0,
        last_event_id: LastEventId = None,
    ) -> EventSourceResponse:
        """The output of a task as it grows: events `log` (a LogPage), and `end` when the task has ended."""
        _, ref = permits.to_read(request, ref)
        job = service.job(ref)
        ref = job.id  # the latest of a name is another one soon
        attempt = attempt or _attempt(job)
        start = offset if last_event_id is None else last_event_id
        first = service.log(ref, rank, attempt, start, LOG_BYTES_AT_ONCE)
        return EventSourceResponse(to_the_end(output(service, ref, rank, attempt, first)))

    @jobs.get("/logs/{ref:path}", responses=declared(403, 404, 409, 422, 503))
    async def read_log(
        ref: Ref,
        request: Request,
        rank: Rank = 0,
        attempt: Attempt = None,
        offset: Offset = 0,
        limit: LogLimit = 65_536,
    ) -> schema.LogPage:
        """A stretch of the output of a task."""
        _, ref = permits.to_read(request, ref)
        return service.log(ref, rank, attempt, offset, limit)

    @events.get("/events", responses=declared(403, 404, 422, 503))
    async def list_events(after: After = -1, limit: AtMost = 100, job: OfJob = None) -> schema.Events:
        """What happened; on Kubernetes what this replica remembers."""
        return service.events(after, limit, job)

    @events.get(
        "/events/stream",
        response_class=EventSourceResponse,
        responses={**streamed(event="Event"), **declared(403, 404, 422, 429, 503)},
    )
    async def stream_events(
        after: AfterOrNow = None, job: OfJob = None, last_event_id: LastEventId = None
    ) -> EventSourceResponse:
        """What happens: events `event` (an Event); each id is its number, so a browser goes on where it broke off."""
        service.events(-1, 1, job)  # an unknown job is refused here, before the stream begins
        start = after if last_event_id is None else last_event_id
        return EventSourceResponse(to_the_end(follow_events(service, start, job)))

    @events.get("/decisions", response_class=StreamingResponse, responses={**_LINES, **declared(403, 409, 429, 503)})
    async def export_decisions() -> Response:
        """The event log of the core: lines of JSON, oldest first, that replay byte for byte."""
        rest = service.decisions()
        first = list(islice(rest, LINES_AT_ONCE))  # what goes wrong at once still has a status
        return StreamingResponse(lines(first, rest), media_type="application/x-ndjson")

    @cluster.get("/engine", responses=declared(403, 503))
    async def get_engine() -> schema.Engine:
        """What answers: its kind, its version, whether it decides."""
        return service.engine()

    @cluster.get("/usage", responses=declared(403, 503))
    async def get_usage() -> schema.Usage:
        """GPUs by what they are for, jobs by state, and the margin of sharing safety."""
        return service.usage()

    @cluster.get("/accounts", responses=declared(403, 409, 422, 503))
    async def get_accounts(start: Start, end: End) -> schema.Accounts:
        """GPU seconds between two times, by user, virtual cluster and what the GPUs were to them."""
        if not start < end:
            raise RequestError("end", "is not after the start")
        return await service.accounts(start, end)

    @cluster.get("/vcs", responses=declared(403, 503))
    async def list_vcs() -> list[schema.VcUsage]:
        """The virtual clusters, in GPUs."""
        return service.vcs()

    @cluster.get("/vcs/{name:path}", responses=declared(403, 404, 422, 503))
    async def get_vc(name: VcName) -> schema.Vc:
        """One virtual cluster: what it reserved, what runs in it, what waits."""
        return service.vc(name)

    @cluster.get("/nodes", responses=declared(403, 404, 422, 503))
    async def list_nodes(node: OfNode = None, offset: First = 0, limit: AtMost = 1000) -> schema.Nodes:
        """Nodes and their devices, in the order of the spec."""
        return service.nodes(node, offset, limit)

    @cluster.post("/drain", responses=declared(*BODY, 404, 409, 503, 507))
    async def drain_devices(
        drain: Annotated[schema.Drain, Body(openapi_examples=_DRAINS)], request: Request
    ) -> schema.Drained:
        """Keep new jobs off devices, or let them come again; the answer is the devices that this was about."""
        return await service.drain(drain, permits.to_operate(request, "drain GPUs").name)

    @cluster.get("/spec", responses=declared(403, 503))
    async def get_spec() -> schema.Spec:
        """The cluster spec in force."""
        return service.spec()

    @cluster.put("/spec", responses=declared(*BODY, 404, 409, 503, 507))
    async def replace_spec(
        spec: Annotated[schema.SpecText, Body(openapi_examples=_SPECS)], request: Request, dry_run: DryRun = False
    ) -> schema.Reconfigured:
        """Go on under a new cluster spec. Every job runs on; what no longer fits its VC becomes opportunistic."""
        return await service.reconfigure(spec, permits.to_operate(request, "replace the spec").name, dry_run)

    tokens = router("tokens")

    @tokens.get("/tokens", responses=declared(403, 409, 503))
    async def list_tokens(request: Request) -> list[schema.Token]:
        """The tokens of people: for an operator all, for anybody else their own. Nothing of them opens a door."""
        return service.tokens(None if permits.sees_all(request) else asking(request).name)

    @tokens.post("/tokens", status_code=201, responses=declared(*BODY, 409, 503, 507))
    async def create_token(new: schema.NewToken, request: Request) -> schema.MadeToken:
        """Make a token for somebody, with which they reach the engine over TCP. Its text is told this once."""
        return await service.create_token(new, permits.to_make_token(request, new.user).name)

    @tokens.post("/tokens/{number}/revoke", responses=declared(403, 404, 409, 422, 429, 503, 507))
    async def revoke_token(number: TokenId, request: Request) -> schema.Token:
        """Revoke a token: it opens nothing from now on, and what is being streamed to its holder ends."""
        return await service.revoke_token(number, permits.to_revoke_token(request, service.tokens(None), number).name)

    sessions = router("sessions")

    @sessions.get("/me", responses=declared(403, 503))
    async def get_me(request: Request) -> schema.Me:
        """Who asks, and what they may do."""
        return service.me(asking(request), getattr(request.state, "looks", False))

    @sessions.post("/sign-in-links", status_code=201, responses=declared(403, 409, 503))
    async def create_sign_in_link(request: Request) -> schema.SignInLink:
        """Make a link with which a browser acts as who asks. It works once, and for five minutes."""
        return service.sign_in_link(permits.to_sign_in(request))

    @sessions.post("/sign-in", status_code=201, responses=declared(*BODY, 404, 409, 503))
    async def sign_in(how: schema.SignIn, request: Request) -> schema.SignedIn:
        """Begin the session of a link: whoever has its code is who asked for it. It lasts twelve hours at most."""
        person, begun = service.sign_in(how.code)
        request.state.signed_in = person
        return begun

    @sessions.post("/sign-out", responses=declared(403, 409, 503))
    async def sign_out(request: Request) -> schema.Me:
        """End the session of who asks."""
        return service.sign_out(asking(request))

    trades = router("trades")
    add_trades(trades, service.market, permits)
    return [jobs, events, cluster, trades, tokens, sessions]


def _attempt(job: schema.Job) -> int | None:
    return None if job.process is None else job.process.attempt or None
