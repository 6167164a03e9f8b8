"""What a wrong spec says: the line, the key, the likely meant word, the way out."""

from __future__ import annotations

import pytest

from hived.errors import SpecError
from hived.spec import parse_spec, spec_from_dict

from .helpers import TYPES, error_in, error_of, spec_text

VIRTUAL = "virtualClusters.a.virtualCells[0]."
TYPE = "physicalCluster.cellTypes."
CELL = "physicalCluster.physicalCells[0]"


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
        ("cellType: RAK, cellNumber: 0", "did you mean `RACK`?"),  # also where none is reserved
    ],
)
def test_a_wrong_virtual_cell(vc: str, message: str) -> None:
    text = error_of(vcs=f"a:\n  virtualCells:\n  - {{{vc}}} #!")
    assert text.startswith(VIRTUAL + "cell")
    assert message in text


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RAK.NODE", "no physical cell has top cell type `RAK` (did you mean `RACK`?)"),
        ("RAK.NODE", "the chains are RACK.NODE.SOCKET.GPU"),
        ("SOCKET", "name it from the top, `RACK.NODE.SOCKET`"),
        ("RACK.SOCKET.NODE", "inside `RACK` comes `NODE`; write `RACK.NODE.SOCKET`; the chain is RACK.NODE.SOCKET.GPU"),
        ("RACK.GPU.GPU", "`GPU` in `RACK.GPU.GPU`: inside `RACK` comes `NODE`; write `RACK.NODE.SOCKET.GPU`"),
        ("RACK.NODE.SOKET", "inside `NODE` comes `SOCKET` (did you mean `SOCKET`?); the chain is"),
        ("RACK.NODE.SOCKET.GPU.X", "`X` in `RACK.NODE.SOCKET.GPU.X`: nothing is inside the device `GPU`"),
        ("RACK.", "`` in `RACK.`: inside `RACK` comes `NODE`"),
    ],
)
def test_a_wrong_type_of_virtual_cells(kind: str, message: str) -> None:
    assert message in error_of(vcs=f"a:\n  virtualCells:\n  - {{cellType: {kind}, cellNumber: 1}} #!")


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
        (
            "NODE: {childCellType: B, childCellNumber: 1}\n"
            "B:\n  childCellNumber: 1\n  childCellType: C #!\nC: {childCellType: B, childCellNumber: 1}",
            "B.childCellType: cell types contain each other: B > C > B;",
        ),
        ("NODE:\n  childCellNumber: 1\n  childCellType: NODE #!", "contain each other: NODE > NODE"),
        (
            "NODE: {childCellType: GPU, childCellNumber: 10000, isNodeLevel: true} #!",
            "a node of 10,000 devices; the most is 4,096",
        ),
    ],
)
def test_a_wrong_cell_type(types: str, message: str) -> None:
    text = error_of("- cellType: NODE", types=types)
    assert text.startswith(TYPE)
    assert message in text


def test_two_node_levels_in_one_chain() -> None:
    types = TYPES.replace("  isNodeLevel: true", "  isNodeLevel: true #!") + "  isNodeLevel: true\n"
    text = error_of(types=types)
    assert "two node levels in one chain (RACK > NODE > SOCKET > GPU): `NODE` here and `RACK` at line 13" in text


