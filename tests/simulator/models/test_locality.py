"""How close the GPUs of a placement are, and how fast a model is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hived.cluster.decisions import Placement, PodPlacement
from hived.simulator.models import Affinity, Locality, Models, rate_at, speed

from ...strategies import chain_of, nodes_of_8, racks

MODELS = Models.load()
VGG = replace(MODELS.of("VGG16"), across_sockets=0.6, across_nodes=0.5)
#: nodes of 8 GPUs, in two sockets of 4
LOCALITY = Locality([racks(), nodes_of_8(4)])


def placed(*pods: tuple[int, tuple[int, ...]], chain: str = "RACK") -> Placement:
    """Pods: the number of a node, and devices."""
    return Placement(chain, tuple(PodPlacement(f"{chain.lower()}-node-{node}", leaves) for node, leaves in pods))


@pytest.mark.parametrize(
    ("pods", "affinity"),
    [
        ([(0, (5,))], Affinity.SOCKET),
        ([(0, (0, 1, 2, 3))], Affinity.SOCKET),
        ([(1, (4, 7))], Affinity.SOCKET),
        ([(0, (3, 4))], Affinity.NODE),
        ([(0, tuple(range(8)))], Affinity.NODE),
        ([(0, (0,)), (0, (3,))], Affinity.SOCKET),  # two pods on one node
        ([(0, (7,)), (0, (0,))], Affinity.NODE),
        ([(0, (0,)), (1, (0,))], Affinity.SPREAD),  # one node could hold them
        ([(0, tuple(range(8))), (3, tuple(range(8)))], Affinity.NODES),
        ([(0, tuple(range(8))), (1, (0,))], Affinity.NODES),
        ([(node, (0, 1, 2, 3)) for node in range(4)], Affinity.SPREAD),  # two nodes could hold them
        ([(0, (0, 1, 2, 3)), (0, (4, 5, 6, 7)), (1, (0, 1, 2, 3))], Affinity.NODES),
    ],
)
@pytest.mark.parametrize("chain", ["RACK", "NODE"])
def test_the_affinity_of_a_placement(pods: list[tuple[int, tuple[int, ...]]], affinity: Affinity, chain: str) -> None:
    assert LOCALITY.affinity_of(placed(*pods, chain=chain)) is affinity


def test_a_flat_node_is_one_socket() -> None:
    flat = Locality([chain_of((4,), tops=2, node_level=2), chain_of((), tops=2, name="ONE")])
    assert flat.affinity_of(placed((0, (0, 3)), chain="TOP")) is Affinity.SOCKET
    assert flat.best("TOP", 4) is Affinity.SOCKET
    assert flat.affinity_of(placed((1, (0,)), chain="ONE")) is Affinity.SOCKET
    assert flat.affinity_of(placed((0, (0,)), (1, (0,)), chain="ONE")) is Affinity.NODES


def test_device_indices_are_no_positions() -> None:
    chain = replace(nodes_of_8(2), device_indices={0: (0, 2, 4, 6, 1, 3, 5, 7)})
    locality = Locality([chain])
    assert locality.affinity_of(placed((0, (0, 6)), chain="NODE")) is Affinity.SOCKET
    assert locality.affinity_of(placed((0, (0, 1)), chain="NODE")) is Affinity.NODE
    assert locality.affinity_of(placed((1, (0, 1)), chain="NODE")) is Affinity.SOCKET


def test_the_best_affinity() -> None:
    assert [LOCALITY.best("RACK", gpus) for gpus in (1, 4, 5, 8, 9, 64)] == [
        *(Affinity.SOCKET, Affinity.SOCKET, Affinity.NODE, Affinity.NODE, Affinity.NODES, Affinity.NODES)
    ]


def test_a_rate_is_against_the_best_affinity() -> None:
    eight = tuple(range(8))
    assert LOCALITY.rate(VGG, placed((0, (4, 7)))) == 1
    assert LOCALITY.rate(VGG, placed((0, (2, 5)))) == 0.6
    assert LOCALITY.rate(VGG, placed((0, eight))) == 1
    assert LOCALITY.rate(VGG, placed((0, eight[:4]), (1, eight[:4]))) == pytest.approx(0.5 / 0.6)
    assert LOCALITY.rate(VGG, placed((0, eight), (1, eight))) == 1
    # in more nodes than needed it is as fast as in several
    assert LOCALITY.rate(VGG, placed(*[(node, eight[:4]) for node in range(4)])) == 1
    assert LOCALITY.rate(MODELS.of("*"), placed((0, (0,)), (1, (0,)))) == 1


def test_no_affinity_is_faster_than_the_best() -> None:
    assert [speed(VGG, affinity) for affinity in Affinity] == [1, 0.6, 0.5, 0.5]
    odd = replace(VGG, across_sockets=0.5, across_nodes=0.9)
    assert rate_at(odd, Affinity.SPREAD, Affinity.NODE) == 1
