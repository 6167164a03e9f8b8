"""Scenarios of the gang scheduler: placement, queueing, preemption, bindings, Events, grace periods and new specs."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from hived.cluster.explain.sentences import in_lines
from hived.cluster.reasons import NotSuggested, ReasonKind
from hived.cluster.requests import Member
from hived.engines.kubernetes.gangs import extender_answers as answering
from hived.engines.kubernetes.gangs.explaining import event_text, explain, explain_pod, reasons, shortly
from hived.engines.kubernetes.gangs.gang import Evict, Gang, GangState, Wake
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Owner, Pod
from hived.errors import ConflictError, NotFoundError
from hived.spec import load_spec
from hived.spec.compiled import ClusterSpec

from .fake_kubernetes import World
from .pods import devices_of, flat_spec, foreign, labelled, node, node_names, pod, terminating

SPECS = Path(__file__).parents[3] / "shared" / "specs"
JOB = Owner(api_version="batch/v1", kind="Job", name="train", uid="job-1", controller=True)


def gang_of(name: str, size: int, gpus: int, vc: str = "a", created: int = 0, **labels: str) -> list[Pod]:
    """Pods of one group, by labels."""
    more = {"group": name, "group_size": str(size), **labels}
    return [pod(f"{name}-{i}", gpus, vc, created=created, more=more) for i in range(size)]


def run(world: World, *pods: Pod) -> None:
    """These come, are asked for, and are bound."""
    world.create(*pods)
    for one in pods:
        world.ask(one.metadata.uid)
    world.flush()
    for one in pods:
        assert world.pods[one.metadata.uid].spec.node_name, f"{one.key} is not bound"


def gang(world: World, name: str) -> Gang:
    """A gang by its name in namespace t."""
    return world.gang_scheduler.gangs[f"t/{name}"]


def placed_nodes(world: World, name: str) -> list[str]:
    """The nodes of a gang's placement."""
    placement = gang(world, name).placement
    assert placement is not None
    return [place.node for place in placement.pods]


def places(world: World, *pods: Pod) -> list[str | None]:
    """Where pods are."""
    return [world.pods[one.metadata.uid].spec.node_name for one in pods]


# -- gangs ------------------------------------------------------------------------------------------------------------


def test_a_gang_of_four_is_placed_as_one() -> None:
    world = World(flat_spec(("a", 4), ("b", 1)))
    pods = gang_of("g", 4, 4)
    world.create(*pods[:3])
    assert [world.ask(one.metadata.uid) for one in pods[:3]] == ["wait"] * 3
    assert "3 of its 4 pods exist" in shortly(world.gang_scheduler, gang(world, "g"))[0]
    world.create(pods[3])
    assert gang(world, "g").state is GangState.PLACED
    world.quiesce()
    assert len(set(places(world, *pods))) == 4


def test_all_pods_of_a_gang_wait_if_one_does_not_fit() -> None:
    world = World(flat_spec(("a", 3), ("b", 1)))
    pods = gang_of("g", 4, 4)
    world.create(*pods)
    assert {world.ask(one.metadata.uid) for one in pods} == {"wait"}
    assert not world.gang_scheduler.usage.at


def test_pods_of_upstreams_kind_are_placed_before_all_of_them_exist() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    group = "{name: g, members: [{podNumber: 2, leafCellNumber: 4}]}"
    said = f"{{virtualCluster: a, leafCellNumber: 4, affinityGroup: {group}}}"
    one, two = pod("p0", said=said), pod("p1", said=said)
    run(world, one)
    assert len(world.gang_scheduler.usage.at) == 8
    run(world, two)
    assert len(set(places(world, one, two))) == 2
    late = pod("p2", said=said)
    world.create(late)
    assert world.ask(late.metadata.uid) == "wait"
    told = in_lines(explain_pod(world.gang_scheduler, world.gang_scheduler.pods[late.metadata.uid], None))
    assert "affinityGroup.members" in told
    assert keys.GROUP_SIZE not in told, "a label that it does not use"


def test_a_gang_sized_by_its_owner_waits_for_all_its_pods() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    pods = [pod(f"train-{i}", 4, owner=JOB) for i in range(2)]
    world.create(pods[0], members=(Member(2, 4),))
    assert world.ask(pods[0].metadata.uid) == "wait"
    world.create(pods[1], members=(Member(2, 4),))
    world.quiesce()
    assert len(set(places(world, *pods))) == 2


def test_pods_of_different_sizes_get_places_of_theirs() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    members = (Member(1, 4), Member(2, 1))
    pods = [pod(f"train-{i}", gpus, owner=JOB) for i, gpus in enumerate([1, 4, 1])]
    world.create(*pods, members=members)
    world.quiesce()
    assert [len(devices_of(world.pods[one.metadata.uid])) for one in pods] == [1, 4, 1]


def test_a_pod_too_many_waits_until_one_of_its_gang_has_gone() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    pods = gang_of("g", 2, 4)
    run(world, *pods)
    late = pod("g-2", 4, group="g", group_size="2")
    world.create(late)
    assert world.ask(late.metadata.uid) == "wait"
    assert "other pods have all 2 places" in in_lines(
        explain_pod(world.gang_scheduler, world.gang_scheduler.pods[late.metadata.uid], None)
    )
    world.end(pods[0].metadata.uid)
    world.quiesce()
    assert world.pods[late.metadata.uid].spec.node_name


def test_a_pod_that_was_recreated_under_its_name_takes_the_place_of_the_former() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    pods = gang_of("g", 2, 4)
    run(world, *pods)
    former = world.pods[pods[0].metadata.uid]
    world.delete(pods[0].metadata.uid)
    world.kubelet()
    again = world.recreated(former, 50)
    world.create(again)
    world.quiesce()
    assert world.pods[again.metadata.uid].spec.node_name == former.spec.node_name


def test_pods_that_name_one_group_and_ask_for_something_else_are_kept_outside_until_it_ends() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    one, other = pod("one", 4, group="g", group_size="1"), pod("other", 2, group="g", group_size="1", created=5)
    run(world, one)
    world.create(other)
    assert world.ask(other.metadata.uid) == "refused"
    assert "members: 1 x 2 here, 1 x 4 there" in str(world.gang_scheduler.pods[other.metadata.uid].refused)
    world.end(one.metadata.uid)
    world.quiesce()
    assert world.pods[other.metadata.uid].spec.node_name, "nobody asked for it again"


