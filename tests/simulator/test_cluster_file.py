"""cluster.json: the cluster of every scheme, as the placements of ``runs.csv`` name it."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from ..strategies import given_in_tiers
from .helpers import simulated, spec_text, trace_text
from .strategies import Case, cases


def contents(folder: Path) -> Any:
    """What the file says."""
    return json.loads((folder / "cluster.json").read_text(encoding="utf-8"))


def sizes(chain: Any) -> list[tuple[str, int]]:
    """Its levels, from the leaf to the top."""
    return [(level["cell_type"], level["gpus"]) for level in chain["levels"]]


RACKS = {"SOCKET": ("GPU", 4), "NODE": ("SOCKET", 2), "RACK": ("NODE", 2)}


def test_racks(tmp_path: Path) -> None:
    """Two racks of two nodes: a rack and a socket for a, a node for b."""
    children = [[{"cellAddress": f"r{rack}n{node}"} for node in range(2)] for rack in range(2)]
    cells = [{"cellType": "RACK", "cellChildren": nodes} for nodes in children]
    vcs = {"a": {"RACK": 1, "RACK.NODE.SOCKET": 1}, "b": {"RACK.NODE": 1}}
    simulated(tmp_path, spec_text(RACKS, cells, vcs), trace_text([("j", "a", 0, 5, 8)]))
    racks = contents(tmp_path)
    assert racks["schemes"]["hived"] == racks["schemes"]["quota"]
    (chain,) = racks["schemes"]["hived"]
    assert (chain["name"], chain["node_level"], chain["devices"]) == ("RACK", 3, {})
    assert sizes(chain) == [("GPU", 1), ("SOCKET", 4), ("NODE", 8), ("RACK", 16)]
    assert chain["nodes"] == ["r0n0", "r0n1", "r1n0", "r1n1"]
    # a private cluster has a chain per kind of cell that its tenant reserved; a socket is a node of its own
    assert [
        (chain["name"], chain["nodes"], chain["node_level"], sizes(chain)[-1]) for chain in racks["schemes"]["private"]
    ] == [
        ("a RACK", ["a-node-0", "a-node-1"], 3, ("RACK", 16)),
        ("a SOCKET", ["a-node-2"], 2, ("SOCKET", 4)),
        ("b NODE", ["b-node-0"], 3, ("NODE", 8)),
    ]
    assert racks["virtual_clusters"] == [
        {"name": "a", "reserved": [
            {"chain": 0, "cell_type": "RACK", "gpus": 16, "number": 1, "pinned": None},
            {"chain": 0, "cell_type": "RACK.NODE.SOCKET", "gpus": 4, "number": 1, "pinned": None},
        ]},
        {"name": "b", "reserved": [{"chain": 0, "cell_type": "RACK.NODE", "gpus": 8, "number": 1, "pinned": None}]},
    ]  # fmt: skip


def test_pinned_cells_and_odd_devices(tmp_path: Path) -> None:
    cells: list[dict[str, Any]] = [
        {"cellType": "NODE", "cellAddress": "odd", "cellChildren": [{"cellAddress": "7"}, {"cellAddress": "5"}]},
        {"cellType": "NODE", "cellAddress": "plain", "pinnedCellId": "p"},
    ]
    spec = json.loads(spec_text({"NODE": ("GPU", 2)}, cells, {"a": {"NODE": 1}}))
    spec["virtualClusters"]["a"]["pinnedCells"] = [{"pinnedCellId": "p"}]
    simulated(tmp_path, json.dumps(spec), trace_text([("j", "a", 0, 5, 2)]), schemes=["private", "hived"])
    found = contents(tmp_path)
    (vc,) = found["virtual_clusters"]
    assert [(one["number"], one["pinned"]) for one in vc["reserved"]] == [(1, None), (1, "p")]
    assert list(found["schemes"]) == ["private", "hived"]
    ((private,), (hived,)) = found["schemes"].values()
    assert hived["devices"] == {"0": [7, 5]}
    assert private["nodes"] == ["a-node-0"], "no job can run in the pinned one, so it is not counted as a node"


@given_in_tiers(20, 100, cases(max_jobs=15))
def test_every_placement_is_in_its_cluster(case: Case) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = simulated(folder, case.spec, case.trace)
        schemes = contents(folder)["schemes"]
    for scheme, chains in schemes.items():
        per_node = [chain["levels"][chain["node_level"] - 1]["gpus"] for chain in chains]
        known = {
            (node, device)
            for chain, gpus in zip(chains, per_node, strict=True)
            for number, node in enumerate(chain["nodes"])
            for device in chain["devices"].get(str(number), range(gpus))
        }
        held = {gpu for _, run in found[scheme].all_runs() for gpu in run.held}
        assert {(unquote(node), device) for node, device in held} <= known
        sizes = found.results.node_sizes[list(schemes).index(scheme)]
        assert len(sizes) == sum(len(chain["nodes"]) for chain in chains)
        assert sum(sizes.values()) == len(known)
