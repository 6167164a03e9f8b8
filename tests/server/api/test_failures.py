"""Whatever goes wrong is answered in one shape."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from hived import errors
from hived.server.app import make_app
from hived.server.failures import STATUS

from .client import Client, error
from .fakes import FakeService, FakeSource, bug, purpose


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.InputError, 422),
        (errors.NeverFitsError, 422),
        (errors.NotFoundError, 404),
        (errors.ConflictError, 409),
        (errors.ForbiddenError, 403),
        (errors.StorageError, 507),
        (errors.UnavailableError, 503),
        (errors.SpecError, 422),
        (errors.InfeasibleError, 422),
    ],
)
def test_every_kind_of_error_has_its_status(
    client: Client, service: FakeService, kind: type[errors.HivedError], status: int
) -> None:
    service.fails = purpose(kind)
    for response in (client.get("/v1/about"), client.put("/v1/spec", json={"yaml": "a"})):
        assert response.status_code == status
        assert error(response) == {"code": kind.code, "message": "what, where, and the way out", "field": None}


def test_every_code_of_an_error_has_a_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HivedError)]
    assert {kind.code for kind in kinds} - {"error"} <= set(STATUS)


def test_a_wrong_field_is_separate_from_the_message(client: Client, service: FakeService) -> None:
    service.fails = errors.RequestError("members[1].pods", "too many")
    assert error(client.get("/v1/about")) == {"code": "invalid", "message": "too many", "field": "members[1].pods"}


@pytest.mark.parametrize("failure", [bug(), errors.InvariantError("a secret of the engine")])
def test_a_bug_is_logged_and_its_answer_reveals_nothing(
    client: Client, service: FakeService, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    service.fails = failure
    with caplog.at_level(logging.ERROR):
        response = client.get("/v1/about")
    assert response.status_code == 500
    assert error(response)["code"] == "bug"
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert "a secret of the engine" in caplog.text
    assert "Traceback" in caplog.text
    service.fails = None
    assert client.get("/v1/about").status_code == 200


def test_an_answer_that_is_not_in_shape_is_a_bug(
    client: Client, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "about", lambda: {"nonsense": 1})
    assert error(client.get("/v1/about"))["code"] == "bug"


def test_an_error_in_the_middle_of_an_answer_is_no_bug(
    client: Client, service: FakeService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_later() -> Iterator[str]:
        yield from ["{}"] * 1_000
        raise errors.StorageError("the disk is gone")

    monkeypatch.setattr(service, "decisions", fails_later)
    with pytest.raises(AssertionError):  # what stands in for a network here says that the answer has no end
        client.get("/v1/decisions")
    assert "cut short: the disk is gone" in caplog.text
    assert "bug" not in caplog.text


def test_a_message_that_is_no_unicode_can_be_answered(client: Client, service: FakeService) -> None:
    service.fails = errors.RequestError("\udcff", "a path like \udcff\ud800")
    assert error(client.get("/v1/about")) == {"code": "invalid", "message": "a path like ??", "field": "?"}


def test_a_parameter_that_takes_one_value_is_given_once(client: Client) -> None:
    for path, field in (("/v1/dashboard/picture?at=1&at=2", "at"), ("/v1/jobs?vc=a&vc=b&state=queued", "vc")):
        response = client.get(path)
        assert response.status_code == 422
        assert error(response) == {"code": "invalid", "message": "given 2 times; give it once", "field": field}
    assert client.get("/v1/jobs?state=queued&state=failed&unknown=1&unknown=2").status_code == 200


def test_where_a_stream_broke_off_is_a_number_in_digits(client: Client) -> None:
    for text in ("5.0", "+5", "1_0", "five"):
        response = client.get("/v1/events/stream", headers={"Last-Event-ID": text})
        assert response.status_code == 422, text
        assert error(response)["field"] == "last-event-id"


def test_a_path_that_there_is_not_is_not_found(client: Client) -> None:
    for path in ("/nothing", "/v1", "/v1/jobs/", "/v1/jobs/1/nothing", "/docs", "/redoc", "/v2/jobs", "/v1/jobs/a%2Fb"):
        response = client.get(path)
        assert (response.status_code, error(response)["code"]) == (404, "not_found"), path


def test_a_method_that_there_is_not_is_not_allowed(client: Client) -> None:
    response = client.request("DELETE", "/v1/jobs/1")
    assert (response.status_code, error(response)["code"]) == (405, "not_allowed")
    assert "GET" in response.headers["allow"]
    assert client.request("NONSENSE", "/v1/jobs").status_code == 405


def nested(depth: int) -> bytes:
    return b'{"vc": ' + b"[" * depth + b"]" * depth + b', "command": ["x"]}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"\xff\xfe",
        b"\x00",
        b'{"vc": "\xff"}',
        b'{"vc": "vision", "command": ["x"], "gpus": ' + b"9" * 5_000 + b"}",
        b'{"vc": "vision", "command": ["x"], "gpus": 1e999}',
        b'{"vc": "vision", "command": ["x"], "backoff_s": NaN}',
        b'{"vc": "vision", "command": ["x"], "backoff_s": -Infinity}',
        b'{"vc": "\\ud800", "command": ["x"]}',
        b'{"vc": "vision", "command": ["\\udfff"]}',
        b'{"vc": "vision", "command": ["x"], "\\ud800": 1}',
        b'{"vc": "vision", "command": ["x"], "environment": {"\\ud800": "x"}}',
        b'{"vc": "vision", "command": ["x\\u0000"]}',
        b'{"vc": "vi\\u0000sion", "command": ["x"]}',
        b"[]",
        b"null",
        b'"text"',
        b"1",
        nested(100),
        nested(100_000),
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        '{"vc": "vision"}'.encode("utf-16"),
        json.dumps({"vc": "vision", "command": ["x"], "k" * 100_000: 1}).encode(),
        json.dumps({"vc": "vision", "command": [0] * 100_000}).encode(),
    ],
    ids=lambda body: repr(body[:40]),
)
def test_a_body_of_nonsense_is_refused_in_few_words(client: Client, service: FakeService, body: bytes) -> None:
    for method, path in (("POST", "/v1/jobs"), ("POST", "/v1/plan"), ("PUT", "/v1/spec")):
        response = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code in (400, 422), path
        assert error(response)["code"] in ("malformed", "invalid"), path
        assert len(response.content) < 1_000, path
    assert not service.all


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "/", "\xff", None]
)
def test_a_body_that_is_not_declared_as_json_is_refused(client: Client, service: FakeService, kind: str | None) -> None:
    headers = [] if kind is None else [(b"content-type", kind.encode("latin-1"))]
    response = client.post("/v1/jobs", content=b'{"vc": "vision", "command": ["true"]}', headers=headers)
    assert (response.status_code, error(response)["code"]) == (415, "media_type")
    assert not service.all


def test_a_json_body_may_say_its_charset(client: Client) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post("/v1/jobs", content=b'{"vc": "vision", "command": ["t"]}', headers=headers).status_code == 201


def test_an_unexpected_websocket_is_closed(service: FakeService) -> None:
    app = make_app(service, FakeSource(), token="t", hosts=())
    sent = []

    async def open_one() -> None:
        async def receive() -> dict[str, str]:
            return {"type": "websocket.connect"}

        async def send(message: object) -> None:
            sent.append(message)

        scope = {"type": "websocket", "path": "/v1/events/stream", "headers": [], "query_string": b""}
        await app(scope, receive, send)

    asyncio.run(open_one())
    assert sent == [{"type": "websocket.close", "code": 1008}]
