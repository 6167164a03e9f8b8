"""The tour of the Python contract is true, word for word."""

from __future__ import annotations

import doctest
from pathlib import Path

TOUR = Path(__file__).parents[1] / "docs" / "tour.md"
#: what a tour of the whole contract needs at least
ENOUGH = 25


def test_the_tour_shows_what_happens() -> None:
    text = TOUR.read_text(encoding="utf-8")
    tour = doctest.DocTestParser().get_doctest(text, {"__name__": "tour"}, TOUR.name, str(TOUR), 0)
    told: list[str] = []
    failed, tried = doctest.DocTestRunner().run(tour, out=told.append)
    assert not failed, "".join(told)
    assert tried >= ENOUGH
