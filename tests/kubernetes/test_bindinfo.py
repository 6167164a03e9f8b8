"""Where a group is, as its pods' annotations say it: written, read, and read from upstream."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.requests import Member
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.bind_info import BindInfo, bind_info, pod_annotations, shared
from hived.engines.kubernetes.pods.objects import Container, Pod, Resources
from hived.engines.kubernetes.pods.pod_request import PodRequestError

from .fake_kubernetes import World
from .pods import annotated, flat_spec, pod

SPEC = flat_spec(a=2, b=2)
PLACES = (PodPlacement("n0", (0, 1)), PodPlacement("n1", (2, 3)), PodPlacement("n1", (0,)))

#: as the deployed scheduler writes it
UPSTREAM = """
node: 10.0.0.1
leafCellIsolation:
- 0
- 1
cellChain: K80-NODE-POOL
affinityGroupBindInfo:
- podPlacements:
  - physicalNode: 10.0.0.1
    physicalLeafCellIndices:
    - 0
    - 1
    preassignedCellTypes:
    - K80-NODE
    - K80-NODE
  - physicalNode: 10.0.0.2
    physicalLeafCellIndices:
    - 2
    - 3
    preassignedCellTypes: [K80-NODE, K80-NODE]
- podPlacements:
  - physicalNode: 10.0.0.3
    physicalLeafCellIndices: [0]
    preassignedCellTypes: [K80-NODE]
