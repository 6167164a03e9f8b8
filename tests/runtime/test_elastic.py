"""Jobs that declare themselves elastic grow and shrink while they train, and end with the weights of one worker."""

from __future__ import annotations

import functools
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hived_control.commands import NotYetError, ProcessStatus, RefusedError
from hived_control.page import State
from hived_control.stopping import descendants
from tests.control.conftest import meanwhile

from .jobs import PATIENCE_S, Job, cpu_ticks, differences, state_of, until
from .plain import run_plain

SCRIPTS = Path(__file__).parent / "elastic_scripts"
SAMPLES, BATCH, EPOCHS = 98, 12, 60
EXACT = 1e-12


class Run(Job):
    """A job that runs, and what it leaves behind."""

    def __init__(self, folder: Path, options: Sequence[str], launcher: Sequence[str]) -> None:
        command = [*launcher, str(SCRIPTS / "train.py"), str(folder), *options]
        super().__init__(folder.parent / "jobs", "train", command)
        self.place, self.options = folder, tuple(options)
        self.result = folder / "result.pt"
        self.trains()

    def hurry(self) -> None:
        (self.place / "hurry").touch()

    def workers(self) -> tuple[ProcessStatus, ...]:
        return self.job.status().processes

    def states(self) -> list[State]:
        return [each.answer.state for each in self.workers()]

    def scale(self, workers: int) -> None:
        self.job.scale(workers, PATIENCE_S)

    def asked_to_scale(self, workers: int) -> None:
        """Wish it, and do not wait: a new worker imports PyTorch."""
        with pytest.raises(NotYetError, match=rf"\d of {workers} workers"):
            self.job.scale(workers, 0.1)

    def go_on_for(self, mini_batches: int) -> None:
        before = self.workers()[0].progress.iterations
        until(lambda: self.workers()[0].progress.iterations >= before + mini_batches)

    def children(self) -> list[int]:
        """Processes that rank 0 has started."""
        return descendants(self.process.pid)

    def pids(self) -> list[int]:
        return [int(file.stem) for file in self.place.glob("*.jsonl")]

    def lines(self, pid: int) -> list[Any]:
        return [json.loads(line) for line in (self.place / f"{pid}.jsonl").read_text().splitlines()]

    def records(self) -> list[dict[str, Any]]:
        return [line for pid in self.pids() for line in self.lines(pid) if isinstance(line, dict)]

    def exit_codes(self) -> list[int]:
        """Of the processes that rank 0 has started; ``null`` for one that it has not reaped."""
        codes: list[int] = json.loads((self.place / "codes.json").read_text())
        return codes

    def numbers_of_workers(self) -> list[int]:
        """In the order in which the team had them."""
        found: list[int] = []
        for line in sorted(self.records(), key=lambda line: (line["epoch"], line["batch"])):
            if found[-1:] != [line["workers"]]:
                found.append(line["workers"])
        return found


def alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    monkeypatch.setenv("HIVED_JOBS", str(tmp_path / "jobs"))
    runs: list[Run] = []

    def started(*options: str, launcher: Sequence[str] = (sys.executable,)) -> Run:
        (tmp_path / "run").mkdir()
        runs.append(Run(tmp_path / "run", options, launcher))
        return runs[-1]

    yield started
    for run in runs:
        run.close()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """The result of a script with these options that is one worker, without the runtime."""

    @functools.cache
    def result(*options: str) -> Any:
        folder = tmp_path_factory.mktemp("alone")
        (folder / "hurry").touch()
        run_plain(SCRIPTS / "train.py", [str(folder), *options], folder / "log")
        return torch.load(folder / "result.pt")

    return result


def assert_every_sample_once(run: Run) -> None:
    """The workers' parts are the global batches, and in each epoch every sample is of one of them."""
    trained: dict[tuple[int, int], list[int]] = {}
    for line in run.records():
        trained.setdefault((line["epoch"], line["batch"]), []).extend(line["indices"])
    for epoch in range(EPOCHS):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
        batches = [order[first : first + BATCH] for first in range(0, SAMPLES, BATCH)]
        assert [sorted(trained[epoch, batch]) for batch in range(len(batches))] == list(map(sorted, batches))
    assert len(trained) == EPOCHS * len(batches)


def assert_nothing_is_left(run: Run) -> None:
    assert not [pid for pid in run.pids() if alive(pid)]
    assert not list(run.folder.path.parent.iterdir())


def assert_ends_as_one_worker(run: Run, alone: Callable[..., Any], numbers: list[int]) -> None:
    """It had these numbers of workers. Weights, optimizer, rate and rank 0's random numbers are as alone."""
    run.finish()
    assert run.numbers_of_workers() == numbers
    assert differences(torch.load(run.result), alone(*run.options), within=EXACT) == []
    assert_every_sample_once(run)
    assert_nothing_is_left(run)


