"""Scenarios of the gang scheduler: gangs, their order, nodes, what kube-scheduler does, and new specs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hived.cluster.explain.reasons import NotSuggested, ReasonKind
from hived.cluster.requests import Member
from hived.engine.sentences import event_text
from hived.engines.kubernetes.gangs import extender_answers as answering
from hived.engines.kubernetes.gangs.explaining import GangExplainer
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Node, Owner, Pod
from hived.engines.kubernetes.pods.pod_request import may_concern
from hived.errors import ConflictError, InputError, NotFoundError

from .fake_kubernetes import Members, World
from .pods import (
    Limits,
    devices_of,
    flat_spec,
    gang_of,
    labelled,
    node,
    node_names,
    on,
    pod,
    terminating,
    with_limits,
    with_vcs,
)

JOB = Owner(api_version="batch/v1", kind="Job", name="train", uid="job-1", controller=True)
NEW_JOB = replace(JOB, uid="job-2")
G = {"group": "g", "group_size": "1"}


def job_pods(number: int, owner: Owner = JOB, prefix: str = "train", created: int = 0) -> list[Pod]:
    """Pods of four GPUs of a Job."""
    return [pod(f"{prefix}-{i}", 4, owner=owner, created=created) for i in range(number)]


# -- gangs ------------------------------------------------------------------------------------------------------------


def test_gang_placed_as_one() -> None:
    world = World(a=4, b=1)
    *most, last = gang_of("g", 4, 4)
    assert world.submit(*most) == ["wait"] * 3
    assert "3 of its 4 pods exist" in world.short("g")
    world.create(last)
    assert world.state("g") == "running"
    world.quiesce()
    assert len(set(world.nodes_of(*most, last))) == 4


def test_submissions_are_counted_per_tenant() -> None:
    world = World(a=2, b=1)
    world.submit(pod("one", 8), pod("other", 8, "b"), pod("two", 8))
    counted = [world.gang_scheduler.gangs[f"t/{name}"].entry.view.sequence for name in ("one", "other", "two")]
    assert counted == [0, 0, 1]


def test_upstream_gang_placed_early() -> None:
    """A gang of upstream's annotation has its places once one pod exists, and no more pods than that."""
    world = World(a=2, b=1)
    group = "{name: g, members: [{podNumber: 2, leafCellNumber: 4}]}"
    one, two, late = (
        pod(f"p{i}", said=f"{{virtualCluster: a, leafCellNumber: 4, affinityGroup: {group}}}") for i in range(3)
    )
    world.run(one)
    assert len(world.gang_scheduler.usage.at) == 8
    world.run(two)
    assert len(set(world.nodes_of(one, two))) == 2
    assert world.submit(late) == ["wait"]
    assert "affinityGroup.members" in world.pod_explained(late)
    assert keys.GROUP_SIZE not in world.pod_explained(late), "a label that it does not use"


def test_pods_of_different_sizes() -> None:
    """Of a Job, which waits for all of them."""
    world = World(a=2, b=1)
    pods = [pod(f"train-{i}", gpus, owner=JOB) for i, gpus in enumerate([1, 4, 1])]
    members = Member(1, 4), Member(2, 1)
    assert world.submit(*pods[:2], members=members) == ["wait", "wait"]
    world.run(pods[2], members=members)
    world.quiesce()
    assert [len(devices_of(world.there(one))) for one in pods] == [1, 4, 1]


def test_pod_too_many_waits_for_a_place() -> None:
    world = World(a=2, b=1)
    world.run(*gang_of("g", 2, 4))
    late = pod("g-2", 4, group="g", group_size="2")
    assert world.submit(late) == ["wait"]
    assert "other pods have all 2 places" in world.pod_explained(late)
    free = world.home("g-0")
    world.end("g-0")
    world.quiesce()
    assert world.home(late) == free


