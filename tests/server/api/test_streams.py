"""Streams: events as they happen, output as it grows, over a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hived.errors import UnavailableError
from hived.server import routes
from hived.server.schema import LogPage, Submission

from .fakes import FakeService
from .serve import Said, said, serving


async def submit(service: FakeService) -> None:
    await service.submit(Submission(vc="vision", command=["true"], name="train"), "ann")


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


def test_events_come_as_they_happen(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        service.happen("before", None)
        async with serving(service, tmp_path) as client, client.stream("GET", "/v1/events/stream") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            for _ in range(3):
                service.happen("now", None)
            assert numbers(await take(stream, 3)) == [2, 3, 4]

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?after=2", {}), ("", {"Last-Event-ID": "2"}), ("?after=0", {"Last-Event-ID": "2"})],
    ids=["asked for", "reconnected", "reconnected to where it was first asked for"],
)
def test_a_stream_goes_on_where_it_broke_off(
    service: FakeService, tmp_path: Path, query: str, headers: dict[str, str]
) -> None:
    async def scene() -> None:
        for _ in range(4):
            service.happen("before", None)
        async with (
            serving(service, tmp_path) as client,
            client.stream("GET", f"/v1/events/stream{query}", headers=headers) as stream,
        ):
            service.happen("now", None)
            assert numbers(await take(stream, 3)) == [3, 4, 5]

    asyncio.run(scene())


def test_no_event_is_lost_or_sent_twice_over_many_connections(service: FakeService, tmp_path: Path) -> None:
    total = 3 * routes.EVENTS_AT_ONCE + 7

    async def scene() -> None:
        heard: list[int] = []
        async with serving(service, tmp_path) as client:

            async def happening() -> None:
                for number in range(total):
                    service.happen("now", None)
                    if number % 50 == 0:
                        await asyncio.sleep(0.01)

            happens = asyncio.create_task(happening())
            while len(heard) < total:
                headers = {"Last-Event-ID": str(heard[-1] if heard else 0)}
                async with client.stream("GET", "/v1/events/stream", headers=headers) as stream:
                    heard += numbers(await take(stream, min(150, total - len(heard))))
            await happens
        assert heard == list(range(1, total + 1))

    asyncio.run(scene())


def test_a_long_absence_is_made_up_for_in_full(service: FakeService, tmp_path: Path) -> None:
    total = 2 * routes.EVENTS_AT_ONCE + 7

    async def scene() -> None:
        for _ in range(total):
            service.happen("before", None)
        async with serving(service, tmp_path) as client, client.stream("GET", "/v1/events/stream?after=0") as stream:
            assert numbers(await take(stream, total)) == list(range(1, total + 1))

    asyncio.run(scene())


def test_the_events_of_one_job_are_those_of_no_other(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        await submit(service)
        await submit(service)
        async with (
            serving(service, tmp_path) as client,
            client.stream("GET", "/v1/events/stream?after=0&job=1") as stream,
        ):
            service.happen("other", 2)
            service.happen("ours", 1)
            assert numbers(await take(stream, 2)) == [1, 4]

    asyncio.run(scene())


def test_a_number_of_an_engine_that_is_gone_counts_as_now(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        service.happen("before", None)
        headers = {"Last-Event-ID": "5000"}
        async with (
            serving(service, tmp_path) as client,
            client.stream("GET", "/v1/events/stream", headers=headers) as stream,
        ):
            service.happen("now", None)
            assert numbers(await take(stream, 1)) == [2]

    asyncio.run(scene())


@pytest.mark.parametrize("last", ["x", "-1", str(2**63), "1.5"])
def test_a_number_that_is_none_is_refused(service: FakeService, tmp_path: Path, last: str) -> None:
    async def scene() -> None:
        async with serving(service, tmp_path) as client:
            response = await client.get("/v1/events/stream", headers={"Last-Event-ID": last})
            assert response.status_code == 422
            assert response.json()["error"]["field"] == "last-event-id"

    asyncio.run(scene())


def test_output_comes_as_it_is_written_until_the_job_ends(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        await submit(service)
        service.prints(1, b"one\n")
        async with serving(service, tmp_path) as client, client.stream("GET", "/v1/jobs/train/log/stream") as stream:
            pages = said(stream)
            first = await anext(pages)
            assert (first.event, first.number, json.loads(first.data)["text"]) == ("log", "4", "one\n")
            await submit(service)  # now "train" is another job
            service.prints(1, b"two\n")
            assert json.loads((await anext(pages)).data)["text"] == "two\n"
            service.prints(1, b"three")
            service.ends(1)
            rest = [page async for page in pages]
            assert [page.event for page in rest] == ["log", "end"]
            assert json.loads(rest[0].data)["text"] == "three"

    asyncio.run(scene())


def test_output_goes_on_where_it_broke_off(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        await submit(service)
        service.prints(1, b"one\ntwo\n")
        service.ends(1)
        async with serving(service, tmp_path) as client:
            for query, headers in (("?offset=4", {}), ("?offset=-4", {}), ("?offset=0", {"Last-Event-ID": "4"})):
                response = await client.get(f"/v1/jobs/1/log/stream{query}", headers=headers)
                pages = [page async for page in said(response)]
                assert [page.event for page in pages] == ["log", "end"]
                assert json.loads(pages[0].data) == {"text": "two\n", "offset": 4, "next": 8, "end": True}

    asyncio.run(scene())


def test_long_output_comes_in_pieces_and_whole(service: FakeService, tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(50_000))

    async def scene() -> None:
        await submit(service)
        service.prints(1, text.encode())
        service.ends(1)
        async with serving(service, tmp_path) as client:
            pages = [page async for page in said(await client.get("/v1/jobs/1/log/stream"))]
            assert "".join(json.loads(page.data)["text"] for page in pages) == text
            assert len(pages) > 3

    asyncio.run(scene())


def test_output_with_every_kind_of_line_end_stays_one_event(service: FakeService, tmp_path: Path) -> None:
    text = "a\rb\r\nc\n\ndata: d\u2028\u0085event: end\0\x0b"

    async def scene() -> None:
        await submit(service)
        service.prints(1, text.encode())
        service.ends(1)
        async with serving(service, tmp_path) as client:
            pages = [page async for page in said(await client.get("/v1/jobs/1/log/stream"))]
            assert [page.event for page in pages] == ["log", "end"]
            assert json.loads(pages[0].data)["text"] == text

    asyncio.run(scene())


def test_an_error_on_the_way_is_the_last_event(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(service, tmp_path) as client, client.stream("GET", "/v1/events/stream?after=0") as stream:
            service.happen("now", None)
            events = said(stream)
            await anext(events)
            service.fails = UnavailableError("the engine stops")
            service.happen("later", None)
            last = [event async for event in events][-1]
            assert last.event == "failure"
            assert json.loads(last.data)["error"]["code"] == "unavailable"

    asyncio.run(scene())


def test_a_bug_on_the_way_ends_the_stream_and_not_the_server(
    service: FakeService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with serving(service, tmp_path) as client:
            async with client.stream("GET", "/v1/events/stream?after=0") as stream:
                service.happen("now", None)
                events = said(stream)
                await anext(events)
                service.fails = ZeroDivisionError("a secret")
                service.happen("later", None)
                with pytest.raises(Exception, match="incomplete chunked read"):
                    await anext(events)
            assert (await client.get("/healthz")).status_code == 200
        assert "a secret" in caplog.text

    asyncio.run(scene())


def test_output_held_back_does_not_keep_the_engine_busy(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a character is there, so output has grown, and yet there is nothing to tell."""
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

    async def scene() -> None:
        await submit(service)
        stream = routes.output(service, "1", 0, None, service.log("1", 0, None, 0, 1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await anext(stream)
        assert looks < 20

    asyncio.run(scene())


def test_a_stream_that_is_left_is_let_go(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    async def scene() -> None:
        async with serving(service, tmp_path) as client:
            for _ in range(5):
                async with client.stream("GET", "/v1/events/stream") as stream:
                    assert stream.status_code == 200
            async with asyncio.timeout(60):
                while waiting:
                    await asyncio.sleep(0.01)

    asyncio.run(scene())
