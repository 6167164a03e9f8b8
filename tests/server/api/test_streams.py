"""Streams over a real server: events as they happen, output as it grows."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from hived.errors import UnavailableError
from hived.server import routes
from hived.server.schema import LogPage

from ..fakes import FakeService
from .client import Said, said


def numbers(events: list[Said]) -> list[int]:
    assert {event.event for event in events} == {"event"}
    assert [event.number for event in events] == [str(json.loads(event.data)["seq"]) for event in events]
    return [int(event.number) for event in events]


async def take(response: Any, count: int) -> list[Said]:
    """The next ``count`` events; the stream stays open."""
    found: list[Said] = []
    async for event in said(response):
        found.append(event)
        if len(found) == count:
            break
    return found


# -- events


@pytest.mark.parametrize(
    ("query", "headers", "heard"),
    [
        ("", {}, [5, 6]),
        ("?after=2", {}, [3, 4, 5, 6]),
        ("", {"Last-Event-ID": "2"}, [3, 4, 5, 6]),
        ("?after=0", {"Last-Event-ID": "2"}, [3, 4, 5, 6]),
        ("?after=0&job=1", {}, [1, 5]),
        ("", {"Last-Event-ID": "5000"}, [5, 6]),
    ],
    ids=["as they happen", "asked for", "reconnected", "first asked for", "of one job", "of an engine that is gone"],
)
async def test_events_from_where_it_broke_off(
    service: FakeService, http: httpx.AsyncClient, query: str, headers: dict[str, str], heard: list[int]
) -> None:
    service.add()
    service.add()
    for _ in range(2):
        service.tell("before")
    async with http.stream("GET", f"/v1/events/stream{query}", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for job in ("1", "2"):
            service.tell("now", job=job)
        assert numbers(await take(stream, len(heard))) == heard


async def test_no_event_lost_over_connections(service: FakeService, http: httpx.AsyncClient) -> None:
    """None is sent twice either; and at last a long absence is made up for in full."""
    total = 2 * routes.EVENTS_AT_ONCE + 7
    heard: list[int] = []

    async def happening() -> None:
        for number in range(total):
            service.tell("now")
            if number % 50 == 0:
                await asyncio.sleep(0)

    happens = asyncio.create_task(happening())
    while len(heard) < total:
        headers = {"Last-Event-ID": str(heard[-1] if heard else 0)}
        async with http.stream("GET", "/v1/events/stream", headers=headers) as stream:
            heard += numbers(await take(stream, min(150, total - len(heard))))
    await happens
    assert heard == list(range(1, total + 1))
    async with http.stream("GET", "/v1/events/stream?after=0") as stream:
        assert numbers(await take(stream, total)) == heard


async def test_error_is_the_last_event(service: FakeService, http: httpx.AsyncClient) -> None:
    async with http.stream("GET", "/v1/events/stream?after=0") as stream:
        service.tell("now")
        events = said(stream)
        await anext(events)
        service.fails = UnavailableError("the engine stops")
        service.tell("later")
        last = [event async for event in events][-1]
        assert last.event == "failure"
        assert json.loads(last.data)["error"]["code"] == "unavailable"


@pytest.mark.parametrize("kind", [ZeroDivisionError, TimeoutError])
async def test_bug_ends_the_stream_alone(
    service: FakeService, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    async with http.stream("GET", "/v1/events/stream?after=0") as stream:
        service.tell("now")
        events = said(stream)
        await anext(events)
        service.fails = kind("a secret")
        service.tell("later")
        with pytest.raises(Exception, match="incomplete chunked read"):
            await anext(events)
    assert (await http.get("/healthz")).status_code == 200
    assert "a secret" in caplog.text


async def test_left_stream_is_let_go(
    service: FakeService, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = 0
    changed = service.changed

    async def count(after: int) -> None:
        nonlocal waiting
        waiting += 1
        try:
            await changed(after)
        finally:
            waiting -= 1

    monkeypatch.setattr(service, "changed", count)
    for _ in range(5):
        async with http.stream("GET", "/v1/events/stream") as stream:
            assert stream.status_code == 200
    while waiting:
        await asyncio.sleep(0.01)


# -- output


async def test_output_until_the_job_ends(service: FakeService, http: httpx.AsyncClient) -> None:
    job = service.add()
    service.print(job, "one\n")
    async with http.stream("GET", "/v1/logs/train/stream") as stream:
        pages = said(stream)
        first = await anext(pages)
        assert (first.event, first.number, json.loads(first.data)["text"]) == ("log", "4", "one\n")
        service.add()  # now "train" is another job
        service.print(job, "two\n")
        assert json.loads((await anext(pages)).data)["text"] == "two\n"
        service.print(job, "three")
        service.end(job)
        rest = [page async for page in pages]
        assert [page.event for page in rest] == ["log", "end"]
        assert json.loads(rest[0].data)["text"] == "three"


@pytest.mark.parametrize(
    ("query", "headers"), [("?offset=4", {}), ("?offset=-4", {}), ("?offset=0", {"Last-Event-ID": "4"})]
)
async def test_output_from_where_it_broke_off(
    service: FakeService, http: httpx.AsyncClient, query: str, headers: dict[str, str]
) -> None:
    job = service.add()
    service.print(job, "one\ntwo\n")
    service.end(job)
    pages = [page async for page in said(await http.get(f"/v1/logs/1/stream{query}", headers=headers))]
    assert [page.event for page in pages] == ["log", "end"]
    assert json.loads(pages[0].data) == {"text": "two\n", "offset": 4, "next": 8, "end": True}


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("".join(f"line {number}\n" for number in range(50_000)), 3),
        ("a\rb\r\nc\n\ndata: d\u2028\u0085event: end\0\x0b", 1),  # every kind of line end stays in one event
    ],
    ids=["long", "of odd lines"],
)
async def test_output_comes_whole(service: FakeService, http: httpx.AsyncClient, text: str, least: int) -> None:
    job = service.add()
    service.print(job, text)
    service.end(job)
    *pages, end = [page async for page in said(await http.get("/v1/logs/1/stream"))]
    assert end.event == "end"
    assert {page.event for page in pages} == {"log"}
    assert "".join(json.loads(page.data)["text"] for page in pages) == text
    assert len(pages) >= least
    assert len(pages) == 1 or least > 1


async def test_output_held_back_is_polled(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a character is there, so output has grown, and yet there is nothing to tell: the engine is not busy."""
    monkeypatch.setattr(routes, "PAUSE_S", 0.02)
    looks = 0

    def log(ref: str, rank: int, attempt: int | None, offset: int, limit: int) -> LogPage:
        nonlocal looks
        looks += 1
        return LogPage(text="", offset=0, next=0, end=False)

    async def grown(*_: object) -> None:
        return

    monkeypatch.setattr(service, "log", log)
    monkeypatch.setattr(service, "log_grown", grown)
    service.add()
    stream = routes.output(service, "1", 0, None, service.log("1", 0, None, 0, 1))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await anext(stream)
    assert looks < 20
