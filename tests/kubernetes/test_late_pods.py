"""Pods of a running gang whose place is lost, or that came later: they wait for a place, and join the gang there."""

from __future__ import annotations

import pytest

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.requests import Member
from hived.engines.kubernetes.gangs.gang import Binding
from hived.engines.kubernetes.pods.bind_info import pod_annotations, shared
from hived.engines.kubernetes.pods.objects import Owner, Pod
from hived.spec import spec_from_dict

from .fake_kubernetes import Sent, World
from .pods import gang_of, loans, node, pod, terminating


def running(world: World, said: str = "") -> tuple[Pod, Pod]:
    """A gang of two nodes, of labels or of upstream's annotation."""
    if said:
        one, two = (pod(f"g-{i}", said=said) for i in range(2))
    else:
        one, two = gang_of("g", 2, 4)
    world.run(one, two)
    return one, two


GROUP = "{name: g, members: [{podNumber: 2, leafCellNumber: 4}]}"
UPSTREAM = f"{{virtualCluster: a, leafCellNumber: 4, affinityGroup: {GROUP}}}"
KINDS = {"labels": "", "upstream": UPSTREAM}


def lose(world: World, name: str, how: str) -> None:
    """Make a node unusable."""
    if how == "gone":
        world.remove_node(name)
    else:
        world.set_node(
            node(name, ready=how != "not ready", cordoned=how == "cordoned", bad="1" if how == "bad" else None)
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["gone", "not ready", "cordoned", "bad"])
def test_member_leaves_lost_node(kind: str, how: str) -> None:
    """Its replacement was pinned to the node of its predecessor for ever, beside an idle node of its VC."""
    world = World(a=3)
    one, two = running(world, KINDS[kind])
    home, lost = world.home(one), world.home(two)
    lose(world, lost, how)
    world.ended(two)
    new = world.recreated(two, 9)
    world.create(new)
    world.quiesce()
    assert world.home(one) == home
    assert world.home(new) not in (home, lost)
    assert world.guaranteed("g") == [True]
    assert set(world.places("g")) == {home, world.home(new)}
    world.restart()


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_place(kind: str) -> None:
    """Nothing is bound to a lost node; it is said why, and the pod starts once the node is back."""
    world = World(a=2)
    _, two = running(world, KINDS[kind])
    lost = world.home(two)
    world.set_node(node(lost, ready=False, cordoned=True))
    world.ended(two)
    new = world.recreated(two, 9)
    world.create(new)
    world.quiesce()
    assert world.there(new).spec.node_name is None
    for said in (world.explained("g"), world.pod_explained(new), world.events_of(new)[-1].message):
        assert lost in said
        assert "not ready" in said
    world.set_node(node(lost))
    world.quiesce()
    assert world.home(new) == lost


def test_unreserved_node_replaces_lost_one() -> None:
    """A VC has a right to its number of cells: any healthy node will do."""
    world = World(a=2, b=1)
    one, two = running(world)
    world.set_node(node(world.home(two), ready=False))
    world.ended(two)
    new = world.recreated(two, 9)
    world.create(new)
    world.quiesce()
    assert world.home(new) not in (None, world.home(one))


def test_loans_make_way() -> None:
    world = World(a=3, b=1)
    one, two = running(world)
    others = loans(2)
    world.run(*others)
    world.set_node(node(world.home(two), ready=False))
    world.ended(two)
    new = world.recreated(two, 9)
    world.create(new)
    world.quiesce()
    assert world.home(new) not in (None, world.home(one))
    assert len([1 for other in others if other.metadata.uid in world.pods]) == 1


def refused_home(world: World) -> tuple[Pod, str]:
    """A member of a running gang of two comes again, and kube-scheduler offers a spare node in place of its own."""
    one, two = running(world)
    taken = world.home(one), world.home(two)
    world.ended(two)
    new = world.recreated(two, 9)
    world.create(new)
    spare = next(name for name in world.nodes if name not in taken)
    assert world.ask(new, [taken[0], spare]) == "node"
    return new, spare