def test_a_pod_alone_and_a_group_of_the_same_name_do_not_share_a_place() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    alone, grouped = pod("x", 4), gang_of("x", 2, 2)
    run(world, alone)
    world.create(*grouped)
    assert {world.ask(one.metadata.uid) for one in grouped} == {"refused"}
    world.end(alone.metadata.uid)
    world.quiesce()
    assert all(places(world, *grouped))


def test_a_name_in_another_namespace_is_another_group() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    mine, theirs = pod("x", 4), pod("x", 4, namespace="other")
    run(world, mine, theirs)
    assert len(set(places(world, mine, theirs))) == 2


def test_a_job_recreated_at_once_waits_for_the_pods_of_the_former_one() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    former = [pod(f"train-{i}", 4, owner=JOB) for i in range(2)]
    world.create(*former, members=(Member(2, 4),))
    world.quiesce()
    job = replace(JOB, uid="job-2")
    new = [pod(f"train-{i}", 4, owner=job, uid=f"new-{i}", created=9) for i in range(2)]
    world.create(*new, members=(Member(2, 4),))
    assert world.ask("new-0") == "refused"
    assert "pods of a former t/train are still there" in str(world.gang_scheduler.pods["new-0"].refused)
    for one in former:
        world.end(one.metadata.uid)
    world.quiesce()
    assert all(places(world, *new))


# -- order ------------------------------------------------------------------------------------------------------------


def test_the_vcs_order_decides_and_not_the_order_of_asking() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    run(world, pod("holder", 4))
    first, second = pod("first", 4, created=1), pod("second", 4, created=2)
    world.create(second, first)
    assert world.ask(second.metadata.uid) == "wait"
    assert world.ask(first.metadata.uid) == "wait"
    world.end("uid-t-holder")
    world.quiesce()
    assert places(world, first, second) == ["n0", None] or places(world, first, second) == ["n1", None]


def test_a_higher_priority_goes_first() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    run(world, pod("holder", 4, priority="9"))
    low, high = pod("low", 4, created=1), pod("high", 4, created=2, priority="5")
    world.create(low, high)
    world.ask(low.metadata.uid)
    world.ask(high.metadata.uid)
    world.end("uid-t-holder")
    world.quiesce()
    assert places(world, high)[0]
    assert not places(world, low)[0]


def test_a_thousand_waiting_pods_of_one_tenant_cost_another_nothing() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    run(world, pod("holder", 4, "a"))
    crowd = [pod(f"w{i}", 4, "a", created=i) for i in range(60)]
    world.create(*crowd)
    for one in crowd:
        world.ask(one.metadata.uid)
    world.calls.clear()
    run(world, pod("mine", 4, "b"))
    assert world.calls["b"] == 1
    assert world.calls["a"] == 0


def test_equal_pods_that_no_node_is_offered_for_do_not_cost_the_square_of_their_number() -> None:
    """None of them blocks the queue, so all of it are tried; the core has to be asked about one of them."""
    world = World(flat_spec(("a", 2), ("b", 1)))
    crowd = [pod(f"w{i}", 1, "a", created=i) for i in range(40)]
    world.create(*crowd)
    world.calls.clear()
    for one in crowd:
        assert world.ask(one.metadata.uid, offered=[]) == "wait"
    assert world.calls["a"] <= 3 * len(crowd)


def test_a_gang_that_waits_for_nodes_not_offered_does_not_block_the_queue() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    picky, plain = pod("picky", 4, created=1), pod("plain", 4, created=2)
    world.create(picky, plain)
    assert world.ask(picky.metadata.uid, offered=[]) == "wait"
    assert isinstance(reasons(world.gang_scheduler, gang(world, "picky"))[0], NotSuggested)
    assert "kube-scheduler takes 0 of the cluster's nodes" in in_lines(
        explain(world.gang_scheduler, gang(world, "picky"), None)
    )
    assert world.ask(plain.metadata.uid) == "node"
    assert world.ask(picky.metadata.uid) == "node"


def test_an_invalid_request_is_reported_and_does_not_block_the_queue() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    wrong, right = pod("wrong", 4, created=1, leaf_cell_type="H100"), pod("right", 4, created=2)
    world.create(wrong, right)
    assert world.ask(wrong.metadata.uid) == "wait"
    assert reasons(world.gang_scheduler, gang(world, "wrong"))[0].kind is ReasonKind.MISCONFIGURED
    assert world.ask(right.metadata.uid) == "node"


# -- preemption -------------------------------------------------------------------------------------------------------


def borrowed(world: World, nodes: int = 4) -> list[Pod]:
    """A gang of b on every node, opportunistic."""
    loans = gang_of("loan", nodes, 4, "b", priority="-1")
    run(world, *loans)
    return loans


def test_a_vc_takes_its_own_cells_back_though_the_victims_are_on_several_nodes() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    loans = borrowed(world)
    mine = pod("mine", 4)
    world.create(mine)
    assert world.ask(mine.metadata.uid) == "preempting"
    assert gang(world, "loan").state is GangState.PREEMPTED
    world.wait(10.0)
    world.carry_out_all()
    assert all(world.pods[one.metadata.uid].metadata.deletion_timestamp for one in loans)
    for number, one in enumerate(loans):
        assert (gang(world, "mine").state is GangState.RESERVED) is (number < 4)
        world.remove(one.metadata.uid)
        world.deliver_all()
    assert gang(world, "mine").state is GangState.PLACED
    world.quiesce()
    assert places(world, mine)[0]
    assert world.gang_scheduler.preempted == {("b", "a"): 1}


def test_no_pod_of_a_preempted_gang_is_bound_any_more() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    loans = gang_of("loan", 4, 4, "b", priority="-1")
    world.create(*loans)
    world.ask(loans[0].metadata.uid)
    late = loans[1].metadata.uid
    entry = world.gang_scheduler.pods[late]
    assert entry.slot is not None
    placement = gang(world, "loan").placement
    assert placement is not None
    where = placement.pods[entry.slot].node
    world.create(pod("mine", 4))
    world.ask("uid-t-mine")
    with pytest.raises(ConflictError, match="is being preempted"):
        world.gang_scheduler.binding(late, where)


def test_a_victim_none_of_whose_pods_is_bound_yields_at_once() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    loans = gang_of("loan", 4, 4, "b", priority="-1")
    world.create(*loans)
    world.ask(loans[0].metadata.uid, bind=False)
    assert gang(world, "loan").state is GangState.PLACED
    mine = pod("mine", 4)
    world.create(mine)
    assert world.ask(mine.metadata.uid) == "node"
    assert gang(world, "loan").state is GangState.WAITING