@pytest.mark.parametrize(
    ("types", "cells", "message"),
    [
        (
            "PAIR: {childCellType: GPU, childCellNumber: 2}",
            "- cellType: PAIR #!",
            "no node level in the chain PAIR > GPU: set isNodeLevel: true",
        ),
        (  # a slip in a child's type
            TYPES.replace("childCellType: NODE", "childCellType: NODEE"),
            "- cellType: RACK #!",
            "`NODEE` is not in cellTypes, so it is taken for a device (did you mean `NODE`?)",
        ),
        (
            TYPES + "CITY: {childCellType: RACK, childCellNumber: 600000}",
            "- cellType: CITY\n- cellType: CITY #!",
            "physicalCells[1]: 2,400,000 nodes up to here; the most is 2,000,000",
        ),
        (
            "NODE: {childCellType: GPU, childCellNumber: 1, isNodeLevel: true}",
            "- cellType: NODE\n  cellChildren:\n  - cellChildren: [{}] #!",
            "a device has no children",
        ),
        (
            "A: {childCellType: B, childCellNumber: 1, isNodeLevel: true}\n"
            "A.B: {childCellType: C, childCellNumber: 1, isNodeLevel: true} #!",
            "- cellType: A\n  cellAddress: x\n- cellType: A.B\n  cellAddress: y",
            "`A.B` would mean cells of two chains; write type names without dots",
        ),
    ],
)
def test_types_that_do_not_go_with_cells(types: str, cells: str, message: str) -> None:
    assert message in error_of(cells, types=types)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("cellAddress: n", "missing key `cellType`"),
        ("cellType: RAKC", ".cellType: unknown cell type `RAKC` (did you mean `RACK`?)"),
        ("cellType: GPU", "`GPU` is a device type"),
        ("cellType: SOCKET", "`SOCKET` is below node level: a physical cell is a `NODE` or above it"),
        ("cellType: NODE, cellAddress: 1.50", "put the address in quotes"),
        ("cellType: NODE, cellAddress: yes", "put the address in quotes"),
        ("cellType: NODE, cellAddress: -1", "an address is at least 0"),
        ("cellType: NODE, cellAddress: ''", "must not be empty"),
        ("cellType: NODE, cellAddress: [0-7]", "an address that starts with `[` needs quotes"),
        ("cellType: NODE, cellAddress: {a: b}", "an address is a number or text"),
        ("cellType: NODE, cellAddress: 'n[7-0]'", "7 is above 0; write [0-7]"),
        ("cellType: NODE, cellChildren: 2", "expected a list, not the number 2"),
        ("cellType: NODE, pinnedCellID: p", "unknown key `pinnedCellID` (did you mean `pinnedCellId`?)"),
        ("cellType: NODE, cellChildren: [{children: []}]", "unknown key `children`"),
        ("cellType: RACK, cellChildren: [{cellAddress: a}]", "`RACK` has 2 children (childCellNumber), 1 given"),
        (  # counted with their ranges
            "cellType: RACK, cellChildren: [{cellAddress: 'a[0-2]'}]",
            "`RACK` has 2 children (childCellNumber), 3 given",
        ),
        (
            "cellType: RACK, cellChildren: [{}, {cellType: SOCKET}]",
            "cellChildren[1].cellType: `SOCKET` cannot be inside `RACK`, whose children are `NODE`",
        ),
        ("cellType: NODE, cellChildren: [{}, {cellChildren: [{}, {cellAddress: g}]}]", "a whole number, not `g`"),
        (
            "cellType: RACK, cellAddress: 'r[0-1]', cellChildren: [{cellAddress: 'n[0-1]'}]",
            "node `n0` is given twice (first at line 14)",
        ),
        (
            "cellType: NODE, cellAddress: 'n[0-1]', pinnedCellId: p",
            "pinned cell `p` in the range `n[0-1]`: an id names one cell",
        ),
        (
            "cellType: NODE, cellAddress: 'n[0-1]', cellChildren: [{}, {pinnedCellId: p}]",
            "cellChildren[1].pinnedCellId: pinned cell `p` in the range `n[0-1]`",
        ),
    ],
)
def test_a_wrong_physical_cell(cell: str, message: str) -> None:
    text = error_of(f"- {{{cell}}} #!")
    assert text.startswith(CELL)
    assert message in text


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            """
            - cellType: NODE
              cellAddress: n
              cellChildren:
              - {}
              - cellChildren:
                - cellAddress: 1 #!
                - {}
            """,
            "device 1 is in node `n` twice (first at line 17); give every device of a node another",
        ),
        (
            "- cellType: NODE\n  cellAddress: a\n- cellType: NODE #!\n  cellAddress: a",
            "physicalCluster.physicalCells[1]: node `a` is given twice (first at line 14)",
        ),
        (  # by default
            "- cellType: NODE\n  cellAddress: 1\n- cellType: NODE #!",
            "node `1` is given twice (first at line 14)",
        ),
        (
            """
            - cellType: NODE
              cellAddress: n
            - cellType: RACK
              cellChildren:
              - cellAddress: m
              - cellAddress: n #!
                cellChildren:
                - cellChildren: [{cellAddress: 8}, {cellAddress: 3}]
                - cellChildren: [{cellAddress: 9}, {cellAddress: 10}]
            """,
            "node `n` is given twice (first in chain `NODE` at line 14) and both have device 3; give it another "
            "cellAddress, or, if one machine has both kinds of device, give its devices different addresses",
        ),
        (
            "- cellType: RACK\n  pinnedCellId: p\n- cellType: RACK\n  pinnedCellId: p #!",
            "pinned cell `p` is given twice (first at line 15)",
        ),
        (
            """
            - cellType: RACK
            - cellType: RACK
              pinnedCellId: outer
              cellChildren:
              - {}
              - cellChildren:
                - pinnedCellId: inner #!
                - {}
            """,
            "pinned cell `inner` is inside pinned cell `outer` (line 16)",
        ),
    ],
)
def test_what_is_given_twice(cells: str, message: str) -> None:
    assert message in error_of(cells)


