"""The state of the gang scheduler and its transitions: each keeps gangs, usage counts and the core consistent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from hived.access import Access
from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement, PodPlacement, Record
from hived.cluster.requests import Member
from hived.engine.dispatcher import Dispatcher, Goes
from hived.engine.job import Event, placement_data
from hived.engine.states import SUBMITTED, JobEvent, JobState
from hived.engine.trading import LiveTrading
from hived.engines.kubernetes.pods import bind_info as bindinfo
from hived.engines.kubernetes.pods import pod_request
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.pod_request import PodRequestError
from hived.errors import ForbiddenError
from hived.scheduling import SomePolicies, Status, loan_of
from hived.spec.compiled import ClusterSpec

from .foreign import ForeignPods
from .gang import Annotate, Gang, Instruction, PodEntry, RecordEvent, Wake, sizes_of
from .nodes import Nodes

_RECENT = 20_000  #: events
_ENDED = 1_000  #: ended gangs that are kept for display
REJECTED_S = 300.0  #: for so long pods do not return to a node whose kubelet has rejected one of their kind


class GangTable(Dispatcher[Gang, Instruction]):
    """The state of :class:`~.gang_scheduler.GangScheduler`."""

    nodes_refused = "kube-scheduler does not take its nodes any more"

    def __init__(self, cluster: Cluster, policies: SomePolicies, trading: LiveTrading | None = None) -> None:
        super().__init__(cluster, policies, most_events=_RECENT, trading=trading)
        self.gangs: dict[str, Gang] = {}
        # the same by family and name
        self._families: dict[str, dict[str, Gang]] = {}
        #: live pods that HiveD schedules, by uid
        self.pods: dict[str, PodEntry] = {}
        #: pods that cannot be scheduled as they are, and bound pods that fit into no gang, by uid
        self.refused: dict[str, PodEntry] = {}
        #: conflicts as text, by uid of a bound pod (foreign ones too) whose GPUs another pod may use
        self.conflicts: dict[str, str] = {}
        #: the group, by uid of a pod that names it and does not match its other pods
        self.outside: dict[str, str] = {}
        #: gangs whose reservation has ended or moved, before their pods get new Events
        self.unreserved: dict[str, Gang] = {}
        #: preempted gangs with pods on nodes
        self.evicting: dict[str, Gang] = {}
        #: since when a gang waits for kube-scheduler to offer nodes before it may preempt
        self.awaiting_offer: dict[str, float] = {}
        #: since when, or since which reminder, a gang has pods that can be bound and are not
        self.to_bind: dict[str, float] = {}
        #: ended gangs, the latest last
        self.ended: OrderedDict[str, Gang] = OrderedDict()
        self.nodes = Nodes(cluster)
        #: bound pods with GPUs that HiveD did not place
        self.foreign = ForeignPods()
        #: gangs that may have late pods, or a rest that is out of date; and rests that were just placed
        self.unsettled: dict[str, Gang] = {}
        self.placed_rests: list[Gang] = []
        #: by group: pods without GPUs that are counted in it by its label, as a launcher may be; and the reverse
        self.helpers: dict[str, set[str]] = {}
        self.helps: dict[str, str] = {}
        #: by family of pods: the nodes whose kubelets have rejected one of them, until when they are avoided, and why
        self.rejections: dict[str, dict[str, tuple[float, str]]] = {}
        self._access: tuple[ClusterSpec, Access] | None = None
        self._number = 0
        #: per VC: how many of them
        self._submitted: dict[str, int] = {}

    @property
    def hardware(self) -> Nodes:
        """The nodes."""
        return self.nodes

    def active(self) -> Iterable[Gang]:
        """All gangs."""
        return self.gangs.values()

    def job(self, number: int) -> Gang:
        """The gang with this number."""
        return self.gangs[self.scheduler.jobs[number].name]

    # -- pods come and go -----------------------------------------------------------------------------------------

    def join(self, entry: PodEntry, members: tuple[Member, ...] | None, at: float) -> None:
        """Add a waiting pod to its gang, or refuse it if its request is invalid."""
        entry.members, entry.ask = members, None
        self.forget_refusal(entry)
        try:
            ask = self.valid_request(entry.pod, members)
        except PodRequestError as error:
            self.refuse(entry, error)
            return
        gang = self.gangs.get(ask.group)
        ask = self.sized(ask, 1 + (0 if gang is None else gang.all_pods), gang)
        if gang is not None and gang.holds and ask.changes_to(gang.ask):
            self._grow(gang, ask.members, at)
            ask = replace(ask, members=gang.ask.members)  # the owner may define fewer once pods have succeeded
        elif gang is not None and ask.changes_to(gang.ask) and gang.ask.members != ask.members:
            self.redefine(gang, ask.members, at)
        wrong = None
        if gang is None:
            pod = entry.pod
            gang = self.new_gang(ask, pod.created_at, at, pod_request.family(pod, ask.group), pod.user)
        elif gang.ask.owner != ask.owner:
            wrong = PodRequestError(
                "name-taken",
                f"its group's name {ask.group} is that of pods which another object has made, maybe one of the same "
                "name before it; it waits until these are gone",
            )
        elif (what := ask.disagrees(gang.ask)) is not None:
            wrong = PodRequestError("disagrees", f"other pods of its group {ask.group} ask for something else: {what}")
        if wrong is not None:
            self.refuse(entry, wrong)
            self.outside[entry.uid] = ask.group
            return
        entry.ask, entry.gang = ask, gang
        gang.pods[entry.uid] = entry
        gang.asked = gang.asked or entry.needs_wake  # kube-scheduler may not ask again for a pod that it holds back
        if gang.state is JobState.RUNNING:
            self.give_slot(entry, gang, at)
            self.unsettled[gang.name] = gang
        else:
            self.line_up(gang)

    def access(self) -> Access:
        """Who may use which virtual cluster, by the spec in force. O(its subjects) where that has changed."""
        spec = self.cluster.spec
        if self._access is None or self._access[0] is not spec:
            self._access = spec, Access(spec, "")
        return self._access[1]

    def valid_request(self, pod: Pod, members: tuple[Member, ...] | None) -> pod_request.PodRequest:
        """The request of a waiting pod. Raises :class:`PodRequestError`, also for limits that bound pods may exceed."""
        ask = pod_request.read_request(pod, members)
        try:
            self.access().check_pod(pod.metadata.namespace, pod.service_account, ask.vc, ask.priority, pod.grace_s)
        except ForbiddenError as error:
            raise PodRequestError("member", str(error)) from None
        pod_request.check_grace(pod, ask, self.nodes.grace_of_loans(ask.vc))
        pod_request.check_labels(pod)
        return ask

    def sized(self, ask: pod_request.PodRequest, pods: int, gang: Gang | None = None) -> pod_request.PodRequest:
        """The request of a group whose label counts its pods, those without GPUs among them.

        As many with GPUs as are left or, of a ``gang`` that holds GPUs, as it was placed with; or as exist (``pods``).
        """
        left = ask.counted - len(self.helpers.get(ask.group, ()))
        if gang is not None and gang.holds:
            left = gang.ask.size
        number = max(left, min(pods, ask.counted))
        return replace(ask, members=(Member(number, ask.leaf_cells),)) if ask.counted else ask

    def helper_changed(self, uid: str, group: str | None, at: float) -> None:
        """A pod without GPUs is counted in ``group``, or (None) in no group any more."""
        before = self.helps.pop(uid, None)
        if before is not None:
            self.helpers[before].discard(uid)
            if not self.helpers[before]:
                del self.helpers[before]
        if group is not None:
            self.helps[uid] = group
            self.helpers.setdefault(group, set()).add(uid)
        for name in {before, group} - {None} if before != group else ():
            gang = self.gangs.get(name or "")
            if gang is not None and not gang.holds:
                self.redefine(gang, self.sized(gang.ask, len(gang.pods)).members, at)

    def redefine(self, gang: Gang, members: tuple[Member, ...], at: float) -> None:
        """Have a gang without GPUs ask for other pods."""
        if members == gang.ask.members:
            return
        self.withdraw(gang, at)
        self._asks_for(gang, members)
        gang.entry.resize(gang.ask.request(), gang.gpus)
        self.line_up(gang)

    def new_gang(self, ask: pod_request.PodRequest, submitted_at: float, at: float, family: str, user: str) -> Gang:
        """Add a gang, with the request of its first pod, and its user."""
        self._number += 1
        before = self._submitted.get(ask.vc, 0)
        self._submitted[ask.vc] = before + 1
        since = min(at, submitted_at or at)  # the service may be younger than its pods
        gang = self.gangs[ask.group] = Gang(self._number, ask, submitted_at, since, before, user)
        gang.family = family
        self._families.setdefault(family, {})[gang.name] = gang
        self.exclude(gang)
        self.usage.add(gang)
        gang.remember(self.note(SUBMITTED, gang.name, since, {"vc": ask.vc, "gpus": gang.gpus, "pods": ask.size}))
        return gang

    def exclude(self, gang: Gang) -> None:
        """Have a gang avoid the nodes that kube-scheduler left out, those too far away, and those that rejected it."""
        excluded = frozenset() if gang.ask.anywhere else gang.not_offered
        excluded = excluded.union(gang.barred, self.rejections.get(gang.family, ()))
        if excluded != gang.entry.excluded:
            self.scheduler.exclude(gang.entry, excluded)

    def usable(self, gang: Gang, place: PodPlacement) -> bool:
        """Whether pods of ``gang`` may start there."""
        return self.nodes.usable(*place) and place.node not in self.rejections.get(gang.family, ())

    def rejected(self, entry: PodEntry, at: float) -> None:
        """The kubelet of its node has rejected a pod: those that replace it avoid the node for a while."""
        node, gang = entry.pod.spec.node_name, entry.gang
        if gang is None or not node:
            return
        why = f"its kubelet has rejected {entry.key} ({entry.pod.status.reason})"
        self.rejections.setdefault(gang.family, {})[node] = at + REJECTED_S, why
        gang.remember(self.note("rejected", gang.name, at, {"why": f"{node}: {why}"}))
        self.rejections_changed(gang.family)

    def rejections_changed(self, family: str) -> None:
        """Have the gangs of a family follow its rejections. O(these)."""
        for gang in self._families.get(family, {}).values():
            self.exclude(gang)
            self.unsettled[gang.name] = gang

    def forget_rejections(self, at: float) -> None:
        """Use nodes again that were avoided for long enough."""
        for family, nodes in list(self.rejections.items()):
            over = [node for node, (until, _) in nodes.items() if at >= until]
            for node in over:
                del nodes[node]
            if not nodes:
                del self.rejections[family]
            if over:
                self.rejections_changed(family)

    def forget_refusal(self, entry: PodEntry) -> None:
        """Drop the refusal of a pod."""
        entry.refused = None
        for index in (self.refused, self.conflicts, self.outside):
            index.pop(entry.uid, None)

    def refuse(self, entry: PodEntry, error: PodRequestError) -> None:
        """Refuse a pod that cannot be scheduled as it is."""
        entry.refused = error
        self.refused[entry.uid] = entry
        if entry.reported != str(error):
            entry.reported = str(error)
            self.instruct(RecordEvent(entry.uid, entry.key, "HivedRefused", str(error), True))

    def keep_devices(self, entry: PodEntry, error: PodRequestError, devices: tuple[int, ...] | None, at: float) -> None:
        """Refuse a bound pod that is of no gang, and keep the devices that it may use (None: all) from jobs."""
        entry.refused, entry.bound, entry.binding = error, True, 0
        self.refused[entry.uid] = entry
        node = entry.pod.spec.node_name or ""
        # it does not contradict others: nobody can end it there
        lost = entry.terminating and self.nodes.lost(node)
        if devices != ():
            if not lost:
                self.conflicts[entry.uid] = str(error)
            self.nodes.hold(entry.uid, node, devices, f"pod {entry.key} may be using it: {error}")
            self.foreign.mark_dirty(node)
            self.nodes_applied(at)
            self.yield_slots(node, at)
        reason = "HivedReplaced" if lost else "HivedConflict"
        self.instruct(RecordEvent(entry.uid, entry.key, reason, str(error), True))

    def give_slot(self, entry: PodEntry, gang: Gang, at: float) -> None:
        """Assign ``entry`` the first free slot of its size, if there is one."""
        assert gang.placement is not None
        assert entry.ask is not None
        for slot, pod in enumerate(gang.placement.pods):
            if gang.slots[slot] is None and len(pod.leaf_cells) == entry.ask.leaf_cells and self.usable(gang, pod):
                gang.slots[slot], entry.slot = entry.uid, slot
                self.ready_to_bind(entry, gang, at)
                return

    def give_slots(self, gang: Gang, at: float) -> None:
        """Assign free slots of a placed gang to its pods without one. O(pods * such pods)."""
        if gang.state is JobState.RUNNING and None in gang.slots:
            for entry in gang.pods.values():
                if entry.slot is None and not entry.holds:
                    self.give_slot(entry, gang, at)

    def yield_slots(self, node: str, at: float) -> None:
        """Clear slots on ``node`` whose devices a pod of no gang may use, unless their own pods are bound already."""
        for gang in self.gangs_on(node):
            for slot, place in enumerate(gang.placement.pods if gang.placement is not None else ()):
                entry = gang.pods.get(gang.slots[slot] or "")
                taken = place.node == node and self.nodes.may_be_used(node, place.leaf_cells)
                if taken and entry is not None and not entry.holds:
                    gang.slots[slot] = entry.slot = None
                    entry.needs_wake = True
            self.give_slots(gang, at)  # another slot may be free
            self._refresh_to_bind(gang, at)

    def fill_slots(self, node: str, at: float) -> None:
        """Assign slots of gangs on ``node`` after a pod of no gang has left it."""
        for gang in self.gangs_on(node):
            self.give_slots(gang, at)

    def gangs_on(self, node: str) -> list[Gang]:
        """Gangs that hold devices of ``node``, each once. O(its devices)."""
        found = (self.usage.at.get((node, device)) for device in self.nodes.devices.get(node, ()))
        return list({gang.name: gang for gang in found if gang is not None}.values())

    def used_on(self, node: str) -> set[int]:
        """Devices of ``node`` that pods of gangs use, or may use. O(its devices + pods of these gangs)."""
        return {
            device
            for gang in self.gangs_on(node)
            for place, uid in zip(gang.placement.pods if gang.placement is not None else (), gang.slots, strict=True)
            if place.node == node and uid is not None and gang.pods[uid].holds
            for device in place.leaf_cells
        }

    def ready_to_bind(self, entry: PodEntry, gang: Gang, at: float) -> None:
        """A pod has a slot: wake kube-scheduler if it holds the pod back."""
        self.to_bind.setdefault(gang.name, at)
        if entry.needs_wake:
            entry.needs_wake = False
            self.instruct(Wake(entry.uid, entry.key))

    def _refresh_to_bind(self, gang: Gang, at: float) -> None:
        """Update whether a pod of the gang has a slot and is not bound. O(its pods)."""
        unbound = (entry.slot is not None and not entry.bound for entry in gang.pods.values())
        if gang.state is JobState.RUNNING and any(unbound):
            self.to_bind.setdefault(gang.name, at)
        else:
            self.to_bind.pop(gang.name, None)

    def mark_bound(self, entry: PodEntry, at: float) -> None:
        """Mark a pod as bound to its slot by Kubernetes."""
        gang = entry.gang
        assert gang is not None
        entry.bound, entry.binding, entry.needs_wake = True, 0, False
        gang.waited_since = None
        gang.remember(self.note("bound", gang.name, at, {"pod": entry.key, "node": entry.pod.spec.node_name}))
        self.foreign.mark_placement_dirty(gang.placement)
        self._refresh_to_bind(gang, at)

    def leave(self, entry: PodEntry, at: float, why: str = "its last pod is gone") -> None:
        """Remove a pod from its gang. ``why``: the gang ends with its last pod."""
        gang, slot = entry.gang, entry.slot
        entry.gang = entry.slot = None
        if gang is None:
            return
        del gang.pods[entry.uid]
        if not gang.pods:
            self.end(gang, at, why)
            return
        self.unsettled[gang.name] = gang
        if slot is not None:
            gang.slots[slot] = None
            self.foreign.mark_placement_dirty(gang.placement)
        if gang.state is JobState.STOPPING and not gang.on_nodes:
            self.unplace(gang, at, "its pods are gone")
        elif gang.state is JobState.RUNNING and slot is not None:
            self.give_slots(gang, at)  # to a pod that had none
            self._refresh_to_bind(gang, at)
            self.release_from_bad_hardware(gang, at)
        else:
            self.release_from_bad_hardware(gang, at)  # the last pod that ran may have had no slot
            self.requeue(gang)

    # -- gangs change ---------------------------------------------------------------------------------------------

    def _goes(self, gang: Gang, event: JobEvent) -> Goes:
        if event is JobEvent.REQUEUED or gang.state is JobState.STOPPING:
            return Goes.RETURNS  # its owner makes new pods
        return Goes.ENDED if gang.ran_out else Goes.WITHDRAWN

    def _changed(self, gang: Gang, event: Event, held: bool, before: Placement | None) -> None:
        self.foreign.mark_placement_dirty(before)
        for changed in (gang, gang.rest):
            if changed is not None:
                self.unsettled[changed.name] = changed
        if event.kind == JobEvent.UNRESERVED:
            self.unreserved[gang.name] = gang
        if gang.placement != before:
            gang.shared = ""
        self.foreign.mark_placement_dirty(gang.placement)
        if not (held and gang.holds):
            gang.slots = [None] * (len(gang.placement.pods) if gang.placement is not None and gang.holds else 0)
            gang.widest = 0 if gang.placement is None else gang.placement.gpus
            for entry in gang.pods.values():
                entry.slot = None
        if gang.state is JobState.STOPPING:
            self.evicting[gang.name] = gang
        else:
            self.evicting.pop(gang.name, None)
            gang.preempted_by = None
        self._refresh_to_bind(gang, event.at)
        if gang.placement is not None:  # what shows a history sees it where its older part is forgotten
            event.data["placement"] = placement_data(gang.placement)
        gang.remember(event)

    def _grow(self, gang: Gang, members: tuple[Member, ...], at: float) -> None:
        """Follow the owner of a running gang that defines more pods; fewer are defined once pods have succeeded."""
        now, before = sizes_of(members), sizes_of(gang.ask.members)
        if gang.placement is None or gang.state is not JobState.RUNNING or not gang.settled:
            return
        if now == before or before - now:
            return
        self._asks_for(gang, members)
        self.reshape(gang, gang.placement, list(gang.slots), f"its owner defines {gang.ask.size} pods by now", at)

    def _asks_for(self, gang: Gang, members: tuple[Member, ...]) -> None:
        """Have a gang and its pods ask for other members."""
        gang.ask = replace(gang.ask, members=members)
        gang.gpus = gang.ask.gpus
        for entry in gang.pods.values():
            if entry.ask is not None:
                entry.ask = replace(entry.ask, members=members)

    def reshape(self, gang: Gang, placement: Placement, slots: list[str | None], why: str, at: float) -> None:
        """Have a running gang hold exactly these places; ``slots``: the pod of each, by uid."""
        core = self.recover(gang, placement)
        self.scheduler.resized(gang.entry, gang.ask.request(), gang.gpus, core.guaranteed)
        gang.widest = core.gpus
        slot_of = {uid: slot for slot, uid in enumerate(slots) if uid is not None}
        gang.slots = slots
        for entry in gang.pods.values():
            entry.slot = slot_of.get(entry.uid)
        self.becomes(gang, JobEvent.RESHAPED, core, at, {"why": why})
        self.annotate(gang)

    def recover(self, gang: Gang, placement: Placement) -> Placement:
        """Have the core take over a running gang at these places, as after a restart; where it is then."""
        request = gang.ask.request()
        loan = gang.ask.early and not placement.guaranteed
        since = self.cluster.group(gang.name).since
        self.cluster.release(gang.name)
        self.cluster.recover([Record(gang.name, loan_of(request) if loan else request, placement, since)])
        core = self.cluster.group(gang.name).placement
        assert core is not None
        return core

    def line_up(self, gang: Gang) -> None:
        """Queue a waiting gang once kube-scheduler has asked for it and all its pods exist."""
        if gang.state is JobState.QUEUED and gang.asked and not gang.in_line and gang.complete:
            self.scheduler.wait(gang.entry)

    def request_offer(self, gang: Gang, at: float) -> None:
        """Wake kube-scheduler so that it offers nodes for a gang that it has asked another process about."""
        if gang.name not in self.awaiting_offer:
            self.awaiting_offer[gang.name] = at
            for entry in gang.pods.values():
                self.instruct(Wake(entry.uid, entry.key))

    def clear_asked(self, gang: Gang) -> None:
        """Take a gang out of the queue until kube-scheduler asks for it again."""
        self.awaiting_offer.pop(gang.name, None)
        gang.asked = False
        if gang.in_line:
            self.scheduler.withdraw(gang.entry)

    def requeue(self, gang: Gang) -> None:
        """Queue or unqueue a gang after its pods, or their scheduling gates, have changed."""
        if gang.in_line and not gang.complete:
            self.scheduler.withdraw(gang.entry)
        self.line_up(gang)

    def unplace(self, gang: Gang, at: float, why: str) -> None:
        """Release the GPUs of a gang without bound pods, and queue it again."""
        self.becomes(gang, JobEvent.REQUEUED, None, at, {"why": why})
        for entry in gang.pods.values():
            entry.needs_wake = True  # kube-scheduler may have got a node that is not the pod's any more
        self.line_up(gang)

    def withdraw(self, gang: Gang, at: float) -> None:
        """Give up the reservation of a gang, or its position in the queue."""
        self.scheduler.withdraw(gang.entry)
        if gang.state is JobState.RESERVED:
            self.becomes(gang, JobEvent.UNRESERVED, None, at, {"why": "it gave up what was reserved for it"})
            self.spared(at)

    def end(self, gang: Gang, at: float, why: str = "its last pod is gone") -> None:
        """End a gang whose last pod is removed, and free its GPUs."""
        if gang.part_of is not None:
            gang.part_of.rest = None
        if gang.rest is not None:
            self.unsettled[gang.rest.name] = gang.rest
        self.becomes(gang, JobEvent.ENDED, None, at, {"why": why})
        family = self._families[gang.family]
        del family[gang.name]
        if not family:
            del self._families[gang.family]
        for index in (self.gangs, self.unreserved, self.awaiting_offer):
            index.pop(gang.name, None)
        self.ended.pop(gang.name, None)
        self.ended[gang.name] = gang
        if len(self.ended) > _ENDED:
            self.ended.popitem(last=False)
        for uid in [uid for uid, name in self.outside.items() if name == gang.name]:
            self.join(self.pods[uid], self.pods[uid].members, at)

    def guarantee_changed(self, gang: Gang, why: str, at: float, by: str | None = None) -> None:
        """See :meth:`Dispatcher.guarantee_changed`. Updates the annotations of its pods."""
        core = self.cluster.group(gang.name) if gang.holds else None
        before = gang.placement
        if core is None or core.placement is None or before is None or core.placement == before:
            return
        kept = JobEvent.REBOUND if gang.guaranteed else JobEvent.RESTORED
        kind = kept if core.guaranteed else JobEvent.DOWNGRADED
        if core.placement.pods != before.pods:
            had: list[tuple[PodPlacement | None, str | None]] = list(zip(before.pods, gang.slots, strict=True))
            had += [(entry.place, entry.uid) for entry in gang.pods.values() if entry.holds]
            gang.keep_places(had, core.placement)
        self.becomes(gang, kind, core.placement, at, {"why": why, "by": by})
        self.scheduler.became(gang.entry, gang.guaranteed)
        if core.placement.gpus == gang.widest:  # else they would lose devices that a later spec may have again
            self.annotate(gang)
        if gang.state is not JobState.RUNNING:
            return
        if not gang.on_nodes and core.placement.gpus < gang.widest:
            self.unplace(gang, at, why)
            return
        self.give_slots(gang, at)

    def annotate(self, gang: Gang) -> None:
        """Write the current placement of a gang to the annotations of its bound pods."""
        assert gang.placement is not None
        gang.shared = bindinfo.shared(gang.placement, gang.ask.members, self.cluster.spec)
        for entry in gang.pods.values():
            if entry.holds and entry.given is not None:
                self.write_annotations(entry, bindinfo.pod_annotations(entry.given, gang.shared, entry.pod))

    def write_annotations(self, entry: PodEntry, annotations: dict[str, str]) -> None:
        """Write the placement annotations of a pod."""
        entry.annotations = annotations
        self.instruct(Annotate(entry.uid, entry.key, tuple(annotations.items())))

    def spared(self, at: float) -> None:
        """See :meth:`Dispatcher.spared`. Also calls off the eviction of gangs without a preemptor left."""
        why = "nobody wants its GPUs any more"
        for gang in list(self.evicting.values()):
            wanted_by = self.cluster.group(gang.name).preempted_by
            if wanted_by:
                if gang.preempted_by is None or gang.preempted_by.name not in wanted_by:
                    gang.preempted_by = self.gangs[wanted_by[0]]
                continue
            if gang.entry.status is Status.MOVING or gang.entry.yields:
                continue  # it moves to GPUs of its own, or its loan is taken for a job of its VC
            self.scheduler.mark_dirty(gang.vc)  # it may be promoted again
            self.becomes(gang, JobEvent.STOP_CANCELLED, None, at, {"why": why})
            for entry in gang.pods.values():
                entry.evicted = False  # a pending eviction is dropped
                if entry.holds and not entry.terminating:
                    self.instruct(RecordEvent(entry.uid, entry.key, "HivedSpared", f"{why}; it runs on"))
                if entry.slot is not None and not entry.holds:
                    self.ready_to_bind(entry, gang, at)
            self.give_slots(gang, at)
        super().spared(at)

    def nodes_applied(self, at: float) -> None:
        """Apply node changes to the core; that may end reservations and start other gangs."""
        names = self.nodes.apply()
        if names:
            self.note(
                "node", None, at, {"nodes": [self.nodes.situation(name) for name in names[:8]], "all": len(names)}
            )
            self.lost_reservations(self.scheduler.hardware_changed(), "hardware under it turned bad", at)
            for gang in [gang for node in names for gang in self.gangs_on(node)]:
                self.unsettled[gang.name] = gang
                self.release_from_bad_hardware(gang, at)

    def release_from_bad_hardware(self, gang: Gang, at: float) -> None:
        """Release a placed gang without bound pods if its hardware has turned bad."""
        if gang.state is JobState.RUNNING and not gang.on_nodes and self.on_bad_hardware(gang):
            self.unplace(gang, at, "hardware under it is bad")

    def on_bad_hardware(self, gang: Gang) -> bool:
        """Whether any of its devices is bad. O(its GPUs)."""
        return not all(self.nodes.usable(node, (device,)) for node, device in gang.devices())
