"""``hived.io/mode: either``: on a loan before its turn, then guaranteed where it is, or moved."""

from __future__ import annotations

import pytest

from hived.engines.kubernetes.gangs.explaining import explain
from hived.engines.kubernetes.gangs.gang import Evict, GangState
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.pod_request import PodRequestError, check_grace, read_request

from .fake_kubernetes import World
from .pods import flat_spec, node, pod
from .test_gang_scheduler import gang, placed_nodes, run


def written(world: World, name: str) -> bool:
    """Whether a pod is guaranteed by its annotations."""
    return "NODE" in (world.pods[f"uid-t-{name}"].annotation(keys.BIND_INFO) or "").partition("preassigned")[2]


def test_it_starts_on_a_loan_and_its_annotations_follow_when_its_turn_has_come() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    own, early = pod("own", 4), pod("early", 4, mode="either")
    run(world, own, early)
    assert not gang(world, "early").guaranteed
    assert not written(world, "early")
    assert "it runs on a loan, before its turn in a; it is next in line" in explain(
        world.gang_scheduler, gang(world, "early"), world.now
    )
    world.end(own.metadata.uid)
    world.flush()
    assert gang(world, "early").guaranteed
    assert gang(world, "early").state is GangState.PLACED
    assert written(world, "early")
    world.restart()
    assert gang(world, "early").guaranteed


def test_after_a_restart_it_is_on_its_loan_and_still_has_its_turn() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    own, early = pod("own", 4), pod("early", 4, mode="either")
    run(world, own, early)
    world.restart()
    assert not gang(world, "early").guaranteed
    world.end(own.metadata.uid)
    world.flush()
    assert gang(world, "early").guaranteed


def test_a_gang_too_large_for_its_vc_waits_for_a_loan_and_says_so() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    other = pod("other", 2, vc="b")
    pods = [pod(f"large-{rank}", 4, group="large", group_size="2", mode="either") for rank in range(2)]
    run(world, other)
    world.create(*pods)
    for one in pods:
        world.ask(one.metadata.uid)
    world.flush()
    assert gang(world, "large").state is GangState.WAITING
    text = "\n".join(explain(world.gang_scheduler, gang(world, "large"), world.now))
    assert "never" not in text
    assert "idle" in text
    world.end(other.metadata.uid)
    world.flush()
    assert gang(world, "large").state is GangState.PLACED
    assert not gang(world, "large").guaranteed


@pytest.mark.parametrize("in_time", [True, False])
def test_a_loan_whose_own_cells_are_taken_is_evicted_and_its_new_pods_get_their_turn(in_time: bool) -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    of = {"mode": "either", "group": "early", "group_size": "1"}
    half, ends, early = pod("half", 2), pod("ends", 2), pod("early-0", 2, more=of)
    run(world, half, ends, early)
    assert not gang(world, "early").guaranteed
    world.end(ends.metadata.uid)
    world.flush()
    moving = gang(world, "early")
    assert moving.state is GangState.PREEMPTED
    assert moving.preempted_by is None
    assert "on other GPUs" in explain(world.gang_scheduler, moving, world.now)[0] + str(moving.history[-1].data)
    behind = pod("behind", 2)
    world.create(behind)
    world.ask(behind.metadata.uid)
    assert gang(world, "behind").state is GangState.WAITING
    world.wait(0)
    assert [one.uid for one in world.todo if isinstance(one, Evict)] == [early.metadata.uid]
    again = pod("early-1", 2, created=1, more=of)
    if in_time:  # as a Job does once the former pod is being deleted
        world.create(again)
    world.carry_out_all()
    world.kubelet()
    world.flush()
    if not in_time:
        world.create(again)
    world.ask(again.metadata.uid)
    first, second = ("early", "behind") if in_time else ("behind", "early")
    assert gang(world, first).guaranteed
    assert not gang(world, second).guaranteed


def test_a_gang_whose_turn_comes_elsewhere_while_a_pod_of_it_is_missing_waits_for_that_pod() -> None:
    """It gives its loan up at once, and is in no queue then."""
    world = World(flat_spec(("a", 1), ("b", 1)))
    half, ends = pod("half", 2), pod("ends", 2)
    of = {"mode": "either", "group": "early", "group_size": "2"}
    early = [pod(f"early-{rank}", 1, more=of) for rank in range(2)]
    run(world, half, ends)
    world.create(*early)
    for one in early:
        world.ask(one.metadata.uid, bind=False)
    assert gang(world, "early").state is GangState.PLACED
    world.delete(early[1].metadata.uid)
    world.deliver_all()
    world.end(ends.metadata.uid)
    world.deliver_all()
    assert gang(world, "early").state is GangState.WAITING
    world.create(pod("early-2", 1, created=1, more=of))
    assert gang(world, "early").guaranteed


def test_a_loan_that_is_being_preempted_is_not_promoted_where_it_runs() -> None:
    world = World(flat_spec(("a", 1), ("b", 2)))
    early, loan = pod("early", 4, "b", mode="either"), pod("loan", 1, priority="-1")
    others = [pod(f"other-{number}", 4, "b") for number in range(2)]
    run(world, *others, early)
    world.create(loan)
    world.asked(loan.metadata.uid)
    assert gang(world, "loan").state is GangState.RESERVED
    (home,) = placed_nodes(world, "other-0")
    world.set_node(node(home, ready=False))
    world.end(others[0].metadata.uid)
    world.deliver_all()
    assert gang(world, "early").state is GangState.PREEMPTED  # where it runs is the only healthy node of its VC
    world.end(early.metadata.uid)
    world.deliver_all()
    assert gang(world, "loan").state is GangState.PLACED


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
def test_the_label_says_how_a_pod_would_have_its_gpus(labels: dict[str, str], priority: int, early: bool) -> None:
    asked = read_request(pod("p", **labels))  # type: ignore[arg-type]
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
def test_an_unknown_mode_or_one_that_contradicts_the_priority_is_refused(labels: dict[str, str], why: str) -> None:
    with pytest.raises(PodRequestError, match="label") as error:
        read_request(pod("p", **labels))  # type: ignore[arg-type]
    assert why in str(error.value)


def test_an_early_gang_has_the_grace_of_a_loan_and_differs_from_a_guaranteed_one() -> None:
    early = read_request(pod("p", mode="either"))
    check_grace(pod("p"), early, 30)
    with pytest.raises(PodRequestError, match="a pod that may run on a loan"):
        check_grace(pod("p"), early, 10)
    assert early.disagrees(read_request(pod("p"))) == "mode: 'either' here, 'guaranteed' there"
