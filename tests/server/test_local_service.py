"""A real engine behind the words of the HTTP API."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hived.access import Person
from hived.cli.formats import where
from hived.cli.machine import node_rows
from hived.engine.job import JobFilter
from hived.engine.states import JobState
from hived.engines.local.engine import Engine
from hived.engines.local.job_users import JobUsers
from hived.errors import (
    ConflictError,
    ForbiddenError,
    InputError,
    InvariantError,
    NeverFitsError,
    NotFoundError,
    RequestError,
)
from hived.server import routes, schema
from hived.server.local_service import LocalService
from hived.spec import parse_spec
from hived.spec.changes import changes
from hived.spec.compiled import AccessSpec
from hived.spec.writing import spec_text

from ..engines.driver import job as driver_job
from ..engines.living import ended, gate, printed, shell, state
from ..engines.test_taking_turns import Turns, sliced
from .test_live import Seen

OWNER = Person("", owns=True)
ANN = Person("ann", owns=True)
STAYS = "echo here; exec sleep 600"


def wish(*command: str, vc: str = "vision", **more: object) -> schema.Submission:
    return schema.Submission.model_validate({"vc": vc, "command": list(command), "name": "job", **more})


def process(job: schema.Job) -> schema.Process:
    """What only a job of processes has."""
    assert job.process is not None
    return job.process


def devices(service: LocalService, name: str | None = None) -> list[schema.Device]:
    """Of all nodes, or one."""
    return [device for node in service.nodes(name, 0, 1000).nodes for device in node.devices]


def planned(service: LocalService, *command: str, **more: Any) -> schema.PlannedJob:
    """The plan of one job."""
    (found,) = service.plan(schema.PlanRequest(job=wish(*command, **more)), service.owner).jobs
    return found


async def ran(engine: Engine, *command: str, **more: Any) -> LocalService:
    """The service, once a job has run."""
    service = LocalService(engine)
    job = await service.submit(wish(*command, **more), OWNER)
    await ended(engine, engine.find(str(job.id)))
    return service


# -- jobs -------------------------------------------------------------------------------------------------------------


async def test_job_as_it_was_asked_for(engine: Engine) -> None:
    service = LocalService(engine)
    asked = wish("sh", "-c", "exit 3", gpus=2, tasks=2, priority=4, retries=0, time_limit_s=50.0, cwd="/tmp")
    first = await service.submit(asked, ANN)
    await ended(engine, engine.find("1"))
    last = service.job("job")
    assert (first.id, first.name, first.vc, first.user) == ("1", "job-1", "vision", "ann")
    of_first, of_last = process(first), process(last)
    assert (first.gpus, of_first.gpus_per_task, first.size, first.priority) == (4, 2, 2, 4)
    assert (first.state, first.kind, of_first.attempt, first.why) == ("running", "guaranteed", 1, [])
    assert (of_first.command, of_first.cwd, of_first.time_limit_s) == (["sh", "-c", "exit 3"], "/tmp", 50.0)
    assert [(task.name, task.state) for task in first.tasks] == [("task 0", "running"), ("task 1", "running")]
    assert len({(task.node, device) for task in first.tasks for device in task.devices}) == 4
    assert (last.state, last.kind, where(last.tasks), of_last.exit_code) == ("failed", None, "", 3)
    assert [task.state for task in last.tasks] == ["ended", "ended"]
    assert last.ended_at is not None
    assert "exit code 3" in last.why[0]


async def test_job_without_a_folder(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in the engine's own; one whose folder is gone asks for one."""
    service = LocalService(engine)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    assert process(await service.submit(wish("true"), OWNER)).cwd == str(tmp_path / "gone")
    # where the engine ran was deleted, and every submission without a folder was an internal error
    (tmp_path / "gone").rmdir()
    with pytest.raises(RequestError, match="cwd"):
        await service.submit(wish("true"), OWNER)
    await service.submit(wish("true", cwd="/"), OWNER)


async def test_refusals(engine: Engine) -> None:
    service = LocalService(engine)
    with pytest.raises(NeverFitsError):
        await service.submit(wish("true", gpus=5), OWNER)
    for vc in ("no such", "", "Vision", "vision\n", "\x00", "深"):
        with pytest.raises(RequestError) as found:
            engine.submit(shell(vc, "true"))
        assert found.value.field == "vc"
    with pytest.raises(RequestError):
        planned(service, "true", vc="nobody")
    for ref in ("7", "job", "job-7", "", "../x", "\ud800"):
        for ask in (
            service.job,
            service.explain,
            lambda ref: service.log(ref, 0, None, 0, 10),
            lambda ref: service.events(0, 10, ref),
        ):
            with pytest.raises(NotFoundError):
                ask(ref)
        with pytest.raises(NotFoundError):
            await service.cancel(ref, "ann")
    assert service.jobs(JobFilter(), 10, None).total == 0


async def test_what_an_ended_job_has_kept(engine: Engine) -> None:
    """Submitted again, it began anew, and nobody said where its last state was."""
    service = LocalService(engine)
    script = 'cat "$HIVED_PREVIOUS_JOB_DIR/state" || echo kept > $HIVED_JOB_DIR/state'
    (first,) = await ended(engine, engine.find((await service.submit(wish("sh", "-c", script), ANN)).id))
    found = await service.resubmit(str(first.id), ANN)
    assert found.finds_files
    (again,) = await ended(engine, engine.find(found.id))
    assert again.spec.environment["HIVED_PREVIOUS_JOB_DIR"] == str(engine.shared_folder(first))
    assert await printed(engine, again, "kept\n") == "kept\n"
    shutil.rmtree(engine.folder / "jobs" / str(first.id))  # as --keep does
    last = await service.resubmit(str(first.id), ANN)
    assert last.finds_files is False
    assert "HIVED_PREVIOUS_JOB_DIR" not in engine.find(last.id).spec.environment
    assert service.shown(again).finds_files is None


