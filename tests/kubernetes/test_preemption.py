"""Scenarios of preemption and loans: victims, reservations, evictions, grace periods, and what Events say of it."""

from __future__ import annotations

import itertools
import re

import pytest
from msgspec.structs import replace

from hived.engine.dispatcher import VAIN_RUNS
from hived.engine.sentences import event_text
from hived.engines.kubernetes.gangs import extender_answers as answering
from hived.engines.kubernetes.gangs.gang import Wake
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Pod
from hived.errors import ConflictError
from hived.spec.compiled import EXACT, ClusterSpec

from ..policies import LeastAttained, Swaps
from . import fake_kubernetes
from .fake_kubernetes import World
from .pods import flat_spec, foreign, gang_of, loans, node, pod, terminating, with_vcs


def borrowed(nodes: int = 4) -> World:
    """A gang ``loan`` of b runs on every node of ``a`` and ``b``, on a loan."""
    world = World(a=nodes // 2, b=nodes // 2)
    world.run(*gang_of("loan", nodes, 4, "b", priority="-1"))
    return world


def lent(a: int, b: int) -> World:
    """Pods ``loan0``, ``loan1``, ... of b run on all nodes, on loans."""
    world = World(a=a, b=b)
    world.run(*loans(a + b))
    return world


def half_bound(bind: bool = True) -> tuple[World, list[Pod]]:
    """A gang ``loan`` of b is placed on all nodes, and one of its pods is bound: the first of those returned."""
    world, pods = World(a=2, b=2), gang_of("loan", 4, 4, "b", priority="-1")
    world.create(*pods)
    world.ask(pods[0], bind=bind)
    return world, pods


def is_written(world: World, name: str) -> bool:
    """Whether a pod is guaranteed by its annotations."""
    return "NODE" in (world.there(name).annotation(keys.BIND_INFO) or "").partition("preassigned")[2]


# -- victims ----------------------------------------------------------------------------------------------------------


def test_vc_takes_its_cells_back() -> None:
    """Though the victims are on several nodes."""
    world = borrowed()
    victims = list(world.pods)
    assert world.submit(pod("mine", 4)) == ["preempting"]
    assert world.state("loan") == "stopping"
    world.wait(10.0)
    world.carry_out_all()
    assert all(map(world.deleted, victims))
    for one in victims:
        assert world.state("mine") == "reserved"
        world.gone(one)
    assert world.state("mine") == "running"
    world.quiesce()
    assert world.home("mine")
    assert world.gang_scheduler.preempted == {("b", "a"): 1}


@pytest.mark.parametrize("binding", [False, True])
def test_victim_without_bound_pods(binding: bool) -> None:
    """It yields at once; a binding on its way is waited for."""
    world, (first, *_) = half_bound(bind=False)
    assert world.state("loan") == "running"
    if not binding:
        assert world.submit(pod("mine", 4)) == ["node"]
        assert world.state("loan") == "queued"
        return
    world.bind(first, world.slot_node(first), "late")
    assert world.submit(pod("mine", 4)) == ["preempting"]
    world.gang_scheduler.bind_failed(first.metadata.uid, world.now)
    world.sent.clear()
    world.step()
    assert world.state("mine") == "running"


def test_victims_are_spared() -> None:
    """When their preemptor ends; they get an Event unless they are being deleted, and keep their age."""
    world = borrowed()
    came = world.now
    world.now += 600
    world.wants(pod("mine", 4))
    assert (world.state("loan"), world.gang("loan").since) == ("stopping", world.now)
    assert not world.counted("HivedSpared")
    world.delete("loan-0")
    world.deliver_all()
    world.gone("mine")
    assert (world.state("loan"), world.gang("loan").since) == ("running", came)
    told = [event for event in world.events if event.reason == "HivedSpared"]
    assert sorted(event.key for event in told) == ["t/loan-1", "t/loan-2", "t/loan-3"]
    assert {(one.message, one.warning) for one in told} == {("nobody wants its GPUs any more; it runs on", False)}
    world.wait(60.0)
    world.carry_out_all()
    assert all(world.nodes_of("loan-1", "loan-2", "loan-3"))
    assert not any(map(world.deleted, ("loan-1", "loan-2", "loan-3")))


def test_unbound_pods_of_a_victim() -> None:
    """They are bound no more, until it is spared: then they are woken."""
    world, pods = half_bound()
    second = pods[1]
    where = world.slot_node(second)
    world.wants(pod("mine", 4))
    with pytest.raises(ConflictError, match="is being preempted"):
        world.gang_scheduler.binding(second.metadata.uid, where)
    assert world.ask(second) == "wait"
    world.gone("mine")
    assert Wake(second.metadata.uid, second.key) in world.todo
    world.quiesce()
    assert all(world.nodes_of(*pods))


def test_next_preemptor_of_a_victim_is_named() -> None:
    world = borrowed()
    for name in ("one", "two"):
        world.wants(pod(name, 4))
    world.gone("one")
    assert world.state("loan") == "stopping"
    assert world.gang("loan").preempted_by is world.gang("two")


def test_spared_victim_is_evicted_later() -> None:
    # the eviction was not carried out, since the preemptor had ended; the next preemptor waited for ever
    world = borrowed(2)
    world.submit(pod("first", 4), bind=False)
    assert world.state("loan") == "stopping"
    world.wait(3.0)
    assert len(world.evictions_due()) == 2
    world.todo.clear()
    world.gone("first")
    assert world.state("loan") == "running"
    world.submit(pod("second", 4), bind=False)
    world.wait(3.0)
    assert len(world.evictions_due()) == 2


def test_lazy_victim_is_downgraded() -> None:
    """A lower priority of the same VC runs on as opportunistic, and says so in its annotations."""
    world = World(a=1, b=1)
    world.run(pod("low", 4, lazy_preemption="true"))
    assert is_written(world, "low")
    world.run(pod("high", 4, priority="5"))
    assert world.guaranteed("low", "high") == [False, True]
    assert not is_written(world, "low")
    world.restart()
    assert world.guaranteed("low", "high") == [False, True]


def test_policy_that_preempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang yields to the next one of its VC once it has attained its limit: the tick of the engine is the timer."""
    monkeypatch.setattr(fake_kubernetes, "YarnCS", lambda: LeastAttained((4 * 60.0,)))
    world = World(a=1)
    world.run(pod("long", 4))
    world.submit(pod("short", 4))
    world.flush()
    assert (world.state("long"), world.state("short")) == ("running", "queued")
    review = world.gang_scheduler.scheduler.next_review
    assert world.now < review <= world.now + 60
    world.wait(review - world.now)
    assert (world.state("long"), world.state("short")) == ("stopping", "reserved")
    world.wait(0)
    assert [one.uid for one in world.evictions_due()] == ["uid-t-long"]
    world.carry_out_all()
    world.kubelet()
    world.flush()
    assert world.state("short") == "running"
    assert world.guaranteed("short") == [True]


def test_policy_without_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a group, though each of its runs has other pods."""
    monkeypatch.setattr(fake_kubernetes, "YarnCS", Swaps)
    world = World(a=1)
    runs, waits = pod("one", 4), pod("other", 4)
    world.submit(runs)
    for run in range(2 * VAIN_RUNS - 1):
        world.submit(waits)
        world.flush()
        assert world.state(runs.metadata.name) == "running"
        world.wait(2)
        world.wait(0)
        world.carry_out_all()
        world.kubelet()
        world.flush()
        runs, waits = waits, pod(runs.metadata.name, 4, uid=f"uid-t-{runs.metadata.name}#{run}")
    (event,) = [event for event in world.gang_scheduler.recent if event.kind == "no_progress"]
    assert "displaced t/one 20 times in a row" in event_text(event)


def test_exact_victim_downgraded_by_a_spec() -> None:
    """It has room by now; it goes once, and starts anew."""
    world = World(with_vcs(flat_spec(a=1, b=1), safety=EXACT))
    low = gang_of("low", 2, 2)
    world.run(*low)
    world.wants(pod("high", 2, priority="5"))
    assert world.state("low") == "stopping"
    world.set_node(node("n2"))
    world.respecify(with_vcs(flat_spec(a=3, gpus=2), safety=EXACT))  # half of what it runs on is no more
    assert world.state("low") == "stopping"
    world.ended(*low)
    world.run(*(world.recreated(one, 1) for one in gang_of("low", 2, 2, created=1)))
    assert world.guaranteed("low", "high") == [True, True]


# -- reservations -----------------------------------------------------------------------------------------------------


def test_node_taken_once_its_pods_are_gone() -> None:
    """kube-scheduler's filter leaves out a node whose CPU the victims use; its preempt request offers it."""
    world = lent(1, 1)
    world.create(pod("mine", 4))
    world.question("mine", [])
    assert world.state("mine") == "queued"
    world.question("mine", emptied=True)
    assert world.state("mine") == "reserved"
    world.question("mine", [])
    assert world.state("mine") == "reserved"
    world.question("mine", [], emptied=True)
    assert world.state("mine") == "queued", "it is not taken in that question either"


def test_no_victims_before_nodes_are_offered() -> None:
    """After a restart too."""
    world = World(a=2, b=2)
    world.run(pod("own", 4), *loans(3))
    own = world.home("own")
    world.create(pod("mine", 4))
    assert world.ask("mine", offered=[own]) == "wait"
    world.restart()
    assert not world.gang_scheduler.evicting
    assert world.ask("mine", offered=[own]) == "wait"
    assert not world.gang_scheduler.evicting
    assert world.ask("mine") == "preempting"


@pytest.mark.parametrize("late", [False, True])
def test_nodes_are_offered_anew(late: bool) -> None:
    """A gang that another process was asked for waits five minutes for that, and blocks the queue no longer."""
    world = lent(1, 1)
    world.create(pod("mine", 4))
    world.ask("mine", offered=[])
    world.restart()
    world.wait(299.0)
    assert world.gang("mine").in_line
    if late:
        world.wait(1.0)
        assert not world.gang("mine").in_line
        assert not world.gang("mine").asked
    assert world.ask("mine") == "preempting"


# -- evictions --------------------------------------------------------------------------------------------------------


def test_evictions_against_a_budget() -> None:
    """A pod whose budget forbids its eviction is asked less and less often, and deleted in the end."""
    world = borrowed(2)
    world.budgets.add("uid-t-loan-0")
    world.wants(pod("mine", 4))
    start, asked = world.now, []
    while world.now < start + 60:
        world.wait(0)
        asked += [(one.key, world.now - start, one.delete) for one in world.evictions_due()]
        world.carry_out_all()
        if world.now == start + 5:
            assert "the eviction of t/loan-0 was refused (a disruption budget" in world.explained("loan")
        world.now += 0.25
    assert asked.pop(1) == ("t/loan-1", 0.0, False)
    assert asked.pop() == ("t/loan-0", 30.0, True)
    assert {(key, delete) for key, _, delete in asked} == {("t/loan-0", False)}
    times = [at for _, at, _ in asked]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[:3] == [0.0, 1.0, 2.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 5
    assert world.deleted("loan-0")


# -- ``hived.io/mode: either``: on a loan before its turn, then guaranteed where it is, or moved -----------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_promoted_when_its_turn_has_come(restarted: bool) -> None:
    """It starts on a loan, also after a restart, and its annotations follow."""
    world = World(a=1, b=1)
    world.run(pod("own", 4), pod("early", 4, mode="either"))
    if restarted:
        world.restart()
    assert world.guaranteed("early") == [False]
    assert not is_written(world, "early")
    told = world.explained("early", world.now)
    assert "it runs on a loan, before its turn in a; it is next in line" in told.split("\n- ")
    world.end("own")
    world.flush()
    assert (world.state("early"), world.guaranteed("early")) == ("running", [True])
    assert is_written(world, "early")
    world.restart()
    assert world.guaranteed("early") == [True]


def test_gang_too_large_for_its_vc() -> None:
    """It waits for a loan, and says so."""
    world = World(a=1, b=1)
    world.run(pod("other", 2, "b"))
    world.submit(*gang_of("large", 2, 4, mode="either"))
    world.flush()
    assert world.state("large") == "queued"
    assert "never" not in world.explained("large", world.now)
    assert "idle" in world.explained("large", world.now)
    world.end("other")
    world.flush()
    assert (world.state("large"), world.guaranteed("large")) == ("running", [False])


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
    assert (world.state("early"), moving.preempted_by) == ("stopping", None)
    assert "on other GPUs" in world.explained("early", world.now) + str(moving.history[-1].data)
    assert world.submit(pod("behind", 2)) == ["wait"]
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
    assert world.state("early") == "running"
    world.delete(early[1])
    world.deliver_all()
    world.ended("ends")
    assert world.state("early") == "queued"
    world.create(pod("early-2", 1, created=1, mode="either", group="early", group_size="2"))
    assert world.guaranteed("early") == [True]


def test_preempted_loan_is_not_promoted() -> None:
    """Where it runs is the only healthy node of its VC."""
    world = World(a=1, b=2)
    others = [pod(f"other-{number}", 4, "b") for number in range(2)]
    world.run(*others, pod("early", 4, "b", mode="either"))
    world.wants(pod("loan", 1, priority="-1"))
    assert world.state("loan") == "reserved"
    world.set_node(node(world.home("other-0"), ready=False))
    world.ended("other-0")
    assert world.state("early") == "stopping"
    world.ended("early")
    assert world.state("loan") == "running"


# -- how long a loan may take to end ----------------------------------------------------------------------------------


def patient(there: Pod, seconds: int) -> Pod:
    """The pod with that grace period."""
    return replace(there, spec=replace(there.spec, termination_grace_period_seconds=seconds))


def with_grace(seconds: int) -> ClusterSpec:
    """Two nodes of ``a`` and ``b``, with this limit on the grace period of loans."""
    return with_vcs(flat_spec(a=1, b=1), opportunistic_grace_seconds=seconds)


LOANS = [("own", "0"), ("loan", "-1"), ("late", "-1")]


def test_grace_limit_and_a_new_spec() -> None:
    """A loan with a longer grace period is refused, as long as the spec has that limit."""
    world = World(with_grace(1_200))
    own, loan, late = (patient(pod(name, 4, "b", priority=of), 5_400) for name, of in LOANS)
    assert world.submit(own, loan) == ["node", "refused"]
    assert "terminationGracePeriodSeconds: 5,400" in world.refusal("loan")
    assert "at most 1,200 s to end (opportunisticGraceSeconds of its virtual cluster)" in world.refusal("loan")
    world.respecify(with_grace(7_200))
    world.quiesce()
    assert all(world.nodes_of(own, loan))
    assert world.submit(late) == ["wait"]
    world.respecify(with_grace(1_200))
    assert world.entry(late).refused is not None


@pytest.mark.parametrize(("limit", "deleted", "grace"), [(60, False, 60), (60, True, 60), (120, False, None)])
def test_grace_of_an_eviction(limit: int, deleted: bool, grace: int | None) -> None:
    """A loan bound with a longer one has the limit, whoever deletes it; one within the limit has its own."""
    world = World(with_grace(120))
    world.run(patient(pod("loan", 4, "b", priority="-1"), 90), pod("own", 4, "b"))
    world.respecify(with_grace(limit))
    world.wants(pod("mine", 4))
    if deleted:  # kube-scheduler was faster
        there = terminating(world.there("loan"))
        world.update(replace(there, metadata=replace(there.metadata, deletion_grace_period_seconds=90)))
    world.wait(0)
    assert [(one.uid, one.grace) for one in world.evictions_due()] == [("uid-t-loan", grace)]


# -- Events -----------------------------------------------------------------------------------------------------------


def test_position_in_the_queue_is_no_event() -> None:
    # twelve pods that ended made thousands: one for each pod behind, each time
    world = World(a=1)
    world.run(*[pod(f"first-{i}", 1, created=i) for i in range(4)])
    world.submit(*[pod(f"late-{i:02}", 1, created=10 + i) for i in range(9)])
    for number in range(6):
        world.gone(next(uid for uid, there in world.pods.items() if there.spec.node_name))
        world.active |= {uid for uid, there in world.pods.items() if not there.spec.node_name}
        world.quiesce()
        assert len(world.pods) == 12 - number
    assert set(world.counted("HivedWaiting").values()) <= {1, 2}


def test_another_reason_is_an_event() -> None:
    world = World(a=1, b=1)
    world.run(pod("one", 4))
    world.submit(pod("two", 4))
    assert world.counted("HivedWaiting") == {"uid-t-two": 1}
    world.run(pod("loan", 4, "b", priority="-1"))
    world.ended("one")
    world.cordon("n0", "n1")
    world.active.add("uid-t-two")
    world.quiesce()
    assert world.counted("HivedWaiting") == {"uid-t-two": 2}
    assert "were not kept from jobs" in world.events_of("two")[-1].message


def named_victims(world: World) -> list[str]:
    """The loans that the latest Event of ``mine`` names; its explanation names the same."""
    texts = world.events_of("mine-0")[-1].message, world.explained("mine")
    of_event, of_explain = (sorted(set(re.findall(r"t/loan\d+", text))) for text in texts)
    assert of_event == of_explain
    return of_event


def preempting(a: int, b: int) -> World:
    """A gang ``mine``, as large as ``a``, waits for loans to end; kube-scheduler has deleted none of them."""
    world = lent(a, b)
    world.create(*gang_of("mine", a, 4))
    ask_again(world, a)
    return world


def ask_again(world: World, pods: int) -> None:
    """kube-scheduler asks for the pods of ``mine``, which still waits for loans to end."""
    assert {world.question(f"mine-{i}") for i in range(pods)} == {"preempting"}


@pytest.mark.parametrize("why", ["cordoned", "foreign"])
def test_event_names_the_victims_of_now(why: str) -> None:
    """Once a reservation has moved: one Event for each move. None are named when it has ended."""
    world = preempting(2, 4)
    victims = named_victims(world)
    for number in range(4):
        taken = world.places("mine")[number % 2]
        if why == "foreign":
            world.update(foreign(f"serve{number}", 4, taken))
        else:
            world.cordon(taken)
        assert world.state("mine") == "reserved"
        before, victims = victims, named_victims(world)
        assert len(victims) == 2
        assert victims != before
        ask_again(world, 2)
        assert set(world.counted("HivedWaiting").values()) == {number + 2}
    world.cordon(*world.nodes)
    assert world.state("mine") == "queued"
    assert not named_victims(world)


def test_ending_victims_are_no_events() -> None:
    world = preempting(2, 2)
    world.gone(next(uid for one in world.gang_scheduler.evicting.values() for uid in one.pods))
    world.carry_out_all()
    assert not world.active
    ask_again(world, 2)
    assert set(world.counted("HivedWaiting").values()) == {1}


def test_no_message_is_cut_in_a_word() -> None:
    world = World(a=1)
    world.run(pod("a-pod-whose-name-is-so-long-that-what-is-said-of-it-cannot-be-said-in-full", 4))
    late = pod("late", 4)
    world.create(late)
    entry = world.gang_scheduler.asked(late, None, world.usable, world.now)
    _, found = answering.answer(world.gang_scheduler, entry, world.usable, True)
    said = next(iter((found.FailedAndUnresolvableNodes or {}).values()))
    full = "hived: " + " ".join(world.short("late").split())
    assert len(full) > 140
    assert said.endswith(" ...")
    assert full.startswith(said.removesuffix("..."))


# -- ages -------------------------------------------------------------------------------------------------------------

AN_HOUR = pod("x", created=3600).created_at


def test_age_is_of_the_pods() -> None:
    """And not of the service."""
    world = World(a=1)
    world.now = AN_HOUR + 5
    world.run(pod("one", 4, created=3600))
    world.create(pod("two", 4, created=3600))
    world.now = AN_HOUR + 7200
    world.restart()
    assert [world.gang(name).since for name in ("one", "two")] == [AN_HOUR, AN_HOUR]
    assert "for 2 h now" in world.explained("two", world.now)


def test_age_after_a_refused_placement() -> None:
    world = World(a=1, b=1)
    world.now = AN_HOUR
    world.create(pod("mine", 4, created=3600))
    world.now += 60
    world.ask("mine", bind=False)
    assert world.gang("mine").since == world.now, "it has its GPUs since now"
    (home,) = world.places("mine")
    world.now += 60
    world.cordon("n0" if home == "n1" else "n1", home)
    assert (world.state("mine"), world.gang("mine").since) == ("queued", AN_HOUR)


def test_age_after_a_loss() -> None:
    """A gang that has lost its GPUs waits since then."""
    world, (first, *_) = half_bound()
    world.flush()
    world.now += 600
    world.wants(pod("mine", 4))
    world.gone(first)
    assert (world.state("loan"), world.gang("loan").since) == ("queued", world.now)
