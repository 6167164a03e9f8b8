"""What a wrong spec says: the line, the key, the likely meant word, the way out."""

from __future__ import annotations

import pytest

from hived.errors import SpecError
from hived.spec import parse_spec, spec_from_dict

from .helpers import TYPES, error_in, error_of, spec_text

# ------------------------------------------------------------------------------------------------- form


@pytest.mark.parametrize(
    ("vc", "message"),
    [
        ("cellType: RACK, cellNumbers: 1", "unknown key `cellNumbers` (did you mean `cellNumber`?)"),
        ("cellType: RACK", "missing key `cellNumber`"),
        ("cellType: RACK, cellNumber: '2'", "not the text `2` (write 2 without quotes)"),
        ("cellType: RACK, cellNumber: 2.0", "expected a whole number, not the number 2.0"),
        ("cellType: RACK, cellNumber: true", "expected a whole number, not the truth value true"),
        ("cellType: RACK, cellNumber: -1", "must be at least 0, not -1"),
        ("cellType: RACK, cellNumber: 0x2", "expected a whole number, not the text `0x2`"),
        ("cellType: RACK, cellNumber: null", "expected a whole number, not nothing"),
        ("cellType: 4090, cellNumber: 1", "expected text, not the number 4090 (put it in quotes)"),
        ("cellType: '', cellNumber: 1", "must not be empty"),
    ],
)
def test_a_virtual_cell_of_wrong_form(vc: str, message: str) -> None:
    text = error_of(vcs=f"a:\n  virtualCells:\n  - {{{vc}}} #!")
    assert text.startswith("virtualClusters.a.virtualCells[0].cell")
    assert message in text


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ("NODE: {childCellType: GPU, childCellNumber: 0} #!", "must be at least 1, not 0"),
        ("NODE: {childCellType: GPU, childCellNumber: 3000000} #!", "must be at most 2,000,000, not 3,000,000"),
        ("NODE: {childCellType: GPU, childCellNumber: 1, isNodeLevel: 'true'} #!", "(write true without quotes)"),
        ("NODE: {childCellType: GPU, childCellNumber: 1, isNodeLevel: 1} #!", "expected true or false"),
        ("NODE: {childCellTypes: GPU, childCellNumber: 1} #!", "did you mean `childCellType`?"),
        ("NODE: #!", "expected a mapping, not nothing"),
        ("'': {childCellType: GPU, childCellNumber: 1} #!", "must not be empty"),
    ],
)
def test_a_cell_type_of_wrong_form(types: str, message: str) -> None:
    text = error_of("- cellType: NODE", types=types)
    assert text.startswith("physicalCluster.cellTypes.")
    assert message in text


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("cellAddress: n", "missing key `cellType`"),
        ("cellType: NODE, cellAddress: 1.50", "put the address in quotes"),
        ("cellType: NODE, cellAddress: yes", "put the address in quotes"),
        ("cellType: NODE, cellAddress: -1", "an address is at least 0"),
        ("cellType: NODE, cellAddress: ''", "must not be empty"),
        ("cellType: NODE, cellAddress: [0-7]", "an address that starts with `[` needs quotes"),
        ("cellType: NODE, cellAddress: {a: b}", "an address is a number or text"),
        ("cellType: NODE, cellChildren: 2", "expected a list, not the number 2"),
        ("cellType: NODE, pinnedCellID: p", "unknown key `pinnedCellID` (did you mean `pinnedCellId`?)"),
        ("cellType: NODE, cellChildren: [{children: []}]", "unknown key `children`"),
    ],
)
def test_a_physical_cell_of_wrong_form(cell: str, message: str) -> None:
    text = error_of(f"- {{{cell}}} #!")
    assert text.startswith("physicalCluster.physicalCells[0]")
    assert message in text