"""


def read(text: str | None) -> BindInfo | None:
    """The bind info of a pod with this annotation."""
    return bind_info(annotated(pod("p"), BIND_INFO=text))


def containers(*asked: tuple[str, str, object], first: tuple[tuple[str, str, int, str], ...] = ()) -> Pod:
    """A pod whose containers ask for GPUs: name, resource, number; ``first``: init containers, with policy."""
    one = pod("p")
    running = [Container(name=name, resources=Resources(limits={of: str(number)})) for name, of, number in asked]
    init = [
        Container(name=name, resources=Resources(limits={of: number}), restart_policy=policy or None)
        for name, of, number, policy in first
    ]
    return msgspec.structs.replace(
        one, spec=msgspec.structs.replace(one.spec, containers=running, init_containers=init)
    )


GPU, NVIDIA = "hived.io/gpu", "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("one", "shares"),
    [
        (containers(("main", GPU, 4)), {}),
        (containers(("main", GPU, 4), ("log", GPU, 0)), {}),
        (
            containers(("main", GPU, 2), ("other", GPU, 1), ("more", NVIDIA, 1)),
            {"main": "0,3", "other": "5", "more": "6"},
        ),
        (containers(("main", GPU, 3), first=(("side", GPU, 1, "Always"),)), {"side": "0", "main": "3,5,6"}),
        (containers(("main", GPU, 4), first=(("load", GPU, 2, ""),)), {"load": "0,3", "main": "0,3,5,6"}),
    ],
)
def test_share_of_each_container(one: Pod, shares: dict[str, str]) -> None:
    """All of them shared one list, and so each used the devices of the others."""
    found = pod_annotations(PodPlacement("n0", (0, 3, 5, 6)), "", one)
    assert found[keys.ISOLATION] == "0,3,5,6"
    prefix = "devices.hived.io/"
    assert {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)} == shares


def test_shares_are_bound() -> None:
    world = World(a=1)
    one = containers(("main", GPU, 1), ("other", GPU, 3))
    one = msgspec.structs.replace(one, metadata=pod("p").metadata)
    world.run(one)
    shares = {name: world.there(one).annotation(f"devices.hived.io/{name}") for name in ("main", "other")}
    assert shares == {"main": "0", "other": "1,2,3"}


@pytest.mark.parametrize("levels", [(), (3, 3, 3), (3, 2, 1)])
def test_written_and_read_back(levels: tuple[int, ...]) -> None:
    placement = Placement("NODE", PLACES, levels)
    text = shared(placement, (Member(2, 2), Member(1, 1)), SPEC)
    for place in PLACES:
        written = pod_annotations(place, text)
        assert written[keys.ISOLATION] == ",".join(map(str, place.leaf_cells))
        info = read(written[keys.BIND_INFO])
        assert info is not None
        assert (info.pod, info.members) == (place, (Member(2, 2), Member(1, 1)))
        assert info.placement(SPEC) == placement


def test_text_of_upstream() -> None:
    """By former names and in any order, too."""
    pods = tuple(PodPlacement(f"10.0.0.{number}", devices) for number, devices in ((1, (0, 1)), (2, (2, 3)), (3, (0,))))
    types, members = ("K80-NODE",) * 3, (Member(2, 2), Member(1, 1))
    info = BindInfo(pods[0], "K80-NODE-POOL", pods, types, members)
    assert read(UPSTREAM) == info
    assert not replace(info, chain="NODE").placement(SPEC).guaranteed, "a cell type that is no more"
    old = UPSTREAM.replace("leafCellIsolation", "gpuIsolation").replace("physicalLeafCellIndices", "physicalGpuIndices")
    assert read(old) == read(UPSTREAM)
    value = yaml.safe_load(UPSTREAM)
    assert read(yaml.safe_dump(value, sort_keys=True)) == read(UPSTREAM)
    assert read(yaml.safe_dump(dict(reversed(value.items())), sort_keys=False)) == read(UPSTREAM)


def test_keys_are_upstreams() -> None:
    """Its keys, and one cell type per device."""
    text = pod_annotations(PLACES[0], shared(Placement("NODE", PLACES, (3, 3, 3)), (Member(2, 2), Member(1, 1)), SPEC))
    value = yaml.safe_load(text[keys.BIND_INFO])
    assert list(value) == ["node", "leafCellIsolation", "cellChain", "affinityGroupBindInfo"]
    for info in value["affinityGroupBindInfo"]:
        for one in info["podPlacements"]:
            assert list(one) == ["physicalNode", "physicalLeafCellIndices", "preassignedCellTypes"]
            assert one["preassignedCellTypes"] == ["NODE"] * len(one["physicalLeafCellIndices"])


@pytest.mark.parametrize("text", [None, "  \n"])
def test_no_annotation(text: str | None) -> None:
    assert read(text) is None


ISOLATION = "leafCellIsolation:\n- 0\n- 1"
WRONG = [
    ("x", "expected keys, not str"),
    ("[" * 100_000, "nested deeper than 100"),
    (UPSTREAM.replace("node:", "nod:"), "'node' is missing"),
    (UPSTREAM.replace("node: 10.0.0.1", "node: 1"), "a node's name, not 1"),
    (UPSTREAM.replace(ISOLATION, "leafCellIsolation: [0, 0]"), "each once"),
    (UPSTREAM.replace(ISOLATION, "leafCellIsolation: [-1]"), "device indices"),
    (UPSTREAM.replace(ISOLATION, "leafCellIsolation: [true]"), "device indices"),
    (UPSTREAM.replace(ISOLATION, "leafCellIsolation: []"), "device indices"),
    (UPSTREAM.replace(ISOLATION, "leafCellIsolation: [7]"), "not one of the 3 of its group"),
    (UPSTREAM.replace("affinityGroupBindInfo", "x"), "'affinityGroupBindInfo' is missing"),
    (UPSTREAM.replace("podPlacements", "x"), "'podPlacements' is missing"),
    ("node: n\nleafCellIsolation: [0]\ncellChain: x\naffinityGroupBindInfo: 3", "not iterable"),
    ("node: n\nleafCellIsolation: [0]\ncellChain: [\naffinityGroupBindInfo: 3", "not valid YAML"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_bind_info(text: str, message: str) -> None:
    with pytest.raises(PodRequestError, match=message) as caught:
        read(text)
    assert caught.value.kind == "bind-info"


@settings(max_examples=300)
@given(
    st.text(max_size=100)
    | st.tuples(st.integers(0, len(UPSTREAM)), st.integers(0, 12), st.text("[]{}:,-?&*! \n01ab", max_size=6)).map(
        lambda cut: UPSTREAM[: cut[0]] + cut[2] + UPSTREAM[cut[0] + cut[1] :]
    )
)
def test_any_text(text: str) -> None:
    with suppress(PodRequestError):  # the tests above check its message
        info = read(text)
        assert info is None or info.pod in info.pods


def test_shared_part_is_read_once() -> None:
    """A thousand pods, each annotated with the places of all, must not cost a million places to parse."""
    many = tuple(PodPlacement(f"n{i}", (0, 1, 2, 3)) for i in range(1000))
    text = shared(Placement("NODE", many), (Member(1000, 4),), SPEC)
    infos = [read(pod_annotations(place, text)[keys.BIND_INFO]) for place in many[:300]]
    assert all(info is not None and info.pods is infos[0].pods for info in infos if infos[0] is not None)
