"""The states of a job in the scheduler are the table of the page, and no other transition is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived import InvariantError
from hived.scheduling.states import STATUS_EVENTS, Status, StatusEvent

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"


def rows() -> list[list[str]]:
    """The cells of the tables under the heading of the page, without the lines below table heads."""
    section = PAGE.read_text(encoding="utf-8").partition("\n### States of a job ")[2].partition("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


def test_page_has_the_table() -> None:
    (_, *events), *shown = rows()
    states, meanings = shown[: len(Status)], shown[len(Status) + 1 :]
    assert (events, [row[0] for row in states]) == ([event.name for event in STATUS_EVENTS], [*Status])
    on_page = {(row[0], event): cell for row in states for event, cell in zip(events, row[1:], strict=True)}
    table = {(before, event.name): after for event in STATUS_EVENTS for before, after in event.items()}
    assert {pair: after for pair, after in on_page.items() if after != "-"} == table
    assert [row[0] for row in meanings] == events


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("event", STATUS_EVENTS, ids=lambda event: event.name)
def test_every_pair(status: Status, event: StatusEvent) -> None:
    after = event.get(status)
    if after is None:
        with pytest.raises(InvariantError, match=f"a job that is {status.value} cannot {event.name}"):
            event[status]
    else:
        assert event[status] is after


def test_every_state_is_reached_and_left() -> None:
    states = set(Status)
    assert {before for event in STATUS_EVENTS for before in event} == states
    assert {after for event in STATUS_EVENTS for after in event.values()} == states
