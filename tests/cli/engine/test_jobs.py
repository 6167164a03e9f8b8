"""``hived ps``, ``explain``, ``cancel`` and ``wait``."""

from __future__ import annotations

import json
import re
import time
from collections import Counter

from hived.server.schema import MOST_AT_ONCE

from ...server.fakes import WAITING, FakeService, Running
from ..helpers import Hived, refused
from .shell import Begin, until

LISTS = "hived ps --all lists them\n"


def fill(engine: FakeService) -> None:
    """One that has failed, two that run, one that waits."""
    engine.end(engine.add(name="early"), 3)
    engine.add(name="train", gpus=4)
    engine.add(name="sweep", vc="speech", gpus=4, priority=-1)
    engine.add(name="late")


def names(out: str) -> list[str]:
    """The second column of a table."""
    return [line.split()[1] for line in out.splitlines()[1:]]


# -- ps


def test_where_jobs_run_and_why_they_wait(hived: Hived, engine: FakeService) -> None:
    fill(engine)
    answer = hived("ps")
    assert (answer.code, answer.err) == (0, "")
    header, *lines = answer.out.splitlines()
    assert header.split() == ["ID", "NAME", "USER", "VC", "GPUS", "PRIO", "STATE", "AGE", "RUN", "WHERE/WHY"]
    assert [line.split()[:6] for line in lines] == [
        ["2", "train-2", "ann", "vision", "4", "0"],
        ["3", "sweep-3", "ann", "speech", "4", "opp"],
        ["4", "late-4", "ann", "vision", "1", "0"],
    ]
    ends = ["WHERE/WHY", "node-0:0-3", "node-1:0-3", WAITING]
    assert [line[-len(end) :] for line, end in zip([header, *lines], ends, strict=True)] == ends
    places = {line.rindex(end) for line, end in zip([header, *lines], ends, strict=True)}
    assert len(places) == 1, "columns stand one below the other"
    found = json.loads(hived("ps", "-o", "json").out)
    assert found["total"] == 3
    assert {job["name"]: job for job in found["jobs"]}["train-2"] == engine.all[1].model_dump()


def test_chosen_jobs(hived: Hived, engine: FakeService) -> None:
    answer = hived("ps")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith("no jobs")
    fill(engine)
    assert names(hived("ps", "--vc", "speech").out) == ["sweep-3"]
    assert names(hived("ps", "--status", "queued", "-s", "failed").out) == ["late-4", "early-1"]
    lines = hived("ps", "--all").out.splitlines()
    assert len(lines) == 5
    assert lines[-1].split()[:2] == ["1", "early-1"]
    assert "failed" in lines[-1]
    assert lines[-1].endswith("exit code 3")
    assert "queued, reserved" in refused(hived("ps", "--status", "asleep"))
    assert "--status running" in refused(hived("ps", "--state", "running")), "that is the engine's folder"


def test_latest_jobs_and_how_many_more(hived: Hived, engine: FakeService) -> None:
    for n in range(250):
        engine.end(engine.add(name=f"job{n}"))
    answer = hived("ps", "--all", "-n", 120)
    assert [line.split()[0] for line in answer.out.splitlines()[1:]] == [str(n) for n in range(131, 251)]
    assert "120 of 250 jobs" in answer.err
    for verb, form in ((("ps", "--all"), "json"), (("history",), "yaml")):
        answer = hived(*verb, "-o", form)
        assert answer.err == "100 of 250 jobs; all of them: -n 0\n", "programs took them for all"
    answer = hived("ps", "--all", "-n", 0)
    assert len(answer.out.splitlines()) == 251
    assert answer.err == ""
    assert len(json.loads(hived("ps", "--all", "-n", 0, "-o", "json").out)["jobs"]) == 250


