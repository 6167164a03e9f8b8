"""How much of jobs is kept: the last of what they print, and their files for a while."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from hived.cli.up import _Door
from hived.engine.states import JobState
from hived.engines.local import engine as engine_module
from hived.engines.local.engine import Engine, Keeping
from hived.engines.local.store import Store
from hived.errors import InputError, NotFoundError
from hived.server.local_service import LocalService

from .living import Clock, Lives, ended, gate, printed, shell, state

PATHS = {"PATH": os.environ["PATH"]}
MIB = 1 << 20


def has_holes(folder: Path) -> bool:
    """Whether files there can have holes, and say so."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "sparse").open("wb") as file:
        file.truncate(8 * MIB)
        return os.fstat(file.fileno()).st_blocks * 512 < 8 * MIB


def test_the_last_of_the_output_is_kept(lives: Lives) -> None:
    """At the offsets that it had; a reader goes on where something is left."""
    if not has_holes(lives.folder):
        pytest.skip("files have no holes here")
    # 18 MiB of numbered lines, with stops in which the supervisor looks
    gates = [lives.folder.parent / f"gate-{n}" for n in range(3)]
    lines = "seq -f 'line %09.0f' {} {}; "
    script = "".join(lines.format(n * 440_000, (n + 1) * 440_000 - 1) + gate(of) + "; " for n, of in enumerate(gates))

    async def story(engine: Engine) -> None:
        loud = engine.submit(shell("vision", f"{script} echo here"))
        await state(engine, loud, JobState.RUNNING)
        output = engine.task(loud, 0).output
        for n, of in enumerate(gates):
            printed_so_far = (n + 1) * 440_000 * len("line 000000000\n")
            while not output.is_file() or output.stat().st_size < printed_so_far:
                await asyncio.sleep(0.01)
            while output.stat().st_blocks * 512 > 4 * MIB:  # until it was looked at
                await asyncio.sleep(0.01)
            of.touch()
        await ended(engine, loud)
        status = output.stat()
        assert status.st_size > 17 * MIB
        assert status.st_blocks * 512 < 6 * MIB
        service = LocalService(engine)
        first = service.log("1", 0, None, 0, MIB)
        assert first.offset > 10 * MIB
        assert "\0" not in first.text
        assert first.text.startswith("line "), "it begins within a line"
        assert service.log("1", 0, None, -16 * MIB, MIB).offset == first.offset, "zeros that nobody has printed"
        assert first.text[-5:].count("\n") <= 1
        last = service.log("1", 0, None, -64, 64)
        assert last.text.endswith("line 001319999\nhere\n")
        assert (last.next, last.end) == (status.st_size, True)
        offset, text = 0, ""
        while (page := service.log("1", 0, None, offset, MIB)).next > page.offset:
            offset, text = page.next, text + page.text
        assert len(text.splitlines()) > 100_000

    lives.live(story, keeping=Keeping(output=4 * MIB))


def test_of_one_that_prints_much_in_no_time(lives: Lives) -> None:
    """Nobody had looked before it ended, and all of it stayed."""
    if not has_holes(lives.folder):
        pytest.skip("files have no holes here")

    async def story(engine: Engine) -> None:
        loud = engine.submit(shell("vision", "seq 2000000"))
        await ended(engine, loud)
        status = engine.task(loud, 0).output.stat()
        assert status.st_size > 14 * MIB
        assert status.st_blocks * 512 < 2 * MIB
        assert LocalService(engine).log("1", 0, None, -8, 8).text == "2000000\n"

    lives.live(story, keeping=Keeping(output=1 * MIB))