def test_an_unknown_key_lists_what_is_allowed() -> None:
    text = error_of(vcs="a:\n  virtualCell: [] #!")
    assert text == (
        "virtualClusters.a.virtualCell: unknown key `virtualCell` (did you mean `virtualCells`?); "
        "allowed here: virtualCells, pinnedCells, opportunisticWeight, opportunisticGraceSeconds, guests, policy, "
        "safety"
    )


def test_a_slip_in_an_ignored_key_is_an_error_too() -> None:
    assert "did you mean `webServerAddress`?" in error_in(spec_text() + "webServerAdress: x #!\n")
    text = spec_text().replace("  cellTypes:", "  skuType: {} #!\n  cellTypes:", 1)
    assert "did you mean `skuTypes`?" in error_in(text)


def test_virtual_clusters_must_be_there() -> None:
    with pytest.raises(SpecError, match=r"^spec.yaml:1: virtualClusters: missing key `virtualClusters`$"):
        parse_spec(spec_text().partition("virtualClusters")[0], "spec.yaml")
    assert "virtualClusters: expected a mapping, not nothing" in error_in(
        spec_text().partition("virtualClusters")[0] + "virtualClusters: #!"
    )


def test_physical_cells_must_not_be_empty() -> None:
    assert "at least one entry is needed" in error_in(
        spec_text().replace("physicalCells:", "physicalCells: [] #!").replace("- cellType: RACK", "")
    )


def test_a_vc_needs_a_name() -> None:
    assert "must not be empty" in error_of(vcs="'': {} #!")
    assert "must not be empty" in error_of(vcs="' ': {} #!")


def test_all_errors_of_form_are_reported_in_the_order_of_the_file() -> None:
    text = spec_text("- cellTyp: RACK", "a:\n  virtualCells:\n  - {cellType: RACK, cellNumber: x}\nb: 3")
    with pytest.raises(SpecError) as caught:
        parse_spec(text, "spec.yaml")
    lines = str(caught.value).splitlines()
    assert [line.split(": ", 2)[:2] for line in lines] == [
        ["spec.yaml:14", "physicalCluster.physicalCells[0].cellType"],
        ["spec.yaml:14", "physicalCluster.physicalCells[0].cellTyp"],
        ["spec.yaml:18", "virtualClusters.a.virtualCells[0].cellNumber"],
        ["spec.yaml:19", "virtualClusters.b"],
    ]


