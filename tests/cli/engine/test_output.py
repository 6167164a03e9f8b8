"""``hived logs`` and ``hived events``: what jobs print, and what happens."""

from __future__ import annotations

import json
import os
import select
import time
from pathlib import Path
from typing import Any

import pytest

from hived.cli.logs import harmless

from ...server.fakes import FakeService, Running
from ..helpers import Hived, refused, tree
from .shell import Begin, Terminal, until


def test_all_output(hived: Hived, engine: FakeService) -> None:
    """Byte for byte, whatever it is; long output in few pages, a page a line as JSON."""
    text = "".join(f"línea {n} \u2028 \x85 of many\r\n" for n in range(10_000))
    engine.print(engine.add(), text)
    answer = hived("logs", "train")
    assert answer.code == 0
    # a page may end inside a character; what is shown of that is the engine's affair
    assert answer.out.replace("\ufffd", "")[:1000] == text[:1000]
    assert answer.out.count("\n") == 10_000
    # a page of 64 KiB costs as much as one of half a MiB: 1 GB took a minute
    engine.print(engine.add(), "line\n" * 200_000)
    engine.asked.clear()
    assert len(hived("logs", "train").out) == 1_000_000
    assert len(engine.asked) <= 3
    engine.print(engine.add(), "\x1b[2Jraw\x07\n")
    assert hived("logs", "3").out == "\x1b[2Jraw\x07\n", "to a pipe"
    (page,) = [json.loads(line) for line in hived("logs", "3", "-o", "json").out.splitlines()]
    assert (page["text"], page["offset"], page["next"]) == ("\x1b[2Jraw\x07\n", 0, 9)


@pytest.mark.parametrize("lines", [0, 1, 3, 9_000, 50_000])
def test_tail(hived: Hived, engine: FakeService, lines: int) -> None:
    whole = [f"line {n} {'x' * 20}\n" for n in range(10_000)]
    engine.print(engine.add(), "".join(whole))
    assert hived("logs", "--tail", lines, "1").out == "".join(whole[-lines:] if lines else [])


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_tail_is_read_from_the_end(hived: Hived, engine: FakeService, end: str) -> None:
    # output of nothing but line ends, and progress bars, were read from their first byte
    engine.print(engine.add(), end * 10_000_000)
    engine.asked.clear()
    assert hived("logs", "--tail", 3, "train").out == 3 * end
    assert len(engine.asked) <= 4


@pytest.mark.parametrize("how", [(), ("--tail", 90_000), ("-f",)])
def test_what_is_not_kept_is_said(hived: Hived, engine: FakeService, how: tuple[Any, ...]) -> None:
    """It began somewhere, as if that were all; of less than is kept nothing is said."""
    whole = [f"line {n:05} {'x' * 20}\n" for n in range(100_000)]
    engine.print(job := engine.add(), "".join(whole))
    engine.end(job)
    engine.kept_from = 32 * 70_000
    answer = hived("logs", *how, "1")
    assert answer.out == "".join(whole[70_000:])
    assert answer.err == "2.1 MiB before this are not kept (hived up --most-output)\n"
    answer = hived("logs", "--tail", 100, "1")
    assert (answer.out, answer.err) == ("".join(whole[-100:]), "")


def test_output_of_task_and_attempt(hived: Hived, engine: FakeService) -> None:
    job = engine.add(gpus=2, tasks=2)
    engine.print(job, "first\n")
    engine.print(job, "other task\n", rank=1)
    engine.preempt(job)
    engine.start(job)
    engine.print(job, "again\n")
    assert hived("logs", "1").out == "again\n"
    assert hived("logs", "-f", "1", "--attempt", 1).out == "first\n", "it is over with its attempt"
    assert hived("logs", "1", "--attempt", 1, "--rank", 1).out == "other task\n"
    answer = hived("logs", "1", "--rank", 2)
    assert answer.code == 4
    assert "ranks 0 to 1" in answer.err
    assert hived("logs", "1", "--attempt", 3).code == 4


def test_job_that_waits(hived: Hived, engine: FakeService) -> None:
    for _ in range(2):
        engine.add(gpus=4)
    engine.add()
    answer = hived("logs", "3")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith("train-3 has not started yet: needs 4 GPUs")


