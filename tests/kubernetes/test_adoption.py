"""Bound pods are taken in as what they are: after a restart, and when somebody else has bound them.

What is true in Kubernetes wins over what was meant, and nobody is given what a pod may be using.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.explain.sentences import in_lines
from hived.cluster.requests import Member
from hived.engines.kubernetes.gangs.explaining import explain_pod
from hived.engines.kubernetes.gangs.gang import Annotate, GangState, RecordEvent
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.bind_info import pod_annotations, shared, written
from hived.engines.kubernetes.pods.objects import Condition, Owner, Pod, PodStatus
from hived.errors import ConflictError

from .fake_kubernetes import Sent, World
from .pods import annotated, devices_of, flat_spec, labelled, on, pod
from .test_gang_scheduler import gang, gang_of, placed_nodes, places, run

SPEC = flat_spec(("a", 2), ("b", 2))
FOUR = (0, 1, 2, 3)


def there(one: Pod, *group: tuple[str, Sequence[int]], slot: int = 0, level: int = 3) -> Pod:
    """A pod that is bound, with annotations that say where its group is. ``level`` 0: opportunistic."""
    where = tuple(PodPlacement(name, tuple(devices)) for name, devices in group)
    placement = Placement("NODE", where, (level,) * len(where) if level else ())
    text = shared(placement, (Member(len(where), len(where[0].leaf_cells)),), SPEC)
    return on(one, where[slot].node, pod_annotations(where[slot], text))


def started(*pods: Pod, world: World | None = None) -> World:
    """A service that starts, and finds these."""
    world = world or World(SPEC)
    for one in pods:
        world.write(one)
    world.restart(compare=False)
    return world


def refusal(world: World, one: Pod) -> str:
    """Why a pod is no gang's."""
    entry = world.gang_scheduler.pods[one.metadata.uid]
    assert entry.gang is None
    assert entry.bound
    return str(entry.refused)


def nobody_gets(world: World, name: str, *devices: int) -> None:
    """Pods that want everything do not get these."""
    crowd = [pod(f"greedy-{i}", 1, priority="-1", created=900) for i in range(16)]
    world.create(*crowd)
    world.quiesce()
    taken = {device for one in crowd for device in devices_of(world.pods[one.metadata.uid])}
    assert taken, "this test shows nothing"
    assert not taken & {(name, device) for device in devices}


# -- a restart --------------------------------------------------------------------------------------------------------


def test_a_gang_is_where_its_annotations_say() -> None:
    one, two = gang_of("g", 2, 4)
    group = (("n1", FOUR), ("n3", FOUR))
    world = started(there(one, *group), there(two, *group, slot=1))
    placement = gang(world, "g").placement
    assert placement is not None
    assert [place.node for place in placement.pods] == ["n1", "n3"]
    assert gang(world, "g").guaranteed


@pytest.mark.parametrize(
    ("reason", "message", "state"),
    [
        ("Unschedulable", "0/4 nodes are available: 4 hived: VC a has 0 of the 4 GPUs it needs.", "placed"),
        ("Unschedulable", 'Post "http://hived:9096/v1/extender/filter": connection refused', "placed"),
        ("Unschedulable", "0/4 nodes are available: 4 Insufficient hived.io/gpu.", "waiting"),
        ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", "waiting"),
    ],
)
def test_a_pod_never_asked_about_holds_nothing_after_a_restart(reason: str, message: str, state: str) -> None:
    # GPUs were kept for pods of another scheduler, and for those that none may look at yet
    waits = Condition(type="PodScheduled", status="False", reason=reason, message=message)
    one = replace(pod("w", 4), status=PodStatus(conditions=[waits]))
    world = started(one)
    found = world.gang_scheduler.pods[one.metadata.uid].gang
    assert found is not None
    assert found.state.value == state


def test_a_gang_of_which_some_are_bound_keeps_the_places_of_the_others() -> None:
    one, two = gang_of("g", 2, 4)
    world = started(there(one, ("n1", FOUR), ("n3", FOUR)), two)
    nobody_gets(world, "n3", *FOUR)
    assert places(world, two) == ["n3"]


