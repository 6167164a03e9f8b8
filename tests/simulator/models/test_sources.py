"""Every number of ``models.csv`` says where it is from, and the page has every source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hived
from hived.simulator.models import JobModel, Models, packed_rates
from hived.simulator.models.table import QUANTITIES

from .values import FAMILIES, TABLE_1

MODELS = Models.load()
COLUMNS = QUANTITIES
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "models.md"


def sources(model: JobModel) -> list[tuple[str, str]]:
    """Column and source of every number: ``utilization capacity=G45; memory_gib=assumed``."""
    found = []
    for part in model.source.split("; "):
        columns, equals, where = part.partition("=")
        assert equals, f"{model.model}: {part}"
        found += [(column, where) for column in columns.split(" ")]
    return found


def test_every_number_has_one_source() -> None:
    for model in MODELS:
        assert sorted(column for column, _ in sources(model)) == sorted(COLUMNS), model.model


def test_every_number_is_used() -> None:
    """Something outside of the table reads it: a number that changes nothing is no number of a model."""
    sources = Path(hived.__file__).parent, Path(__file__).parents[3] / "evaluation"
    paths = (path for source in sources for path in source.rglob("*.py") if path.name != "table.py")
    text = "".join(path.read_text("utf-8") for path in paths)
    assert [column for column in COLUMNS if f".{column}" not in text] == []


def test_table_1_is_there() -> None:
    """As utilization, the rates' gain over it (the printed gain is rounded), and the pace of copies that take turns."""
    for name, row in TABLE_1.items():
        model, used = MODELS.of(name), row.utilization / 100
        found = model.utilization, model.capacity, model.batch_s
        assert found == pytest.approx((used, used * row.packed / row.sliced, 1 / row.sliced), abs=6e-5), name
        assert dict(sources(model))["capacity"] == "G45"


def test_families_are_means_of_their_rows() -> None:
    for family, names in FAMILIES.items():
        row = MODELS.of(family)
        assert row.model == row.family == family
        for column, where in sources(row):
            assert where == f"mean of {' '.join(names)}"
            mean = sum(getattr(MODELS.of(name), column) for name in names) / len(names)
            assert getattr(row, column) == pytest.approx(mean, abs=6e-5)
        assert all(MODELS.of(name).family == family for name in names)


def test_the_row_for_others_is_assumed() -> None:
    row = MODELS.of("*")
    assert {where for _, where in sources(row)} == {"assumed"}
    assert [sum(packed_rates([row] * number)) for number in (2, 5)] == pytest.approx([1, 1])
    assert (row.across_sockets, row.across_nodes) == (1, 1)


def test_the_page_has_every_source_and_column() -> None:
    page = PAGE.read_text("utf-8")
    cited = {where for model in MODELS for _, where in sources(model) if re.fullmatch(r"[GA]\d+", where)}
    assert sorted(re.findall(r"^\| ([GA]\d+) \|", page, re.MULTILINE)) == sorted(cited)
    columns = re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)
    assert columns == ["model", "family", *COLUMNS, "source"]


def test_the_table_of_copies_is_the_laws() -> None:
    rows = []
    for name, row in TABLE_1.items():
        model = MODELS.of(name)
        totals = {copies: sum(packed_rates([model] * copies)) for copies in range(2, 9)}
        most = max(totals.values())
        copies = next(copies for copies, total in totals.items() if total > most - 1e-9)
        rows.append(
            f"| {name} | {row.utilization:g}% | {model.capacity:.2f} | {row.sliced:g} | {row.packed:g} | "
            f"{row.gain:+}% | {copies} | {row.sliced * most:.1f} | {100 * (most - 1):+.1f}% |"
        )
    page = PAGE.read_text("utf-8")
    assert [row for row in rows if row not in page] == []
