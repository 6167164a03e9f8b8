"""The gang scheduler on Kubernetes: observed state in, decisions and instructions out. Pure, like the core it drives.

    gang_scheduler.start(...)                        all nodes and pods: the first call
    gang_scheduler.pod_changed(...) / node_...(...)  a change of a pod or a node
    gang_scheduler.asked(...)                        kube-scheduler filters, or preempts for, a pod
    gang_scheduler.dispatch(at)                      start gangs, in the order of each VC's policy
    gang_scheduler.turn()                            take the instructions to carry out in Kubernetes

A gang is placed as a whole when its turn comes; kube-scheduler, which asks pod by pod in an order of its own, gets the
outcome. Observed state (a pod on a node) overrides planned placements.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import replace

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.cluster.explain.reasons import Reason, WaitingForPreemption
from hived.cluster.recovery import Reconfiguration
from hived.cluster.requests import Member
from hived.engine.dispatcher import GHOST
from hived.engine.states import JobEvent, JobState
from hived.engine.trading import LiveTrading
from hived.engines.kubernetes.pods import bind_info as bindinfo
from hived.engines.kubernetes.pods import keys, pod_request
from hived.engines.kubernetes.pods.bind_info import written
from hived.engines.kubernetes.pods.objects import Node, Pod
from hived.engines.kubernetes.pods.pod_request import PodRequestError
from hived.errors import ConflictError, InputError, NotFoundError
from hived.policies import by_vc
from hived.scheduling import Policy, SomePolicies
from hived.spec.compiled import ClusterSpec

from . import adopt as adoption
from . import late_pods, withheld
from .extender_answers import repeat_reasons
from .gang import Binding, Evict, Gang, Instruction, PodEntry, RecordEvent, Wake, in_rank_order
from .gang_table import GangTable

#: seconds after which kube-scheduler is reminded of a pod that can be bound and is not
_REMIND_S = 20.0
_REMINDERS = 15  #: after so many without effect, kube-scheduler is taken to ignore the pods
#: substrings of a pod's PodScheduled message where HiveD was asked about it: an answer, or a failed request
_OURS = ("hived:", "/v1/extender/")
#: seconds of trying to evict against a disruption budget
PATIENCE_S = 30.0
_LONGEST_PAUSE_S = 10.0  #: between two attempts to evict
_EXCLUSIONS = 256  #: interned sets of excluded nodes
#: kinds of refusals that another spec may end
_BY_SPEC = ("grace", "member")
_REMEMBERED = 20_000  #: removed pods, so that a late update does not bring one back


def policies_of_pods(spec: ClusterSpec) -> dict[str, Policy]:
    """The policies of the VCs that have another than the default. Raises :class:`~hived.errors.InputError`."""
    policies = by_vc(spec)
    for vc, policy in policies.items():
        if policy.clairvoyant:
            raise InputError(
                f"{spec.source}: policy {policy.name} of {vc} orders jobs by their duration, and the duration of pods "
                "is not known; choose another"
            )
    return policies


class GangScheduler(GangTable):
    """Gangs on a cluster. An update costs what the core charges per gang started, and O(log gangs + pods of its gang).

    ``evict_after``: seconds that kube-scheduler has to delete the pods of a victim before they are evicted.
    ``evict_patience``: seconds from then on in which evictions are tried; the pods that remain are deleted.
    """

    def __init__(
        self,
        cluster: Cluster,
        policies: SomePolicies,
        evict_after: float = 0.0,
        evict_patience: float = PATIENCE_S,
        trading: LiveTrading | None = None,
    ) -> None:
        super().__init__(cluster, policies, trading)
        self.evict_after, self.evict_patience = evict_after, evict_patience
        #: uids of removed pods
        self._removed: OrderedDict[str, None] = OrderedDict()
        #: interned sets of nodes that gangs cannot use
        self._exclusions: dict[frozenset[str], frozenset[str]] = {}

    # -- updates --------------------------------------------------------------------------------------------------

    def start(self, nodes: Iterable[Node], pods: Iterable[tuple[Pod, tuple[Member, ...] | None]], at: float) -> None:
        """Load all nodes and pods. Annotations of bound pods give their placement; waiting gangs are queued by age."""
        self.nodes.replace(nodes)
        self.nodes.apply()
        bound: list[PodEntry] = []
        others: list[Pod] = []
        waiting: list[tuple[PodEntry, tuple[Member, ...] | None]] = []
        for pod, members in pods:
            if pod.ended or pod.metadata.uid in self.pods:
                continue
            if not pod_request.concerns(pod):
                self.helper_changed(pod.metadata.uid, pod_request.helps(pod), at)
                others.append(pod)
                continue
            entry = self.pods[pod.metadata.uid] = PodEntry(pod)
            if pod.spec.node_name:
                bound.append(entry)
            else:
                waiting.append((entry, members))
        adoption.take(self, bound, at)
        withheld.take(self, others, at)
        for entry, members in sorted(waiting, key=lambda pair: (pair[0].pod.created_at, pair[0].key)):
            entry.needs_wake = _was_tried(entry.pod)
            self.join(entry, members, at)
        for gang in self.gangs.values():
            self.line_up(gang)
        running = sum(gang.holds for gang in self.gangs.values())
        self.note("recovered", None, at, {"running": running, "active": len(self.gangs)})

    def pod_changed(self, pod: Pod, members: tuple[Member, ...] | None, at: float) -> None:
        """Add or update a pod. ``members``: its gang as its owner defines it, if it has such an owner."""
        uid = pod.metadata.uid
        if pod.ended:
            entry = self.pods.get(uid)
            if entry is not None and entry.gang is not None:
                entry.gang.ran_out = entry.gang.ran_out or not pod.rejected
                if pod.rejected:
                    entry.pod = pod
                    self.rejected(entry, at)
            self.pod_removed(uid, at)
            return
        entry = self.pods.get(uid)
        if entry is None:
            if uid in self._removed:
                return
            if pod_request.concerns(pod):
                withheld.removed(self, uid, at)
                self._pod_came(pod, members, at)
            else:
                self.helper_changed(uid, pod_request.helps(pod), at)
                withheld.take(self, (pod,), at)
            return
        if entry.bound:
            self._restore_annotations(entry, pod)
        held_back = entry.pod.held_back
        changed = entry.pod.metadata.labels != pod.metadata.labels or (
            entry.pod.annotation(keys.POD_SPEC) != pod.annotation(keys.POD_SPEC)
        )
        entry.pod = pod
        if pod.spec.node_name and not entry.bound:
            self._pod_bound(entry, at)
        elif not pod.spec.node_name and not entry.holds and (changed or entry.refused is not None):
            self._reread_request(entry, members, at)
        if pod.held_back is not held_back and entry.gang is not None:
            self.unsettled[entry.gang.name] = entry.gang
            self.requeue(entry.gang)

    def _restore_annotations(self, entry: PodEntry, pod: Pod) -> None:
        """Rewrite placement annotations that another client has changed: a restart relies on them."""
        before, now = written(entry.pod), written(pod)
        wanted = entry.annotations or before
        if entry.gang is None or now in (before, wanted) or None in wanted.values():
            return
        self.write_annotations(entry, {key: value for key, value in wanted.items() if value is not None})
        why = "its annotations about where it is were changed by somebody else, and are written again"
        self.instruct(RecordEvent(entry.uid, entry.key, "HivedRestored", why, True))

    def _pod_came(self, pod: Pod, members: tuple[Member, ...] | None, at: float) -> PodEntry:
        entry = self.pods[pod.metadata.uid] = PodEntry(pod)
        if pod.spec.node_name:
            adoption.take(self, [entry], at)
        else:
            self.join(entry, members, at)
        return entry

    def _pod_bound(self, entry: PodEntry, at: float) -> None:
        """Handle a pod that Kubernetes has bound: to its own node, or elsewhere by another client."""
        if (place := entry.given) is not None:
            given = ",".join(map(str, place.leaf_cells))
            if place.node == entry.pod.spec.node_name and entry.pod.annotation(keys.ISOLATION) == given:
                self.mark_bound(entry, at)
                return
        self.leave(entry, at)
        if pod_request.concerns(entry.pod):
            adoption.take(self, [entry], at)
        else:  # kube-scheduler asked about it, but HiveD does not schedule it
            del self.pods[entry.uid]
            self.forget_refusal(entry)
            withheld.take(self, (entry.pod,), at)

    def _reread_request(self, entry: PodEntry, members: tuple[Member, ...] | None, at: float) -> None:
        """Read the request of a waiting pod again: it may have changed, or be valid by now."""
        try:
            ask = self.valid_request(entry.pod, members or entry.members)
            if entry.ask is not None and ask.changes_to(entry.ask):
                ask = replace(ask, members=entry.ask.members)
            same = entry.gang is not None and ask == entry.ask
        except PodRequestError:
            same = False
        if not same:
            self.leave(entry, at)
            self.join(entry, members or entry.members, at)

    def pod_removed(self, uid: str, at: float) -> None:
        """Remove a pod that is deleted or has ended."""
        self._removed[uid] = None
        while len(self._removed) > _REMEMBERED:
            self._removed.popitem(last=False)
        entry = self.pods.pop(uid, None)
        if entry is None:
            self.helper_changed(uid, None, at)
            withheld.removed(self, uid, at)
            return
        self.forget_refusal(entry)
        node = self.nodes.free(uid)
        self.nodes_applied(at)
        if node is not None:
            self.foreign.mark_dirty(node)
            self.fill_slots(node, at)
        self.leave(entry, at)

    def nodes_replaced(self, nodes: Iterable[Node], at: float) -> None:
        """Replace all nodes."""
        self.nodes.replace(nodes)
        self.nodes_applied(at)

    def node_changed(self, node: Node, at: float) -> None:
        """Add or update a node."""
        self.nodes.changed(node)
        self.nodes_applied(at)

    def node_removed(self, name: str, at: float) -> None:
        """Remove a node. Its pods stay until Kubernetes deletes them."""
        self.nodes.removed(name)
        self.nodes_applied(at)

    def _policies_of(self, spec: ClusterSpec) -> dict[str, Policy]:
        return policies_of_pods(spec)

    def _reconfigured(self, report: Reconfiguration, why: str, at: float) -> None:
        self.nodes.again()
        self.foreign.dirty.update(self.foreign.on)
        reasons = dict(report.downgraded) | {
            name: f"devices on {', '.join(nodes)} are no more" for name, nodes in report.lost
        }
        for gang in list(self.gangs.values()):
            gang.shared = ""
            self.guarantee_changed(gang, reasons.get(gang.name, why), at)
        self.lost_reservations(self.scheduler.reconfigured(), why, at)
        self.spared(at)  # a gang that was to move may be guaranteed where it is
        self._recheck(at)
        self.nodes_applied(at)

    def _recheck(self, at: float) -> None:
        """Check waiting and refused pods against the members and the grace periods of a new spec. O(pods)."""
        for entry in list(self.pods.values()):
            gang = entry.gang
            waits = gang is not None and gang.placement is None
            if waits or (entry.refused is not None and entry.refused.kind in _BY_SPEC and not entry.bound):
                self._reread_request(entry, entry.members, at)

    def due(self, at: float) -> None:
        """Act on timeouts: evict victims that are still there, remind kube-scheduler of pods that can be bound."""
        self.forget_rejections(at)
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
                # another client that deletes pods may have given them a longer grace period than a loan has
                if entry.bound and not entry.evicted and (not entry.terminating or grace is not None):
                    entry.evicted = True
                    self.instruct(Evict(entry.uid, entry.key, why, grace, delete))
        for name, since in list(self.to_bind.items()):
            if at - since >= _REMIND_S:
                self._remind(self.gangs[name], at)
        for name, since in list(self.awaiting_offer.items()):
            if at - since >= _REMIND_S * _REMINDERS:  # kube-scheduler never asks for it, and it blocks the queue
                self.clear_asked(self.gangs[name])

    def _grace(self, gang: Gang, entry: PodEntry) -> int | None:
        """The grace period of a pod in seconds; None: its own, which is within the limit of loans."""
        most = self.nodes.grace_of_loans(gang.vc)
        return most if not gang.guaranteed and entry.pod.grace_s > most else None

    def _remind(self, gang: Gang, at: float) -> None:
        """Make kube-scheduler retry its pods; after too many reminders, release its GPUs."""
        gang.reminders += 1
        if gang.reminders > _REMINDERS and not gang.on_nodes:
            gang.asked, gang.reminders = False, 0
            self.unplace(gang, at, "kube-scheduler has not asked for it for long")
            for entry in gang.pods.values():
                entry.needs_wake = False  # kube-scheduler does not hold them
            return
        self.to_bind[gang.name] = at
        for entry in gang.pods.values():
            if entry.slot is not None and not entry.holds:
                self.instruct(Wake(entry.uid, entry.key))

    def evict_failed(self, uid: str, at: float) -> None:
        """Schedule the next attempt to evict a pod, after a pause that grows while ``evict_patience`` lasts."""
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
        """Start all gangs that can start."""
        withheld.refresh(self, at)
        late_pods.settle(self, at)
        super().dispatch(at)
        while late_pods.join_placed(self, at) or self.unsettled:
            late_pods.settle(self, at)
            super().dispatch(at)
        for gang in self.unreserved.values():
            repeat_reasons(self, gang)
        self.unreserved.clear()

    def _start(self, gang: Gang, placement: Placement, at: float) -> None:
        """Assign slots to its pods, and wake kube-scheduler for the pods that it holds back."""
        self.becomes(gang, JobEvent.STARTED, placement, at, {"adopted": False})
        self.awaiting_offer.pop(gang.name, None)
        for entry in in_rank_order(gang.pods.values()):
            self.give_slot(entry, gang, at)
        if gang.part_of is not None:
            self.placed_rests.append(gang)

    def _preempt(self, gang: Gang, by: Gang | None, at: float) -> None:
        if gang.state is not JobState.RUNNING:
            return  # it is being evicted for another gang already
        self.note_displaced(gang, by, at)
        if by is None:
            why = f"preempted by {GHOST.format(gang.vc)}"
            self._displace(gang, at, why, why, None)
            return
        why = f"preempted by {by.name} of {by.vc}"
        takes = "what its VC reserved" if by.vc != gang.vc else "it by its higher priority"
        self._displace(gang, at, why, f"{why}, which takes {takes}", by)

    def _move(self, gang: Gang, why: str, at: float) -> None:
        self._displace(gang, at, why, f"{why}; it starts there once its pods are gone from here", None, "moved")

    def _promoted(self, gang: Gang) -> None:
        self.annotate(gang)

    def _hold(self, gang: Gang, reasons: tuple[Reason, ...]) -> None:
        super()._hold(gang, reasons)
        if isinstance(reasons[0], WaitingForPreemption) and not gang.entry.may_preempt:
            self.request_offer(gang, self._now)  # no victims for nodes that it may not be able to use

    def _displace(
        self, gang: Gang, at: float, why: str, message: str, by: Gang | None, cause: str = "preempted"
    ) -> None:
        """Evict a placed gang: it gives its GPUs back at once, or when its last bound pod is removed."""
        data: dict[str, object] = {"cause": cause, "why": why}
        if by is not None:
            data["by"] = [by.name, by.vc, by.priority]
        self.becomes(gang, JobEvent.STOPPING, None, at, data)
        # the core knows of no preemptor where its VC takes what it has back
        gang.preempted_by = None if gang.entry.yields else by
        gang.evict_at, gang.evict_from = at + self.evict_after, None
        for entry in gang.pods.values():
            if entry.holds:
                self.instruct(RecordEvent(entry.uid, entry.key, "HivedPreempted", message, True))
        if not gang.on_nodes:
            self.unplace(gang, at, why)

    def turn(self) -> list[Instruction]:
        """The instructions since the last call."""
        found, self._instructions = self._instructions, []
        return found

    # -- kube-scheduler asks --------------------------------------------------------------------------------------

    def asked(
        self,
        pod: Pod,
        members: tuple[Member, ...] | None,
        offered: Collection[str],
        at: float,
        partial: bool = False,
        emptied: bool = False,
    ) -> PodEntry:
        """kube-scheduler asks about ``pod`` and offers nodes. Dispatches; the caller reads the outcome off the entry.

        ``partial``: it filters other nodes next. ``emptied``: besides the nodes of its last filter request, if there
        was one, these are usable once pods of lower priority have left them. Raises :class:`NotFoundError` for a
        removed pod.
        """
        uid = pod.metadata.uid
        entry = self.pods.get(uid)
        emptied = emptied and entry is not None and entry.gang is not None and entry.gang.asked
        if entry is None:
            if uid in self._removed or pod.ended:
                raise NotFoundError(f"pod {pod.key} ({uid}) is gone")
            entry = self._pod_came(pod, members, at)
        elif entry.refused is not None and not entry.bound:
            self._reread_request(entry, members, at)
        self.resize(uid, members, at)
        gang = entry.gang
        if gang is None:
            return entry
        gang.asked, gang.reminders = True, 0
        if not gang.ask.anywhere and not partial:
            # nodes that the spec lacks are never used, and the core leaves out bad ones by itself
            if emptied:
                gang.emptied = frozenset(offered)
            else:
                gang.not_offered = frozenset(self.nodes.healthy.difference(offered))
            gang.entry.may_preempt = True
            was_awaited = self.awaiting_offer.pop(gang.name, None) is not None
            excluded = gang.not_offered
            if emptied or gang.state is JobState.RESERVED:
                excluded -= gang.emptied
            excluded = excluded.union(gang.barred, self.rejections.get(gang.family, ()))
            if len(self._exclusions) >= _EXCLUSIONS:
                self._exclusions.clear()
            excluded = self._exclusions.setdefault(excluded, excluded)  # interned, so that comparison is fast
            if excluded != gang.entry.excluded:
                self.scheduler.exclude(gang.entry, excluded)
            elif was_awaited and gang.in_line:
                self.scheduler.mark_dirty(gang.vc)
        self.line_up(gang)
        self.dispatch(at)
        if not partial and entry.gang is not None and self._cannot_stay(entry.gang, entry, at):
            self.dispatch(at)
        return entry

    def _cannot_stay(self, gang: Gang, entry: PodEntry, at: float) -> bool:
        """Whether a pod that is not bound loses its place, since kube-scheduler does not take its node."""
        place = entry.given if gang.state is JobState.RUNNING and not entry.holds else None
        if place is None or place.node not in gang.entry.excluded:
            return False
        if gang.on_nodes:
            return late_pods.refused(self, entry, gang, at)
        self.unplace(gang, at, "kube-scheduler does not take its node")
        return True

    def incomplete(self) -> list[PodEntry]:
        """A pod of each gang that waits for more pods from its owner, or has more than that defines. O(gangs)."""
        owned = (gang for gang in self.gangs.values() if gang.ask.owner)
        return [
            next(reversed(gang.pods.values()))
            for gang in owned
            if len(gang.pods) > gang.ask.size or (gang.placement is None and len(gang.pods) < gang.ask.size)
        ]

    def resize(self, uid: str, members: tuple[Member, ...] | None, at: float) -> None:
        """Set the members of a waiting gang to what the owner of this pod defines by now."""
        entry = self.pods.get(uid)
        if entry is None or entry.bound or members is None or members == entry.members:
            return
        gang = entry.gang
        if gang is None or not (gang.placement is None or (gang.state is JobState.RUNNING and not entry.holds)):
            return
        others = list(gang.pods.values()) if gang.placement is None else [entry]
        for other in others:
            self.leave(other, at)
        for other in others:
            self.join(other, members, at)

    def unreadable(self, pod: Pod, error: PodRequestError, at: float) -> None:
        """Refuse ``pod``: its owner cannot be read, so its request is unknown."""
        uid = pod.metadata.uid
        if pod.ended or uid in self._removed:
            return
        entry = self.pods.get(uid)
        if entry is None:
            entry = self.pods[uid] = PodEntry(pod)
        if entry.gang is None and not entry.bound:
            self.refuse(entry, error)

    # -- binding --------------------------------------------------------------------------------------------------

    def binding(self, uid: str, node: str) -> Binding:
        """The Binding of a pod that kube-scheduler binds to ``node``. The pod counts as bound from now on.

        Raises :class:`NotFoundError`, or :class:`ConflictError` if it has no slot there.
        """
        entry = self.pods.get(uid)
        if entry is None:
            raise NotFoundError(f"pod {uid} is gone, or was never here")
        gang, place = entry.gang, entry.given
        if gang is None or gang.placement is None or place is None or gang.state is not JobState.RUNNING:
            what = "is being preempted" if gang is not None and gang.state is JobState.STOPPING else "has no place"
            raise ConflictError(f"pod {entry.key} {what}; kube-scheduler has to ask for it again")
        if entry.bound:
            raise ConflictError(f"pod {entry.key} is on its node already")
        if place.node != node:
            raise ConflictError(f"pod {entry.key} has its place on {place.node}, not on {node}")
        if not self.nodes.usable(*place):
            raise ConflictError(f"pod {entry.key}: {self.nodes.situation(node)}")
        if not gang.shared:
            gang.shared = bindinfo.shared(gang.placement, gang.ask.members, self.cluster.spec)
        entry.binding, entry.place = entry.binding + 1, place
        entry.annotations = bindinfo.pod_annotations(place, gang.shared, entry.pod)
        return Binding(uid, entry.key, node, entry.annotations)

    def bound(self, uid: str, at: float) -> None:
        """Kubernetes has confirmed the Binding."""
        entry = self.pods.get(uid)
        if entry is not None and entry.gang is not None and not entry.bound:
            self.mark_bound(entry, at)

    def bind_failed(self, uid: str, at: float) -> None:
        """A Binding has failed for certain. The pod stays where it is while another one of it may still take effect."""
        entry = self.pods.get(uid)
        if entry is not None and not entry.bound:
            entry.binding = max(0, entry.binding - 1)
            if entry.binding:
                return
            gang = entry.gang
            if gang is not None:
                self.foreign.mark_placement_dirty(gang.placement)
            if gang is not None and gang.state is JobState.STOPPING and not gang.on_nodes:
                self.unplace(gang, at, "preempted")
            elif gang is not None and gang.state is JobState.RUNNING:
                self.release_from_bad_hardware(gang, at)  # its node may have turned bad meanwhile
            self._reread_request(entry, entry.members, at)  # its request may have changed meanwhile


def _was_tried(pod: Pod) -> bool:
    """Whether kube-scheduler has tried a waiting pod with HiveD, so that it may ask about the pod again only late.

    Not so if another scheduler tried it, or if none may yet (Kueue's pods have a scheduling gate).
    """
    return any(words in said for said in pod.turned_down for words in _OURS)
