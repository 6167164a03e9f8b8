"""The folders of jobs: nothing of others is deleted, one at a time writes commands, one decision is made for all."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hived_control import commands
from hived_control.commands import TrainingJob
from hived_control.deciding import decide, decided
from hived_control.errors import InputError, UnavailableError
from hived_control.folder import JobFolder, started_at
from hived_control.page import Wanted

from .conftest import Ranks

GONE = {"argv": ["python", "train.py"], "pid": 2, "started": -1}


@pytest.mark.parametrize("files", [[], ["main.c"], ["job.json"], ["job.json", "1.page", "lock"]], ids=str)
def test_foreign_folder_stays(jobs: Path, files: list[str]) -> None:
    """``HIVED_JOBS`` may be set to a folder that holds other things."""
    (jobs / "src").mkdir()
    for name in files:
        (jobs / "src" / name).write_text('{"name": "theirs"}')
    assert JobFolder.all() == []
    assert sorted(each.name for each in (jobs / "src").iterdir()) == sorted(files)


def test_dead_jobs_folder_is_deleted(jobs: Path) -> None:
    for name in ("one", "other"):
        JobFolder.named(name).claim(GONE)
    (jobs / "other" / "notes.txt").touch()
    assert JobFolder.all() == []
    assert not (jobs / "one").exists()
    assert (jobs / "other" / "notes.txt").exists()
    with pytest.raises(InputError, match=r"holds notes\.txt, of no training job: choose another --name"):
        JobFolder.named("other").claim(GONE)


def test_folder_deleted_while_claimed(jobs: Path) -> None:
    about = {**GONE, "pid": os.getpid(), "started": started_at(os.getpid())}
    for _ in range(100):
        folder = JobFolder.named("train")
        folder.claim(GONE)
        other = threading.Thread(target=folder.delete_if_dead)
        other.start()
        folder.claim(about)
        other.join()
        assert folder.about() == about
        folder.write_about(GONE)


def test_lock_is_held_by_one(jobs: Path) -> None:
    folder = JobFolder.named("train")
    folder.claim(GONE)
    with (
        folder.locked(),
        pytest.raises(UnavailableError, match="another command for job train is being carried out"),
        folder.locked(timeout_s=0.05),
    ):
        pass
    with folder.locked(timeout_s=0.05):
        pass


def test_one_of_many_decisions_holds(tmp_path: Path) -> None:
    outcomes = set()
    for round_ in range(60):
        link = tmp_path / f"go-{round_}"
        assert decided(link) is None
        with ThreadPoolExecutor(8) as pool:
            wishes = [bool((round_ + each) % 3) for each in range(8)]
            found = set(pool.map(lambda wish, link=link: decide(link, wish), wishes))
        assert found == {decided(link)}
        outcomes |= found
    assert outcomes <= {True, False}


@pytest.mark.parametrize(("number", "verb"), [(1, "move"), (2, "move"), (2, "suspend")])
def test_ctrl_c_calls_a_command_off(ranks: Ranks, monkeypatch: pytest.MonkeyPatch, number: int, verb: str) -> None:
    pages = ranks(number)
    seen: list[Wanted] = []

    def interrupted(_: object) -> None:
        seen.extend(page.command().wanted for page in pages)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands._Dialogue, "pause", interrupted)
    job = TrainingJob(JobFolder.found("train"))
    with pytest.raises(KeyboardInterrupt):
        job.migrate("cpu", 20) if verb == "move" else job.suspend(20)
    assert seen == [Wanted.MOVE if verb == "move" else Wanted.SUSPEND] * number
    assert [page.command().wanted for page in pages] == [Wanted.RUN] * number


def test_passed_decisions_are_forgotten(jobs: Path) -> None:
    folder = JobFolder.named("train")
    folder.claim(GONE)
    for at in (3, 4, 12):
        decide(folder.decision("go", at), True)
    folder.forget_decisions(before=4)
    assert [decided(folder.decision("go", at)) for at in (3, 4, 12)] == [None, True, True]