def test_refused_node() -> None:
    """kube-scheduler does not take the node of a member any more (a taint): another one is used, if there is any."""
    world = World(a=3)
    new, spare = refused_home(world)
    world.quiesce()
    assert world.home(new) == spare


def test_refused_node_of_a_full_vc() -> None:
    """Its VC has no other cell, and may have this one on another node."""
    world = World(a=2, b=1)
    new, spare = refused_home(world)
    assert world.home(new) == spare
    assert world.guaranteed("g") == [True]


def test_refused_node_without_another() -> None:
    world = World(a=2)
    one, two = running(world)
    lost = world.home(two)
    world.ended(two)
    new = world.recreated(two, 9)
    world.create(new)
    assert world.ask(new, [world.home(one)]) == "not offered"
    assert lost in world.pod_explained(new), "its place is kept: the node may be taken a moment later"
    world.wait(30)
    world.quiesce()
    assert world.home(new) == lost


def test_pod_that_nobody_ends() -> None:
    """A pod that is being deleted on a lost node stays there; its replacement does not wait for it."""
    world = World(a=3)
    one, two = running(world)
    lost = world.home(two)
    world.set_node(node(lost, ready=False))
    world.update(terminating(world.there(two)))
    new = world.recreated(two, 9)
    world.create(new)
    while world.todo or world.active:
        world.carry_out_all()
        for uid in list(world.active):
            world.ask(uid)
        world.deliver_all()
    assert world.home(new) not in (None, world.home(one), lost)
    world.set_node(node(lost))
    assert not world.gang_scheduler.conflicts
    other = pod("other", 4)
    assert world.submit(other) == ["wait"], "the old pod may still use its GPUs"
    world.quiesce()
    assert world.home(other) == lost


@pytest.mark.parametrize("within", [True, False])
def test_affinity_is_kept(within: bool) -> None:
    """A gang within a rack gets its new member there, or says why not."""
    types = {
        "NODE": {"childCellType": "GPU", "childCellNumber": 4, "isNodeLevel": True},
        "RACK": {"childCellType": "NODE", "childCellNumber": 2},
    }
    racks = [
        {"cellType": "RACK", "cellChildren": [{"cellAddress": f"n{2 * r + i}"} for i in range(2)]} for r in range(2)
    ]
    vcs = {"a": {"virtualCells": [{"cellType": "RACK", "cellNumber": 2}]}}
    world = World(
        spec_from_dict({"physicalCluster": {"cellTypes": types, "physicalCells": racks}, "virtualClusters": vcs})
    )
    one, two = gang_of("g", 2, 4, within="RACK") if within else gang_of("g", 2, 4)
    world.run(one, two)
    lost = world.home(two)
    world.set_node(node(lost, ready=False))
    world.ended(two)
    new = world.recreated(two, 9)
    world.create(new)
    world.quiesce()
    if within:
        assert world.there(new).spec.node_name is None
        assert "RACK of the pods of t/g" in world.pod_explained(new)
        world.ended(one)
        again = world.recreated(one, 10)
        world.create(again)
        world.quiesce()
        assert lost not in world.nodes_of(new, again)
    else:
        assert world.home(new) not in (None, lost)


# -- gangs that grow ---------------------------------------------------------------------------------------------------

JOB = Owner(api_version="batch/v1", kind="Job", name="train", uid="job-1", controller=True)
THREE = (Member(3, 4),)


def of_job(*numbers: int, created: int = 0) -> list[Pod]:
    return [pod(f"train-{number}", 4, owner=JOB, created=created) for number in numbers]


def test_job_grows() -> None:
    """Its first pod was a group of its own, and the two others a gang of three for ever."""
    world = World(a=3)
    (first,) = of_job(0)
    world.run(first, members=(Member(1, 4),))
    home = world.home(first)
    more = of_job(1, 2, created=9)
    world.create(*more, members=THREE)
    world.quiesce()
    assert None not in world.nodes_of(*more)
    assert world.home(first) == home
    assert list(world.gang_scheduler.gangs) == ["t/train"]
    assert len(world.gang("train").slots) == 3
    world.restart()
    assert list(world.gang_scheduler.gangs) == ["t/train"]