@pytest.mark.parametrize("options", [(), ("--follow",), ("--tail", "3"), ("-o", "json")], ids=" ".join)
def test_job_that_never_started(hived: Hived, engine: FakeService, options: tuple[str, ...]) -> None:
    """That is no success."""
    for _ in range(2):
        engine.add(gpus=4)
    withdrawn, wrong = engine.add(), engine.add(name="typo")
    engine.change(withdrawn, state="cancelled", why=["cancelled"])
    answer = hived("logs", *options, "train")
    assert (answer.code, answer.out) == (4, "")
    assert answer.err == "hived: no output, since it was never started: train-3 was cancelled\n"
    engine.start(wrong)
    engine.end(wrong, 127)
    engine.change(wrong, why=["it could not be started: typo: No such file"])
    answer = hived("logs", *options, "typo")
    assert (answer.code, answer.out) == (4, "")
    assert "typo-4 has failed: it could not be started: typo: No such file" in answer.err


def test_job_that_printed_nothing(hived: Hived, engine: FakeService) -> None:
    job = engine.add()
    answer = hived("logs", "train")
    assert (answer.code, answer.out, answer.err) == (0, "", "train-1 has printed nothing yet\n")
    engine.end(job, 3)
    for options in ((), ("-f",)):
        answer = hived("logs", *options, "train")
        assert (answer.code, answer.out, answer.err) == (0, "", "train-1 has printed nothing\n")
    assert hived("logs", "--tail", 0, "train").err == ""


def test_output_over_a_restart(running: Running, begin: Begin) -> None:
    engine = running.engine
    job = engine.add()
    engine.print(job, "one\ntwo\n")
    process = begin("logs", "-f", "--tail", 1, "train")
    assert process.out.readline() == "two\n"
    running.stop()
    assert "trying again" in process.err.readline()
    engine.print(job, "three\n")
    running.start()
    assert process.out.readline() == "three\n"
    engine.print(job, "four\n")
    engine.end(job, 9)
    out, err = process.rest()
    assert out == "four\n"
    assert err == "hived: the engine is back\n"
    assert process.code() == 0, "showing it has succeeded, whatever the job did"


def test_reader_that_leaves(running: Running, begin: Begin) -> None:
    running.engine.print(running.engine.add(), "x\n" * 200_000)
    process = begin("logs", "train")
    os.read(process.out.fileno(), 2)
    process.out.close()
    assert process.err.read() == ""
    process.err.close()
    assert process.code() == 0


def test_terminal_gets_colours_alone(running: Running) -> None:
    """Not what else commands a terminal."""
    job = running.engine.add()
    running.engine.print(job, "\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07\x9b5n 50%\r100%\n\x1b]52;c;eGVz\x1b\\end\n")
    running.engine.end(job)
    with Terminal(["logs", "train"]) as terminal:
        seen = terminal.until("end")
        assert terminal.code() == 0
    assert "\x1b[31mred\x1b[0m " in seen
    assert "50%\r100%" in seen
    for command in ("\x1b[2J", "\x1b]", "title", "\x9b", "eGVz"):
        assert command not in seen
    text = "plain 😀 \x1b[1;38;5;74mcolour\x1b[m\ttab\r\x1b[K\n"
    assert harmless(text) == text


