"""What a person sees: colours, the whole screen, a narrow one; and what a pipe gets instead."""

from __future__ import annotations

import json
import re

import pytest

from ...server.fakes import WAITING, FakeService, Running
from ..helpers import Hived
from .shell import Terminal


def fill(engine: FakeService) -> None:
    """Two that run, one that waits."""
    engine.add(gpus=4)
    engine.add(name="sweep", vc="speech", gpus=4, priority=-1)
    engine.add(name="late")


def plain(text: str) -> str:
    """Without colours and commands; where the cursor is sent home, a new line begins."""
    text = re.sub(r"\x1b\[[0-9;]*H", "\n", text)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


# -- to a pipe


def test_top_in_a_pipe(hived: Hived, engine: FakeService) -> None:
    fill(engine)
    answer = hived("top")
    assert (answer.code, answer.err) == (0, "")
    for words in (
        "8 GPUs: █ 4 guaranteed   ▒ 4 opportunistic", "50% of nodes in guaranteed use",
        "node-0 ██ ██ ██ ██   node-1 ▒▒ ▒▒ ▒▒ ▒▒", "train-1",
        "node-0:0-3", "sweep-2", "late-3", WAITING, "simulated devices",
    ):  # fmt: skip
        assert words in answer.out
    found = json.loads(hived("top", "-o", "json").out)
    assert found["totals"]["guaranteed"] == 4
    engine.reset()
    engine.names = ("node-0",)
    engine.add(gpus=4)
    said = hived("top").out
    assert "4 guaranteed" in said
    assert "of nodes" not in said, "of one it is all or nothing"


def test_drained_device_in_use(hived: Hived, engine: FakeService) -> None:
    # it was counted as in use and as bad, and its cell was a cross
    engine.add(gpus=2)
    hived("drain", "node-0")
    lines = hived("top").out.splitlines()
    assert lines[1].startswith("8 GPUs: █ 2 guaranteed   - 2 drained   · 4 idle")
    (nodes,) = [line for line in lines if line.startswith("node-0")]
    assert nodes.split("node-1")[0].split() == ["node-0", "█-", "█-", "--", "--"]


def test_ps_and_top_on_opportunistic_jobs(hived: Hived, engine: FakeService) -> None:
    job = engine.add(gpus=2)
    engine.change(job, kind="opportunistic", why=["virtual cluster vision is no more"])
    found = hived("ps").out.splitlines()[1]
    (shown,) = [line for line in hived("top").out.splitlines() if line.split()[:2] == ["1", "train-1"]]
    assert found.split()[5] == shown.split()[5] == "opp"
    assert found.endswith("node-0:0-1 as opportunistic: virtual cluster vision is no more")


def test_top_on_a_guest(hived: Hived, engine: FakeService) -> None:
    """It is told as one, and does not cover the owner of its GPUs."""
    owner, guest = engine.add(gpus=2), engine.add(vc="speech", gpus=2)
    engine.change(guest, kind="guest", tasks=owner.tasks)
    lines = hived("top").out.splitlines()
    (nodes,) = [line for line in lines if line.startswith("node-0 ")]
    assert nodes.split()[1:5] == ["██", "██", "··", "··"]
    assert [line.split()[-1] for line in lines if "node-0:0-1" in line] == ["node-0:0-1", "guest"]


# -- to a terminal


def test_ps_has_colours_and_fits(running: Running) -> None:
    fill(running.engine)
    with Terminal(["ps"], width=80) as terminal:
        assert terminal.code() == 0
        seen = terminal.seen
    assert "\x1b[32mrunning" in seen
    # a busy engine is waited for, and a line says so, which is erased afterwards
    lines = plain(seen.rpartition("\x1b[2K")[2]).splitlines()
    assert len(lines) == 4
    assert all(len(line) <= 80 for line in lines)
    assert "sweep-2" in lines[2]
    assert lines[3].rstrip().endswith("…")


@pytest.mark.parametrize(("verb", "variable", "value"), [("ps", "NO_COLOR", "1"), ("top", "TERM", "dumb")])
def test_plain_terminal(
    running: Running, monkeypatch: pytest.MonkeyPatch, verb: str, variable: str, value: str
) -> None:
    """Where colours are not wanted, and where nothing but text can be shown: one picture."""
    fill(running.engine)
    monkeypatch.setenv(variable, value)
    with Terminal([verb]) as terminal:
        assert terminal.code() == 0
        assert "late-3" in terminal.seen
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", terminal.seen)
        assert verb == "ps" or "\x1b" not in terminal.seen


def test_top_is_live(running: Running) -> None:
    """It asks for one picture, hears what changes, and stays while the engine restarts."""
    engine = running.engine
    fill(engine)
    with Terminal(["top"]) as terminal:
        terminal.until("late-3")
        first = terminal.until(re.compile(r" \d+[sm]  node-0:0-3"))
        age = re.findall(r" (\d+[sm])  node-0:0-3", first)[-1]
        terminal.until(re.compile(rf" (?!{age} )\d+[sm]  node-0:0-3"), after=len(first))  # the clock goes on
        engine.end(engine.all[0])
        engine.add(name="newcomer", gpus=4)
        terminal.until("newcomer-4")
        assert engine.pictures == 1
        running.stop()
        terminal.until("no engine answers")
        engine.add(name="meanwhile")
        running.start()
        terminal.until("meanwhile-5")
        terminal.press("\x03")
        assert terminal.code() == 0
        assert terminal.seen.count("\x1b[?1049h") == terminal.seen.count("\x1b[?1049l") == 1, "the screen is as it was"
        assert "Traceback" not in terminal.seen


@pytest.mark.parametrize(("width", "height"), [(40, 12), (200, 60)])
def test_top_fits_the_screen(running: Running, width: int, height: int) -> None:
    engine = running.engine
    fill(engine)
    for n in range(100):
        engine.add(name=f"more{n}")
    with Terminal(["top"], width=width, height=height) as terminal:
        terminal.until("WAITING" if height > 12 else "RUNNING")
        terminal.press("q")
        assert terminal.code() == 0
        drawn = plain(terminal.seen.split("\x1b[?1049h")[1].split("\x1b[?1049l")[0])
    if height > 12:
        assert re.search(r"and \d+ jobs more that wait", drawn)
    lines = drawn.replace("\r", "").splitlines()
    assert len(lines) > 5
    assert all(len(line) <= width for line in lines)


def test_top_without_an_engine(running: Running) -> None:
    running.stop()
    with Terminal(["top"]) as terminal:
        assert terminal.code() == 69
        assert "\x1b[?1049h" not in terminal.seen
        assert "start one with: hived up" in terminal.seen.replace("\r\n", " ")
    running.start()


def test_ps_is_watched(running: Running) -> None:
    engine = running.engine
    fill(engine)
    with Terminal(["ps", "-w"]) as terminal:
        terminal.until("late-3")
        engine.end(engine.all[0])
        engine.add(name="newcomer")
        terminal.until("newcomer-4")
        terminal.press("q")
        assert terminal.code() == 0
