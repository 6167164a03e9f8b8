"""``hived logs``."""

from __future__ import annotations

import json
import os

import pytest

from hived.cli.jobs import harmless

from ..helpers import Hived
from .fake import Engine, Running
from .shell import Begin, Terminal


def test_all_output_is_shown_byte_for_byte(hived: Hived, engine: Engine) -> None:
    job = engine.add()
    text = "".join(f"línea {n} \u2028 \x85 of many\r\n" for n in range(10_000))
    engine.print(job, text)
    answer = hived("logs", "train")
    assert answer.code == 0
    # a page may end inside a character; what is shown of that is the engine's affair
    assert answer.out.replace("\ufffd", "")[:1000] == text[:1000]
    assert answer.out.count("\n") == 10_000


@pytest.mark.parametrize("lines", [0, 1, 3, 9_000, 50_000])
def test_the_tail_is_the_last_lines(hived: Hived, engine: Engine, lines: int) -> None:
    job = engine.add()
    whole = [f"line {n} {'x' * 20}\n" for n in range(10_000)]
    engine.print(job, "".join(whole))
    assert hived("logs", "--tail", lines, "1").out == "".join(whole[-lines:] if lines else [])


def test_long_output_comes_in_few_pages(hived: Hived, engine: Engine) -> None:
    # a page of 64 KiB costs as much as one of half a MiB: 1 GB took a minute
    engine.print(engine.add(), "line\n" * 200_000)
    engine.asked.clear()
    assert len(hived("logs", "train").out) == 1_000_000
    assert len(engine.asked) <= 3


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_the_tail_is_read_from_the_end_alone(hived: Hived, engine: Engine, end: str) -> None:
    # output of nothing but line ends, and progress bars, were read from their first byte
    whole = [end] * 10_000_000
    engine.print(engine.add(), "".join(whole))
    engine.asked.clear()
    assert hived("logs", "--tail", 3, "train").out == 3 * end
    assert len(engine.asked) <= 4


def test_each_task_and_each_attempt_has_its_own_output(hived: Hived, engine: Engine) -> None:
    job = engine.add(gpus=2, tasks=2)
    engine.print(job, "first\n")
    engine.print(job, "other task\n", rank=1)
    engine.preempt(job)
    engine.start(job)
    engine.print(job, "again\n")
    assert hived("logs", "1").out == "again\n"
    assert hived("logs", "1", "--attempt", 1).out == "first\n"
    assert hived("logs", "1", "--attempt", 1, "--rank", 1).out == "other task\n"
    answer = hived("logs", "1", "--rank", 2)
    assert answer.code == 4
    assert "ranks 0 to 1" in answer.err
    assert hived("logs", "1", "--attempt", 3).code == 4


def test_a_job_that_has_not_started_says_so(hived: Hived, engine: Engine) -> None:
    for _ in range(2):
        engine.add(gpus=4)
    engine.add()
    answer = hived("logs", "3")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith("train-3 has not started yet: needs 4 GPUs")


@pytest.mark.parametrize("options", [(), ("--follow",), ("--tail", "3"), ("-o", "json")], ids=" ".join)
def test_a_job_that_never_started_is_no_success(hived: Hived, engine: Engine, options: tuple[str, ...]) -> None:
    for _ in range(2):
        engine.add(gpus=4)
    withdrawn, wrong = engine.add(), engine.add(name="typo")
    engine.change(withdrawn, state="cancelled", reason="cancelled")
    answer = hived("logs", *options, "train")
    assert (answer.code, answer.out) == (4, "")
    assert answer.err == "hived: no output, since it was never started: train-3 was cancelled\n"
    engine.start(wrong)
    engine.end(wrong, 127)
    engine.change(wrong, reason="it could not be started: typo: No such file")
    answer = hived("logs", *options, "typo")
    assert (answer.code, answer.out) == (4, "")
    assert "typo-4 has failed: it could not be started: typo: No such file" in answer.err


def test_a_job_that_printed_nothing_says_so(hived: Hived, engine: Engine) -> None:
    job = engine.add()
    answer = hived("logs", "train")
    assert (answer.code, answer.out, answer.err) == (0, "", "train-1 has printed nothing yet\n")
    engine.end(job, 3)
    for options in ((), ("-f",)):
        answer = hived("logs", *options, "train")
        assert (answer.code, answer.out, answer.err) == (0, "", "train-1 has printed nothing\n")
    assert hived("logs", "--tail", 0, "train").err == ""


def test_json_is_a_page_a_line(hived: Hived, engine: Engine) -> None:
    engine.print(engine.add(), "here\n")
    (page,) = [json.loads(line) for line in hived("logs", "1", "-o", "json").out.splitlines()]
    assert (page["text"], page["offset"], page["next"]) == ("here\n", 0, 5)


def test_following_goes_on_where_it_was_when_the_engine_restarts(running: Running, begin: Begin) -> None:
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


def test_following_one_attempt_ends_with_it(running: Running, begin: Begin) -> None:
    engine = running.engine
    job = engine.add()
    engine.print(job, "first\n")
    engine.preempt(job)
    process = begin("logs", "-f", "--attempt", 1, "train")
    assert process.rest() == ("first\n", "")


def test_ctrl_c_ends_following_without_a_word(running: Running, begin: Begin) -> None:
    engine = running.engine
    engine.print(engine.add(), "one\n")
    process = begin("logs", "-f", "train")
    assert process.out.readline() == "one\n"
    process.interrupt()
    assert process.rest() == ("", "")
    assert process.code() == 130


def test_a_reader_that_leaves_ends_it_in_peace(running: Running, begin: Begin) -> None:
    engine = running.engine
    job = engine.add()
    engine.print(job, "x\n" * 200_000)
    process = begin("logs", "train")
    os.read(process.out.fileno(), 2)
    process.out.close()
    assert process.err.read() == ""
    process.err.close()
    assert process.code() == 0


def test_a_terminal_gets_colours_but_no_commands(running: Running) -> None:
    engine = running.engine
    job = engine.add()
    engine.print(job, "\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07\x9b5n 50%\r100%\n\x1b]52;c;eGVz\x1b\\end\n")
    engine.end(job)
    with Terminal(["logs", "train"]) as terminal:
        seen = terminal.until("end")
        assert terminal.code() == 0
    assert "\x1b[31mred\x1b[0m " in seen
    assert "50%\r100%" in seen
    for command in ("\x1b[2J", "\x1b]", "title", "\x9b", "eGVz"):
        assert command not in seen


def test_a_pipe_gets_every_byte(hived: Hived, engine: Engine) -> None:
    engine.print(engine.add(), "\x1b[2Jraw\x07\n")
    assert hived("logs", "1").out == "\x1b[2Jraw\x07\n"


def test_harmless_text_is_left_as_it_is() -> None:
    text = "plain 😀 \x1b[1;38;5;74mcolour\x1b[m\ttab\r\x1b[K\n"
    assert harmless(text) == text