def test_name_cannot_command_the_terminal(hived: Hived, engine: FakeService) -> None:
    bad = "\x1b[2J\x9b31m\u202eevil[red]\nx"
    engine.change(engine.add(), state="queued", tasks=[], why=[bad])
    engine.all[0] = engine.all[0].model_copy(update={"name": f"train{bad}-1"})
    for arguments in ("ps", "ps --all", "explain 1", "events", "top", "drain --yes", "ps -o json", "top -o json"):
        answer = hived(*arguments.split())
        assert answer.code == 0
        for sign in ("\x1b", "\x9b", "\u202e", "…", "│"):
            assert sign not in answer.out + answer.err, arguments
    line = hived("ps").out.splitlines()[1]
    assert r"train\x1b[2J\x9b31m\u202eevil[red]\x0ax-1" in line
    assert json.loads(hived("ps", "-o", "json").out)["jobs"][0]["why"] == [bad]


# -- explain and cancel


def test_explain(hived: Hived, engine: FakeService) -> None:
    fill(engine)
    assert hived("explain", "late").out == f"late-4 is queued\n  {WAITING}\n"
    assert json.loads(hived("explain", "4", "-o", "json").out)["reasons"] == [{"kind": "need"}]
    for verb in ("explain", "cancel", "wait", "logs"):
        for ref in ("nope", "99", "../about", "a/b", "%2e", "a b", "?x=1", "", "9" * 90):
            refused(hived(verb, "--", ref), 4)


def test_cancel_begins_with_those_that_wait(hived: Hived, engine: FakeService) -> None:
    """Each GPU that was given up started one that was about to be cancelled."""
    for name in ("first", "second", "third", "fourth"):
        engine.add(name=name, gpus=4)
    assert [job.state for job in engine.all] == ["running", "running", "queued", "queued"]
    said = ["third-3 is cancelled", "fourth-4 is cancelled", "first-1 is being stopped", "second-2 is being stopped"]
    engine.change(engine.all[0], array=1, array_index=5)
    engine.change(engine.all[2], array=1, array_index=7)
    assert "1_5 first-1 " in hived("ps").out
    assert hived("cancel", "1").out.splitlines() == said[::2]
    engine.change(engine.all[0], state="running", why=[])
    assert hived("cancel", "--array", "third").out.splitlines() == said[2:3]
    assert refused(hived("cancel", "--array", "second")) == "--array: second-2 is of no array"
    engine.all.clear()
    for how in (["--all", "--yes"], ["second", "first", "fourth", "third"]):
        for name in ("first", "second", "third", "fourth"):
            engine.add(name=name, gpus=4)
        assert sorted(hived("cancel", *how).out.splitlines()[:2]) == sorted(said[:2])
        engine.all.clear()


def test_cancel(hived: Hived, engine: FakeService) -> None:
    """One that cannot be cancelled does not save the others."""
    fill(engine)
    answer = hived("cancel", "nope", "early", "late", "train")
    assert answer.code == 4
    assert answer.out == "late-4 is cancelled\ntrain-2 is being stopped\n"
    assert answer.err.splitlines() == [
        "hived: no job 'nope'; hived ps --all lists them",
        "hived: early-1 has ended already",
    ]
    assert [job.state for job in engine.all[1:]] == ["stopping", "running", "cancelled"]
    assert hived("cancel", "early").code == 2
    assert hived("cancel", "sweep").code == 0


# -- wait


def test_exit_code_is_of_the_first_that_failed(running: Running, begin: Begin) -> None:
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


def test_wait_for_ended_jobs_or_so_long(hived: Hived, engine: FakeService) -> None:
    engine.end(engine.add())
    engine.end(engine.add(name="killed"), 137)
    engine.change(engine.add(name="gone"), state="cancelled", tasks=[])
    assert hived("wait", "1").code == 0
    assert hived("wait", "1", "killed").code == 137
    assert hived("wait", "gone").code == 143, "a cancelled job has not succeeded"
    found = [json.loads(line) for line in hived("wait", "1", "2", "-o", "json").out.splitlines()]
    assert [job["id"] for job in found] == ["1", "2"]
    engine.add()
    answer = hived("wait", "train", "--timeout", "0.2s")
    assert (answer.code, answer.out) == (124, "")
    assert "train-4" in answer.err


