"""``hived plan``, ``drain`` and ``trade``."""

from __future__ import annotations

import json

import pytest

from ...server.fakes import WAITING, FakeService
from ..helpers import Hived, refused


@pytest.mark.parametrize(
    ("gpus", "code", "outcome", "words"),
    [
        (2, 0, "now", ["2 GPUs of vision: now, on node-0 (GPUs 0-1)"]),
        (3, 0, "now", ["3 GPUs of vision: now, once train-1 has gone, on node-0 (GPUs 0-2)"]),
        (6, 2, "waits", ["6 GPUs of vision: would wait", f"  {WAITING}"]),
        (9, 3, "never", ["9 GPUs of vision: never fits", "  there are 8 GPUs"]),
    ],
)
def test_plan(hived: Hived, engine: FakeService, gpus: int, code: int, outcome: str, words: list[str]) -> None:
    answer = hived("plan", "--vc", "vision", "--gpus", gpus)
    assert (answer.code, answer.err) == (code, "")
    assert answer.out.splitlines() == words
    assert engine.all == []
    answer = hived("plan", "--vc", "vision", "--gpus", gpus, "-o", "json")
    assert answer.code == code
    assert [job["outcome"] for job in json.loads(answer.out)["jobs"]] == [outcome]
    answer = hived("plan", "--vc", "nobody")
    assert (answer.code, answer.out) == (2, "")
    assert "nobody" in answer.err
    assert hived("plan", "--vc", "vision", "--opportunistic", "-p", 4).code == 2


def test_drain(hived: Hived, engine: FakeService) -> None:
    engine.add(gpus=2)
    answer = hived("drain", "node-0")
    assert (answer.code, answer.err) == (0, "")
    first, header, *lines = answer.out.splitlines()
    assert first == "4 GPUs: no new jobs; 1 job still there: 1"
    assert header.split() == ["NODE", "GPUS", "STATE", "JOBS"]
    assert [line.split() for line in lines] == [
        ["node-0", "0-1", "used,", "drained", "1"],
        ["node-0", "2-3", "free,", "drained", "-"],
    ]
    assert engine.drained == {("node-0", n) for n in range(4)}
    found = json.loads(hived("drain", "node-1", "--device", 0, "-o", "json").out)
    (node,) = found["nodes"]
    assert (node["name"], [(one["device"], one["drained"]) for one in node["devices"]]) == ("node-1", [(0, True)])
    answer = hived("drain", "nowhere")
    assert (answer.code, answer.out) == (4, "")
    assert "there are node-0, node-1" in answer.err
    engine.reset()
    assert hived("drain", "node-1", "-d", 1, "-d", 2, "--reason", "a fan").out.startswith("2 GPUs: no new jobs\n")
    assert [(place, engine.drain_reasons[place]) for place in (("node-1", 1), ("node-1", 2))] == [
        (("node-1", n), "a fan") for n in (1, 2)
    ]
    assert len(hived("devices", "node-1", "--bad").out.splitlines()) == 2, "only what takes no jobs"
    said = refused(hived("drain"))
    assert said == "all devices are meant, and nothing is drained: --yes drains them, or name a node"
    assert hived("drain", "--yes").out.startswith("8 GPUs: no new jobs\n")
    answer = hived("drain", "node-0", "--device", "0,2-3", "--undo")
    assert answer.out.startswith("3 GPUs: jobs may come again\n")
    assert hived("drain", "node-0", "-d0,2", "-d3").out.startswith("3 GPUs: no new jobs\n")
    before = set(engine.drained)
    said = refused(hived("drain", "node-0", "-d", "1-9", "--undo"), 4)
    assert said == "no device 4 on node 'node-0', and nothing was changed; hived devices shows them"
    assert engine.drained == before
    for wrong in ("", "2-", "x", "-1", "3,,4", "0-5000"):
        assert refused(hived("drain", "node-0", f"--device={wrong}")).startswith("--device: ")
    assert hived("drain", "--undo", "--device", 3).out.startswith("2 GPUs: jobs may come again\n")
    assert engine.drained == {(node, n) for node in ("node-0", "node-1") for n in range(3)}


# -- the market


def test_trade(hived: Hived, engine: FakeService) -> None:
    answer = hived("trade", "offer", "NODE=2", "--vc", "vision", "--for", "2h")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "offer 1: it waits for a request; hived trade ls shows it, hived trade withdraw 1 ends it\n"
    answer = hived("trade", "request", "NODE", "--vc", "speech", "--for", "1h30m")
    assert answer.code == 0
    assert answer.out.startswith("trade 1: vision gives speech 1 x NODE until 1970-01-01T")
    told = hived("trade", "ls").out
    assert [line.split()[:5] for line in told.splitlines() if line.strip().startswith("1 ")] == [
        ["1", "vision", "speech", "1", "x"],
        ["1", "offer", "vision", "1", "x"],
    ]
    assert "vision  +6.0 GPU hours" in told
    market = json.loads(hived("trade", "ls", "-o", "json").out)
    assert market["surplus"] == {"vision": 6.0, "speech": -6.0}
    assert hived("trade", "withdraw", 1, "--vc", "vision").out == "1 is withdrawn\n"
    assert json.loads(hived("trade", "ls", "-o", "json").out)["offers"] == []
    engine.reset()
    hived("trade", "offer", "NODE", "--vc", "vision", "--for", "2h")
    answer = hived("trade", "request", "NODE", "--vc", "speech", "--for", "3h")
    assert answer.out.startswith("request 2: it waits for an offer")
    assert answer.err.startswith("offer 1 of vision is for another time: from now, until in ")


OFFER = ("--vc", "vision", "--for", "1h")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("offer", "NODE=3", *OFFER), 2, "CELLS: vision has 2 x NODE in that time, and"),
        (("offer", "NODE=x", *OFFER), 2, "CELLS NODE=x: give a cell type and how many"),
        (("offer", "NODE", "--vc", "nobody", "--for", "1h"), 2, "--vc: 'nobody': no such virtual cluster"),
        (("offer", "RACK", *OFFER), 2, "CELLS: 'RACK': no such cell type; there is"),
        (("offer", "NODE", *OFFER, "--wants", "NODE"), 2, "--wants: cells of another level"),
        (("offer", "NODE", *OFFER, "--from", "2020-01-01"), 2, "--from 2020-01-01: that was"),
        (("offer", "NODE", *OFFER, "--from", "soon"), 2, "--from soon: give a duration"),
        (("request", "NODE=9", "--vc", "speech", "--for", "1h"), 2, "no other tenant has 9 x NODE"),
        (("withdraw", "5", "--vc", "vision"), 4, "no offer or request 5 on the board"),
        (("ls",), 0, "nobody offers or asks for cells"),
    ],
)
def test_refusals_of_the_market(
    hived: Hived, engine: FakeService, arguments: tuple[str, ...], code: int, says: str
) -> None:
    answer = hived("trade", *arguments)
    assert (answer.code, answer.out, answer.err.count("\n")) == (code, "", 1)
    assert says in answer.err
    assert json.loads(hived("trade", "ls", "-o", "json").out)["offers"] == []
