"""Foreign pods: GPUs of pods that HiveD did not place count from their binding until they end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hived.engines.kubernetes.gangs import withheld
from hived.engines.kubernetes.pods.objects import PodStatus

from .fake_kubernetes import World
from .pods import (
    annotated,
    devices_of,
    flat_spec,
    foreign,
    gang_of,
    labelled,
    loans,
    node,
    node_names,
    on,
    pod,
    with_limits,
)
from .test_adoption import FOUR, there


class Shared(World):
    """A fake cluster on whose nodes another scheduler binds pods as well."""

    def serve(self, gpus: object, where: str, name: str = "serve", **notes: str) -> str:
        """Another scheduler binds a pod; its uid."""
        one = annotated(foreign(name, gpus, where), **notes)
        self.update(one)
        return one.metadata.uid

    def kept(self, uid: str) -> tuple[int, ...]:
        """The GPUs that are kept from jobs for a pod."""
        return self.gang_scheduler.foreign.pods[uid].kept

    def told(self, uid: str) -> list[tuple[str, bool]]:
        """Events of a pod: reason, and whether it is a warning."""
        return [(event.reason, event.warning) for event in self.events_of(uid)]

    @property
    def conflicts(self) -> dict[str, str]:
        return self.gang_scheduler.conflicts


@pytest.fixture
def world() -> Shared:
    """Two nodes of ``a`` and two of ``b``."""
    return Shared(a=2, b=2)


def test_gangs_keep_off_foreign_gpus(world: Shared) -> None:
    """A gang that waits for them says so, and starts once the pod ends."""
    uid = world.serve(4, "n1")
    assert world.told(uid) == [("HivedForeign", False)]
    own = gang_of("h", 2, 4, "b")
    world.run(*own)
    pods = gang_of("g", 2, 4)
    assert world.submit(*pods) == ["wait", "wait"]
    assert "n1" not in world.nodes_of(*own)
    assert "4 GPUs were not kept from jobs" in world.short("g")
    assert "n1 (pod t/serve, which HiveD did not place, has 4 of its GPUs)" in world.short("g")
    world.gone(uid)
    world.quiesce()
    assert all(world.nodes_of(*pods))


@pytest.mark.parametrize(
    ("gpus", "notes", "number"),
    [(1, {}, 1), (2, {"ISOLATION": "0,3"}, 2), ("many", {}, 4)],
    ids=["guessed", "named", "unknown"],
)
def test_as_many_gpus_are_kept(world: Shared, gpus: object, notes: dict[str, str], number: int) -> None:
    """As it asks for, and all if it does not say how many; the others are given."""
    uid = world.serve(gpus, "n1", **notes)
    kept = world.kept(uid)
    assert len(kept) == number
    assert not notes or kept == (0, 3)
    world.nobody_gets("n1", *kept)
    others = [there for there in world.pods.values() if there.metadata.uid != uid]
    assert len({device for there in others for device in devices_of(there) if device[0] == "n1"}) == 4 - number


def test_named_gpus_of_another_number(world: Shared) -> None:
    assert len(world.kept(world.serve(2, "n1", ISOLATION="0"))) == 2


def test_broken_cells_are_used_up_first() -> None:
    world = Shared(flat_spec(a=1, gpus=8))
    world.run(pod("one", 1))
    assert devices_of(world.there("one")) == {("n0", 0)}
    assert world.kept(world.serve(1, "n0")) == (1,)
    assert world.kept(world.serve(2, "n0", "other")) == (6, 7)
    assert world.kept(world.serve(3, "n0", "third")) == (3, 4, 5)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended_pod_holds_nothing(world: Shared, phase: str) -> None:
    """And a late update does not revive it."""
    uid = world.serve(4, "n1")
    runs = world.there(uid)
    world.update(replace(runs, status=PodStatus(phase=phase)))
    world.gang_scheduler.pod_changed(runs, None, world.now)
    assert not world.gang_scheduler.nodes.bad_devices
    assert not world.gang_scheduler.foreign.pods


@pytest.mark.parametrize("where", ["", "elsewhere"])
def test_pod_on_no_node_of_the_spec(world: Shared, where: str) -> None:
    world.serve(4, where)
    assert not world.gang_scheduler.nodes.bad_devices
    assert not world.events


def test_node_that_comes_with_a_foreign_pod() -> None:
    """Into the spec."""
    world = Shared(a=1)
    world.serve(4, "n1")
    world.set_node(node("n1"))
    world.respecify(flat_spec(a=2))
    world.nobody_gets("n1", *FOUR)


def test_known_again_after_a_restart(world: Shared) -> None:
    world.run(pod("one", 2))
    uid = world.serve(4, "n3")
    beside = world.serve(1, world.home("one"), "beside")
    world.restart()
    assert world.kept(uid) == FOUR
    world.nobody_gets("n3", *FOUR)
    assert len(world.kept(beside)) == 1


def test_unbound_gang_gives_way(world: Shared) -> None:
    before = world.planned(pod("one", 4))
    world.serve(4, before)
    world.quiesce()
    assert world.home("one") != before


def test_slot_without_a_pod_is_taken_first(world: Shared) -> None:
    """Of a running gang, before one in use."""
    one, two = gang_of("g", 2, 2)
    world.write(there(one, ("n0", (0, 1)), ("n0", (2, 3))))
    world.restart(compare=False)
    world.create(two)
    uid = world.serve(2, "n0")
    assert world.kept(uid) == (2, 3)
    world.quiesce()
    assert world.home(two) != "n0", "it has another place"


def test_more_than_are_free_is_a_conflict(world: Shared) -> None:
    """The pod has what is free later."""
    world.run(pod("one", 2))
    uid = world.serve(4, world.home("one"))
    assert world.told(uid) == [("HivedConflict", True)]
    assert "asks for 4 GPUs" in world.conflicts[uid]
    assert "2 of them are in use by t/one" in world.conflicts[uid]
    assert len(world.kept(uid)) == 2
    assert "t/serve" in world.explained("one")
    world.ended("one")
    assert world.kept(uid) == FOUR
    assert not world.conflicts


def test_binding_on_its_way_counts(world: Shared) -> None:
    """Until it fails."""
    home = world.planned(pod("one", 4))
    world.bind("one", home, "late")
    uid = world.serve(4, home)
    assert world.conflicts.keys() == {uid}
    world.sent.clear()
    world.answered("one", False)
    assert not world.conflicts
    world.quiesce()
    assert world.home("one") != home


def test_guess_moves_for_a_bound_pod(world: Shared) -> None:
    uid = world.serve(2, "n1")
    late, where = pod("late", 2), world.kept(uid)
    world.create(late)
    world.bound_behind(there(late, ("n1", where)))
    assert world.state("late") == "running"
    assert set(world.kept(uid)) == set(FOUR) - set(where)


def test_marked_gpu_rather_than_one_in_use(world: Shared) -> None:
    pods = [pod(f"one-{number}", 1) for number in range(4)]
    world.run(*pods)
    uid = world.serve(2, "n0")
    assert world.kept(uid) == ()
    world.set_node(node("n0", bad="3"))
    (last,) = (one for one in pods if ("n0", 3) in devices_of(world.there(one)))
    world.ended(last)
    assert world.kept(uid) == (3,)
    assert world.gang_scheduler.foreign.pods[uid].short == 1


def test_refused_pod_that_is_bound_is_foreign(world: Shared) -> None:
    """Also with the label of a VC: its whole node was withheld then."""
    one = foreign("serve", 2)
    assert world.submit(one) == ["refused"]
    world.bound_behind(on(world.there(one), "n1"))
    assert len(world.kept(one.metadata.uid)) == 2
    assert not world.gang_scheduler.refused
    world.update(labelled(world.there(one), vc="a"))
    assert len(world.kept(one.metadata.uid)) == 2


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "hived.io/gpu"])
@pytest.mark.parametrize("seen_before", [True, False])
def test_pod_of_a_vc_bound_by_others(world: Shared, seen_before: bool, resource: str) -> None:
    """A pod of the default scheduler with the label of a VC has as many GPUs as it requests, not its whole node."""
    one = with_limits(labelled(foreign("serve", 1), vc="a"), {resource: 1})
    if seen_before:
        world.update(one)
    world.update(on(one, "n1"))
    for _ in range(2):
        kept = world.kept(one.metadata.uid)
        assert len(kept) == 1
        assert not world.conflicts
        world.restart(compare=False)
    world.nobody_gets("n1", *kept)
    given = {device for there in world.pods.values() for device in devices_of(there) if device[0] == "n1"}
    assert len(given) == 3


def test_no_cost_for_gangs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Shared(a=20)
    for number, name in enumerate(node_names(world.spec)[:19]):
        world.serve(4, name, f"serve-{number}")
    seen: list[str] = []
    monkeypatch.setattr(withheld, "_assign_devices", lambda gang_scheduler, node, at: seen.append(node))
    world.run(pod("one", 4))
    assert not seen


# -- under a reservation ----------------------------------------------------------------------------------------------


def reserved(gpus: int = 4, number: int = 4) -> tuple[Shared, str]:
    """A gang ``mine`` waits for one of several loans to end; returns the node of its reservation."""
    world = Shared(flat_spec(a=2, b=2, gpus=gpus))
    world.run(*loans(number))
    assert world.submit(pod("mine", 4)) == ["preempting"]
    return world, reservation(world)


def reservation(world: Shared) -> str:
    """The node that ``mine`` has reserved GPUs of."""
    assert world.state("mine") == "reserved"
    (home,) = world.places("mine")
    return home


def going(world: Shared) -> list[str]:
    """The nodes of preempted loans."""
    gangs = world.gang_scheduler.evicting.values()
    return sorted(one.placement.pods[0].node for one in gangs if one.placement is not None)


@pytest.mark.parametrize("why", ["foreign", "bad"])
def test_reservation_moves_at_once(why: str) -> None:
    """As soon as its node is taken or turns bad, though the victim is still there."""
    world, home = reserved()
    if why == "foreign":
        assert {world.serve(4, home)} == world.conflicts.keys()
    else:
        world.set_node(node(home, ready=False))
    assert reservation(world) != home
    assert going(world) == [reservation(world)]


def test_no_waiting_for_gpus_that_are_shared(world: Shared) -> None:
    """The opposite order: the foreign pod is there first, and lacks what the victim would free."""
    world.run(*loans(4))
    uids = [world.serve(4, f"n{number}", f"serve{number}") for number in range(3)]
    assert world.submit(pod("mine", 4)) == ["preempting"]
    assert going(world) == [reservation(world)] == ["n3"]
    assert world.conflicts.keys() == set(uids)


def test_no_reservation_where_all_is_shared() -> None:
    world, _ = reserved()
    uids = [world.serve(4, f"n{number}", f"serve{number}") for number in range(4)]
    assert world.state("mine") == "queued"
    assert going(world) == []
    world.gone(uids[0])
    assert reservation(world) == "n0"
    assert going(world) == ["n0"]


def test_reservation_stays_beside_a_loan() -> None:
    """With which the foreign pod can share."""
    world, home = reserved(gpus=8, number=8)
    uid = world.serve(4, home)
    assert reservation(world) == home
    (loan,) = world.gang_scheduler.evicting.values()
    world.gone(next(iter(loan.pods)))
    assert world.state("mine") == "running"
    assert world.conflicts.keys() == {uid}
    world.quiesce()
    assert world.home("mine") == home


def test_free_gpus_before_shared_ones() -> None:
    world, home = reserved(gpus=8, number=8)
    uid = world.serve(4, home)
    shared = world.gang_scheduler.foreign.pods[uid].shared
    loan = next(one for one in world.gang_scheduler.gangs_on(home) if one.state.value == "running")
    assert len(shared) == 4
    assert not world.kept(uid)
    world.gone(next(iter(loan.pods)))
    assert world.kept(uid) == shared
    assert not world.gang_scheduler.foreign.pods[uid].shared
    assert not world.conflicts