def test_pods_bound_by_the_deployed_scheduler_are_adopted() -> None:
    said = "virtualCluster: a\npriority: 0\ngpuType: GPU\ngpuNumber: 2\naffinityGroup: null"
    info = (
        "node: n1\ngpuIsolation:\n- 2\n- 3\ncellChain: NODE\naffinityGroupBindInfo:\n- podPlacements:\n"
        "  - physicalNode: n1\n    physicalGpuIndices:\n    - 2\n    - 3\n    preassignedCellTypes: [NODE, NODE]\n"
    )
    old = on(pod("old", said=said), "n1", {keys.BIND_INFO: info, keys.FORMER_ISOLATION: "2,3"})
    world = started(old)
    assert gang(world, "old").guaranteed
    nobody_gets(world, "n1", 2, 3)


def test_the_earlier_of_two_pods_on_one_device_keeps_it_and_the_other_gets_an_event() -> None:
    early, late = pod("early", 4, created=1), pod("late", 4, "b", created=2)
    world = started(there(late, ("n0", FOUR)), there(early, ("n0", FOUR)))
    assert gang(world, "early").state is GangState.PLACED
    assert "group t/early has its GPUs on n0; delete one of the two" in refusal(world, late)
    assert world.gang_scheduler.conflicts.keys() == {late.metadata.uid}
    assert [recorded.reason for recorded in world.events] == ["HivedConflict"]
    world.end(late.metadata.uid)
    world.deliver_all()
    assert not world.gang_scheduler.conflicts


def test_two_pods_of_a_gang_on_one_place_are_in_conflict() -> None:
    one, two = gang_of("g", 2, 4)
    group = (("n1", FOUR), ("n3", FOUR))
    world = started(there(one, *group), there(two, *group))
    assert "was bound to the same GPUs" in refusal(world, two)


def test_devices_of_a_pod_that_disagrees_with_its_gang_are_kept_from_jobs() -> None:
    one, two = gang_of("g", 2, 4)
    world = started(there(one, ("n0", FOUR), ("n1", FOUR)), there(two, ("n2", FOUR), ("n3", FOUR), slot=1))
    assert "do not agree about where the group is" in refusal(world, two)
    nobody_gets(world, "n3", *FOUR)


def test_the_placement_that_most_pods_agree_on_wins() -> None:
    one, two, three = gang_of("g", 3, 4)
    whole = (("n0", FOUR), ("n1", FOUR), ("n2", FOUR))
    less = (("n0", FOUR), ("n1", FOUR))
    world = started(there(one, *less), there(two, *whole, slot=1), there(three, *whole, slot=2))
    assert not world.gang_scheduler.refused
    assert len(gang(world, "g").slots) == 3


def test_a_place_that_an_unknown_pod_may_be_using_is_not_given_to_a_pod_of_the_gang() -> None:
    """It disagrees about what the group asks for, and it runs."""
    one, two = gang_of("g", 2, 4)
    group = (("n0", FOUR), ("n1", FOUR))
    strange = labelled(there(two, *group, slot=1), priority="7")
    late = pod("g-late", 4, group="g", group_size="2", created=9)
    world = started(there(one, *group), strange, late)
    assert "ask for something else: priority" in refusal(world, strange)
    world.quiesce()
    assert places(world, late) == [None]
    world.end(strange.metadata.uid)
    world.quiesce()
    assert places(world, late) == ["n1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"BIND_INFO": "nonsense"}, "cannot be understood"),
        ({"BIND_INFO": "[" * 60_000}, "cannot be understood"),
        ({"BIND_INFO": "nonsense", "ISOLATION": "x"}, "cannot be understood"),
        ({"BIND_INFO": "nonsense", "ISOLATION": None}, "cannot be understood"),
        ({"BIND_INFO": None}, "was bound to n1 by somebody else"),
    ],
)
def test_devices_of_a_pod_with_unreadable_annotations_are_kept_from_jobs(
    change: dict[str, str | None], message: str
) -> None:
    one = annotated(there(pod("one", 4), ("n1", FOUR)), **change)
    world = started(one)
    assert message in refusal(world, one)
    nobody_gets(world, "n1", *FOUR)


