"""What one user may cost the others: time, memory, disk, streams; and names that several have."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from hived.access import Person
from hived.engine.job import JobFilter
from hived.engine.states import JobState
from hived.engines.local import engine as engine_module
from hived.engines.local.engine import Engine
from hived.engines.local.strangers import strangers
from hived.engines.local.tasks import Task
from hived.errors import ConflictError, ForbiddenError, RequestError, StorageError
from hived.server import limits
from hived.server.limits import Turns
from hived.server.local_service import MOST_OF_A_JOB, LocalService
from hived.server.permits import Permits
from hived.server.schema import Editing, Submission
from hived.server.service import MOST_IN_A_LIST
from hived.spec.compiled import AccessSpec

from ..engines.driver import small_spec
from ..engines.living import Lives, ended, running, shell, state
from ..kubernetes.virtual_time import played
from ..server.api.client import error
from ..server.fakes import FakeService, local_app

ANN, BOB = (Person(name, owns=True) for name in ("ann", "bob"))


@pytest.fixture
def lives(tmp_path: Path) -> Any:
    made = Lives(tmp_path / "state")
    made.folder.mkdir()
    return made


def submission(name: str, **more: Any) -> Submission:
    return Submission.model_validate({"vc": "vision", "command": ["true"], "name": name, "hold": True} | more)


def test_waits_are_counted_before_they_are_read(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred times an array had taken a minute to be refused."""
    monkeypatch.setattr(engine_module, "MOST_AWAITED", 100)
    reads: list[int] = []

    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        arrays = [(await service.submit(submission(f"a{n}", array="1-30"), ANN)).id for n in range(4)]
        before, plain = engine.array, reads

        def counted(job: Any) -> Any:
            plain.append(job.id)
            return before(job)

        monkeypatch.setattr(engine, "array", counted)
        with pytest.raises(RequestError, match="more than 100 waits"):
            await service.submit(submission("b", after=[{"job": ref} for ref in arrays] * 25), ANN)
        assert len(reads) <= 3
        same = await service.submit(submission("b", after=[{"job": arrays[0]}] * 3), ANN)
        assert len(engine.find(same.id).spec.waits_for) == 30
        with pytest.raises(RequestError, match="more than 100 waits"):
            await service.submit(submission("c", after=[{"job": arrays[0]}], array="1-4"), ANN)

    lives.live(story)


