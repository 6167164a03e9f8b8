"""``hived offer``, ``request``, ``withdraw`` and ``trades``."""

from __future__ import annotations

import json

import pytest

from ..helpers import Hived
from .fake import Engine


def test_an_offer_a_request_and_the_trade_between_them(hived: Hived, engine: Engine) -> None:
    answer = hived("offer", "NODE=2", "--vc", "vision", "--for", "2h")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "offer 1: it waits for a request; hived trades shows it, hived withdraw 1 ends it\n"
    answer = hived("request", "NODE", "--vc", "speech", "--for", "1h30m")
    assert answer.code == 0
    assert answer.out.startswith("trade 1: vision gives speech 1 x NODE until 1970-01-01T")
    told = hived("trades").out
    assert [line.split()[:5] for line in told.splitlines() if line.strip().startswith("1 ")] == [
        ["1", "vision", "speech", "1", "x"], ["1", "offer", "vision", "1", "x"],
    ]  # fmt: skip
    assert "vision  +6.0 GPU hours" in told
    market = json.loads(hived("trades", "-o", "json").out)
    assert market["surplus"] == {"vision": 6.0, "speech": -6.0}
    assert hived("withdraw", 1, "--vc", "vision").out == "1 is withdrawn\n"
    assert json.loads(hived("trades", "-o", "json").out)["offers"] == []


def test_a_request_that_fails_by_its_window_alone_says_so(hived: Hived, engine: Engine) -> None:
    hived("offer", "NODE", "--vc", "vision", "--for", "2h")
    answer = hived("request", "NODE", "--vc", "speech", "--for", "3h")
    assert answer.out.startswith("request 2: it waits for an offer")
    assert answer.err.startswith("offer 1 of vision is for another time: from now, until in ")


def test_nothing_to_show_is_said(hived: Hived, engine: Engine) -> None:
    answer = hived("trades")
    assert (answer.code, answer.out) == (0, "")
    assert "nobody offers or asks for cells" in answer.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("offer", "NODE=3", "--vc", "vision", "--for", "1h"), 2, "CELLS: vision has 2 x NODE in that time, and"),
        (("offer", "NODE=x", "--vc", "vision", "--for", "1h"), 2, "CELLS NODE=x: give a cell type and how many"),
        (("offer", "NODE", "--vc", "nobody", "--for", "1h"), 2, "--vc: 'nobody': no such virtual cluster"),
        (("offer", "RACK", "--vc", "vision", "--for", "1h"), 2, "CELLS: 'RACK': no such cell type; there is"),
        (("offer", "NODE", "--vc", "vision", "--for", "1h", "--wants", "NODE"), 2, "--wants: cells of another level"),
        (("offer", "NODE", "--vc", "vision", "--for", "1h", "--from", "2020-01-01"), 2, "--from 2020-01-01: that was"),
        (("offer", "NODE", "--vc", "vision", "--for", "1h", "--from", "soon"), 2, "--from soon: give a duration"),
        (("request", "NODE=9", "--vc", "speech", "--for", "1h"), 2, "no other tenant has 9 x NODE"),
        (("withdraw", "5", "--vc", "vision"), 4, "no offer or request 5 on the board"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(
    hived: Hived, engine: Engine, arguments: tuple[str, ...], code: int, says: str
) -> None:
    answer = hived(*arguments)
    assert (answer.code, answer.out, answer.err.count("\n")) == (code, "", 1)
    assert says in answer.err
    assert json.loads(hived("trades", "-o", "json").out)["offers"] == []
