"""A fake Kubernetes for the gang scheduler: API server, kube-scheduler, kubelets, owners and network in one process.

``World.pods`` and ``World.nodes`` are the true state. Updates reach the gang scheduler late, in any order, with
versions left out; its bindings get lost, fail or land late; it dies at any moment, and a new one takes over. After
every step its state is re-derived (``validate``), and device use is checked by the annotations of bound pods alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

from msgspec.structs import replace

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.explain.reasons import Misconfigured, ReasonKind
from hived.cluster.explain.sentences import in_lines
from hived.cluster.requests import Member
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.engines.kubernetes.client.api import ApiError
from hived.engines.kubernetes.gangs import extender_answers as answering
from hived.engines.kubernetes.gangs.explaining import GangExplainer
from hived.engines.kubernetes.gangs.gang import (
    Annotate,
    Bind,
    Binding,
    Evict,
    Gang,
    Instruction,
    PodEntry,
    RecordEvent,
    Wake,
)
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Condition, Node, Pod, PodSpec, PodStatus
from hived.engines.kubernetes.stored_market import StoredMarket
from hived.errors import ConflictError, InputError, NotFoundError
from hived.exchange import Balanced
from hived.policies import YarnCS
from hived.scheduling import Entry, Status
from hived.spec.compiled import ClusterSpec

from .checking import validate
from .pods import Device, devices_of, flat_spec, labelled, node, node_names, on, pod, terminating, uid_of

Members = tuple[Member, ...] | None


@dataclass
class Sent:
    """A Binding in flight."""

    binding: Binding
    gang_scheduler: GangScheduler
    stale: bool = False  #: of a former gang scheduler


class KilledError(Exception):
    """The process is killed."""


class Record:
    """The ConfigMap in which trades are kept; a write may fail, be lost, or its answer be lost."""

    name = "configmap/hived/trades"

    def __init__(self, rng: Random) -> None:
        self.text: str | None = None
        self.rng = rng
        #: what happens while a record is written
        self.meanwhile: Callable[[], None] = lambda: None
        #: whether the process may be killed before or after a write
        self.mortal = False

    async def load(self) -> str | None:
        return self.text

    async def save(self, text: str) -> None:
        self.meanwhile()
        fate = self.rng.random()
        if fate < 0.1:
            raise ApiError("forbidden", 403)
        if fate < 0.2:
            raise ApiError("no answer", 0)
        if self.mortal and fate < 0.25:
            raise KilledError
        self.text = text
        if fate < 0.3:
            raise ApiError("its answer is lost", 0)
        if self.mortal and fate < 0.35:
            raise KilledError


def at_once(work: Coroutine[Any, Any, object]) -> None:
    """Run what never waits, within an event loop or without one."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