def test_wait_over_a_restart(running: Running, begin: Begin) -> None:
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


def test_requeue_of_one_that_has_ended(hived: Hived, engine: FakeService) -> None:
    """It is submitted again, beside one that runs; held it cannot be."""
    hived("submit", "--vc", "vision", "--", "true")
    engine.end(engine.all[0])
    assert hived("requeue", "1", "--hold").err.startswith("hived: --hold: 1 has ended, and is not stopped")
    answer = hived("requeue", "1")
    assert (answer.code, answer.out) == (0, "true-2 is running: submitted again\n")
    assert (
        answer.err == "what the ended one has kept in its HIVED_JOB_DIR is in HIVED_PREVIOUS_JOB_DIR of the new one\n"
    )
    engine.keeps_files = False
    answer = hived("requeue", "1")
    gone = "; what the one before kept in its HIVED_JOB_DIR is deleted by now (hived up --keep)"
    assert (answer.out, answer.err) == (f"true-3 is running: submitted again{gone}\n", "")
    engine.keeps_files = True
    said = hived("requeue", "1", "2").out
    assert said.splitlines() == ["true-4 is running: submitted again", "true-2 is being stopped, to start again"]
    engine.change(engine.all[1], state="running")
    engine.refuses_again = True
    answer = hived("requeue", "1", "2")
    assert (answer.code, answer.out) == (77, "")
    assert answer.err.splitlines()[-1] == "so none of those that run was stopped (1 job)"
    assert engine.all[1].state.value == "running"


def test_history_of_some(hived: Hived, engine: FakeService) -> None:
    for name, code, ago in (("old", 0, 90_000), ("new", 0, 60), ("bad", 3, 30)):
        job = engine.add(name=name)
        engine.end(job, code)
        engine.change(job, ended_at=time.time() - ago)

    def ids(*options: str) -> list[str]:
        return [line.split()[0] for line in hived("history", *options).out.splitlines()[1:]]

    assert ids() == ["1", "2", "3"]
    assert ids("--since", "1h") == ids("-S", "1d") == ["2", "3"]
    assert ids("--status", "failed") == ids("--status", "FAILED") == ["3"]
    assert refused(hived("history", "--state", "FAILED")) == (
        "--state FAILED: names the engine's folder; for jobs in a state: --status failed"
    )
    assert ids("--name", "ne") == ["2"]
    assert ids("--until", "1h") == ["1"]
    assert ids("--since", "50s", "-E", "10s") == ["3"]
    assert ids("--since", "1h", "-n", "1") == ["3"]
    assert hived("history", "--name", "nothing").err == "no such job has ended\n"
    assert refused(hived("history", "--since", "soon")).startswith("--since soon: is no time; write 30d")
    assert "no state of a job" in refused(hived("history", "--status", "broken"))
    assert refused(hived("history", "--status", "PENDING")).endswith("what Slurm calls so: queued, held or reserved")


def test_those_of_an_array_that_wait_are_a_line(hived: Hived, engine: FakeService) -> None:
    """An array of 200 was 196 lines that said the same."""
    for number in range(7):
        engine.change(engine.add(name="sweep", gpus=4), array=1, array_index=number + 1)
    other = engine.change(engine.add(name="other", gpus=4), array=8, array_index=3)
    engine.change(engine.all[5], why=["another reason"])
    engine.change(engine.all[3], state="cancelled", why=[])
    lines = [line.split()[:3] for line in hived("ps").out.splitlines()[1:]]
    assert lines == [
        ["1", "1_1", "sweep-1"],
        ["2", "1_2", "sweep-2"],
        ["3", "1_[3,5,7]", "sweep"],
        ["6", "1_6", "sweep-6"],
        [other.id, "8_3", other.name],
    ]
    assert len(hived("ps", "--each").out.splitlines()) == 1 + 7


