"""A spec written out, and read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hived.engines.local import demo
from hived.engines.local.devices import spec_for
from hived.spec import ClusterSpec, load_spec, parse_spec
from hived.spec.changes import changes
from hived.spec.compiled import AccessSpec, ChainSpec, LevelSpec
from hived.spec.writing import spec_text

from ..strategies import feasible_specs, given_in_tiers

SPECS = Path(__file__).parents[3] / "shared" / "specs"
REAL = sorted([*SPECS.glob("design.yaml"), *SPECS.glob("hived-config-*.yaml")])
EVERYTHING = """\
physicalCluster:
  cellTypes:
    RACK: {childCellType: NODE, childCellNumber: 3}
    NODE: {childCellType: PAIR, childCellNumber: 2, isNodeLevel: true}
    PAIR: {childCellType: "on", childCellNumber: 2}
    SMALL: {childCellType: K80, childCellNumber: 2, isNodeLevel: true}
  physicalCells:
  - cellType: RACK
    cellChildren:
    - {cellAddress: a08}
    - {cellAddress: "a[09-10]"}
  - cellType: RACK
    pinnedCellId: "007"
  - cellType: RACK
    cellChildren:
    - {cellAddress: "n[8-9]"}
    - cellAddress: n10
      cellChildren:
      - pinnedCellId: corner
      - cellChildren: [{}, {pinnedCellId: "1:30"}]
  - cellType: SMALL
    cellAddress: "k[0-3]"
    cellChildren: [{cellAddress: 7}, {cellAddress: 3}]
  - cellType: SMALL
    cellAddress: "10.0.0.[1-2]"
virtualClusters:
  "on": {}
  vision:
    virtualCells: [{cellType: RACK.NODE.PAIR, cellNumber: 3}, {cellType: SMALL, cellNumber: 1}]
    pinnedCells: [{pinnedCellId: "1:30"}, {pinnedCellId: corner}, {pinnedCellId: "007"}]
    opportunisticWeight: 0.1
    opportunisticGraceSeconds: 0
    guests: own
    policy: "tiresias:queues=3"
    safety: exact
    members: ["*", "group:vision", "true", "Ünal"]
    admins: [carol]
    maxPriority: -1
    maxJobs: 0
    maxGpus: 8
    maxGraceSeconds: 60
    fileGroup: "null"
operators: [olga, "group:ops"]
"""


def bare(spec: ClusterSpec) -> ClusterSpec:
    """Without what only messages need."""
    return replace(spec, source="", ignored=())


def assert_same_again(spec: ClusterSpec) -> str:
    text = spec_text(spec)
    again = parse_spec(text, "again")
    assert bare(again) == bare(spec)
    assert list(changes(spec, again)) == []
    assert spec_text(again) == text
    return text


def test_every_key() -> None:
    text = assert_same_again(parse_spec(EVERYTHING, "everything"))
    for words in (
        "'n[8-9]'",
        "'a[08-10]'",
        "k[0-3]",
        "'10.0.0.[1-2]'",
        "'1:30'",
        "{childCellType: 'on', childCellNumber: 2}",
    ):
        assert words in text
    assert "isNodeLevel: false" not in text


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_deployed_spec(path: Path) -> None:
    assert_same_again(load_spec(path))


def test_specs_that_are_made() -> None:
    """By hived up, from numbers of GPUs."""
    assert_same_again(demo.demo_spec())
    for devices in (1, 3, 8):
        assert_same_again(spec_for("my-server", devices, "H200", (("a", 1),)))


def test_large_cluster_stays_short() -> None:
    chain = ChainSpec(
        "NODE", (LevelSpec("GPU", 1, 1), LevelSpec("NODE", 8, 8)), 2, 9_000, tuple(f"n{i}" for i in range(9_000))
    )
    text = assert_same_again(ClusterSpec((chain,), ()))
    assert "n[0-8999]" in text
    assert len(text) < 500


def test_nobody_may_use_it_but_its_limits_stay() -> None:
    spec = spec_for("n", 4, "GPU", (("vision", 4),))
    (vc,) = spec.virtual_clusters
    assert_same_again(replace(spec, virtual_clusters=(replace(vc, access=AccessSpec(max_jobs=0)),)))


@given_in_tiers(60, 1_000, feasible_specs().filter(lambda spec: all(chain.node_level > 1 for chain in spec.chains)))
def test_any_spec(spec: ClusterSpec) -> None:
    read = parse_spec(spec_text(spec), "once")  # which adds up cells of one kind
    assert read.chains == spec.chains
    for vc, given in zip(read.virtual_clusters, spec.virtual_clusters, strict=True):
        assert vc.pinned == given.pinned
        assert read.reserved(vc) == spec.reserved(given)
    assert_same_again(read)