def test_growth_is_all_or_none() -> None:
    """The pods that come later are placed together; meanwhile the first one runs on."""
    world = World(a=2)
    (first,) = of_job(0)
    world.run(first, members=(Member(1, 4),))
    more = of_job(1, 2, created=9)
    world.submit(*more, members=THREE)
    world.quiesce()
    assert world.nodes_of(*more) == [None, None]
    assert "2 of its 3 pods wait for a place" in world.explained("train")


def test_waiting_job_grows() -> None:
    """A Job that grows while it waits is one gang of its new size."""
    world = World(a=3)
    blocker = gang_of("g", 3, 4)
    world.run(*blocker)
    (first,) = of_job(0)
    world.submit(first, members=(Member(1, 4),))
    more = of_job(1, 2, created=9)
    world.submit(*more, members=THREE)
    assert list(world.gang_scheduler.gangs) == ["t/g", "t/train"]
    assert world.gang("train").ask.size == 3
    world.ended(*blocker)
    world.quiesce()
    assert None not in world.nodes_of(first, *more)


def test_growth_seen_late() -> None:
    """The owner was read before it grew, and is read again."""
    world = World(a=2)
    first, more = of_job(0, 1)
    world.run(first, members=(Member(1, 4),))
    world.submit(more, members=(Member(1, 4),))
    (late,) = world.gang_scheduler.incomplete()
    assert late.uid == more.metadata.uid
    world.members[late.uid] = (Member(2, 4),)
    world.gang_scheduler.resize(late.uid, (Member(2, 4),), world.now)
    world.step()
    world.quiesce()
    assert world.home(more) != world.home(first)


@pytest.mark.parametrize("mode", ["opportunistic", "either"])
def test_member_on_a_loan_leaves_lost_node(mode: str) -> None:
    world = World(a=1, b=3)
    one, two = gang_of("g", 2, 4, mode=mode)
    world.run(one, two)
    assert world.guaranteed("g") == [False]
    lost = world.home(two)
    world.set_node(node(lost, ready=False))
    world.ended(two)
    new = world.recreated(two, 9)
    world.create(new)
    world.quiesce()
    assert world.home(new) not in (None, world.home(one), lost)
    assert world.guaranteed("g") == [False]
    world.restart()


def test_gang_loses_two_members() -> None:
    """Each gets another place once it is there; the gang is preempted as a whole afterwards."""
    world = World(a=5, b=1)
    pods = gang_of("g", 3, 4, priority="1")
    world.run(*pods)
    for lost in world.nodes_of(*pods[1:]):
        world.set_node(node(str(lost), cordoned=True))
    world.ended(*pods[1:])
    new = [world.recreated(one, 9) for one in pods[1:]]
    for one in new:
        world.create(one)
        world.quiesce()
    assert len(set(world.nodes_of(pods[0], *new))) == 3
    world.wants(*gang_of("urgent", 3, 4, priority="9"))
    world.quiesce()
    assert world.state("urgent") == "running"
    assert not [one for one in (pods[0], *new) if one.metadata.uid in world.pods]


def test_pod_with_fewer_devices_than_it_asks_for() -> None:
    """By annotations of somebody else: its gang was given a place for as many pods as it has, and one more."""
    world = World(a=2)
    group = "{name: g, members: [{podNumber: 2, leafCellNumber: 2}]}"
    said = f"{{virtualCluster: a, priority: -1, leafCellNumber: 2, affinityGroup: {group}}}"
    one, two = (pod(f"g-{i}", said=said) for i in range(2))
    world.create(one)
    place = PodPlacement(next(iter(world.nodes)), (0,))
    text = shared(Placement("NODE", (place,), ()), (Member(2, 2),), world.spec)
    forged = Binding(one.metadata.uid, one.key, place.node, pod_annotations(place, text))
    assert world.land(Sent(forged, world.gang_scheduler, stale=True))
    world.deliver_all()
    world.create(two)
    world.quiesce()
    assert sorted(len(place.leaf_cells) for place in world.placement("g").pods) == [1, 2]
    assert world.home(two)
