"""``hived events``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from ..helpers import Hived, tree
from .fake import Engine, Running
from .shell import Begin


def test_the_latest_events_are_shown_in_the_readers_zone(
    hived: Hived, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(150):
        engine.tell(f"event {n + 1}", job=n % 3)
    engine.happened[-1] = engine.happened[-1].model_copy(update={"at": 1_700_000_000})
    try:
        for zone, words in (("UTC", "2023-11-14T22:13:20+00:00"), ("Asia/Kolkata", "2023-11-15T03:43:20+05:30")):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            lines = hived("events", "-n", 3).out.splitlines()
            assert [line.rsplit("  ", 1)[1] for line in lines] == ["event 148", "event 149", "event 150"]
            assert lines[-1].split() == [words, "2", "said", "event", "150"]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("number", [0, 1, 100, 101, 250, 400])
def test_as_many_events_are_shown_as_are_asked_for(hived: Hived, engine: Engine, number: int) -> None:
    for n in range(300):
        engine.tell(f"event {n + 1}")
    lines = hived("events", "-n", number).out.splitlines()
    assert [line.split()[-1] for line in lines] == [str(n) for n in range(max(1, 301 - number), 301)]


def test_events_of_one_job(hived: Hived, engine: Engine) -> None:
    engine.end(engine.add())
    engine.end(engine.add())
    assert [line.split("  ")[-1].strip() for line in hived("events", "--job", "train-2").out.splitlines()] == [
        "train-2 is running", "train-2 is succeeded",
    ]  # fmt: skip
    assert hived("events", "--job", "nope").code == 4


def test_json_is_the_engines_answer_and_one_object_a_line_when_followed(
    hived: Hived, running: Running, begin: Begin
) -> None:
    running.engine.tell("one")
    found = json.loads(hived("events", "-o", "json").out)
    assert found == {"events": [running.engine.happened[0].model_dump()], "last": 1}
    process = begin("events", "-f", "-o", "json")
    assert json.loads(process.out.readline())["text"] == "one"
    running.engine.tell("two")
    assert json.loads(process.out.readline())["text"] == "two"


def test_following_misses_nothing_and_repeats_nothing_over_a_restart(running: Running, begin: Begin) -> None:
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


def test_following_one_job_leaves_the_others_out(running: Running, begin: Begin) -> None:
    engine = running.engine
    first, second = engine.add(), engine.add()
    process = begin("events", "-f", "-n", 1, "--job", 2)
    assert process.out.readline().endswith("train-2 is running\n")
    engine.end(first)
    engine.end(second)
    assert process.out.readline().endswith("train-2 is succeeded\n")


def test_the_decision_log_is_exported_whole(hived: Hived, engine: Engine, folder: Path) -> None:
    engine.log_lines = [json.dumps({"n": n, "words": "é"}) for n in range(5000)]
    whole = "".join(line + "\n" for line in engine.log_lines)
    answer = hived("events", "--export", "log.jsonl")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == "log.jsonl: 5,000 lines\n"
    assert (folder / "log.jsonl").read_text(encoding="utf-8") == whole


def test_the_decision_log_goes_to_a_pipe(running: Running, begin: Begin) -> None:
    process = begin("events", "--export", "-")
    assert process.rest() == ('{"n":0}\n{"n":1}\n', "")


def test_an_export_replaces_nothing_unasked(hived: Hived, engine: Engine, folder: Path) -> None:
    (folder / "log.jsonl").write_text("mine", encoding="utf-8")
    answer = hived("events", "--export", "log.jsonl")
    assert answer.code == 2
    assert "--force" in answer.err
    assert (folder / "log.jsonl").read_text(encoding="utf-8") == "mine"
    assert hived("events", "--export", "log.jsonl", "--force").code == 0
    assert (folder / "log.jsonl").read_text(encoding="utf-8") == '{"n":0}\n{"n":1}\n'


def test_an_export_leaves_what_another_is_writing(hived: Hived, engine: Engine, folder: Path) -> None:
    for number in range(1, 400):  # whatever the process is called, in a container of few
        (folder / f".log.jsonl.{number}.part").write_text("another's", encoding="utf-8")
    (folder / f".log.jsonl.{os.getpid()}.part").write_text("another's", encoding="utf-8")
    before = tree(folder)
    assert hived("events", "--export", "log.jsonl").code == 0
    assert set(before) < set(tree(folder))


def test_an_export_that_cannot_be_written_leaves_nothing(hived: Hived, engine: Engine, folder: Path) -> None:
    before = tree(folder)
    answer = hived("events", "--export", "no/such/folder/log.jsonl")
    assert answer.code == 73
    assert answer.err.startswith("hived: no/such/folder/log.jsonl: cannot be written (No such file")
    assert hived("events", "--export", "x", "--follow").code == 2
    assert tree(folder) == before