def test_a_victim_with_a_binding_on_its_way_is_waited_for() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    loans = gang_of("loan", 4, 4, "b", priority="-1")
    world.create(*loans)
    world.ask(loans[0].metadata.uid, bind=False)
    placement = gang(world, "loan").placement
    slot = world.gang_scheduler.pods[loans[0].metadata.uid].slot
    assert placement is not None
    assert slot is not None
    world.bind(loans[0].metadata.uid, placement.pods[slot].node, "late")
    mine = pod("mine", 4)
    world.create(mine)
    assert world.ask(mine.metadata.uid) == "preempting"
    world.gang_scheduler.bind_failed(loans[0].metadata.uid, world.now)
    world.sent.clear()
    world.step()
    assert gang(world, "mine").state is GangState.PLACED


def test_a_pod_stays_while_an_earlier_binding_of_it_may_still_take_effect() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    one = pod("one", 4)
    world.create(one)
    world.ask(one.metadata.uid, bind=False)
    (home,) = placed_nodes(world, "one")
    world.bind(one.metadata.uid, home, "late")
    world.bind(one.metadata.uid, home, "failed")  # kube-scheduler was out of patience, and asked again
    world.set_node(node(home, ready=False))
    assert placed_nodes(world, "one") == [home]
    world.arrive(world.sent[0])
    assert gang(world, "one").on_nodes
    assert places(world, one) == [home]


def test_a_job_starts_once_a_job_of_another_vc_has_ended_on_the_only_healthy_node() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    theirs, mine = pod("theirs", 4, "b"), pod("mine", 4)
    run(world, theirs)
    (home,) = placed_nodes(world, "theirs")
    (other,) = {"n0", "n1"} - {home}
    world.set_node(node(other, ready=False))
    world.create(mine)
    assert world.ask(mine.metadata.uid) == "wait"
    world.end(theirs.metadata.uid)
    world.deliver_all()
    assert placed_nodes(world, "mine") == [home]


def test_a_gang_that_has_reserved_is_placed_elsewhere_once_there_is_room_and_spares_slow_victims() -> None:
    world = World(flat_spec(("a", 2), ("b", 18)))
    loans = [pod(f"loan{number}", 4, "b", priority="-1") for number in range(20)]
    run(world, *loans)
    mine = gang_of("mine", 2, 4)
    world.create(*mine)
    assert world.ask(mine[0].metadata.uid) == "preempting"
    slow = [one for one in loans if gang(world, one.metadata.name).state is GangState.PREEMPTED]
    assert len(slow) == 2
    for one in [one for one in loans if one not in slow][:16]:
        world.remove(one.metadata.uid)
        world.deliver_all()
    assert gang(world, "mine").state is GangState.PLACED
    assert all(gang(world, one.metadata.name).state is GangState.PLACED for one in slow)
    world.wait(60.0)

    world.carry_out_all()
    assert not any(world.pods[one.metadata.uid].metadata.deletion_timestamp for one in slow)


def test_a_reservation_on_a_node_that_kube_scheduler_does_not_take_any_more_ends_and_spares_its_victims() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    loans = [pod(f"loan{number}", 4, "b", priority="-1") for number in range(4)]
    run(world, *loans)
    mine = gang_of("mine", 2, 4)
    world.create(*mine)
    assert world.ask(mine[0].metadata.uid) == "preempting"
    placement = gang(world, "mine").placement
    assert placement is not None
    kept, lost = (place.node for place in placement.pods)
    world.gang_scheduler.asked(world.pods[mine[0].metadata.uid], None, [kept], world.now)
    world.gang_scheduler.asked(world.pods[mine[0].metadata.uid], None, [kept], world.now, emptied=True)
    world.step()
    assert gang(world, "mine").state is GangState.WAITING
    assert all(gang(world, one.metadata.name).state is GangState.PLACED for one in loans)
    others = [node for node in world.gang_scheduler.nodes.healthy if node != lost]
    world.gang_scheduler.asked(world.pods[mine[0].metadata.uid], None, others, world.now)
    world.step()
    moved = gang(world, "mine").placement
    assert moved is not None
    assert lost not in {place.node for place in moved.pods}


def test_a_node_that_is_taken_once_its_pods_are_gone_stays_reserved_while_they_go() -> None:
    """kube-scheduler's filter leaves out a node whose CPU the victims use; its preempt request offers it."""
    world = World(flat_spec(("a", 1), ("b", 1)))
    run(world, *[pod(f"loan{number}", 4, "b", priority="-1") for number in range(2)])
    mine = pod("mine", 4)
    world.create(mine)
    asks = world.pods[mine.metadata.uid]
    world.gang_scheduler.asked(asks, None, [], world.now)
    assert gang(world, "mine").state is GangState.WAITING
    world.gang_scheduler.asked(asks, None, list(world.gang_scheduler.nodes.healthy), world.now, emptied=True)
    assert gang(world, "mine").state is GangState.RESERVED
    world.gang_scheduler.asked(asks, None, [], world.now)
    world.step()
    assert gang(world, "mine").state is GangState.RESERVED
    world.gang_scheduler.asked(asks, None, [], world.now, emptied=True)
    world.step()
    assert gang(world, "mine").state is GangState.WAITING, "it is not taken in that question either"


def test_after_a_restart_a_gang_preempts_only_once_its_nodes_are_offered() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    run(world, pod("own", 4), *[pod(f"loan{number}", 4, "b", priority="-1") for number in range(3)])
    mine = pod("mine", 4)
    world.create(mine)
    own = world.pods["uid-t-own"].spec.node_name
    assert own is not None
    assert world.ask(mine.metadata.uid, offered=[own]) == "wait"
    world.restart()
    assert gang(world, "mine").state is GangState.WAITING
    assert all(gang(world, f"loan{number}").state is GangState.PLACED for number in range(3))
    assert world.ask(mine.metadata.uid, offered=[own]) == "wait"
    assert all(gang(world, f"loan{number}").state is GangState.PLACED for number in range(3))
    assert world.ask(mine.metadata.uid) == "preempting"


def test_victims_are_spared_when_their_preemptor_ends() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    loans = borrowed(world)
    world.create(pod("mine", 4))
    world.random.seed(3)
    world.asked("uid-t-mine")
    assert gang(world, "loan").state is GangState.PREEMPTED
    world.remove("uid-t-mine")
    world.deliver_all()
    assert gang(world, "loan").state is GangState.PLACED
    world.wait(60.0)
    world.carry_out_all()
    assert all(places(world, *loans))
    assert not world.evictions