def test_a_flood_of_errors_is_cut_at_ten_and_counted() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(spec_text(vcs="\n".join(f"vc{n}: 1" for n in range(25))), "spec.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "... and 15 more"


def test_errors_in_plain_data_are_reported_by_key_path_alone() -> None:
    with pytest.raises(SpecError, match=r"^<dict>: physicalCluster\.cellTypes: missing key `cellTypes`"):
        spec_from_dict({"physicalCluster": {"physicalCells": [{"cellType": "A"}]}, "virtualClusters": {}})
    with pytest.raises(SpecError, match=r"^mine: virtualClusters\[3\]: expected text, not the number 3"):
        spec_from_dict(
            {"physicalCluster": {"cellTypes": {}, "physicalCells": [{"cellType": "A"}]}, "virtualClusters": {3: {}}},
            "mine",
        )


def test_plain_data_that_contains_itself_is_refused() -> None:
    data: dict[str, object] = {}
    data["physicalCluster"] = data
    with pytest.raises(SpecError, match="nested deeper than 100"):
        spec_from_dict(data)


# ------------------------------------------------------------------------------------------- cell types


def test_an_unknown_cell_type() -> None:
    text = error_of("- cellType: RAKC #!")
    assert "physicalCells[0].cellType: unknown cell type `RAKC` (did you mean `RACK`?)" in text


def test_cell_types_that_contain_each_other() -> None:
    types = """
    A:
      childCellType: B
      childCellNumber: 1
    B:
      childCellType: C #!
      childCellNumber: 1
    C:
      childCellType: B
      childCellNumber: 1
    """
    text = error_of("- cellType: A", types=types)
    assert text.startswith("physicalCluster.cellTypes.B.childCellType: cell types contain each other: B > C > B;")


def test_a_type_that_contains_itself() -> None:
    types = "A:\n  childCellNumber: 1\n  childCellType: A #!"
    assert "contain each other: A > A" in error_of("- cellType: A", types=types)


def test_a_chain_without_a_node_level() -> None:
    types = "PAIR: {childCellType: GPU, childCellNumber: 2}"
    text = error_of("- cellType: PAIR #!", types=types)
    assert "no node level in the chain PAIR > GPU: set isNodeLevel: true" in text


def test_a_slip_in_a_child_type_is_guessed_when_the_node_level_is_missing() -> None:
    text = error_of("- cellType: RACK #!", types=TYPES.replace("childCellType: NODE", "childCellType: NODEE"))
    assert "`NODEE` is not in cellTypes, so it is taken for a device (did you mean `NODE`?)" in text


def test_two_node_levels_in_one_chain() -> None:
    types = TYPES.replace("  isNodeLevel: true", "  isNodeLevel: true #!") + "  isNodeLevel: true\n"
    text = error_of(types=types)
    assert "two node levels in one chain (RACK > NODE > SOCKET > GPU): `NODE` here and `RACK` at line 13" in text


def test_a_device_is_no_physical_cell() -> None:
    assert "`GPU` is a device type" in error_of("- cellType: GPU #!")


def test_a_top_cell_below_node_level() -> None:
    text = error_of("- cellType: SOCKET #!")
    assert "`SOCKET` is below node level: a physical cell is a `NODE` or above it" in text


def test_a_node_of_absurd_size() -> None:
    types = "NODE: {childCellType: GPU, childCellNumber: 10000, isNodeLevel: true} #!"
    assert "a node of 10,000 devices; the most is 4,096" in error_of("- cellType: NODE", types=types)


def test_a_cluster_of_absurd_size() -> None:
    types = TYPES + "CITY: {childCellType: RACK, childCellNumber: 600000}"
    text = error_of("- cellType: CITY\n- cellType: CITY #!", types=types)
    assert "physicalCells[1]: 2,400,000 nodes up to here; the most is 2,000,000" in text


# --------------------------------------------------------------------------------------- physical cells


def test_too_few_children() -> None:
    text = error_of("- cellType: RACK\n  cellChildren: #!\n  - cellAddress: a")
    assert "cellChildren: `RACK` has 2 children (childCellNumber), 1 given" in text


def test_children_are_counted_with_their_ranges() -> None:
    text = error_of("- cellType: RACK\n  cellChildren: #!\n  - cellAddress: a[0-2]")
    assert "`RACK` has 2 children (childCellNumber), 3 given" in text


def test_a_child_of_another_type() -> None:
    text = error_of("- cellType: RACK\n  cellChildren:\n  - {}\n  - cellType: SOCKET #!")
    assert "cellChildren[1].cellType: `SOCKET` cannot be inside `RACK`, whose children are `NODE`" in text


def test_a_device_with_children() -> None:
    types = "NODE: {childCellType: GPU, childCellNumber: 1, isNodeLevel: true}"
    text = error_of("- cellType: NODE\n  cellChildren:\n  - cellChildren: [{}] #!", types=types)
    assert "a device has no children" in text


def test_a_device_whose_address_is_no_number() -> None:
    cells = """
    - cellType: NODE
      cellChildren:
      - {}
      - cellChildren:
        - {}
        - cellAddress: gpu3 #!
    """
    assert "a whole number, not `gpu3`" in error_of(cells)


def test_a_device_twice_in_a_node() -> None:
    cells = """
    - cellType: NODE
      cellAddress: n
      cellChildren:
      - {}
      - cellChildren:
        - cellAddress: 1 #!
        - {}
    """
    text = error_of(cells)
    assert "device 1 is in node `n` twice (first at line 17); give every device of a node another" in text


def test_a_node_name_twice_in_a_chain() -> None:
    text = error_of("- cellType: NODE\n  cellAddress: a\n- cellType: NODE #!\n  cellAddress: a")
    assert text.startswith("physicalCluster.physicalCells[1]: node `a` is given twice (first at line 14)")


def test_a_default_name_that_is_taken() -> None:
    text = error_of("- cellType: NODE\n  cellAddress: 1\n- cellType: NODE #!")
    assert "node `1` is given twice (first at line 14)" in text


def test_a_range_of_racks_with_named_nodes_names_them_twice() -> None:
    text = error_of("- cellType: RACK\n  cellAddress: r[0-1]\n  cellChildren:\n  - cellAddress: n[0-1] #!")
    assert "node `n0` is given twice (first at line 17)" in text


def test_a_name_in_two_chains_with_a_device_in_common() -> None:
    cells = """
    - cellType: NODE
      cellAddress: n
    - cellType: RACK
      cellChildren:
      - cellAddress: m
      - cellAddress: n #!
        cellChildren:
        - cellChildren: [{cellAddress: 8}, {cellAddress: 3}]
        - cellChildren: [{cellAddress: 9}, {cellAddress: 10}]
    """
    text = error_of(cells)
    assert "node `n` is given twice (first in chain `NODE` at line 14) and both have device 3" in text
    assert "give its devices different addresses" in text


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("n[7-0]", "7 is above 0; write [0-7]"),
        ("n[a-b]", "`a-b` is not a whole number"),
        ("n[]", "`` is not a whole number"),
        ("n[0-7", "a bracket without its pair"),
        ("n[0-9999999]", "stands for 10,000,000 cells or more; the most is 2,000,000"),
    ],
)
def test_a_bad_range(address: str, message: str) -> None:
    text = error_of(f"- cellType: NODE\n  cellAddress: {address} #!")
    assert text.startswith("physicalCluster.physicalCells[0].cellAddress: ")
    assert message in text


