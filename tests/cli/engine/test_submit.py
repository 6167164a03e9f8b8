"""``hived submit``."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from ...server.fakes import WAITING, FakeService, Running
from ..helpers import Hived, refused
from .shell import Begin, until

SUBMIT = ("submit", "--vc", "vision")


def test_where_it_runs_or_why_it_waits(hived: Hived, engine: FakeService) -> None:
    answer = hived(*SUBMIT, "--gpus", 2, "--", "python", "train.py")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "python-1 runs on node-0 (GPUs 0-1).\n"
    engine.end(engine.all[0])
    answer = hived(*SUBMIT, "--gpus", 4, "--nodes", 2, "--", "x")
    assert answer.out == "x-2 runs on node-0 (GPUs 0-3) and node-1 (GPUs 0-3).\n"
    assert engine.submissions["2"].tasks == 2
    answer = hived(*SUBMIT, "--name", "late", "--", "x")
    assert answer.code == 0
    assert answer.out == f"late-3 waits: {WAITING}\n"
    assert "hived explain late-3" in answer.err
    answer = hived(*SUBMIT, "--gpus", 9, "--", "x")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err == "hived: vision has 4 GPUs, this needs 9\n"

    engine.reset()
    answer = hived(*SUBMIT, "-q", "--", "x")
    assert (answer.out, answer.err) == ("1\n", "")
    answer = hived(*SUBMIT, "-o", "json", "--", "x")
    assert json.loads(answer.out) == engine.all[1].model_dump()


def test_every_option_arrives(hived: Hived, engine: FakeService) -> None:
    options: list[object] = ["--vc", "speech", "--gpus", 2, "--nodes", 2, "--priority", 10, "--name", "bert"]
    options += ["--retries", 3, "--time-limit", "1h30m", "--grace", "5s", "--lazy"]
    assert hived("submit", *options, "--", "sh", "-c", "echo $X", "--lr", "-3").code == 0
    sent = engine.submissions["1"]
    assert (sent.vc, sent.gpus, sent.tasks, sent.priority, sent.name) == ("speech", 2, 2, 10, "bert")
    assert (sent.retries, sent.time_limit_s, sent.grace_s, sent.lazy_preemption) == (3, 5400, 5, True)
    assert sent.command == ("sh", "-c", "echo $X", "--lr", "-3")
    # what follows the program is its own, without dashes too
    assert hived(*SUBMIT, "python", "train.py", "--gpus", "9", "-f").code == 0
    assert engine.submissions["2"].command == ("python", "train.py", "--gpus", "9", "-f")
    assert engine.submissions["2"].gpus == 1
    answer = hived(*SUBMIT, "--opportunistic", "--", "x")
    assert engine.submissions["3"].priority == -1
    assert "others leave idle" in answer.out
    assert hived(*SUBMIT, "--opportunistic", "--priority", 3, "--", "x").code == 2
    assert len(engine.all) == 3


def test_folder_and_environment(
    hived: Hived, engine: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEARNING_RATE", "0.1 or so\n")
    for name in ("CUDA_VISIBLE_DEVICES", "HIVED_TOKEN", "HIVED_JOB", "RANK", "MASTER_ADDR", "BASH_FUNC_f%%"):
        monkeypatch.setenv(name, "wrong")
    assert hived(*SUBMIT, "--", "x").err == ""
    sent = engine.submissions["1"]
    assert sent.cwd == str(tmp_path)
    assert sent.environment["LEARNING_RATE"] == "0.1 or so\n"
    assert sent.environment["PATH"] == os.environ["PATH"]
    assert sent.environment["PWD"] == str(tmp_path)
    assert "wrong" not in sent.environment.values()
    assert "HIVED_STATE" not in sent.environment
    # one that is no text is left out, and named
    monkeypatch.setitem(os.environ, "BINARY", os.fsdecode(b"\xff\xfe"))
    answer = hived(*SUBMIT, "--", "x")
    assert answer.code == 0
    assert "BINARY" in answer.err
    assert "BINARY" not in engine.submissions["2"].environment

    # the least, and what is named
    for name, value in {"LEARNING_RATE": "0.1", "SECRET": "s", "LANG": "C.UTF-8"}.items():
        monkeypatch.setenv(name, value)
    assert hived(*SUBMIT, "--no-env", "--env", "A=1=2", "-e", "LEARNING_RATE", "--", "x").code == 0
    assert engine.submissions["3"].environment == {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "LANG": "C.UTF-8",
        "A": "1=2",
        "LEARNING_RATE": "0.1",
    }


NAME = "--name: has to be letters, digits and . _ -, a letter first, 63 at most"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--env", "CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES"),
        ("--env", "HIVED_X=0", "HIVED_X"),
        ("--env", "NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE=VALUE"),
        ("--env", "a b=c", "a b"),
        ("--env", "=c", "--env"),
        ("--cwd", "/no/such/folder", "/no/such/folder"),
        ("--cwd", f"/{'x/' * 2500}", "--cwd"),
        ("--time-limit", "soon", "--time-limit"),
        ("--time-limit", "-5", "--time-limit"),
        ("--time-limit", "5", "write 5s, 5m, 5h or 5d"),
        ("--gpus", "0", "--gpus"),
        ("--gpus", "2000000", "--gpus"),
        ("--name", "-x y", "--name"),
        ("--name", "my job", NAME),
        ("--name", "x" * 64, NAME),
        ("--name", "7", NAME),
        ("--vc", "nobody", "--vc: no virtual cluster 'nobody'; there are vision, speech"),
        ("--retries", "5000", "--retries"),
        ("--grace", "5h", "--grace"),
    ],
)
def test_wrong_option_is_named(hived: Hived, engine: FakeService, option: str, value: str, words: str) -> None:
    line = refused(hived(*SUBMIT, option, value, "--", "x"))
    assert words in line
    assert not any(sign in line for sign in ("^", "$", "pattern")), "the form of a text is told in words"
    assert engine.all == []


# -- followed


def test_follow_exits_as_the_job(running: Running, begin: Begin) -> None:
    engine = running.engine
    process = begin(*SUBMIT, "-f", "--", "x")
    until(lambda: engine.all, "the job")
    engine.print(engine.all[0], "epoch 1\nepoch 2\n")
    engine.end(engine.all[0], 7)
    out, err = process.rest()
    assert process.code() == 7
    assert out == "epoch 1\nepoch 2\n"
    assert err.splitlines()[0] == "x-1 runs on node-0 (GPU 0)."
    assert "exit code 7" in err.splitlines()[-1]


def test_follow_through_queue_and_preemption(running: Running, begin: Begin) -> None:
    engine = running.engine
    for _ in range(2):
        engine.add(gpus=4)
    process = begin(*SUBMIT, "--follow", "--", "x")
    until(lambda: len(engine.all) == 3, "the job")
    job = engine.all[2]
    engine.start(job)
    engine.print(job, "first try\n")
    engine.preempt(job)
    assert process.out.readline() == "first try\n"
    assert "waits: needs 4 GPUs" in process.err.readline()
    assert "back in the queue: was preempted" in process.err.readline()
    engine.start(job)
    engine.print(job, "second try\n")
    engine.end(job)
    out, err = process.rest()
    assert process.code() == 0
    assert out == "second try\n"
    assert "runs again, attempt 2" in err
    assert "has succeeded" in err.splitlines()[-1]
    assert "standard input" not in err, "there is none"


@pytest.mark.parametrize("options", [["-f"], ["-f", "-q"]], ids=str)
def test_follow_takes_no_input(running: Running, begin: Begin, tmp_path: Path, options: list[str]) -> None:
    """That is said, unless nothing but the output is to be printed."""
    engine = running.engine
    (tmp_path / "data").write_text("1 2 3\n")
    with (tmp_path / "data").open() as given:
        process = begin(*SUBMIT, *options, "--", "x", stdin=given)
    until(lambda: engine.all, "the job")
    engine.print(engine.all[0], "only this")
    engine.end(engine.all[0])
    out, err = process.rest()
    assert out == "only this"
    if "-q" in options:
        assert err == ""
    else:
        assert "the job does not get this standard input" in err


def test_ctrl_c_leaves_the_job_alone(running: Running, begin: Begin) -> None:
    engine = running.engine
    process = begin(*SUBMIT, "-f", "--", "x")
    until(lambda: engine.all, "the job")
    engine.print(engine.all[0], "here\n")
    assert process.out.readline() == "here\n"
    process.interrupt()
    out, err = process.rest()
    assert (process.code(), out) == (130, "")
    assert "x-1 goes on; to stop it: hived cancel x-1" in err
    assert "Traceback" not in err
    assert engine.all[0].state == "running"


def test_script_that_cannot_be_run(
    hived: Hived, engine: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was accepted, "runs", and failed at once; of directives of Slurm's nobody was told that they are not read."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --gres=gpu:4\n#SBATCH --time=1:00\necho 1\n")
    assert refused(hived("submit", "--vc", "vision", "--", "./job.sh")) == (
        "./job.sh: is not executable; chmod +x it, or run it by its program: -- bash ./job.sh"
    )
    assert refused(hived("submit", "--vc", "vision", "--", "job.sh")) == (
        "job.sh: no program of that name; the file here is ./job.sh"
    )
    assert not engine.all
    script.chmod(0o700)
    for command in (["./job.sh"], ["sh", "job.sh"], [str(script), "4"]):
        answer = hived("submit", "--vc", "vision", "--", *command)
        assert answer.code == 0
        assert "job.sh: hived does not read its 2 #SBATCH lines; give the options to hived submit" in answer.err
    path = f"PATH=.:{os.environ['PATH']}"
    assert hived("submit", "--vc", "vision", "--env", path, "--", "job.sh").code == 0, "the job finds it there"
    script.write_text("echo 1")
    assert hived("submit", "--vc", "vision", "--", "sh", "job.sh", "\udcff").code in (0, 2)
    assert not hived("submit", "--vc", "vision", "--", "sh", "job.sh").err
    assert hived("submit", "--vc", "vision", "--", "x" * 5000).code == 0, "the job finds out"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"echo hi\n",
            "./job.sh: has no first line like #!/bin/bash; add one, or run it by its program",
        ),
        (b"#!/opt/none/python9\nx\n", "./job.sh: its first line names /opt/none/python9, and there is no such program"),
        (b"#!/bin/sh\r\nx\r\n", "its lines end as on Windows, and its interpreter is not found so: sed -i"),
        (b"#!/bin/sh\nexit 0\n", ""),
        (b"#! /bin/sh -e\nexit 0\n", ""),
        (b"\x00\x01binary", ""),
    ],
)
def test_script_without_its_interpreter(
    hived: Hived, engine: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    """It waited for its GPUs, took them from others, and was said not to be there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_bytes(content)
    (tmp_path / "job.sh").chmod(0o700)
    answer = hived("submit", "--vc", "vision", "--", "./job.sh")
    if words:
        assert words in refused(answer)
    else:
        assert answer.code == 0


