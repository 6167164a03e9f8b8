"""Foreign pods: GPUs of pods that HiveD did not place count from their binding until they end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hived.cluster.explain.sentences import in_lines
from hived.engines.kubernetes.gangs import foreign as foreign_
from hived.engines.kubernetes.gangs.explaining import explain, explain_pod, shortly
from hived.engines.kubernetes.gangs.gang import GangState
from hived.engines.kubernetes.pods.objects import PodStatus

from .fake_kubernetes import World
from .pods import annotated, devices_of, flat_spec, foreign, labelled, node, node_names, on, pod
from .test_adoption import FOUR, nobody_gets, there
from .test_gang_scheduler import gang, gang_of, placed_nodes, places, run

SPEC = flat_spec(("a", 2), ("b", 2))


def bound(world: World, name: str, gpus: object, where: str, **notes: str) -> str:
    """Another scheduler binds a pod; its uid."""
    one = annotated(foreign(name, gpus, where), **notes)
    world.write(one)
    world.deliver_all()
    return one.metadata.uid


def kept(world: World, uid: str) -> tuple[int, ...]:
    """The GPUs that are kept from jobs for the sake of a pod."""
    return world.gang_scheduler.foreign.pods[uid].kept


def gone(world: World, uid: str) -> None:
    """Remove a pod."""
    world.remove(uid)
    world.deliver_all()


def events(world: World, uid: str) -> list[tuple[str, bool]]:
    """Events of a pod: reason, and whether it is a warning."""
    return [(recorded.reason, recorded.warning) for recorded in world.events if recorded.uid == uid]


def test_a_gang_does_not_land_on_gpus_of_a_pod_of_another_scheduler() -> None:
    world = World(SPEC)
    uid = bound(world, "serve", 4, "n1")
    run(world, *gang_of("g", 2, 4), *gang_of("h", 1, 4, "b"))
    assert "n1" not in places(world, *gang_of("g", 2, 4), *gang_of("h", 1, 4, "b"))
    assert events(world, uid) == [("HivedForeign", False)]


def test_a_waiting_gang_reports_the_foreign_pod_and_starts_once_that_pod_ends() -> None:
    world = World(SPEC)
    uid = bound(world, "serve", 4, "n1")
    run(world, *gang_of("h", 2, 4, "b"))
    pods = gang_of("g", 2, 4)
    world.create(*pods)
    assert {world.ask(one.metadata.uid) for one in pods} == {"wait"}
    why = "; ".join(shortly(world.gang_scheduler, gang(world, "g")))
    assert "4 GPUs were not kept from jobs" in why
    assert "n1 (pod t/serve, which HiveD did not place, has 4 of its GPUs)" in why
    gone(world, uid)
    world.quiesce()
    assert None not in places(world, *pods)


def test_as_many_are_kept_as_it_asks_for_and_the_others_are_given() -> None:
    world = World(SPEC)
    uid = bound(world, "serve", 1, "n1")
    nobody_gets(world, "n1", *kept(world, uid))
    used = {device for there in world.pods.values() for device in devices_of(there) if device[0] == "n1"}
    assert len(used) == 3


def test_cells_that_are_broken_already_are_used_up_before_whole_ones() -> None:
    world = World(flat_spec(("a", 1), gpus=8))
    run(world, pod("one", 1))
    assert devices_of(world.pods["uid-t-one"]) == {("n0", 0)}
    assert kept(world, bound(world, "serve", 1, "n0")) == (1,)
    assert kept(world, bound(world, "other", 2, "n0")) == (6, 7)
    assert kept(world, bound(world, "third", 3, "n0")) == (3, 4, 5)


def test_it_has_the_gpus_that_it_names() -> None:
    world = World(SPEC)
    uid = bound(world, "serve", 2, "n1", ISOLATION="0,3")
    assert kept(world, uid) == (0, 3)
    nobody_gets(world, "n1", 0, 3)


def test_named_gpus_count_only_if_their_number_is_that_of_the_request() -> None:
    world = World(SPEC)
    uid = bound(world, "serve", 2, "n1", ISOLATION="0")
    assert len(kept(world, uid)) == 2


def test_a_pod_that_does_not_say_how_many_keeps_the_whole_node() -> None:
    world = World(SPEC)
    bound(world, "serve", "many", "n1")
    nobody_gets(world, "n1", *FOUR)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing(phase: str) -> None:
    world = World(SPEC)
    uid = bound(world, "serve", 4, "n1")
    world.write(replace(world.pods[uid], status=PodStatus(phase=phase)))
    world.deliver_all()
    assert not world.gang_scheduler.nodes.bad_devices
    assert not world.gang_scheduler.foreign.pods


@pytest.mark.parametrize("where", ["", "elsewhere"])
def test_a_pod_that_is_not_bound_or_on_a_node_that_the_spec_lacks_holds_nothing(where: str) -> None:
    world = World(SPEC)
    bound(world, "serve", 4, where)
    assert not world.gang_scheduler.nodes.bad_devices
    assert not world.events


def test_a_node_that_comes_into_the_spec_with_a_foreign_pod_on_it_is_not_given_away() -> None:
    world = World(flat_spec(("a", 1)))
    bound(world, "serve", 4, "n1")
    world.set_node(node("n1"))
    world.respecify(flat_spec(("a", 2)))
    nobody_gets(world, "n1", *FOUR)


def test_it_is_known_again_after_a_restart() -> None:
    world = World(SPEC)
    run(world, pod("one", 2))
    home = places(world, pod("one", 2))[0] or ""
    uid = bound(world, "serve", 4, "n3")
    beside = bound(world, "beside", 1, home)
    world.restart()
    assert kept(world, uid) == FOUR
    nobody_gets(world, "n3", *FOUR)
    assert len(kept(world, beside)) == 1


def test_a_gang_that_is_not_bound_yet_gives_way_where_a_foreign_pod_was_faster() -> None:
    world = World(SPEC)
    one = pod("one", 4)
    world.create(one)
    world.ask(one.metadata.uid, bind=False)
    before = placed_nodes(world, "one")
    bound(world, "serve", 4, before[0])
    world.quiesce()
    assert places(world, one) not in ([None], [before[0]])


def test_a_place_of_a_running_gang_whose_pod_is_not_there_yet_is_taken_by_a_foreign_pod_before_one_in_use() -> None:
    one, two = gang_of("g", 2, 2)
    world = World(SPEC)
    world.write(there(one, ("n0", (0, 1)), ("n0", (2, 3))))
    world.restart(compare=False)
    world.create(two)
    uid = bound(world, "serve", 2, "n0")
    assert kept(world, uid) == (2, 3)
    assert world.ask(two.metadata.uid) == "wait"
    assert "a pod of no group may be using them" in in_lines(
        explain_pod(world.gang_scheduler, world.gang_scheduler.pods[two.metadata.uid], None)
    )
    gone(world, uid)
    world.quiesce()
    assert places(world, two) == ["n0"]


def test_a_foreign_pod_with_more_gpus_than_are_free_is_a_conflict_and_has_what_is_free_later() -> None:
    world = World(SPEC)
    one = pod("one", 2)
    run(world, one)
    home = places(world, one)[0] or ""
    uid = bound(world, "serve", 4, home)
    assert events(world, uid) == [("HivedConflict", True)]
    assert "asks for 4 GPUs" in world.gang_scheduler.conflicts[uid]
    assert "2 of them are in use by t/one" in world.gang_scheduler.conflicts[uid]
    assert len(kept(world, uid)) == 2
    assert "t/serve" in in_lines(explain(world.gang_scheduler, gang(world, "one"), None))
    world.end(one.metadata.uid)
    world.deliver_all()
    assert kept(world, uid) == FOUR
    assert not world.gang_scheduler.conflicts


def test_a_binding_on_its_way_counts_until_it_fails() -> None:
    world = World(SPEC)
    one = pod("one", 4)
    world.create(one)
    world.ask(one.metadata.uid, bind=False)
    placement = placed_nodes(world, "one")
    home = placement[0]
    world.bind(one.metadata.uid, home, "late")
    uid = bound(world, "serve", 4, home)
    assert world.gang_scheduler.conflicts.keys() == {uid}
    world.sent.clear()
    world.answered(one.metadata.uid, False)
    assert not world.gang_scheduler.conflicts
    world.quiesce()
    assert places(world, one) not in ([None], [home])


def test_a_bound_pod_of_a_gang_moves_the_guess_about_a_foreign_pod() -> None:
    world = World(SPEC)
    uid = bound(world, "serve", 2, "n1")
    late = pod("late", 2)
    world.create(late)
    world.untrusted.add(late.metadata.uid)
    where = tuple(kept(world, uid))
    world.write(there(late, ("n1", where)))
    world.deliver_all()
    assert gang(world, "late").state is GangState.PLACED
    assert set(kept(world, uid)) == set(FOUR) - set(where)


def test_a_foreign_pod_rather_has_a_marked_gpu_than_one_in_use() -> None:
    world = World(SPEC)
    pods = [pod(f"one-{number}", 1) for number in range(4)]
    run(world, *pods)
    uid = bound(world, "serve", 2, "n0")
    assert kept(world, uid) == ()
    world.set_node(node("n0", bad="3"))
    (last,) = (one for one in pods if ("n0", 3) in devices_of(world.pods[one.metadata.uid]))
    world.end(last.metadata.uid)
    world.deliver_all()
    assert kept(world, uid) == (3,)
    assert world.gang_scheduler.foreign.pods[uid].short == 1


def test_a_refused_pod_of_no_vc_that_another_client_binds_is_foreign() -> None:
    world = World(SPEC)
    one = foreign("serve", 2)
    world.create(one)
    assert world.ask(one.metadata.uid) == "refused"
    world.untrusted.add(one.metadata.uid)
    world.write(on(world.pods[one.metadata.uid], "n1"))
    world.deliver_all()
    assert len(kept(world, one.metadata.uid)) == 2
    assert not world.gang_scheduler.refused


def test_a_foreign_pod_that_is_given_a_vc_is_foreign_no_more_and_still_kept_apart() -> None:
    world = World(SPEC)
    uid = bound(world, "serve", 4, "n1")
    world.write(labelled(world.pods[uid], vc="a"))
    world.deliver_all()
    assert not world.gang_scheduler.foreign.pods
    nobody_gets(world, "n1", *FOUR)


def test_a_late_update_does_not_bring_it_back() -> None:
    world = World(SPEC)
    uid = bound(world, "serve", 4, "n1")
    world.gang_scheduler.pod_removed(uid, world.now)
    world.gang_scheduler.pod_changed(world.pods[uid], None, world.now)  # a late update
    assert not world.gang_scheduler.foreign.pods
    assert not world.gang_scheduler.nodes.bad_devices


def test_foreign_pods_cost_a_gang_elsewhere_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = flat_spec(("a", 20))
    world = World(spec)
    for number, name in enumerate(node_names(spec)[:19]):
        bound(world, f"serve-{number}", 4, name)
    seen: list[str] = []
    monkeypatch.setattr(foreign_, "_assign_devices", lambda gang_scheduler, node, at: seen.append(node))
    run(world, pod("one", 4))
    assert not seen


# -- under a reservation ----------------------------------------------------------------------------------------------


def reserved(gpus: int = 4, loans: int = 4) -> tuple[World, str]:
    """A gang ``mine`` waits for one of several loans to end; returns the node of its reservation."""
    world = World(flat_spec(("a", 2), ("b", 2), gpus=gpus))
    run(world, *[pod(f"loan{number}", 4, "b", priority="-1") for number in range(loans)])
    world.create(pod("mine", 4))
    assert world.ask("uid-t-mine") == "preempting"
    return world, reserved_by(world, "mine")


def reserved_by(world: World, name: str) -> str:
    """The node that a gang of one pod has reserved GPUs of."""
    placement = gang(world, name).placement
    assert gang(world, name).state is GangState.RESERVED
    assert placement is not None
    return placement.pods[0].node


def going(world: World) -> list[str]:
    """Preempted loans, by their nodes."""
    gangs = [one for one in world.gang_scheduler.gangs.values() if one.state is GangState.PREEMPTED]
    return sorted(one.placement.pods[0].node for one in gangs if one.placement is not None)


def test_a_reservation_moves_as_soon_as_a_foreign_pod_takes_its_node_though_the_victim_is_still_there() -> None:
    world, home = reserved()
    uid = bound(world, "serve", 4, home)
    assert reserved_by(world, "mine") != home
    assert going(world) == [reserved_by(world, "mine")]
    assert world.gang_scheduler.conflicts.keys() == {uid}


def test_a_gang_does_not_wait_for_a_victim_whose_gpus_a_foreign_pod_has_to_share() -> None:
    """The opposite order: the foreign pod is there first, and lacks what the victim would free."""
    world = World(flat_spec(("a", 2), ("b", 2)))
    run(world, *[pod(f"loan{number}", 4, "b", priority="-1") for number in range(4)])
    uids = [bound(world, f"serve{number}", 4, name) for number, name in enumerate(["n0", "n1", "n2"])]
    world.create(pod("mine", 4))
    assert world.ask("uid-t-mine") == "preempting"
    assert going(world) == [reserved_by(world, "mine")] == ["n3"]
    assert world.gang_scheduler.conflicts.keys() == set(uids)


def test_a_gang_waits_without_a_reservation_where_foreign_pods_share_all_that_victims_would_free() -> None:
    world, home = reserved()
    uids = [bound(world, f"serve{number}", 4, name) for number, name in enumerate(["n0", "n1", "n2", "n3"])]
    assert gang(world, "mine").state is GangState.WAITING
    assert going(world) == []
    gone(world, uids[0])
    assert reserved_by(world, "mine") == "n0"
    assert going(world) == ["n0"]
    assert home


def test_a_reservation_stays_where_a_foreign_pod_can_share_with_a_loan_that_stays() -> None:
    world, home = reserved(gpus=8, loans=8)
    uid = bound(world, "serve", 4, home)
    assert reserved_by(world, "mine") == home
    loan = next(one for one in world.gang_scheduler.evicting.values())
    world.remove(next(iter(loan.pods)))
    world.deliver_all()
    assert gang(world, "mine").state is GangState.PLACED
    assert world.gang_scheduler.conflicts.keys() == {uid}
    world.quiesce()
    assert places(world, pod("mine", 4)) == [home]


def test_a_foreign_pod_has_what_is_free_before_what_it_has_to_share() -> None:
    world, home = reserved(gpus=8, loans=8)
    uid = bound(world, "serve", 4, home)
    shared = world.gang_scheduler.foreign.pods[uid].shared
    loan = next(one for one in world.gang_scheduler.gangs_on(home) if one.state is GangState.PLACED)
    assert len(shared) == 4
    assert not kept(world, uid)
    world.remove(next(iter(loan.pods)))
    world.deliver_all()
    assert kept(world, uid) == shared
    assert not world.gang_scheduler.foreign.pods[uid].shared
    assert not world.gang_scheduler.conflicts


def test_a_reservation_moves_as_soon_as_its_node_turns_bad_though_the_victim_is_still_there() -> None:
    world, home = reserved()
    world.set_node(node(home, ready=False))
    assert reserved_by(world, "mine") != home
    assert going(world) == [reserved_by(world, "mine")]