def test_details(hived: Hived, engine: FakeService) -> None:
    job = engine.add(gpus=2, tasks=2, priority=7)
    engine.change(job, command=["python", "my train.py"], cwd="/home/ann", time_limit_s=90.0, array=1, array_index=4)
    engine.end(job, 3)
    facts = dict(
        re.split(" {2,}", line, maxsplit=1) for line in hived("explain", "-d", "1").out.split("\n\n")[1].splitlines()
    )
    assert facts["command"] == "python 'my train.py'"
    assert (facts["size"], facts["time limit"], facts["exit code"]) == ("4 GPUs in 2 tasks", "1m30s", "3")
    assert (facts["of"], facts["array"]) == ("ann in vision, priority 7", "1, index 4")
    assert {"submitted", "started", "ended", "folder", "starts"} <= set(facts)


def test_wait_for_an_array(hived: Hived, engine: FakeService) -> None:
    """By its id or name it is all of it, as for --after; it was the first of them, or the last."""
    for number in range(3):
        engine.change(engine.add(name="a"), array=1, array_index=number)
    engine.add(name="other")
    for job in engine.all[:3]:
        engine.end(job, 3 if job.id == "2" else 0)
    assert hived("wait", "1").code == hived("wait", "a").code == 3
    assert hived("wait", "1").out.splitlines() == [
        "a-1 has succeeded.",
        "a-2 has failed (exit code 3).",
        "a-3 has succeeded.",
    ]
    assert hived("wait", "3").out == "a-3 has succeeded.\n"
    assert hived("wait", "a-1").out == "a-1 has succeeded.\n"


def test_an_array_is_all_of_it(hived: Hived, engine: FakeService) -> None:
    """By the id of its first job, or its name: verbs took the last of them, or the first, which may have ended."""
    for number in range(4):
        engine.change(engine.add(name="a", gpus=4), array=1, array_index=number)
    engine.end(engine.all[0])
    assert [job.state for job in engine.all] == ["succeeded", "running", "queued", "queued"]
    assert hived("hold", "1").out.splitlines() == [f"a-{n} is held: by {engine.owner.name}" for n in (3, 4)]
    assert hived("release", "a").out.count("\n") == 2
    assert "a-2 is running" in refused(hived("hold", "a-2"))
    assert hived("cancel", "1_[2-3]").out.splitlines() == ["a-3 is cancelled", "a-4 is cancelled"]
    assert hived("cancel", "1").out == "a-2 is being stopped\n"
    engine.end(engine.all[1])
    assert refused(hived("cancel", "1")).startswith("all of array 1 has ended; hived requeue 1_INDEX")
    assert "is no job; options say" in refused(hived("edit", "2", "TimeLimit=120", "--gpus", "1"))


def test_many_are_counted(hived: Hived, engine: FakeService) -> None:
    for number in range(20):
        engine.change(engine.add(name="a", gpus=4), array=1, array_index=number)
    assert hived("cancel", "a").out == "20 jobs: 18 cancelled, 2 stopping\n"


def test_more_than_one_request_takes(hived: Hived, engine: FakeService) -> None:
    """All are withdrawn before the first that runs is stopped; of many indexes the list is read, and not each job."""
    for number in range(2 * MOST_AT_ONCE + 1):
        engine.change(engine.add(name="a", gpus=4), array=1, array_index=number)
    engine.asked.clear()
    assert hived("cancel", f"a_[2-{2 * MOST_AT_ONCE + 1}]").err == f"hived: no job '1_{2 * MOST_AT_ONCE + 1}'; " + LISTS
    assert engine.asked.count("1_2") == 0
    assert Counter(job.state.value for job in engine.all) == {"running": 2, "cancelled": 2 * MOST_AT_ONCE - 1}
    assert hived("cancel", "a").out == "a-1 is being stopped\na-2 is being stopped\n"