def test_spared_pods_get_an_event_unless_they_are_being_deleted() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    loans = borrowed(world)
    world.create(pod("mine", 4))
    world.asked("uid-t-mine")
    assert not events(world, "HivedSpared")
    world.delete(loans[0].metadata.uid)
    world.deliver_all()
    world.remove("uid-t-mine")
    world.deliver_all()
    assert gang(world, "loan").state is GangState.PLACED
    told = [told for told in world.events if told.reason == "HivedSpared"]
    assert sorted(one.key for one in told) == sorted(one.key for one in loans[1:])
    assert {(one.message, one.warning) for one in told} == {("nobody wants its GPUs any more; it runs on", False)}


def test_a_waiting_pod_of_a_spared_gang_is_woken() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    loans = gang_of("loan", 4, 4, "b", priority="-1")
    world.create(*loans)
    world.ask(loans[0].metadata.uid)
    world.create(pod("mine", 4))
    world.asked("uid-t-mine")
    assert world.ask(loans[1].metadata.uid) == "wait"
    world.remove("uid-t-mine")
    world.deliver_all()
    assert Wake(loans[1].metadata.uid, loans[1].key) in world.todo
    world.quiesce()
    assert all(places(world, *loans))


def test_a_preempted_gang_names_its_current_preemptor_after_the_first_one_has_ended() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    borrowed(world)
    for name in ("one", "two"):
        world.create(pod(name, 4))
        world.asked(f"uid-t-{name}")
    world.remove("uid-t-one")
    world.deliver_all()
    loan = gang(world, "loan")
    assert loan.state is GangState.PREEMPTED
    assert loan.preempted_by is gang(world, "two")


def test_a_lower_priority_of_the_same_vc_runs_on_as_opportunistic_and_says_so_in_its_annotations() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    low = pod("low", 4, lazy_preemption="true")
    run(world, low)
    before = world.pods[low.metadata.uid].annotation(keys.BIND_INFO) or ""
    assert "[NODE, NODE, NODE, NODE]" in before
    high = pod("high", 4, priority="5")
    run(world, high)
    assert not gang(world, "low").guaranteed
    after = world.pods[low.metadata.uid].annotation(keys.BIND_INFO) or ""
    assert "NODE, NODE" not in after
    world.restart()
    assert not gang(world, "low").guaranteed
    assert gang(world, "high").guaranteed


# -- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["not ready", "cordoned", "gone", "marked"])
def test_a_bad_node_gets_no_gang_until_it_is_healthy_again(kind: str) -> None:
    world = World(flat_spec(("a", 1), ("b", 0)))
    if kind == "gone":
        world.remove_node("n0")
    else:
        world.set_node(node("n0", kind != "not ready", kind == "cordoned", "0,1" if kind == "marked" else None))
    one = pod("one", 4)
    world.create(one)
    assert world.ask(one.metadata.uid) == "wait"
    assert reasons(world.gang_scheduler, gang(world, "one"))[0].kind is ReasonKind.BAD_HARDWARE
    world.set_node(node("n0"))
    world.quiesce()
    assert places(world, one) == ["n0"]


def test_a_gang_that_runs_on_a_node_that_turns_bad_runs_on() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    pods = gang_of("g", 2, 4)
    run(world, *pods)
    world.set_node(node(places(world, *pods)[0] or "", ready=False))
    world.restart()
    assert gang(world, "g").state is GangState.PLACED


def test_a_gang_that_is_not_bound_yet_leaves_a_node_that_turns_bad() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    one = pod("one", 4)
    world.create(one)
    world.ask(one.metadata.uid, bind=False)
    placement = placed_nodes(world, "one")
    bad = placement[0]
    world.set_node(node(bad, ready=False))
    world.quiesce()
    assert places(world, one)[0] not in (None, bad)


def test_a_gang_without_pods_left_on_a_node_that_has_turned_bad_is_placed_elsewhere() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    one, two = gang_of("g", 2, 2)
    world.create(one, two)
    world.ask(one.metadata.uid)
    where = places(world, one)[0] or ""
    world.set_node(node(where, ready=False))
    world.delete(one.metadata.uid)
    world.kubelet()
    world.create(world.recreated(one, 9))
    world.quiesce()
    assert places(world, two)[0] not in (None, where)


def test_a_pod_whose_node_kube_scheduler_does_not_take_is_placed_elsewhere() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    one = pod("one", 4)
    world.create(one)
    world.ask(one.metadata.uid, bind=False)
    placement = placed_nodes(world, "one")
    first = placement[0]
    assert world.ask(one.metadata.uid, [name for name in world.usable if name != first]) == "node"
    assert places(world, one)[0] not in (None, first)


def test_a_pod_that_wants_its_cells_alone_to_decide_is_bound_whatever_kube_scheduler_takes() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    one = pod("one", said="{virtualCluster: a, leafCellNumber: 4, ignoreK8sSuggestedNodes: true}")
    world.create(one)
    assert world.ask(one.metadata.uid, offered=[]) == "forced"
    world.carry_out_all()
    assert places(world, one)[0]


def test_a_pod_that_does_not_want_that_waits_for_a_node_that_is_taken() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    one = pod("one", said="{virtualCluster: a, leafCellNumber: 4, ignoreK8sSuggestedNodes: false}")
    world.create(one)
    assert world.ask(one.metadata.uid, offered=[]) == "wait"
    assert world.ask(one.metadata.uid) == "node"


# -- calls ------------------------------------------------------------------------------------------------------------


def test_a_binding_for_another_node_than_its_own_is_refused() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    world.create(pod("one", 4))
    world.ask("uid-t-one", bind=False)
    with pytest.raises(ConflictError, match="has its place on"):
        world.gang_scheduler.binding("uid-t-one", "elsewhere")
    with pytest.raises(NotFoundError, match="is gone, or was never here"):
        world.gang_scheduler.binding("nobody", "n0")


def test_a_pod_that_is_bound_already_is_not_bound_again() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    one = pod("one", 4)
    run(world, one)
    with pytest.raises(ConflictError, match="is on its node already"):
        world.gang_scheduler.binding(one.metadata.uid, places(world, one)[0] or "")


def test_a_late_update_of_a_pod_does_not_bring_it_back() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    one = pod("one", 4)
    world.create(one)
    world.remove(one.metadata.uid)
    world.deliver_all()
    world.gang_scheduler.pod_changed(one, None, world.now)
    assert not world.gang_scheduler.pods
    with pytest.raises(NotFoundError, match="is gone"):
        world.gang_scheduler.asked(one, None, world.usable, world.now)


