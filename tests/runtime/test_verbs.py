"""The verbs for training jobs, as people type them: what they print, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .jobs import Job, environment, script

Hived = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hived(tmp_path: Path) -> Hived:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from hived.cli import main; main()", *words],
            env=environment(tmp_path / "jobs", COLUMNS="200"),
            capture_output=True,
            text=True,
            check=False,
        )

    return call


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "jobs", "train", [*script("sgd_momentum"), str(tmp_path / "result.pt")], "--share", "20%")
    job.trains()
    yield job
    job.close()


def test_a_job_from_its_start_to_its_end(hived: Hived, train: Job) -> None:
    assert train.output().startswith("hived: training job train\n")

    done = hived("suspend", "train")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("train: suspended (framework; ")
    assert " MiB moved in " in done.stdout

    shown = hived("status", "train").stdout.splitlines()
    assert shown[0].startswith("train: ")
    assert shown[0].split()[2].endswith("sgd_momentum.py")
    assert shown[1].split()[:4] == ["RANK", "PID", "STATE", "MINI-BATCHES"]
    assert shown[2].split()[2] == "suspended"
    assert "20%" in shown[2]

    assert hived("resume", "train").stdout == "train: runs\n"
    assert hived("limit", "train", "--memory", "1GiB", "--up-to", "2GiB", "--share", "30%").returncode == 0
    train.trains(train.mini_batches() + 1)
    (process,) = json.loads(hived("status", "train", "-o", "json").stdout)["processes"]
    assert (process["state"], process["tier"], process["device"]) == ("running", "framework", "cpu")
    assert (process["memory_limit"], process["share"]) == (1 << 30, 0.3)
    assert process["note"] == "without a GPU there is no device memory to limit"
    assert process["mini_batches"] > 0 < process["mini_batch_s"] < 1

    done = hived("scale", "train", "--workers", "2", "--timeout", "1s")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "job train is not elastic: see hived.runtime.elastic" in done.stderr
    assert hived("limit", "train", "--share", "100%").returncode == 0
    train.ended()
    assert hived("resume", "train").returncode == 4


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("status", "nobody"), 4, "no training job 'nobody' on this machine: none runs under hived run"),
        (("suspend", "../x"), 2, "a job cannot be named '../x'"),
        (("limit", "train"), 2, "nothing to change; give --memory, --share or both"),
        (("limit", "train", "--memory", "much"), 2, "'much' is no amount of memory; write 8GiB, 500MiB or none"),
        (("limit", "train", "--share", "0%"), 2, "'0%' is no share of a device's time; write 40%"),
        (("limit", "train", "--share", "nan"), 2, "'nan' is no share of a device's time"),
        (("limit", "train", "--up-to", "1GiB"), 2, "--up-to needs --memory"),
        (("limit", "train", "--memory", "2GiB", "--up-to", "1GiB"), 2, "--up-to 1.0 GiB is below --memory 2.0 GiB"),
        (("run", "--", "no-such-program"), 2, "no-such-program: no such program; it is looked for in PATH"),
        (("run",), 2, "no command; give it after --"),
        (("run", "--from", "/nowhere"), 2, "no job moves through it"),
        (("run", "--name", "a b", "--", "true"), 2, "a job cannot be named 'a b'"),
        (("migrate", "nobody", "--to", "cpu"), 4, "no training job 'nobody'"),
    ],
)
def test_wrong_input_is_one_line(hived: Hived, words: tuple[str, ...], code: int, message: str) -> None:
    done = hived(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_name_is_taken_while_its_job_runs(hived: Hived, train: Job) -> None:
    done = hived("run", "--name", "train", "--", "true")
    assert done.returncode == 2
    assert "a training job 'train' runs already on this machine: choose another --name" in done.stderr


def test_program_without_pytorch(hived: Hived, tmp_path: Path) -> None:
    done = hived("run", "--", "sh", "-c", "echo hello; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "hello\n", "hived: training job sh\n")


def test_what_has_ended_no_mini_batch_says_so(hived: Hived, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "from hived.cli import main; main()", "run", "--name", "sleeper", "--", "sleep", "60"],
        env=environment(tmp_path / "jobs"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "hived: training job sleeper\n"
            assert "no mini-batch has ended yet" in hived("status", "sleeper").stdout
            done = hived("limit", "sleeper", "--share", "50%")
            assert (done.returncode, "has not ended its first mini-batch" in done.stderr) == (2, True)
            done = hived("suspend", "sleeper")
            assert done.returncode == 69
            assert "only NVIDIA's driver 570 or later could suspend it" in done.stderr
        finally:
            process.kill()