@pytest.mark.parametrize(
    ("running", "late", "members", "words"),
    [
        ([pod("one", 4, more=G)], [pod("other", 2, created=5, more=G)], None, "members: 1 x 2 here, 1 x 4 there"),
        ([pod("x", 4)], gang_of("x", 2, 2), None, "members: 2 x 2 here, 1 x 4 there"),
        (
            job_pods(2),
            job_pods(2, NEW_JOB, "new", 9),
            (Member(2, 4),),
            "t/train is that of pods which another object has made",
        ),
    ],
    ids=["size", "pod", "job"],
)
def test_taken_name_waits_for_its_end(running: list[Pod], late: list[Pod], members: Members, words: str) -> None:
    """Pods that name a group of others, and ask for something else, are kept outside; nobody asks for them again."""
    world = World(a=2, b=1)
    world.run(*running, members=members)
    assert world.submit(*late, members=members) == ["refused"] * len(late)
    assert words in world.refusal(late[0])
    world.end(*running)
    world.quiesce()
    assert all(world.nodes_of(*late))


@pytest.mark.parametrize("why", ["gate", "deleted"])
def test_pod_that_cannot_be_bound(why: str) -> None:
    # one of two was bound, and held the GPUs of both while the other could not come
    world = World(a=2, b=1)
    one, two = gang_of("g", 2, 4)
    gated = replace(two, spec=replace(two.spec, scheduling_gates=[{"name": "queue"}]))
    world.create(one, gated if why == "gate" else terminating(two))
    assert world.ask(one) == "wait"
    assert world.state("g") == "queued"
    assert "2 of its 2 pods exist, of which 1 cannot be bound" in world.short("g")
    world.update(two)
    assert world.state("g") == "running"
    world.quiesce()
    assert all(world.nodes_of(one, two))


def test_held_back_pod_leaves_the_queue() -> None:
    world = World(a=1, b=1)
    world.run(pod("first", 4))
    assert world.submit(pod("g", 4)) == ["wait"]
    assert world.gang("g").in_line
    world.update(terminating(world.there("g")))
    assert not world.gang("g").in_line


def test_pod_replaced_in_a_smaller_job() -> None:
    """Of a Job that runs: others have succeeded, so that its owner makes fewer by now."""
    world = World(a=3, b=1)
    pods = job_pods(3)
    world.run(*pods, members=(Member(3, 4),))
    succeeded = world.there(pods[0])
    world.update(replace(succeeded, status=replace(succeeded.status, phase="Succeeded")))
    world.end(pods[1])
    again = pod("train-1-again", 4, owner=JOB)
    world.create(again, members=(Member(2, 4),))
    world.quiesce()
    assert world.home(again)
    assert world.entry(again).refused is None


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first", [pod("y", 4, created=1), pod("y", 4, created=3, priority="5")], ids=["age", "priority"]
)
def test_the_queue_decides_not_the_asking(first: Pod) -> None:
    second = pod("x", 4, created=2)
    world = World(a=1, b=1)
    world.run(pod("holder", 4, priority="9"))
    assert world.submit(second, first) == ["wait", "wait"]
    world.end("holder")
    world.quiesce()
    assert world.home(first)
    assert world.nodes_of(second) == [None]


def test_a_crowd_costs_other_tenants_nothing() -> None:
    world = World(a=1, b=1)
    world.run(pod("holder", 4, "a"))
    world.submit(*[pod(f"w{i}", 4, "a", created=i) for i in range(30)])
    world.calls.clear()
    world.run(pod("mine", 4, "b"))
    assert world.calls == {"b": 1}


def test_equal_pods_cost_no_square() -> None:
    """None of them is offered a node or blocks the queue: all are tried, and the core is asked about one of them."""
    world = World(a=2, b=1)
    crowd = [pod(f"w{i}", 1, "a", created=i) for i in range(40)]
    world.create(*crowd)
    world.calls.clear()
    assert {world.ask(one, offered=[]) for one in crowd} == {"wait"}
    assert world.calls["a"] <= 3 * len(crowd)


def test_queue_not_blocked_by_offers() -> None:
    """Nor by a wrong request."""
    world = World(a=2, b=1)
    picky, plain = pod("picky", 4, created=1), pod("plain", 4, created=2)
    assert world.submit(pod("wrong", 4, leaf_cell_type="H100")) == ["wait"]
    assert world.reason("wrong") is ReasonKind.MISCONFIGURED
    world.create(picky, plain)
    assert world.ask(picky, offered=[]) == "wait"
    assert isinstance(GangExplainer(world.gang_scheduler).reasons(world.gang("picky"))[0], NotSuggested)
    assert "kube-scheduler takes 0 of the cluster's nodes" in world.explained("picky")
    assert world.ask(plain) == "node"
    assert world.ask(picky) == "node"


