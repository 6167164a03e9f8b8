"""The gang scheduler on Kubernetes: facts in, decisions and instructions out. Pure, as the core that it drives.

    gang_scheduler.start(...)                        all nodes and pods there are: the first call
    gang_scheduler.pod_changed(...) / node_...(...)  something is a fact
    gang_scheduler.asked(...)                        kube-scheduler asks for a pod
    gang_scheduler.dispatch(at)                      whoever can go, goes, in the order of its VC's policy
    gang_scheduler.turn()                            what is to be done in Kubernetes

A gang is placed as a whole when its turn comes; kube-scheduler, which asks pod by pod in an order of its own, is told
the outcome. What is true in Kubernetes (a pod on a node) wins over what was meant.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.cluster.reasons import Reason, WaitingForPreemption
from hived.cluster.recovery import Reconfiguration
from hived.cluster.requests import Member
from hived.engines.kubernetes.pods import bind_info as bindinfo
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods import pod_request as asking
from hived.engines.kubernetes.pods.bind_info import written
from hived.engines.kubernetes.pods.objects import Node, Pod
from hived.engines.kubernetes.pods.pod_request import PodRequestError
from hived.errors import ConflictError, NotFoundError
from hived.scheduling import Policy
from hived.spec.compiled import ClusterSpec

from . import adopt as adoption
from . import foreign
from .extender_answers import repeat_reasons
from .gang import Binding, Evict, Gang, GangEvent, GangState, Instruction, PodEntry, Tell, Wake, in_rank_order
from .gang_table import GangTable

#: seconds after which a pod that can go and was not bound is brought to mind again
_REMIND_S = 20.0
_REMINDERS = 15  #: after so many, of which nothing came, nobody is taken to look after those pods
#: what kube-scheduler's words about a pod have in them where HiveD was asked for it: an answer, or that there was none
_OURS = ("hived:", "/v1/extender/")
#: seconds for evictions that a disruption budget forbids
PATIENCE_S = 30.0
_LONGEST_PAUSE_S = 10.0  #: between two of them
_EXCLUSIONS = 256  #: sets of nodes not offered that are remembered
_REMEMBERED = 20_000  #: pods that are gone, so that an old word of them does not bring them back


class GangScheduler(GangTable):
    """Gangs on a cluster. A fact costs what the core charges for who it lets go, and O(log gangs + pods of its gang).

    ``evict_after``: seconds that kube-scheduler has to delete the pods of a victim before they are told to go.
    ``evict_patience``: seconds from then on in which they are evicted; what that does not remove is deleted.
    """

    def __init__(
        self, cluster: Cluster, policy: Policy, evict_after: float = 0.0, evict_patience: float = PATIENCE_S
    ) -> None:
        super().__init__(cluster, policy)
        self.evict_after, self.evict_patience = evict_after, evict_patience
        #: pods that are gone
        self._gone: OrderedDict[str, None] = OrderedDict()
        #: sets of nodes that gangs cannot go to
        self._exclusions: dict[frozenset[str], frozenset[str]] = {}

    # -- facts ----------------------------------------------------------------------------------------------------

    def start(self, nodes: Iterable[Node], pods: Iterable[tuple[Pod, tuple[Member, ...] | None]], at: float) -> None:
        """All there is. Who is bound is where its annotations say; who waits has its place in line."""
        self.nodes.replace(nodes)
        self.nodes.apply()
        bound: list[PodEntry] = []
        others: list[Pod] = []
        waiting: list[tuple[PodEntry, tuple[Member, ...] | None]] = []
        for pod, members in pods:
            if pod.ended or pod.metadata.uid in self.pods:
                continue
            if not asking.concerns(pod):
                others.append(pod)
                continue
            entry = self.pods[pod.metadata.uid] = PodEntry(pod)
            if pod.spec.node_name:
                bound.append(entry)
            else:
                waiting.append((entry, members))
        adoption.take(self, bound, at)
        foreign.take(self, others, at)
        for entry, members in sorted(waiting, key=lambda pair: (pair[0].pod.created_at, pair[0].key)):
            entry.waited = _was_tried(entry.pod)
            self.join(entry, members, at)
        for gang in self.gangs.values():
            self.line_up(gang)
        self.note("recovered", None, at, {"groups": len(self.gangs), "pods": len(bound)})

    def pod_changed(self, pod: Pod, members: tuple[Member, ...] | None, at: float) -> None:
        """A pod is there, like this. ``members``: of its gang, where its owner says so."""
        uid = pod.metadata.uid
        if pod.ended:
            self.pod_gone(uid, at)
            return
        entry = self.pods.get(uid)
        if entry is None:
            if uid in self._gone:
                return
            if asking.concerns(pod):
                foreign.gone(self, uid, at)
                self._pod_came(pod, members, at)
            else:
                foreign.take(self, (pod,), at)
            return
        if entry.bound:
            self._keep_notes(entry, pod)
        held_back = entry.pod.held_back
        changed = entry.pod.metadata.labels != pod.metadata.labels or (
            entry.pod.annotation(keys.POD_SPEC) != pod.annotation(keys.POD_SPEC)
        )
        entry.pod = pod
        if pod.spec.node_name and not entry.bound:
            self._pod_bound(entry, at)
        elif not pod.spec.node_name and not entry.holds and (changed or entry.refused is not None):
            self._asks_anew(entry, members, at)
        if pod.held_back is not held_back and entry.gang is not None:
            self.line_up_again(entry.gang)

    def _keep_notes(self, entry: PodEntry, pod: Pod) -> None:
        """A restart believes what bound pods say of where they are, so nobody else may write that."""
        before, now = written(entry.pod), written(pod)
        wanted = entry.notes or before
        if entry.gang is None or now in (before, wanted) or None in wanted.values():
            return
        self.write_notes(entry, {key: value for key, value in wanted.items() if value is not None})
        why = "its annotations about where it is were changed by somebody else, and are written again"
        self.instruct(Tell(entry.uid, entry.key, "HivedRestored", why, True))

    def _pod_came(self, pod: Pod, members: tuple[Member, ...] | None, at: float) -> PodEntry:
        entry = self.pods[pod.metadata.uid] = PodEntry(pod)
        if pod.spec.node_name:
            adoption.take(self, [entry], at)
        else:
            self.join(entry, members, at)
        return entry

    def _pod_bound(self, entry: PodEntry, at: float) -> None:
        """Kubernetes has it on a node: on its own, or where somebody else put it."""
        if (place := entry.given) is not None:
            given = ",".join(map(str, place.leaf_cells))
            if place.node == entry.pod.spec.node_name and entry.pod.annotation(keys.ISOLATION) == given:
                self.is_on_its_node(entry, at)
                return
        self.leave(entry, at)
        if asking.concerns(entry.pod):
            adoption.take(self, [entry], at)
        else:  # kube-scheduler asked about it, though it is none of ours
            del self.pods[entry.uid]
            self.forget_refusal(entry)
            foreign.take(self, (entry.pod,), at)

    def _asks_anew(self, entry: PodEntry, members: tuple[Member, ...] | None, at: float) -> None:
        """What a waiting pod asks for has changed, or may be understood by now."""
        try:
            same = entry.gang is not None and self.understood(entry.pod, members or entry.members) == entry.ask
        except PodRequestError:
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
            foreign.gone(self, uid, at)
            return
        self.forget_refusal(entry)
        node = self.nodes.free(uid)
        self.nodes_applied(at)
        if node is not None:
            self.foreign.touched(node)
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
        self.nodes.again()
        self.foreign.crowded.update(self.foreign.on)
        why = dict(report.downgraded) | {
            name: f"devices on {', '.join(nodes)} are no more" for name, nodes in report.lost
        }
        self.note("spec", None, at, {"kept": len(report.kept), "changed": len(why)})
        for gang in list(self.gangs.values()):
            gang.shared = ""
            self.guarantee_changed(gang, why.get(gang.name, "the cluster has a new spec"), at)
        self.lost_reservations(self.scheduler.reconfigured(), "the cluster has a new spec", at)
        self.spared(at)  # who was to move may be guaranteed where it is
        self._may_take_longer(at)
        self.nodes_applied(at)
        return report

    def _may_take_longer(self, at: float) -> None:
        """Pods on loan that wait, or were refused, may have another time to end now. O(pods)."""
        for entry in list(self.pods.values()):
            gang = entry.gang
            waits = gang is not None and gang.state is GangState.WAITING and gang.ask.mode != "guaranteed"
            if waits or (entry.refused is not None and entry.refused.kind == "grace" and not entry.bound):
                self._asks_anew(entry, entry.members, at)

    def due(self, at: float) -> None:
        """Time has passed: victims that are still there are told to go, who can go and does not is reminded."""
        for gang in list(self.evicting.values()):
            if at < gang.evict_at:
                continue
            if gang.evict_from is None:
                gang.evict_from = at
            delete = at - gang.evict_from >= self.evict_patience
            by = gang.preempted_by
            why = f"preempted by {by.name} of {by.vc}" if by is not None else "its turn has come, on other GPUs"
            for entry in gang.pods.values():
                grace = self._grace(gang, entry)
                # who deletes pods beside us may have given them more time than a loan has
                if entry.bound and not entry.evicted and (not entry.terminating or grace is not None):
                    entry.evicted = True
                    self.instruct(Evict(entry.uid, entry.key, why, grace, delete))
        for name, since in list(self.to_bind.items()):
            if at - since >= _REMIND_S:
                self._remind(self.gangs[name], at)
        for name, since in list(self.unheard.items()):
            if at - since >= _REMIND_S * _REMINDERS:  # nobody asks for it, and it keeps others waiting
                self.forget_asking(self.gangs[name])

    def _grace(self, gang: Gang, entry: PodEntry) -> int | None:
        """Seconds that a pod has to end; None: what it asks for, which is no more than a loan may have."""
        most = self.nodes.grace_of_loans(gang.vc)
        return most if not gang.guaranteed and entry.pod.grace_s > most else None

    def _remind(self, gang: Gang, at: float) -> None:
        """kube-scheduler looks at its pods again; where it never does, nothing is kept for them."""
        gang.reminders += 1
        if gang.reminders > _REMINDERS and not gang.on_nodes:
            gang.asked, gang.reminders = False, 0
            self.unplace(gang, at, "kube-scheduler has not asked for it for long")
            for entry in gang.pods.values():
                entry.waited = False  # nobody waits to be called
            return
        self.to_bind[gang.name] = at
        for entry in gang.pods.values():
            if entry.slot is not None and not entry.holds:
                self.instruct(Wake(entry.uid, entry.key))

    def evict_failed(self, uid: str, at: float) -> None:
        """A pod could not be told to go: it is tried again, later each time, until evictions have had their time."""
        entry = self.pods.get(uid)
        if entry is not None and entry.gang is not None:
            gang = entry.gang
            entry.evicted = False
            since = at - (at if gang.evict_from is None else gang.evict_from)
            pause = min(_LONGEST_PAUSE_S, max(1.0, since))
            left = self.evict_patience - since
            gang.evict_at = max(gang.evict_at, at + (min(pause, left) if left > 0 else pause))

    # -- deciding -------------------------------------------------------------------------------------------------

    def dispatch(self, at: float) -> None:
        """Let go who can."""
        foreign.settle(self, at)
        super().dispatch(at)
        for gang in self.unreserved.values():
            repeat_reasons(self, gang)
        self.unreserved.clear()

    def _start(self, gang: Gang, placement: Placement, at: float) -> None:
        """Its pods get their places, and kube-scheduler hears of those that it gave up."""
        self.becomes(gang, GangEvent.PLACED, placement, at, {"adopted": False})
        self.unheard.pop(gang.name, None)
        for entry in in_rank_order(gang.pods.values()):
            self.give_slot(entry, gang, at)

    def _preempt(self, gang: Gang, by: Gang, at: float) -> None:
        if gang.state is not GangState.PLACED:
            return  # it has to go for somebody else already
        self.preempted[gang.vc, by.vc] += 1
        gang.displaced_by = by.name, by.vc, by.priority
        why = f"preempted by {by.name} of {by.vc}"
        takes = "what its VC reserved" if by.vc != gang.vc else "it by its higher priority"
        self._has_to_go(gang, at, why, f"{why}, which takes {takes}", by)

    def _move(self, gang: Gang, why: str, at: float) -> None:
        self._has_to_go(gang, at, why, f"{why}; it starts there once its pods are gone from here", None)

    def _promoted(self, gang: Gang) -> None:
        self.annotate(gang)

    def _hold(self, gang: Gang, reasons: tuple[Reason, ...]) -> None:
        gang.reasons = reasons
        if isinstance(reasons[0], WaitingForPreemption) and not gang.entry.may_preempt:
            self.call(gang, self._now)  # nobody ends for nodes that it may not be able to use

    def _has_to_go(self, gang: Gang, at: float, why: str, told: str, by: Gang | None) -> None:
        """A gang that is placed gives its GPUs back: at once, or when its pods are gone from their nodes."""
        gang.preempted_by = by
        gang.evict_at, gang.evict_from = at + self.evict_after, None
        self.becomes(gang, GangEvent.PREEMPTED, gang.placement, at, {"why": why})
        for entry in gang.pods.values():
            if entry.holds:
                self.instruct(Tell(entry.uid, entry.key, "HivedPreempted", told, True))
        if not gang.on_nodes:
            self.unplace(gang, at, why)

    def turn(self) -> list[Instruction]:
        """What is to be done of what came since the last call."""
        found, self._instructions = self._instructions, []
        return found

    # -- kube-scheduler asks --------------------------------------------------------------------------------------

    def asked(
        self,
        pod: Pod,
        members: tuple[Member, ...] | None,
        offered: Collection[str],
        at: float,
        some: bool = False,
        emptied: bool = False,
    ) -> PodEntry:
        """kube-scheduler wants to know about ``pod``, and would take the nodes ``offered``. Decides what can be.

        ``some``: it would take others as well, and asks about them next. ``emptied``: beside those of its last
        question, if there was one, it would take these once pods of lower priority have left them. Raises
        :class:`NotFoundError` for a pod that is gone.
        """
        uid = pod.metadata.uid
        entry = self.pods.get(uid)
        emptied = emptied and entry is not None and entry.gang is not None and entry.gang.asked
        if entry is None:
            if uid in self._gone or pod.ended:
                raise NotFoundError(f"pod {pod.key} ({uid}) is gone")
            entry = self._pod_came(pod, members, at)
        elif entry.refused is not None and not entry.bound:
            self._asks_anew(entry, members, at)
        self.sized(uid, members, at)
        gang = entry.gang
        if gang is None:
            return entry
        gang.asked, gang.reminders = True, 0
        if not gang.ask.anywhere and not some:
            # of nodes that the spec lacks nothing is wanted, bad ones the core leaves out by itself
            if emptied:
                gang.emptied = frozenset(offered)
            else:
                gang.not_offered = frozenset(self.nodes.healthy.difference(offered))
            gang.entry.may_preempt = True
            waited = self.unheard.pop(gang.name, None) is not None
            excluded = gang.not_offered
            if emptied or gang.state is GangState.RESERVED:
                excluded -= gang.emptied
            if len(self._exclusions) >= _EXCLUSIONS:
                self._exclusions.clear()
            excluded = self._exclusions.setdefault(excluded, excluded)  # one object, so that equal ones are told fast
            if excluded != gang.entry.excluded:
                self.scheduler.exclude(gang.entry, excluded)
            elif waited and gang.in_line:
                self.scheduler.mark_dirty(gang.vc)
        self.line_up(gang)
        self.dispatch(at)
        if not some and self._cannot_stay(gang, entry):
            self.unplace(gang, at, "kube-scheduler does not take its node")
            self.dispatch(at)
        return entry

    def _cannot_stay(self, gang: Gang, entry: PodEntry) -> bool:
        """Whether a gang has a place where a pod of it cannot go, and can still be put elsewhere."""
        place = entry.given if gang.state is GangState.PLACED and not gang.on_nodes else None
        return place is not None and place.node in gang.entry.excluded

    def lacking(self) -> list[PodEntry]:
        """A pod of each gang that waits for more of the pods that its owner makes. O(gangs)."""
        waiting = (gang for gang in self.gangs.values() if gang.ask.owner and gang.state is GangState.WAITING)
        return [next(iter(gang.pods.values())) for gang in waiting if len(gang.pods) < gang.ask.size]

    def sized(self, uid: str, members: tuple[Member, ...] | None, at: float) -> None:
        """The owner of a pod makes so many by now: a gang that waits is of that size."""
        entry = self.pods.get(uid)
        if entry is None or entry.bound or members is None or members == entry.members:
            return
        gang = entry.gang
        if gang is None or gang.state is not GangState.WAITING:
            return
        others = list(gang.pods.values())
        for other in others:
            self.leave(other, at)
        for other in others:
            self.join(other, members, at)

    def unreadable(self, pod: Pod, error: PodRequestError, at: float) -> None:
        """The owner of ``pod`` cannot be read, so nobody knows what it asks for."""
        uid = pod.metadata.uid
        if pod.ended or uid in self._gone:
            return
        entry = self.pods.get(uid)
        if entry is None:
            entry = self.pods[uid] = PodEntry(pod)
        if entry.gang is None and not entry.bound:
            self.refuse(entry, error)

    # -- binding --------------------------------------------------------------------------------------------------

    def binding(self, uid: str, node: str) -> Binding:
        """What to write for the pod, which kube-scheduler wants bound to ``node``. It counts as bound from now on.

        Raises :class:`NotFoundError`, or :class:`ConflictError` where it has no place there.
        """
        entry = self.pods.get(uid)
        if entry is None:
            raise NotFoundError(f"pod {uid} is gone, or was never here")
        gang, place = entry.gang, entry.given
        if gang is None or gang.placement is None or place is None or gang.state is not GangState.PLACED:
            what = "is being preempted" if gang is not None and gang.state is GangState.PREEMPTED else "has no place"
            raise ConflictError(f"pod {entry.key} {what}; kube-scheduler has to ask for it again")
        if entry.bound:
            raise ConflictError(f"pod {entry.key} is on its node already")
        if place.node != node:
            raise ConflictError(f"pod {entry.key} has its place on {place.node}, not on {node}")
        if not gang.shared:
            gang.shared = bindinfo.shared(gang.placement, gang.ask.members, self.cluster.spec)
        entry.binding, entry.place = True, place
        entry.notes = bindinfo.notes(place, gang.shared)
        return Binding(uid, entry.key, node, entry.notes)

    def bound(self, uid: str, at: float) -> None:
        """Kubernetes has bound the pod to its node."""
        entry = self.pods.get(uid)
        if entry is not None and entry.gang is not None and not entry.bound:
            self.is_on_its_node(entry, at)

    def bind_failed(self, uid: str, at: float) -> None:
        """That was not done, for sure."""
        entry = self.pods.get(uid)
        if entry is not None and not entry.bound:
            entry.binding = False
            gang = entry.gang
            if gang is not None:
                self.foreign.moved(gang.placement)
            if gang is not None and gang.state is GangState.PREEMPTED and not gang.on_nodes:
                self.unplace(gang, at, "preempted")
            elif gang is not None and gang.state is GangState.PLACED:
                self.flee(gang, at)  # its node may have turned bad meanwhile
            self._asks_anew(entry, entry.members, at)  # that may have changed meanwhile


def _was_tried(pod: Pod) -> bool:
    """Whether HiveD was asked about a waiting pod, and told it to wait: so it may be asked about again only late.

    Not so where another scheduler looked at it, or none may yet (Kueue's pods have a scheduling gate).
    """
    return any(words in said for said in pod.turned_down for words in _OURS)
