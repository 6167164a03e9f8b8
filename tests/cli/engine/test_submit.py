"""``hived submit``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ..helpers import Hived
from .fake import WAITING, Engine, Running
from .shell import Begin, until


def test_a_job_that_starts_says_where(hived: Hived, engine: Engine) -> None:
    answer = hived("submit", "--vc", "vision", "--gpus", 2, "--", "python", "train.py")
    assert answer.code == 0
    assert answer.out == "python-1 runs on node-0 (GPUs 0-1).\n"
    assert answer.err == ""


def test_a_gang_says_all_its_places(hived: Hived, engine: Engine) -> None:
    answer = hived("submit", "--vc", "vision", "--gpus", 4, "--nodes", 2, "--", "x")
    assert answer.out == "x-1 runs on node-0 (GPUs 0-3) and node-1 (GPUs 0-3).\n"
    assert engine.submissions[1].tasks == 2


def test_a_job_that_waits_says_why_and_how_to_learn_more(hived: Hived, engine: Engine) -> None:
    for _ in range(2):
        engine.add(gpus=4)
    answer = hived("submit", "--vc", "vision", "--name", "late", "--", "x")
    assert answer.code == 0
    assert answer.out == f"late-3 waits: {WAITING}\n"
    assert "hived explain late-3" in answer.err


def test_every_option_arrives(hived: Hived, engine: Engine) -> None:
    options: list[object] = ["--vc", "speech", "--gpus", 2, "--nodes", 2, "--priority", 10, "--name", "bert"]
    options += ["--retries", 3, "--time-limit", "1h30m", "--grace", "5s", "--lazy"]
    assert hived("submit", *options, "--", "sh", "-c", "echo $X", "--lr", "-3").code == 0
    sent = engine.submissions[1]
    assert (sent.vc, sent.gpus, sent.tasks, sent.priority, sent.name) == ("speech", 2, 2, 10, "bert")
    assert (sent.retries, sent.time_limit_s, sent.grace_s, sent.lazy_preemption) == (3, 5400, 5, True)
    assert sent.command == ["sh", "-c", "echo $X", "--lr", "-3"]


def test_what_follows_the_program_is_its_own_without_dashes_too(hived: Hived, engine: Engine) -> None:
    assert hived("submit", "--vc", "vision", "python", "train.py", "--gpus", "9", "-f").code == 0
    assert engine.submissions[1].command == ["python", "train.py", "--gpus", "9", "-f"]
    assert engine.submissions[1].gpus == 1


def test_an_opportunistic_job_has_no_priority(hived: Hived, engine: Engine) -> None:
    answer = hived("submit", "--vc", "vision", "--opportunistic", "--", "x")
    assert engine.submissions[1].priority == -1
    assert "others leave idle" in answer.out
    answer = hived("submit", "--vc", "vision", "--opportunistic", "--priority", 3, "--", "x")
    assert answer.code == 2
    assert len(engine.all) == 1


def test_the_folder_and_the_environment_go_along(
    hived: Hived, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEARNING_RATE", "0.1 or so\n")
    for name in ("CUDA_VISIBLE_DEVICES", "HIVED_TOKEN", "HIVED_JOB", "RANK", "MASTER_ADDR", "BASH_FUNC_f%%"):
        monkeypatch.setenv(name, "wrong")
    answer = hived("submit", "--vc", "vision", "--", "x")
    assert answer.err == ""
    sent = engine.submissions[1]
    assert sent.cwd == str(tmp_path)
    assert sent.environment["LEARNING_RATE"] == "0.1 or so\n"
    assert sent.environment["PATH"] == os.environ["PATH"]
    assert sent.environment["PWD"] == str(tmp_path)
    assert "wrong" not in sent.environment.values()
    assert "HIVED_STATE" not in sent.environment


def test_no_env_sends_the_least_and_what_is_named(
    hived: Hived, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEARNING_RATE", "0.1")
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("LANG", "C.UTF-8")
    assert hived("submit", "--vc", "vision", "--no-env", "--env", "A=1=2", "-e", "LEARNING_RATE", "--", "x").code == 0
    sent = engine.submissions[1].environment
    assert sent == {
        "PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "LANG": "C.UTF-8", "A": "1=2", "LEARNING_RATE": "0.1",
    }  # fmt: skip


def test_a_variable_that_is_no_text_is_left_out_and_said(
    hived: Hived, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "BINARY", os.fsdecode(b"\xff\xfe"))
    answer = hived("submit", "--vc", "vision", "--", "x")
    assert answer.code == 0
    assert "BINARY" in answer.err
    assert "BINARY" not in engine.submissions[1].environment


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--env", "CUDA_VISIBLE_DEVICES=0"], "CUDA_VISIBLE_DEVICES"),
        (["--env", "HIVED_X=0"], "HIVED_X"),
        (["--env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE=VALUE"),
        (["--env", "a b=c"], "a b"),
        (["--env", "=c"], "--env"),
        (["--cwd", "/no/such/folder"], "/no/such/folder"),
        (["--time-limit", "soon"], "--time-limit"),
        (["--time-limit", "-5"], "--time-limit"),
        (["--time-limit", "5"], "write 5s, 5m, 5h or 5d"),
        (["--gpus", "0"], "--gpus"),
        (["--gpus", "2000000"], "--gpus"),
        (["--name", "-x y"], "--name"),
        (["--vc", "nobody"], "--vc: no virtual cluster 'nobody'; there are vision, speech"),
        (["--retries", "5000"], "--retries"),
        (["--grace", "5h"], "--grace"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(hived: Hived, engine: Engine, options: list[str], words: str) -> None:
    answer = hived("submit", "--vc", "vision", *options, "--", "x")
    assert (answer.code, answer.out) == (2, ""), answer
    assert answer.err.count("\n") == 1
    assert words in answer.err
    assert engine.all == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "my job"], "--name: has to be letters, digits and . _ -, a letter first, 63 at most"),
        (["--name", "x" * 64], "--name: has to be letters, digits and . _ -, a letter first, 63 at most"),
        (["--name", "7"], "--name: has to be letters, digits and . _ -, a letter first, 63 at most"),
        (["--cwd", f"/{'x/' * 2500}"], "--cwd"),
    ],
)
def test_a_text_of_another_form_is_told_in_words(hived: Hived, engine: Engine, options: list[str], words: str) -> None:
    answer = hived("submit", "--vc", "vision", *options, "--", "x")
    assert answer.code == 2
    assert words in answer.err
    assert not any(sign in answer.err for sign in ("^", "$", "pattern"))


def test_what_never_fits_has_a_code_of_its_own(hived: Hived, engine: Engine) -> None:
    answer = hived("submit", "--vc", "vision", "--gpus", 9, "--", "x")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err == "hived: vision has 4 GPUs, this needs 9\n"


def test_quiet_prints_the_id_alone(hived: Hived, engine: Engine) -> None:
    answer = hived("submit", "-q", "--vc", "vision", "--", "x")
    assert (answer.out, answer.err) == ("1\n", "")


def test_json_is_the_engines_answer(hived: Hived, engine: Engine) -> None:
    answer = hived("submit", "-o", "json", "--vc", "vision", "--", "x")
    assert json.loads(answer.out) == engine.all[0].model_dump()


@pytest.mark.parametrize("code", [0, 7])
def test_following_prints_the_output_and_exits_as_the_job_did(running: Running, begin: Begin, code: int) -> None:
    engine = running.engine
    process = begin("submit", "--vc", "vision", "-f", "--", "x")
    until(lambda: engine.all, "the job")
    engine.print(engine.all[0], "epoch 1\nepoch 2\n")
    engine.end(engine.all[0], code)
    out, err = process.rest()
    assert process.code() == code
    assert out == "epoch 1\nepoch 2\n"
    assert err.splitlines()[0] == "x-1 runs on node-0 (GPU 0)."
    assert ("has succeeded" if code == 0 else "exit code 7") in err.splitlines()[-1]


def test_following_goes_on_through_the_queue_and_a_preemption(running: Running, begin: Begin) -> None:
    engine = running.engine
    for _ in range(2):
        engine.add(gpus=4)
    process = begin("submit", "--vc", "vision", "--follow", "--", "x")
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


def test_following_says_that_standard_input_stays_here(running: Running, begin: Begin, tmp_path: Path) -> None:
    engine = running.engine
    (tmp_path / "data").write_text("1 2 3\n")
    for piped, options, said in ((True, ["-f"], True), (False, ["-f"], False), (True, ["-f", "-q"], False)):
        with (tmp_path / "data" if piped else Path(os.devnull)).open() as given:
            process = begin("submit", "--vc", "vision", *options, "--", "x", stdin=given)
        until(lambda: engine.all and engine.all[-1].state == "running", "the job")
        engine.end(engine.all[-1])
        _, err = process.rest()
        assert ("the job does not get this standard input" in err) is said, err


def test_quiet_following_prints_nothing_but_the_output(running: Running, begin: Begin) -> None:
    engine = running.engine
    process = begin("submit", "--vc", "vision", "-f", "-q", "--", "x")
    until(lambda: engine.all, "the job")
    engine.print(engine.all[0], "only this")
    engine.end(engine.all[0])
    assert process.rest() == ("only this", "")


def test_ctrl_c_while_following_leaves_the_job_alone(running: Running, begin: Begin) -> None:
    engine = running.engine
    process = begin("submit", "--vc", "vision", "-f", "--", "x")
    until(lambda: engine.all, "the job")
    engine.print(engine.all[0], "here\n")
    assert process.out.readline() == "here\n"
    process.interrupt()
    out, err = process.rest()
    assert (process.code(), out) == (130, "")
    assert "x-1 goes on; to stop it: hived cancel x-1" in err
    assert "Traceback" not in err
    assert engine.all[0].state == "running"