# -- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (node("n0", ready=False), "n0 is kept from jobs: it is not ready"),
        (node("n0", cordoned=True), "n0 is kept from jobs: it is cordoned"),
        (None, "n0 is kept from jobs: there is no node of that name in Kubernetes"),
        (node("n0", bad="0, 2-3"), "GPUs 0, 2, 3 of n0 are kept from jobs: marked by its annotation hived.io/bad"),
        (node("n0", bad="x"), "n0 is kept from jobs: its annotation hived.io/bad-devices cannot be read: write"),
    ],
    ids=["not ready", "cordoned", "gone", "marked", "nonsense"],
)
def test_bad_node_gets_no_gang(there: Node | None, words: str) -> None:
    """Until it is healthy; the history tells of both."""
    world = World(a=1, b=0)
    if there is None:
        world.remove_node("n0")
    else:
        world.set_node(there)
    assert world.submit(pod("one", 4)) == ["wait"]
    assert world.reason("one") is ReasonKind.BAD_HARDWARE
    world.set_node(node("n0"))
    world.quiesce()
    assert world.home("one") == "n0"
    turned, healthy = (event_text(event) for event in world.gang_scheduler.recent if event.kind == "node")
    assert turned.startswith(words)
    assert healthy == "n0 is healthy"


def test_gang_without_pods_leaves_bad_node() -> None:
    """While one of its pods is bound, the others leave."""
    world = World(a=2, b=1)
    one, two = gang_of("g", 2, 2)
    world.create(one, two)
    world.ask(one)
    where = world.home(one)
    world.set_node(node(where, ready=False))
    world.restart()
    world.quiesce()
    assert world.home(two) != where
    world.end(one)
    again = world.recreated(one, 9)
    world.create(again)
    world.quiesce()
    assert world.nodes_of(again, two) == [world.home(two)] * 2


def test_node_not_taken_by_kube_scheduler() -> None:
    world = World(a=2, b=1)
    first = world.planned(pod("one", 4))
    assert world.ask("one", [name for name in world.usable if name != first]) == "node"
    assert world.home("one") != first


@pytest.mark.parametrize(("ignore", "answer"), [("true", "forced"), ("false", "wait")])
def test_ignoring_suggested_nodes(ignore: str, answer: str) -> None:
    """A pod that wants its cells alone to decide is bound whatever kube-scheduler takes."""
    world = World(a=1, b=1)
    world.create(pod("one", said=f"{{virtualCluster: a, leafCellNumber: 4, ignoreK8sSuggestedNodes: {ignore}}}"))
    assert world.ask("one", offered=[]) == answer
    if answer == "wait":
        assert world.ask("one") == "node"
    world.carry_out_all()
    assert world.home("one")


# -- kube-scheduler's calls -------------------------------------------------------------------------------------------


def test_wrong_bindings_are_refused() -> None:
    world = World(a=2, b=1)
    world.planned(pod("one", 4))
    with pytest.raises(ConflictError, match="has its place on"):
        world.gang_scheduler.binding("uid-t-one", "elsewhere")
    with pytest.raises(NotFoundError, match="is gone, or was never here"):
        world.gang_scheduler.binding("nobody", "n0")
    world.ask("one")
    world.flush()
    with pytest.raises(ConflictError, match="is on its node already"):
        world.gang_scheduler.binding("uid-t-one", world.home("one"))


def test_late_update_revives_no_pod() -> None:
    world = World(a=2, b=1)
    one = pod("one", 4)
    world.create(one)
    world.gone(one)
    world.gang_scheduler.pod_changed(one, None, world.now)
    assert not world.gang_scheduler.pods
    with pytest.raises(NotFoundError, match="is gone"):
        world.gang_scheduler.asked(one, None, world.usable, world.now)


def test_late_update_unbinds_no_pod() -> None:
    """The answer to bind comes first, then what was written before: here another priority."""
    world = World(a=2, b=1)
    home = world.planned(pod("one", 4))
    world.write(labelled(world.there("one"), priority="7"))
    world.bind("one", home)
    world.deliver("one", newest=False)
    assert world.entry("one").bound
    assert world.state("one") == "running"


