"""What a right spec means: defaults, names, device indices, pinned cells, virtual clusters."""

from __future__ import annotations

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


def test_a_chain_has_its_levels_from_the_leaf_up() -> None:
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


def test_what_is_left_out_is_numbered_through_the_whole_list() -> None:
    (chain,) = compiled("- cellType: RACK\n- cellType: RACK").chains
    assert tuple(chain.node_names) == ("0", "1", "2", "3")
    assert chain.device_indices == {}


def test_explicit_null_and_empty_children_are_the_same_as_none() -> None:
    cells = """
    - cellType: RACK
      cellAddress: null
      cellChildren:
      - cellAddress: a
        cellChildren: null
      - cellAddress: b
        cellChildren: []
    """
    assert tuple(compiled(cells).chains[0].node_names) == ("a", "b")


def test_an_address_left_out_among_given_ones_is_its_position() -> None:
    cells = """
    - cellType: NODE
    - cellType: RACK
      cellChildren:
      - {}
      - cellAddress: 77
    """
    node, rack = compiled(cells).chains
    assert tuple(node.node_names) == ("0",)
    assert tuple(rack.node_names) == ("2", "77")  # the rack is number 1, its children are 2 and 3


def test_chains_are_in_order_of_first_appearance_and_may_interleave() -> None:
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


def test_device_indices_are_kept_only_where_they_are_not_the_default() -> None:
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
    """
    (chain,) = compiled(cells).chains
    assert chain.device_indices == {1: (7, 4, 2, 3)}  # a socket's address is a label: its devices count by position
    assert [chain.device_index(0, leaf) for leaf in range(4)] == [0, 1, 2, 3]
    assert chain.device_index(1, 1) == 4


def test_a_default_device_counts_by_the_position_of_what_it_is_in() -> None:
    cells = """
    - cellType: NODE
      cellAddress: n
      cellChildren:
      - cellChildren: [{cellAddress: 9}, {}]
      - cellChildren: [{}, {cellAddress: 8}]
    """
    assert compiled(cells).chains[0].device_indices == {0: (9, 1, 2, 8)}


def test_one_machine_may_hold_two_kinds_of_device() -> None:
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


def test_a_range_of_nodes_shares_the_devices_spelled_out_for_it() -> None:
    types = "NODE: {childCellType: GPU, childCellNumber: 4, isNodeLevel: true}"
    cells = """
    - cellType: NODE
      cellAddress: n[0-2]
      cellChildren: [{cellAddress: "[6-7,4-5]"}]
    """
    (chain,) = compiled(cells, types=types).chains
    assert tuple(chain.node_names) == ("n0", "n1", "n2")
    assert chain.device_indices == dict.fromkeys(range(3), (6, 7, 4, 5))


def test_a_range_inside_a_node_repeats_what_is_below_it() -> None:
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


def test_65_536_gpus_are_eight_short_entries() -> None:
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
    (chain,) = compiled("- cellType: NODE\n  cellAddress: n[0-8191]", types=types).chains
    assert (chain.gpus, chain.top_cells, chain.node_names[8191]) == (65_536, 8192, "n8191")


def test_a_range_counts_as_the_entries_it_expands_to() -> None:
    cells = """
    - cellType: NODE
      cellAddress: a[0-2]
    - cellType: NODE
    - cellType: RACK
      cellAddress: r[0-1]
      cellChildren: [{}, {}]
    """
    node, rack = compiled(cells).chains
    assert tuple(node.node_names) == ("a0", "a1", "a2", "3")
    assert tuple(rack.node_names) == ("8", "9", "10", "11")  # racks 4 and 5, two nodes each


def test_pinned_cells_are_found_at_every_level() -> None:
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


def test_a_pinned_cell_that_no_vc_claims_is_not_listed() -> None:
    spec = compiled("- cellType: RACK\n  pinnedCellId: spare", "a:\n  pinnedCells: null")
    assert spec.virtual_clusters == (VirtualClusterSpec("a", ()),)


def test_a_vc_names_its_cells_from_the_top_down_to_any_level() -> None:
    vcs = """
    a:
      virtualCells:
      - {cellType: RACK.NODE.SOCKET.GPU, cellNumber: 1}
      - {cellType: RACK, cellNumber: 2}
      - {cellType: RACK.NODE, cellNumber: 0}
      - {cellType: RACK.NODE.SOCKET.GPU, cellNumber: 2}
    """
    (vc,) = compiled(vcs=vcs).virtual_clusters
    assert vc.cells == (VirtualCellsSpec("RACK", 1, 3), VirtualCellsSpec("RACK", 4, 2))


def test_a_vc_may_leave_out_types_between_the_top_and_the_cell_itself() -> None:
    """As deployed clusters do: ``4-DGX2-V100-NODE.DGX2-V100-NODE``, without the ``2-DGX2-V100-NODE`` between."""
    text = """\
a:
  virtualCells:
  - {cellType: RACK.SOCKET, cellNumber: 1}
  - {cellType: RACK.NODE.SOCKET, cellNumber: 2}
  - {cellType: RACK.GPU, cellNumber: 3}