def test_length_of_what_is_kept(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        large = {f"V{n}": "x" * 100_000 for n in range(2)}
        job = await service.submit(submission("most", environment=large), ANN)
        assert engine.find(job.id).spec.environment == large
        words = r"environment: the environment and the command are 300,0.. bytes, and may be 262,144; put"
        with pytest.raises(RequestError, match=words):
            await service.submit(submission("more", environment=large | {"W": "x" * 100_000}), ANN)
        with pytest.raises(RequestError, match="700 times, and may be 134,217,728 in all"):
            await service.submit(submission("many", environment=large, array="1-700"), ANN)
        await service.submit(submission("long", command=["echo", "y" * 100_000, "z"]), ANN)
        listed, _ = service.jobs(JobFilter(), 10, None).jobs
        assert listed.process is not None
        assert sum(map(len, listed.process.command)) <= MOST_IN_A_LIST + 3
        assert listed.process.command[-1] == "..."
        whole = service.shown(service.find("2")).process
        assert whole is not None
        assert whole.command[-1] == "z"

    lives.live(story)
    assert MOST_OF_A_JOB == 262_144


def test_a_spec_is_written_once(lives: Lives) -> None:
    """Not again at each change of a job's state; and again where it is edited."""
    written: list[str] = []

    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        job = engine.find((await service.submit(submission("once", environment={"V": "secret"}), ANN)).id)
        engine.store._db.set_trace_callback(lambda text: written.append(text))
        engine.release("1")
        await ended(engine, job)
        held = engine.find((await service.submit(submission("twice"), ANN)).id)
        engine.edit(str(held.id), {"gpus": 2})

    lives.live(story)
    assert not [text for text in written if "secret" in text]
    with closing(sqlite3.connect(lives.folder / "hived.db")) as db:
        rows = db.execute("SELECT state, spec FROM jobs ORDER BY id").fetchall()
    assert [(state, json.loads(spec)["gpus"]) for state, spec in rows] == [("succeeded", 1), ("held", 2)]


def test_an_environment_is_kept_for_the_last_attempt(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        job = engine.submit(shell("vision", "exit 1", retries=3, backoff_s=0.0))
        await ended(engine, job)
        kept = [number for number in range(1, 5) if (lives.folder / "jobs" / "1" / f"{number}/0/task.json").exists()]
        assert (job.attempt, kept) == (4, [4])

    lives.live(story)


def test_names_of_others(lives: Lives) -> None:
    """Who calls a job as an index of another's array is called takes nothing of theirs away."""

    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        for name, who in (("train_3", BOB), ("exp-7", BOB)):
            await service.submit(submission(name), who)
        own = await service.submit(submission("train", array="1-5"), ANN)
        assert engine.find(service.named("train_3", "ann")).spec.array_index == 3
        assert engine.find(service.named("train_3", "bob")).spec.user == "bob"
        assert service.named("train_3", "cleo") == "train_3"
        assert engine.find("train_3").spec.user == "bob"
        assert engine.find(service.named("train", "ann")).spec.array_id == int(own.id)
        exp = await service.submit(submission("exp-2"), ANN)  # bob's is called so in full
        assert engine.find("exp-7-2").spec.user == "bob"
        mine = await service.submit(submission("exp-7-2"), ANN)
        assert service.named("exp-7-2", "ann") == mine.id
        assert service.named("exp-7-2", "bob") == "2"
        assert service.named("exp-2", "ann") == exp.id

    lives.live(story)


def test_a_limit_that_cannot_be_written(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk it was said to be in force, and the job ended at the one before."""

    async def story(engine: Engine) -> None:
        (job,) = await running(engine, shell("vision", "echo here; exec sleep 600", time_limit_s=500.0))

        def full(self: Task, limit_s: float | None) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        real = Task.limit_time
        monkeypatch.setattr(Task, "limit_time", full)
        with pytest.raises(StorageError, match=r"No space left on device.; .* keeps its time limit"):
            engine.edit(str(job.id), {"time_limit_s": 3600.0})
        assert job.spec.time_limit_s == 500.0
        monkeypatch.setattr(Task, "limit_time", real)
        told: list[float | None] = []
        monkeypatch.setattr(Task, "limit_time", lambda self, limit_s: told.append(limit_s))
        with pytest.raises(Exception, match="asks for that already"):
            engine.edit(str(job.id), {"time_limit_s": 500.0})
        assert told[-1] == 500.0
        engine.edit(str(job.id), {"time_limit_s": 3600.0})
        assert told[-1] == 3600.0
        engine.cancel(str(job.id))
        await ended(engine, job)

    lives.live(story)


def test_who_is_a_member_no_more(lives: Lives) -> None:
    """They do not have a job ask for more, whatever its priority; how long their own runs is theirs to say."""
    spec = small_spec()
    access = AccessSpec(members=("bob",))
    lives.spec = replace(spec, virtual_clusters=tuple(replace(vc, access=access) for vc in spec.virtual_clusters))
    gone = Person("ann")

    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        for priority in (-1, 0):
            number = str((await service.submit(submission("job", priority=priority), Person("ann", owns=True))).id)
            with pytest.raises(ForbiddenError, match="which members do"):
                await service.edit(number, Editing(gpus=2), gone)
            edited = await service.edit(number, Editing(time_limit_s=60.0), gone)
            assert edited.process is not None
            engine.cancel(number)

    lives.live(story)


def test_what_somebody_else_holds(lives: Lives) -> None:
    """What an operator held, its owner could release at once."""
    spec = small_spec()
    access = AccessSpec(members=("ann", "bob"), admins=("carol",))
    lives.spec = replace(spec, virtual_clusters=tuple(replace(vc, access=access) for vc in spec.virtual_clusters))

    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        job = await service.submit(submission("job", hold=False, gpus=8, priority=-1), Person("ann", owns=True))
        blocks = engine.submit(shell("vision", "exec sleep 600", gpus=4))
        permits = Permits(service)

        def released_by(name: str) -> bool:
            request = Request({"type": "http", "headers": [], "state": {"person": Person(name)}})
            if name == "carol":
                return permits.to_release(request, job.id)[1] == job.id
            with pytest.raises(
                ForbiddenError, match=r"ann may not release job-1: root holds it; ask an admin of vision"
            ):
                permits.to_release(request, job.id)
            return False

        if engine.find(job.id).state.waits:
            engine.hold(job.id, "root")
        else:
            engine.requeue(job.id, True, "root")
        assert [released_by(name) for name in ("ann", "carol")] == [False, True]
        await state(engine, engine.find(job.id), JobState.HELD)
        assert [released_by(name) for name in ("ann", "carol")] == [False, True]
        assert engine.store.job(job.id).held_by == "root"  # type: ignore[union-attr]
        engine.release(job.id, "carol")
        held = engine.submit(shell("vision", "exit 0", user="ann", hold=True))
        assert service.holder_of(str(held.id)) == ""
        with pytest.raises(ConflictError, match=r"is held already$"):
            engine.hold(str(held.id), "ann")
        engine.hold(str(held.id), "root")  # it was refused, and the owner let it go
        assert service.holder_of(str(held.id)) == "root"
        for name in ("root", "ann"):
            with pytest.raises(ConflictError, match="is held already by root"):
                engine.hold(str(held.id), name)
        assert [event.data["by"] for event in engine.store.events(0, 1000, held.id) if event.kind == "held"] == [
            "",
            "root",
        ]
        engine.cancel(str(blocks.id))
        engine.cancel(job.id)
        engine.cancel(str(held.id))
        await ended(engine, blocks, engine.find(job.id))

    lives.live(story)


@played
async def test_streams_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has all of them loses one to somebody who has none."""
    monkeypatch.setattr(limits, "STREAMS", 4)
    ended_for: list[int] = []
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()

    guarded = limits.Limits(app)

    def scope(who: Person, number: int) -> dict[str, Any]:
        told = {"person": who, "end_stream": lambda: ended_for.append(number)}
        return {"type": "http", "path": "/v1/events/stream", "state": told, "client": None}

    answers: list[Any] = []

    async def send(message: Any) -> None:
        answers.append(message.get("status"))

    async def nothing() -> Any:
        return {"type": "http.disconnect"}

    mine = [asyncio.create_task(guarded(scope(ANN, n), nothing, send)) for n in range(4)]
    await asyncio.sleep(0)
    await guarded(scope(ANN, 4), nothing, send)
    assert answers[0] == 429
    theirs = [asyncio.create_task(guarded(scope(BOB, 10 + n), nothing, send)) for n in range(2)]
    await asyncio.sleep(0)
    assert ended_for == [0, 1]
    answers.clear()
    await guarded(scope(BOB, 12), nothing, send)
    assert answers[0] == 429, "they have as many by now"
    release.set()
    await asyncio.gather(*mine, *theirs)


@played
async def test_bodies_of_one_person(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService()
    app = local_app(service)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hived") as client:
        answer = await client.post("/v1/drain", content=b" " * 70_000, headers={"Content-Type": "application/json"})
        assert (answer.status_code, error(answer)["code"]) == (413, "too_large")
    seen: list[int] = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        try:
            while (await receive())["more_body"]:
                pass
        except Exception as failed:
            seen.append(getattr(failed, "status_code", 0))
            return
        await hold.wait()

    hold = asyncio.Event()
    guarded = limits.Limits(slow)
    monkeypatch.setattr(limits, "BODIES_BYTES", 2_500)

    def asks(who: Person) -> asyncio.Task[None]:
        sent = [b"x" * 1_000]

        async def receive() -> Any:
            return {"type": "http.request", "body": sent.pop() if sent else b"", "more_body": bool(sent)}

        scope = {"type": "http", "path": "/v1/plan", "state": {"person": who}, "client": None}
        return asyncio.create_task(guarded(scope, receive, lambda _: asyncio.sleep(0)))

    tasks = [asks(ANN) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert seen == [429]
    tasks.append(asks(BOB))
    await asyncio.sleep(0.01)
    assert seen == [429]
    monkeypatch.setattr(limits, "BODY_BYTES", 500)
    for _ in range(5):  # what is refused for its length takes nothing off
        await asks(ANN)
    assert set(seen[1:]) == {413}
    monkeypatch.setattr(limits, "BODY_BYTES", 5_000)
    tasks.append(asks(ANN))
    await asyncio.sleep(0.01)
    assert seen[-1] == 429
    hold.set()
    await asyncio.gather(*tasks)
    assert not guarded._bodies


@played
async def test_turns() -> None:
    """One at a time of each; two in all."""
    turns, inside = Turns(), list[str]()
    most = 0

    async def ask(who: Person) -> None:
        nonlocal most
        async with turns.of({"state": {"person": who}, "client": None}):
            assert who.name not in inside
            inside.append(who.name)
            most = max(most, len(inside))
            await asyncio.sleep(0.001)
            inside.remove(who.name)

    await asyncio.gather(*(ask(who) for who in (ANN, BOB, Person("cleo")) for _ in range(5)))
    assert most == 2
    assert not turns._own


def test_a_program_that_calls_itself_one_of_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy("/usr/bin/sleep", program)
    with subprocess.Popen([program, "600"]) as process:
        try:
            while Path(f"/proc/{process.pid}/comm").read_text().strip() != "nvidia-cuda-mps":
                pass
            monkeypatch.setattr(Path, "stat", as_of(Path(f"/proc/{process.pid}"), 1234))
            said = strangers([process.pid], lambda _: False)
            assert said is not None
            assert "nvidia-cuda-mps (pid" in said
        finally:
            process.kill()


def as_of(path: Path, uid: int) -> Any:
    """``Path.stat`` by which these files are of that user."""
    plain = Path.stat

    def stat(self: Path, **more: Any) -> Any:
        found = plain(self, **more)
        if path in (self, *self.parents):
            return os.stat_result((*found[:4], uid, *found[5:]))
        return found

    return stat
