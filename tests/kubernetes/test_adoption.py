"""Bound pods are adopted as what they are: after a restart, and when another client has bound them.

Observed state overrides planned placements, and nobody is given what a pod may be using.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.requests import Member
from hived.engines.kubernetes.gangs.gang import Annotate, RecordEvent
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.bind_info import pod_annotations, shared, written
from hived.engines.kubernetes.pods.objects import Condition, Owner, Pod, PodStatus
from hived.errors import ConflictError

from .fake_kubernetes import Sent, World
from .pods import annotated, flat_spec, gang_of, labelled, on, pod

SPEC = flat_spec(a=2, b=2)
FOUR = (0, 1, 2, 3)
#: where a pod of a gang is: its node and devices
Place = tuple[str, Sequence[int]]


def there(one: Pod, *group: Place, slot: int = 0, level: int = 3) -> Pod:
    """A pod that is bound, with annotations that say where its group is. ``level`` 0: opportunistic."""
    where = tuple(PodPlacement(name, tuple(devices)) for name, devices in group)
    placement = Placement("NODE", where, (level,) * len(where) if level else ())
    text = shared(placement, (Member(len(where), len(where[0].leaf_cells)),), SPEC)
    return on(one, where[slot].node, pod_annotations(where[slot], text))


def started(*pods: Pod) -> World:
    """A service that starts, and finds these pods."""
    world = World(SPEC)
    for one in pods:
        world.write(one)
    world.restart(compare=False)
    return world


def refusal(world: World, one: Pod) -> str:
    """Why a bound pod is of no gang."""
    assert world.entry(one).bound
    return world.refusal(one)


# -- a restart --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "message", "state"),
    [
        ("Unschedulable", "0/4 nodes are available: 4 hived: VC a has 0 of the 4 GPUs it needs.", "running"),
        ("Unschedulable", 'Post "http://hived:9096/v1/extender/filter": connection refused', "running"),
        ("Unschedulable", "0/4 nodes are available: 4 Insufficient hived.io/gpu.", "queued"),
        ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", "queued"),
    ],
    ids=["answered", "failed", "other", "gated"],
)
def test_pod_never_asked_about_holds_nothing(reason: str, message: str, state: str) -> None:
    # GPUs were kept for pods of another scheduler, and for those that none may look at yet
    waits, one = Condition(type="PodScheduled", status="False", reason=reason, message=message), pod("w", 4)
    spec = replace(one.spec, scheduler_name="nobody")
    world = started(replace(one, spec=spec, status=PodStatus(conditions=[waits])))
    assert world.state("w") == state
    assert state == "running" or f"its scheduler, nobody, has not asked for it: {message}" in world.explained("w")


def test_half_bound_gang_keeps_its_places() -> None:
    one, two = gang_of("g", 2, 4)
    world = started(there(one, ("n1", FOUR), ("n3", FOUR)), two)
    assert (world.places("g"), world.guaranteed("g")) == (["n1", "n3"], [True])
    world.nobody_gets("n3", *FOUR)
    assert world.home(two) == "n3"


def test_pods_of_the_deployed_scheduler() -> None:
    said = "virtualCluster: a\npriority: 0\ngpuType: GPU\ngpuNumber: 2\naffinityGroup: null"
    info = (
        "node: n1\ngpuIsolation:\n- 2\n- 3\ncellChain: NODE\naffinityGroupBindInfo:\n- podPlacements:\n"
        "  - physicalNode: n1\n    physicalGpuIndices:\n    - 2\n    - 3\n    preassignedCellTypes: [NODE, NODE]\n"
    )
    world = started(on(pod("old", said=said), "n1", {keys.BIND_INFO: info, keys.FORMER_ISOLATION: "2,3"}))
    assert world.guaranteed("old") == [True]
    world.nobody_gets("n1", 2, 3)


def test_job_bound_one_by_one() -> None:
    """A former version took each pod of a Job of one at a time for a group of its own; the Job has grown since."""
    job = Owner(api_version="batch/v1", kind="Job", name="train", uid="job-1", controller=True)
    pods = [pod(f"train-{number}", 4, owner=job) for number in range(3)]
    world = World(SPEC)
    for one, where in zip(pods, ("n1", "n3"), strict=False):
        world.write(there(one, (where, FOUR)))
    world.write(pods[2])
    world.members[pods[2].metadata.uid] = (Member(3, 4),)
    world.restart(compare=False)
    assert not world.gang_scheduler.refused
    assert world.places("train") == ["n1", "n3"]
    world.quiesce()
    assert "1 of its 3 pods wait for a place (t/train-2)" in world.explained("train")


def test_gang_outside_the_spec_runs_on() -> None:
    """On a loan until its VC is back; on a node that is none of the spec's."""
    world = started(there(pod("one", 4, "gone"), ("n1", FOUR)), there(pod("other", 4), ("elsewhere", FOUR)))
    assert (world.state("other"), world.places("other")) == ("running", [])
    assert world.gang_scheduler.cluster.check_safety()
    assert (world.state("one"), world.guaranteed("one")) == ("running", [False])
    assert len(world.gang_scheduler.usage.at) == 4
    world.respecify(flat_spec(gone=2, b=2))
    assert (world.state("one"), world.guaranteed("one")) == ("running", [True])
    assert world.gang("one").history[-1].kind == "promoted"


