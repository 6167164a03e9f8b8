"""``hived train search``: configurations as jobs, judged by what they print."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from hived import InputError
from hived.cli.search import _Running, filled, read_configurations
from hived.policies.gandiva.search import NEW, OTHER, TOP, Goal, Search
from hived.server.schema import Job, Rules, Vc

from ...server.fakes import Running
from ..helpers import Hived, refused
from .shell import Begin, until

METRIC = "accuracy: ([0-9.a-z]+)"


def test_the_best_have_gpus_for_themselves_and_the_first_good_enough_ends_it() -> None:
    search = Search(5, Goal(0.8, least=0.3, top=1, first=2, more=2))
    assert list(search.submit()) == [0, 1]
    assert search.priorities() == {0: NEW, 1: NEW}
    assert search.evaluate(0, 0.1, 0.5) == []
    assert search.priorities() == {0: TOP}
    assert search.evaluate(1, 0.2, 0.6) == []
    assert search.priorities() == {0: OTHER, 1: TOP}
    assert search.priorities() == {}
    assert list(search.submit()) == [2, 3]
    assert search.evaluate(2, 0.1, 0.2) == [2], "it promises too little"
    search.leave(1)
    assert search.priorities() == {0: TOP, 3: NEW}
    assert search.evaluate(3, 0.9, 0.9) == [0, 3]
    assert (search.found, search.best, search.is_over) == (3, (0.9, 3), True)
    assert list(search.submit()) == []
    assert search.evaluate(0, 0.95, 0.95) == [], "it is over"


def test_search_without_success_ends_with_its_last_configuration() -> None:
    search = Search(1, Goal(0.8))
    search.submit()
    assert not search.is_over
    search.leave(0)
    assert (search.is_over, search.found) == (True, None)


def test_configurations_of_a_file(tmp_path: Path) -> None:
    table, lines = tmp_path / "c.csv", tmp_path / "c.jsonl"
    table.write_text("lr, width\n0.1, 64\n0.2,128\n")
    assert read_configurations(table) == [{"lr": "0.1", "width": "64"}, {"lr": "0.2", "width": "128"}]
    lines.write_text('{"lr": 0.1, "name": "a"}\n\n{"lr": 2}\n')
    assert read_configurations(lines) == [{"lr": "0.1", "name": "a"}, {"lr": "2"}]
    assert filled(["t", "--lr={lr}", "{lr}"], {"lr": "2"}, lines) == ["t", "--lr=2", "2"]
    for text, why in (
        ("", "none in it"),
        ('{"lr": 0.1}\nno\n', "c.csv:2: no object of JSON"),
        ("lr\n1\n1,2\n", "c.csv:3: other columns"),
    ):
        table.write_text(text)
        with pytest.raises(InputError, match=why):
            read_configurations(table)
    with pytest.raises(InputError, match=r"has no \{lr\}"):
        filled(["t"], {"lr": "2"}, table)


def test_refusals(hived: Hived, tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("lr\n1\n")
    for metric, why in (("(", "no regular expression"), ("accuracy", "one group")):
        answer = hived(
            "train", "search", "--vc", "vision", "-c", file, "--metric", metric, "--target", 1, "--", "x{lr}"
        )
        assert answer.code == 2
        assert why in refused(answer)


def test_until_one_is_good_enough(running: Running, begin: Begin, tmp_path: Path) -> None:
    """They print, are judged and told apart; the others are ended with the search."""
    engine, file = running.engine, tmp_path / "c.csv"
    engine.policy = "gandiva"
    file.write_text("lr\n0.1\n0.2\n0.3\n")
    arguments = [
        "train",
        "search",
        "--vc",
        "vision",
        "-c",
        file,
        "--metric",
        METRIC,
        "--target",
        0.8,
        "--every",
        "0.1s",
    ]
    process = begin(*arguments, "--first", 1, "--more", 1, "--top", 1, "--least", 0.3, "--after", 2, "--", "t", "{lr}")
    known = len(engine.all)
    until(lambda: len(engine.all) >= known + 3, "three jobs")
    first, second, third = engine.all[-3:]
    assert [engine.submissions[job.id].command for job in (first, second, third)] == [
        ("t", "0.1"),
        ("t", "0.2"),
        ("t", "0.3"),
    ]
    engine.print(first, "accuracy: 0.4\nnothing\naccuracy: nan\naccur")
    engine.print(second, "accuracy: 0.1\n")
    until(lambda: engine.now(first).priority == 2, "the best has the highest priority")
    engine.print(second, "accuracy: 0.2\n")
    until(lambda: engine.now(second).state == "stopping", "it promises too little")
    engine.print(first, "acy: 0.85\n")
    out, err = process.rest()
    assert process.code() == 0, err
    assert out == f"best: 0.85 by {first.name} (lr=0.1)\n"
    assert "(lr=0.2): 0.1" in err
    assert engine.now(third).state == "stopping"


def test_over_a_restart_of_the_engine_and_to_the_last_line(running: Running, begin: Begin, tmp_path: Path) -> None:
    """What a job has printed before it ended counts; nothing is submitted twice."""
    engine, file = running.engine, tmp_path / "c.csv"
    file.write_text("lr\n0.1\n")
    arguments = ["--vc", "vision", "-c", file, "--metric", METRIC, "--target", 0.8]
    process = begin("train", "search", *arguments, "--", "t", "{lr}")
    known = len(engine.all)
    until(lambda: len(engine.all) == known + 1, "a job")
    job = engine.all[-1]
    running.stop()
    assert "is submitted" in process.err.readline()
    assert "trying again" in process.err.readline()
    engine.print(job, "accuracy: 0.3\naccuracy: 0.7\n")
    engine.end(job)
    running.start()
    out, err = process.rest()
    assert (process.code(), out) == (1, f"best: 0.7 by {job.name} (lr=0.1)\n"), err
    assert len(engine.all) == known + 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_its_jobs_end_with_it(running: Running, begin: Begin, tmp_path: Path, number: int) -> None:
    """Ctrl-C, or the end of its terminal."""
    engine, file = running.engine, tmp_path / "c.csv"
    file.write_text("lr\n0.1\n")
    process = begin("train", "search", "--vc", "vision", "-c", file, "--metric", METRIC, "--target", 1, "--", "t{lr}")
    known = len(engine.all)
    until(lambda: len(engine.all) == known + 1, "a job")
    assert "is submitted" in process.err.readline()
    process.signal(number)
    until(lambda: engine.now(engine.all[-1]).state == "stopping", "it is cancelled")
    assert process.code() == 128 + number


@pytest.mark.parametrize(("policy", "told"), [("gandiva:slice=30", 2), ("yarn-cs", 0), ("fair", 0)])
def test_priorities_where_jobs_take_turns_by_them(policy: str, told: int) -> None:
    """Elsewhere they stopped running jobs of the virtual cluster."""
    posted: list[str] = []

    class There:
        def get(self, path: str) -> str:
            assert path == "/v1/vcs/vision"
            return policy

        def parsed(self, of: type, answer: Any) -> Any:
            return Vc.model_construct(rules=Rules(policy=answer))

        def post(self, path: str, body: Any) -> None:
            posted.append(path)

    search = Search(3, Goal(0.8, top=1, first=2, more=1))
    there: Any = There()
    running = _Running(there, search, {"vc": "vision"}, [["t"]] * 3, [{}] * 3)
    search.submit()
    running.jobs = {one: Job.model_construct(id=str(one)) for one in range(2)}
    running.prioritize()
    assert len(posted) == told