def test_an_annotation_of_another_node_is_refused() -> None:
    one = there(pod("one", 4), ("n1", FOUR))
    moved = replace(one, spec=replace(one.spec, node_name="n2"))
    world = started(moved)
    assert "it is on n2, and its annotations say n1" in refusal(world, moved)
    nobody_gets(world, "n2", *FOUR)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ([("n1", FOUR)], "a pod has 4 devices, more than the 2 asked for"),
        ([("n1", (0, 1)), ("n2", (0, 1)), ("n3", (0, 1))], "it places 3 pods, and its group t/g has 2"),
        ([("n1", (0, 1)), ("n1", (1, 2))], "two pods of its group t/g have the same device"),
    ],
)
def test_an_impossible_placement_is_refused(group: list[tuple[str, Sequence[int]]], message: str) -> None:
    one = there(pod("one", 2, group="g", group_size="2"), *group)
    honest = there(pod("honest", 4, "b"), ("n0", FOUR))
    world = started(one, honest)
    assert message in refusal(world, one)
    assert gang(world, "honest").guaranteed
    nobody_gets(world, "n1", *group[0][1])


def test_a_pod_whose_labels_were_taken_away_keeps_its_devices_over_a_restart() -> None:
    world = World(SPEC)
    one = pod("one", 4)
    run(world, one)
    where = places(world, one)[0] or ""
    world.write(labelled(world.pods[one.metadata.uid], vc=None))
    world.restart(compare=False)
    assert "names no virtual cluster" in refusal(world, one)
    nobody_gets(world, where, *FOUR)


def test_pods_on_their_own_of_one_job_are_not_taken_for_a_gang_after_a_restart() -> None:
    job = Owner(api_version="batch/v1", kind="Job", name="sweep", uid="job-9", controller=True)
    world = World(SPEC)
    pods = [pod(f"sweep-{i}", 2, owner=job, gang="false") for i in range(2)]
    unsized = [pod(f"other-{i}", 2, owner=replace(job, name="other")) for i in range(2)]
    run(world, *pods, *unsized)
    world.restart()
    assert len(world.gang_scheduler.gangs) == 4


def test_a_gang_of_a_vc_that_is_no_more_runs_on() -> None:
    world = started(there(pod("one", 4, "gone"), ("n1", FOUR)))
    assert gang(world, "one").state is GangState.PLACED
    assert not gang(world, "one").guaranteed
    assert len(world.gang_scheduler.usage.at) == 4


def test_a_pod_on_a_node_that_the_spec_lacks_affects_no_gang() -> None:
    world = started(there(pod("one", 4), ("elsewhere", FOUR)))
    assert gang(world, "one").placement is not None
    assert world.gang_scheduler.cluster.check_safety()


def test_waiting_pods_of_an_adopted_gang_join_it_again() -> None:
    one, two = gang_of("g", 2, 2)
    world = started(there(one, ("n0", (0, 1)), ("n0", (2, 3))), two)
    world.quiesce()
    assert devices_of(world.pods[two.metadata.uid]) == {("n0", 2), ("n0", 3)}


# -- while the service runs -------------------------------------------------------------------------------------------


def behind(world: World, bound: Pod) -> None:
    """Another client has bound this pod."""
    world.untrusted.add(bound.metadata.uid)
    world.write(bound)
    world.deliver_all()


def test_a_pod_bound_to_free_devices_by_another_client_keeps_them() -> None:
    world = World(SPEC)
    one = pod("one", 4)
    world.create(one)
    behind(world, there(one, ("n2", FOUR)))
    assert gang(world, "one").state is GangState.PLACED
    nobody_gets(world, "n2", *FOUR)


def test_a_reservation_yields_to_a_pod_bound_by_another_client() -> None:
    world = World(SPEC)
    run(world, *gang_of("loan", 4, 4, "b", priority="-1"))
    world.create(pod("mine", 4))
    world.asked("uid-t-mine")
    reserved = placed_nodes(world, "mine")
    victim = next(e for e in gang(world, "loan").pods.values() if e.pod.spec.node_name == reserved[0])
    assert victim.uid in world.pods
    world.pods.pop(victim.uid)  # its node died, and another client was faster
    world.gang_scheduler.pod_removed(victim.uid, world.now)
    stranger = pod("stranger", 4, "b")
    behind(world, there(stranger, (reserved[0], FOUR), level=0))
    assert "group t/loan has its GPUs" in refusal(world, stranger)  # whose other pods are still there
    assert gang(world, "mine").state is GangState.RESERVED