def test_program_that_is_not_there(hived: Hived, engine: FakeService) -> None:
    assert refused(hived("submit", "--vc", "vision", "--", "/no/such/prog")) == "/no/such/prog: no program of that name"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("submit --vc a --mem 4G -- true", "--mem. What Slurm calls so is here: GPUs are what is shared out"),
        ("submit --vc a -J name -- true", "-J. What Slurm calls so is here: --name (see"),
        ("submit --vc a --dependency=afterok:12 -- true", "here: --after JOB, --after JOB:ok (see"),
        ("ps --me", "--me. What Slurm calls so is here: --user $USER (see"),
        ("submit --vc a --wrap 'sleep 1'", "here: -- sh -c '...' (see"),
        ("submit --vc a -t 10 -- true", "-t. What Slurm calls so is here: --time-limit (see"),
        ("cancel -t PENDING", "-t. What Slurm calls so is here: --status (see"),
        ("cancel -n train", "-n. What Slurm calls so is here: --name (see"),
        ("cancel -A vision -p gpu", "-A. What Slurm calls so is here: --vc (see"),
        ("cancel -u ann --state running", "names the engine's folder; for jobs in a state: --status running"),
        ("cancel -u ann --state PENDING", "in a state: --status; what Slurm calls so: queued, held or reserved"),
        ("hold --state PENDING 12", "and no state; see the verb's --help"),
        ("ps -t R", "-t. What Slurm calls so is here: --status (see"),
        ("ps -p gpu", "-p. What Slurm calls so is here: --vc (see"),
        ("ps -n train", "so many lines; by name: hived explain NAME, hived history --name TEXT"),
        ("history -s FAILED", "-s. What Slurm calls so is here: --status (see"),
        ("history -P", "here: -o json (see"),
        ("devices -N -l", "-N. What Slurm calls so is here: always (see"),
        ("devices -R", "here: --bad: those that take no jobs, and why (see"),
        ("submit --vc a --nothing -- true", "--nothing (see hived submit --help)"),
    ],
)
def test_options_of_slurm(hived: Hived, line: str, words: str) -> None:
    assert words in refused(hived(*shlex.split(line)))


