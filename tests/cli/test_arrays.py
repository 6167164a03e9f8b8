"""Verbs for an array of a real engine: by its id or name all of it, of whatever it is made by then."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections import Counter

from ..engines.real import until
from .engine.shell import PATIENCE_S
from .helpers import HIVED
from .test_shell import Machine
from .test_shell import machine as machine  # the fixture


def states(machine: Machine) -> Counter[str]:
    return Counter(job["state"] for job in json.loads(machine.run("ps", "-a", "-o", "json"))["jobs"])


def test_an_array_is_all_of_it(machine: Machine) -> None:
    submit = ("submit", "--vc", "vision", "--array", "1-4", "--name", "sweep")
    machine.run(*submit, "--hold", "--", "sleep", "600")
    lines = machine.run("ps").splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:3] == ["1", "1_[1-4]", "sweep"]
    assert machine.run("edit", "sweep", "--time-limit", "9m").count("asks for 1 GPU, time limit 9m; held") == 4
    assert machine.run("priority", "1", "5").count(": priority 5\n") == 4
    assert machine.run("release", "1_[2-4]").count("\n") == 3
    assert states(machine) == {"running": 2, "queued": 1, "held": 1}
    assert machine.run("edit", "1", "--time-limit", "8m").count("time limit 8m") == 4, "those that run too"
    assert machine.run("cancel", "1_2", "1_1").splitlines() == ["sweep-1 is cancelled", "sweep-2 is being stopped"]
    assert machine.run("cancel", "1").count("\n") == 2
    for number in range(1, 5):
        machine.ended(number)
    assert states(machine) == {"cancelled": 4}


def test_which_one_of_an_array_is_shown(machine: Machine) -> None:
    """By the array's name it was the last one, as if there were no others."""
    program = ("sh", "-c", "echo $HIVED_ARRAY_INDEX")
    machine.run("submit", "--vc", "vision", "--array", "3-5", "--name", "arr", "--", *program)
    machine.run("submit", "--vc", "vision", "--array", "7", "--name", "one", "--", "true")
    machine.run("wait", "1", "one")
    for verb, ref, shown in (
        (["logs"], "arr", 5),
        (["explain"], "arr", 5),
        (["explain", "-o", "json"], "arr", 5),
        (["logs"], "1", 3),
        (["explain"], "1", 3),
        (["explain", "-d"], "1", 3),
        (["logs"], "arr_4", 0),
        (["explain"], "arr-3", 0),
        (["explain"], "one", 0),
    ):
        command = [*HIVED, *verb, ref, "--state", str(machine.state)]
        found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
        line = f"{ref} is an array of 3: this is {ref}_{shown}; another by its index: {ref}_INDEX\n"
        assert found.stderr == (line if shown else ""), command
        assert verb != ["logs"] or found.stdout == f"{shown or 4}\n"


def test_another_number_at_a_time(machine: Machine) -> None:
    """It was "nothing to change": the option said that all of the array is meant, and ``%4`` was taken for a job."""
    machine.run("submit", "--vc", "vision", "--array", "1-6%1", "--name", "sweep", "--", "sleep", "600")
    assert states(machine) == {"running": 1, "held": 5}
    said = machine.run("edit", "sweep", "--array", "%2")
    assert said == "array 1: at most 2 of it in line or at work at a time\n"
    assert states(machine) == {"running": 2, "held": 4}
    assert "--array 1-6%2" in machine.run("explain", "-d", "1_6")
    machine.run("cancel", "1_1")
    machine.ended(1)
    assert json.loads(machine.run("edit", "1", "--array", "%0", "-o", "json"))["id"] == "1", "one of it that has ended"
    assert states(machine) == {"cancelled": 1, "running": 2, "queued": 3}
    for words, why in (
        (["1", "--array"], "nothing to change; give --gpus, --nodes"),
        (["1", "%4"], "%4: is of one array and goes alone, hived edit 12 --array %4"),
        (["1", "2", "--array", "%4"], "%4: is of one array and goes alone"),
        (["1", "--array", "%4", "--gpus", "2"], "%4: is of one array and goes alone"),
        (["1", "--array=%4"], "hived edit 12 --array %4, in two words"),
    ):
        command = [*HIVED, "edit", *words, "--state", str(machine.state)]
        found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (found.returncode, why in found.stderr) == (2, True), found.stderr
    machine.run("submit", "--vc", "speech", "--hold", "--", "true")
    command = [*HIVED, "edit", "7", "--array", "%4", "--state", str(machine.state)]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert found.stderr == "hived: --array: true-7 is of no array\n"


def test_one_that_is_run_again_takes_nothing_from_its_array(machine: Machine) -> None:
    """Its new job had the array's name, and all verbs took it for the array."""
    machine.run("submit", "--vc", "vision", "--array", "1-3%1", "--name", "sweep", "--", "sh", "-c", "exit 3")
    machine.ended(1)
    machine.run("submit", "--vc", "speech", "--gpus", "2", "--", "sleep", "600")
    assert machine.run("requeue", "1_1").startswith("sweep_1-5 is ")
    machine.ended(3)
    machine.ended(5)
    machine.run("requeue", "1_2")
    again = machine.ended(6)
    assert (again["name"], again["process"]["array_index"]) == ("sweep_2-6", 2)
    assert [line.split()[0] for line in machine.run("history", "--name", "sweep").splitlines()[1:]] == list("12356")


