"""Error answers: all have the shape of :class:`~.schema.ErrorAnswer`, and a status by their code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from hived.errors import HivedError, RequestError

from .schema import FORMS, ErrorAnswer

_log = logging.getLogger(__name__)

#: the HTTP status of every code of an error
STATUS = {
    "malformed": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "not_allowed": 405,
    "timeout": 408,
    "conflict": 409,
    "unsupported": 409,
    "too_large": 413,
    "media_type": 415,
    "invalid": 422,
    "never_fits": 422,
    "too_many": 429,
    "bug": 500,
    "unavailable": 503,
    "not_yet": 503,
    "policy": 503,
    "storage": 507,
}

#: description of each status in the API document
_WORDS = {
    400: "The body is no JSON (`malformed`).",
    401: "No token, or a wrong one (`unauthorized`).",
    403: "A page of another origin, another host name, or without permission (`forbidden`).",
    404: "Nothing of that name (`not_found`).",
    408: "The body came too slowly (`timeout`).",
    409: "Not in the state that things are in (`conflict`), or left to others by this kind of engine (`unsupported`).",
    413: "The body is too large (`too_large`).",
    415: "The body is not declared as JSON (`media_type`).",
    422: "A field is wrong (`invalid`), or it could not start even if everything were free (`never_fits`).",
    429: "Too many streams are open, or too much is being sent (`too_many`); Retry-After says when to come back.",
    503: "It cannot be done at the moment (`unavailable`), has not happened in the time given (`not_yet`), or a policy "
    "fails and the engine ends (`policy`).",
    507: "What has to be kept cannot be written (`storage`).",
}

_LONGEST_FIELD = 200  # a refused field's name is the client's own text


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, as its ``responses``."""
    return {status: {"model": ErrorAnswer, "description": _WORDS[status]} for status in sorted(statuses)}


def answer(code: str, message: str, field: str | None = None, headers: Mapping[str, str] | None = None) -> Response:
    """An error answer. Text that is no Unicode (a lone surrogate from a path or a request) is replaced."""
    error = {"code": code, "message": _clean(message), "field": None if field is None else _clean(field)}
    return Response(
        to_json({"error": error}), STATUS.get(code, 500), media_type="application/json", headers=dict(headers or {})
    )


def answer_to(error: HivedError) -> Response:
    """The answer to an error that was raised on purpose; a broken invariant is a bug, and logged as one."""
    if STATUS.get(error.code, 500) == 500:
        return bug(error)
    if isinstance(error, RequestError):
        return answer(error.code, error.message, error.field)
    return answer(error.code, str(error))


def bug(error: BaseException) -> Response:
    """The answer to a broken invariant. The log has the traceback, the answer has nothing of it."""
    _log.error("a request failed, which is a bug of hived", exc_info=error)
    return _unexpected(error)


def _unexpected(_: BaseException) -> Response:
    """The answer to an unexpected error, of which the server logs the traceback."""
    return answer("bug", "this is a bug of hived; the log of the engine has the traceback")


def answer_failures(app: FastAPI) -> None:
    """Give all errors of the framework and the engine our one shape."""

    def handle(kind: type[Exception], by: Callable[[Any], Response]) -> None:
        async def handler(_: Request, error: Exception) -> Response:
            return by(error)

        app.add_exception_handler(kind, handler)

    handle(HivedError, answer_to)
    handle(RequestValidationError, _invalid)
    handle(HTTPException, _framework)
    handle(Exception, _unexpected)


def _invalid(error: RequestValidationError) -> Response:
    """The first error of a request, and the number of further ones."""
    problems = error.errors()
    first = problems[0]
    if first["type"] == "json_invalid":
        return answer(
            "malformed", f"the body is no JSON: {first.get('ctx', {}).get('error', '')} at character {first['loc'][-1]}"
        )
    where, *path = [str(part) for part in first["loc"]]
    if where == "body" and not path and isinstance(error.body, bytes):
        return answer("media_type", "the body has to be JSON, with Content-Type: application/json")
    field = ".".join(path)[:_LONGEST_FIELD] or where
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return answer("invalid", f"{_words(first)}{more}", field)


def _words(problem: Mapping[str, Any]) -> str:
    """An error in pydantic's words, which never repeat a given value."""
    if problem["type"] == "extra_forbidden":
        return "there is no such field"
    if problem["type"] == "string_pattern_mismatch":
        return FORMS[problem["ctx"]["pattern"]]
    if problem["type"] == "string_unicode":
        return "has to be UTF-8 text"
    message = str(problem["msg"])
    return message[:1].lower() + message[1:]


def _framework(error: HTTPException) -> Response:
    code = next((code for code, status in STATUS.items() if status == error.status_code), "malformed")
    message = {
        400: "the body cannot be read as JSON",
        404: "there is nothing at this path; /openapi.json lists what there is",
        405: "this path has no such method; /openapi.json lists what there is",
    }.get(error.status_code, str(error.detail))
    response = answer(code, message, headers=error.headers)
    response.status_code = error.status_code
    return response


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
