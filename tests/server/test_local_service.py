"""A real engine behind the words of the HTTP API."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hived.engines.local.engine import Engine
from hived.engines.local.model import JobState
from hived.errors import InputError, InvariantError, NeverFitsError, NotFoundError, RequestError
from hived.server import routes, schema
from hived.server.local_service import LocalService

from ..engines.living import Lives, ended, printed, shell, state

STAYS = "echo here; exec sleep 600"


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "state")
    yield made
    made.end()


def wish(*command: str, vc: str = "vision", **more: object) -> schema.Submission:
    return schema.Submission.model_validate({"vc": vc, "command": list(command), "name": "job", **more})


# -- jobs ---------------------------------------------------------------------------------------------------------


def test_a_submission_is_shown_as_it_was_asked_for(lives: Lives) -> None:
    async def story(engine: Engine) -> tuple[schema.Job, schema.Job]:
        service = LocalService(engine)
        asked = wish("sh", "-c", "exit 3", gpus=2, tasks=2, priority=4, retries=0, time_limit_s=50.0, cwd="/tmp")
        first = await service.submit(asked, "ann")
        await ended(engine, engine.find("1"))
        return first, service.job("job")

    first, last = lives.live(story)
    assert (first.id, first.name, first.vc, first.user) == (1, "job-1", "vision", "ann")
    assert (first.gpus, first.gpus_per_task, first.tasks, first.priority) == (4, 2, 2, 4)
    assert (first.state, first.kind, first.attempt, first.reason) == ("running", "guaranteed", 1, "")
    assert (first.command, first.cwd, first.time_limit_s) == (["sh", "-c", "exit 3"], "/tmp", 50.0)
    assert [place.rank for place in first.placement] == [0, 1]
    assert len({(place.node, device) for place in first.placement for device in place.devices}) == 4
    assert (last.state, last.kind, last.placement, last.exit_code) == ("failed", None, [], 3)
    assert last.ended_at is not None
    assert "exit code 3" in last.reason


def test_without_a_folder_a_job_runs_in_the_engines_own(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")

    async def story(engine: Engine) -> str:
        return (await LocalService(engine).submit(wish("true"), "")).cwd

    assert lives.live(story) == "/tmp"


def test_an_engine_whose_own_folder_is_gone_asks_for_one(
    lives: Lives, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # where the engine ran was deleted, and every submission without a folder was an internal error
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        with pytest.raises(RequestError, match="cwd"):
            await service.submit(wish("true"), "")
        await service.submit(wish("true", cwd="/"), "")

    lives.live(story)


def test_what_never_fits_or_is_wrong_is_refused(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        with pytest.raises(NeverFitsError):
            await service.submit(wish("true", gpus=5), "")
        for vc in ("no such", "", "Vision", "vision\n", "\x00", "深"):
            with pytest.raises(RequestError) as found:
                engine.submit(shell(vc, "true"))
            assert found.value.field == "vc"
        with pytest.raises(RequestError):
            service.plan(wish("true", vc="nobody"))
        for ref in ("7", "job", "job-7", "", "../x", "\ud800"):
            for ask in (service.job, service.explain):
                with pytest.raises(NotFoundError):
                    ask(ref)
            with pytest.raises(NotFoundError):
                await service.cancel(ref)
            with pytest.raises(NotFoundError):
                service.log(ref, 0, None, 0, 10)
            with pytest.raises(NotFoundError):
                service.events(0, 10, ref)
        assert service.jobs((), None, 10, None).total == 0

    lives.live(story)


def test_jobs_are_listed_latest_first_and_page_by_page(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        for vc in ("vision", "speech", "vision", "speech"):
            await service.submit(wish("sleep", "600", vc=vc, gpus=2), "")
        await service.cancel("4")
        page = service.jobs((), None, 2, None)
        assert ([job.id for job in page.jobs], page.total) == ([4, 3], 4)
        page = service.jobs((), None, 2, 3)
        assert ([job.id for job in page.jobs], page.total) == ([2, 1], 4)
        page = service.jobs(("cancelled", "running"), "speech", 9, None)
        assert [(job.id, job.state) for job in page.jobs] == [(4, "cancelled"), (2, "running")]

    lives.live(story)


def test_every_state_is_explained(lives: Lives) -> None:
    async def story(engine: Engine) -> dict[str, str]:
        service, told = LocalService(engine), {}
        deaf = "trap '' TERM; echo here; while :; do sleep 0.02; done"
        done = await service.submit(wish("true"), "")
        failed = await service.submit(wish("sh", "-c", "exit 3", vc="speech"), "")
        back = await service.submit(wish("false", vc="research", retries=1, backoff_s=60.0), "")
        await ended(engine, engine.find(str(done.id)), engine.find(str(failed.id)))
        await state(engine, engine.find(str(back.id)), JobState.BACKOFF)
        loan = await service.submit(wish("sh", "-c", deaf, vc="research", gpus=8, priority=-1, grace_s=3.0), "")
        await printed(engine, engine.find(str(loan.id)), "here")
        runs = await service.submit(wish("sleep", "600", vc="vision", gpus=4), "")
        waits = await service.submit(wish("true", vc="vision", gpus=2), "")
        behind = await service.submit(wish("true", vc="vision", gpus=1), "")
        gone = await service.submit(wish("true", vc="vision", gpus=1), "")
        await service.cancel(str(gone.id))
        for job in (done, failed, back, loan, runs, waits, behind, gone):
            answer = service.explain(str(job.id))
            shown = service.job(str(job.id))
            assert answer.job == job.id
            assert answer.text.startswith(job.name)
            assert all({"kind", "text"} <= set(reason) for reason in answer.reasons)
            assert bool(answer.reasons) is (shown.state in ("queued", "reserved"))
            assert bool(shown.reason) or shown.state in ("running", "succeeded")
            told[f"{shown.state} {job.id}"] = answer.text
        await state(engine, engine.find(str(runs.id)), JobState.RUNNING)
        told[f"running {runs.id}"] = service.explain(str(runs.id)).text
        return told

    told = lives.live(story)
    assert list(told) == ["succeeded 1", "failed 2", "backoff 3", "stopping 4", "reserved 5", "queued 6", "queued 7",
                          "cancelled 8", "running 5"]  # fmt: skip
    assert "succeeded" in told["succeeded 1"]
    assert "exit code 3" in told["failed 2"]
    assert "try 2 of 2" in told["backoff 3"]
    assert "being stopped (preempted by job-5 of vision); it has 3 s" in told["stopping 4"]
    assert "job-4" in told["reserved 5"]
    assert "- 1 group of its VC is ahead of it in line: job-6" in told["queued 7"]
    assert "was cancelled" in told["cancelled 8"]


def test_a_plan_says_now_later_or_never_and_changes_nothing(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        last = engine.last_event
        plan = service.plan(wish("true", gpus=4))
        assert plan.outcome == "now"
        assert len(plan.placement[0].devices) == 4
        assert service.plan(wish("true", gpus=5)).outcome == "never"
        assert engine.last_event == last
        loan = await service.submit(wish("sleep", "600", vc="research", gpus=8, priority=-1), "")
        plan = service.plan(wish("true", gpus=4))
        assert plan.victims == [loan.name]
        await service.submit(wish("sleep", "600", gpus=3), "")
        await service.submit(wish("sleep", "600", gpus=2), "")
        plan = service.plan(wish("true", gpus=1))
        assert (plan.outcome, plan.placement, plan.victims) == ("waits", [], [])
        assert plan.reasons[-1]["kind"] == "behind others", plan.reasons
        assert "job-3" in plan.text
        assert service.plan(wish("true", gpus=5)).outcome == "never", "whoever is before it"

    lives.live(story)


# -- output -------------------------------------------------------------------------------------------------------


def read_all(service: LocalService, ref: str, limit: int, rank: int = 0) -> tuple[str, int]:
    """Page by page to the end, and how many pages there were."""
    text, offset = "", 0
    for pages in range(1, 10_000):
        page = service.log(ref, rank, None, offset, limit)
        assert page.offset == offset
        assert page.next > offset or page.end, "it would be asked for for ever"
        text += page.text
        offset = page.next
        if page.end:
            return text, pages
    raise AssertionError("there is no end")


TEXT = "aя深🚀\n" * 20


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 64, 100_000])
def test_output_comes_whole_however_small_the_pages_are(lives: Lives, tmp_path: Path, limit: int) -> None:
    # pages that were smaller than a character cut it
    (tmp_path / "text").write_text(TEXT)

    async def story(engine: Engine) -> tuple[str, int]:
        service = LocalService(engine)
        job = await service.submit(wish("cat", str(tmp_path / "text")), "")
        await ended(engine, engine.find(str(job.id)))
        return read_all(service, "1", limit)

    text, pages = lives.live(story)
    assert text == TEXT
    assert pages >= len(TEXT.encode()) // max(4, limit)


def test_output_that_is_there_is_streamed_without_a_wait(lives: Lives, tmp_path: Path) -> None:
    # a page that ended before a character's last byte was taken for the end of what is there: 2.5 MB a second of UTF-8
    waits: list[int] = []

    class Counting(LocalService):
        async def log_grown(self, ref: str, rank: int, attempt: int | None, offset: int) -> None:
            waits.append(offset)
            await super().log_grown(ref, rank, attempt, offset)

    text = "深" * routes.LOG_BYTES_AT_ONCE
    (tmp_path / "text").write_text(text)

    async def story(engine: Engine) -> str:
        service = Counting(engine)
        await service.submit(wish("cat", str(tmp_path / "text")), "")
        await ended(engine, engine.find("1"))
        first = service.log("1", 0, None, 0, routes.LOG_BYTES_AT_ONCE)
        events = [event.data async for event in routes.output(service, "1", 0, None, first)]
        return "".join(json.loads(str(data))["text"] for data in events)

    assert lives.live(story) == text
    assert waits == []


def test_a_character_of_which_only_a_part_is_written_is_waited_for(lives: Lives, tmp_path: Path) -> None:
    # programs write in blocks, and a follower came between two of them: the character was shown as two broken ones
    first, second = tmp_path / "1", tmp_path / "2"
    go = tmp_path / "go"
    whole = "深".encode()
    first.write_bytes(b"a" + whole[:2])
    second.write_bytes(whole[2:] + b"b")

    async def story(engine: Engine) -> list[schema.LogPage]:
        service = LocalService(engine)
        script = f"cat {first}; while ! [ -e {go} ]; do sleep 0.01; done; cat {second}; exec sleep 600"
        await service.submit(wish("sh", "-c", script), "")
        while service.log("1", 0, None, 0, 100).next == 0:
            await asyncio.sleep(0.01)
        pages = [service.log("1", 0, None, 0, 100), service.log("1", 0, None, 1, 100), service.log("1", 0, None, 1, 1)]
        grown = asyncio.create_task(service.log_grown("1", 0, None, 1))
        await asyncio.sleep(0.3)
        assert not grown.done(), "there is no character yet"
        go.touch()
        await grown
        return [*pages, service.log("1", 0, None, 1, 100)]

    pages = lives.live(story)
    assert [(page.text, page.next) for page in pages] == [("a", 1), ("", 1), ("", 1), ("深b", 5)]
    assert not any(page.end for page in pages)


def test_what_is_no_text_is_shown_as_far_as_it_can_be(lives: Lives, tmp_path: Path) -> None:
    odd = b"\xff\xfe a \xe6\xb7 b \xf0\x9f\x9a \x80\x80\x80\x80\x80 \xe6\xb7"
    (tmp_path / "odd").write_bytes(odd)

    async def story(engine: Engine) -> list[str]:
        service = LocalService(engine)
        await service.submit(wish("cat", str(tmp_path / "odd")), "")
        await ended(engine, engine.find("1"))
        return [read_all(service, "1", limit)[0] for limit in (1, 3, 8, 100)]

    whole = odd.decode(errors="replace")
    for text in lives.live(story):
        assert text.replace("�", "") == whole.replace("�", "")


def test_the_tail_begins_with_a_whole_character(lives: Lives, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("深" * 100)

    async def story(engine: Engine) -> list[schema.LogPage]:
        service = LocalService(engine)
        await service.submit(wish("cat", str(tmp_path / "text")), "")
        await ended(engine, engine.find("1"))
        return [service.log("1", 0, None, -back, 1000) for back in (1, 2, 3, 4, 5, 6, 299, 300, 301, 10_000)]

    pages = lives.live(story)
    assert [page.text for page in pages] == ["", "", *("深" * n for n in (1, 1, 1, 2, 99, 100, 100, 100))]
    assert all(page.next == 300 for page in pages)
    assert all(page.offset + len(page.text.encode()) == page.next for page in pages)


def test_output_beyond_the_end_is_none(lives: Lives) -> None:
    async def story(engine: Engine) -> schema.LogPage:
        service = LocalService(engine)
        await service.submit(wish("echo", "x"), "")
        await ended(engine, engine.find("1"))
        return service.log("1", 0, None, 2**60, 100)

    assert lives.live(story) == schema.LogPage(text="", offset=2, next=2, end=True)


def test_every_attempt_and_task_has_its_output(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        script = "echo $HIVED_ATTEMPT.$HIVED_RANK; [ $HIVED_ATTEMPT = 2 ]"
        await service.submit(wish("sh", "-c", script, tasks=2, retries=1, backoff_s=0.0), "")
        await ended(engine, engine.find("1"))
        assert service.log("1", 1, None, 0, 100).text == "2.1\n"
        assert service.log("1", 0, 2, 0, 100) == schema.LogPage(text="2.0\n", offset=0, next=4, end=True)
        assert service.log("1", 0, 1, 0, 100).end
        for rank, attempt in ((2, None), (0, 3), (0, 0)):
            with pytest.raises(NotFoundError):
                service.log("1", rank, attempt, 0, 100)

    lives.live(story)


def test_a_job_that_waits_has_no_output_yet_and_none_if_it_is_withdrawn(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        await service.submit(wish("sleep", "600", gpus=4), "")
        await service.submit(wish("true", gpus=4), "")
        assert not service.log("2", 0, None, 0, 100).end
        await service.cancel("2")
        assert service.log("2", 0, None, 0, 100).end
        await asyncio.wait_for(service.log_grown("2", 0, None, 0), 5)

    lives.live(story)


def test_following_a_task_that_could_not_be_started_ends(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    # nobody had claimed it, so it was taken for one that is yet to come, for as long as the pause before the next try
    async def story(engine: Engine) -> schema.LogPage:
        service = LocalService(engine)
        (engine.folder / "jobs").write_text("")  # no folder can be made below it
        await service.submit(wish("true", retries=1, backoff_s=60.0), "")
        await state(engine, engine.find("1"), JobState.BACKOFF)
        return service.log("1", 0, None, 0, 100)

    assert lives.live(story).end


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "loop", "gone"])
def test_reading_never_blocks_whatever_is_in_the_place_of_the_output(lives: Lives, kind: str) -> None:
    # a FIFO held up the engine for good, and a folder was an internal error
    async def story(engine: Engine) -> schema.LogPage:
        service = LocalService(engine)
        await service.submit(wish("true"), "")
        (job,) = await ended(engine, engine.find("1"))
        output = engine.task(job, 0).output
        output.unlink()
        match kind:
            case "fifo":
                os.mkfifo(output)
            case "folder":
                output.mkdir()
            case "link":
                output.symlink_to("/dev/zero")
            case "loop":
                output.symlink_to("output")
        return service.log("1", 0, None, 0, 100)

    page = lives.live(story)
    assert (page.text, page.end) == ("", True)


# -- events -------------------------------------------------------------------------------------------------------


def test_events_are_listed_as_sentences_and_page_by_page(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        loan = await service.submit(wish("sleep", "600", vc="research", gpus=8, priority=-1), "ann")
        owner = await service.submit(wish("true", gpus=4), "")
        await ended(engine, engine.find(str(owner.id)))
        await service.submit(wish("false", vc="speech", retries=1, backoff_s=0.0), "")
        await ended(engine, engine.find("3"))
        await service.drain(schema.Drain(device=0))
        await service.drain(schema.Drain(device=0, undo=True))
        await service.reconfigure(schema.SpecText(yaml=SPEC))
        engine.job_scheduler.set_health([("node", 1)], "NVML: lost", engine.clock())
        engine.job_scheduler.set_health([("node", 1)], None, engine.clock())
        await service.cancel(str(loan.id))
        await state(engine, engine.find(str(loan.id)), JobState.CANCELLED)
        everything = service.events(0, 1000, None)
        assert [event.seq for event in everything.events] == list(range(1, everything.last + 1))
        kinds = {event.kind for event in everything.events}
        assert kinds >= {
            "submitted", "started", "stopping", "task_ended", "preempted", "reserved", "retrying", "queued",
            "succeeded", "failed", "drained", "undrained", "reconfigured", "device_bad", "device_healthy", "cancelled",
            "engine_started", "recovered",
        }  # fmt: skip
        for event in everything.events:
            assert event.text != event.kind, f"{event.kind} has no words"
            assert "None" not in event.text
            if event.job is not None:
                assert f"-{event.job}" in event.text
        after, pages = 0, []
        while page := service.events(after, 3, None).events:
            pages += page
            after = page[-1].seq
        assert pages == everything.events
        own = service.events(0, 1000, "job-1").events
        assert {event.job for event in own} == {1}
        assert [event.seq for event in service.events(-1, 2, None).events] == [everything.last - 1, everything.last]

    lives.live(story)


SPEC = """
physicalCluster:
  cellTypes: {NODE: {childCellType: GPU, childCellNumber: 8, isNodeLevel: true}}
  physicalCells: [{cellType: NODE, cellAddress: node}]
