"""A service that is killed at any moment, an API server that goes away, and crowds; :mod:`tests.kubernetes.chaos`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.control_plane.plane import ControlPlane

from ..chaos import Chaos

Make = Callable[..., Chaos]


@pytest.fixture
def make(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Make]:
    """Makes the cluster: nodes with so many GPUs, and how many of them each virtual cluster has."""
    made: list[Chaos] = []

    def make(nodes: int, gpus: int, **vcs: int) -> Chaos:
        made.append(Chaos(control_plane, namespace, tmp_path, 7, nodes, vcs, gpus))
        return made[-1]

    yield make
    for chaos in made:
        chaos.close()


def check(chaos: Chaos, result: str) -> None:
    """Nothing was found; with ``-s`` it prints what was measured."""
    print(result, *(f"{what}: {number}" for what, number in sorted((chaos.counts + chaos.points).items())), sep="\n  ")
    assert not chaos.found, "\n".join(chaos.found)


@pytest.mark.parametrize("kills", [3, pytest.param(200, marks=pytest.mark.release)])
def test_kills_under_load(make: Make, kills: int) -> None:
    """A service that is killed again and again recovers its state, and loses no gang."""
    chaos = make(8, 4, a=3, b=3, c=2)
    check(chaos, chaos.kills(kills))
    assert chaos.counts["bound pods compared"] > 2 * kills, "hardly any pod was there to be compared"


@pytest.mark.parametrize("outages", [1, pytest.param(10, marks=pytest.mark.release)])
def test_outages_under_load(make: Make, outages: int) -> None:
    """An API server that goes away again and again costs nothing but time."""
    chaos = make(8, 4, a=3, b=3, c=2)
    check(chaos, chaos.outages(outages))
    assert chaos.counts["works that ran"] > 3 * outages


@pytest.mark.parametrize("pods", [60, pytest.param(1000, marks=pytest.mark.release)])
def test_many_pods_at_once(make: Make, pods: int) -> None:
    """All are placed or get a reason."""
    nodes = pods // 5
    chaos = make(nodes, 8, a=nodes * 3 // 10, b=nodes // 4, c=nodes // 5)
    check(chaos, chaos.many(pods))
    assert chaos.counts["pods bound"] > pods * 2 // 5


@pytest.mark.release
@pytest.mark.parametrize(("waiting", "tries"), [(60, 2), (500, 10)])
def test_crowd_of_another_tenant(control_plane: ControlPlane, make: Make, waiting: int, tries: int) -> None:
    """A tenant with many waiting pods does not keep another from its own."""
    chaos = make(4, 4, a=2, b=2)
    check(chaos, chaos.crowd(waiting, tries))
    # it would be 14 a minute with short backoffs, whenever anybody's pod is gone; from 1.33 on kube-scheduler looks at
    # pods in their backoff when it has nothing else to do: each time that one of the others comes, runs or goes
    most = 5 if control_plane.binaries.version < (1, 33) else 1 + 3 * 2 * tries
    assert chaos.counts["looks at a waiting pod"] <= most