def test_an_update_from_before_its_binding_does_not_unbind_a_pod() -> None:
    """The answer to bind comes first, then what was written before: here another priority."""
    world = World(flat_spec(("a", 2), ("b", 1)))
    one = pod("one", 4)
    world.create(one)
    world.ask(one.metadata.uid, bind=False)
    placement = placed_nodes(world, "one")
    world.write(labelled(world.pods[one.metadata.uid], priority="7"))
    world.bind(one.metadata.uid, placement[0])
    world.deliver(one.metadata.uid, newest=False)
    assert world.gang_scheduler.pods[one.metadata.uid].bound
    assert gang(world, "one").state is GangState.PLACED


def test_what_a_pod_asks_for_may_change_while_its_binding_fails() -> None:
    world = World(flat_spec(("a", 2), ("b", 1)))
    one = pod("one", 4)
    world.create(one)
    world.ask(one.metadata.uid, bind=False)
    placement = placed_nodes(world, "one")
    world.bind(one.metadata.uid, placement[0], "late")
    world.write(labelled(world.pods[one.metadata.uid], vc="b"))
    world.deliver_all()
    world.sent.clear()
    world.answered(one.metadata.uid, taken=False)
    assert gang(world, "one").vc == "b"


def test_a_failed_eviction_is_retried() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    loans = borrowed(world)
    world.create(pod("mine", 4))
    world.asked("uid-t-mine")
    world.wait(10.0)
    world.todo.clear()
    world.gang_scheduler.evict_failed(loans[0].metadata.uid, world.now)
    world.wait(0.5)
    assert not world.todo
    world.wait(1.0)
    assert [instruction.uid for instruction in world.todo] == [loans[0].metadata.uid]


def evictions(world: World, seconds: float) -> list[tuple[float, bool]]:
    """Evictions while time passes: seconds from now on, and whether the pod is deleted without an eviction."""
    start, found = world.now, []
    while world.now < start + seconds:
        world.gang_scheduler.due(world.now)
        world.step()
        before = len(world.evicted)
        world.carry_out_all()
        found += [(world.now - start, evict.delete) for evict in world.evicted[before:]]
        world.now += 0.25
    return found


def test_a_pod_whose_budget_forbids_its_eviction_is_asked_less_and_less_often_and_deleted_in_the_end() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    loan = pod("loan", 4, "b", priority="-1")
    run(world, loan, pod("own", 4, "b"))
    world.budgets.add(loan.metadata.uid)
    world.create(pod("mine", 4))
    world.asked("uid-t-mine")
    told = evictions(world, 60.0)
    assert told[0] == (0.0, False)
    assert told[-1] == (30.0, True)
    assert all(not delete for _, delete in told[:-1])
    pauses = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(told[:-1])]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 5
    assert world.pods[loan.metadata.uid].metadata.deletion_timestamp is not None


def test_the_explanation_says_that_an_eviction_is_refused() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    loan = pod("loan", 4, "b", priority="-1")
    run(world, loan, pod("own", 4, "b"))
    world.budgets.add(loan.metadata.uid)
    world.create(pod("mine", 4))
    world.asked("uid-t-mine")
    evictions(world, 5.0)
    assert "the eviction of t/loan was refused (a disruption budget" in in_lines(
        explain(world.gang_scheduler, gang(world, "loan"), None)
    )


# -- Events and explanations -------------------------------------------------------------------------------------------


def events(world: World, reason: str) -> Counter[str]:
    """How many Events for this reason each pod has."""
    return Counter(told.uid for told in world.events if told.reason == reason)


def waits(world: World) -> Counter[str]:
    """Events of each waiting pod, about its waiting."""
    return events(world, "HivedWaiting")


def test_a_changed_position_in_the_queue_is_no_event() -> None:
    """Twelve pods that ended made thousands: one for each pod behind, each time."""
    world = World(flat_spec(("a", 1)))
    first = [pod(f"first-{i}", 1, created=i) for i in range(4)]
    run(world, *first)
    crowd = [pod(f"late-{i:02}", 1, created=10 + i) for i in range(30)]
    world.create(*crowd)
    for one in crowd:
        world.ask(one.metadata.uid)
    for number in range(20):
        gone = next(uid for uid, there in world.pods.items() if there.spec.node_name)
        world.remove(gone)
        world.deliver_all()
        world.active |= {uid for uid, there in world.pods.items() if not there.spec.node_name}
        world.quiesce()
        assert len(world.pods) == 33 - number
    assert set(waits(world).values()) <= {1, 2}


def test_an_event_says_when_the_reason_has_become_another() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    run(world, pod("one", 4))
    two = pod("two", 4)
    world.create(two)
    world.ask(two.metadata.uid)
    assert waits(world)[two.metadata.uid] == 1
    run(world, pod("loan", 4, "b", priority="-1"))
    world.end("uid-t-one")
    world.deliver_all()
    world.set_node(node("n0", cordoned=True))
    world.set_node(node("n1", cordoned=True))
    world.active.add(two.metadata.uid)
    world.quiesce()
    assert waits(world)[two.metadata.uid] == 2
    assert "were not kept from jobs" in next(t.message for t in reversed(world.events) if t.uid == two.metadata.uid)


def question(world: World, uid: str) -> str:
    """kube-scheduler filters a pod and deletes no victims; returns the result label."""
    world.active.discard(uid)
    entry = world.gang_scheduler.asked(world.pods[uid], None, world.usable, world.now)
    word, _ = answering.answer(world.gang_scheduler, entry, world.usable, True)
    world.step()
    return word


def named_victims(world: World, name: str) -> list[str]:
    """The loans that the latest Event of a waiting pod names; its explanation names the same."""
    event = next(told.message for told in reversed(world.events) if told.key == f"t/{name}-0")
    texts = event, in_lines(explain(world.gang_scheduler, gang(world, name), None))
    of_event, of_explain = (sorted(set(re.findall(r"t/loan\d+", text))) for text in texts)
    assert of_event == of_explain
    return of_event


@pytest.mark.parametrize("why", ["kept from jobs", "foreign"])
def test_an_event_names_the_victims_of_now_once_a_reservation_has_moved(why: str) -> None:
    world = World(flat_spec(("a", 2), ("b", 4)))
    run(world, *[pod(f"loan{number}", 4, "b", priority="-1") for number in range(6)])
    mine = gang_of("mine", 2, 4)
    world.create(*mine)
    assert [question(world, one.metadata.uid) for one in mine] == ["preempting"] * 2
    first = named_victims(world, "mine")
    for number in range(4):
        placement = gang(world, "mine").placement
        assert placement is not None
        taken = placement.pods[number % 2].node
        if why == "foreign":
            world.write(foreign(f"serve{number}", 4, taken))
            world.deliver_all()
        else:
            world.set_node(node(taken, cordoned=True))
        assert gang(world, "mine").state is GangState.RESERVED
        now = named_victims(world, "mine")
        assert len(now) == 2
        assert now != first
        first = now
        assert {question(world, one.metadata.uid) for one in mine} == {"preempting"}
        assert set(waits(world).values()) == {number + 2}, "one for each move"


