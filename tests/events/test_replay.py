"""A log carried out again: what must be the same, and what is said when it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from hived.cluster.decisions import Bind, Decision, Placement, PodPlacement, Preempt, Record, Wait
from hived.cluster.reasons import NothingIdle
from hived.cluster.requests import Member, Request
from hived.errors import InputError, RequestError
from hived.events.codec import from_line, to_line
from hived.events.journal import (
    Cancelled,
    Committed,
    DeviceHealth,
    Event,
    NodeHealth,
    Opened,
    Reconfigured,
    Recovered,
    Refused,
    Released,
    Scheduled,
)
from hived.events.recorded import RecordedCluster
from hived.events.replay import ReplayError, replay
from hived.spec import ClusterSpec

from ..strategies import cluster_of, nodes_of_8, vc
from .logged import Logged

SPEC = cluster_of(nodes_of_8(2))
LARGER = cluster_of(nodes_of_8(3))


@dataclass(eq=False)
class Slots:
    """A cluster of single slots, small enough to be right at a glance: a request takes the lowest slots, all or none.

    It logs its calls, and can be made to misbehave: ``slots`` that no spec says.
    """

    spec: ClusterSpec
    log: Callable[[str], None] | None = None
    slots: int = 0
    held: dict[str, tuple[int, ...]] = field(default_factory=dict)
    bad: set[str] = field(default_factory=set)
    version: int = 0
    #: what can be committed, and at which version
    offered: list[tuple[Decision, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = self.slots or sum(chain.gpus // 8 for chain in self.spec.chains)
        self._write(Opened(self.spec))

    def _write(self, event: Event) -> None:
        if self.log is not None:
            self.log(to_line(event))

    def _done(self, event: Event) -> None:
        self.version += 1
        self._write(event)

    def _refuse(self, call: str, arguments: tuple[object, ...], where: str, message: str) -> RequestError:
        error = RequestError(where, message)
        self._write(Refused(call, arguments, f"RequestError: {error}"))
        return error

    def schedule(
        self,
        request: Request,
        suggested_nodes: tuple[str, ...] | None = None,
        now: float = 0.0,
        excluded_nodes: tuple[str, ...] = (),
    ) -> Decision:
        if not isinstance(request.priority, int):
            message = f"a whole number, not {request.priority!r}"
            raise self._refuse("schedule", (request, suggested_nodes, now), "priority", message)
        taken = {slot for slots in self.held.values() for slot in slots}
        free = [slot for slot in range(self.slots) if slot not in taken and f"n{slot}" not in self.bad]
        pods = tuple(PodPlacement(f"n{slot}", (0,)) for slot in free[: request.pods])
        decision: Decision = Wait(request.group, (NothingIdle(request.pods, len(free)),))
        if len(pods) == request.pods:
            decision = Bind(request.group, Placement("NODE", pods, (1,) * len(pods)))
        elif request.priority:
            victims = tuple(self.held)
            decision = Preempt(request.group, Placement("NODE", pods), victims)
        self.offered.append((decision, self.version))
        self._write(Scheduled(request, suggested_nodes, now, decision, excluded_nodes))
        return decision

    def commit(self, decision: Decision) -> None:
        if isinstance(decision, Wait) or (decision, self.version) not in self.offered or decision.group in self.held:
            raise self._refuse("commit", (decision,), "decision", "made before other changes; schedule again")
        if isinstance(decision, Bind):
            self.held[decision.group] = tuple(int(pod.node[1:]) for pod in decision.placement.pods)
        self._done(Committed(decision))

    def release(self, group: str) -> None:
        if group not in self.held:
            raise self._refuse("release", (group,), "group", f"`{group}` does not run")
        del self.held[group]
        self._done(Released(group))

    def cancel(self, group: str) -> None:
        self._done(Cancelled(group))

    def set_node_health(self, node: str, healthy: bool) -> None:
        (self.bad.discard if healthy else self.bad.add)(node)
        self._done(NodeHealth(node, healthy))

    def set_device_health(self, node: str, device: int, healthy: bool) -> None:
        self._done(DeviceHealth(node, device, healthy))

    def recover(self, records: tuple[Record, ...]) -> None:
        for group, _, placement, _ in records:
            self.held[group] = tuple(int(pod.node[1:]) for pod in placement.pods)
        self._done(Recovered(records))

    def reconfigure(self, spec: ClusterSpec) -> None:
        self.slots = sum(chain.gpus // 8 for chain in spec.chains)
        self._done(Reconfigured(spec))


def asks(group: str, pods: int = 1, priority: int = 0) -> Request:
    return Request(group, "a", priority, (Member(pods, 1),))


def a_day() -> list[str]:
    """The log of a cluster that everything happened to."""
    log: list[str] = []
    cluster = Slots(SPEC, log.append)
    cluster.recover((Record("old", asks("old"), Placement("NODE", (PodPlacement("n1", (0,)),), (1,))),))
    first = cluster.schedule(asks("a"), ("n0", "n1"), 0.1)
    cluster.commit(first)
    cluster.schedule(asks("b"), None, 2)
    cluster.commit(cluster.schedule(asks("c", priority=1), None, 3.5))
    cluster.release("old")
    cluster.set_node_health("n1", healthy=False)
    cluster.set_device_health("n0", 3, healthy=False)
    cluster.set_node_health("n1", healthy=True)
    cluster.cancel("c")
    with pytest.raises(RequestError):
        cluster.commit(first)
    with pytest.raises(RequestError):
        cluster.release("nobody")
    with pytest.raises(RequestError):
        cluster.schedule(Request("d", "a", priority="high"), ("n1",))  # type: ignore[arg-type]
    cluster.reconfigure(LARGER)
    cluster.commit(cluster.schedule(asks("e", pods=2)))
    return log


# --------------------------------------------------------------------------------------------- the same


def test_a_log_is_carried_out_on_a_new_cluster() -> None:
    log = a_day()
    again: list[str] = []
    cluster = replay(log, lambda spec: Slots(spec, again.append))
    assert cluster.held == {"a": (0,), "e": (1, 2)}
    assert again == log
    kinds = {type(from_line(line)) for line in log}
    assert kinds == {
        *(Opened, Scheduled, Committed, Released, Cancelled),
        *(NodeHealth, DeviceHealth, Recovered, Reconfigured, Refused),
    }


def test_lines_may_have_their_ends() -> None:
    assert replay([f"{line}\n" for line in a_day()], Slots).held == {"a": (0,), "e": (1, 2)}


def test_of_two_offers_either_may_be_committed() -> None:
    log: list[str] = []
    cluster = Slots(SPEC, log.append)
    one, _ = cluster.schedule(asks("a", 1)), cluster.schedule(asks("a", 2))
    cluster.commit(one)
    assert replay(log, Slots).held == {"a": (0,)}


def test_an_offer_that_is_out_of_date_is_refused_again() -> None:
    log: list[str] = []
    cluster = Slots(SPEC, log.append)
    late = cluster.schedule(asks("a"))
    cluster.commit(cluster.schedule(asks("b")))
    assert cluster.schedule(asks("a")) != late
    with pytest.raises(RequestError):
        cluster.commit(late)
    assert replay(log, Slots).held == {"b": (0,)}


@pytest.mark.parametrize("wrong", [Bind("a", Placement("NODE", ())), Bind("a", Placement("NODE", [])), Wait("a", ())])  # type: ignore[arg-type]
def test_a_decision_that_nobody_made_is_refused_again(wrong: Decision) -> None:
    log: list[str] = []
    with pytest.raises(RequestError):
        Slots(SPEC, log.append).commit(wrong)
    assert len(log) == 2
    assert replay(log, Slots).held == {}


def test_a_call_that_was_refused_and_is_not_any_more_is_told_whatever_its_arguments() -> None:
    log: list[str] = []
    cluster = Slots(SPEC, log.append)
    with pytest.raises(RequestError):
        cluster.schedule(asks("a", priority="high"), now=float("nan"))  # type: ignore[arg-type]
    log[1] = log[1].replace('"priority":"high"', '"priority":0')
    with pytest.raises(ReplayError, match="schedule is not refused any more"):
        replay(log, Slots)


# ------------------------------------------------------------------------------------------ differences


def changed(log: list[str], old: str, new: str) -> tuple[list[str], int]:
    """The log with the first ``old`` replaced, and the number of that line."""
    number = next(number for number, line in enumerate(log) if old in line)
    return [*log[:number], log[number].replace(old, new, 1), *log[number + 1 :]], number + 1


@pytest.mark.parametrize(
    ("old", "new", "what", "replayed"),
    [
        ('["n0",[0]]', '["n1",[0]]', "another decision", '["n0",[0]]'),
        ('"idle":0', '"idle":1', "another decision", '"idle":0'),
        ('{"is":"Released","group":"old"}', '{"is":"Released","group":"b"}', "release is refused", "`b` does not run"),
        ('"arguments":["nobody"]', '"arguments":["a"]', "release is not refused any more", '{"is":"Released"'),
        ("`nobody` does", "`somebody` does", "release is refused with another error", "`nobody` does"),
        ('"priority":"high"', '"priority":1', "schedule is not refused any more", '{"is":"Scheduled"'),
        ('"now":2.0', '"now":2', "not as hived writes it", '"now":2.0'),
        ('"call":"release"', '"call":"free"', "free is refused with another error", "no such call with 1 arguments"),
        (
            '"arguments":["nobody"]',
            '"arguments":[]',
            "release is refused with another",
            "no such call with 0 arguments",
        ),
    ],
)
def test_a_difference_names_the_line_and_shows_both(old: str, new: str, what: str, replayed: str) -> None:
    log, number = changed(a_day(), old, new)
    with pytest.raises(ReplayError) as caught:
        replay(log, Slots)
    error = caught.value
    assert error.number == number
    assert error.recorded == log[number - 1]
    assert replayed in error.replayed
    assert str(error).splitlines() == [
        f"event log, line {number}: {error.what}",
        f"  the log has {error.recorded}",
        f"  the replay has {error.replayed}",
    ]
    assert what in error.what


def test_a_cluster_that_decides_otherwise_is_found_out() -> None:
    with pytest.raises(ReplayError, match="event log, line 5: another decision"):
        replay(a_day(), lambda spec: Slots(spec, slots=3))


def test_an_empty_log() -> None:
    with pytest.raises(InputError, match="the event log is empty"):
        replay([], Slots)


def test_a_log_starts_with_its_cluster() -> None:
    with pytest.raises(
        ReplayError, match="event log, line 1: the first event opens the cluster; give the log from its"
    ):
        replay(a_day()[1:], Slots)


def test_a_log_has_one_cluster() -> None:
    log = a_day()
    with pytest.raises(ReplayError, match=f"event log, line {len(log) + 1}: the cluster is opened twice"):
        replay(log + log, Slots)


def test_a_line_that_was_cut_short() -> None:
    log = a_day()
    with pytest.raises(InputError, match=f"event log, line {len(log)}: not one line of JSON .* drop that line"):
        replay([*log[:-1], log[-1][:-10]], Slots)


def test_a_bug_passes_through() -> None:
    class Broken(Slots):
        def release(self, group: str) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replay(a_day(), Broken)


# -------------------------------------------------------------------------------- logs of property tests


class SlotsMachine(RuleBasedStateMachine):
    """Any calls, and their log replays."""

    @initialize()
    def open(self) -> None:
        self.log = Logged()
        self.cluster = Slots(SPEC, self.log)

    @rule(group=st.sampled_from("abc"), pods=st.integers(1, 2), priority=st.integers(0, 1), commits=st.booleans())
    def schedule(self, group: str, pods: int, priority: int, commits: bool) -> None:
        decision = self.cluster.schedule(asks(group, pods, priority))
        if commits and not isinstance(decision, Wait) and group not in self.cluster.held:
            self.cluster.commit(decision)

    @precondition(lambda self: self.cluster.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.cluster.release(data.draw(st.sampled_from(sorted(self.cluster.held))))

    @rule(group=st.sampled_from("xyz"))
    def release_what_is_not_there(self, group: str) -> None:
        with pytest.raises(RequestError):
            self.cluster.release(group)

    @rule(node=st.sampled_from(["n0", "n1"]), healthy=st.booleans())
    def set_node_health(self, node: str, healthy: bool) -> None:
        self.cluster.set_node_health(node, healthy)

    def teardown(self) -> None:
        assert self.log.replayed(Slots).held == self.cluster.held


TestAnyCallsReplay = SlotsMachine.TestCase
TestAnyCallsReplay.settings = settings(max_examples=30, stateful_step_count=20)


class FailingMachine(RuleBasedStateMachine):
    """Fails, on purpose, once two slots are taken."""

    def __init__(self) -> None:
        self.offered: list[tuple[Decision, int]] = []
        super().__init__()
        self.cluster = Slots(SPEC, Logged())

    @rule()
    def start(self) -> None:
        self.cluster.commit(self.cluster.schedule(asks(f"job-{len(self.cluster.held)}")))
        assert len(self.cluster.held) < 2

    @rule(node=st.sampled_from(["n5", "n6"]))
    def lose(self, node: str) -> None:
        self.cluster.set_node_health(node, healthy=False)


def test_a_failing_machine_shows_the_log_of_its_smallest_example() -> None:
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(FailingMachine, settings=settings(stateful_step_count=5))
    shown = "\n".join(caught.value.__notes__).splitlines()
    lines = [line for line in shown if line.startswith('{"is":')]
    assert [type(from_line(line)) for line in lines] == [Opened, Scheduled, Committed, Scheduled, Committed]
    assert lines[0] == to_line(Opened(SPEC))
    assert replay(lines, Slots).held == {"job-0": (0,), "job-1": (1,)}, "what was shown can be carried out by itself"


def test_excluded_nodes_are_in_the_log_where_there_are_some_and_are_carried_out_again() -> None:
    log: list[str] = []
    chain = nodes_of_8(3)
    cluster = RecordedCluster(cluster_of(chain, vc("a", (chain, chain.node_level, 3))), log.append)
    cluster.commit(cluster.schedule(asks("anywhere"), excluded_nodes=[]))
    cluster.commit(cluster.schedule(asks("elsewhere"), excluded_nodes={"node-node-2", "node-node-0"}))
    with pytest.raises(RequestError):
        cluster.schedule(asks("wrong"), excluded_nodes="n0")
    assert ["excluded_nodes" in line for line in log[1::2]] == [False, True, True]
    assert '"excluded_nodes":["node-node-0","node-node-2"]' in log[3]
    again: list[str] = []
    assert replay(log, lambda spec: RecordedCluster(spec, again.append)).groups() == ("anywhere", "elsewhere")
    assert again == log