async def test_an_array_is_submitted_again_as_one(engine: Engine) -> None:
    """Each was an array of its own: all at work at a time, and cancelled one by one."""
    service = LocalService(engine)
    script = 'cat "$HIVED_PREVIOUS_JOB_DIR/state" || echo kept $HIVED_ARRAY_INDEX > $HIVED_JOB_DIR/state; exit 1'
    asked = wish("sh", "-c", script, array="0-4%1", name="sweep")
    first = int((await service.submit(asked, ANN)).id)
    jobs = await ended(engine, *(engine.find(f"{first}_{index}") for index in range(5)))
    shutil.rmtree(engine.folder / "jobs" / jobs[1].name.rpartition("-")[2])  # as --keep does
    found = await service.resubmit("sweep_4", ANN, "1,3-4")
    assert found.finds_files is False
    again = [engine.find(f"{found.id}_{index}") for index in (1, 3, 4)]
    assert [job.spec.array_id for job in again] == [int(found.id)] * 3
    assert {(job.spec.name, job.spec.array, job.spec.array_most) for job in again} == {("sweep", "1,3-4%1", 1)}
    assert sum(job.state is JobState.HELD for job in again) == 2
    await ended(engine, *again)
    said = [service.log(str(job.id), 0, None, 0, 1000).text.splitlines()[-1] for job in again]
    assert [line[-6:] for line in said] == ["ectory", "kept 3", "kept 4"]
    # one that never began has what it was to begin with
    engine.drain(None, None, False, False, "root")
    waits = await service.resubmit(again[2].name, ANN)
    engine.cancel(waits.id)
    last = await service.resubmit(waits.id, ANN)
    assert last.finds_files is None
    found_there = [engine.find(job).spec.environment["HIVED_PREVIOUS_JOB_DIR"] for job in (waits.id, last.id)]
    assert found_there == [str(engine.shared_folder(again[2]))] * 2
    # an index that had succeeded, or was left out, is the array's before
    named = [engine.find(service.named(f"sweep_{index}", "ann")).id for index in (3, 2)]
    assert named == [again[1].id, jobs[2].id]
    with pytest.raises(NotFoundError):
        engine.find(service.named("sweep_9", "ann"))
    for wrong, error in (("9", NotFoundError), ("3-1", RequestError)):
        with pytest.raises(error):
            await service.resubmit("sweep_4", ANN, wrong)
    with pytest.raises(ForbiddenError):
        await service.resubmit("sweep_4", Person("ben"), "1")


async def test_a_new_array_of_a_name_has_its_indexes(engine: Engine) -> None:
    """Index 1 of the array before, which was submitted again as a job of that name, was meant by it for ever."""
    service = LocalService(engine)
    first = await service.submit(wish("true", array="1-2", name="sweep"), ANN)
    again = await service.resubmit(f"{first.id}_1", ANN)
    assert engine.find(service.named("sweep_1", "ann")).id == int(again.id)
    assert engine.find(service.named("sweep_2", "ann")).id == int(first.id) + 1
    new = await service.submit(wish("sleep", "600", array="1-2", name="sweep"), ANN)
    assert engine.find(service.named("sweep_1", "ann")).id == int(new.id)
    waits = await service.submit(wish("true", after=[{"job": "sweep_1"}]), ANN)
    assert engine.find(waits.id).spec.waits_for == ((int(new.id), "any"),)


async def test_a_virtual_cluster_that_there_is_not(engine: Engine) -> None:
    """Of one that was misspelt it was said that its members alone may have a grace."""
    with pytest.raises(RequestError, match="there is no virtual cluster 'speach'"):
        await LocalService(engine).submit(wish("true", vc="speach"), Person("ben", uid=1))


async def test_some_of_an_array_that_is_still_there(engine: Engine) -> None:
    """They have another name meanwhile: cancelled by its name, the array would have been those alone."""
    service = LocalService(engine)
    asked = wish("sh", "-c", "[ $HIVED_ARRAY_INDEX = 2 ] && exec sleep 600; exit 3", array="1-3", name="sweep")
    first = int((await service.submit(asked, ANN)).id)
    await ended(engine, *(engine.find(f"{first}_{index}") for index in (1, 3)))
    engine.limit_array(f"{first}_2", 7, "ann")
    await service.submit(wish("sleep", "600", name="sweep_again2"), ANN)
    found = await service.resubmit(str(first), ANN, "1,3")
    assert (found.name, engine.find(found.id).spec.array) == (f"sweep_again-{found.id}", "1,3%7")
    engine.drain(None, None, False, False, "root")  # so that it is still there
    more = await service.resubmit(f"{found.id}_3", ANN, "1")
    assert more.name == f"sweep_again3-{more.id}"
    engine.edit(f"{first}_2", {"time_limit_s": 60.0}, "ann")
    with pytest.raises(RequestError, match="ask for different sizes, limits or priorities by now"):
        await service.resubmit(str(first), ANN, "1-2")
    lone = await service.submit(wish("true"), ANN)
    with pytest.raises(RequestError, match="is of no array"):
        await service.resubmit(lone.id, ANN, "1")
    other = await service.resubmit(str(first), ANN, "3%2")
    assert engine.find(other.id).spec.array == "3%2"


