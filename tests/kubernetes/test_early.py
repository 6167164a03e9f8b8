"""``hived.io/mode: either``: on a loan before its turn, then guaranteed where it is, or moved."""

from __future__ import annotations

import pytest

from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.pod_request import PodRequestError, check_grace, read_request

from .fake_kubernetes import World
from .pods import gang_of, node, pod


def written(world: World, name: str) -> bool:
    """Whether a pod is guaranteed by its annotations."""
    return "NODE" in (world.there(name).annotation(keys.BIND_INFO) or "").partition("preassigned")[2]


@pytest.mark.parametrize("restarted", [False, True])
def test_promoted_when_its_turn_has_come(restarted: bool) -> None:
    """It starts on a loan, also after a restart, and its annotations follow."""
    world = World(a=1, b=1)
    world.run(pod("own", 4), pod("early", 4, mode="either"))
    if restarted:
        world.restart()
    assert world.guaranteed("early") == [False]
    assert not written(world, "early")
    told = world.explained("early", world.now)
    assert "it runs on a loan, before its turn in a; it is next in line" in told.split("\n- ")
    world.end("own")
    world.flush()
    assert (world.state("early"), world.guaranteed("early")) == ("placed", [True])
    assert written(world, "early")
    world.restart()
    assert world.guaranteed("early") == [True]


def test_gang_too_large_for_its_vc() -> None:
    """It waits for a loan, and says so."""
    world = World(a=1, b=1)
    world.run(pod("other", 2, "b"))
    world.submit(*gang_of("large", 2, 4, mode="either"))
    world.flush()
    assert world.state("large") == "waiting"
    assert "never" not in world.explained("large", world.now)
    assert "idle" in world.explained("large", world.now)
    world.end("other")
    world.flush()
    assert (world.state("large"), world.guaranteed("large")) == ("placed", [False])


@pytest.mark.parametrize("in_time", [True, False])
def test_loan_moves_to_its_own_cells(in_time: bool) -> None:
    """Where those under it are taken, it is evicted, and its new pods get its turn if they come in time."""
    world = World(a=1, b=1)
    early, again = (pod(f"early-{i}", 2, mode="either", group="early", group_size="1", created=i) for i in range(2))
    world.run(pod("half", 2), pod("ends", 2), early)
    assert world.guaranteed("early") == [False]
    world.end("ends")
    world.flush()
    moving = world.gang("early")
    assert (world.state("early"), moving.preempted_by) == ("preempted", None)
    assert "on other GPUs" in world.explained("early", world.now) + str(moving.history[-1].data)
    world.submit(pod("behind", 2))
    assert world.state("behind") == "waiting"
    world.wait(0)
    assert [one.uid for one in world.evictions_due()] == [early.metadata.uid]
    if in_time:  # as a Job does once the former pod is being deleted
        world.create(again)
    world.carry_out_all()
    world.kubelet()
    world.flush()
    if not in_time:
        world.create(again)
    world.ask(again)
    assert world.guaranteed("early", "behind") == [in_time, not in_time]


def test_turn_that_waits_for_a_missing_pod() -> None:
    """It comes on other GPUs: the gang gives its loan up at once, and is in no queue then."""
    world = World(a=1, b=1)
    world.run(pod("half", 2), pod("ends", 2))
    early = gang_of("early", 2, 1, mode="either")
    world.submit(*early, bind=False)
    assert world.state("early") == "placed"
    world.delete(early[1])
    world.deliver_all()
    world.ended("ends")
    assert world.state("early") == "waiting"
    world.create(pod("early-2", 1, created=1, mode="either", group="early", group_size="2"))
    assert world.guaranteed("early") == [True]


def test_preempted_loan_is_not_promoted() -> None:
    """Where it runs is the only healthy node of its VC."""
    world = World(a=1, b=2)
    others = [pod(f"other-{number}", 4, "b") for number in range(2)]
    world.run(*others, pod("early", 4, "b", mode="either"))
    world.create(pod("loan", 1, priority="-1"))
    world.question("loan")
    assert world.state("loan") == "reserved"
    world.set_node(node(world.home("other-0"), ready=False))
    world.ended("other-0")
    assert world.state("early") == "preempted"
    world.ended("early")
    assert world.state("loan") == "placed"


@pytest.mark.parametrize(
    ("labels", "priority", "early"),
    [
        ({}, 0, False),
        ({"mode": "guaranteed", "priority": "3"}, 3, False),
        ({"mode": "opportunistic"}, -1, False),
        ({"mode": "opportunistic", "priority": "-1"}, -1, False),
        ({"mode": "either"}, 0, True),
        ({"mode": "either", "priority": "7"}, 7, True),
    ],
)
def test_mode_label(labels: dict[str, str], priority: int, early: bool) -> None:
    asked = read_request(pod("p", more=labels))
    assert (asked.priority, asked.early) == (priority, early)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"mode": "both"}, "hived.io/mode: one of guaranteed, opportunistic, either, not 'both'"),
        ({"mode": "either", "priority": "opportunistic"}, "give one of them"),
        ({"mode": "opportunistic", "priority": "0"}, "give one of them"),
        ({"mode": "guaranteed", "priority": "-1"}, "give one of them"),
    ],
)
def test_wrong_mode_label(labels: dict[str, str], why: str) -> None:
    with pytest.raises(PodRequestError, match="label") as error:
        read_request(pod("p", more=labels))
    assert why in str(error.value)


def test_early_gang_has_the_grace_of_a_loan() -> None:
    early = read_request(pod("p", mode="either"))
    check_grace(pod("p"), early, 30)
    with pytest.raises(PodRequestError, match="a pod that may run on a loan"):
        check_grace(pod("p"), early, 10)
    assert early.disagrees(read_request(pod("p"))) == "mode: 'either' here, 'guaranteed' there"