def test_an_event_names_no_victims_once_a_reservation_has_ended() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    run(world, *[pod(f"loan{number}", 4, "b", priority="-1") for number in range(2)])
    world.create(*gang_of("mine", 1, 4))
    assert question(world, "uid-t-mine-0") == "preempting"
    assert named_victims(world, "mine")
    for name in ("n0", "n1"):
        world.set_node(node(name, cordoned=True))
    assert gang(world, "mine").state is GangState.WAITING
    assert not named_victims(world, "mine")


def test_victims_that_end_one_by_one_are_no_new_events() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    run(world, *[pod(f"loan{number}", 4, "b", priority="-1") for number in range(4)])
    mine = gang_of("mine", 2, 4)
    world.create(*mine)
    assert [question(world, one.metadata.uid) for one in mine] == ["preempting"] * 2
    world.remove(next(uid for one in world.gang_scheduler.evicting.values() for uid in one.pods))
    world.deliver_all()
    world.carry_out_all()
    assert not world.active
    assert [question(world, one.metadata.uid) for one in mine] == ["preempting"] * 2
    assert set(waits(world).values()) == {1}


def test_no_message_is_cut_in_a_word() -> None:
    world = World(flat_spec(("a", 1)))
    run(world, pod("a-pod-whose-name-is-so-long-that-what-is-said-of-it-cannot-be-said-in-full", 4))
    late = pod("late", 4)
    world.create(late)
    entry = world.gang_scheduler.asked(late, None, world.usable, world.now)
    _, found = answering.answer(world.gang_scheduler, entry, world.usable, True)
    said = next(iter((found.FailedAndUnresolvableNodes or {}).values()))
    full = "hived: " + " ".join(shortly(world.gang_scheduler, gang(world, late.metadata.name))[0].split())
    assert len(full) > 140
    assert said.endswith(" ...")
    assert full.startswith(said.removesuffix("..."))


def test_a_change_of_a_nodes_health_is_an_event() -> None:
    world = World(flat_spec(("a", 2)))
    world.set_node(node("n0", cordoned=True))
    world.set_node(node("n1", bad="0,2"))
    world.set_node(node("n0"))
    said = [event_text(event) for event in world.gang_scheduler.recent if event.kind == "node"]
    assert said == [
        "n0 is kept from jobs: it is cordoned",
        "GPUs 0, 2 of n1 are kept from jobs: marked by its annotation hived.io/bad-devices",
        "n0 is healthy",
    ]


def test_ages_are_those_of_the_pods_and_not_of_the_service() -> None:
    world = World(flat_spec(("a", 1)))
    created = pod("x", created=3600).created_at
    world.now = created + 5
    run(world, pod("one", 4, created=3600))
    world.create(pod("two", 4, created=3600))
    world.now = created + 7200
    world.restart()
    assert gang(world, "one").since == created
    assert gang(world, "two").since == created
    assert "for 2 h now" in in_lines(explain(world.gang_scheduler, gang(world, "two"), world.now))


def test_a_waiting_gang_keeps_its_age_while_its_reservation_moves() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    run(world, *[pod(f"loan{number}", 4, "b", priority="-1") for number in range(4)])
    world.now = came = pod("x", created=3600).created_at
    mine = pod("mine", 4, created=3600)
    world.create(mine)
    world.now += 600
    assert question(world, mine.metadata.uid) == "preempting"
    for number in range(5):
        world.now += 600
        placement = gang(world, "mine").placement
        if placement is not None:
            world.set_node(node(placement.pods[0].node, cordoned=True))
        assert gang(world, "mine").state is (GangState.RESERVED if number < 3 else GangState.WAITING)
        assert gang(world, "mine").since == came


def test_a_gang_whose_placement_is_refused_keeps_its_age() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    world.now = came = pod("x", created=3600).created_at
    mine = pod("mine", 4, created=3600)
    world.create(mine)
    world.now += 60
    world.ask(mine.metadata.uid, bind=False)
    placement = placed_nodes(world, "mine")
    assert gang(world, "mine").since == world.now, "it has its GPUs since now"
    world.now += 60
    home = placement[0]
    world.set_node(node("n0" if home == "n1" else "n1", cordoned=True))
    world.set_node(node(home, cordoned=True))
    assert gang(world, "mine").state is GangState.WAITING
    assert gang(world, "mine").since == came


def test_a_spared_gang_keeps_its_age() -> None:
    world = World(flat_spec(("a", 2), ("b", 2)))
    borrowed(world)
    came = world.now
    world.now += 600
    world.create(pod("mine", 4))
    question(world, "uid-t-mine")
    assert gang(world, "loan").state is GangState.PREEMPTED
    assert gang(world, "loan").since == came
    world.remove("uid-t-mine")
    world.deliver_all()
    assert gang(world, "loan").state is GangState.PLACED
    assert gang(world, "loan").since == came


def test_a_gang_that_has_lost_its_gpus_waits_since_then() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    loans = gang_of("loan", 2, 4, "b", priority="-1")
    world.create(*loans)
    world.ask(loans[0].metadata.uid)
    world.flush()
    world.now += 600
    world.create(pod("mine", 4))
    question(world, "uid-t-mine")
    world.remove(loans[0].metadata.uid)
    world.deliver_all()
    assert gang(world, "loan").state is GangState.WAITING
    assert gang(world, "loan").since == world.now


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("hived.io/prority", "is hived.io/priority meant?"),
        ("hived.io/groupsize", "is hived.io/group-size meant?"),
        ("hived.io/xyz", "there are hived.io/vc, hived.io/priority,"),
    ],
)
def test_a_misspelt_label_is_not_ignored_in_silence(label: str, words: str) -> None:
    world = World(flat_spec(("a", 1)))
    one = pod("one", 1)
    one = replace(one, metadata=replace(one.metadata, labels={**(one.metadata.labels or {}), label: "7"}))
    world.create(one)
    assert world.ask(one.metadata.uid) == "refused"
    assert words in str(world.gang_scheduler.pods[one.metadata.uid].refused)


def test_a_misspelt_label_of_a_pod_that_runs_takes_nothing_from_it() -> None:
    world = World(flat_spec(("a", 1)))
    run(world, pod("one", 1))
    world.write(labelled(world.pods["uid-t-one"], prority="7"))
    world.restart()
    assert gang(world, "one").state is GangState.PLACED