async def test_jobs_that_wait_in_what_a_new_spec_has_not(engine: Engine) -> None:
    """They would wait for ever, and the dry run had no word of them."""
    service = LocalService(engine)
    for hold in (True, False):
        await service.submit(wish("sleep", "600", vc="speech", hold=hold), ANN)
    vcs = tuple(vc for vc in engine.trading.base.virtual_clusters if vc.name != "speech")
    text = spec_text(replace(engine.trading.base, virtual_clusters=vcs))
    found = await service.reconfigure(schema.SpecText(yaml=text), "ann", dry_run=True)
    assert found.warnings == ["1 waiting job of speech can never start: it is no more"]


async def test_list_of_jobs(engine: Engine) -> None:
    service = LocalService(engine)
    for vc in ("vision", "speech", "vision", "speech"):
        await service.submit(wish("sleep", "600", vc=vc, gpus=2), OWNER)
    await service.cancel("4", "ann")
    page = service.jobs(JobFilter(), 2, None)
    assert ([job.id for job in page.jobs], page.total, page.next) == (["4", "3"], 4, "3")
    page = service.jobs(JobFilter(), 2, "3")
    assert ([job.id for job in page.jobs], page.total, page.next) == (["2", "1"], 4, None)
    with pytest.raises(RequestError, match="no page"):
        service.jobs(JobFilter(), 2, "train")
    assert [job.id for job in service.jobs(JobFilter(name="-3"), 9, None).jobs] == ["3"]
    page = service.jobs(JobFilter(("cancelled", "running"), "speech"), 9, None)
    assert [(job.id, job.state) for job in page.jobs] == [("4", "cancelled"), ("2", "running")]


async def test_every_state_is_explained(engine: Engine) -> None:
    service, told = LocalService(engine), {}
    deaf = "trap '' TERM; echo here; while :; do sleep 0.02; done"
    done = await service.submit(wish("true"), OWNER)
    failed = await service.submit(wish("sh", "-c", "exit 3", vc="speech"), OWNER)
    back = await service.submit(wish("false", vc="research", retries=1, backoff_s=300.0), OWNER)
    await ended(engine, engine.find(str(done.id)), engine.find(str(failed.id)))
    await state(engine, engine.find(str(back.id)), JobState.BACKOFF)
    loan = await service.submit(wish("sh", "-c", deaf, vc="research", gpus=8, priority=-1, grace_s=3.0), OWNER)
    await printed(engine, engine.find(str(loan.id)), "here")
    assert service.explain(str(loan.id)).text.startswith("job-4 runs")
    runs = await service.submit(wish("sleep", "600", vc="vision", gpus=4), OWNER)
    waits = await service.submit(wish("true", vc="vision", gpus=2), OWNER)
    behind = await service.submit(wish("true", vc="vision", gpus=1), OWNER)
    gone = await service.submit(wish("true", vc="vision", gpus=1), OWNER)
    await service.cancel(str(gone.id), "ann")
    for job in (done, failed, back, loan, runs, waits, behind, gone):
        answer = service.explain(str(job.id))
        shown = service.job(str(job.id))
        assert answer.job == job.id
        assert answer.text.startswith(job.name)
        assert all({"kind", "text"} <= set(reason) for reason in answer.reasons)
        assert bool(answer.reasons) is (shown.state in ("queued", "reserved"))
        assert bool(shown.why) or shown.state in ("running", "succeeded")
        told[f"{shown.state} {job.id}"] = answer.text
    owner = service.job(str(runs.id))
    assert (owner.kind, [task.state for task in owner.tasks], where(owner.tasks)) == (None, ["waiting"], "node:0-3"), (
        "it has a reservation, and holds no GPUs yet"
    )
    assert [device.jobs for device in devices(service)] == [[loan.id]] * 8, "who has them still"
    assert list(told) == ["succeeded 1", "failed 2", "backoff 3", "stopping 4", "reserved 5", "queued 6", "queued 7",
                          "cancelled 8"]  # fmt: skip
    assert "succeeded" in told["succeeded 1"]
    assert "exit code 3" in told["failed 2"]
    assert "try 2 of 2" in told["backoff 3"]
    assert "being stopped (preempted by job-5 of vision); it has 3 s" in told["stopping 4"]
    assert "job-4" in told["reserved 5"]
    assert "- 1 job of its VC is ahead of it in line: job-6" in told["queued 7"]
    assert "was cancelled" in told["cancelled 8"]


async def test_plan(engine: Engine) -> None:
    """Now, later or never; it changes nothing, and counts those of its own line."""
    service = LocalService(engine)
    last = engine.last_event
    plan = planned(service, "true", gpus=4)
    assert plan.outcome == "now"
    assert len(plan.placement[0].devices) == 4
    assert planned(service, "true", gpus=5).outcome == "never"
    assert engine.last_event == last
    loan = await service.submit(wish("sleep", "600", vc="research", gpus=8, priority=-1), OWNER)
    assert planned(service, "true", gpus=4).victims == [loan.name]
    for gpus, priority in ((3, 0), (2, 0), (8, -1)):
        await service.submit(wish("sleep", "600", gpus=gpus, priority=priority), OWNER)
    plan = planned(service, "true", gpus=1)
    assert (plan.outcome, plan.placement, plan.victims) == ("waits", [], [])
    assert plan.reasons[-1]["kind"] == "behind others", plan.reasons
    assert "job-3" in plan.text
    assert "job-4" not in plan.text
    assert planned(service, "true", gpus=5).outcome == "never", "whoever is before it"
    plan = planned(service, "true", priority=-1)
    assert plan.outcome == "waits"
    assert "job-4" in plan.text
    assert "job-3" not in plan.text