# ------------------------------------------------------------------------------------------ pinned cells


def test_a_pinned_id_twice() -> None:
    text = error_of("- cellType: RACK\n  pinnedCellId: p\n- cellType: RACK\n  pinnedCellId: p #!")
    assert "pinned cell `p` is given twice (first at line 15)" in text


def test_a_pinned_cell_in_a_range() -> None:
    text = error_of("- cellType: NODE\n  cellAddress: n[0-1]\n  pinnedCellId: p #!")
    assert "pinned cell `p` in the range `n[0-1]`: an id names one cell" in text


def test_a_pinned_cell_below_a_range() -> None:
    text = error_of("- cellType: NODE\n  cellAddress: n[0-1]\n  cellChildren:\n  - {}\n  - pinnedCellId: p #!")
    assert "cellChildren[1].pinnedCellId: pinned cell `p` in the range `n[0-1]`" in text


def test_a_pinned_cell_inside_another() -> None:
    cells = """
    - cellType: RACK
    - cellType: RACK
      pinnedCellId: outer
      cellChildren:
      - {}
      - cellChildren:
        - pinnedCellId: inner #!
        - {}
    """
    assert "pinned cell `inner` is inside pinned cell `outer` (line 16)" in error_of(cells)


def test_a_claim_to_a_pinned_cell_that_is_not_there() -> None:
    text = error_of("- cellType: RACK\n  pinnedCellId: pin-a", "v:\n  pinnedCells:\n  - pinnedCellId: pin-b #!")
    assert "no physical cell has pinnedCellId `pin-b` (did you mean `pin-a`?)" in text


def test_a_pinned_cell_claimed_by_two() -> None:
    vcs = """
    v:
      pinnedCells:
      - pinnedCellId: p
    w:
      pinnedCells:
      - pinnedCellId: p #!
    """
    text = error_of("- cellType: RACK\n  pinnedCellId: p", vcs)
    assert "pinned cell `p` is held by `v` already (line 19)" in text


