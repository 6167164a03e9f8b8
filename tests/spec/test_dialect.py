"""What a right spec means: defaults, names, device indices, pinned cells, virtual clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hived.errors import SpecError
from hived.spec import (
    LevelSpec,
    PinnedCellSpec,
    VirtualCellsSpec,
    VirtualClusterSpec,
    load_spec,
    parse_spec,
    spec_from_dict,
)

from .helpers import TYPES, compiled, spec_text


def test_levels_from_the_leaf_up() -> None:
    (chain,) = compiled().chains
    assert chain.name == "RACK"
    assert chain.levels == (
        LevelSpec("GPU", 1, 1),
        LevelSpec("SOCKET", 2, 2),
        LevelSpec("NODE", 2, 4),
        LevelSpec("RACK", 2, 8),
    )
    assert chain.node_level == 3
    assert (chain.top_cells, chain.gpus, chain.gpus_per_node) == (1, 8, 4)


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        # what is left out is numbered through the whole list
        ("- cellType: RACK\n- cellType: RACK", ["0 1 2 3"]),
        # null and no children are the same as none
        (
            "- cellType: RACK\n  cellAddress: null\n  cellChildren:\n"
            "  - {cellAddress: a, cellChildren: null}\n  - {cellAddress: b, cellChildren: []}",
            ["a b"],
        ),
        # an address left out among given ones is its position: the rack is number 1, its children are 2 and 3
        ("- cellType: NODE\n- cellType: RACK\n  cellChildren: [{}, {cellAddress: 77}]", ["0", "2 77"]),
        # a range counts as the entries it expands to: racks 4 and 5, two nodes each
        (
            "- {cellType: NODE, cellAddress: 'a[0-2]'}\n- cellType: NODE\n"
            "- {cellType: RACK, cellAddress: 'r[0-1]', cellChildren: [{}, {}]}",
            ["a0 a1 a2 3", "8 9 10 11"],
        ),
        # names stay as written
        (
            "\n".join(f"- {{cellType: NODE, cellAddress: {a}}}" for a in ("007", "0x1F", "12:30", "2020-01-02", "31")),
            ["007 0x1F 12:30 2020-01-02 31"],
        ),
    ],
)
def test_names_of_nodes(cells: str, names: list[str]) -> None:
    chains = compiled(cells).chains
    assert [" ".join(chain.node_names) for chain in chains] == names
    assert [chain.device_indices for chain in chains] == [{}] * len(names)


def test_chains_in_order_may_interleave() -> None:
    cells = """
    - cellType: NODE
      cellAddress: a
    - cellType: RACK
      cellChildren: [{cellAddress: b}, {cellAddress: c}]
    - cellType: NODE
      cellAddress: d
    """
    node, rack = compiled(cells).chains
    assert (node.name, node.top_cells, tuple(node.node_names)) == ("NODE", 2, ("a", "d"))
    assert (rack.name, rack.top_cells, tuple(rack.node_names)) == ("RACK", 1, ("b", "c"))


def test_only_odd_device_indices_are_kept() -> None:
    cells = """
    - cellType: NODE
      cellAddress: usual
      cellChildren:
      - cellChildren: [{cellAddress: 0}, {cellAddress: "1"}]
      - cellAddress: 17
    - cellType: NODE
      cellAddress: odd
      cellChildren:
      - cellAddress: 1
        cellChildren: [{cellAddress: 7}, {cellAddress: 4}]
      - cellAddress: 0
    - cellType: NODE
      cellAddress: in part
      cellChildren: [{cellChildren: [{cellAddress: 9}, {}]}, {cellChildren: [{}, {cellAddress: 8}]}]
    """
    (chain,) = compiled(cells).chains
    # a socket's address is a label: its devices count by position
    assert chain.device_indices == {1: (7, 4, 2, 3), 2: (9, 1, 2, 8)}
    assert [chain.device_index(0, leaf) for leaf in range(4)] == [0, 1, 2, 3]
    assert chain.device_index(1, 1) == 4


def test_a_machine_of_two_kinds_of_device() -> None:
    types = TYPES + "OLD-NODE:\n  childCellType: OLD\n  childCellNumber: 2\n  isNodeLevel: true\n"
    cells = """
    - cellType: NODE
      cellAddress: mixed
    - cellType: OLD-NODE
      cellAddress: mixed
      cellChildren: [{cellAddress: 4}, {cellAddress: 5}]
    """
    new, old = compiled(cells, types=types).chains
    assert tuple(new.node_names) == tuple(old.node_names) == ("mixed",)
    assert (old.leaf_type, old.device_indices) == ("OLD", {0: (4, 5)})


def test_a_range_of_nodes_shares_devices() -> None:
    types = "NODE: {childCellType: GPU, childCellNumber: 4, isNodeLevel: true}"
    cells = """
    - cellType: NODE
      cellAddress: n[0-2]
      cellChildren: [{cellAddress: "[6-7,4-5]"}]
    """
    (chain,) = compiled(cells, types=types).chains
    assert tuple(chain.node_names) == ("n0", "n1", "n2")
    assert chain.device_indices == dict.fromkeys(range(3), (6, 7, 4, 5))


def test_a_range_inside_a_node() -> None:
    cells = """
    - cellType: NODE
      cellAddress: n
      cellChildren:
      - cellAddress: s[0-1]
        cellChildren: [{}, {}]
    """
    assert compiled(cells).chains[0].device_indices == {}
    with pytest.raises(SpecError, match="device 7 is in node `n` twice"):
        compiled(cells.replace("[{}, {}]", '[{cellAddress: "[7-8]"}]'))


def test_65_536_gpus_in_eight_entries() -> None:
    types = """
    NODE: {childCellType: GPU, childCellNumber: 8, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 1024}
    """
    spelled = "\n".join(
        f'- {{cellType: RACK, cellChildren: [{{cellAddress: "r{rack}-n[0-1023]"}}]}}' for rack in range(8)
    )
    (chain,) = compiled(spelled, types=types).chains
    assert (chain.gpus, chain.top_cells) == (65_536, 8)
    assert chain.node_names[1024] == "r1-n0"
    (chain,) = compiled("- {cellType: RACK, cellAddress: 'r[0-7]'}", types=types).chains
    assert (chain.gpus, chain.top_cells, chain.node_names[8191]) == (65_536, 8, "8191")


def test_pinned_cells_at_every_level() -> None:
    cells = """
    - cellType: RACK
      pinnedCellId: rack
    - cellType: RACK
      cellChildren:
      - pinnedCellId: node
      - cellChildren:
        - pinnedCellId: socket
        - cellChildren: [{}, {pinnedCellId: device}]
    """
    vcs = """
    a:
      pinnedCells: [{pinnedCellId: rack}, {pinnedCellId: device}]
    b:
      pinnedCells: [{pinnedCellId: node}, {pinnedCellId: socket}]
    """
    a, b = compiled(cells, vcs).virtual_clusters
    assert a.pinned == (PinnedCellSpec("rack", "RACK", 4, 0), PinnedCellSpec("device", "RACK", 1, 15))
    assert b.pinned == (PinnedCellSpec("node", "RACK", 3, 2), PinnedCellSpec("socket", "RACK", 2, 6))
    spare = compiled("- cellType: RACK\n  pinnedCellId: spare", "a:\n  pinnedCells: null")
    assert spare.virtual_clusters == (VirtualClusterSpec("a", ()),), "one that no VC claims is not listed"


@pytest.mark.parametrize(
    ("cells", "levels"),
    [
        ([("RACK.NODE.SOCKET.GPU", 1), ("RACK", 2), ("RACK.NODE", 0), ("RACK.NODE.SOCKET.GPU", 2)], [(1, 3), (4, 2)]),
        # types between may be left out, as deployed clusters do
        ([("RACK.SOCKET", 1), ("RACK.NODE.SOCKET", 2), ("RACK.GPU", 3)], [(2, 3), (1, 3)]),
    ],
)
def test_a_vc_names_cells_of_any_level(cells: list[tuple[str, int]], levels: list[tuple[int, int]]) -> None:
    listed = [{"cellType": kind, "cellNumber": number} for kind, number in cells]
    (vc,) = compiled(vcs=f"a: {{virtualCells: {json.dumps(listed)}}}").virtual_clusters
    assert vc.cells == tuple(VirtualCellsSpec("RACK", *of) for of in levels)


def test_a_vc_may_be_empty_in_every_way() -> None:
    vcs = "a:\nb: {}\nc: {virtualCells: []}\nd: {virtualCells: null, pinnedCells: []}"
    for vc in compiled(vcs=vcs).virtual_clusters:
        assert (vc.cells, vc.pinned) == ((), ())
        said = (vc.opportunistic_weight, vc.opportunistic_grace_seconds, vc.guests, vc.safety)
        assert said == (None, 30, "none", "work-conserving")


@pytest.mark.parametrize(
    ("key", "written", "field", "value"),
    [
        ("opportunisticWeight", "2", "opportunistic_weight", 2.0),
        ("opportunisticWeight", "1.0e-3", "opportunistic_weight", 0.001),
        ("opportunisticWeight", "null", "opportunistic_weight", None),  # its size counts
        ("opportunisticGraceSeconds", "0", "opportunistic_grace_seconds", 0),
        ("opportunisticGraceSeconds", "90", "opportunistic_grace_seconds", 90),
        ("opportunisticGraceSeconds", "null", "opportunistic_grace_seconds", 30),
        ("guests", "none", "guests", "none"),
        ("guests", "own", "guests", "own"),
        ("guests", "all", "guests", "all"),
        ("guests", "null", "guests", "none"),
        ("safety", "exact", "safety", "exact"),
        ("safety", "work-conserving", "safety", "work-conserving"),
        ("safety", "", "safety", "work-conserving"),
    ],
)
def test_what_a_vc_may_say_of_itself(key: str, written: str, field: str, value: object) -> None:
    (vc,) = compiled(vcs=f"a:\n  {key}: {written}").virtual_clusters
    found = getattr(vc, field)
    assert (found, type(found)) == (value, type(value))


def plain(vc: object) -> dict[str, object]:
    """The same rack of two nodes as data, and a VC."""
    return {
        "kubeApiServerAddress": "x",
        "physicalCluster": {
            "cellTypes": {
                "SOCKET": {"childCellType": "GPU", "childCellNumber": 2},
                "NODE": {"childCellType": "SOCKET", "childCellNumber": 2, "isNodeLevel": True},
                "RACK": {"childCellType": "NODE", "childCellNumber": 2},
            },
            "physicalCells": ({"cellType": "RACK"},),
        },
        "virtualClusters": {"a": vc},
    }


def test_plain_data_is_as_its_yaml() -> None:
    spec = spec_from_dict(plain({"virtualCells": [{"cellType": "RACK.NODE", "cellNumber": 1}]}))
    same = compiled(vcs="a:\n  virtualCells: [{cellType: RACK.NODE, cellNumber: 1}]")
    assert (spec.chains, spec.virtual_clusters) == (same.chains, same.virtual_clusters)
    assert (spec.source, spec.ignored) == ("<dict>", (("kubeApiServerAddress", 0),))


@pytest.mark.parametrize(
    "weight", [True, "2", float("inf"), float("nan"), 0, 10**400], ids=lambda weight: str(weight)[:5]
)
def test_a_wrong_weight_in_plain_data(weight: object) -> None:
    message = r"^<dict>: virtualClusters\.a\.opportunisticWeight: a weight is a number above"
    with pytest.raises(SpecError, match=message):
        spec_from_dict(plain({"opportunisticWeight": weight}))


def test_vcs_keep_order_and_names() -> None:
    names = ("zeta", "on", "007", "alpha", "1.5", "null")
    spec = compiled(vcs="\n".join(f"{name}: {{}}" for name in names))
    assert tuple(vc.name for vc in spec.virtual_clusters) == names


def test_ignored_keys_are_listed() -> None:
    text = "webServerAddress: ':30096'\n" + spec_text().replace(
        "  cellTypes:", "  skuTypes:\n    K80: {gpu: 1, memory: 8Mi, share: 0.5}\n  gpuTypes: 3\n  cellTypes:", 1
    )
    spec = parse_spec(text + "forcePodBindThreshold: 3\n", "spec.yaml")
    last = text.count("\n") + 1
    assert spec.ignored == (
        ("webServerAddress", 1),
        ("physicalCluster.skuTypes", 3),
        ("physicalCluster.gpuTypes", 5),
        ("forcePodBindThreshold", last),
    )


def test_anchors_aliases_and_merge_keys() -> None:
    types = """
    SOCKET: &two {childCellType: GPU, childCellNumber: 2}
    NODE: {<<: *two, childCellType: SOCKET, isNodeLevel: true}
    RACK: {<<: [*two], childCellType: NODE}
    """
    vcs = "a: &vc\n  virtualCells: [{cellType: RACK, cellNumber: 1}]\nb: *vc"
    spec = compiled(types=types, vcs=vcs)
    assert spec.chains == compiled().chains
    assert [vc.cells for vc in spec.virtual_clusters] == [(VirtualCellsSpec("RACK", 4, 1),)] * 2


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(spec_text(), encoding="utf-8-sig")
    spec = load_spec(path)
    assert spec.chains == compiled().chains
    assert spec.source == str(path)