@pytest.mark.parametrize(
    ("vcs", "message"),
    [
        ("v:\n  pinnedCells:\n  - pinnedCellId: q #!", "no physical cell has pinnedCellId `q`"),
        ("v:\n  pinnedCells:\n  - pinnedCellId: pin-b #!", "`pin-b` (did you mean `pin-a`?)"),
        (
            "v:\n  pinnedCells:\n  - pinnedCellId: pin-a\nw:\n  pinnedCells:\n  - pinnedCellId: pin-a #!",
            "pinned cell `pin-a` is held by `v` already (line 19)",
        ),
    ],
)
def test_a_wrong_claim_to_a_pinned_cell(vcs: str, message: str) -> None:
    assert message in error_of("- cellType: RACK\n  pinnedCellId: pin-a", vcs)


WEIGHT = "a weight is a number above 0, such as 2 or 0.5, not "
GUESTS = "expected 'none', 'own' or 'all', not "


@pytest.mark.parametrize(
    ("key", "written", "message"),
    [
        *[("opportunisticWeight", weight, WEIGHT) for weight in ("0", "-1", "true", "'2'", "[]", ".nan", "1.0e+999")],
        ("opportunisticGraceSeconds", "-1", "must be at least 0, not -1"),
        ("opportunisticGraceSeconds", "30s", "expected a whole number, not the text `30s`"),
        ("opportunisticGraceSeconds", "[]", "expected a whole number, not a list"),
        ("guests", "2", f"{GUESTS}the number 2"),
        ("guests", "every", f"{GUESTS}the text `every`"),
        ("guests", "true", f"{GUESTS}the truth value true"),
        (
            "virtualCell",
            "[]",
            "unknown key `virtualCell` (did you mean `virtualCells`?); allowed here: virtualCells, pinnedCells, "
            "opportunisticWeight, opportunisticGraceSeconds, guests, policy, safety, members, admins, maxPriority, "
            "maxJobs, maxGpus, maxGraceSeconds, fileGroup",
        ),
    ],
)
def test_a_wrong_key_of_a_vc(key: str, written: str, message: str) -> None:
    text = error_of(vcs=f"a:\n  {key}: {written} #!")
    assert text.startswith(f"virtualClusters.a.{key}: {message}")
    assert message == WEIGHT or text.endswith(message)


def test_a_slip_in_an_ignored_key() -> None:
    assert "did you mean `webServerAddress`?" in error_in(spec_text() + "webServerAdress: x #!\n")
    text = spec_text().replace("  cellTypes:", "  skuType: {} #!\n  cellTypes:", 1)
    assert "did you mean `skuTypes`?" in error_in(text)


def test_what_must_be_there() -> None:
    physical = spec_text().partition("virtualClusters")[0]
    with pytest.raises(SpecError, match=r"^spec.yaml:1: virtualClusters: missing key `virtualClusters`$"):
        parse_spec(physical, "spec.yaml")
    assert "virtualClusters: expected a mapping, not nothing" in error_in(physical + "virtualClusters: #!")
    none = spec_text().replace("physicalCells:", "physicalCells: [] #!").replace("- cellType: RACK", "")
    assert "at least one entry is needed" in error_in(none)
    for name in ("''", "' '"):
        assert "must not be empty" in error_of(vcs=f"{name}: {{}} #!")
    assert "must not have line breaks in it" in error_of(vcs='"two\\nlines": {} #!')


def test_errors_of_form_come_in_order() -> None:
    """All of them, in the order of the file."""
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


def test_a_flood_of_errors_is_cut_at_ten() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(spec_text(vcs="\n".join(f"vc{n}: 1" for n in range(25))), "spec.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "... and 15 more"


def test_plain_data_has_key_paths_alone() -> None:
    with pytest.raises(SpecError, match=r"^<dict>: physicalCluster\.cellTypes: missing key `cellTypes`"):
        spec_from_dict({"physicalCluster": {"physicalCells": [{"cellType": "A"}]}, "virtualClusters": {}})
    physical: dict[str, object] = {"cellTypes": {}, "physicalCells": [{"cellType": "A"}]}
    with pytest.raises(SpecError, match=r"^mine: virtualClusters\[3\]: expected text, not the number 3"):
        spec_from_dict({"physicalCluster": physical, "virtualClusters": {3: {}}}, "mine")
    data: dict[str, object] = {}
    data["physicalCluster"] = data
    with pytest.raises(SpecError, match="nested deeper than 100"):
        spec_from_dict(data)
