"""Specs of deployed clusters and quotas of a real one: run where that data lies beside the repository."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from hived.spec import PinnedCellSpec, load_spec, read_quotas, share_nodes

SHARED = Path(__file__).parents[3] / "shared"
SPECS = sorted([*SHARED.glob("specs/design.yaml"), *SHARED.glob("specs/hived-config-*.yaml")])

needs_specs = pytest.mark.skipif(not SPECS, reason="the specs of deployed clusters are not here")
needs_traces = pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="the traces are not here")


@needs_specs
@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_deployed_spec_loads(path: Path) -> None:
    spec = load_spec(path)
    assert spec.chains
    assert spec.virtual_clusters
    for chain in spec.chains:
        assert len(chain.node_names) == chain.cells_at(chain.node_level)


@needs_specs
def test_a_spec_with_every_feature() -> None:
    spec = load_spec(SHARED / "specs" / "design.yaml")
    shapes = {chain.name: (chain.top_cells, chain.gpus, chain.node_level) for chain in spec.chains}
    assert shapes == {
        "CT1-NODE": (3, 6, 2),
        "3-DGX1-P100-NODE": (1, 24, 4),
        "DGX2-V100-NODE": (2, 32, 5),
        "3-DGX2-V100-NODE": (1, 48, 5),
        "4-DGX2-V100-NODE": (2, 128, 5),
        "2-IB-DGX2-V100-NODE": (1, 32, 5),
    }
    assert spec.chain("CT1-NODE").device_indices == {2: (8, 9)}
    assert spec.chain("3-DGX1-P100-NODE").device_indices == {2: (1, 3, 4, 7, 0, 2, 6, 5)}
    assert spec.virtual_clusters[0].pinned == (
        PinnedCellSpec("VC1-YQW-CT1", "CT1-NODE", 1, 4),
        PinnedCellSpec("VC1-YQW-DGX2", "4-DGX2-V100-NODE", 6, 0),
        PinnedCellSpec("VC1-YQW-IB-DGX2", "2-IB-DGX2-V100-NODE", 6, 0),
    )


@needs_traces
@pytest.mark.parametrize("name", ["tenants.csv", "hived_table1.csv"])
def test_real_quotas_share_a_cluster(name: str) -> None:
    quotas = read_quotas(SHARED / "traces" / name)
    assert len(quotas) == 11
    assert ("res-a", Decimal("0.37")) in quotas
    assert share_nodes(200, quotas) == (1, 1, 1, 3, 4, 57, 18, 21, 23, 31, 40)