def test_request_changes_while_binding_fails() -> None:
    world = World(a=2, b=1)
    home = world.planned(pod("one", 4))
    world.bind("one", home, "late")
    world.update(labelled(world.there("one"), vc="b"))
    world.sent.clear()
    world.answered("one", taken=False)
    assert world.gang("one").vc == "b"


def test_pod_stays_while_a_binding_may_land() -> None:
    world = World(a=1, b=1)
    home = world.planned(pod("one", 4))
    world.bind("one", home, "late")
    world.bind("one", home, "failed")  # kube-scheduler was out of patience, and asked again
    world.set_node(node(home, ready=False))
    assert world.places("one") == [home]
    world.arrive(world.sent[0])
    assert world.gang("one").on_nodes
    assert world.home("one") == home


def test_nominated_node_alone_is_no_offer() -> None:
    # from 1.22 on kube-scheduler asks about the node that it has nominated, and then about all: GPUs that were won by
    # a preemption were given to the next in between
    world = World(a=2, b=1)
    pods = gang_of("g", 2, 4)
    world.create(*pods)
    assert world.ask(pods[0], bind=False) == "node"
    placement = world.placement("g")
    elsewhere = next(name for name in node_names(world.spec) if name != world.slot_node(pods[1]))
    entry = world.gang_scheduler.asked(pods[1], None, [elsewhere], world.now, partial=True)
    word, answer = answering.answer(world.gang_scheduler, entry, [elsewhere], True, partial=True)
    assert (word, answer.NodeNames) == ("not offered", [])
    assert list(answer.FailedNodes or ()) == [elsewhere]
    assert world.placement("g") == placement
    assert not world.gang("g").entry.excluded
    world.quiesce()
    assert all(world.nodes_of(*pods))


def test_gpus_released_if_never_asked_about() -> None:
    world = World(a=1, b=1)
    assert world.submit(pod("one", 4), bind=False) == ["node"]
    assert world.submit(pod("two", 4)) == ["wait"]
    for _ in range(17):  # its scheduler has ended, or never ran
        world.wait(21.0)
        world.todo.clear()
    assert world.state("one") == "queued"
    assert not world.gang("one").in_line
    assert world.state("two") == "running"
    assert world.ask("two") == "node"
    assert world.ask("one") == "wait"
    assert world.gang("one").in_line


# -- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vc", "label", "words"),
    [
        ("a", "prority", "is hived.io/priority meant?"),
        ("a", "groupsize", "is hived.io/group-size meant?"),
        ("a", "xyz", "there are hived.io/vc, hived.io/priority,"),
        (None, "vcc", "is hived.io/vc meant?"),
    ],
)
def test_misspelt_label_is_refused(vc: str | None, label: str, words: str) -> None:
    """A pod that runs goes on with it."""
    world = World(a=1)
    assert world.submit(pod("one", 1, vc, more={label: "7"})) == ["refused"]
    assert words in world.refusal("one")
    world.run(pod("other", 1))
    world.write(labelled(world.there("other"), **{label: "7"}))
    world.restart()
    assert world.state("other") == "running"


# -- a new spec -------------------------------------------------------------------------------------------------------


def test_a_new_spec_brings_its_policy() -> None:
    """One that needs durations is refused."""
    world = World(a=1)
    world.run(pod("first", 3))
    assert world.submit(pod("large", 4), pod("small", 1)) == ["wait", "wait"]
    with pytest.raises(InputError, match="policy sjf of a orders jobs by their duration"):
        world.gang_scheduler.reconfigure(with_vcs(flat_spec(a=1), policy="sjf"), world.now)
    world.gang_scheduler.reconfigure(with_vcs(flat_spec(a=1), policy="greedy"), world.now)
    world.flush()
    world.ask("small")
    world.flush()
    assert (world.state("large"), world.state("small")) == ("queued", "running")


WIDE = flat_spec(a=2, b=1)


