"""How much of jobs is kept: the last of what they print, and their files for a while."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from hived.cli.up import _Door
from hived.engines.local import engine as engine_module
from hived.engines.local.engine import Engine, Keeping
from hived.errors import InputError
from hived.server.local_service import LocalService

from .living import Clock, Lives, ended, printed, shell

MIB = 1 << 20
#: 20 MiB of numbered lines, with pauses in which a supervisor can look
MUCH = "for n in $(seq 40); do seq -f 'line %09.0f' $((n * 32768)) $((n * 32768 + 32767)); sleep 0.15; done; echo here"


def test_the_last_of_the_output_is_kept(lives: Lives) -> None:
    """At the offsets that it had; a reader goes on where something is left."""

    async def story(engine: Engine) -> None:
        loud = engine.submit(shell("vision", MUCH))
        await ended(engine, loud)
        output = engine.task(loud, 0).output
        status = output.stat()
        assert status.st_size > 17 * MIB
        if status.st_blocks * 512 == status.st_size:
            pytest.skip("no holes can be made in files here")
        assert status.st_blocks * 512 < 6 * MIB
        service = LocalService(engine)
        first = service.log("1", 0, None, 0, MIB)
        assert first.offset > 10 * MIB
        assert "\0" not in first.text
        assert first.text[-5:].count("\n") <= 1
        last = service.log("1", 0, None, -64, 64)
        assert last.text.endswith("line 001343487\nhere\n")
        assert (last.next, last.end) == (status.st_size, True)
        offset, text = 0, ""
        while (page := service.log("1", 0, None, offset, MIB)).next > page.offset:
            offset, text = page.next, text + page.text
        assert len(text.splitlines()) > 100_000

    lives.live(story, keeping=Keeping(output=4 * MIB))


def test_all_of_it_is_kept_by_default(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        loud = engine.submit(shell("vision", "seq 200000; sleep 1.2; seq 200000; echo here"))
        assert (await printed(engine, loud, "here")).startswith("1\n2\n")
        await ended(engine, loud)

    lives.live(story)


def test_files_of_jobs_are_deleted_after_a_while(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of them stays; links that they have left lead nowhere."""
    monkeypatch.setattr(engine_module, "DELETE_EVERY_S", 0.01)
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
        await asyncio.sleep(0.1)
        assert sorted(path.name for path in jobs.iterdir() if path.is_dir()) == ["2", "3"]
        assert (precious / "file").read_text() == "kept"
        service = LocalService(engine)
        assert service.job("1").state == "succeeded"
        assert service.log("1", 0, None, 0, 10).text == ""
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
