"""The table of gang states is in the documentation as in the code."""

from __future__ import annotations

from pathlib import Path

from hived.engines.kubernetes.gangs.gang import GANG_TABLE, GangEvent, GangState

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "states.md"


def test_documentation_has_the_same_table() -> None:
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
