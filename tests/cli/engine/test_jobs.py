"""``hived ps``, ``explain``, ``cancel`` and ``wait``."""

from __future__ import annotations

import json

import pytest

from ..helpers import Hived
from .fake import WAITING, Engine, Running
from .shell import Begin, until


def rows(out: str) -> list[list[str]]:
    """Cells of a table whose columns are two blanks apart at least."""
    return [[cell for cell in line.split("  ") if cell] for line in out.splitlines()]


def fill(engine: Engine) -> None:
    """Two that run, one that waits, one that has failed."""
    engine.end(engine.add(name="early"), 3)
    engine.add(name="train", gpus=4)
    engine.add(name="sweep", vc="speech", gpus=4, priority=-1)
    engine.add(name="late")


def test_ps_shows_where_jobs_run_and_why_they_wait(hived: Hived, engine: Engine) -> None:
    fill(engine)
    answer = hived("ps")
    assert (answer.code, answer.err) == (0, "")
    header, *lines = answer.out.splitlines()
    assert header.split() == ["ID", "NAME", "VC", "GPUS", "PRIO", "STATE", "AGE", "RUN", "WHERE/WHY"]
    assert [line.split()[:6] for line in lines] == [
        ["2", "train-2", "vision", "4", "0", "running"],
        ["3", "sweep-3", "speech", "4", "opp", "running"],
        ["4", "late-4", "vision", "1", "0", "queued"],
    ]
    assert lines[0].endswith("node-0:0-3")
    assert lines[1].endswith("node-1:0-3")
    assert lines[2].endswith(WAITING)
    places = {
        line.index(words) for line, words in zip([header, *lines], ["WHERE", "node-0", "node-1", "needs"], strict=True)
    }
    assert len(places) == 1, "columns stand one below the other"


def test_ps_all_shows_ended_ones_and_their_exit_codes(hived: Hived, engine: Engine) -> None:
    fill(engine)
    lines = hived("ps", "--all").out.splitlines()
    assert len(lines) == 5
    assert lines[-1].split()[:2] == ["1", "early-1"]
    assert "failed" in lines[-1]
    assert lines[-1].endswith("exit code 3")


def test_ps_can_be_narrowed(hived: Hived, engine: Engine) -> None:
    fill(engine)
    assert [row.split()[1] for row in hived("ps", "--vc", "speech").out.splitlines()[1:]] == ["sweep-3"]
    assert [row.split()[1] for row in hived("ps", "--status", "queued", "-s", "failed").out.splitlines()[1:]] == [
        "late-4", "early-1",
    ]  # fmt: skip


def test_ps_shows_the_latest_and_says_how_many_more_there_are(hived: Hived, engine: Engine) -> None:
    for n in range(250):
        engine.end(engine.add(name=f"job{n}"))
    answer = hived("ps", "--all", "-n", 120)
    assert [line.split()[0] for line in answer.out.splitlines()[1:]] == [str(n) for n in range(131, 251)]
    assert "120 of 250 jobs" in answer.err
    answer = hived("ps", "--all", "-n", 0)
    assert len(answer.out.splitlines()) == 251
    assert answer.err == ""
    assert len(json.loads(hived("ps", "--all", "-n", 0, "-o", "json").out)["jobs"]) == 250


def test_ps_json_is_what_the_engine_says(hived: Hived, engine: Engine) -> None:
    fill(engine)
    found = json.loads(hived("ps", "-o", "json").out)
    assert found["total"] == 3
    assert {job["name"]: job for job in found["jobs"]}["train-2"] == engine.all[1].model_dump()


def test_ps_without_jobs_says_so_beside_the_output(hived: Hived, engine: Engine) -> None:
    answer = hived("ps")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith("no jobs")


def test_ps_knows_its_states_from_the_folder_of_the_engine(hived: Hived, engine: Engine) -> None:
    answer = hived("ps", "--status", "asleep")
    assert answer.code == 2
    assert "queued, backoff" in answer.err
    answer = hived("ps", "--state", "running")
    assert answer.code == 2
    assert "--status running" in answer.err