def test_restored_devices_of_a_gang() -> None:
    """In between, a place of the gang is no more; its pod is."""
    world = World(WIDE)
    pods = gang_of("g", 2, 4)
    world.run(pod("blocker", 4, "b"), *pods)
    gone = next(one for one in pods if world.home(one) == "n2")
    world.respecify(flat_spec(a=1, b=1))
    world.flush()
    assert world.entry(gone).slot is None
    world.respecify(WIDE)
    assert world.submit(pod("g-late", 4, group="g", group_size="2", created=30)) == ["wait"]
    assert world.entry(gone).slot is not None


def test_annotations_outlast_dropped_devices() -> None:
    """They are all that another service, or the spec that comes back, will know."""
    world = World(WIDE)
    world.run(pod("one", 4))
    world.respecify(flat_spec(a=2, b=1, gpus=2))
    world.flush()
    assert world.placement("one").pods[0].leaf_cells == (0, 1)
    assert len(devices_of(world.there("one"))) == 4
    world.restart()
    world.respecify(WIDE)
    assert len(world.gang_scheduler.usage.at) == 4


def test_unbound_gang_leaves_dropped_devices() -> None:
    world = World(WIDE)
    world.run(pod("filler", 4))
    world.planned(pod("one", 4))
    world.respecify(flat_spec(a=2, b=0))
    world.quiesce()
    assert world.home("one") in ("n0", "n1")
    assert len(world.placement("one").pods) == 1


def test_pods_bound_under_two_specs() -> None:
    """Annotations of the later ones have a smaller gang than theirs, and after a restart all of them count."""
    world = World(flat_spec(a=3, b=0))
    first, *others = gang_of("g", 3, 4)
    world.create(first, *others)
    world.ask(first)
    world.respecify(flat_spec(a=2, b=0))
    world.flush()
    for one in others:
        world.ask(one)
    world.flush()
    bound = [one for one in (first, *others) if world.nodes_of(one) != [None]]
    assert len(bound) >= 2
    world.restart()
    assert not any(world.entry(one).refused for one in bound)


# -- pods without GPUs ------------------------------------------------------------------------------------------------


def launcher(name: str, group: str = "g", size: int = 3, created: int = 0) -> Pod:
    """A pod without GPUs that is counted in a group."""
    made = pod(name, 0, created=created, group=group, group_size=str(size))
    return with_limits(made, {"cpu": "1"})


@pytest.mark.parametrize("limits", [{}, {"cpu": "1"}, {"nvidia.com/gpu": "0"}, {"hived.io/gpu": 0}])
def test_cpu_pod_of_a_vc(limits: Limits) -> None:
    """It is not HiveD's: no refusal, and no conflict once another client has bound it."""
    world = World(a=1)
    one = with_limits(pod("one", 0), limits)
    assert not may_concern(one)
    world.update(one)
    world.update(on(one, "n0"))
    assert not world.events
    assert not world.gang_scheduler.pods
    assert not world.gang_scheduler.refused


@pytest.mark.parametrize("first", [True, False])
def test_launcher_of_a_gang(first: bool) -> None:
    """It is counted in the label of its group, and blocked the group for ever; a worker is replaced after its end."""
    world = World(a=3)
    workers = [pod(f"w{number}", 4, group="g", group_size="3") for number in range(2)]
    if first:
        world.update(launcher("launcher"))
    world.submit(*workers)
    if not first:
        world.update(launcher("launcher"))
    world.quiesce()
    assert None not in world.nodes_of(*workers)
    world.gone("launcher")
    world.restart()
    assert world.state("g") == "running"
    world.set_node(node(world.home(workers[0]), ready=False))
    world.ended(workers[0])
    new = world.recreated(workers[0], 9)
    world.create(new)
    world.quiesce()
    assert world.home(new)


def test_launcher_that_is_not_counted() -> None:
    """A gang of two workers has both, whether or not a launcher has the labels too."""
    world = World(a=2)
    world.update(launcher("launcher", size=2))
    workers = [pod(f"w{number}", 4, group="g", group_size="2") for number in range(2)]
    world.submit(*workers)
    world.quiesce()
    assert None not in world.nodes_of(*workers)
    assert len(world.placement("g").pods) == 2


def test_wrong_number_of_gpus_is_refused() -> None:
    world = World(a=1)
    assert world.submit(with_limits(pod("one", 0), {"nvidia.com/gpu": "1500m"})) == ["refused"]