def test_a_gang_without_bound_pods_yields_to_a_pod_bound_by_another_client() -> None:
    world = World(SPEC)
    meant = pod("meant", 4)
    world.create(meant)
    world.ask(meant.metadata.uid, bind=False)
    placement = placed_nodes(world, "meant")
    where = placement[0]
    behind(world, there(pod("stranger", 4, "b"), (where, FOUR)))
    assert gang(world, "stranger").state is GangState.PLACED
    world.quiesce()
    assert places(world, meant)[0] not in (None, where)


def test_a_pod_bound_to_devices_in_use_is_in_conflict() -> None:
    world = World(SPEC)
    mine = pod("mine", 4)
    run(world, mine)
    stranger = there(pod("stranger", 4, "b"), (places(world, mine)[0] or "", FOUR))
    behind(world, stranger)
    assert "delete one of the two" in refusal(world, stranger)
    assert world.gang_scheduler.conflicts.keys() == {stranger.metadata.uid}


def test_a_slot_taken_by_a_pod_of_no_gang_is_not_bound_to_until_that_pod_ends() -> None:
    """One pod of a gang is bound, and another client has bound a stranger to the slot of the other."""
    world = World(SPEC)
    one, two = gang_of("g", 2, 4)
    world.create(one, two)
    world.ask(one.metadata.uid)
    placement = placed_nodes(world, "g")
    slot = world.gang_scheduler.pods[two.metadata.uid].slot
    assert slot is not None
    where = placement[slot]
    stranger = there(pod("stranger", 4, "b"), (where, FOUR))
    behind(world, stranger)
    assert "delete one of the two" in refusal(world, stranger)
    assert world.ask(two.metadata.uid) == "wait"
    assert "a pod of no group may be using them" in in_lines(
        explain_pod(world.gang_scheduler, world.gang_scheduler.pods[two.metadata.uid], None)
    )
    with pytest.raises(ConflictError):
        world.gang_scheduler.binding(two.metadata.uid, where)
    world.end(stranger.metadata.uid)
    world.quiesce()
    assert places(world, two) == [where]


def test_a_pod_of_a_gang_that_was_put_in_another_place_of_it_changes_places() -> None:
    world = World(SPEC)
    one, two = gang_of("g", 2, 4)
    world.create(one, two)
    world.ask(one.metadata.uid, bind=False)
    placement = gang(world, "g").placement
    assert placement is not None
    group = [(place.node, place.leaf_cells) for place in placement.pods]
    slot = world.gang_scheduler.pods[two.metadata.uid].slot
    assert slot == 1
    behind(world, there(two, *group, slot=0))
    assert world.gang_scheduler.pods[two.metadata.uid].slot == 0
    world.quiesce()
    assert places(world, one) == [group[1][0]]


def test_a_gang_that_another_client_has_bound_elsewhere_stays_there() -> None:
    """Two were in charge for a moment, and the other was quicker: none of ours is bound yet."""
    world = World(SPEC)
    one, two = gang_of("g", 2, 4)
    world.create(one, two)
    world.ask(one.metadata.uid, bind=False)
    meant = gang(world, "g").placement
    assert meant is not None
    used = {place.node for place in meant.pods}
    free = sorted({"n0", "n1", "n2", "n3"} - used)
    group = [(name, FOUR) for name in free]
    behind(world, there(one, *group))
    placement = gang(world, "g").placement
    assert placement is not None
    assert [place.node for place in placement.pods] == free
    world.quiesce()
    assert places(world, two) == [free[1]]


def test_a_pod_kept_outside_of_a_gang_does_not_take_its_name_while_the_gang_is_adopted() -> None:
    world = World(SPEC)
    one = pod("one", 4, group="g", group_size="2")
    outside = pod("outside", 2, group="g", group_size="1", created=5)
    world.create(one, outside)
    assert world.ask(outside.metadata.uid) == "refused"
    two = pod("two", 4, group="g", group_size="2", created=6)
    group = (("n0", FOUR), ("n1", FOUR))
    behind(world, there(two, *group))
    assert gang(world, "g").ask.size == 2
    world.quiesce()
    assert places(world, one) == ["n1"]
    assert world.gang_scheduler.pods[outside.metadata.uid].refused is not None