def test_a_misspelt_virtual_cluster_is_named_where_none_is_found() -> None:
    world = World(flat_spec(("a", 1)))
    one = pod("one", 1, None, vcc="a")
    world.create(one)
    assert world.ask(one.metadata.uid) == "refused"
    assert "is hived.io/vc meant?" in str(world.gang_scheduler.pods[one.metadata.uid].refused)


# -- how long a loan may take to end -----------------------------------------------------------------------------------


def patient(there: Pod, seconds: int) -> Pod:
    """The pod with that grace period."""
    return replace(there, spec=replace(there.spec, termination_grace_period_seconds=seconds))


def with_grace(seconds: int) -> ClusterSpec:
    """Two nodes of ``a`` and ``b``, with this limit on the grace period of loans."""
    spec = flat_spec(("a", 1), ("b", 1))
    vcs = tuple(dataclasses.replace(vc, opportunistic_grace_seconds=seconds) for vc in spec.virtual_clusters)
    return dataclasses.replace(spec, virtual_clusters=vcs)


def test_a_loan_with_a_grace_period_of_a_day_is_refused_with_the_limit() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    loan = patient(pod("loan", 4, "b", priority="-1"), 86_400)
    world.create(loan)
    assert world.ask(loan.metadata.uid) == "refused"
    said = str(world.gang_scheduler.pods[loan.metadata.uid].refused)
    assert "terminationGracePeriodSeconds: 86,400" in said
    assert "at most 30 s to end (opportunisticGraceSeconds of its virtual cluster)" in said
    own = patient(pod("own", 4, "b"), 86_400)
    run(world, own)


def test_the_cap_is_that_of_the_spec_and_a_new_one_counts_at_once() -> None:
    world = World(with_grace(60))
    loan, other = (patient(pod(name, 4, "b", priority="-1"), 90) for name in ("loan", "other"))
    world.create(loan, other)
    assert world.ask(loan.metadata.uid) == "refused"
    world.respecify(with_grace(120))
    world.quiesce()
    assert None not in places(world, loan, other)
    late = patient(pod("late", 4, "b", priority="-1"), 90)
    world.create(late)
    assert world.ask(late.metadata.uid) == "wait"
    world.respecify(with_grace(60))
    assert world.gang_scheduler.pods[late.metadata.uid].refused is not None


@pytest.mark.parametrize("deleted", [False, True])
def test_a_loan_bound_with_a_longer_grace_period_has_the_cap_when_any_client_deletes_it(deleted: bool) -> None:
    world = World(with_grace(120))
    loan = patient(pod("loan", 4, "b", priority="-1"), 90)
    run(world, loan, pod("own", 4, "b"))
    world.respecify(with_grace(60))
    world.create(pod("mine", 4))
    world.asked("uid-t-mine")
    if deleted:  # kube-scheduler was faster
        there = terminating(world.pods[loan.metadata.uid])
        world.write(replace(there, metadata=replace(there.metadata, deletion_grace_period_seconds=90)))
        world.deliver_all()
    world.wait(0)
    assert [(one.uid, one.grace) for one in world.todo if isinstance(one, Evict)] == [(loan.metadata.uid, 60)]


def test_a_pod_within_the_cap_has_the_time_that_it_asks_for() -> None:
    world = World(with_grace(120))
    loan = patient(pod("loan", 4, "b", priority="-1"), 90)
    run(world, loan, pod("own", 4, "b"))
    world.create(pod("mine", 4))
    world.asked("uid-t-mine")
    world.wait(0)
    assert [one.grace for one in world.todo if isinstance(one, Evict)] == [None]


# -- a new spec -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SPECS.is_dir(), reason="the specs of deployed clusters are not here")
@pytest.mark.parametrize("after", ["33", "4", "7", "5", "6"])
def test_pods_run_on_under_a_new_spec_and_a_restart_finds_them_so(after: str) -> None:
    before, spec = (load_spec(SPECS / f"hived-config-{name}.yaml") for name in ("2", after))
    world = World(before)
    pods = [pod(f"g{i}", 4, vc.name, created=i) for i, vc in enumerate(before.virtual_clusters) for _ in range(1)]
    pods += [pod("loan", 4, "vc1", priority="-1", created=20)]
    run(world, *pods)
    for name in node_names(spec):
        world.set_node(node(name))
    world.respecify(spec)
    world.flush()
    world.restart()
    assert all(places(world, *pods))
    world.respecify(before)
    world.flush()
    world.restart()
    assert all(world.gang_scheduler.gangs[one.key].guaranteed for one in pods[:-1])


def test_devices_that_a_spec_removes_and_restores_still_belong_to_the_running_gang() -> None:
    """In between, a place of the gang is no more; its pod is."""
    wide, narrow = flat_spec(("a", 2), ("b", 1)), flat_spec(("a", 1), ("b", 1))
    world = World(wide)
    blocker = pod("blocker", 4, "b")
    pods = gang_of("g", 2, 4)
    run(world, blocker, *pods)
    gone = next(one for one in pods if places(world, one)[0] == "n2")
    world.respecify(narrow)
    world.flush()
    assert world.gang_scheduler.pods[gone.metadata.uid].slot is None
    world.respecify(wide)
    late = pod("g-late", 4, group="g", group_size="2", created=30)
    world.create(late)
    assert world.ask(late.metadata.uid) == "wait"
    assert world.gang_scheduler.pods[gone.metadata.uid].slot is not None


def test_a_pod_keeps_its_annotations_when_a_spec_drops_its_devices() -> None:
    """Its annotations are all that another service, or the spec that comes back, will know."""
    world = World(flat_spec(("a", 2), ("b", 1)))
    one = pod("one", 4)
    run(world, one)
    world.respecify(flat_spec(("a", 2), ("b", 1), gpus=2))
    world.flush()
    placement = gang(world, "one").placement
    assert placement is not None
    assert placement.pods[0].leaf_cells == (0, 1)
    assert len(devices_of(world.pods[one.metadata.uid])) == 4
    world.restart()
    world.respecify(flat_spec(("a", 2), ("b", 1)))
    assert len(world.gang_scheduler.usage.at) == 4


def test_a_gang_not_bound_yet_whose_devices_are_no_more_is_placed_anew() -> None:
    wide, narrow = flat_spec(("a", 2), ("b", 1)), flat_spec(("a", 2), ("b", 0))
    world = World(wide)
    run(world, pod("filler", 4, "a"))
    one = pod("one", 4, "a")
    world.create(one)
    world.ask(one.metadata.uid, bind=False)
    world.respecify(narrow)
    world.quiesce()
    assert places(world, one)[0] in ("n0", "n1")
    assert len(gang(world, "one").placement.pods) == 1  # type: ignore[union-attr]  # it is bound


