"""Which pods may use a virtual cluster whose spec names its members."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from hived.engines.kubernetes.pods.objects import Pod
from hived.spec.compiled import AccessSpec, ClusterSpec

from .fake_kubernetes import World
from .pods import flat_spec, pod, with_vcs


def members(*who: str, **more: Any) -> ClusterSpec:
    """Two nodes of ``a`` and ``b``, each for these members."""
    return with_vcs(flat_spec(a=1, b=1), access=AccessSpec(who, **more))


def of(there: Pod, account: str) -> Pod:
    """The pod with that service account."""
    return replace(there, spec=replace(there.spec, service_account_name=account))


@pytest.mark.parametrize(
    ("who", "there", "account", "answer"),
    [
        ("namespace:team", "team", "", "node"),
        ("namespace:team", "team-b", "", "refused"),
        ("serviceaccount:team/train", "team", "train", "node"),
        ("serviceaccount:team/train", "team", "other", "refused"),
        ("serviceaccount:team/default", "team", "", "node"),
        ("serviceaccount:team/train", "team-b", "train", "refused"),
        ("*", "anywhere", "", "node"),
        ("ann", "ann", "ann", "refused"),
    ],
)
def test_who_may_use_it(who: str, there: str, account: str, answer: str) -> None:
    world = World(members(who))
    asks = of(pod("p", 4, namespace=there), account)
    assert world.submit(asks) == [answer]
    if answer == "refused":
        assert f"may not use a, which is for {who}; ask an operator" in str(world.entry(asks).refused)


def test_labels_and_annotations_are_no_way_in() -> None:
    """A pod says which virtual cluster it wants, in two ways; its namespace is what it is."""
    said = "virtualCluster: a\npriority: 0\nleafCellType: GPU\nleafCellNumber: 4\n"
    world = World(members("namespace:team"))
    forged = [pod("one", 4, namespace="evil"), pod("two", namespace="evil", said=said)]
    assert world.submit(*forged) == ["refused", "refused"]
    assert all("pods of namespace evil" in str(world.entry(one).refused) for one in forged)


def test_priority_of_members() -> None:
    world = World(members("namespace:t", max_priority=5))
    high = pod("high", 4, priority="6")
    assert world.submit(high, pod("low", 4, "b", priority="5")) == ["refused", "node"]
    assert "may not ask for priority 6 in a: maxPriority of its members is 5" in str(world.entry(high).refused)


def test_a_new_spec_lets_in_and_shuts_out() -> None:
    """What runs runs on, whoever it is of; what waits is asked again."""
    world = World(members("namespace:other"))
    runs, waits = pod("runs", 4), pod("waits", 4)
    assert world.submit(runs) == ["refused"]
    world.respecify(members("namespace:t"))
    world.quiesce()
    assert all(world.nodes_of(runs))
    assert world.submit(waits) == ["wait"]
    world.respecify(members("namespace:other"))
    assert world.entry(waits).refused is not None
    assert world.entry(runs).refused is None
    assert all(world.nodes_of(runs))


def test_a_spec_that_names_nobody_is_for_all() -> None:
    world = World(members(max_priority=5))
    assert world.submit(pod("p", 4, namespace="anywhere", priority="9")) == ["node"]


def test_grace_of_members() -> None:
    """Of guaranteed pods; those on loan have another bound."""
    world = World(members("namespace:t", max_grace_seconds=29))
    slow, loan = pod("slow", 4), pod("loan", 4, "b", mode="opportunistic")
    assert world.submit(slow, loan) == ["refused", "node"]
    assert "may not have 30 s to end (terminationGracePeriodSeconds) in a: maxGraceSeconds of its members is 29" in str(
        world.entry(slow).refused
    )
    assert World(members("namespace:t", max_grace_seconds=30)).submit(pod("slow", 4)) == ["node"]
