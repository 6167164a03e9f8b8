"""The page of claims, made from reports."""

from __future__ import annotations

import pytest
from tools.claims import section

REPORT = """# Some evaluation

`python -m evaluation some`, version 1.2.dev3+gabc. Figures.

## Which shapes hold

| experiment | trace |
|---|---|
| Figure 1 | holds (1/2) |

## Figure 1: who waits

*The paper:* somebody.

### does not hold: a trace

*Setting:* one.

- somebody waits: **holds**
- nobody waits long: **does not hold**
- an echo: **not judged**

### not judged: another trace

- an echo: **not judged**
"""


def test_section_of_a_report() -> None:
    text = section(REPORT, "2026-11-26")
    assert text.startswith("## Some evaluation\n\n2026-11-26, version 1.2.dev3+gabc.\n")
    assert text.splitlines()[-2:] == [
        "| Figure 1: who waits | a trace | 1 of 2 | *does not hold*: nobody waits long |",
        "| Figure 1: who waits | another trace | not judged | |",
    ]


@pytest.mark.parametrize(
    ("text", "says"), [("# Some\n**Quick.** ..., version 1. ", "without --quick"), ("# My notes\n", "no report")]
)
def test_what_is_no_full_report(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        section(text, "today")
