"""Results and decisions are those that were kept. The Philly trace: ``python -m tests.golden check``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hived import Cluster
from hived.events.replay import replay

from .cases import HASHES, Case, Simulated, generated, quick
from .walks import walks

EXPECTED: dict[str, str] = json.loads(HASHES.read_text())


def different(simulated: Simulated, folder: Path) -> list[str]:
    case, scenario = simulated
    found = case.write(scenario, folder)
    return [name for name in found if found[name] != EXPECTED[name]]


@pytest.mark.parametrize("simulated", quick(), ids=lambda simulated: simulated[0].name)
def test_results_are_those_kept(simulated: Simulated, tmp_path: Path) -> None:
    """One simulation of each cluster, of every kind in turn."""
    assert different(simulated, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", generated(), ids=lambda case: case.name)
def test_all_results_are_those_kept(case: Case, tmp_path: Path) -> None:
    assert [name for scenario in case.scenarios() for name in different((case, scenario), tmp_path)] == []


def test_decisions_of_walks_are_those_kept() -> None:
    for lines in walks():
        replay(lines, Cluster).validate()