def test_a_line_for_a_shell(hived: Hived) -> None:
    """It "ran", and failed at once."""
    assert refused(hived("submit", "--vc", "vision", "--", "echo hi; sleep 1")) == (
        "'echo hi; sleep 1': no program of that name; what a shell is to read: -- sh -c 'echo hi; sleep 1'"
    )


@pytest.mark.parametrize(
    ("program", "words"), [("squeue", "hived ps"), ("scontrol", "requeue, edit"), ("sinfo", "vc ls")]
)
def test_programs_of_slurm(hived: Hived, program: str, words: str) -> None:
    """They were answered "did you mean requeue"."""
    line = refused(hived(program, "--me"))
    assert line.startswith(f"{program} is Slurm's; here it is hived ")
    assert words in line


@pytest.mark.parametrize("signal", ["USR1@60", "USR1@30s", "USR1"])
def test_signal_that_would_come_at_once(hived: Hived, engine: FakeService, signal: str) -> None:
    """It ended the job before it could handle it."""
    line = refused(hived("submit", "--vc", "vision", "--time-limit", "30s", "--signal", signal, "--", "true"))
    assert line.startswith(f"--signal {signal}")
    assert "s before the end is no less than the time limit of 30 s" in line
    assert "--follow shows one job" in refused(hived("submit", "--vc", "vision", "--array", "1-2", "-f", "--", "true"))
    assert not engine.all