def test_times_in_the_readers_zone(hived: Hived, engine: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.tell("old")
    engine.tell("new", job="2")
    engine.happened[-1] = engine.happened[-1].model_copy(update={"at": 1_700_000_000})
    try:
        for zone, words in (("UTC", "2023-11-14T22:13:20+00:00"), ("Asia/Kolkata", "2023-11-15T03:43:20+05:30")):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            (line,) = hived("events", "-n", 1).out.splitlines()
            assert line.split() == [words, "2", "said", "new"]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_number_of_events_and_their_job(hived: Hived, engine: FakeService) -> None:
    for n in range(300):
        engine.tell(f"event {n + 1}")
    for options, number in (((), 20), (("-n", 0), 300), *((("-n", n), n) for n in (1, 100, 101, 250, 400))):
        lines = hived("events", *options).out.splitlines()
        assert [line.split()[-1] for line in lines] == [str(n) for n in range(max(1, 301 - number), 301)]
    for _ in range(2):
        engine.end(engine.add())
    assert [line.split("  ")[-1].strip() for line in hived("events", "--job", "train-2").out.splitlines()] == [
        "train-2 is running",
        "train-2 is succeeded",
    ]
    assert hived("events", "--job", "nope").code == 4


def test_events_as_json(hived: Hived, running: Running, begin: Begin) -> None:
    """The engine's answer; and one object a line where it is followed, of one job where that is asked for."""
    engine = running.engine
    first, second = engine.add(), engine.add()
    found = json.loads(hived("events", "-o", "json").out)
    assert found == {"events": [event.model_dump() for event in engine.happened], "last": 2}
    process = begin("events", "-f", "-n", 1, "--job", 2, "-o", "json")
    assert json.loads(process.out.readline())["text"] == "train-2 is running"
    engine.end(first)
    engine.end(second)
    assert json.loads(process.out.readline())["text"] == "train-2 is succeeded"


def test_events_from_now_on(hived: Hived, running: Running, begin: Begin) -> None:
    """``-n 0`` said so, and "all" in every other list."""
    engine = running.engine
    engine.tell("before")
    process = begin("events", "-f", "--new")

    def shown() -> object:
        engine.tell("after")
        return select.select([process.out], [], [], 0.05)[0]

    until(shown, "an event")
    assert process.out.readline().endswith("after\n")
    for options in (["--new"], ["--new", "-f", "-n", "3"]):
        assert refused(hived("events", *options)).startswith("--new is of what happens from now on")


def test_events_over_a_restart(running: Running, begin: Begin) -> None:
    """Nothing is missed, and nothing repeated."""
    engine = running.engine
    engine.tell("before")
    process = begin("events", "-f")
    assert process.out.readline().endswith("before\n")
    engine.tell("one")
    assert process.out.readline().endswith("one\n")
    running.stop()
    assert "trying again" in process.err.readline()
    engine.tell("two")
    running.start()
    engine.tell("three")
    assert process.out.readline().endswith("two\n")
    assert process.out.readline().endswith("three\n")
    process.interrupt()
    assert process.rest() == ("", "hived: the engine is back\n")
    assert process.code() == 130


def test_export_of_decisions(hived: Hived, engine: FakeService, folder: Path, begin: Begin) -> None:
    """The whole log of decisions, to a file or to a pipe; a file that is there is replaced by force alone."""
    engine.log_lines = [json.dumps({"n": n, "words": "é"}) for n in range(5000)]
    whole = "".join(line + "\n" for line in engine.log_lines)
    answer = hived("events", "--export", "log.jsonl")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == "log.jsonl: 5,000 lines\n"
    assert (folder / "log.jsonl").read_text(encoding="utf-8") == whole
    assert begin("events", "--export", "-").rest() == (whole, "")
    engine.log_lines = ["{}"]
    answer = hived("events", "--export", "log.jsonl")
    assert answer.code == 2
    assert "--force" in answer.err
    assert (folder / "log.jsonl").read_text(encoding="utf-8") == whole
    assert hived("events", "--export", "log.jsonl", "--force").code == 0
    assert (folder / "log.jsonl").read_text(encoding="utf-8") == "{}\n"


def test_export_leaves_anothers_part(hived: Hived, engine: FakeService, folder: Path) -> None:
    for number in range(1, 400):  # whatever the process is called, in a container of few
        (folder / f".log.jsonl.{number}.part").write_text("another's", encoding="utf-8")
    (folder / f".log.jsonl.{os.getpid()}.part").write_text("another's", encoding="utf-8")
    before = tree(folder)
    assert hived("events", "--export", "log.jsonl").code == 0
    assert set(before) < set(tree(folder))


def test_export_to_nowhere(hived: Hived, engine: FakeService, folder: Path) -> None:
    before = tree(folder)
    answer = hived("events", "--export", "no/such/folder/log.jsonl")
    assert answer.code == 73
    assert answer.err.startswith("hived: no/such/folder/log.jsonl: cannot be written (No such file")
    assert hived("events", "--export", "x", "--follow").code == 2
    assert tree(folder) == before
