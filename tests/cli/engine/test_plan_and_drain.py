"""``hived plan`` and ``hived drain``."""

from __future__ import annotations

import json

import pytest

from ..helpers import Hived
from .fake import WAITING, Engine


@pytest.mark.parametrize(
    ("gpus", "code", "words"),
    [
        (2, 0, ["2 GPUs of vision: now, on node-0 (GPUs 0-1)"]),
        (3, 0, ["3 GPUs of vision: now, once train-1 has gone, on node-0 (GPUs 0-2)"]),
        (6, 2, ["6 GPUs of vision: would wait", WAITING]),
        (9, 3, ["9 GPUs of vision: never fits", "there are 8 GPUs"]),
    ],
)
def test_a_plan_says_what_would_become_of_a_job(
    hived: Hived, engine: Engine, gpus: int, code: int, words: list[str]
) -> None:
    answer = hived("plan", "--vc", "vision", "--gpus", gpus)
    assert (answer.code, answer.err) == (code, "")
    assert answer.out.splitlines() == words
    assert engine.all == []
    answer = hived("plan", "--vc", "vision", "--gpus", gpus, "-o", "json")
    assert answer.code == code
    assert json.loads(answer.out)["outcome"] == {0: "now", 2: "waits", 3: "never"}[code]


def test_a_plan_for_nobody_is_refused(hived: Hived, engine: Engine) -> None:
    answer = hived("plan", "--vc", "nobody")
    assert (answer.code, answer.out) == (2, "")
    assert "nobody" in answer.err
    assert hived("plan", "--vc", "vision", "--opportunistic", "-p", 4).code == 2


def test_a_drained_device_is_shown_with_who_is_still_there(hived: Hived, engine: Engine) -> None:
    engine.add(gpus=2)
    answer = hived("drain", "node-0")
    assert (answer.code, answer.err) == (0, "")
    first, header, *lines = answer.out.splitlines()
    assert first == "4 GPUs: no new jobs; 1 job still there: 1"
    assert header.split() == ["NODE", "GPUS", "STATE", "JOBS"]
    assert [line.split() for line in lines] == [
        ["node-0", "0-1", "used,", "drained", "1"], ["node-0", "2-3", "free,", "drained", "-"],
    ]  # fmt: skip
    assert engine.drained == {("node-0", n) for n in range(4)}


def test_a_drain_is_undone(hived: Hived, engine: Engine) -> None:
    assert hived("drain").out.startswith("8 GPUs: no new jobs\n")
    assert hived("drain", "--undo", "--device", 3).out.startswith("2 GPUs: jobs may come again\n")
    assert engine.drained == {(node, n) for node in ("node-0", "node-1") for n in range(3)}


def test_draining_is_told_to_programs(hived: Hived, engine: Engine) -> None:
    found = json.loads(hived("drain", "node-1", "--device", 0, "-o", "json").out)
    assert [(one["node"], one["device"], one["drained"]) for one in found] == [("node-1", 0, True)]


def test_an_unknown_node_is_named(hived: Hived, engine: Engine) -> None:
    answer = hived("drain", "nowhere")
    assert (answer.code, answer.out) == (4, "")
    assert "there are node-0, node-1" in answer.err
