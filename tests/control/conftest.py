"""A folder of training jobs, jobs in it that do nothing, and ``hived`` at hand."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from hived_control.folder import JobFolder
from hived_control.page import Answer, Command, Page, State
from tests.cli.helpers import Hived, call

Ranks = Callable[[int], list[Page]]


@contextmanager
def meanwhile(*acts: Callable[[], object]) -> Iterator[None]:
    """Each of these again and again, in a thread of its own; what one raises is raised at the end."""
    ended = threading.Event()

    def again(act: Callable[[], object]) -> None:
        while not ended.is_set():
            act()

    with ThreadPoolExecutor(len(acts)) as pool:
        running = [pool.submit(again, act) for act in acts]
        try:
            yield
        finally:
            ended.set()
    for each in running:
        each.result()


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HIVED_JOBS", str(tmp_path / "jobs"))
    (tmp_path / "jobs").mkdir(mode=0o700)
    return tmp_path / "jobs"


@pytest.fixture
def hived(jobs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Hived:
    """``hived(*words)`` gives the answer of the command line, on a wide screen."""

    def starts(*_: object) -> None:
        raise AssertionError("this process would become the job")

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("os.execve", starts)
    return lambda *words: call(capsys, *words)


@pytest.fixture
def ranks(jobs: Path) -> Iterator[Ranks]:
    """Makes the pages of a job of so many ranks, of which none does anything."""
    sleepers: list[subprocess.Popen[bytes]] = []

    def made(number: int) -> list[Page]:
        sleepers.extend(subprocess.Popen(["sleep", "600"]) for _ in range(number))
        pages = [JobFolder.named("train").join(each.pid, Command()) for each in sleepers]
        for rank, page in enumerate(pages):
            page.report_answer(Answer(state=State.RUNNING, rank=rank, ranks=number))
            page.publish()
        return pages

    yield made
    for each in sleepers:
        each.kill()
        each.wait()
