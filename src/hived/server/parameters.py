"""What the routes take in their paths and queries, with its bounds."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request
from pydantic import BeforeValidator

from hived.errors import NotFoundError, RequestError

from .schema import REF, JobStateName

_LARGEST = 2**63 - 1  #: of the numbers that the engine can keep
_REF_WORDS = "A job: its id (`12`), its name (`train-12`), or the name asked for (`train`: the latest of them)."
BODY = (400, 403, 408, 413, 415, 422)  #: the errors of a route that takes a body


def streamed(**events: str) -> dict[int | str, dict[str, Any]]:
    """The answer of a route that streams events of these names, with data of these models, as its ``responses``.

    Each event is described as OpenAPI 3.2 does it; any stream can end with ``failure``.
    """
    kinds = [_event(name, model) for name, model in {**events, "failure": "ErrorAnswer"}.items()]
    return {
        200: {"description": "Server-sent events.", "content": {"text/event-stream": {"itemSchema": {"oneOf": kinds}}}}
    }


def _event(name: str, model: str) -> dict[str, Any]:
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


def _existing(ref: str | None) -> str | None:
    """Refuse an id that no job can have, before anybody takes it for a number."""
    if ref is not None and ref.isdigit() and int(ref) > _LARGEST:
        raise NotFoundError(f"there is no job {ref}")
    return ref


def _in_digits(value: object) -> object:
    """Refuse what reads as a whole number and is not written as one, such as ``5.0``."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit()):
        raise ValueError("a whole number, in digits")
    return value


def _in_path(ref: Annotated[str, Path(max_length=128, pattern=REF, description=_REF_WORDS, examples=["12"])]) -> str:
    _existing(ref)
    return ref


def _in_query(
    job: Annotated[
        str | None, Query(max_length=128, pattern=REF, description=f"Only of one job. {_REF_WORDS}", examples=["12"])
    ] = None,
) -> str | None:
    return _existing(job)


Ref = Annotated[str, Depends(_in_path)]
OfJob = Annotated[str | None, Depends(_in_query)]

States = Annotated[
    list[JobStateName], Query(alias="state", max_length=16, description="Only in one of these states; none: in any.")
]
Vc = Annotated[str | None, Query(min_length=1, max_length=253, description="Only of this virtual cluster.")]
JobsLimit = Annotated[int, Query(ge=1, le=1_000, description="At most so many.")]
Before = Annotated[int | None, Query(ge=0, le=_LARGEST, description="Only ids below this: the next page.")]

Rank = Annotated[int, Query(ge=0, le=4_095, description="Which task of the gang.")]
Attempt = Annotated[int | None, Query(ge=1, le=2**31, description="Which run of the job; left out: the latest.")]
Offset = Annotated[
    int,
    Query(ge=-_LARGEST, le=_LARGEST, description="Of the first byte; below 0: so many bytes before the end."),
]
LogLimit = Annotated[int, Query(ge=1, le=1_048_576, description="At most so many bytes.")]

OfNode = Annotated[str | None, Query(min_length=1, max_length=253, description="Only of this node.")]
FirstDevice = Annotated[int, Query(ge=0, le=_LARGEST, description="How many to leave out: the pages before.")]
DevicesLimit = Annotated[int, Query(ge=1, le=10_000, description="At most so many.")]

After = Annotated[int, Query(ge=-1, le=_LARGEST, description="Events after this number; -1: the latest ones.")]
AfterOrNow = Annotated[
    int | None, Query(ge=0, le=_LARGEST, description="Events after this number; left out: from now on.")
]
EventsLimit = Annotated[int, Query(ge=1, le=1_000, description="At most so many.")]
LastEventId = Annotated[
    int | None,
    BeforeValidator(_in_digits),
    Header(ge=0, le=_LARGEST, description="Where a stream broke off: what a browser sends when it reconnects."),
]
