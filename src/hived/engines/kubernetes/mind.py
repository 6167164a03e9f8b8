"""The mind of HiveD on Kubernetes: facts in, decisions and instructions out. Pure, as the core that it drives.

    mind.start(...)                        all nodes and pods there are: the first call
    mind.pod_changed(...) / node_...(...)  something is a fact
    mind.asked(...)                        kube-scheduler asks for a pod
    mind.dispatch(at)                      whoever can go, goes, in the order of its VC's policy
    mind.turn()                            what is to be done in Kubernetes

A gang is placed as a whole when its turn comes; kube-scheduler, which asks pod by pod in an order of its own, is told
the outcome. What is true in Kubernetes (a pod on a node) wins over what was meant.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from hived.cluster import decisions
from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement, Preempt, Wait
from hived.cluster.reasons import Misconfigured, Reason
from hived.cluster.recovery import Reconfiguration
from hived.cluster.requests import Member, Request
from hived.engines.lines import Lines
from hived.errors import ConflictError, NotFoundError, RequestError
from hived.policies import Policy
from hived.spec.compiled import ClusterSpec

from . import adoption, asking, bindinfo, keys
from .asking import AskError
from .gangs import Gang, GangState, PodEntry
from .objects import Node, Pod
from .standing import created_at, in_rank_order
from .state import MindState
from .turns import Binding, Evict, Tell, Wake

#: seconds after which a pod that can go and was not bound is brought to mind again
_REMIND_S = 20.0
_EXCLUSIONS = 256  #: sets of nodes not offered that are remembered
_REMEMBERED = 20_000  #: pods that are gone, so that an old word of them does not bring them back


class Mind(MindState):
    """Gangs on a cluster. A fact costs what the core charges for who it lets go, and O(log gangs + pods of its gang).

    ``evict_after``: seconds that kube-scheduler has to delete the pods of a victim before they are told to go.
    """

    def __init__(self, cluster: Cluster, policy: Policy, evict_after: float = 2.0, first_seq: int = 0) -> None:
        super().__init__(cluster, Lines(policy), evict_after, first_seq)
        #: pods that are gone
        self._gone: OrderedDict[str, None] = OrderedDict()
        #: why others wait that ask for the same, as of the change ``_waits_seq``
        self._waits: dict[tuple[Request, frozenset[str]], tuple[Reason, ...]] = {}
        self._waits_seq = first_seq
        #: sets of nodes that gangs cannot go to
        self._exclusions: dict[frozenset[str], frozenset[str]] = {}

    # -- facts ----------------------------------------------------------------------------------------------------

    def start(self, nodes: Iterable[Node], pods: Iterable[tuple[Pod, tuple[Member, ...] | None]], at: float) -> None:
        """All there is. Who is bound is where its annotations say; who waits has its place in line."""
        self.nodes.replace(nodes)
        self.nodes.apply()
        bound: list[PodEntry] = []
        waiting: list[tuple[PodEntry, tuple[Member, ...] | None]] = []
        for pod, members in pods:
            if pod.ended or not asking.concerns(pod) or pod.metadata.uid in self.pods:
                continue
            entry = self.pods[pod.metadata.uid] = PodEntry(pod)
            if pod.spec.node_name:
                bound.append(entry)
            else:
                waiting.append((entry, members))
        adoption.take(self, bound, at)
        for entry, members in sorted(waiting, key=lambda pair: (created_at(pair[0].pod), pair[0].key)):
            entry.waited = _was_tried(entry.pod)
            self.join(entry, members, at)
        for gang in self.gangs.values():
            self.line_up(gang)
        self.note("recovered", "", at, f"{len(self.gangs)} groups, {len(bound)} bound pods")

    def pod_changed(self, pod: Pod, members: tuple[Member, ...] | None, at: float) -> None:
        """A pod is there, like this. ``members``: of its gang, where its owner says so."""
        uid = pod.metadata.uid
        if pod.ended:
            self.pod_gone(uid, at)
            return
        entry = self.pods.get(uid)
        if entry is None:
            if uid not in self._gone and asking.concerns(pod):
                self._pod_came(pod, members, at)
            return
        changed = entry.pod.metadata.labels != pod.metadata.labels or (
            entry.pod.annotation(keys.POD_SPEC) != pod.annotation(keys.POD_SPEC)
        )
        entry.pod = pod
        if pod.spec.node_name and not entry.bound:
            self._pod_bound(entry, at)
        elif not pod.spec.node_name and not entry.holds and (changed or entry.refused is not None):
            self._asks_anew(entry, members, at)

    def _pod_came(self, pod: Pod, members: tuple[Member, ...] | None, at: float) -> PodEntry:
        entry = self.pods[pod.metadata.uid] = PodEntry(pod)
        if pod.spec.node_name:
            adoption.take(self, [entry], at)
        else:
            self.join(entry, members, at)
        return entry

    def _pod_bound(self, entry: PodEntry, at: float) -> None:
        """Kubernetes has it on a node: on its own, or where somebody else put it."""
        gang = entry.gang
        if gang is not None and gang.holds and gang.placement is not None and entry.slot is not None:
            place = gang.placement.pods[entry.slot]
            given = ",".join(map(str, place.leaf_cells))
            if place.node == entry.pod.spec.node_name and entry.pod.annotation(keys.ISOLATION) == given:
                entry.bound, entry.binding, entry.waited = True, False, False
                self.is_on_its_node(entry, at)
                return
        self.leave(entry, at)
        adoption.take(self, [entry], at)

    def _asks_anew(self, entry: PodEntry, members: tuple[Member, ...] | None, at: float) -> None:
        """What a waiting pod asks for has changed, or may be understood by now."""
        try:
            same = entry.gang is not None and asking.ask(entry.pod, members or entry.members) == entry.ask
        except asking.AskError:
            same = False
        if not same:
            self.leave(entry, at)
            self.join(entry, members or entry.members, at)

    def pod_gone(self, uid: str, at: float) -> None:
        """A pod is deleted or has ended: it holds nothing any more."""
        self._gone[uid] = None
        while len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        entry = self.pods.pop(uid, None)
        if entry is None:
            return
        self.refused.pop(uid, None)
        self.conflicts.pop(uid, None)
        self.outside.pop(uid, None)
        node = self.nodes.free(uid)
        self.nodes_applied(at)
        if node is not None:
            self.fill_slots(node, at)
        self.leave(entry, at)

    def nodes_replaced(self, nodes: Iterable[Node], at: float) -> None:
        """All nodes that there are."""
        self.nodes.replace(nodes)
        self.nodes_applied(at)

    def node_changed(self, node: Node, at: float) -> None:
        """A node is there, like this."""
        self.nodes.changed(node)
        self.nodes_applied(at)

    def node_gone(self, name: str, at: float) -> None:
        """A node is not there any more. Its pods are, until Kubernetes says otherwise."""
        self.nodes.gone(name)
        self.nodes_applied(at)

    def reconfigure(self, spec: ClusterSpec, at: float) -> Reconfiguration:
        """A new spec, under running pods. Raises what :meth:`Cluster.reconfigure` raises; nothing has changed then."""
        report = self.cluster.reconfigure(spec)
        self.nodes.again(spec)
        why = dict(report.downgraded) | {
            name: f"devices on {', '.join(nodes)} are no more" for name, nodes in report.lost
        }
        self.note("spec", "", at, f"a new spec: {len(report.kept)} groups as before, {len(why)} not")
        for gang in list(self.gangs.values()):
            gang.shared = ""
            self.stands(gang, why.get(gang.name, "the cluster has a new spec"), at)
        self.lost_reservations("the cluster has a new spec", at)
        self.nodes_applied(at)
        self.lines.stir()
        return report

    def due(self, at: float) -> None:
        """Time has passed: victims that are still there are told to go, who can go and does not is reminded."""
        for gang in list(self.evicting.values()):
            if at < gang.evict_at:
                continue
            for entry in gang.pods.values():
                if entry.bound and not entry.evicted and not entry.terminating:
                    entry.evicted = True
                    by = gang.preempted_by
                    why = f"preempted by {by.name} of {by.vc}" if by is not None else "preempted"
                    self.instruct(Evict(entry.uid, entry.key, why))
        for name, since in list(self.to_bind.items()):
            if at - since >= _REMIND_S:
                self.to_bind[name] = at
                for entry in self.gangs[name].pods.values():
                    if entry.slot is not None and not entry.holds:
                        self.instruct(Wake(entry.uid, entry.key))

    def evict_failed(self, uid: str, at: float) -> None:
        """A pod could not be told to go: it is tried again in a while."""
        entry = self.pods.get(uid)
        if entry is not None and entry.gang is not None:
            entry.evicted = False
            entry.gang.evict_at = max(entry.gang.evict_at, at + 1.0)

    # -- kube-scheduler asks --------------------------------------------------------------------------------------

    def asked(self, pod: Pod, members: tuple[Member, ...] | None, offered: Collection[str], at: float) -> PodEntry:
        """kube-scheduler wants to know about ``pod``, and would take the nodes ``offered``. Decides what can be.

        Raises :class:`NotFoundError` for a pod that is gone.
        """
        uid = pod.metadata.uid
        entry = self.pods.get(uid)
        if entry is None:
            if uid in self._gone or pod.ended:
                raise NotFoundError(f"pod {pod.key} ({uid}) is gone")
            entry = self._pod_came(pod, members, at)
        elif entry.refused is not None and not entry.bound:
            self._asks_anew(entry, members, at)
        elif members is not None and members != entry.members and not entry.bound:
            self._resize(entry, members, at)
        gang = entry.gang
        if gang is None:
            return entry
        gang.asked = True
        if not gang.ask.anywhere:
            # of nodes that the spec lacks nothing is wanted, bad ones the core leaves out by itself
            excluded = frozenset(self.nodes.healthy.difference(offered))
            if len(self._exclusions) >= _EXCLUSIONS:
                self._exclusions.clear()
            excluded = self._exclusions.setdefault(excluded, excluded)  # one object, so that equal ones are told fast
            if excluded != gang.excluded:
                gang.excluded = excluded
                if gang.in_line:
                    self.lines.freed(gang.vc)
        self.line_up(gang)
        self.dispatch(at)
        if self._cannot_stay(gang, entry):
            self.unplace(gang, at, "kube-scheduler does not take its node")
            self.line_up(gang)
            self.dispatch(at)
        return entry

    def _resize(self, entry: PodEntry, members: tuple[Member, ...], at: float) -> None:
        """Its owner makes another number of pods by now: a gang that waits is of that size."""
        gang = entry.gang
        if gang is None or gang.state is not GangState.WAITING:
            return
        others = list(gang.pods.values())
        for other in others:
            self.leave(other, at)
        for other in others:
            self.join(other, members, at)

    def unreadable(self, pod: Pod, error: AskError, at: float) -> None:
        """The owner of ``pod`` cannot be read, so nobody knows what it asks for."""
        uid = pod.metadata.uid
        if pod.ended or uid in self._gone:
            return
        entry = self.pods.get(uid)
        if entry is None:
            entry = self.pods[uid] = PodEntry(pod)
        if entry.gang is None and not entry.bound:
            self.refuse(entry, error)

    def asked_to_preempt(
        self, pod: Pod, members: tuple[Member, ...] | None, offered: Collection[str], at: float
    ) -> PodEntry:
        """The same, about nodes that would do if pods of lower priority went: beside those of the last question."""
        entry = self.pods.get(pod.metadata.uid)
        if entry is not None and entry.gang is not None and entry.gang.asked:
            offered = self.nodes.healthy.difference(entry.gang.excluded).union(offered)
        return self.asked(pod, members, offered, at)

    def _cannot_stay(self, gang: Gang, entry: PodEntry) -> bool:
        """Whether a gang has a place where a pod of it cannot go, and can still be put elsewhere."""
        if gang.state is not GangState.PLACED or entry.slot is None or gang.placement is None or gang.on_nodes:
            return False
        return gang.placement.pods[entry.slot].node in gang.excluded

    def binding(self, uid: str, node: str) -> Binding:
        """What to write for the pod, which kube-scheduler wants bound to ``node``. It counts as bound from now on.

        Raises :class:`NotFoundError`, or :class:`ConflictError` where it has no place there.
        """
        entry = self.pods.get(uid)
        if entry is None:
            raise NotFoundError(f"pod {uid} is gone, or was never here")
        gang = entry.gang
        if gang is None or gang.state is not GangState.PLACED or entry.slot is None or gang.placement is None:
            what = "is being preempted" if gang is not None and gang.state is GangState.PREEMPTED else "has no place"
            raise ConflictError(f"pod {entry.key} {what}; kube-scheduler has to ask for it again")
        if entry.bound:
            raise ConflictError(f"pod {entry.key} is on its node already")
        place = gang.placement.pods[entry.slot]
        if place.node != node:
            raise ConflictError(f"pod {entry.key} has its place on {place.node}, not on {node}")
        if not gang.shared:
            gang.shared = bindinfo.shared(gang.placement, gang.ask.members, self.cluster.spec)
        entry.binding, entry.place = True, place
        return Binding(uid, entry.key, node, bindinfo.notes(place, gang.shared))

    def bound(self, uid: str, at: float) -> None:
        """That was done."""
        entry = self.pods.get(uid)
        if entry is not None and entry.gang is not None and not entry.bound:
            entry.bound, entry.binding, entry.waited = True, False, False
            self.is_on_its_node(entry, at)

    def bind_failed(self, uid: str, at: float) -> None:
        """That was not done, for sure."""
        entry = self.pods.get(uid)
        if entry is not None and not entry.bound:
            entry.binding = False
            if entry.gang is not None and entry.gang.state is GangState.PREEMPTED and not entry.gang.on_nodes:
                self.unplace(entry.gang, at, "preempted")
                self.line_up(entry.gang)
            self._asks_anew(entry, entry.members, at)  # that may have changed meanwhile

    # -- deciding -------------------------------------------------------------------------------------------------

    def dispatch(self, at: float) -> None:
        """Let go who can: those with a reservation, the lines of the VCs where something changed, then loans."""
        again = True
        while again:
            for gang in list(self.reserved.values()):
                if not self.cluster.group(gang.name).victims:
                    self._ask(gang, at)
            self.lines.dispatch(lambda gang: self._ask(gang, at), self._share)
            again = any(not self.cluster.group(name).victims for name in self.reserved)

    def _ask(self, gang: Gang, at: float) -> decisions.Bind | Preempt | Wait | None:
        """Ask the core for ``gang``, and carry the answer out. ``None``: its request is not right for this cluster.

        Nothing has changed since the latest change, so who asks for the same as another waits for the same: a line of
        gangs that hold nobody back costs one question per kind of gang.
        """
        if self._waits_seq != self.seq:
            self._waits.clear()
            self._waits_seq = self.seq
        kind = gang.shape, gang.excluded
        if kind in self._waits and gang.state is GangState.WAITING:
            gang.wrong, gang.reasons = "", self._waits[kind]
            return Wait(gang.name, gang.reasons)
        nodes = [name for name in self.nodes.healthy if name not in gang.excluded] if gang.excluded else None
        try:
            decision = self.cluster.schedule(gang.request, nodes, now=at)
        except RequestError as error:
            gang.wrong = error.message
            gang.reasons = (Misconfigured(error.field, error.message),)
            return None
        gang.wrong = ""
        if isinstance(decision, Wait):
            gang.reasons = self._waits[kind] = decision.reasons
            return decision
        if isinstance(decision, Preempt) and gang.state is GangState.RESERVED:
            return decision  # as before: some victims are not gone yet
        self.cluster.commit(decision)
        for name in decision.overtaken:
            self.unreserve(self.gangs[name], f"{gang.name}, of a higher priority, took it", at)
        for name in decision.downgraded:
            self.stands(self.gangs[name], f"made room for {gang.name}", at)
        if gang.in_line:
            self.lines.of(gang).remove(gang)
            gang.in_line = False
        if isinstance(decision, Preempt):
            victims = ", ".join(decision.victims)
            self.becomes(gang, GangState.RESERVED, decision.placement, at, "reserved", f"waits for {victims} to go")
            self._preempt(gang, [self.gangs[name] for name in decision.victims], at)
        else:
            self._place(gang, decision.placement, at)
        return decision

    def _place(self, gang: Gang, placement: Placement, at: float) -> None:
        """``gang`` has its GPUs: its pods get their places, and kube-scheduler hears of those that it gave up."""
        kind = "guaranteed" if placement.guaranteed else "opportunistic"
        nodes = ", ".join(dict.fromkeys(pod.node for pod in placement.pods))
        self.becomes(gang, GangState.PLACED, placement, at, "placed", f"{kind}, on {nodes}")
        for entry in in_rank_order(gang.pods.values()):
            self.give_slot(entry, gang, at)

    def _preempt(self, gang: Gang, victims: list[Gang], at: float) -> None:
        for victim in victims:
            if victim.state is not GangState.PLACED:
                continue  # it has to go for somebody else already
            self.preempted[victim.vc, gang.vc] += 1
            victim.preempted_by, victim.evict_at = gang, at + self.evict_after
            victim.displaced_by = gang.name, gang.vc, gang.priority
            why = f"preempted by {gang.name} of {gang.vc}"
            self.becomes(victim, GangState.PREEMPTED, victim.placement, at, "preempted", why)
            takes = "what its VC reserved" if gang.vc != victim.vc else "it by its higher priority"
            for entry in victim.pods.values():
                if entry.holds:
                    self.instruct(Tell(entry.uid, entry.key, "HivedPreempted", f"{why}, which takes {takes}", True))
            if not victim.on_nodes:
                self.unplace(victim, at, why)
                self.line_up(victim)

    def _share(self, vc: str) -> float:
        """GPUs that a VC has on loan over those that it reserved: who has the least is asked first."""
        return self.books.lent.get(vc, 0) / max(1, self.nodes.reserved_gpus(vc))


def _was_tried(pod: Pod) -> bool:
    """Whether a scheduler has looked at a waiting pod and found nothing: so it may be asked about again only late."""
    return any(c.type == "PodScheduled" and c.status == "False" for c in pod.status.conditions or ())