"""
    (vc,) = compiled(vcs=text).virtual_clusters
    assert [(cells.level, cells.number) for cells in vc.cells] == [(2, 3), (1, 3)]


def test_a_vc_may_be_empty_in_every_way_of_writing_it() -> None:
    vcs = "a:\nb: {}\nc: {virtualCells: []}\nd: {virtualCells: null, pinnedCells: []}"
    assert [vc.cells for vc in compiled(vcs=vcs).virtual_clusters] == [(), (), (), ()]


@pytest.mark.parametrize(
    ("written", "weight"), [("2", 2.0), ("0.5", 0.5), ("1.0e-3", 0.001), ("null", None), ("", None)]
)
def test_a_vc_may_give_its_weight_in_sharing_what_is_lent(written: str, weight: float | None) -> None:
    (vc,) = compiled(vcs=f"a:\n  opportunisticWeight: {written}").virtual_clusters
    assert vc.opportunistic_weight == weight
    assert vc.opportunistic_weight is None or type(vc.opportunistic_weight) is float


def test_without_a_weight_the_size_of_the_vc_counts() -> None:
    assert [vc.opportunistic_weight for vc in compiled(vcs="a: {}\nb:").virtual_clusters] == [None, None]


@pytest.mark.parametrize(("written", "seconds"), [("0", 0), ("90", 90), ("null", 30), ("", 30)])
def test_a_vc_may_cap_the_grace_that_its_loans_ask_for(written: str, seconds: int) -> None:
    (vc,) = compiled(vcs=f"a:\n  opportunisticGraceSeconds: {written}").virtual_clusters
    assert vc.opportunistic_grace_seconds == seconds


def test_without_a_cap_loans_ask_for_30_seconds_of_grace_at_most() -> None:
    assert [vc.opportunistic_grace_seconds for vc in compiled(vcs="a: {}\nb:").virtual_clusters] == [30, 30]


@pytest.mark.parametrize(
    ("written", "guests"), [("none", "none"), ("own", "own"), ("all", "all"), ("null", "none"), ("", "none")]
)
def test_a_vc_may_take_guests_in(written: str, guests: str) -> None:
    (vc,) = compiled(vcs=f"a:\n  guests: {written}").virtual_clusters
    assert vc.guests == guests
    assert compiled(vcs="a: {}").virtual_clusters[0].guests == "none"


@pytest.mark.parametrize("weight", [True, "2", float("inf"), float("nan"), 0, 10**400])
def test_a_weight_in_plain_data_is_held_to_the_same(weight: object) -> None:
    data = {
        "physicalCluster": {
            "cellTypes": {"NODE": {"childCellType": "GPU", "childCellNumber": 8, "isNodeLevel": True}},
            "physicalCells": [{"cellType": "NODE"}],
        },
        "virtualClusters": {"a": {"opportunisticWeight": weight}},
    }
    with pytest.raises(
        SpecError, match=r"^<dict>: virtualClusters\.a\.opportunisticWeight: a weight is a number above"
    ):
        spec_from_dict(data)


def test_vcs_keep_their_order_and_names_that_yaml_would_read_otherwise() -> None:
    names = ("zeta", "on", "007", "alpha", "1.5", "null")
    spec = compiled(vcs="\n".join(f"{name}: {{}}" for name in names))
    assert tuple(vc.name for vc in spec.virtual_clusters) == names


def test_node_names_stay_as_written() -> None:
    cells = "\n".join(f"- {{cellType: NODE, cellAddress: {a}}}" for a in ("007", "0x1F", "12:30", "2020-01-02", "31"))
    assert tuple(compiled(cells).chains[0].node_names) == ("007", "0x1F", "12:30", "2020-01-02", "31")


def test_keys_that_mean_nothing_here_are_accepted_and_listed_with_their_lines() -> None:
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


def test_templates_by_anchor_alias_and_merge_key_work() -> None:
    types = """
    SOCKET: &two {childCellType: GPU, childCellNumber: 2}
    NODE: {<<: *two, childCellType: SOCKET, isNodeLevel: true}
    RACK: {<<: [*two], childCellType: NODE}
    """
    vcs = "a: &vc\n  virtualCells: [{cellType: RACK, cellNumber: 1}]\nb: *vc"
    spec = compiled(types=types, vcs=vcs)
    assert spec.chains == compiled().chains
    assert [vc.cells for vc in spec.virtual_clusters] == [(VirtualCellsSpec("RACK", 4, 1),)] * 2


def test_plain_data_compiles_to_the_same_as_its_yaml() -> None:
    data = {
        "kubeApiServerAddress": "x",
        "physicalCluster": {
            "cellTypes": {
                "SOCKET": {"childCellType": "GPU", "childCellNumber": 2},
                "NODE": {"childCellType": "SOCKET", "childCellNumber": 2, "isNodeLevel": True},
                "RACK": {"childCellType": "NODE", "childCellNumber": 2},
            },
            "physicalCells": ({"cellType": "RACK"},),
        },
        "virtualClusters": {"a": {"virtualCells": [{"cellType": "RACK.NODE", "cellNumber": 1}]}},
    }
    spec = spec_from_dict(data)
    same = compiled(vcs="a:\n  virtualCells: [{cellType: RACK.NODE, cellNumber: 1}]")
    assert (spec.chains, spec.virtual_clusters) == (same.chains, same.virtual_clusters)
    assert (spec.source, spec.ignored) == ("<dict>", (("kubeApiServerAddress", 0),))


def test_a_file_loads_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(spec_text(), encoding="utf-8-sig")
    spec = load_spec(path)
    assert spec.chains == compiled().chains
    assert spec.source == str(path)


@pytest.mark.parametrize(
    ("written", "safety"), [("exact", "exact"), ("work-conserving", "work-conserving"), ("", "work-conserving")]
)
def test_a_vc_may_be_of_exact_safety(written: str, safety: str) -> None:
    (vc,) = compiled(vcs=f"a:\n  safety: {written}").virtual_clusters
    assert vc.safety == safety
    assert compiled(vcs="a: {}").virtual_clusters[0].safety == "work-conserving"
