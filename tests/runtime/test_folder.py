"""The folders of jobs: nothing of others is deleted, one at a time writes commands, one decision is made for all."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hived.control import commands
from hived.control.commands import TrainingJob
from hived.control.deciding import decide, decided
from hived.control.folder import JobFolder, started_at
from hived.control.page import Answer, Command, Page, State, Wanted
from hived.errors import InputError, UnavailableError
from hived.runtime import process
from hived.runtime.memory.framework import can_be_emptied

GONE = {"argv": ["python", "train.py"], "pid": 2, "started": -1}


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HIVED_JOBS", str(tmp_path / "jobs"))
    (tmp_path / "jobs").mkdir(mode=0o700)
    return tmp_path / "jobs"


@pytest.mark.parametrize("files", [[], ["main.c"], ["job.json"], ["job.json", "1.page", "lock"]], ids=str)
def test_a_folder_of_somebody_elses_stays(jobs: Path, files: list[str]) -> None:
    """``HIVED_JOBS`` may be set to a folder that holds other things."""
    (jobs / "src").mkdir()
    for name in files:
        (jobs / "src" / name).write_text('{"name": "theirs"}')
    assert JobFolder.all() == []
    assert sorted(each.name for each in (jobs / "src").iterdir()) == sorted(files)


def test_the_folder_of_a_job_that_is_gone_is_deleted_but_for_what_is_not_of_it(jobs: Path) -> None:
    for name in ("one", "other"):
        JobFolder.named(name).claim(GONE)
    (jobs / "other" / "notes.txt").touch()
    assert JobFolder.all() == []
    assert not (jobs / "one").exists()
    assert (jobs / "other" / "notes.txt").exists()
    with pytest.raises(InputError, match=r"holds notes\.txt, of no training job: choose another --name"):
        JobFolder.named("other").claim(GONE)


def test_a_job_that_is_started_while_its_folder_is_deleted_has_one(jobs: Path) -> None:
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


def test_the_lock_is_held_by_one_and_says_so(jobs: Path) -> None:
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


def test_of_many_who_decide_at_once_one_decision_holds(tmp_path: Path) -> None:
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


@pytest.fixture
def ranks(jobs: Path) -> Iterator[Callable[[int], list[Page]]]:
    """Makes the pages of a job of so many ranks, of which none does anything."""
    sleepers: list[subprocess.Popen[bytes]] = []

    def made(number: int) -> list[Page]:
        sleepers.extend(subprocess.Popen(["sleep", "60"]) for _ in range(number))
        pages = [JobFolder.named("train").join(each.pid, Command()) for each in sleepers]
        for rank, page in enumerate(pages):
            page.report_answer(Answer(state=State.RUNNING, rank=rank, ranks=number))
            page.publish()
        return pages

    yield made
    for each in sleepers:
        each.kill()
        each.wait()


@pytest.mark.parametrize(("number", "verb"), [(1, "move"), (2, "move"), (2, "suspend")])
def test_ctrl_c_of_a_command_calls_it_off(
    ranks: Callable[[int], list[Page]], monkeypatch: pytest.MonkeyPatch, number: int, verb: str
) -> None:
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


def agreeing(page: Page, seconds: float) -> SimpleNamespace:
    """A rank whose mini-batches take so long, as far as it waits for a decision."""
    rank = SimpleNamespace(
        _job=JobFolder.named("train"),
        _word=page.command_word(),
        wake=threading.Event(),
        seconds=seconds,
        _report=lambda **said: page.report_answer(Answer(state=said["state"])),
    )
    rank._others_hand_over = lambda: process.TrainingProcess._others_hand_over(rank)  # type: ignore[arg-type]
    return rank


def test_a_rank_with_long_mini_batches_waits_longer_for_the_others(
    ranks: Callable[[int], list[Page]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_AGREE_S", 0.05)
    page, _ = ranks(2)
    for seconds, at in ((0.0, 1), (0.2, 2)):
        began = time.monotonic()
        command = Command(wanted=Wanted.SUSPEND, at=at)
        rank = agreeing(page, seconds)
        assert process.TrainingProcess._together(rank, page, command, "go", State.WAITING) is False  # type: ignore[arg-type]
        assert time.monotonic() >= began + max(0.05, 3 * seconds)


def test_a_rank_that_has_handed_over_waits_for_one_that_still_does(
    ranks: Callable[[int], list[Page]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is larger: a decision against the move would come before it can be."""
    monkeypatch.setattr(process, "_AGREE_S", 0.05)
    page, other = ranks(2)
    other.report_answer(Answer(state=State.WAITING))
    command = Command(wanted=Wanted.MOVE, at=1)
    with ThreadPoolExecutor(1) as pool:
        together = process.TrainingProcess._together
        waits = pool.submit(together, agreeing(page, 0.0), page, command, "move", State.HANDED)  # type: ignore[arg-type]
        time.sleep(0.5)
        assert not waits.done()
        other.report_answer(Answer(state=State.RUNNING))
        assert waits.result(20) is False


def test_decisions_that_all_have_passed_are_forgotten(jobs: Path) -> None:
    folder = JobFolder.named("train")
    folder.claim(GONE)
    for at in (3, 4, 12):
        decide(folder.decision("go", at), True)
    folder.forget_decisions(before=4)
    assert [decided(folder.decision("go", at)) for at in (3, 4, 12)] == [None, True, True]


@pytest.mark.parametrize(
    ("device", "size", "resizable", "shared", "can"),
    [
        ("cuda", 512, True, True, True),  # torch says so of each storage of a GPU
        ("cuda", 512, False, True, False),  # one of another process
        ("cuda", 0, True, True, False),
        ("cpu", 1 << 20, True, False, True),
        ("cpu", 1 << 20, True, True, False),
        ("cpu", 512, True, False, False),
    ],
)
def test_which_storages_are_emptied(device: str, size: int, resizable: bool, shared: bool, can: bool) -> None:
    def answer(value: object) -> Callable[[], object]:
        return lambda: value

    storage = SimpleNamespace(
        device=torch.device(device), nbytes=answer(size), resizable=answer(resizable), is_shared=answer(shared)
    )
    assert can_be_emptied(storage) is can