# -- exactness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ([3, 1, 2], ["conditional"]),
        ([2, 4], ["adamw", "accumulate", "clip"]),
        ([2, 1], ["assign", "loader"]),
    ],
    ids=["branches", "adamw-accumulation-clipping", "gradients-by-hand-loader-processes"],
)
def test_scaled_job_ends_as_one_worker(
    start: Callable[..., Run], alone: Callable[..., Any], schedule: list[int], options: list[str]
) -> None:
    run = start(*options)
    chance = random.Random(len(schedule))
    for workers in schedule:
        run.scale(workers)
        run.go_on_for(chance.randint(1, 15))
    assert_ends_as_one_worker(run, alone, [1, *schedule])


def test_unscaled_job_is_a_plain_script(start: Callable[..., Run], alone: Callable[..., Any]) -> None:
    run = start()
    with pytest.raises(RefusedError, match="13 workers for a global batch of 12 samples"):
        run.scale(13)
    with pytest.raises(RefusedError, match="an elastic job does not move: it grows and shrinks"):
        run.job.migrate("cpu", PATIENCE_S)
    run.go_on_for(3)
    run.finish()
    assert run.exit_codes() == []
    assert differences(torch.load(run.result), alone("plain")) == []
    assert differences(alone(), alone("plain")) == []
    assert differences(alone(), alone("accumulate"), within=EXACT), "results can differ"


# -- leaving and joining ----------------------------------------------------------------------------------------------


def test_leaving_workers_end_in_order(start: Callable[..., Run]) -> None:
    run = start()
    run.job.limit(share=0.9)
    run.scale(3)
    until(lambda: [each.command.share for each in run.workers()] == [0.9] * 3)
    run.job.limit(share=1.0)
    first = run.process.pid
    left = {each.pid for each in run.workers()} - {first}
    assert set(run.children()) == left
    run.scale(1)
    until(lambda: not run.children())  # none of them a zombie either
    run.scale(2)
    files = [path.name for path in run.folder.path.iterdir() if path.name.startswith("elastic")]
    assert len(files) == 1, "the files of former groups are deleted"
    joined = {each.pid for each in run.workers()} - {first}
    run.finish()

    ended = {pid for pid in run.pids() if run.lines(pid)[-1] == "end of the script"}
    assert ended == {first, *joined}
    assert not ended & left
    assert run.exit_codes() == [0, 0, 0]
    assert_nothing_is_left(run)


def test_last_of_two_wishes_counts(start: Callable[..., Run], alone: Callable[..., Any]) -> None:
    run = start()
    run.asked_to_scale(4)
    run.scale(2)
    run.asked_to_scale(3)
    run.scale(2)
    run.go_on_for(3)
    assert_ends_as_one_worker(run, alone, [1, 2])
    assert run.exit_codes().count(0) == 1, "those that were not needed any more are ended"
    assert None not in run.exit_codes()


def test_late_workers_end_with_the_job(start: Callable[..., Run]) -> None:
    run = start("fails-to-join")
    (run.place / "failing").write_text("hang")
    run.asked_to_scale(3)
    until(lambda: len(run.children()) == 2)
    late = run.children()
    run.finish()
    assert not [pid for pid in late if alive(pid)]
    assert_nothing_is_left(run)


# -- failures ---------------------------------------------------------------------------------------------------------


def test_failing_new_workers_are_reported(start: Callable[..., Run], alone: Callable[..., Any]) -> None:
    run = start("fails-to-join")
    failing = run.place / "failing"
    failing.write_text("crash")
    run.asked_to_scale(2)
    until(lambda: "a new worker ended with exit code 1 before it joined" in run.workers()[0].answer.why)
    run.go_on_for(5)
    assert not run.children(), "it is not tried again and again"
    failing.write_text("hang")
    run.asked_to_scale(2)  # when it is wished again, it is
    until(lambda: "a new worker was not ready after 2 s" in run.workers()[0].answer.why)
    with pytest.raises(NotYetError, match="after 4 s: its new workers are not ready"):
        run.job.scale(2, 4.0)  # they have as long as somebody waits for them
    until(lambda: "a new worker was not ready after 4 s" in run.workers()[0].answer.why)
    failing.unlink()
    run.scale(2)
    failing.write_text("lost")
    run.asked_to_scale(3)
    until(lambda: "a new worker was lost on joining" in run.workers()[0].answer.why)
    run.go_on_for(5)
    failing.unlink()
    run.scale(3)
    assert_ends_as_one_worker(run, alone, [1, 2, 3])
    assert len(run.exit_codes()) == 6


