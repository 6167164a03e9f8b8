"""The control page: records are read whole or not at all, whoever is killed when."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hived_control.errors import ForbiddenError, InputError, NotFoundError
from hived_control.folder import JobFolder, jobs_folder, started_at
from hived_control.page import (
    _ABILITIES,
    _ANSWER,
    _COMMAND,
    _PROGRESS,
    _SAMPLE,
    Abilities,
    Answer,
    Command,
    Page,
    Sample,
    State,
    Wanted,
)

from .conftest import meanwhile


@pytest.fixture
def page(tmp_path: Path) -> Page:
    made = Page.create(tmp_path / "1.page", os.getpid(), started_at(os.getpid()) or 0, Command(share=0.5))
    made.publish()
    return made


def test_another_mapping_reads_it(page: Page) -> None:
    other = Page.open(page.file)
    assert other.command() == Command(number=1, share=0.5), "its first command"
    assert other.answer() == Answer()
    bell = page.command_word()
    told = other.write_command(Command(wanted=Wanted.SUSPEND, at=7, target="cuda:1", memory_limit=1 << 40))
    assert page.command_word() != bell
    assert page.command() == told == Command(2, Wanted.SUSPEND, at=7, target="cuda:1", memory_limit=1 << 40)
    page.report_answer(Answer(noted=2, state=State.SUSPENDED, why="wärme" * 200))
    assert other.answer().state is State.SUSPENDED
    assert other.answer().why == ("wärme" * 200).encode()[:480].decode(errors="ignore"), "cut, and not in a character"
    page.report_progress(3, 0.5, 1.5)
    assert (other.progress().iterations, other.progress().seconds, other.progress().at) == (3, 0.5, 1.5)


def test_torn_record_leaves_the_former(page: Page) -> None:
    page.write_command(Command(share=0.25))
    page.write_command(Command(share=0.125))
    data = bytearray(page.file.read_bytes())
    number, before = page.command().number, page.command()
    draws = random.Random(5)
    torn = 0
    for _ in range(300):
        spoilt = bytearray(data)
        at = draws.randrange(64, 2000)
        spoilt[at] ^= 1 << draws.randrange(8)
        page.file.write_bytes(spoilt)
        found = Page.open(page.file).command()
        assert found.number in (number, number - 1)
        assert found == before or found.share == 0.25
        torn += found != before
    assert torn, "some hits were in the newest record"


def test_read_beside_a_writer(page: Page) -> None:
    numbers = itertools.count(1)

    def write() -> None:
        number = next(numbers)
        page.report_progress(number, float(number), float(number))

    other = Page.open(page.file)
    with meanwhile(write):
        for _ in range(3000):
            found = other.progress()
            assert found.iterations == found.seconds == found.at


def test_killed_writer_leaves_whole_record(page: Page) -> None:
    code = (
        "import sys; from pathlib import Path; from hived_control.page import Page, Command\n"
        "page = Page.open(Path(sys.argv[1])); print('ready', flush=True); n = 0\n"
        "while True:\n n += 1; page.write_command(Command(at=n, memory_limit=n, workers=n))"
    )
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", code, str(page.file)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(random.Random(3).uniform(0.0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = page.command()
        assert found.at == found.memory_limit == found.workers
        assert page.write_command(Command()).number == found.number + 1


def test_another_file_is_no_page(tmp_path: Path) -> None:
    (tmp_path / "x.page").write_bytes(bytes(8192))
    with pytest.raises(ValueError, match="no control page"):
        Page.open(tmp_path / "x.page")


def test_job_without_living_process(jobs: Path) -> None:
    job = JobFolder.named("train")
    job.claim({"argv": ["python", "train.py"], "started": -1})
    gone = subprocess.Popen(["true"])
    job.join(gone.pid, Command()).publish()
    gone.wait()
    with pytest.raises(NotFoundError, match="no training job 'train' on this machine: none runs"):
        JobFolder.found("train")
    assert not job.path.exists(), "its folder is deleted by who finds it"
    mine = JobFolder.named("mine")
    mine.join(os.getpid(), Command()).publish()
    with pytest.raises(NotFoundError, match="there are mine"):
        JobFolder.found("train")
    with pytest.raises(InputError, match="runs already"):
        mine.claim({})
    mine.leave(os.getpid())
    assert not mine.path.exists()


def test_page_is_published_with_its_answer(jobs: Path) -> None:
    job = JobFolder.named("train")
    made = job.join(os.getpid(), Command(share=0.5))
    job.write_about({"argv": ["train"], "started": -1})  # whoever has started it has ended
    assert job.pages() == []
    assert [each.name for each in JobFolder.all()] == ["train"], "a process is joining: nothing is deleted"
    assert job.about()["argv"] == ["train"]
    made.report_answer(Answer(ranks=3, elastic=True))
    made.publish()
    [seen] = job.pages()
    assert (seen.command().share, seen.answer()) == (0.5, Answer(ranks=3, elastic=True))
    job.leave(os.getpid())
    job.join(os.getpid(), Command())
    job.leave(os.getpid())  # it ends, and was never seen
    assert not job.path.exists()


def test_join_while_others_tidy_up(jobs: Path) -> None:
    """Of a job without a living process the folder is deleted, by whoever looks: just then a process joins."""
    job = JobFolder.named("train")
    with meanwhile(JobFolder.all, JobFolder.all):
        for _ in range(300):
            page = job.join(os.getpid(), Command())
            time.sleep(0.001)
            page.publish()
            time.sleep(0.001)
            assert [each.pid for each in job.pages()] == [os.getpid()]
            job.leave(os.getpid())


def test_dangerous_names_are_refused(jobs: Path) -> None:
    for name in ("", "../x", "a/b", ".hidden", "x" * 64, "a\nb"):
        with pytest.raises(InputError, match="cannot be named"):
            JobFolder.named(name)
    jobs.chmod(0o777)
    with pytest.raises(ForbiddenError, match="can be written by others"):
        jobs_folder()


def test_bell_in_a_long_folder(jobs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("HIVED_JOBS", str(deep / "jobs"))
    job = JobFolder.named("train")
    job.claim({})
    bell = job.listen(os.getpid())
    job.ring(os.getpid())
    bell.settimeout(120.0)
    assert bell.recv(16) == b"!"
    bell.close()
    job.ring(os.getpid())  # nobody listens: no error


def test_page_of_the_version_before_is_read(tmp_path: Path) -> None:
    """Its records are where they were; it has none of what the script has told of itself."""
    page = Page.create(tmp_path / "1.page", 1, 2, Command(share=0.5))
    page.report_progress(7, 0.25, 3.0)
    page.report_sample(Sample(used_bytes=5))
    places = (_COMMAND.place, _PROGRESS.place, _ANSWER.place, _SAMPLE.place, _ABILITIES.place)
    assert places == (64, 1224, 1296, 5306, 5442), "running jobs of the version before have them there"
    assert page.abilities() == Abilities()
    page.report_abilities(Abilities(named=True))
    assert (page.abilities().named, page.sample().used_bytes, page.progress().iterations) == (True, 5, 7)
    assert _ABILITIES.end <= 8192