def test_what_has_not_succeeded_is_run_again(machine: Machine) -> None:
    script = "case $HIVED_ARRAY_INDEX in 1) exit 0;; 2) exit 3;; *) exec sleep 600;; esac"
    machine.run("submit", "--vc", "vision", "--array", "1-3%1", "--name", "sweep", "--", "sh", "-c", script)
    until(lambda: states(machine)["running"] == 1 and states(machine)["failed"] == 1, "the third does not run")
    again = machine.run("requeue", "sweep").splitlines()
    assert [line.split(" is ")[0] for line in again] == ["sweep_2-4", "sweep-3"]
    assert again[1] == "sweep-3 is being stopped, to start again"


def test_cancelled_at_once(machine: Machine) -> None:
    script = "trap '' TERM; echo here; while :; do sleep 0.05; done"
    machine.run("submit", "--vc", "vision", "--grace", "1h", "--", "sh", "-c", script)
    until(lambda: "here" in machine.run("logs", "1"), "it printed nothing")
    assert machine.run("cancel", "1") == "sh-1 is being stopped\n"
    assert "it has 3600 s for that" in machine.run("explain", "1")
    machine.run("cancel", "--now", "1")
    assert machine.ended(1)["state"] == "cancelled"
    assert re.search(r"it ran on +\S+ \(GPU \d\)|it ran on +\S+ GPU \d", machine.run("explain", "-d", "1"))


def test_the_time_that_is_left(machine: Machine) -> None:
    machine.run("submit", "--vc", "vision", "--time-limit", "1h", "--", "sleep", "600")
    assert re.search(r"time limit +1h, \S+ left", machine.run("explain", "-d", "1"))


def test_an_array_hides_nobody(machine: Machine) -> None:
    """``-n`` counts lines: those of an array that wait for the same are one."""
    machine.run("submit", "--vc", "speech", "--name", "first", "--hold", "--", "true")
    machine.run("submit", "--vc", "vision", "--array", "1-120", "--name", "sweep", "--hold", "--", "true")
    machine.run("submit", "--vc", "speech", "--name", "last", "--hold", "--", "true")
    assert [line.split()[0] for line in machine.run("ps").splitlines()[1:]] == ["1", "2", "122"]
    assert [line.split()[0] for line in machine.run("ps", "-n", "2").splitlines()[1:]] == ["2", "122"]
    assert "2_[1-120]" in machine.run("ps", "-n", "2")
    assert machine.run("ps", "--each", "-n", "5").count("\n") == 6
    assert len(json.loads(machine.run("ps", "-n", "5", "-o", "json"))["jobs"]) == 5


def test_cancelled_by_state_and_by_name(machine: Machine) -> None:
    for name in ("fl", "fl", "other"):
        machine.run("submit", "--vc", "vision", "--name", name, "--hold", "--", "true")
    machine.run("submit", "--vc", "speech", "--name", "fl", "--", "sleep", "600")
    assert machine.run("cancel", "--name", "fl", "--status", "held", "--yes").splitlines() == [
        "fl-2 is cancelled",
        "fl-1 is cancelled",
    ]
    assert states(machine) == {"cancelled": 2, "held": 1, "running": 1}
    assert machine.run("cancel", "--name", "fl", "--yes") == "fl-4 is being stopped\n"
    machine.run("cancel", "--status", "held", "--yes")
    machine.ended(4)
    assert states(machine) == {"cancelled": 4}


def test_nobody_is_let_in_by_a_cancel_of_all(machine: Machine) -> None:
    """Those that waited for a held one had started when that was cancelled, and taken GPUs from others."""
    machine.run("submit", "--vc", "vision", "--array", "1-3", "--hold", "--name", "first", "--", "true")
    for _ in range(2):
        machine.run("submit", "--vc", "vision", "--after", "first", "--name", "then", "--", "sleep", "600")
    machine.run("submit", "--vc", "vision", "--after", "then", "--name", "last", "--", "sleep", "600")
    machine.run("cancel", "--all", "--yes")
    assert states(machine) == {"cancelled": 6}
    assert " runs on " not in machine.run("events", "-n", "100")


def test_what_it_was_submitted_with(machine: Machine) -> None:
    options = ("--array", "1-4%2", "--grace", "9s", "--no-requeue", "--checkpoint-signal", "USR1", "--hold")
    machine.run("submit", "--vc", "vision", *options, "--time-limit", "1h", "--signal", "USR2@60s", "--", "true")
    said = machine.run("explain", "--details", "1_2")
    assert "--array 1-4%2 --grace 9s --signal USR2@60s --checkpoint-signal USR1 --no-requeue" in said
    machine.run("submit", "--vc", "speech", "--after", "1:fail", "--after", "3:ok", "--", "true")
    after = machine.run("explain", "--details", "5")
    assert "--after 1:fail --after 2:fail --after 3:fail --after 4:fail --after 3:ok" in after


def test_of_no_virtual_cluster(machine: Machine) -> None:
    """It was said that nobody had jobs there."""
    for verb in (("ps",), ("cancel", "--yes")):
        for option, value, words in (
            ("--vc", "vison", "there is no such virtual cluster; there are vision, speech"),
            ("--user", "ann,ben", "--user ann,ben: one at a time"),
        ):
            command = [*HIVED, *verb, "--state", str(machine.state), option, value]
            found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
            assert (found.returncode, words in found.stderr) == (2, True), found.stderr


def test_what_nobody_reads_is_done(machine: Machine) -> None:
    """`hived cancel --all -o json | head` left the others as they were, without a word."""
    machine.run("submit", "--vc", "vision", "--array", "1-5", "--hold", "--", "true")
    words = " ".join(map(shlex.quote, [*HIVED, "cancel", "--all", "--yes", "--state", str(machine.state)]))
    command = f"{words} -o json | head -c 1"
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert states(machine) == {"cancelled": 5}
