"""The table of gang states: in the documentation as in the code, and nothing beside it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from hived import InvariantError
from hived.engines.job import next_state
from hived.engines.kubernetes.gangs.gang import GANG_TABLE, GangEvent, GangState

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


@pytest.mark.parametrize(("state", "event"), list(product(GangState, GangEvent)))
def test_every_pair_does_what_the_table_says_or_is_refused(state: GangState, event: GangEvent) -> None:
    if (state, event) in GANG_TABLE:
        assert next_state(GANG_TABLE, state, event) is GANG_TABLE[state, event]
    else:
        with pytest.raises(InvariantError, match=f"{state.value} cannot be {event.value}"):
            next_state(GANG_TABLE, state, event)


def test_the_documentation_has_the_same_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").partition("## Gangs on Kubernetes")[2]
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    events = rows[0][1:]
    assert events == [event.value for event in GangEvent]
    shown = {
        (row[0], event): cell
        for row in rows[1 : 1 + len(GangState)]
        for event, cell in zip(events, row[1:], strict=True)
        if cell != "-"
    }
    assert shown == {(state.value, event.value): after.value for (state, event), after in GANG_TABLE.items()}