async def test_plan_where_jobs_are_passed(engine: Engine) -> None:
    """It said that it would wait behind jobs that do not fit, and it started at once."""
    service, spec = LocalService(engine), engine.cluster.spec
    for policy, outcome in (("fair:patience=600", "now"), ("greedy", "now"), ("yarn-cs", "waits")):
        vcs = tuple(replace(vc, policy=policy) for vc in spec.virtual_clusters)
        engine.reconfigure(replace(spec, virtual_clusters=vcs))
        runs = await service.submit(wish("sleep", "600", gpus=2), OWNER)
        waits = await service.submit(wish("sleep", "600", gpus=4), OWNER)
        assert planned(service, "true", gpus=1).outcome == outcome
        for job in (waits, runs):
            await service.cancel(job.id, "", now=True)
        while not engine.find(runs.id).state.ended:
            await asyncio.sleep(0.01)


async def test_plan_of_one_that_only_a_loan_is_enough_for(engine: Engine) -> None:
    """It was "never", and then taken: early, it runs on what others leave idle."""
    service = LocalService(engine)
    assert planned(service, "true", gpus=8).outcome == "never"
    assert planned(service, "true", gpus=8, early=True).outcome == "now"
    await service.submit(wish("sleep", "600", gpus=1), OWNER)
    plan = planned(service, "true", gpus=8, early=True)
    assert plan.outcome == "waits"
    assert "idle" in plan.text
    assert planned(service, "true", gpus=9, early=True).outcome == "never"


# -- output -----------------------------------------------------------------------------------------------------------


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


async def test_output_by_pages(engine: Engine, tmp_path: Path) -> None:
    """It comes whole however small they are; what is no text is shown as far as it can be."""
    text = "aя深🚀\n" * 20
    (tmp_path / "text").write_text(text)
    service = await ran(engine, "cat", str(tmp_path / "text"))
    for limit in (1, 2, 3, 4, 5, 7, 64, 100_000):  # pages that were smaller than a character cut it
        found, pages = read_all(service, "1", limit)
        assert found == text
        assert pages >= len(text.encode()) // max(4, limit)
    size = len(text.encode())
    assert service.log("1", 0, None, 2**60, 100) == schema.LogPage(text="", offset=size, next=size, end=True)
    odd = b"\xff\xfe a \xe6\xb7 b \xf0\x9f\x9a \x80\x80\x80\x80\x80 \xe6\xb7"
    (tmp_path / "text").write_bytes(odd)
    await ran(engine, "cat", str(tmp_path / "text"))
    whole = odd.decode(errors="replace")
    for limit in (1, 3, 8, 100):
        assert read_all(service, "2", limit)[0].replace("�", "") == whole.replace("�", "")