# -- pods that contradict each other ----------------------------------------------------------------------------------


ONE = there(pod("one", 4), ("n1", FOUR))
PART = pod("one", 2, group="g", group_size="2")
TWO = (0, 1)


@pytest.mark.parametrize(
    ("wrong", "devices", "message"),
    [
        (annotated(ONE, BIND_INFO="nonsense"), FOUR, "cannot be understood"),
        (annotated(ONE, BIND_INFO="[" * 60_000), FOUR, "cannot be understood"),
        (annotated(ONE, BIND_INFO="nonsense", ISOLATION="x"), FOUR, "cannot be understood"),
        (annotated(ONE, BIND_INFO="nonsense", ISOLATION=None), FOUR, "cannot be understood"),
        (annotated(ONE, BIND_INFO=None), FOUR, "was bound to n1 by somebody else"),
        (on(pod("one", 2), "n1"), FOUR, "was bound to n1 by somebody else"),
        (labelled(ONE, vc=None), FOUR, "names no virtual cluster"),
        (on(ONE, "n2"), FOUR, "it is on n2, and its annotations say n1"),
        (there(PART, ("n1", FOUR)), FOUR, "a pod has 4 devices, more than the 2 asked for"),
        (there(PART, ("n1", TWO), ("n2", TWO), ("n3", TWO)), TWO, "it places 3 pods, and its group t/g has 2"),
        (there(PART, ("n1", TWO), ("n1", (1, 2))), TWO, "two pods of its group t/g have the same device"),
    ],
    ids=["nonsense", "deep", "devices", "no devices", "none", "nothing", "labels", "node", "wide", "many", "twice"],
)
def test_wrong_annotations(wrong: Pod, devices: tuple[int, ...], message: str) -> None:
    """Devices that such a pod may use are kept from jobs, all if that is not known; other pods are adopted."""
    world = started(wrong, there(pod("honest", 4, "b"), ("n0", FOUR)))
    assert message in refusal(world, wrong)
    assert world.guaranteed("honest") == [True]
    world.nobody_gets(wrong.spec.node_name or "", *devices)


@pytest.mark.parametrize(
    ("group", "slot", "message"),
    [
        ((("n0", FOUR), ("n1", FOUR)), 0, "was bound to the same GPUs"),
        ((("n2", FOUR), ("n3", FOUR)), 1, "do not agree about where the group is"),
    ],
    ids=["place", "group"],
)
def test_pods_of_a_gang_that_contradict(group: Sequence[Place], slot: int, message: str) -> None:
    one, two = gang_of("g", 2, 4)
    world = started(there(one, ("n0", FOUR), ("n1", FOUR)), there(two, *group, slot=slot))
    assert message in refusal(world, two)
    world.nobody_gets(world.home(two), *FOUR)


