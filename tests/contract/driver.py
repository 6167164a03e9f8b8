"""A driver that carries out the decisions of a cluster, and checks all of them against a model of its own.

The model is updated by the contract alone: from requests, decisions, commits and ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from hived import Bind, Cluster, Preempt, RecordedCluster, Request, RequestError, Wait, replay
from hived.cluster.decisions import Decision, PodPlacement, Record
from hived.cluster.explain.reasons import Suspended
from hived.cluster.states import GroupState
from hived.spec import ClusterSpec

from ..cluster.helpers import check_bindings
from .hardware import Device, Hardware

#: pods of a placement
Pods = tuple[PodPlacement, ...]

RUNNING = (GroupState.ALLOCATED, GroupState.BEING_PREEMPTED)


def devices(pods: Pods) -> set[Device]:
    """All devices of these pods."""
    return {(node, device) for node, indices in pods for device in indices}


@dataclass
class Run:
    request: Request
    pods: Pods
    #: at some time it was made opportunistic
    downgraded: bool = False
    #: what it was started on: a new spec may leave out some of it
    whole: Pods = ()
    #: it runs beside the owners of its devices
    guest: bool = False

    def __post_init__(self) -> None:
        self.whole = self.whole or self.pods


@dataclass
class Reservation:
    """A group that waits for its victims to end."""

    request: Request
    pods: Pods
    victims: set[str] = field(default_factory=set)


class Driver:
    """A cluster, and the caller that carries out its decisions."""

    def __init__(
        self,
        spec: Mapping[str, Any] | ClusterSpec,
        cluster: Cluster | None = None,
        log: bool = False,
        careful: bool = True,
    ) -> None:
        #: check everything after every step; otherwise only the decisions
        self.careful = careful
        self.lines: list[str] = []
        opened = RecordedCluster.from_spec(spec, self.lines.append) if log else Cluster.from_spec(spec)
        self.cluster = cluster or opened
        self.hardware = Hardware(self.cluster.spec)
        self.running: dict[str, Run] = {}
        self.preempting: dict[str, Reservation] = {}
        self.bad: set[Device] = set()
        self.now = 0.0
        self._asked: dict[str, Request] = {}

    # asking

    def ask(self, request: Request, suggested: Collection[str] | None = None) -> Decision:
        """Schedule a request, and check that nothing has changed by it."""
        self.now += 1.0
        before = self.cluster.snapshot()
        decision = self.cluster.schedule(request, suggested_nodes=suggested, now=self.now)
        assert decision.group == request.group
        if isinstance(decision, Wait):
            assert decision.reasons, "a wait without a reason"
            assert len({reason.kind for reason in decision.reasons}) == len(decision.reasons), "a reason twice"
            if (lost := self.preempting.pop(request.group, None)) is not None:
                assert not {pod.node for pod in lost.pods} <= set(suggested or ()), "it could keep its reservation"
        else:
            assert self.cluster.snapshot() == before, "deciding has changed the state"
            self._check_decision(request, decision, suggested)
        self.check()
        return decision

    def refused(self, request: Request, field_name: str) -> RequestError:
        """Check that the request is an error in that field, and changes nothing."""
        before = self.cluster.snapshot()
        with pytest.raises(RequestError) as caught:
            self.cluster.schedule(request, now=self.now)
        assert caught.value.field.startswith(field_name), f"{caught.value.field}: {caught.value.message}"
        assert caught.value.message
        assert self.cluster.snapshot() == before, "a refused request has changed the state"
        self.check()
        return caught.value

    # carrying out

    def commit(self, decision: Decision) -> None:
        """Commit a decision, in the model too."""
        assert not isinstance(decision, Wait)
        request = self._asked[decision.group]
        with self.evicting():
            self.cluster.commit(decision)
        for name in decision.overtaken:
            del self.preempting[name]
        for name in decision.downgraded:
            self.running[name].downgraded = True
        if isinstance(decision, Bind):
            self.preempting.pop(decision.group, None)
            guest = self.cluster.group(decision.group).guest
            self.running.setdefault(decision.group, Run(request, decision.placement.pods, guest=guest))
        elif (known := self.preempting.get(decision.group)) and known.pods == decision.placement.pods:
            assert known.victims <= set(decision.victims), "it was carried out before, for other victims"
        else:
            self.preempting[decision.group] = Reservation(request, decision.placement.pods, set(decision.victims))
        self.check()

    def run(self, request: Request, suggested: Collection[str] | None = None) -> Decision:
        """Schedule, and end the victims one by one until the group starts. Returns the first decision."""
        first = self.ask(request, suggested)
        if isinstance(first, Wait):
            return first
        self.commit(first)
        if isinstance(first, Preempt):
            while request.group in self.preempting:
                self.step(request, suggested)
        assert request.group in self.running
        return first

    def start(self, request: Request, suggested: Collection[str] | None = None) -> Decision:
        """Schedule and commit; victims stay."""
        decision = self.ask(request, suggested)
        if not isinstance(decision, Wait):
            self.commit(decision)
        return decision

    def step(self, request: Request, suggested: Collection[str] | None = None) -> None:
        """End one victim of a preempting group, and schedule it again."""
        reservation = self.preempting[request.group]
        self.release(min(reservation.victims))
        again = self.ask(request, suggested)
        assert not isinstance(again, Wait), "it has lost its reservation"
        if again.placement.pods != reservation.pods:
            self._check_moved(request, again, reservation)
            self.commit(again)
        elif isinstance(again, Preempt):
            assert set(again.victims) == reservation.victims
            assert reservation.victims
        else:
            assert not reservation.victims
            self.commit(again)

    def _check_moved(self, request: Request, again: Bind | Preempt, reservation: Reservation) -> None:
        """Check that a reservation moves only to start at once, or to spare all remaining victims of its own VC."""
        assert reservation.victims, "the placement has changed without victims left"
        if isinstance(again, Preempt):
            assert any(self.guaranteed(name) for name in reservation.victims)
            assert not any(self.guaranteed(name) for name in again.victims)

    def bind(self, request: Request, suggested: Collection[str] | None = None) -> Bind:
        """Schedule and commit a group that has to start at once."""
        decision = self.run(request, suggested)
        assert isinstance(decision, Bind), decision
        return decision

    def preempt(self, request: Request, suggested: Collection[str] | None = None) -> Preempt:
        """Schedule and commit a group that has to preempt; its victims run on."""
        decision = self.ask(request, suggested)
        assert isinstance(decision, Preempt), decision
        self.commit(decision)
        return decision

    def wait(self, request: Request, suggested: Collection[str] | None = None) -> Wait:
        """Schedule a group that has to wait."""
        decision = self.ask(request, suggested)
        assert isinstance(decision, Wait), decision
        return decision

    def release(self, *names: str) -> None:
        for name in names:
            with self.evicting():
                self.cluster.release(name)
            self._gone(name)
            self.check()

    @contextmanager
    def evicting(self) -> Iterator[None]:
        """A change within it evicts guests from leaf cells of groups that have none, and the cluster reports them."""
        yield
        evicted = self.cluster.evicted()
        groups = [self.cluster.group(name) for name in self.cluster.groups()]
        known = {group.name for group in groups}
        refused: set[str] = set()
        for group in groups:
            if group.state in RUNNING and not group.guest and group.placement is not None:
                takes = devices(group.placement.pods)
                refused |= {
                    name
                    for name, run in self.running.items()
                    if run.guest and name in known and name != group.name and devices(run.pods) & takes
                    if not self.accepts(group.vc, run.request.vc)
                }
        assert (set(evicted), len(evicted)) == (refused, len(refused))
        for name in evicted:
            reason = self.cluster.group(name).reasons[0]
            assert isinstance(reason, Suspended)
            assert reason.owner in known
            del self.running[name]

    def accepts(self, owner: str, guest: str) -> bool:
        """Whether a VC has guests of another, or of its own."""
        sharing = {vc.name: vc.guests for vc in self.cluster.spec.virtual_clusters}.get(owner, "none")
        return sharing == "all" or (sharing == "own" and owner == guest)

    def _gone(self, name: str) -> None:
        del self.running[name]
        for reservation in self.preempting.values():
            reservation.victims.discard(name)

    def cancel(self, name: str) -> None:
        """Withdraw a preempting or pending group."""
        self.cluster.cancel(name)
        self.preempting.pop(name, None)
        self.check()

    # hardware

    def set_node(self, node: str, healthy: bool) -> None:
        """Break or heal all devices of a node."""
        self.cluster.set_node_health(node, healthy=healthy)
        self._turned({(node, device) for device in self.hardware.devices_of(node)}, healthy)

    def set_device(self, node: str, device: int, healthy: bool) -> None:
        self.cluster.set_device_health(node, device, healthy=healthy)
        self._turned({(node, device)}, healthy)

    def _turned(self, which: set[Device], healthy: bool) -> None:
        if healthy:
            self.bad -= which
        else:
            self.bad |= which
        for name, reservation in list(self.preempting.items()):
            if devices(reservation.pods) & self.bad:
                del self.preempting[name]
        self.check()

    def reconfigure(self, spec: Mapping[str, Any] | ClusterSpec) -> dict[str, list[str]]:
        """Give the cluster a new spec: groups run on where they are, as far as that exists. The report, by kind."""
        before, preempting = dict(self.running), set(self.preempting)
        state = self.cluster.snapshot()
        would = self.cluster.would_reconfigure(spec)
        assert self.cluster.snapshot() == state, "a question has changed the state"
        report = self.cluster.reconfigure(spec)
        assert would == report
        lost, downgraded = ([name for name, *_ in listed] for listed in (report.lost, report.downgraded))
        self.hardware = Hardware(self.cluster.spec)
        there = {(node, device) for node in self.hardware.nodes for device in self.hardware.devices_of(node)}
        self.bad &= there
        self.preempting.clear()
        for name in report.cancelled:
            self.running.pop(name, None)
        for name, run in self.running.items():
            listed = {*report.kept, *downgraded} if devices(run.whole) <= there else lost
            assert name in listed, f"{name} is not reported as it runs now"
            if name in {*lost, *downgraded}:  # later, a spec may give it its guarantee again
                run.downgraded = True
                assert not self.guaranteed(name)
            placement = self.cluster.group(name).placement
            assert placement is not None
            untouched = {device for pod in run.whole if devices((pod,)) <= there for device in devices((pod,))}
            assert untouched <= devices(placement.pods) <= devices(run.whole) & there, f"{name} has moved"
            run.pods = placement.pods
        assert not set(report.kept) & set(downgraded)
        assert all(before[name].guest for name in before.keys() - self.running.keys()), "only guests may have to go"
        for name in preempting & {*self.cluster.groups()}:
            assert self.cluster.group(name).state is GroupState.PENDING, "it asks again"
        self.check()
        return {"kept": sorted(report.kept), "downgraded": sorted(downgraded), "lost": sorted(lost)}

    def recovered(self, spec: Mapping[str, Any] | ClusterSpec, records: Iterable[Record]) -> Driver:
        """A driver of a fresh cluster that has recovered these records, with the same hardware broken."""
        cluster = Cluster.from_spec(spec)
        for node, device in sorted(self.bad):
            cluster.set_device_health(node, device, healthy=False)
        cluster.recover(records)
        other = Driver(spec, cluster)
        other.bad = set(self.bad)
        other.running = {
            name: Run(run.request, run.pods, run.downgraded, guest=run.guest) for name, run in self.running.items()
        }
        other.check()
        return other

    def traded(self) -> None:
        """Check a trade: all groups keep their devices, and reservations their places."""
        self.hardware = Hardware(self.cluster.spec)
        holders: dict[str, Run | Reservation] = {**self.running, **self.preempting}
        for name, held in holders.items():
            placement = self.cluster.group(name).placement
            assert placement is not None
            assert placement.pods == held.pods, f"{name} has moved"

    # checking

    def guaranteed(self, name: str) -> bool:
        """Whether a running or preempting group counts as guaranteed now."""
        return bool(self.cluster.group(name).guaranteed)

    def user_of(self) -> dict[Device, str]:
        """The group on each device; no two share one."""
        users: dict[Device, str] = {}
        for name, run in self.running.items():
            for device in devices(run.pods) if not run.guest else ():
                assert users.setdefault(device, name) == name, f"{device}: {users[device]} and {name}"
        return users

    def _check_decision(self, request: Request, decision: Bind | Preempt, suggested: Collection[str] | None) -> None:
        self._asked[request.group] = request
        placement = decision.placement
        wanted = devices(placement.pods)
        if request.group in self.running:
            assert placement.pods == self.running[request.group].pods
            return
        first_answer = request.group not in self.preempting
        # a loan that preempts under soft affinity has a test of its own (test_gangs.py)
        capped = first_answer and not (request.opportunistic and request.soft_affinity)
        self.hardware.check_fits(request, placement, decision.relaxed, capped)
        assert placement.guaranteed == (not request.opportunistic)
        assert not wanted & self.bad, "placed on bad hardware"
        if suggested is not None:
            assert {pod.node for pod in placement.pods} <= set(suggested)
        for name, reservation in self.preempting.items():
            if name != request.group and name not in decision.overtaken:
                assert not wanted & devices(reservation.pods), f"the reservation of {name} is not respected"
        victims = decision.victims if isinstance(decision, Preempt) else ()
        if isinstance(decision, Preempt):
            assert victims
            assert len(set(victims)) == len(victims)
        users = self.user_of()
        in_the_way = {users[device] for device in wanted if device in users}
        if request.guest:
            assert not victims
            assert all(self.guaranteed(name) for name in in_the_way), "it would be their guest"
            assert all(self.accepts(self.running[name].request.vc, request.vc) for name in in_the_way)
            return
        assert in_the_way <= set(victims), f"{in_the_way} run there, the victims are {victims}"
        for victim in victims:
            self._check_victim(request, victim, in_the_way)
        for name in decision.downgraded:
            run = self.running[name].request
            assert run.lazy_preemption
            assert run.vc == request.vc
            assert run.priority < request.priority
        for name in decision.overtaken:
            other = self.preempting[name].request
            assert other.priority < request.priority or (other.opportunistic and request.opportunistic)
            assert other.opportunistic or other.vc == request.vc

    def _check_victim(self, request: Request, victim: str, in_the_way: set[str]) -> None:
        run = self.running[victim].request
        if self.guaranteed(victim):
            assert run.vc == request.vc, f"{victim} is guaranteed, and of another VC"
            assert run.priority < request.priority, f"{victim} is not of lower priority"
        else:
            assert victim in in_the_way, f"{victim} is opportunistic and not in the way"
        if request.opportunistic:
            assert not self.guaranteed(victim)
            assert run.vc != request.vc, f"{victim} is a victim of its own tenant's opportunistic request"

    def check(self) -> None:
        if not self.careful:
            return
        self.cluster.validate()
        self.cluster.check_safety()
        self.user_of()
        self._check_groups()
        self._check_reserved_devices()
        check_bindings(self.cluster)

    def _check_groups(self) -> None:
        known = self.cluster.groups()
        assert len(set(known)) == len(list(known))
        assert set(known) >= {*self.running, *self.preempting}
        for name in known:
            group = self.cluster.group(name)
            assert group.name == name
            if name not in self.running and name not in self.preempting:
                assert group.state is GroupState.PENDING, f"{name} is {group.state}, and in no book"
        for name, run in self.running.items():
            group = self.cluster.group(name)
            by = {other for other, reservation in self.preempting.items() if name in reservation.victims}
            assert group.state is (GroupState.BEING_PREEMPTED if by else GroupState.ALLOCATED), name
            assert set(group.preempted_by) == by
            assert (group.vc, group.priority) == (run.request.vc, run.request.priority)
            assert group.guest == run.guest == run.request.guest
            assert group.placement is not None
            assert group.placement.pods == run.pods, f"{name} has moved"
            if not run.downgraded:
                assert group.guaranteed == (not run.request.opportunistic), name
        for name, reservation in self.preempting.items():
            group = self.cluster.group(name)
            assert group.state is GroupState.PREEMPTING, name
            assert set(group.victims) & set(self.running) == reservation.victims
            assert group.placement is not None
            assert group.placement.pods == reservation.pods
        records = {record.group: (record.request, record.placement) for record in self.cluster.records()}
        assert list(records) == sorted(records)
        assert {*self.running} <= set(records) <= {*self.running, *self.preempting}
        for name, run in self.running.items():
            assert records[name][0] == run.request
            assert records[name][1].pods == run.pods

    def _check_reserved_devices(self) -> None:
        """No two reservations overlap, and a group on reserved devices is a victim of the preemptor."""
        users = self.user_of()
        owners: dict[Device, str] = {}
        for name, reservation in self.preempting.items():
            for device in devices(reservation.pods):
                assert owners.setdefault(device, name) == name, f"{device}: reserved by {owners[device]} and {name}"
                assert device not in users or users[device] in reservation.victims, f"{users[device]} on {device}"


def running(spec: Mapping[str, Any] | ClusterSpec, *groups: Request | tuple[Request, str], log: bool = False) -> Driver:
    """A driver of a cluster in which these groups were started one by one, some on nodes that are given by name."""
    driver = Driver(spec, log=log)
    for group in groups:
        request, nodes = group if isinstance(group, tuple) else (group, None)
        driver.bind(request, None if nodes is None else nodes.split())
    return driver


class Case(NamedTuple):
    """A scenario in one line: a request beside running groups, and at whose cost it is had."""

    spec: Mapping[str, Any]
    running: Sequence[Request | tuple[Request, str]]
    request: Request
    #: in the order of their starts; none: it starts at once; None: it has to wait
    victims: tuple[str, ...] | None = ()
    downgraded: tuple[str, ...] = ()
    #: the only nodes that it may use
    suggested: str | None = None

    def check(self) -> None:
        """Ask, and compare the answer."""
        decision = running(self.spec, *self.running).ask(self.request, self.suggested and self.suggested.split())
        if self.victims is None:
            assert isinstance(decision, Wait)
        else:
            assert isinstance(decision, Preempt if self.victims else Bind), decision
            assert (getattr(decision, "victims", ()), decision.downgraded) == (self.victims, self.downgraded), decision


def nodes_of(driver: Driver, name: str) -> list[str]:
    placement = driver.cluster.group(name).placement
    return [] if placement is None else [pod.node for pod in placement.pods]


def states(driver: Driver, *names: str) -> list[GroupState]:
    return [driver.cluster.group(name).state for name in names]


def replays(driver: Driver) -> bool:
    """Whether the log of a driver gives the same cluster again."""
    return replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()