async def test_tail_begins_with_a_whole_character(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("深" * 100)
    service = await ran(engine, "cat", str(tmp_path / "text"))
    pages = [service.log("1", 0, None, -back, 1000) for back in (1, 2, 3, 4, 5, 6, 299, 300, 301, 10_000)]
    assert [page.text for page in pages] == ["", "", *("深" * n for n in (1, 1, 1, 2, 99, 100, 100, 100))]
    assert all(page.next == 300 for page in pages)
    assert all(page.offset + len(page.text.encode()) == page.next for page in pages)


async def test_output_is_streamed_without_a_wait(engine: Engine, tmp_path: Path) -> None:
    # a page that ended before a character's last byte was taken for the end of what is there: 2.5 MB a second of UTF-8
    class NeverWaiting(LocalService):
        async def log_grown(self, ref: str, rank: int, attempt: int | None, offset: int) -> None:
            raise AssertionError(f"it waited at {offset}")

    text = "深" * routes.LOG_BYTES_AT_ONCE
    (tmp_path / "text").write_text(text)
    await ran(engine, "cat", str(tmp_path / "text"))
    service = NeverWaiting(engine)
    first = service.log("1", 0, None, 0, routes.LOG_BYTES_AT_ONCE)
    events = [event.data async for event in routes.output(service, "1", 0, None, first)]
    assert "".join(json.loads(str(data))["text"] for data in events) == text


async def test_part_of_a_character_is_waited_for(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # programs write in blocks, and a follower came between two of them: the character was shown as two broken ones
    first, second, go = tmp_path / "1", tmp_path / "2", tmp_path / "go"
    whole = "深".encode()
    first.write_bytes(b"a" + whole[:2])
    second.write_bytes(whole[2:] + b"b")
    looks = 0

    class Watched(LocalService):
        def log(self, ref: str, rank: int, attempt: int | None, offset: int, limit: int) -> schema.LogPage:
            nonlocal looks
            looks += 1
            return super().log(ref, rank, attempt, offset, limit)

    monkeypatch.setattr("hived.server.local_service._POLL_S", 0.01)
    service = Watched(engine)
    await service.submit(wish("sh", "-c", f"cat {first}; {gate(go)}; cat {second}; {STAYS}"), OWNER)
    while service.log("1", 0, None, 0, 100).next == 0:
        await asyncio.sleep(0.01)
    pages = [service.log("1", 0, None, 0, 100), service.log("1", 0, None, 1, 100), service.log("1", 0, None, 1, 1)]
    assert [(page.text, page.next, page.end) for page in pages] == [("a", 1, False), ("", 1, False), ("", 1, False)]
    looks = 0
    grown = asyncio.create_task(service.log_grown("1", 0, None, 1))
    while looks < 3:
        await asyncio.sleep(0.01)
    assert not grown.done(), "there is no character yet"
    go.touch()
    await grown
    assert service.log("1", 0, None, 1, 100).text.startswith("深b")


async def test_output_of_attempts_and_tasks(engine: Engine) -> None:
    script = "echo $HIVED_ATTEMPT.$HIVED_RANK; [ $HIVED_ATTEMPT = 2 ]"
    service = await ran(engine, "sh", "-c", script, tasks=2, retries=1, backoff_s=0.0)
    assert service.log("1", 1, None, 0, 100).text == "2.1\n"
    assert service.log("1", 0, 2, 0, 100) == schema.LogPage(text="2.0\n", offset=0, next=4, end=True)
    assert service.log("1", 0, 1, 0, 100).end
    for rank, attempt in ((2, None), (0, 3), (0, 0)):
        with pytest.raises(NotFoundError):
            service.log("1", rank, attempt, 0, 100)
    # that of an earlier start has an end even if it is gone
    script = f"[ $HIVED_RETRIES = 1 ] || exit 1; {STAYS}"
    flaky = engine.submit(shell("vision", script, retries=1, backoff_s=0.01))
    await printed(engine, flaky, "here")
    shutil.rmtree(engine.task(flaky, 0, 1).folder)
    assert service.log(str(flaky.id), 0, 1, 0, 100).end


async def test_output_of_a_job_that_never_ran(engine: Engine) -> None:
    """There is none yet, and none if it is withdrawn."""
    service = LocalService(engine)
    await service.submit(wish("sleep", "600", gpus=4), OWNER)
    await service.submit(wish("true", gpus=4), OWNER)
    assert not service.log("2", 0, None, 0, 100).end
    await service.cancel("2", "ann")
    assert service.log("2", 0, None, 0, 100).end
    await service.log_grown("2", 0, None, 0)
    # nobody had claimed it, so it was taken for one that is yet to come, for as long as the pause before the next try
    (engine.folder / "jobs").rename(engine.folder / "of the first")
    (engine.folder / "jobs").write_text("")  # no folder can be made below it
    await service.submit(wish("true", vc="speech", retries=1, backoff_s=300.0), OWNER)
    await state(engine, engine.find("3"), JobState.BACKOFF)
    assert service.log("3", 0, None, 0, 100).end


async def test_reading_never_blocks(engine: Engine) -> None:
    """Whatever is in the place of the output."""
    # a FIFO held up the engine for good, and a folder was an internal error
    service = await ran(engine, "true")
    output = engine.task(engine.find("1"), 0).output
    output.unlink()
    places: dict[str, Callable[[], object]] = {
        "gone": lambda: None,
        "a FIFO": lambda: os.mkfifo(output),
        "a link": lambda: output.symlink_to("/dev/zero"),
        "a loop": lambda: output.symlink_to("output"),
        "a folder": output.mkdir,
    }
    for what, make in places.items():
        make()
        page = service.log("1", 0, None, 0, 100)
        assert (page.text, page.end) == ("", True), what
        if what not in ("gone", "a folder"):
            output.unlink()


# -- events and the machine -------------------------------------------------------------------------------------------

SPEC = """
physicalCluster:
  cellTypes: {NODE: {childCellType: GPU, childCellNumber: 8, isNodeLevel: true}}
  physicalCells: [{cellType: NODE, cellAddress: node}]
virtualClusters: {vision: {virtualCells: [{cellType: NODE.GPU, cellNumber: 4}]}}
"""


async def test_events_are_sentences(engine: Engine) -> None:
    """They come page by page, or of one job; the log of decisions as lines."""
    service = LocalService(engine)
    loan = await service.submit(wish("sleep", "600", vc="research", gpus=8, priority=-1), ANN)
    owner = await service.submit(wish("true", gpus=4), OWNER)
    await ended(engine, engine.find(str(owner.id)))
    await service.submit(wish("false", vc="speech", retries=1, backoff_s=0.0), OWNER)
    await ended(engine, engine.find("3"))
    await service.drain(schema.Drain(device=0), "ann")
    await service.drain(schema.Drain(device=0, undo=True), "ann")
    former = service.spec()
    await service.reconfigure(schema.SpecText(yaml=SPEC), "ann")
    present = service.spec()
    assert (former.loaded_at < present.loaded_at, present.source, present.vcs) == (
        True, "the spec that ann applied", ["vision"],
    )  # fmt: skip
    engine.job_scheduler.set_health([("node", 1)], "NVML: lost", engine.clock())
    engine.job_scheduler.set_health([("node", 1)], None, engine.clock())
    await service.cancel(str(loan.id), "ann")
    await state(engine, engine.find(str(loan.id)), JobState.CANCELLED)
    everything = service.events(0, 1000, None)
    assert [event.seq for event in everything.events] == list(range(1, everything.last + 1))
    kinds = {event.kind for event in everything.events}
    assert kinds >= {
        "submitted", "started", "stopping", "task_ended", "requeued", "reserved", "retrying", "queued",
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
    assert {event.job for event in own} == {"1"}
    assert [event.seq for event in service.events(-1, 2, None).events] == [everything.last - 1, everything.last]
    lines = list(service.decisions())
    assert '"is":"Opened"' in lines[0]
    assert all(line.startswith("{") for line in lines)


async def test_wrong_spec_changes_nothing(engine: Engine) -> None:
    service = LocalService(engine)
    last, spec = engine.last_event, engine.cluster.spec
    for text in ("", "a: [", "physicalCluster: 3", SPEC.replace("cellNumber: 4", "cellNumber: 9"),
                 "[" * 5000, "a: &a [*a]", "\x00", "!!python/object:os.system {}"):  # fmt: skip
        with pytest.raises(InputError):
            await service.reconfigure(schema.SpecText.model_construct(yaml=text), "ann")
    assert (engine.last_event, engine.cluster.spec) == (last, spec)


async def test_dry_run_of_a_spec(engine: Engine) -> None:
    """It says what the same request would then do, and changes nothing."""
    service = LocalService(engine)
    stays = await service.submit(wish("sleep", "600", gpus=1), OWNER)
    loses = await service.submit(wish("sleep", "600", vc="speech", gpus=2), OWNER)
    await service.submit(wish("sleep", "600", vc="research", gpus=8, priority=-1), OWNER)
    await service.drain(schema.Drain(device=7), "ann")
    for job in (stays, loses):
        await state(engine, engine.find(job.id), JobState.RUNNING)
    text = service.spec().text
    new = schema.SpecText(
        yaml=SPEC.replace("cellNumber: 4}]", "cellNumber: 4}], members: [root, nosuch], policy: fair")
    )
    last, spec, lines = engine.last_event, engine.cluster.spec, list(service.decisions())
    foreseen = await service.reconfigure(new, "ann", dry_run=True)
    assert (engine.last_event, engine.cluster.spec, service.spec().text) == (last, spec, text)
    assert list(service.decisions()) == lines
    engine.cluster.validate()
    done = await service.reconfigure(new, "ann")
    assert (foreseen.dry_run, done.dry_run) == (True, False)
    assert foreseen.model_copy(update={"dry_run": False}) == done
    assert [job.model_dump() for job in done.downgraded] == [
        {"name": loses.name, "vc": "speech", "gpus": 2, "why": "virtual cluster speech is no more"}
    ]
    assert stays.name in done.kept
    assert (done.requeued, done.on_removed_devices) == ([], [])
    assert done.warnings == [
        "this machine has no user nosuch, whom vision has among its members",
        "1 waiting job of research can never start: it is no more",
    ]
    fewer = new.yaml.replace("childCellNumber: 8", "childCellNumber: 4")
    shrunk = await service.reconfigure(schema.SpecText(yaml=fewer), "ann", dry_run=True)
    lacking = {job.name: job.why for job in shrunk.on_removed_devices}
    assert lacking.keys() <= {stays.name, loses.name}
    assert set(lacking.values()) <= {"some of its devices are no more (on node)"}


async def test_jobs_with_reservations_under_a_new_spec(engine: Engine) -> None:
    """It was told that they are cancelled, and they only wait again."""
    service = LocalService(engine)
    loan = await service.submit(wish("sh", "-c", "trap '' TERM; echo here; sleep 600", vc="research", gpus=8,
                                     priority=-1, grace_s=30.0), OWNER)  # fmt: skip
    await printed(engine, engine.find(loan.id), "here")
    waits = await service.submit(wish("true", gpus=2), OWNER)
    assert engine.find(waits.id).state is JobState.RESERVED
    foreseen = await service.reconfigure(schema.SpecText(yaml=service.spec().text), "ann", dry_run=True)
    assert [(job.name, job.gpus, job.why) for job in foreseen.requeued] == [
        (waits.name, 2, "GPUs that were kept for it are kept no more")
    ]
    assert engine.find(waits.id).state is JobState.RESERVED
    await service.cancel(loan.id, "ann", now=True)


async def test_refused_spec_is_told(engine: Engine) -> None:
    """Until one is in force; what was only asked is not."""
    service = LocalService(engine)
    wrong = schema.SpecText(yaml=SPEC.replace("cellNumber: 4}]", "cellNumber: 4}], policy: fare"))
    with pytest.raises(InputError):
        await service.reconfigure(wrong, "ann", dry_run=True)
    assert service.spec().problem == ""
    with pytest.raises(InputError):
        await service.reconfigure(wrong, "ann")
    assert "unknown policy 'fare'" in service.spec().problem
    await service.reconfigure(schema.SpecText(yaml=SPEC), "ann")
    assert service.spec().problem == ""


async def test_spec_made_from_one_that_is_not_in_force(engine: Engine) -> None:
    """Two at once: what the second has been asked about is not what would happen."""
    service = LocalService(engine)
    seen = service.spec()
    mine = schema.SpecText(yaml=seen.text, instead_of=seen.loaded_at)
    await service.reconfigure(mine, "ann", dry_run=True)
    await service.reconfigure(schema.SpecText(yaml=SPEC), "ben")
    for dry_run in (True, False):
        with pytest.raises(ConflictError, match=r"another spec has come into force meanwhile \(the spec that ben app"):
            await service.reconfigure(mine, "ann", dry_run=dry_run)
    assert (service.spec().text, service.spec().problem) == (spec_text(parse_spec(SPEC, "")), "")
    await service.reconfigure(schema.SpecText(yaml=seen.text, instead_of=service.spec().loaded_at), "ann")


async def test_policy_that_cannot_be_made_ends_no_engine(engine: Engine) -> None:
    """It was taken for one that fails at work, and jobs were without an engine."""
    service = LocalService(engine)
    for policy in ("nowhere:Policy", "os:getcwd", "gandiva", "json:JSONDecoder"):
        rules = f"policy: '{policy}'" + (", safety: exact" if policy == "gandiva" else "")
        wrong = schema.SpecText(yaml=SPEC.replace("cellNumber: 4}]", f"cellNumber: 4}}], {rules}"))
        for dry_run in (True, False):
            with pytest.raises(InputError, match=f"the new spec: policy {policy}: ") as refused:
                await service.reconfigure(wrong, "ann", dry_run=dry_run)
            assert refused.value.code == "invalid"
    two_ways = SPEC.replace("vision: {", "speech: {policy: antman}, vision: {policy: gandiva, ")
    with pytest.raises(InputError, match=r"the new spec: policy (gandiva|antman): its jobs cannot share GPUs"):
        await service.reconfigure(schema.SpecText(yaml=two_ways), "ann", dry_run=True)
    assert engine.failed is not None
    assert not engine.failed.done()
    assert "policy json:JSONDecoder: " in service.spec().problem


async def test_text_of_the_spec_is_the_spec(engine: Engine) -> None:
    """Put back, it changes nothing; a trade is no part of it."""
    service = LocalService(engine)
    base, text = engine.trading.base, service.spec().text
    assert list(changes(base, parse_spec(text, "it"))) == []
    offered = schema.NewOffer(vc="vision", cells=schema.Cells(cell_type="SOCKET"), duration_s=3600.0)
    asked = schema.NewRequest(vc="speech", cells=schema.Cells(cell_type="SOCKET"), duration_s=600.0)
    await service.market.offer(offered)
    await service.market.request(asked)
    assert engine.cluster.spec.virtual_clusters != base.virtual_clusters
    assert service.spec().text == text
    await service.reconfigure(schema.SpecText(yaml=text), "ann")
    assert service.spec().text == text


def test_jobs_that_share_a_device() -> None:
    # of three jobs on two GPUs only the two of which each had one last were named
    driver = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    jobs = [driver.submit(driver_job("vision")) for _ in range(3)]
    driver.pass_time(60)
    service = LocalService(Seen(driver))  # type: ignore[arg-type]
    expected = [
        [job.key for job in jobs if ("node", device.device) in job.devices()] for device in devices(service, "node")
    ]
    assert [device.jobs for device in devices(service, "node")] == expected
    assert sorted(map(len, expected)) == [0, 0, 1, 2]
    assert {row[-1] for row in node_rows(service.nodes(None, 0, 9).nodes)} == {
        "-",
        *map(", ".join, filter(None, expected)),
    }


async def test_devices(engine: Engine) -> None:
    """They show their job and their fault, page by page."""
    service = LocalService(engine)
    job = await service.submit(wish("sleep", "600", gpus=2), OWNER)
    held = {device for task in job.tasks for device in task.devices}
    free = next(device for device in range(8) if device not in held)
    (node,) = (await service.drain(schema.Drain(node="node", device=free), "ann")).nodes
    (drained,) = node.devices
    assert (drained.device, drained.drained, drained.healthy, drained.jobs) == (free, True, True, [])
    engine.job_scheduler.set_health([("node", 7)], "NVML: lost", engine.clock())
    found = devices(service)
    assert [device.device for device in found] == list(range(8))
    assert [len(service.nodes(None, offset, 3).nodes) for offset in (0, 1, 2**63 - 1)] == [1, 0, 0]
    assert devices(service, "node") == found
    with pytest.raises(NotFoundError, match="the spec has no node 'nodes'"):
        service.nodes("nodes", 0, 1)
    assert {device.device for device in found if device.jobs == [job.id]} == held
    assert {device.device for device in found if device.state == "used"} == held
    assert [(d.device, d.why) for d in found if not d.healthy] == [(7, "NVML: lost")]
    await service.drain(schema.Drain(), "ann")
    assert all(device.drained for device in devices(service) if device.healthy)
    for wrong in (schema.Drain(node="x"), schema.Drain(device=8), schema.Drain(node="node", device=9)):
        with pytest.raises(NotFoundError):
            await service.drain(wrong, "ann")
    with pytest.raises(RequestError, match="undoing a drain sends nobody away"):
        await service.drain(schema.Drain(undo=True, now=True), "ann")


async def test_engine_and_usage(engine: Engine) -> None:
    service = LocalService(engine)
    await service.submit(wish("sleep", "600", gpus=2), OWNER)
    spec, usage, what = service.spec(), service.usage(), service.engine()
    assert (spec.gpus, spec.nodes, spec.vcs) == (8, 1, ["vision", "speech", "research"])
    assert (what.engine, what.ready, what.simulated, what.replica) == ("local", True, True, None)
    assert (usage.guaranteed, usage.bad, usage.jobs["running"]) == (2, 0, 1)
    assert [(vc.name, vc.reserved, vc.used) for vc in usage.vcs] == [
        ("vision", 4, 2),
        ("speech", 2, 0),
        ("research", 2, 0),
    ]
    assert usage.safety_margin is not None
    assert usage.safety_margin >= 0
    vc = service.vc("vision")
    assert ([job.id for job in vc.running], vc.waiting, vc.cells[0].number) == (["1"], [], 1)
    with pytest.raises(NotFoundError, match="there is no virtual cluster 'nobody'; there are vision, speech, research"):
        service.vc("nobody")

    def broken() -> None:
        raise InvariantError("a margin is -1")

    engine.cluster.check_safety = broken  # type: ignore[method-assign,assignment]
    assert service.usage().safety_margin == -1


async def test_grace_is_within_what_the_spec_allows(engine: Engine) -> None:
    """What nobody has asked for is less, too, and a job that is submitted again has what is allowed by then."""
    service, ben = LocalService(engine), Person("ben")
    engine.job_users = JobUsers(max(1, os.getuid()), shared=True)

    def allow(grace: int | None, of_loans: int) -> None:
        access = AccessSpec(("ben",), max_grace_seconds=grace)
        spec = engine.cluster.spec
        vcs = (replace(vc, access=access, opportunistic_grace_seconds=of_loans) for vc in spec.virtual_clusters)
        engine.reconfigure(replace(spec, virtual_clusters=tuple(vcs)))

    async def grace(person: Person, **more: Any) -> float:
        return engine.find((await service.submit(wish("true", **more), person)).id).spec.grace_s

    allow(None, 30)
    slow = await service.submit(wish("true", grace_s=3600.0), ben)
    plain, loan = await service.submit(wish("true"), ben), await service.submit(wish("true", priority=-1), ben)
    allow(20, 5)
    assert [await grace(ben), await grace(ben, priority=-1), await grace(ben, grace_s=20.0)] == [20, 5, 20]
    assert await grace(service.owner, grace_s=3600.0) == 3600, "who is no member has no limits of members"
    refusal = r"ben may not have a job with 21 s to end in vision: maxGraceSeconds of a member is 20; ask an operator"
    with pytest.raises(ForbiddenError, match=refusal):
        await service.submit(wish("true", grace_s=21.0), ben)
    again = [await service.resubmit(job.id, ben) for job in (slow, plain, loan)]
    assert [engine.find(job.id).spec.grace_s for job in again] == [20, 20, 5]


async def test_plan_is_within_the_limits_of_who_asks(engine: Engine) -> None:
    """It said "now" of what was then held, or refused."""
    service, ben = LocalService(engine), Person("ben")
    access = AccessSpec(("ben",), max_priority=5, max_gpus=2)
    spec = engine.cluster.spec
    engine.reconfigure(
        replace(spec, virtual_clusters=tuple(replace(vc, access=access) for vc in spec.virtual_clusters))
    )

    rules = service.vc("vision").rules
    assert rules is not None
    assert (rules.members, rules.max_priority, rules.max_gpus, rules.max_jobs) == (("ben",), 5, 2, None)

    def plan(person: Person, **more: Any) -> tuple[str, str]:
        (found,) = service.plan(schema.PlanRequest(job=wish("true", **more)), person).jobs
        return found.outcome, found.text

    assert plan(ben, gpus=2)[0] == "now"
    engine.submit(shell("vision", STAYS, user="ben", is_limited=True))
    await asyncio.sleep(0)
    assert plan(ben, gpus=1)[0] == "now"
    outcome, text = plan(ben, gpus=2)
    assert (outcome, text) == (
        "waits",
        "2 GPUs of vision: held: maxGpus of a member of vision is 2, and other jobs of ben in line or at work leave no "
        "room for 2 GPUs",
    )
    assert plan(ben, gpus=2, priority=-1)[0] == "now", "a loan is beside it"
    assert plan(service.owner, gpus=2)[0] == "now"
    for person, more, words in (
        (ben, {"gpus": 3}, "ben may not have 3 GPUs in vision"),
        (ben, {"priority": 6}, "maxPriority of its members is 5"),
        (Person("eve"), {}, "eve may not submit to vision, of which only members run jobs"),
    ):
        with pytest.raises(ForbiddenError, match=words):
            plan(person, **more)


async def test_array_by_one_name(engine: Engine) -> None:
    """`12_3` is one of it; after its id or name, a job waits for all of it. It waited for the last alone."""
    service = LocalService(engine)
    first = await service.submit(wish("sh", "-c", STAYS, array="1-3,7"), ANN)
    assert [service.named(ref, "ann") for ref in (f"{first.id}_7", "job_7", "job")] == ["1_7", "4_7", "4"]
    assert [engine.find(ref).id for ref in ("1_1", "1_3", "1_7", "job_2", "3_2")] == [1, 3, 4, 2, 2]
    for ref in ("1_4", "1_", "1_x", "_1", "9_1", "1_99999999999999999999"):
        with pytest.raises(NotFoundError):
            engine.find(ref)

    async def waits(ref: str, when: str = "ok") -> list[int]:
        job = await service.submit(wish("true", after=[{"job": ref, "when": when}]), ANN)
        return [number for number, _ in engine.find(job.id).spec.waits_for]

    assert await waits("1") == await waits("1", "any") == [1, 2, 3, 4]
    assert await waits("1_2") == await waits("2") == await waits("job-2") == [2]
    last = await service.submit(wish("true", name="other", array="0-1"), ANN)
    assert await waits("other") == [int(last.id), int(last.id) + 1]
    with pytest.raises(RequestError, match="after: would be more than 100,000 waits"):
        await service.submit(wish("true", array="1-9999", after=[{"job": "1"}] * 11), ANN)
    engine.cancel("2")
    await ended(engine, engine.find("2"))
    with pytest.raises(ConflictError, match="after job-2:ok: job-2 is cancelled already"):
        await waits("1")


async def test_output_that_was_deleted(engine: Engine) -> None:
    """It was said to have printed nothing."""
    service = await ran(engine, "echo", "hello")
    assert service.log("1", 0, None, 0, 100).text == "hello\n"
    shutil.rmtree(engine.folder / "jobs" / "1")
    with pytest.raises(NotFoundError, match="the files of job-1 are not there any more: hived up --keep"):
        service.log("1", 0, None, 0, 100)


async def test_names_that_look_as_of_an_array(engine: Engine) -> None:
    """A job whose name has an underscore was not found beside one of the name before that."""
    service = LocalService(engine)
    await service.submit(wish("true", name="train"), ANN)
    await service.submit(wish("true", name="train_big"), ANN)
    other = await service.submit(wish("true", name="train_5"), OWNER)
    assert engine.find(service.named("train_5", "ann")).name == other.name
    assert engine.find(service.named("train_big-2", "ann")).id == engine.find(service.named("train_big", "ann")).id == 2
    assert service.named("train_5", "ann") == "train_5"
    assert service.named("train_nothing", "ann") == "train_nothing"