# --------------------------------------------------------------------------------------- virtual clusters


@pytest.mark.parametrize(
    ("cell_type", "message"),
    [
        ("RAK.NODE", "no physical cell has top cell type `RAK` (did you mean `RACK`?)"),
        ("RAK.NODE", "the chains are RACK.NODE.SOCKET.GPU"),
        ("SOCKET", "name it from the top, `RACK.NODE.SOCKET`"),
        ("RACK.SOCKET.NODE", "inside `RACK` comes `NODE`; write `RACK.NODE.SOCKET`; the chain is RACK.NODE.SOCKET.GPU"),
        ("RACK.GPU.GPU", "`GPU` in `RACK.GPU.GPU`: inside `RACK` comes `NODE`; write `RACK.NODE.SOCKET.GPU`"),
        ("RACK.NODE.SOKET", "inside `NODE` comes `SOCKET` (did you mean `SOCKET`?); the chain is"),
        ("RACK.NODE.SOCKET.GPU.CORE", "`CORE` in `RACK.NODE.SOCKET.GPU.CORE`: nothing is inside the device `GPU`"),
        ("RACK.", "`` in `RACK.`: inside `RACK` comes `NODE`"),
    ],
)
def test_a_vc_that_names_a_cell_which_is_not_there(cell_type: str, message: str) -> None:
    text = error_of(vcs=f"a:\n  virtualCells:\n  - cellType: {cell_type} #!\n    cellNumber: 1")
    assert text.startswith("virtualClusters.a.virtualCells[0].cellType: ")
    assert message in text


def test_a_kind_of_cell_is_checked_even_when_none_is_reserved() -> None:
    assert "did you mean `RACK`?" in error_of(vcs="a:\n  virtualCells:\n  - {cellType: RCK, cellNumber: 0} #!")


@pytest.mark.parametrize("weight", ["0", "-1", "true", "'2'", "two", "[]", ".inf", ".nan", "1.0e+999"])
def test_a_weight_is_a_number_above_0(weight: str) -> None:
    text = error_of(vcs=f"a:\n  opportunisticWeight: {weight} #!")
    assert text.startswith(
        "virtualClusters.a.opportunisticWeight: a weight is a number above 0, such as 2 or 0.5, not "
    )


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("-1", "must be at least 0, not -1"),
        ("30s", "expected a whole number, not the text `30s`"),
        ("'30'", "expected a whole number, not the text `30` (write 30 without quotes)"),
        ("1.5", "expected a whole number, not the number 1.5"),
        ("true", "expected a whole number, not the truth value true"),
        ("[]", "expected a whole number, not a list"),
    ],
)
def test_the_cap_on_the_grace_of_loans_is_a_whole_number_of_seconds(written: str, message: str) -> None:
    text = error_of(vcs=f"a:\n  opportunisticGraceSeconds: {written} #!")
    assert text == f"virtualClusters.a.opportunisticGraceSeconds: {message}"


@pytest.mark.parametrize(
    ("written", "found"), [("2", "the number 2"), ("every", "the text `every`"), ("true", "the truth value true")]
)
def test_the_guests_of_a_vc_are_none_its_own_or_all(written: str, found: str) -> None:
    error = error_of(vcs=f"a:\n  guests: {written} #!")
    assert error == f"virtualClusters.a.guests: expected 'none', 'own' or 'all', not {found}"


def test_dots_in_type_names_are_refused_only_where_they_confuse() -> None:
    types = """
    A: {childCellType: B, childCellNumber: 1, isNodeLevel: true}
    A.B: {childCellType: C, childCellNumber: 1, isNodeLevel: true} #!
    """
    text = error_of("- cellType: A\n  cellAddress: x\n- cellType: A.B\n  cellAddress: y", types=types)
    assert "`A.B` would mean cells of two chains; write type names without dots" in text
