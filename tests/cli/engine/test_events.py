"""``hived events``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ...server.fakes import FakeService, Running
from ..helpers import Hived, tree
from .shell import Begin


def test_times_in_the_readers_zone(hived: Hived, engine: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.tell("old")
    engine.tell("new", job=2)
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
    for number in (0, 1, 100, 101, 250, 400):
        lines = hived("events", "-n", number).out.splitlines()
        assert [line.split()[-1] for line in lines] == [str(n) for n in range(max(1, 301 - number), 301)]
    for _ in range(2):
        engine.end(engine.add())
    assert [line.split("  ")[-1].strip() for line in hived("events", "--job", "train-2").out.splitlines()] == [
        "train-2 is running",
        "train-2 is succeeded",
    ]
    assert hived("events", "--job", "nope").code == 4


def test_json(hived: Hived, running: Running, begin: Begin) -> None:
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


def test_follow_over_a_restart(running: Running, begin: Begin) -> None:
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


def test_export(hived: Hived, engine: FakeService, folder: Path, begin: Begin) -> None:
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