def test_a_refused_pod_that_another_client_has_bound_is_not_refused_any_more() -> None:
    world = World(SPEC)
    one = pod("one", 4, group="g")
    world.create(one)
    assert world.ask(one.metadata.uid) == "refused"
    behind(world, there(labelled(one, group=None), ("n0", FOUR)))
    assert not world.gang_scheduler.refused
    assert gang(world, "one").state is GangState.PLACED


def test_a_pod_kept_outside_that_another_client_has_bound_does_not_wait_when_the_gang_ends() -> None:
    world = World(SPEC)
    inside, outside = pod("in", 4, group="g", group_size="1"), pod("out", 4, "b", group="g", group_size="1")
    run(world, inside)
    world.create(outside)
    world.ask(outside.metadata.uid)
    behind(world, there(outside, ("n3", FOUR)))
    world.end(inside.metadata.uid)
    world.deliver_all()
    assert world.gang_scheduler.pods[outside.metadata.uid].bound
    assert not world.gang_scheduler.gangs or gang(world, "g").holds
    nobody_gets(world, "n3", *FOUR)


def test_a_late_binding_of_a_former_leader_is_in_conflict() -> None:
    world = World(SPEC)
    mine, other = pod("mine", 4, created=1), pod("other", 4, "b", created=2)
    world.create(mine)
    world.ask(mine.metadata.uid, bind=False)
    placement = placed_nodes(world, "mine")
    late = Sent(world.gang_scheduler.binding(mine.metadata.uid, placement[0]), world.gang_scheduler, stale=True)
    world.restart(compare=False)
    run(world, other)
    assert places(world, other) == [placement[0]], "this test shows nothing"
    world.sent.append(late)
    world.arrive(late)
    world.flush()
    assert world.gang_scheduler.conflicts.keys() == {mine.metadata.uid}


def test_annotations_of_a_bound_pod_that_a_tenant_overwrites_are_restored() -> None:
    world = World(SPEC)
    one = pod("one", 4)
    run(world, one)
    uid = one.metadata.uid
    world.quiesce()
    right = world.pods[uid]
    world.gang_scheduler.pod_changed(annotated(right, ISOLATION="4,5", BIND_INFO=None), None, world.now)
    recorded = world.gang_scheduler.turn()
    assert [dict(one.annotations) for one in recorded if isinstance(one, Annotate)] == [written(right)]
    assert [one.reason for one in recorded if isinstance(one, RecordEvent)] == ["HivedRestored"]
    world.gang_scheduler.pod_changed(right, None, world.now)
    assert world.gang_scheduler.turn() == []


def test_a_bound_pod_that_lost_its_annotations_keeps_its_whole_node_after_a_restart() -> None:
    world = World(SPEC)
    one = pod("one", 2)
    run(world, one)
    where = places(world, one)[0] or ""
    world.write(annotated(world.pods[one.metadata.uid], ISOLATION=None, BIND_INFO=None))
    world.restart(compare=False)
    nobody_gets(world, where, *FOUR)


def test_a_gang_without_bound_pods_leaves_a_node_with_a_pod_of_unknown_devices() -> None:
    """It stayed there for ever: it had given up its places, and so was not among those that leave bad hardware."""
    world = World(SPEC)
    one = pod("one", 4)
    world.create(one)
    world.ask(one.metadata.uid, bind=False)
    before = placed_nodes(world, "one")
    where = before[0]
    behind(world, on(pod("strange", 1), where))
    world.quiesce()
    assert places(world, one) not in ([None], [where])


def test_a_pod_without_gpus_that_claims_some_keeps_none() -> None:
    liar = there(pod("liar", 4), ("n1", FOUR))
    liar = annotated(replace(liar, spec=replace(liar.spec, containers=None)), BIND_INFO="nonsense")
    world = started(liar)
    assert not world.gang_scheduler.nodes.bad_nodes
    assert not world.gang_scheduler.nodes.bad_devices
