"""An experiment that measures and reports are checked on."""

from __future__ import annotations

import pytest

from .helpers import Experiment, nodes_of_8, simulated, trace_text


@pytest.fixture(scope="package")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Three tenants that meet on four nodes, with loans, preemption and jobs that never fit; one submits nothing."""
    sizes = [1, 1, 2, 4, 1, 8, 3, 16, 64]
    rows = [(f"j{n}", "abc"[n * 7 % 3], n * 2, n * 31 % 83 + 1, sizes[n * 4 % 9]) for n in range(200)]
    spec = nodes_of_8(5, {"a": 1, "b": 1, "c": 2, "idle": 1})
    return simulated(tmp_path_factory.mktemp("experiment"), spec, trace_text(rows))