def test_earlier_of_two_pods_keeps_the_device() -> None:
    early, late = pod("early", 4, created=1), pod("late", 4, "b", created=2)
    world = started(there(late, ("n0", FOUR)), there(early, ("n0", FOUR)))
    assert world.state("early") == "running"
    assert "group t/early has its GPUs on n0; delete one of the two" in refusal(world, late)
    assert world.gang_scheduler.conflicts.keys() == {late.metadata.uid}
    assert [event.reason for event in world.events] == ["HivedConflict"]
    world.ended(late)
    assert not world.gang_scheduler.conflicts


def test_placement_of_most_pods_wins() -> None:
    one, two, three = gang_of("g", 3, 4)
    whole = (("n0", FOUR), ("n1", FOUR), ("n2", FOUR))
    world = started(there(one, *whole[:2]), there(two, *whole, slot=1), there(three, *whole, slot=2))
    assert not world.gang_scheduler.refused
    assert len(world.gang("g").slots) == 3


def test_place_of_an_unknown_pod_is_not_given() -> None:
    """It runs, and disagrees about what the group asks for."""
    one, two = gang_of("g", 2, 4)
    group = (("n0", FOUR), ("n1", FOUR))
    strange = labelled(there(two, *group, slot=1), priority="7")
    late = pod("g-late", 4, group="g", group_size="2", created=9)
    world = started(there(one, *group), strange, late)
    assert "ask for something else: priority" in refusal(world, strange)
    world.quiesce()
    assert world.home(late) not in ("n0", "n1")


def test_pod_without_gpus_that_claims_some() -> None:
    liar = there(pod("liar", 4), ("n1", FOUR))
    world = started(annotated(replace(liar, spec=replace(liar.spec, containers=None)), BIND_INFO="nonsense"))
    assert not world.gang_scheduler.nodes.bad_nodes
    assert not world.gang_scheduler.nodes.bad_devices


# -- while the service runs -------------------------------------------------------------------------------------------


def meant(*pods: Pod) -> World:
    """A gang that is placed, and of whose pods none is bound."""
    world = World(SPEC)
    world.create(*pods)
    world.ask(pods[0], bind=False)
    return world


def test_pod_bound_to_reserved_devices() -> None:
    """A reservation yields; what the victim's other pods have stays theirs."""
    world = World(SPEC)
    world.run(*gang_of("loan", 4, 4, "b", priority="-1"))
    world.wants(pod("mine", 4))
    (reserved,) = world.places("mine")
    victim = next(entry for entry in world.gang("loan").pods.values() if entry.pod.spec.node_name == reserved)
    del world.pods[victim.uid]  # its node died, and another client was faster
    world.gang_scheduler.pod_removed(victim.uid, world.now)
    stranger = pod("stranger", 4, "b")
    world.bound_behind(there(stranger, (reserved, FOUR), level=0))
    assert "group t/loan has its GPUs" in refusal(world, stranger)  # whose other pods are still there
    assert world.state("mine") == "reserved"


def test_pod_bound_to_planned_devices() -> None:
    world = World(SPEC)
    where = world.planned(pod("meant", 4))
    world.bound_behind(there(pod("stranger", 4, "b"), (where, FOUR)))
    assert (world.state("stranger"), world.places("stranger")) == ("running", [where])
    world.quiesce()
    assert world.home("meant") != where


def test_stranger_in_a_slot_of_a_gang() -> None:
    """One pod of a gang is bound; that of the other slot gets another place."""
    one, two = gang_of("g", 2, 4)
    world = meant(one, two)
    world.ask(one)
    where = world.slot_node(two)
    stranger = there(pod("stranger", 4, "b"), (where, FOUR))
    world.bound_behind(stranger)
    assert "delete one of the two" in refusal(world, stranger)
    assert world.gang_scheduler.conflicts.keys() == {stranger.metadata.uid}
    with pytest.raises(ConflictError):
        world.gang_scheduler.binding(two.metadata.uid, where)
    world.quiesce()
    assert world.home(two) not in (where, world.home(one))