class World:
    """The fake cluster, with pods of namespace t by their names. What changes it ends with :meth:`step`, which checks
    all invariants."""

    def __init__(
        self,
        spec: ClusterSpec | None = None,
        seed: int = 0,
        cluster: Callable[[ClusterSpec], Cluster] = Cluster,
        **vcs: int,
    ) -> None:
        """``vcs``, without a spec: the numbers of nodes that they have reserved."""
        self.spec = spec or flat_spec(**vcs)
        self.random = Random(seed)
        self.record = Record(self.random)
        self._cluster = cluster
        self.now = 1.0
        self._numbers = count(1)
        self.nodes: dict[str, Node] = {name: node(name) for name in node_names(self.spec)}
        #: pods in the API server, by uid
        self.pods: dict[str, Pod] = {}
        #: members of a pod's gang by its owner, by uid
        self.members: dict[str, Members] = {}
        #: versions of a pod (None: deleted) that the gang scheduler has not got yet
        self.updates: dict[str, deque[Pod | None]] = {}
        self.node_updates: dict[str, Node | None] = {}
        #: waiting pods in kube-scheduler's active queue; it holds the others back
        self.active: set[str] = set()
        self.sent: list[Sent] = []
        #: bindings without an answer to the current gang scheduler
        self.unanswered: set[str] = set()
        self.todo: deque[Instruction] = deque()
        #: pods that another client has bound or changed: their annotations prove nothing
        self.untrusted: set[str] = set()
        #: untrusted pods, and pods whose labels have changed
        self.suspect: set[str] = set()
        #: groups of such pods: their placement may change in a restart
        self.tainted: set[str] = set()
        self.log: list[str] = []
        self.events: list[RecordEvent] = []
        #: pods whose disruption budgets allow no eviction
        self.budgets: set[str] = set()
        #: how often the core was asked for a decision, per VC
        self.calls: Counter[str] = Counter()
        #: set by the next step
        self.news = asyncio.Event()
        self.gang_scheduler = self.new_scheduler()
        self.gang_scheduler.start(self.nodes.values(), [], self.now)
        self.step()

    def new_scheduler(self) -> GangScheduler:
        """A new gang scheduler, without state."""
        self.stored = StoredMarket(self.record, Balanced(), lambda: self.now)  # type: ignore[arg-type]  # stands in for it
        at_once(self.stored.load())
        trading = self.stored.restored(self.spec)
        cluster = self._cluster(trading.in_force())
        schedule = cluster.schedule

        def counted(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls[request.vc] += 1
            return schedule(request, *args, **kwargs)

        cluster.schedule = counted  # type: ignore[method-assign]  # a spy
        return GangScheduler(cluster, YarnCS(), trading=trading)

    # -- the API server -------------------------------------------------------------------------------------------

    def write(self, there: Pod) -> None:
        """Create or change a pod; the update is delivered later."""
        uid = there.metadata.uid
        self.pods[uid] = replace(there, metadata=replace(there.metadata, resource_version=str(next(self._numbers))))
        self.updates.setdefault(uid, deque()).append(self.pods[uid])

    def remove(self, one: Pod | str) -> None:
        uid = uid_of(one)
        del self.pods[uid]
        self.updates.setdefault(uid, deque()).append(None)
        self.active.discard(uid)

    def create(self, *pods: Pod, members: Members = None, deliver: bool = True) -> None:
        for one in pods:
            self.members[one.metadata.uid] = members
            self.write(one)
            self.active.add(one.metadata.uid)
        if deliver:
            self.deliver_all()

    def delete(self, one: Pod | str) -> None:
        """Delete a pod: a waiting one is removed at once, a bound one once its kubelet has ended it."""
        uid = uid_of(one)
        there = self.pods.get(uid)
        if there is None or there.metadata.deletion_timestamp is not None:
            return
        if there.spec.node_name:
            self.write(terminating(there))
        else:
            self.remove(uid)

    def land(self, sent: Sent) -> bool:
        """A Binding reaches the API server; whether it is accepted."""
        there = self.pods.get(sent.binding.uid)
        if there is None or there.spec.node_name or there.ended or there.metadata.deletion_timestamp is not None:
            return False
        if sent.stale:
            self.untrusted.add(sent.binding.uid)
            self.taint(there)
        self.write(on(there, sent.binding.node, sent.binding.annotations))
        self.active.discard(sent.binding.uid)
        return True

    def taint(self, there: Pod) -> None:
        """Mark a pod, and the gangs that it may affect, as changed by another client."""
        self.suspect.add(there.metadata.uid)
        entry = self.gang_scheduler.pods.get(there.metadata.uid)
        if entry is not None and entry.gang is not None:
            self.tainted.add((entry.gang.part_of or entry.gang).name)
        mine = devices_of(self.pods.get(there.metadata.uid, there))
        for gang in self.gang_scheduler.gangs.values():
            places = {(p.node, d) for p in (gang.placement.pods if gang.placement else ()) for d in p.leaf_cells}
            if places & mine:
                self.tainted.add(gang.name)

    # -- updates ------------------------------------------------------------------------------------------------------

    def deliver(self, one: Pod | str, newest: bool = True) -> None:
        """Deliver the next version of a pod, or only its newest."""
        uid = uid_of(one)
        versions = self.updates[uid]
        version = versions.pop() if newest else versions.popleft()
        if newest or not versions:
            del self.updates[uid]
        if version is None:
            self.gang_scheduler.pod_removed(uid, self.now)
        else:
            self.gang_scheduler.pod_changed(version, self.members.get(uid), self.now)
        self.step()

    def deliver_all(self) -> None:
        for uid in list(self.updates):
            self.deliver(uid)
        self.deliver_nodes()

    def deliver_nodes(self) -> None:
        for name, there in list(self.node_updates.items()):
            del self.node_updates[name]
            if there is None:
                self.gang_scheduler.node_removed(name, self.now)
            else:
                self.gang_scheduler.node_changed(there, self.now)
            self.step()

    def set_node(self, there: Node, deliver: bool = True) -> None:
        self.nodes[there.metadata.name] = self.node_updates[there.metadata.name] = there
        if deliver:
            self.deliver_nodes()

    def remove_node(self, name: str, deliver: bool = True) -> None:
        """Remove a node, without the pods on it."""
        self.nodes.pop(name, None)
        self.node_updates[name] = None
        if deliver:
            self.deliver_nodes()

    # -- kube-scheduler -------------------------------------------------------------------------------------------

    @property
    def usable(self) -> list[str]:
        """Nodes that kube-scheduler offers a pod without constraints."""
        return [name for name, there in self.nodes.items() if there.ready and not there.spec.unschedulable]

    def ask(self, one: Pod | str, offered: Sequence[str] | None = None, bind: bool = True) -> str:
        """kube-scheduler filters a pod and follows the answer; returns its result label."""
        uid = uid_of(one)
        there = self.pods[uid]
        offered = self.usable if offered is None else offered
        self.active.discard(uid)
        try:
            entry = self.gang_scheduler.asked(there, self.members.get(uid), offered, self.now)
        except NotFoundError:
            return "gone"
        word, answer = answering.answer(self.gang_scheduler, entry, offered, self.random.random() < 0.5)
        nodes = answer.NodeNames or []
        assert set(nodes) <= set(offered)
        assert len(nodes) <= 1
        assert nodes or not offered or answer.FailedNodes or answer.FailedAndUnresolvableNodes
        self.step()
        if nodes and bind:
            self.bind(uid, nodes[0])
        elif not nodes and not self.pods[uid].spec.node_name:
            failed = Condition(
                type="PodScheduled",
                status="False",
                reason="Unschedulable",
                message="0/4 nodes are available: 4 hived: it waits.",
            )
            self.write(replace(self.pods[uid], status=PodStatus(conditions=[failed])))
            if word == "preempting":
                self.preempt(entry)
        return word

    def question(self, one: Pod | str, offered: Sequence[str] | None = None, emptied: bool = False) -> str:
        """kube-scheduler filters, or preempts for, a pod; it neither binds it nor deletes victims. The result label."""
        uid, offered = uid_of(one), self.usable if offered is None else offered
        self.active.discard(uid)
        entry = self.gang_scheduler.asked(self.pods[uid], self.members.get(uid), offered, self.now, emptied=emptied)
        word, _ = answering.answer(self.gang_scheduler, entry, offered, True)
        self.step()
        return word

    def preempt(self, entry: PodEntry) -> None:
        """kube-scheduler asks for the victims, and deletes those on one node."""
        if entry.uid in self.pods and self.random.random() < 0.5:
            there, usable = self.pods[entry.uid], self.usable
            some = self.random.sample(usable, self.random.randint(0, len(usable)))
            entry = self.gang_scheduler.asked(there, self.members.get(entry.uid), some, self.now, emptied=True)
            self.step()
        found = answering.preemption(self.gang_scheduler, entry).NodeNameToMetaVictims
        if found and self.random.random() < 0.8:
            for victim in found[self.random.choice(sorted(found))].Pods or ():
                self.delete(victim.UID)

    def bind(self, one: Pod | str, where: str, outcome: str = "done") -> None:
        """kube-scheduler binds a pod; ``outcome`` of the call: done, failed, lost (done or not), or late."""
        uid = uid_of(one)
        try:
            binding = self.gang_scheduler.binding(uid, where)
        except (NotFoundError, ConflictError):
            self.active.add(uid)
            return
        gang = self.gang_scheduler.pods[uid].gang
        assert gang is not None
        assert gang.state is JobState.RUNNING, "a pod of a preempted gang is bound"
        self.step()
        sent = Sent(binding, self.gang_scheduler)
        if outcome == "late":
            self.sent.append(sent)
            return
        taken = outcome != "failed" and not (outcome == "lost" and self.random.random() < 0.5) and self.land(sent)
        if outcome == "lost":
            self.unanswered.add(uid)
        else:
            self.answered(uid, taken)

    def answered(self, one: Pod | str, taken: bool) -> None:
        uid = uid_of(one)
        if taken:
            self.gang_scheduler.bound(uid, self.now)
        else:
            self.gang_scheduler.bind_failed(uid, self.now)
            if uid in self.pods and not self.pods[uid].spec.node_name:
                self.active.add(uid)
        self.step()

    def read_binding(self, uid: str) -> None:
        """Read a pod whose Binding has an unknown outcome."""
        self.unanswered.discard(uid)
        if uid in self.pods:
            self.answered(uid, bool(self.pods[uid].spec.node_name))

    def arrive(self, sent: Sent) -> None:
        """A late Binding lands, or is refused."""
        self.sent.remove(sent)
        taken = self.land(sent)
        if sent.gang_scheduler is self.gang_scheduler:
            self.answered(sent.binding.uid, taken)
        elif not taken and sent.binding.uid in self.pods:
            self.active.add(sent.binding.uid)  # kube-scheduler tries again what failed

    # -- instructions -------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.gang_scheduler.due(self.now)
        self.step()

    def step(self) -> None:
        """Dispatch, collect the instructions, and check all invariants."""
        if self.stored.tick(self.gang_scheduler):
            self.trade(LiveTrading.advance)
        self.gang_scheduler.dispatch(self.now)
        before = self.gang_scheduler.seq
        self.gang_scheduler.dispatch(self.now)
        assert self.gang_scheduler.seq == before, "one dispatch did not start every gang that could start"
        for instruction in self.gang_scheduler.turn():
            if isinstance(instruction, RecordEvent):
                self.events.append(instruction)
            else:
                self.todo.append(instruction)
        self.check()
        self.news.set()
        self.news = asyncio.Event()

    def trade(self, act: Callable[[LiveTrading, float], object]) -> None:
        """Change the market; the API server may not take the record, or not answer."""
        before = {gang.name for gang in self.gang_scheduler.gangs.values() if gang.guaranteed}
        known = self.gang_scheduler.seq
        try:
            at_once(self.stored.change(lambda: self.gang_scheduler, act))
        except (InputError, ApiError):
            pass
        except KilledError:
            self.record.mortal = False
            there = [name for name, (_, pods, own, on) in self.placements().items() if own and len(on) == len(pods)]
            self.restart(compare=False)
            now = self.placements()
            lost = [name for name in there if name in now and not now[name][2] and not self.suspect]
            over = any(event.kind == "trade_over" or event.data.get("by") for event in self.gang_scheduler.recent)
            assert over or not lost, f"a trade whose writing was cut short took the cells of {lost}"
            return
        new = [event for event in self.gang_scheduler.recent if event.seq > known]
        lost = [event.job for event in new if event.kind == "downgraded" and event.job in before]
        lost = [] if any(event.data.get("by") for event in new) else lost  # by a lazy preemption meanwhile
        assert not lost or any(event.kind == "trade_over" for event in new), f"a trade took the cells of {lost}"

    def carry_out(self) -> None:
        match self.todo.popleft():
            case Wake(uid=uid):
                if uid in self.pods and not self.pods[uid].spec.node_name:
                    self.active.add(uid)
                    self.write(labelled(self.pods[uid], turn=str(next(self._numbers))))
            case Evict(uid=uid, delete=in_any_case):
                if uid in self.budgets and not in_any_case:
                    self.gang_scheduler.evict_failed(uid, self.now)
                else:
                    self.delete(uid)
            case Annotate(uid=uid, annotations=notes):
                if uid in self.pods:
                    there = self.pods[uid]
                    merged = {**(there.metadata.annotations or {}), **dict(notes)}
                    self.write(replace(there, metadata=replace(there.metadata, annotations=merged)))
            case Bind(uid=uid):
                entry = self.gang_scheduler.pods.get(uid)
                if entry is not None and entry.given is not None:
                    self.bind(uid, entry.given.node)

    def carry_out_all(self) -> None:
        while self.todo:
            self.carry_out()

    # -- kubelets and owners --------------------------------------------------------------------------------------

    def kubelet(self) -> None:
        for uid, there in list(self.pods.items()):
            if there.metadata.deletion_timestamp is not None:
                self.remove(uid)

    def end(self, *ones: Pod | str) -> None:
        for one in ones:
            self.delete(one)
        self.kubelet()

    def recreated(self, there: Pod, created: int) -> Pod:
        """The replacement that the owner of ``there`` makes: the same except for its uid."""
        bare = {keys.POD_SPEC: said} if (said := there.annotation(keys.POD_SPEC)) is not None else None
        uid = f"{there.metadata.uid.partition('#')[0]}#{next(self._numbers)}"
        labels = {key: value for key, value in (there.metadata.labels or {}).items() if key != keys.TURN}
        metadata = replace(
            there.metadata,
            uid=uid,
            annotations=bare,
            labels=labels,
            deletion_timestamp=None,
            creation_timestamp=pod("x", created=created).metadata.creation_timestamp,
        )
        spec = PodSpec(containers=there.spec.containers, init_containers=there.spec.init_containers)
        return Pod(metadata=metadata, spec=spec)

    # -- restarts and specs ---------------------------------------------------------------------------------------

    def placements(self) -> dict[str, tuple[Any, ...]]:
        """Placements of gangs with bound pods that no other client has changed; last, the places of the bound pods."""
        found = {}
        for name, gang in self.gang_scheduler.gangs.items():
            bound = any(self.pods[uid].spec.node_name for uid in gang.pods if uid in self.pods)
            honest = name not in self.tainted and not self.suspect & gang.pods.keys()
            # a gang of whose devices the spec has none has no place to keep, and the name of any pod after a restart
            if bound and honest and gang.holds and gang.placement is not None and gang.placement.pods:
                taken = {slot for slot, uid in enumerate(gang.slots) if uid is not None and gang.pods[uid].bound}
                places = tuple(place for slot, place in enumerate(gang.placement.pods) if slot in taken)
                found[name] = gang.placement.chain, gang.placement.pods, gang.guaranteed, places
        return found

    def restart(self, compare: bool = True) -> None:
        """Replace the gang scheduler by a new one with the true state. ``compare``: running gangs keep their places."""
        if compare:
            self.flush()
        before = self.placements()
        old = self.gang_scheduler
        for sent in self.sent:
            sent.stale = True
        self.updates.clear()
        self.node_updates.clear()
        self.active |= self.unanswered & self.pods.keys()  # kube-scheduler tries again what failed
        self.unanswered.clear()
        self.todo.clear()
        self.gang_scheduler = self.new_scheduler()
        listed = [(there, self.members.get(uid)) for uid, there in self.pods.items()]
        self.random.shuffle(listed)
        self.gang_scheduler.start(self.nodes.values(), listed, self.now)
        self.step()
        assert self.gang_scheduler.cluster.check_safety()
        if compare:
            after = self.placements()
            if self.suspect:  # claims of these pods may be accepted now, at the cost of pods that get an Event
                robbed = {entry.key for entry in self.gang_scheduler.refused.values() if entry.bound}
                pods = {name: {e.key for e in gang.pods.values() if e.bound} for name, gang in old.gangs.items()}
                before = {name: where[-1:] for name, where in before.items() if not pods[name] & robbed}
                after = {name: where[-1:] for name, where in after.items() if name in before}
            assert after == before, f"a restart has moved {sorted(after.items() ^ before.items())}"

    def flush(self) -> None:
        for sent in list(self.sent):
            self.arrive(sent)
        while self.updates or self.node_updates or self.todo or self.unanswered:
            for uid in list(self.unanswered):
                self.read_binding(uid)
            self.deliver_all()
            self.carry_out_all()

    def respecify(self, spec: ClusterSpec) -> None:
        self.gang_scheduler.reconfigure(spec, self.now)
        self.spec = spec
        self.step()

    # -- quiet ----------------------------------------------------------------------------------------------------

    def quiesce(self) -> None:
        """Run without disturbances until nothing changes, and check that every gang that can start has started."""
        for _ in range(60):
            busy = bool(self.active or self.todo or self.updates or self.node_updates or self.sent or self.unanswered)
            self.flush()
            self.kubelet()
            self.deliver_all()
            for uid in sorted(self.active):
                if uid in self.pods and not self.pods[uid].spec.node_name:
                    self.ask(uid)
                else:
                    self.active.discard(uid)
            self.wait(3.0)
            if not busy and not self.todo and not self.gang_scheduler.evicting and not self.gang_scheduler.to_bind:
                break
        self.check_no_gang_is_forgotten()

    def check_no_gang_is_forgotten(self) -> None:
        """At rest every waiting gang has a reason."""
        gang_scheduler = self.gang_scheduler
        for gang in gang_scheduler.gangs.values():
            if gang.state is JobState.RUNNING:
                for entry in gang.pods.values():
                    # its node may be unusable, and other pods of its gang bound
                    place = None if entry.bound else entry.given
                    cannot_go = place is not None and place.node not in self.usable and gang.on_nodes
                    assert place is None or cannot_go, f"{entry.key} has a place and stays unbound"
            assert gang.state is not JobState.RESERVED or gang_scheduler.cluster.group(gang.name).victims
            assert gang.asked or not gang.complete, f"{gang} is held back, and is forgotten"
            asks = gang.entry
            wrong = any(isinstance(reason, Misconfigured) for reason in gang.reasons)
            if gang.in_line and gang_scheduler.scheduler.ahead(asks, 1)[0] == 0 and not wrong:
                nodes = [name for name in gang_scheduler.nodes.healthy if name not in asks.excluded]
                plan = gang_scheduler.cluster.plan(asks.request, nodes if asks.excluded else None)
                if self._keeps_cells(asks):  # its private cluster decides
                    plan = gang_scheduler.scheduler.diagnose(asks)
                assert plan.outcome != "now", f"{gang} is first in line and fits: {plan}"

    def _keeps_cells(self, asks: Entry) -> bool:
        """Whether its VC is of exact safety, and keeps cells for gangs that have not got them, or have ended early."""
        scheduler = self.gang_scheduler.scheduler
        if not scheduler.follows(asks) or scheduler.timeline is None:
            return False
        has = {gang.name for gang in self.gang_scheduler.gangs.values() if gang.entry.status is Status.GUARANTEED}
        runs = [job.entry for job in scheduler.timeline._jobs.values() if job.since is not None]
        return any(entry.vc == asks.vc and entry.name not in has for entry in runs)

    # -- checking -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        validate(self.gang_scheduler)
        users: dict[Device, str] = {}
        for uid, there in self.pods.items():
            if not there.spec.node_name or there.ended:
                continue
            for device in devices_of(there):
                other = users.setdefault(device, uid)
                excused = {uid, other} & (self.untrusted | self.gang_scheduler.conflicts.keys())
                assert other == uid or excused, f"{device}: {there.key} and {self.pods[other].key}"
        for uid, entry in self.gang_scheduler.pods.items():
            unsure = uid not in self.pods or uid in self.untrusted or uid in self.updates
            place = entry.given
            if unsure or not entry.bound or place is None:
                continue
            there = self.pods[uid]
            says = PodPlacement(there.spec.node_name or "", tuple(sorted(d for _, d in devices_of(there))))
            assert place.node == says.node, f"{entry.key} is on {says}, and its gang at {place}"
            assert set(place.leaf_cells) <= set(says.leaf_cells)

    # -- steps of scenarios --------------------------------------------------------------------------------------------

    def submit(self, *pods: Pod, members: Members = None, bind: bool = True) -> list[str]:
        """Create pods; kube-scheduler asks for each of them: its results."""
        self.create(*pods, members=members)
        return [self.ask(one, bind=bind) for one in pods]

    def wants(self, *pods: Pod) -> str:
        """Create pods; kube-scheduler asks for the first, and deletes no victims: its result."""
        self.create(*pods)
        return self.question(pods[0])

    def run(self, *pods: Pod, members: Members = None) -> None:
        self.submit(*pods, members=members)
        self.flush()
        assert all(self.nodes_of(*pods)), f"not bound: {self.nodes_of(*pods)}"

    def planned(self, one: Pod) -> str:
        """Create a pod, which gets a place and is not bound yet: its node."""
        self.submit(one, bind=False)
        return self.slot_node(one)

    def ended(self, *ones: Pod | str) -> None:
        self.end(*ones)
        self.deliver_all()

    def update(self, there: Pod) -> None:
        """Change a pod, or create one that kube-scheduler is not asked for."""
        self.write(there)
        self.deliver_all()

    def gone(self, *ones: Pod | str) -> None:
        for one in ones:
            self.remove(one)
            self.deliver_all()

    def bound_behind(self, there: Pod) -> None:
        self.untrusted.add(there.metadata.uid)
        self.update(there)

    def cordon(self, *names: str) -> None:
        for name in names:
            self.set_node(node(name, cordoned=True))

    # -- what there is --------------------------------------------------------------------------------------------

    def there(self, one: Pod | str) -> Pod:
        return self.pods[uid_of(one)]

    def entry(self, one: Pod | str) -> PodEntry:
        return self.gang_scheduler.pods[uid_of(one)]

    def gang(self, name: str) -> Gang:
        return self.gang_scheduler.gangs[f"t/{name}"]

    def state(self, name: str) -> str:
        return self.gang(name).state.value

    def guaranteed(self, *names: str) -> list[bool]:
        return [self.gang(name).guaranteed for name in names]

    def placement(self, name: str) -> Placement:
        placement = self.gang(name).placement
        assert placement is not None
        return placement

    def places(self, name: str) -> list[str]:
        return [place.node for place in self.placement(name).pods]

    def slot_node(self, one: Pod | str) -> str:
        """The node that the gang scheduler has given a pod."""
        given = self.entry(one).given
        assert given is not None
        return given.node

    def nodes_of(self, *ones: Pod | str) -> list[str | None]:
        return [self.there(one).spec.node_name for one in ones]

    def home(self, one: Pod | str) -> str:
        (home,) = self.nodes_of(one)
        assert home is not None
        return home

    def deleted(self, one: Pod | str) -> bool:
        return self.there(one).metadata.deletion_timestamp is not None

    def nobody_gets(self, name: str, *devices: int) -> None:
        """Pods that want everything do not get these devices."""
        crowd = [pod(f"greedy-{i}", 1, priority="-1", created=900) for i in range(16)]
        self.create(*crowd)
        self.quiesce()
        taken = {device for one in crowd for device in devices_of(self.there(one))}
        assert taken, "this test shows nothing"
        assert not taken & {(name, device) for device in devices}

    # -- what is said ---------------------------------------------------------------------------------------------

    def refusal(self, one: Pod | str) -> str:
        """Why a pod is of no gang."""
        entry = self.entry(one)
        assert entry.gang is None
        return str(entry.refused)

    def reason(self, name: str) -> ReasonKind:
        """The decisive reason why a gang waits."""
        return GangExplainer(self.gang_scheduler).reasons(self.gang(name))[0].kind

    def short(self, name: str) -> str:
        """Why a gang waits, as lists have it."""
        return "; ".join(GangExplainer(self.gang_scheduler).shortly(self.gang(name)))

    def explained(self, name: str, at: float | None = None) -> str:
        return in_lines(GangExplainer(self.gang_scheduler).explain(self.gang(name), at))

    def pod_explained(self, one: Pod | str) -> str:
        return in_lines(GangExplainer(self.gang_scheduler).explain_pod(self.entry(one), None))

    def events_of(self, one: Pod | str) -> list[RecordEvent]:
        return [event for event in self.events if event.uid == uid_of(one)]

    def counted(self, reason: str) -> Counter[str]:
        """How many Events for this reason each pod has."""
        return Counter(event.uid for event in self.events if event.reason == reason)

    def evictions_due(self) -> list[Evict]:
        """Evictions that are still to be carried out."""
        return [one for one in self.todo if isinstance(one, Evict)]
