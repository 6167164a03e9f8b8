"""``/v1/jobs`` and ``/v1/plan``: what is done with jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response
from sse_starlette.sse import EventSourceResponse

from . import streams
from .failures import declared
from .parameters import BODY, Attempt, Before, JobsLimit, LastEventId, LogLimit, Offset, Rank, Ref, States, Vc, streamed
from .schema import Explanation, Job, Jobs, LogPage, Plan, Submission
from .service import Service
from .users import asking

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
Asked = Annotated[Submission, Body(openapi_examples=_EXAMPLES)]


def job_routes(service: Service) -> APIRouter:
    """Jobs of ``service``, which is asked in the event loop's thread."""
    router = APIRouter(prefix="/v1", tags=["jobs"])

    @router.post("/jobs", status_code=201, responses={**_LINKS, **declared(*BODY, 404, 409, 503, 507)})
    async def submit_job(submission: Asked, request: Request, response: Response) -> Job:
        """Submit a job. It is kept from the moment that this is answered, and starts when its GPUs are free."""
        job = await service.submit(submission, asking(request))
        response.headers["Location"] = f"/v1/jobs/{job.id}"
        return job

    @router.post("/plan", responses=declared(*BODY, 404, 409, 503))
    async def plan_job(submission: Asked) -> Plan:
        """What a submission would come to now; nothing is remembered."""
        return service.plan(submission)

    @router.get("/jobs", responses=declared(403, 404, 422, 503))
    async def list_jobs(states: States = [], vc: Vc = None, limit: JobsLimit = 100, before: Before = None) -> Jobs:  # noqa: B006
        """Jobs, the latest first."""
        return service.jobs(states, vc, limit, before)

    @router.get("/jobs/{ref}", responses=declared(403, 404, 422, 503))
    async def get_job(ref: Ref) -> Job:
        """One job."""
        return service.job(ref)

    @router.post("/jobs/{ref}/cancel", status_code=202, responses=declared(403, 404, 408, 409, 413, 422, 503, 507))
    async def cancel_job(ref: Ref) -> Job:
        """Withdraw a job that waits, or stop one that runs: SIGTERM, its grace period, then SIGKILL."""
        return await service.cancel(ref)

    @router.get("/jobs/{ref}/explain", responses=declared(403, 404, 422, 503))
    async def explain_job(ref: Ref) -> Explanation:
        """Why a job waits, where it runs, or how it ended."""
        return service.explain(ref)

    @router.get("/jobs/{ref}/log", responses=declared(403, 404, 409, 422, 503))
    async def read_log(
        ref: Ref, rank: Rank = 0, attempt: Attempt = None, offset: Offset = 0, limit: LogLimit = 65_536
    ) -> LogPage:
        """A stretch of the output of a task."""
        return service.log(ref, rank, attempt, offset, limit)

    @router.get(
        "/jobs/{ref}/log/stream",
        response_class=EventSourceResponse,
        responses={**streamed(log="LogPage", end="LogPage"), **declared(403, 404, 409, 422, 429, 503)},
    )
    async def stream_log(
        ref: Ref,
        rank: Rank = 0,
        attempt: Attempt = None,
        offset: Offset = 0,
        last_event_id: LastEventId = None,
    ) -> EventSourceResponse:
        """The output of a task as it grows: events `log` (a LogPage), and `end` when the task has ended."""
        job = service.job(ref)
        ref = str(job.id)  # the latest of a name is another one soon
        attempt = attempt or job.attempt or None
        start = offset if last_event_id is None else last_event_id
        first = service.log(ref, rank, attempt, start, streams.LOG_BYTES_AT_ONCE)
        return EventSourceResponse(streams.to_the_end(streams.output(service, ref, rank, attempt, first)))

    return router
