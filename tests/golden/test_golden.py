"""Results and decisions are those that were kept. The Philly trace: ``python -m tests.golden check``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hived import Cluster
from hived.events.replay import replay

from .cases import HERE, Case, generated
from .walks import walks

EXPECTED: dict[str, str] = json.loads((HERE / "hashes.json").read_text())


@pytest.mark.parametrize("case", generated(), ids=lambda case: case.name)
def test_the_results_of_a_simulation_are_those_that_were_kept(case: Case, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for options in case.options():
        found |= case.write(options, tmp_path)
    assert [name for name in found if found[name] != EXPECTED[name]] == []


def test_the_decisions_of_random_walks_are_those_that_were_kept() -> None:
    for lines in walks():
        replay(lines, Cluster).validate()