def test_all_of_it_is_kept_by_default(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        loud = engine.submit(shell("vision", "seq 200000; sleep 1.2; seq 200000; echo here"))
        assert (await printed(engine, loud, "here")).startswith("1\n2\n")
        await ended(engine, loud)

    lives.live(story)


def test_files_of_jobs_are_deleted_after_a_while(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of them stays; links that they have left lead nowhere."""
    monkeypatch.setattr(engine_module, "DELETE_EVERY_S", 0.01)
    looks: list[int] = []
    ended_before = Store.ended_before

    def looking(self: Store, at: float, first: int = 0) -> tuple[list[int], int]:
        looks.append(first)
        return ended_before(self, at, first)

    monkeypatch.setattr(Store, "ended_before", looking)
    clock = Clock()
    precious = lives.folder.parent / "precious"

    async def story(engine: Engine) -> None:
        precious.mkdir()
        (precious / "file").write_text("kept")
        old = engine.submit(shell("vision", f"ln -s {precious} $HIVED_JOB_DIR/link; echo old"))
        await ended(engine, old)
        clock.now += 500
        new, runs = engine.submit(shell("vision", "echo new")), engine.submit(shell("vision", "echo here; sleep 600"))
        await ended(engine, new)
        await printed(engine, runs, "here")
        clock.now += 700
        jobs = lives.folder / "jobs"
        while (jobs / "1").exists():
            await asyncio.sleep(0.01)
        gone, seen = engine.store.ended_before(clock.now - 1000)
        assert gone == [1]
        assert engine.store.ended_before(clock.now - 1000, seen)[0] == []
        assert engine.store.ended_before(clock.now - 699, seen)[0] == [2]
        looks.clear()
        while len(looks) < 2:  # a whole one, and the next
            await asyncio.sleep(0.01)
        assert sorted(path.name for path in jobs.iterdir() if path.is_dir()) == ["2", "3"]
        assert (precious / "file").read_text() == "kept"
        service = LocalService(engine)
        assert service.job("1").state == "succeeded"
        with pytest.raises(NotFoundError, match="not there any more: hived up --keep says for how long"):
            service.log("1", 0, None, 0, 10)
        engine.cancel("3")
        await ended(engine, runs)

    lives.live(story, clock=clock, keeping=Keeping(files_s=1000.0))


@pytest.mark.parametrize(
    ("door", "words"),
    [
        (_Door(keep="30"), "--keep: '30' has no unit; write 30s"),
        (_Door(most_output="much"), "--most-output: 'much' is no number of bytes"),
        (_Door(most_output="1k"), "too little to find an error in; give 1MiB or more"),
    ],
)
def test_wrong_options(door: _Door, words: str) -> None:
    with pytest.raises(InputError, match=words):
        door.keeping()


def test_options() -> None:
    assert _Door(keep="30d", most_output="1GiB").keeping() == Keeping(1 << 30, 30 * 86_400)
    assert _Door().keeping() == Keeping()


def test_a_link_in_place_of_the_output_is_not_cut(lives: Lives) -> None:
    """The supervisor gives back space of what the task prints into, whatever has its name by now."""

    async def story(engine: Engine) -> None:
        precious = Path(lives.folder.parent) / "precious"
        precious.write_bytes(os.urandom(8 * MIB))
        script = f"rm output; ln -s {precious} output; seq 600000; sleep 1.5; seq 600000; sleep 1.5; echo"
        task = lives.folder / "jobs" / "1" / "1" / "0"
        loud = engine.submit(shell("vision", f"cd {task}; {script}"))
        await ended(engine, loud)
        assert precious.stat().st_blocks * 512 >= 8 * MIB

    lives.live(story, keeping=Keeping(output=2 * MIB))


def test_an_output_that_ends_in_a_hole(lives: Lives) -> None:
    """Its user may have made it longer than what is in it."""

    async def story(engine: Engine) -> None:
        long = engine.submit(shell("vision", "echo here; truncate -s 8M /proc/self/fd/1"))
        await ended(engine, long)
        service, offset = LocalService(engine), 0
        assert service.log("1", 0, None, 0, 100).text.startswith("here\n")
        while not (page := service.log("1", 0, None, offset, MIB)).end:
            assert page.next > offset
            offset = page.next
        assert page.next == 8 * MIB

    lives.live(story)


@pytest.mark.parametrize(
    ("prints", "first"),
    [
        # of a progress bar nothing was shown: it has no line before its end
        ("i=0; while [ $i -lt 300000 ]; do printf '%08d of it\\r' $i; i=$((i+1)); done; echo end", "bar"),
        ("head -c 4000000 /dev/zero | tr '\\0' x; echo end", "x"),
    ],
)
def test_what_is_kept_of_output_without_lines_is_shown(lives: Lives, prints: str, first: str) -> None:
    if not has_holes(lives.folder):
        pytest.skip("files have no holes here")

    async def story(engine: Engine) -> None:
        loud = engine.submit(shell("vision", prints))
        await ended(engine, loud)
        page = LocalService(engine).log("1", 0, None, 0, 4 * MIB)
        assert page.offset > 0
        assert len(page.text) > MIB // 4
        assert page.text.endswith("end\n")
        assert page.text.startswith("x") if first == "x" else re.match(r"\d{8} of it\r", page.text)

    lives.live(story, keeping=Keeping(output=1 * MIB))


def test_files_that_were_promised_stay(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was submitted again found nothing when its turn came. No job keeps the files of another user's."""
    monkeypatch.setattr(engine_module, "DELETE_EVERY_S", 0.01)
    clock = Clock()

    async def story(engine: Engine) -> None:
        mine = engine.submit(shell("vision", "echo kept > $HIVED_JOB_DIR/state", user="ann"))
        theirs = engine.submit(shell("vision", "true", user="bob"))
        await ended(engine, mine, theirs)
        promises = [{"HIVED_PREVIOUS_JOB_DIR": str(engine.shared_folder(job)), **PATHS} for job in (mine, theirs)]
        script = "cat $HIVED_PREVIOUS_JOB_DIR/state"
        again, other = (
            engine.submit(shell("vision", script, user="ann", hold=True, environment=given)) for given in promises
        )
        clock.now += 2000
        jobs = lives.folder / "jobs"
        while (jobs / str(theirs.id)).exists():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        engine.release(str(again.id))
        assert await printed(engine, again, "kept") == "kept\n"
        engine.cancel(str(other.id))
        await ended(engine, again)
        while (jobs / str(mine.id)).exists():  # it is nobody's any more
            await asyncio.sleep(0.01)

    lives.live(story, clock=clock, keeping=Keeping(files_s=1000.0))