def test_some_of_an_array_by_its_name(hived: Hived, engine: FakeService) -> None:
    """It was no job, where 1_[2-3] was two."""
    for number in range(1, 5):
        engine.change(engine.add(name="a", gpus=4), array=1, array_index=number)
    engine.add(name="a_3", gpus=4)  # what was submitted again
    assert hived("hold", "a_[3,4]").out.splitlines() == [f"a-{n} is held: by {engine.owner.name}" for n in (3, 4)]
    assert hived("release", "a-1_[4]").out.startswith("a-4 waits: ")
    assert hived("cancel", "a_[2-3]").out.splitlines() == ["a-3 is cancelled", "a-2 is being stopped"]
    engine.end(engine.all[1], 3)
    assert hived("wait", "a_[2]").code == 3
    for wrong in ("b_[1-2]", "a_[9]", "a_[,]", "a_[-]"):
        assert hived("cancel", wrong).code == 4, wrong


def test_requeue_of_an_array(hived: Hived, engine: FakeService) -> None:
    """All of it that runs, or has ended otherwise than well: it was refused, or what runs alone."""
    hived("submit", "--vc", "vision", "--", "true")
    for number in range(1, 5):
        engine.change(engine.add(name="a"), array=2, array_index=number)
        engine.submissions[str(number + 1)] = engine.submissions["1"]
    engine.end(engine.all[1])
    engine.end(engine.all[2], 3)
    engine.change(engine.all[3], state="cancelled", tasks=[])
    again = "2 of array 2 (2-3) are submitted again: array 6, true, as many of it at a time"
    said = [again, "a-5 is being stopped, to start again"]
    assert [job.state.value for job in engine.all[1:]] == ["succeeded", "failed", "cancelled", "running"]
    assert hived("requeue", "--hold", "a").out == "a-5 is being stopped, to be held\n"
    engine.change(engine.all[4], state="running")
    answer = hived("requeue", "2")
    assert answer.out.splitlines() == said
    assert engine.resubmitted == [("3", "2-3")]
    engine.change(engine.all[2], gpus=2)  # it was edited: what asks for something else goes by itself
    answer = hived("requeue", "2_[2-3]", "1")
    assert engine.resubmitted == [("3", "2-3")]
    assert [line.partition(" ")[0] for line in answer.out.splitlines()] == ["true-7", "true-8", "true-1"]
    for job in engine.all[1:]:
        engine.end(job)
    assert refused(hived("requeue", "a")).startswith("all of array 2 has succeeded; hived requeue 2_INDEX")
    assert refused(hived("requeue", "--hold", "a")).startswith("all of array 2 has ended; hived requeue 2_INDEX")


def test_indexes_that_have_no_room_in_a_request_go_in_parts(hived: Hived, engine: FakeService) -> None:
    hived("submit", "--vc", "vision", "--", "true")
    for index in range(8_500, 11_500, 2):
        engine.change(engine.add(name="a"), array=2, array_index=index, state="cancelled", tasks=[])
    engine.submissions |= dict.fromkeys((job.id for job in engine.all), engine.submissions["1"])
    assert hived("requeue", "a").code == 0
    parts = [indexes for _, indexes in engine.resubmitted]
    assert ",".join(parts) == ",".join(map(str, range(8_500, 11_500, 2)))
    assert max(map(len, parts)) <= 4_096


def test_exit_code_of_the_first_as_given(hived: Hived, engine: FakeService) -> None:
    """It was that of a job that had ended, where one before it was no job at all."""
    engine.end(engine.add(name="over"))
    for name in ("runs", "runs", "waits"):
        engine.add(name=name, gpus=4)
    for verb, given in (("cancel", ["99", "over"]), ("hold", ["99", "waits", "runs"]), ("requeue", ["99", "waits"])):
        assert hived(verb, *given).code == 4, verb
        assert hived(verb, *reversed(given)).code == 2, verb
    assert hived("cancel", "waits", "99", "over").code == 4


def test_one_that_has_ended_is_said_beside_an_array(hived: Hived, engine: FakeService) -> None:
    """Of an array those are meant that have not ended; of jobs that are named, each."""
    for number in range(2):
        engine.change(engine.add(name="a", gpus=4), array=1, array_index=number)
    engine.end(engine.add(name="over"))
    answer = hived("cancel", "over", "a")
    assert (answer.code, answer.err) == (2, "hived: over-3 has ended already\n")
    assert answer.out.count("is being stopped") == 2