virtualClusters: {vision: {virtualCells: [{cellType: NODE.GPU, cellNumber: 4}]}}
"""


def test_a_new_spec_that_is_wrong_changes_nothing(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        last, spec = engine.last_event, engine.cluster.spec
        for text in ("", "a: [", "physicalCluster: 3", SPEC.replace("cellNumber: 4", "cellNumber: 9"),
                     "[" * 5000, "a: &a [*a]", "\x00", "!!python/object:os.system {}"):  # fmt: skip
            with pytest.raises(InputError):
                await service.reconfigure(schema.SpecText.model_construct(yaml=text))
        assert (engine.last_event, engine.cluster.spec) == (last, spec)

    lives.live(story)


# -- the machine --------------------------------------------------------------------------------------------------


def test_devices_show_their_job_and_their_fault(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        job = await service.submit(wish("sleep", "600", gpus=2), "")
        held = {device for place in job.placement for device in place.devices}
        free = next(device for device in range(8) if device not in held)
        (drained,) = await service.drain(schema.Drain(node="node", device=free))
        assert (drained.device, drained.drained, drained.healthy, drained.job) == (free, True, True, None)
        engine.job_scheduler.set_health([("node", 7)], "NVML: lost", engine.clock())
        found = service.devices()
        assert [device.device for device in found] == list(range(8))
        assert [device.device for device in service.devices(offset=6)] == [6, 7]
        assert service.devices(offset=2**63 - 1) == []
        assert {device.device for device in found if device.job == job.id} == held
        assert {device.device for device in found if device.state == "used"} == held
        assert [(d.device, d.why_bad) for d in found if not d.healthy] == [(7, "NVML: lost")]
        about = service.about()
        assert (about.gpus, about.nodes, about.vcs) == (8, 1, ["vision", "speech", "research"])
        assert (about.simulated, about.draining, about.jobs["running"]) == (True, False, 1)
        assert about.safety_margin is not None
        assert about.safety_margin >= 0

        def broken() -> None:
            raise InvariantError("a margin is -1")

        engine.cluster.check_safety = broken  # type: ignore[method-assign,assignment]
        assert service.about().safety_margin == -1
        await service.drain(schema.Drain())
        assert service.about().draining
        for wrong in (schema.Drain(node="x"), schema.Drain(device=8), schema.Drain(node="node", device=9)):
            with pytest.raises(NotFoundError):
                await service.drain(wrong)

    lives.live(story)


def test_the_log_of_decisions_is_read_as_lines(lives: Lives) -> None:
    async def story(engine: Engine) -> list[str]:
        service = LocalService(engine)
        await service.submit(wish("true"), "")
        await ended(engine, engine.find("1"))
        return list(service.decisions())

    lines = lives.live(story)
    assert '"is":"Opened"' in lines[0]
    assert all(line.startswith("{") for line in lines)