def test_a_pod_bound_after_a_spec_took_devices_of_its_gang_is_adopted_with_the_others() -> None:
    """Its annotations have a smaller gang than theirs, and after a restart all of them count."""
    wide, narrow = flat_spec(("a", 3), ("b", 0)), flat_spec(("a", 2), ("b", 0))
    world = World(wide)
    pods = gang_of("g", 3, 4)
    world.create(*pods)
    world.ask(pods[0].metadata.uid)
    world.respecify(narrow)
    world.flush()
    for one in pods[1:]:
        world.ask(one.metadata.uid)
    world.flush()
    bound = [one for one in pods if places(world, one)[0]]
    assert len(bound) >= 2
    world.restart()
    assert not any(world.gang_scheduler.pods[one.metadata.uid].refused for one in bound)


# -- what kube-scheduler does -----------------------------------------------------------------------------------------


def test_a_question_about_the_nominated_node_alone_takes_no_place_away() -> None:
    # from 1.22 on kube-scheduler asks about the node that it has nominated, and then about all: GPUs that were won by
    # a preemption were given to the next in between
    world = World(flat_spec(("a", 2), ("b", 1)))
    pods = gang_of("g", 2, 4)
    world.create(*pods)
    assert world.ask(pods[0].metadata.uid, bind=False) == "node"
    placement = gang(world, "g").placement
    assert placement is not None
    second = world.gang_scheduler.pods[pods[1].metadata.uid]
    assert second.slot is not None
    elsewhere = next(name for name in node_names(world.spec) if name != placement.pods[second.slot].node)
    entry = world.gang_scheduler.asked(pods[1], None, [elsewhere], world.now, partial=True)
    word, answer = answering.answer(world.gang_scheduler, entry, [elsewhere], True, partial=True)
    assert (word, answer.NodeNames) == ("not offered", [])
    assert list(answer.FailedNodes or ()) == [elsewhere]
    assert gang(world, "g").placement == placement
    assert not gang(world, "g").entry.excluded
    world.quiesce()
    assert None not in places(world, *pods)


@pytest.mark.parametrize("why", ["a gate", "it is being deleted"])
def test_a_gang_is_placed_once_all_of_its_pods_can_be_bound(why: str) -> None:
    # one of two was bound, and held the GPUs of both while the other could not come
    world = World(flat_spec(("a", 2), ("b", 1)))
    one, two = gang_of("g", 2, 4)
    if why == "a gate":
        held = replace(two, spec=replace(two.spec, scheduling_gates=[{"name": "queue"}]))
    else:
        held = replace(two, metadata=replace(two.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    world.create(one, held)
    assert world.ask(one.metadata.uid) == "wait"
    assert gang(world, "g").state is GangState.WAITING
    assert "2 of its 2 pods exist, of which 1 cannot be bound" in shortly(world.gang_scheduler, gang(world, "g"))[0]
    world.write(two)
    world.deliver_all()
    assert gang(world, "g").state is GangState.PLACED
    world.quiesce()
    assert None not in places(world, one, two)


def test_a_queued_gang_leaves_the_queue_when_one_of_its_pods_is_held_back() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    run(world, *gang_of("first", 1, 4))
    pods = gang_of("g", 1, 4)
    world.create(*pods)
    assert world.ask(pods[0].metadata.uid) == "wait"
    assert gang(world, "g").in_line
    there = world.pods[pods[0].metadata.uid]
    world.write(replace(there, metadata=replace(there.metadata, deletion_timestamp="2026-01-01T00:00:00Z")))
    world.deliver_all()
    assert not gang(world, "g").in_line


def test_gpus_are_released_if_kube_scheduler_never_asks_about_the_pods() -> None:
    world = World(flat_spec(("a", 1), ("b", 1)))
    one, two = gang_of("one", 1, 4), gang_of("two", 1, 4)
    world.create(*one)
    assert world.ask(one[0].metadata.uid, bind=False) == "node"
    world.create(*two)
    assert world.ask(two[0].metadata.uid) == "wait"
    for _ in range(17):  # its scheduler has ended, or never ran
        world.wait(21.0)
        world.todo.clear()
    assert gang(world, "one").state is GangState.WAITING
    assert not gang(world, "one").in_line
    assert gang(world, "two").state is GangState.PLACED
    assert world.ask(two[0].metadata.uid) == "node"
    assert world.ask(one[0].metadata.uid) == "wait"
    assert gang(world, "one").in_line


def test_a_pod_of_a_gang_that_runs_is_replaced_though_others_have_succeeded_and_its_owner_makes_fewer_by_now() -> None:
    world = World(flat_spec(("a", 3), ("b", 1)))
    pods = [pod(f"train-{i}", 4, owner=JOB) for i in range(3)]
    world.create(*pods, members=(Member(3, 4),))
    world.quiesce()
    assert None not in places(world, *pods)
    succeeded = world.pods[pods[0].metadata.uid]
    world.write(replace(succeeded, status=replace(succeeded.status, phase="Succeeded")))
    world.deliver_all()
    world.delete(pods[1].metadata.uid)
    world.kubelet()
    again = pod("train-1-again", 4, owner=JOB)
    world.create(again, members=(Member(2, 4),))
    world.quiesce()
    assert places(world, again) != [None]
    assert world.gang_scheduler.pods[again.metadata.uid].refused is None


def test_a_victim_spared_before_its_eviction_is_evicted_for_the_next_preemptor() -> None:
    # the eviction was not carried out, since the preemptor had ended; the next preemptor waited for ever
    world = World(flat_spec(("a", 1), ("b", 1)))
    loan = gang_of("loan", 2, 4, vc="b", priority="opportunistic")
    run(world, *loan)
    first = gang_of("first", 1, 4)
    world.create(*first)
    world.ask(first[0].metadata.uid, bind=False)
    assert gang(world, "loan").state is GangState.PREEMPTED
    world.wait(3.0)
    assert [type(instruction) for instruction in world.todo].count(Evict) == 2
    world.todo.clear()
    world.remove(first[0].metadata.uid)
    world.deliver_all()
    assert gang(world, "loan").state is GangState.PLACED
    second = gang_of("second", 1, 4)
    world.create(*second)
    world.ask(second[0].metadata.uid, bind=False)
    world.wait(3.0)
    assert [type(instruction) for instruction in world.todo].count(Evict) == 2
