"""The table of job states: in the documentation as in the code, and nothing beside it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from hived import InvariantError
from hived.engines.job import next_state
from hived.engines.local.model import JOB_TABLE, JobEvent, JobState

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


@pytest.mark.parametrize(("state", "event"), list(product(JobState, JobEvent)))
def test_every_pair_does_what_the_table_says_or_is_refused(state: JobState, event: JobEvent) -> None:
    if (state, event) in JOB_TABLE:
        assert next_state(JOB_TABLE, state, event) is JOB_TABLE[state, event]
    else:
        with pytest.raises(InvariantError, match=f"{state.value} cannot be {event.value}"):
            next_state(JOB_TABLE, state, event)


def test_what_has_ended_stays_so() -> None:
    assert not any(state.ended for state, _ in JOB_TABLE)


def test_the_documentation_has_the_same_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").partition("## Jobs of the embedded engine")[2]
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    events = rows[0][1:]
    assert events == [event.value for event in JobEvent]
    shown = {
        (row[0], event): cell
        for row in rows[1 : 1 + len(JobState)]
        for event, cell in zip(events, row[1:], strict=True)
        if cell != "-"
    }
    assert shown == {(state.value, event.value): after.value for (state, event), after in JOB_TABLE.items()}