def test_names_of_others_cannot_command_the_terminal(hived: Hived, engine: Engine) -> None:
    job = engine.add(name="train")
    bad = "\x1b[2J\x9b31m\u202eevil[red]\nx"
    engine.change(job, state="queued", placement=[], reason=bad)
    engine.all[0] = engine.all[0].model_copy(update={"name": f"train{bad}-1"})
    for arguments in (["ps"], ["explain", "1"], ["events"], ["top"], ["ps", "-o", "json"], ["top", "-o", "json"]):
        answer = hived(*arguments)
        assert answer.code == 0
        for sign in ("\x1b", "\x9b", "\u202e"):
            assert sign not in answer.out + answer.err, arguments
    line = hived("ps").out.splitlines()[1]
    assert r"train\x1b[2J\x9b31m\u202eevil[red]\x0ax-1" in line
    assert json.loads(hived("ps", "-o", "json").out)["jobs"][0]["reason"] == bad


def test_explain_tells_in_words_and_as_data(hived: Hived, engine: Engine) -> None:
    fill(engine)
    assert hived("explain", "late").out == f"late-4 is queued\n  {WAITING}\n"
    assert json.loads(hived("explain", "4", "-o", "json").out)["reasons"] == [{"kind": "need"}]


@pytest.mark.parametrize("verb", ["explain", "cancel", "wait", "logs"])
@pytest.mark.parametrize("ref", ["nope", "99", "../about", "a/b", "%2e", "a b", "?x=1", "", "9" * 90])
def test_an_unknown_job_has_a_code_of_its_own(hived: Hived, engine: Engine, verb: str, ref: str) -> None:
    answer = hived(verb, "--", ref)
    assert (answer.code, answer.out) == (4, "")
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("hived: ")


def test_cancel_says_what_becomes_of_each(hived: Hived, engine: Engine) -> None:
    fill(engine)
    answer = hived("cancel", "train", "4")
    assert answer.code == 0
    assert answer.out == "train-2 is being stopped\nlate-4 is cancelled\n"
    assert [job.state for job in engine.all[1:]] == ["stopping", "running", "cancelled"]


def test_one_that_cannot_be_cancelled_does_not_save_the_others(hived: Hived, engine: Engine) -> None:
    fill(engine)
    answer = hived("cancel", "nope", "early", "late")
    assert answer.code == 4
    assert answer.out == "late-4 is cancelled\n"
    assert answer.err.splitlines() == [
        "hived: no job 'nope'; hived ps --all lists them",
        "hived: early-1 has ended already",
    ]
    assert hived("cancel", "early").code == 2


def test_wait_exits_as_the_first_that_failed(running: Running, begin: Begin) -> None:
    engine = running.engine
    jobs = [engine.add() for _ in range(3)]
    process = begin("wait", 1, 2, 3)
    engine.end(jobs[2], 5)
    assert process.out.readline() == "train-3 has failed (exit code 5).\n"
    engine.end(jobs[0])
    engine.end(jobs[1], 4)
    out, err = process.rest()
    assert (process.code(), err) == (4, "")
    assert sorted(out.splitlines()) == ["train-1 has succeeded.", "train-2 has failed (exit code 4)."]


def test_wait_is_over_at_once_for_ended_jobs(hived: Hived, engine: Engine) -> None:
    engine.end(engine.add())
    engine.end(engine.add(name="killed"), 137)
    assert hived("wait", "1").code == 0
    assert hived("wait", "1", "killed").code == 137
    found = [json.loads(line) for line in hived("wait", "1", "2", "-o", "json").out.splitlines()]
    assert [job["id"] for job in found] == [1, 2]


def test_a_cancelled_job_has_not_succeeded(hived: Hived, engine: Engine) -> None:
    engine.change(engine.add(), state="cancelled", placement=[])
    assert hived("wait", "1").code == 143


def test_wait_gives_up_when_time_is_out(hived: Hived, engine: Engine) -> None:
    engine.add()
    answer = hived("wait", "train", "--timeout", "0.2s")
    assert (answer.code, answer.out) == (124, "")
    assert "train-1" in answer.err


def test_wait_outlives_a_restart_of_the_engine(running: Running, begin: Begin) -> None:
    engine = running.engine
    job = engine.add()
    process = begin("wait", "train", "-o", "json")
    until(lambda: "train" in engine.asked, "its first question")
    running.stop()
    assert "trying again" in process.err.readline()
    engine.end(job)
    running.start()
    out, err = process.rest()
    assert process.code() == 0
    assert "the engine is back" in err
    assert json.loads(out)["state"] == "succeeded"


def test_ctrl_c_ends_a_wait_alone(running: Running, begin: Begin) -> None:
    engine = running.engine
    engine.end(engine.add())
    engine.add()
    process = begin("wait", 1, 2)
    assert process.out.readline() == "train-1 has succeeded.\n"
    process.interrupt()
    assert process.rest() == ("", "")
    assert process.code() == 130
    assert engine.all[1].state == "running"
