"""GPUs that a node does not advertise, and nodes whose kubelets reject pods."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Node, Owner, Pod, PodStatus
from hived.engines.kubernetes.pods.pod_request import advertised

from .fake_kubernetes import World
from .pods import devices_of, foreign, gang_of, node, pod

NVIDIA, AMD, OURS = "nvidia.com/gpu", "amd.com/gpu", "hived.io/gpu"


def with_gpus(name: str, gpus: int, bad: str | None = None) -> Node:
    """A node that advertises GPUs."""
    there = node(name, bad=bad)
    return replace(there, status=replace(there.status, allocatable={"cpu": "64", NVIDIA: str(gpus)}))


def taken(world: World, *pods: Pod) -> set[tuple[str, int]]:
    return {device for one in pods for device in devices_of(world.there(one))}


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({}, None),
        ({NVIDIA: "6"}, 6),
        ({NVIDIA: "0"}, 0),
        ({NVIDIA: "4", AMD: "2"}, 6),
        ({NVIDIA: "8", AMD: "0"}, 8),
        ({OURS: 8, NVIDIA: "6"}, 6),
        ({OURS: "8"}, 8),
        ({NVIDIA: "many"}, None),
    ],
)
def test_advertised_gpus(given: dict[str, str | int | float], number: int | None) -> None:
    there = node("n0")
    assert advertised(replace(there, status=replace(there.status, allocatable=given))) == number


def test_no_more_than_advertised() -> None:
    """Eight were given on a node that advertises six."""
    world = World(a=1)
    world.set_node(with_gpus("n0", gpus=3))
    ones = [pod(f"p{number}", 1) for number in range(4)]
    world.submit(*ones)
    world.quiesce()
    assert len(taken(world, *ones)) == 3
    assert "it advertises 3 of its 4 GPUs" in world.explained("p3")
    world.set_node(with_gpus("n0", gpus=4))
    world.quiesce()
    assert len(taken(world, *ones)) == 4


def test_node_comes_back_with_fewer() -> None:
    """Pods there run on; what they leave is given again as far as it is advertised."""
    world = World(a=1)
    ones = [pod(f"p{number}", 1) for number in range(4)]
    world.run(*ones[:3])
    world.set_node(with_gpus("n0", gpus=2))
    assert world.submit(ones[3]) == ["wait"], "three are in use, and two are there"
    world.ended(ones[0])
    assert world.submit(pod("more", 1)) == ["wait"]
    world.restart()
    world.ended(ones[1])
    world.quiesce()
    assert (
        len(taken(world, *[one for one in (ones[2], ones[3], pod("more", 1)) if one.metadata.uid in world.pods])) == 2
    )


def test_marked_gpus_are_not_there() -> None:
    """A device that is marked as bad is one of those that are not advertised."""
    world = World(a=1)
    world.set_node(with_gpus("n0", gpus=3, bad="0"))
    ones = [pod(f"p{number}", 1) for number in range(4)]
    world.submit(*ones)
    world.quiesce()
    assert taken(world, *ones) == {("n0", 1), ("n0", 2), ("n0", 3)}


def test_beside_a_foreign_pod() -> None:
    world = World(a=1)
    world.update(foreign("serve", 1, "n0"))
    world.set_node(with_gpus("n0", gpus=3))
    ones = [pod(f"p{number}", 1) for number in range(4)]
    world.submit(*ones)
    world.quiesce()
    assert len(taken(world, *ones)) == 2


def reject(world: World, one: Pod, reason: str = "UnexpectedAdmissionError") -> None:
    """The kubelet of its node does not admit a pod."""
    world.update(replace(world.there(one), status=PodStatus(phase="Failed", reason=reason)))
    world.gone(one)


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu"])
@pytest.mark.parametrize("kind", ["Job", "ReplicaSet"])
def test_rejected_pod_goes_elsewhere(kind: str, reason: str) -> None:
    """The same node got it again and again, others idle; after a while the node is tried again."""
    owner = Owner(
        api_version={"Job": "batch/v1"}.get(kind, "apps/v1"), kind=kind, name="train", uid="o", controller=True
    )
    world = World(a=3)
    homes = []
    for number in range(3):
        one = pod(f"train-{number}", 4, owner=owner)
        world.run(one)
        homes.append(world.home(one))
        reject(world, one, reason)
    assert len(set(homes)) == 3
    last = pod("train-9", 4, owner=owner)
    assert world.submit(last) == ["wait"]
    assert f"its kubelet has rejected t/train-0 ({reason})" in world.pod_explained(last)
    world.run(pod("other", 4))
    world.wait(301)
    world.quiesce()
    assert world.home(last) in homes


def test_rejected_member_goes_elsewhere() -> None:
    """Its gang runs on; the pod that replaces it joins the gang on another node."""
    world = World(a=3)
    one, two = gang_of("g", 2, 4)
    world.run(one, two)
    before = world.home(two)
    new = world.recreated(two, 9)
    reject(world, two)
    world.create(new)
    world.quiesce()
    assert world.home(new) not in (before, world.home(one))


def test_page_of_pods_has_every_label() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "pods.md").read_text(encoding="utf-8")
    table = page.partition("| label of the pod")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(hived\.io/[a-z-]+)", table)) == set(keys.LABELS)
