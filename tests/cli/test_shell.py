"""``hived shell`` on real terminals and a real engine: what is typed and printed, sizes, ends of either side."""

from __future__ import annotations

import fcntl
import json
import re
import shlex
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hived.engines.local.terminal import MOST, Messages, framed

from .engine.shell import PATIENCE_S, Terminal
from .helpers import HIVED, Engine, Hived, refused


class Machine:
    """An engine with two GPUs of one virtual cluster and two of another; its jobs end with it."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.engine = Engine(folder, "--devices", "4", "--vc", "vision=2", "--vc", "speech=2")

    def run(self, verb: str, *words: str) -> str:
        command = [*HIVED, verb, "--state", str(self.state), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout

    def shell(self, *words: str) -> Terminal:
        return Terminal(["shell", "--state", self.state, "--vc", "vision", *words], width=80, height=24)

    def job(self, number: int) -> Any:
        return next(job for job in json.loads(self.run("ps", "-a", "-o", "json"))["jobs"] if job["id"] == str(number))

    def ended(self, number: int) -> Any:
        until = time.monotonic() + PATIENCE_S
        while (job := self.job(number))["ended_at"] is None:
            assert time.monotonic() < until, job
        return job


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    with made.engine:
        yield made
        made.run("cancel", "--all", "--yes")
        until = time.monotonic() + PATIENCE_S
        while left := json.loads(made.run("ps", "-n", "0", "-o", "json"))["jobs"]:
            assert time.monotonic() < until, left


def test_program_is_on_this_terminal(machine: Machine) -> None:
    """With GPUs of its own, and its exit code; the job ends with it."""
    script = 'tty; echo "[$CUDA_VISIBLE_DEVICES]"; read line; echo "got $line"; exit 7'
    with machine.shell("--gpus", "2", "--", "sh", "-c", script) as terminal:
        terminal.until(re.compile(r"/dev/pts/\d+\s+\[0,1\]"))
        assert "shell-1 runs on " in terminal.seen, "the prompt is as outside"
        terminal.press("hello\r")
        terminal.until("got hello")
        assert terminal.code() == 7
    assert f"command     sh -c {shlex.quote(script)}\n" in machine.run("explain", "--details", "1")
    job = machine.ended(1)
    assert (job["state"], job["process"]["exit_code"], job["name"]) == ("failed", 7, "shell-1")


def test_it_has_the_size_of_this_terminal(machine: Machine) -> None:
    with machine.shell("--", "sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.1; done") as terminal:
        terminal.until("ready")
        for rows, columns in ((30, 100), (50, 132)):
            fcntl.ioctl(terminal._end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            terminal.until(f"{rows} {columns}")
        machine.run("cancel", "1")
        assert terminal.code() == 143
        assert "shell-1 was stopped: cancelled by" in terminal.seen


def test_its_name_folder_and_variables(machine: Machine, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    options = ("--name", "look", "--cwd", str(here), "--env", "MINE=7")
    with machine.shell(*options, "--", "sh", "-c", 'echo "[$PWD $MINE]"') as terminal:
        terminal.until(f"[{here} 7]")
        assert terminal.code() == 0
    assert machine.ended(1)["name"] == "look-1"


def test_much_that_is_typed_at_once(machine: Machine) -> None:
    """Neither side waits for the other: a program that is slow to read is still read."""
    with machine.shell("--", "sh", "-c", "stty raw -echo; echo ready; exec cat") as terminal:
        terminal.until("ready")
        line = "x" * 4000
        for times in range(1, 51):
            terminal.press(line)
            terminal.until("x" * 4000 * times)
        machine.run("cancel", "1")
        terminal.code()
        assert terminal.seen.count("x") == 200_000


def test_closed_terminal_ends_the_job(machine: Machine) -> None:
    terminal = machine.shell("--", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    terminal.until("ready")
    terminal.__exit__()
    assert machine.ended(1)["state"] in ("failed", "cancelled")


def test_preempted_shell_says_so_and_does_not_come_again(machine: Machine) -> None:
    with machine.shell("--gpus", "2", "--opportunistic", "--", "sh", "-c", "echo ready; exec sleep 600") as terminal:
        terminal.until("ready")
        machine.run("submit", "--vc", "vision", "--gpus", "2", "--", "sleep", "600")
        machine.run("submit", "--vc", "speech", "--gpus", "2", "--", "sleep", "600")
        assert terminal.code() != 0
        assert "shell-1 was stopped: preempted by sleep" in terminal.seen
    assert machine.ended(1)["state"] == "cancelled"


def test_what_runs_in_a_shell_has_its_grace(machine: Machine, tmp_path: Path) -> None:
    """It was hung up on in the same second, and what ran in it could not save anything."""
    script = tmp_path / "saves.sh"
    script.write_text("trap 'echo saving; sleep 1; echo saved; exit' TERM; echo ready; while :; do sleep 0.05; done")
    with machine.shell("--opportunistic", "--gpus", "2", "--", "bash", "--norc", "-i") as terminal:
        terminal.until("bash-")
        terminal.press(f"sh {script}\r")
        terminal.until("ready")
        machine.run("submit", "--vc", "vision", "--gpus", "2", "--", "sleep", "600")
        machine.run("submit", "--vc", "speech", "--gpus", "2", "--", "sleep", "600")
        assert terminal.code() == 143
        assert re.search(r"hived: this ends in 29 s: .*preempted by sleep", terminal.seen)
        assert "saved" in terminal.seen, "and then it was at its prompt: nothing to wait for"
    assert machine.ended(1)["state"] == "cancelled"


def test_a_shell_at_its_prompt_goes_at_once(machine: Machine) -> None:
    with machine.shell("--", "bash", "--norc", "-i") as terminal:
        terminal.until("bash-")
        terminal.press("echo re''ady\r")
        terminal.until("ready")
        machine.run("cancel", "1")
        assert terminal.code() == 143
        assert "this ends in" not in terminal.seen, "it was given its grace"


def test_what_is_left_in_the_background_is_not_waited_for(machine: Machine) -> None:
    """It had the terminal open: `exit` hung, and the GPU stayed taken."""
    with machine.shell("--", "sh", "-c", "trap '' HUP; sleep 600 & seq 2000; exit 3") as terminal:
        assert terminal.code() == 3
        assert "2000" in terminal.seen
    assert machine.ended(1)["state"] == "failed"


def test_terminal_that_is_closed_while_it_waits(machine: Machine) -> None:
    """Its job stayed in line, and ran without a terminal when its turn came."""
    machine.run("submit", "--vc", "vision", "--gpus", "2", "--", "sleep", "600")
    machine.run("submit", "--vc", "speech", "--gpus", "2", "--", "sleep", "600")
    terminal = machine.shell()
    terminal.until("shell-3 waits")
    terminal._process.send_signal(signal.SIGHUP)
    terminal.code()
    terminal.__exit__()
    assert machine.ended(3)["state"] == "cancelled"


def test_time_limit_is_what_it_says(machine: Machine) -> None:
    """It was called cancelled by its user, who had done nothing."""
    with machine.shell("--time-limit", "1s", "--", "sh", "-c", "echo ready; exec sleep 600") as terminal:
        terminal.until("ready")
        assert terminal.code() != 0
        assert "shell-1 was stopped: it ran into its time limit of 1 s" in terminal.seen
    assert "it ran into its time limit of 1 s" in machine.run("explain", "1")
    assert machine.ended(1)["state"] == "failed"


def test_it_says_why_it_waits_and_ctrl_c_gives_it_up(machine: Machine) -> None:
    machine.run("submit", "--vc", "vision", "--gpus", "2", "--", "sleep", "600")
    with machine.shell("--gpus", "2") as terminal:
        terminal.until("shell-2 waits: VC vision has 0 of the 2 GPUs it needs")
        terminal.press("\x03")
        assert terminal.code() == 130
    assert machine.ended(2)["state"] == "cancelled"


def test_program_that_is_not_there(machine: Machine) -> None:
    with machine.shell("--", "no-such-program") as terminal:
        terminal.until("no-such-program: No such file or directory")
        assert terminal.code() == 127


def test_it_needs_a_terminal(hived: Hived) -> None:
    assert refused(hived("shell", "--vc", "vision")).startswith("hived shell needs a terminal; hived submit --follow")


def test_messages_in_any_pieces() -> None:
    sent = [(b"d", b"abc"), (b"w", b"\0\1\0\2"), (b"d", b""), (b"x", b"\7"), (b"d", b"y" * MOST)]
    stream = b"".join(framed(kind, data) for kind, data in sent)
    for size in (1, 7, 4096, len(stream)):
        messages, found = Messages(), []
        for at in range(0, len(stream), size):
            found += messages.of(stream[at : at + size])
        assert found == sent
    with pytest.raises(ValueError, match="a message of 65537 bytes"):
        Messages().of(framed(b"d", b"z" * (MOST + 1)))
