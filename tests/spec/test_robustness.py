"""Whatever a spec holds, it compiles or is refused by a SpecError: nothing else ever comes out."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from hived.errors import SpecError
from hived.spec import ClusterSpec, parse_spec, spec_from_dict

from .helpers import spec_text

WORDS = st.sampled_from(["NODE", "RACK", "GPU", "NODE.GPU", "n[0-1]", "n[", "0", "p", ""])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-1, 5), st.floats(), WORDS)
KEYS = st.sampled_from([
    "physicalCluster", "cellTypes", "physicalCells", "virtualClusters", "virtualCells", "pinnedCells", "cellType",
    "cellNumber", "cellAddress", "cellChildren", "pinnedCellId", "NODE", "skuTypes",
])  # fmt: skip
ANYTHING = st.recursive(
    SCALARS, lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4), max_leaves=12
)
#: a little of everything at right places: about a third of these specs are right
ADDRESSES = st.sampled_from([*"abcdefgh", *range(8), "n[0-1]", "m[0-1]", "n[1-0]", None])
PINS = st.sampled_from(["p", "q", "r", "s", None, None, None, None])


def cells(levels: int) -> st.SearchStrategy[dict[str, object]]:
    """A cell with ``levels`` levels of two children below it, each spelled out or not."""
    keys: dict[str, st.SearchStrategy[object]] = {"pinnedCellId": PINS}
    if levels:
        below = cells(levels - 1)
        keys["cellChildren"] = st.lists(below, min_size=2, max_size=2) | st.lists(below, max_size=3) | st.none()
    keys["cellAddress"] = ADDRESSES if levels else st.integers(0, 3) | st.none()
    return st.fixed_dictionaries({}, optional=keys)


def top_cells(name: str, levels: int) -> st.SearchStrategy[dict[str, object]]:
    return cells(levels).map(lambda cell: {"cellType": name, **cell})


TYPES = {
    "NODE": {"childCellType": "GPU", "childCellNumber": 2, "isNodeLevel": True},
    "RACK": {"childCellType": "NODE", "childCellNumber": 2},
}
PHYSICAL = {
    "cellTypes": st.just(TYPES),
    "physicalCells": st.lists(top_cells("NODE", 1) | top_cells("RACK", 2), min_size=1, max_size=3),
}
RESERVED = {
    "cellType": st.sampled_from(["RACK", "RACK.NODE", "NODE", "NODE.GPU"]),
    "cellNumber": st.integers(0, 2),
}
VC = {
    "virtualCells": st.lists(st.fixed_dictionaries(RESERVED), max_size=1),
    "pinnedCells": st.lists(st.fixed_dictionaries({"pinnedCellId": st.just("p")}), max_size=1),
}
NEARLY = st.fixed_dictionaries(
    {
        "physicalCluster": st.fixed_dictionaries(PHYSICAL),
        "virtualClusters": st.dictionaries(st.sampled_from(["a", "b"]), st.fixed_dictionaries(VC), max_size=2),
    }
)


def outcome(text: str) -> ClusterSpec | str:
    try:
        return parse_spec(text, "x")
    except SpecError as error:
        return str(error)


@given(st.dictionaries(KEYS, ANYTHING))
def test_any_data_compiles_or_is_refused(data: dict[str, object]) -> None:
    result = outcome(yaml.safe_dump(data))
    assert isinstance(result, ClusterSpec) or result.startswith("x:")


@given(NEARLY)
def test_a_nearly_right_spec_in_both_forms(data: dict[str, object]) -> None:
    text = outcome(yaml.safe_dump(data, sort_keys=False))
    try:
        plain = spec_from_dict(data, "x")
    except SpecError:
        assert isinstance(text, str)
        return
    assert text == plain
    for chain in plain.chains:
        assert chain.top_cells
        assert len(chain.node_names) == chain.cells_at(chain.node_level) == len(set(chain.node_names))
        for devices in chain.device_indices.values():
            assert len(set(devices)) == len(devices) == chain.gpus_per_node
            assert devices != tuple(range(len(devices)))


@given(st.data())
def test_a_slip_of_the_keyboard(data: st.DataObject) -> None:
    text = spec_text("- cellType: RACK\n  cellAddress: r[0-1]\n  pinnedCellId: null", "a: &a {virtualCells: []}\nb: *a")
    at = data.draw(st.integers(0, len(text)))
    gone = data.draw(st.integers(0, 3))
    typed = data.draw(st.text(st.sampled_from(" \n\t[]{}:,-&*!|>'\"%@#?<a0\0"), max_size=3))
    result = outcome(text[:at] + typed + text[at + gone :])
    assert isinstance(result, ClusterSpec) or result.startswith("x")
