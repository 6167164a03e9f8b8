"""cluster.json: the cluster of every scheme, as the placements of ``runs.csv`` name it."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from hypothesis import given

from hived.simulator import Options, run_experiment
from hived.simulator.output import write_cluster
from hived.spec import parse_spec

from .helpers import examples, nodes_of_8, simulated, spec_text, trace_of, trace_text
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
    # a private cluster has a chain per kind of cell that its tenant reserved
    a_rack, a_socket, b_node = racks["schemes"]["private"]
    assert [chain["name"] for chain in (a_rack, a_socket, b_node)] == ["a RACK", "a SOCKET", "b NODE"]
    assert (a_rack["nodes"], a_rack["node_level"]) == (["a-node-0", "a-node-1"], 3)
    assert sizes(a_rack)[-1] == ("RACK", 16)
    assert (a_socket["nodes"], a_socket["node_level"]) == (["a-node-2"], 2), "smaller than a node: one of its own"
    assert sizes(a_socket) == [("GPU", 1), ("SOCKET", 4)]
    assert (b_node["nodes"], sizes(b_node)[-1]) == (["b-node-0"], ("NODE", 8))
    assert racks["virtual_clusters"] == [
        {"name": "a", "reserved": [
            {"chain": 0, "cell_type": "RACK", "gpus": 16, "number": 1, "pinned": None},
            {"chain": 0, "cell_type": "RACK.NODE.SOCKET", "gpus": 4, "number": 1, "pinned": None},
        ]},
        {"name": "b", "reserved": [{"chain": 0, "cell_type": "RACK.NODE", "gpus": 8, "number": 1, "pinned": None}]},
    ]  # fmt: skip


def test_pinned_cells_have_their_id(tmp_path: Path) -> None:
    spec = json.loads(nodes_of_8(2, {"a": 1}))
    cells = [{"cellType": "NODE", "cellAddress": "n0"}, {"cellType": "NODE", "cellAddress": "n1", "pinnedCellId": "p"}]
    spec["physicalCluster"]["physicalCells"] = cells
    spec["virtualClusters"]["a"]["pinnedCells"] = [{"pinnedCellId": "p"}]
    trace = trace_of(trace_text([("j", "a", 0, 5, 8)]))
    found = run_experiment(parse_spec(json.dumps(spec), "spec"), trace, Options())
    write_cluster(found, tmp_path / "cluster.json")
    (vc,) = contents(tmp_path)["virtual_clusters"]
    assert [(cells["cell_type"], cells["number"], cells["pinned"]) for cells in vc["reserved"]] == [
        ("NODE", 1, None), ("NODE", 1, "p"),
    ]  # fmt: skip
    (private,) = contents(tmp_path)["schemes"]["private"]
    assert private["nodes"] == ["a-node-0"], "no job can run in the pinned one, so it is not counted as a node"


def test_odd_device_indices_are_there(tmp_path: Path) -> None:
    cells: list[dict[str, Any]] = [
        {"cellType": "NODE", "cellAddress": "odd", "cellChildren": [{"cellAddress": "7"}, {"cellAddress": "5"}]},
        {"cellType": "NODE", "cellAddress": "plain"},
    ]
    spec = spec_text({"NODE": ("GPU", 2)}, cells, {"a": {"NODE": 1}})
    simulated(tmp_path, spec, trace_text([("j", "a", 0, 5, 2)]), schemes=["hived"])
    (chain,) = contents(tmp_path)["schemes"]["hived"]
    assert chain["devices"] == {"0": [7, 5]}
    assert list(contents(tmp_path)["schemes"]) == ["hived"]


@examples(fast=20, slow=100)
@given(cases(max_jobs=15))
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