@pytest.mark.parametrize(
    ("extra", "code", "said"),
    [
        ("dies", 1, "Traceback"),
        ("unnoticed", 1, "ended with exit code 9, and the process group waits for it: this job ends"),
        ("fails", 1, "ValueError: rank 0 has failed"),
        ("leaves", 0, "rank 0 has left its loop, and the process group waits for it: this job ends"),
    ],
    ids=["dies", "unnoticed", "fails", "leaves"],
)
def test_all_end_with_one_that_dies(start: Callable[..., Run], extra: str, code: int, said: str) -> None:
    run = start(extra)
    run.scale(3)
    pids = run.pids()
    (run.place / "end").touch()
    run.ended(code)
    assert said in run.output()
    assert extra == "leaves" or not run.result.exists()
    if extra == "unnoticed":
        until(lambda: not any(map(alive, pids)))
    else:
        assert_nothing_is_left(run)


def test_killed_rank_0_ends_workers(start: Callable[..., Run]) -> None:
    run = start()
    run.scale(2)
    run.asked_to_scale(3)
    until(lambda: len(run.children()) == 2)
    workers = run.children()
    run.process.kill()
    run.process.wait()
    until(lambda: not any(map(alive, workers)))


# -- together with suspension -----------------------------------------------------------------------------------------


def test_suspended_workers_go_on_and_scale(start: Callable[..., Run], alone: Callable[..., Any]) -> None:
    run = start()
    run.asked_to_scale(2)
    until(lambda: bool(run.children()))
    run.job.suspend(PATIENCE_S)
    until(lambda: [state_of(each) for each in run.children()] == ["T"], "a new worker uses CPU time")
    run.job.resume(PATIENCE_S)
    run.scale(2)
    for _ in range(3):
        run.job.suspend(PATIENCE_S)
        assert run.states() == [State.SUSPENDED] * 2
        assert len({each.progress.iterations for each in run.workers()}) == 1, "at one mini-batch"
        run.job.resume(PATIENCE_S)
        run.go_on_for(3)
    run.scale(3)
    run.job.suspend(PATIENCE_S)
    assert run.states() == [State.SUSPENDED] * 3
    run.job.resume(PATIENCE_S)
    run.scale(1)
    assert_ends_as_one_worker(run, alone, [1, 2, 3, 1])


def test_suspend_while_scaling(start: Callable[..., Run], alone: Callable[..., Any]) -> None:
    run = start()
    run.scale(2)

    def suspend_and_resume() -> None:
        run.job.suspend(PATIENCE_S)
        run.job.resume(PATIENCE_S)
        before = cpu_ticks(run.process.pid, *run.children())
        # new workers, which are suspended too, get on with importing PyTorch meanwhile
        until(lambda: cpu_ticks(run.process.pid, *run.children()) > before + 50)

    with meanwhile(suspend_and_resume):
        for workers in (1, 3, 1):
            run.scale(workers)
    assert_ends_as_one_worker(run, alone, [1, 2, 1, 3, 1])


# -- with a launcher, and what is refused ------------------------------------------------------------------------------


def test_job_of_torchrun_is_scaled(start: Callable[..., Run], alone: Callable[..., Any]) -> None:
    run = start(launcher=[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])
    until(lambda: len(run.workers()) == 2)
    run.scale(1)
    run.go_on_for(3)
    run.scale(2)
    run.go_on_for(3)
    assert_ends_as_one_worker(run, alone, [2, 1, 2])


def test_elastic_refusals_say_why(tmp_path: Path) -> None:
    run_plain(SCRIPTS / "refusals.py", [], tmp_path / "log")
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1]) == {
        "sparse": "TypeError: sparse gradients cannot be averaged among workers: build the embeddings with "
        "sparse=False",
        "lbfgs": "TypeError: LBFGS decides by its own loss how often it evaluates: workers would not agree",
        "empty batch": "ValueError: a global batch has at least one sample, not 0",
        "second team": "RuntimeError: this process is a worker of an elastic job already",
        "stream": "TypeError: an elastic job needs a data set with numbered samples: parts of a stream cannot be told",
        "batch size": "TypeError: team.loader() takes no batch_size: the team's global batch is split",
        "outside epochs": "RuntimeError: an elastic job passes over its data once in every epoch of team.epochs(): "
        "use a DataLoader for what is not training",
        "two passes": "RuntimeError: an elastic job passes over its data once in every epoch of team.epochs(): "
        "use a DataLoader for what is not training",
        "two loops": "RuntimeError: an elastic job has one loop over its epochs: new workers could not tell two apart",
        "short batch": 3,
        "dropped batch": 2,
    }
