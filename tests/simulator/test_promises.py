"""The promises of the result files, which an independent reader checks: on any small cluster, and crowded ones."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import strategies as st

from hived.simulator.traces import TABLE1, generate_table1, write_trace
from hived.spec import spec_from_quotas

from ..strategies import given_in_tiers
from .helpers import NODE_OF_8, SHARED, Row, simulated, spec_text, trace_text
from .strategies import Case, cases

DESIGN = SHARED / "specs" / "design.yaml"


@given_in_tiers(
    40, 300, cases(), st.sampled_from(["resume", "restart"]), st.sampled_from([None, None, 5, 20.5]), st.booleans()
)
def test_on_any_small_cluster(case: Case, preempted: str, until_s: float | None, lends: bool) -> None:
    with TemporaryDirectory() as folder:
        simulated(Path(folder), case.spec, case.trace, preempted=preempted, until_s=until_s, opportunistic=lends)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,500 jobs of Table 1's tenants in 6 days."""
    path = tmp_path_factory.mktemp("trace") / "t.csv.gz"
    write_trace(generate_table1(2500, 6, 3), path)
    return path


@pytest.fixture(scope="module")
def spec() -> str:
    """40 nodes, shared by Table 1's quotas: about four times too few for the trace."""
    return spec_from_quotas(40, [(row.tenant, row.quota_percent) for row in TABLE1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"until_s": 250_000.5},
        {"until_s": 100_000, "preempted": "restart"},
        {"compression": 1.5},
        {"compression": 0.3, "opportunistic": False},
    ],
    ids=str,
)
def test_on_table_1(trace: Path, spec: str, tmp_path: Path, options: dict[str, Any]) -> None:
    simulated(tmp_path, spec, trace, **options)


@pytest.mark.slow
def test_everything_happens_on_table_1(trace: Path, spec: str, tmp_path: Path) -> None:
    found = simulated(tmp_path, spec, trace)
    for scheme in ("quota", "hived"):
        outcome = found[scheme]
        pairs = [pair for runs in outcome.runs.values() for pair in itertools.pairwise(runs)]
        turns = [(a, b) for a, b in pairs if b.kind == "guaranteed" and a.end == b.start]
        assert sum(job.preemptions for job in outcome.jobs.values()) > 25
        assert sum(a.placement == b.placement for a, b in turns) > 25
        assert sum(a.end < b.start for a, b in pairs) > 25
        if scheme == "hived":
            assert sum(a.placement != b.placement for a, b in turns) > 15
    assert found.results.never_fit


def crowd(tenants: list[str], sizes: list[int], jobs: int) -> str:
    """Jobs of every size and tenant in turn, some at one instant, with odd fractions of seconds."""
    rows: list[Row] = []
    for n in range(jobs):
        submit = n // 3 * 2.125
        duration = (n * 7919 % 97) * 1.001 if n % 50 else 0
        tenant = tenants[n * 31 % len(tenants)]
        rows.append((f"j{n}", tenant, f"{submit:.3f}", f"{duration:.3f}", sizes[n % len(sizes)]))
    return trace_text(rows)


RACKS = {**NODE_OF_8, "RACK": ("NODE", 4)}
SMALL = {"DUO": ("T4", 2), "SMALL": ("DUO", 2)}
LARGE = {"L2": ("V100", 2), "L4": ("L2", 2), "L8": ("L4", 2), "LARGE": ("L8", 2)}

SPECS = {
    "racks": spec_text(
        RACKS, [{"cellType": "RACK"}] * 4,
        {"a": {"RACK": 1, "RACK.NODE": 1}, "b": {"RACK.NODE": 5}, "c": {"RACK": 1, "RACK.NODE.SOCKET": 3}},
    ),
    "cells below a node": spec_text(
        RACKS, [{"cellType": "RACK"}],
        {"a": {"RACK.NODE.SOCKET": 3}, "b": {"RACK.NODE.SOCKET.PAIR": 2, "RACK.NODE": 1},
         "c": {"RACK.NODE.SOCKET.PAIR.GPU": 7}},
    ),
    "nodes of 4 and of 16": spec_text(
        {**SMALL, **LARGE},
        [{"cellType": "SMALL", "cellAddress": "s[0-5]"}, {"cellType": "LARGE", "cellAddress": "l[0-2]"}],
        {"a": {"SMALL": 3, "LARGE": 1}, "b": {"LARGE.L8": 3}, "c": {"SMALL": 2, "SMALL.DUO": 1}},
        ["SMALL", "LARGE"],
    ),
    "two chains of one device": spec_text(
        {"QUAD": ("GPU", 4), **NODE_OF_8},
        [{"cellType": "QUAD", "cellAddress": "q[0-3]"}, {"cellType": "NODE", "cellAddress": "n[0-3]"}],
        {"a": {"QUAD": 2, "NODE": 1}, "b": {"NODE": 2, "QUAD": 1}, "c": {"NODE.SOCKET": 1}},
        ["QUAD", "NODE"],
    ),
    "single devices": spec_text(
        {"NODE": ("GPU", 1)}, [{"cellType": "NODE", "cellAddress": "n[0-9]"}],
        {"a": {"NODE": 4}, "b": {"NODE": 3}, "c": {"NODE": 2}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("lends", [True, False], ids=["lending", "no lending"])
@pytest.mark.parametrize("preempted", ["resume", "restart"])
@pytest.mark.parametrize("jobs", [150, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SPECS)
def test_on_every_shape(tmp_path: Path, name: str, jobs: int, preempted: str, lends: bool) -> None:
    trace = crowd(["a", "b", "c"], [1, 1, 2, 1, 4, 8, 1, 3, 2, 12, 16, 5, 64], jobs)
    simulated(tmp_path, SPECS[name], trace, preempted=preempted, opportunistic=lends)


@pytest.mark.skipif(not DESIGN.exists(), reason="the specs of deployed clusters are not here")
@pytest.mark.parametrize("lends", [True, False], ids=["lending", "no lending"])
@pytest.mark.parametrize("jobs", [100, pytest.param(600, marks=pytest.mark.slow)])
def test_on_a_deployed_cluster(tmp_path: Path, jobs: int, lends: bool) -> None:
    """Six chains, racks, pinned cells, and a node with two kinds of device."""
    trace = crowd(["VC1", "VC2"], [1, 2, 4, 8, 16, 3, 32, 1, 48, 2], jobs)
    simulated(tmp_path, DESIGN, trace, opportunistic=lends)
