"""``hived usage``: GPU hours as tables, data and CSV, by day and month of the reader's zone."""

from __future__ import annotations

import csv
import io
import json

import pytest

from hived.cli.formats import time_of
from hived.cli.usage import Per, _parts
from hived.errors import InputError

from ...server.fakes import FakeService
from ..helpers import Hived, refused


def test_by_virtual_cluster(hived: Hived, engine: FakeService) -> None:
    answer = hived("usage", "--since", "30d")
    assert (answer.code, answer.err) == (0, "in GPU hours\n")
    header, line = answer.out.splitlines()
    assert header.split() == [
        "VC", "JOBS", "GUARANTEED", "OPPORTUNISTIC", "GUEST", "SUSPENDED", "USED", "RESERVED", "IDLE",
    ]  # fmt: skip
    assert line.split() == ["vision", "2", "2.00", "0.00", "0.00", "0.00", "2.00", "4.00", "2.00"]


def test_by_user(hived: Hived, engine: FakeService) -> None:
    """What virtual clusters have reserved is nobody's."""
    answer = hived("usage", "--by", "user", "--by", "vc")
    assert [line.split()[:4] for line in answer.out.splitlines()] == [
        ["USER", "VC", "JOBS", "GUARANTEED"],
        ["ann", "vision", "2", "2.00"],
    ]
    (row,) = json.loads(hived("usage", "--by", "user", "-o", "json").out)
    assert row == {"user": "ann", "jobs": 2, "guaranteed": 2.0, "opportunistic": 0.0, "guest": 0.0, "suspended": 0.0}
    assert hived("usage", "--user", "bob", "--by", "user").out == ""
    assert "RESERVED" not in hived("usage", "--user", "ann", "--by", "vc").out, "of one user it would be 0"
    assert "nobody had GPUs" in hived("usage", "--user", "bob", "--by", "user").err


def test_csv_by_month(hived: Hived, engine: FakeService) -> None:
    answer = hived("usage", "--per", "month", "--since", "2026-01-15", "--until", "2026-03-02", "--csv")
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert [(row["period"], row["vc"], row["used"], row["idle"]) for row in rows] == [
        (month, "vision", "2.0000", "2.0000") for month in ("2026-01", "2026-02", "2026-03")
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--since", "soon"], "--since soon: is no time; write 30d"),
        (["--since", "2026-02-01", "--until", "2026-01-01"], "is not before the end"),
        (["--since", "2000-01-01", "--until", "2026-01-01", "--per", "day"], "more than 1,000 rows"),
    ],
)
def test_wrong_times(hived: Hived, engine: FakeService, options: list[str], words: str) -> None:
    assert words in refused(hived("usage", *options), 2)


def test_days_are_those_of_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on which the clock is set back has 25 hours; together they are the whole time."""
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        start, end = (time_of("--since", text, 0.0) for text in ("2026-10-24T12:00", "2026-10-27"))
        parts = list(_parts(start, end, Per.DAY))
        assert [name for name, _, _ in parts] == ["2026-10-24", "2026-10-25", "2026-10-26"]
        assert [round((last - first) / 3600) for _, first, last in parts] == [12, 25, 24]
        assert [first for _, first, _ in parts[1:]] == [last for _, _, last in parts[:-1]]
        assert sum(last - first for _, first, last in parts) == end - start
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_time_that_is_none() -> None:
    with pytest.raises(InputError, match="2026-13-01: is no time"):
        time_of("--until", "2026-13-01", 0.0)