def test_pod_bound_to_another_slot() -> None:
    one, two = gang_of("g", 2, 4)
    world = meant(one, two)
    group = [(place.node, place.leaf_cells) for place in world.placement("g").pods]
    assert world.entry(two).slot == 1
    world.bound_behind(there(two, *group, slot=0))
    assert world.entry(two).slot == 0
    world.quiesce()
    assert world.home(one) == group[1][0]


def test_gang_bound_elsewhere_stays_there() -> None:
    """Two were in charge for a moment, and the other was quicker: none of ours is bound yet."""
    one, two = gang_of("g", 2, 4)
    world = meant(one, two)
    free = sorted({"n0", "n1", "n2", "n3"}.difference(world.places("g")))
    world.bound_behind(there(one, *[(name, FOUR) for name in free]))
    assert world.places("g") == free
    world.quiesce()
    assert world.home(two) == free[1]


def test_pod_kept_outside_takes_no_name() -> None:
    """While the gang that has it is adopted."""
    world = World(SPEC)
    one, two = gang_of("g", 2, 4)
    outside = pod("outside", 2, group="g", group_size="1", created=5)
    world.create(one, outside)
    assert world.ask(outside) == "refused"
    world.bound_behind(there(two, ("n0", FOUR), ("n1", FOUR)))
    assert world.gang("g").ask.size == 2
    world.quiesce()
    assert world.home(one) == "n1"
    assert world.entry(outside).refused is not None


def test_refused_pod_that_is_bound() -> None:
    world = World(SPEC)
    one = pod("one", 4, group="g")
    assert world.submit(one) == ["refused"]
    world.bound_behind(there(labelled(one, group=None), ("n0", FOUR)))
    assert not world.gang_scheduler.refused
    assert world.state("one") == "running"


def test_pod_kept_outside_that_is_bound() -> None:
    """It does not wait when the gang ends."""
    world = World(SPEC)
    inside, outside = pod("in", 4, group="g", group_size="1"), pod("out", 4, "b", group="g", group_size="1")
    world.run(inside)
    world.submit(outside)
    world.bound_behind(there(outside, ("n3", FOUR)))
    world.ended(inside)
    assert world.entry(outside).bound
    assert not world.gang_scheduler.gangs or world.gang("g").holds
    world.nobody_gets("n3", *FOUR)


def test_late_binding_of_a_former_leader() -> None:
    world = World(SPEC)
    home = world.planned(pod("mine", 4, created=1))
    late = Sent(world.gang_scheduler.binding("uid-t-mine", home), world.gang_scheduler, stale=True)
    world.restart(compare=False)
    world.run(pod("other", 4, "b", created=2))
    assert world.home("other") == home, "this test shows nothing"
    world.sent.append(late)
    world.arrive(late)
    world.flush()
    assert world.gang_scheduler.conflicts.keys() == {"uid-t-mine"}


def test_overwritten_annotations_are_restored() -> None:
    world = World(SPEC)
    world.run(pod("one", 4))
    world.quiesce()
    right = world.there("one")
    world.gang_scheduler.pod_changed(annotated(right, ISOLATION="4,5", BIND_INFO=None), None, world.now)
    recorded = world.gang_scheduler.turn()
    assert [dict(one.annotations) for one in recorded if isinstance(one, Annotate)] == [written(right)]
    assert [one.reason for one in recorded if isinstance(one, RecordEvent)] == ["HivedRestored"]
    world.gang_scheduler.pod_changed(right, None, world.now)
    assert world.gang_scheduler.turn() == []


def test_unbound_gang_leaves_a_full_node() -> None:
    # it stayed there for ever: it had given up its places, and so was not among those that leave bad hardware
    world = World(SPEC)
    where = world.planned(pod("one", 4))
    world.bound_behind(on(pod("strange", 1), where))
    world.quiesce()
    assert world.home("one") != where
