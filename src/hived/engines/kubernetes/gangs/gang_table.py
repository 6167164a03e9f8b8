"""All that the gang scheduler knows, and the steps that change it: each keeps gangs, sums and the core in step."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.requests import Member
from hived.engines.dispatcher import Dispatcher
from hived.engines.job import next_state, placement_data
from hived.engines.kubernetes.pods import bind_info as bindinfo
from hived.engines.kubernetes.pods import pod_request as asking
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.pod_request import PodRequestError
from hived.scheduling import Policy, Status

from .foreign import ForeignPods
from .gang import GANG_TABLE, Annotate, Gang, GangEvent, GangState, Instruction, PodEntry, Tell, Wake
from .nodes import Nodes

_RECENT = 20_000  #: events
_ENDED = 1_000  #: gangs that are gone, for people who look


class GangTable(Dispatcher[Gang, Instruction]):
    """The state of :class:`~.gang_scheduler.GangScheduler`."""

    nodes_refused = "kube-scheduler does not take its nodes any more"

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        super().__init__(cluster, policy, most_events=_RECENT)
        self.gangs: dict[str, Gang] = {}
        #: pods that live and concern HiveD, by uid
        self.pods: dict[str, PodEntry] = {}
        #: those that cannot be scheduled as they are, or run where nobody has put them
        self.refused: dict[str, PodEntry] = {}
        #: bound pods whose GPUs somebody else has, foreign ones among them, by uid: in words
        self.conflicts: dict[str, str] = {}
        #: pods that are refused for the sake of a group's name: which
        self.outside: dict[str, str] = {}
        #: gangs whose reservation has ended, or moved, and whose pods were not told so yet
        self.unreserved: dict[str, Gang] = {}
        #: gangs that have to go, while pods of them are on nodes
        self.evicting: dict[str, Gang] = {}
        #: gangs that would preempt before kube-scheduler has said which nodes it takes for them: since when
        self.unheard: dict[str, float] = {}
        #: gangs with pods that can be bound and are not: since when, or last reminded
        self.to_bind: dict[str, float] = {}
        #: gangs that are gone, the latest last
        self.ended: OrderedDict[str, Gang] = OrderedDict()
        #: how many gangs were preempted, by virtual cluster and that of whom it was for
        self.preempted: Counter[tuple[str, str]] = Counter()
        self.nodes = Nodes(cluster)
        #: bound pods with GPUs that HiveD does not decide about
        self.foreign = ForeignPods()
        self._number = 0

    def job(self, number: int) -> Gang:
        """The gang with this number."""
        return self.gangs[self.scheduler.jobs[number].name]

    # -- pods come and go -----------------------------------------------------------------------------------------

    def join(self, entry: PodEntry, members: tuple[Member, ...] | None, at: float) -> None:
        """A pod that waits belongs to a gang from now on, if what it asks for can be understood."""
        entry.members, entry.ask = members, None
        self.forget_refusal(entry)
        try:
            ask = self.understood(entry.pod, members)
        except PodRequestError as error:
            self.refuse(entry, error)
            return
        gang = self.gangs.get(ask.group)
        if gang is not None and gang.holds and ask.owner and gang.ask.owner == ask.owner:
            ask = replace(ask, members=gang.ask.members)  # its owner may make fewer by now, since some have succeeded
        wrong = None
        if gang is None:
            gang = self.new_gang(ask, entry.pod.created_at, at)
        elif gang.ask.owner != ask.owner:
            wrong = PodRequestError(
                "name-taken", f"pods of a former {ask.group} are still there; it waits for them to end"
            )
        elif (what := ask.disagrees(gang.ask)) is not None:
            wrong = PodRequestError("disagrees", f"other pods of its group {ask.group} ask for something else: {what}")
        if wrong is not None:
            self.refuse(entry, wrong)
            self.outside[entry.uid] = ask.group
            return
        entry.ask, entry.gang = ask, gang
        gang.pods[entry.uid] = entry
        gang.asked = gang.asked or entry.waited  # nobody may ask for one that was told to wait again
        if gang.state is GangState.PLACED:
            self.give_slot(entry, gang, at)
        else:
            self.line_up(gang)

    def understood(self, pod: Pod, members: tuple[Member, ...] | None) -> asking.PodRequest:
        """What a pod that waits asks for. Raises :class:`PodRequestError`, also for one that runs and is left alone."""
        ask = asking.read_request(pod, members)
        asking.check_grace(pod, ask, self.nodes.grace_of_loans(ask.vc))
        asking.check_labels(pod)
        return ask

    def new_gang(self, ask: asking.PodRequest, submitted_at: float, at: float) -> Gang:
        """The first pod of a gang is there."""
        self._number += 1
        since = min(at, submitted_at or at)  # the service may be younger than its pods
        gang = self.gangs[ask.group] = Gang(self._number, ask, submitted_at, since)
        self.usage.add(gang)
        gang.remember(self.note("waiting", gang.name, since, {"vc": ask.vc, "gpus": gang.gpus, "pods": ask.size}))
        return gang

    def forget_refusal(self, entry: PodEntry) -> None:
        """Why a pod was refused before does not matter any more."""
        entry.refused = None
        for index in (self.refused, self.conflicts, self.outside):
            index.pop(entry.uid, None)

    def refuse(self, entry: PodEntry, error: PodRequestError) -> None:
        """A pod cannot be scheduled as it is."""
        entry.refused = error
        self.refused[entry.uid] = entry
        if entry.told != str(error):
            entry.told = str(error)
            self.instruct(Tell(entry.uid, entry.key, "HivedRefused", str(error), True))

    def give_slot(self, entry: PodEntry, gang: Gang, at: float) -> None:
        """The first place of the gang that nobody has and that is of the size ``entry`` asked for; or none."""
        assert gang.placement is not None
        assert entry.ask is not None
        for slot, pod in enumerate(gang.placement.pods):
            if (
                gang.slots[slot] is None
                and len(pod.leaf_cells) == entry.ask.leaf_cells
                and not self.nodes.may_be_used(pod.node, pod.leaf_cells)
            ):
                gang.slots[slot], entry.slot = entry.uid, slot
                self.can_go(entry, gang, at)
                return

    def give_slots(self, gang: Gang, at: float) -> None:
        """Whoever of a gang that is placed has no place gets one, if there is one. O(pods * such pods)."""
        if gang.state is GangState.PLACED and None in gang.slots:
            for entry in gang.pods.values():
                if entry.slot is None and not entry.holds:
                    self.give_slot(entry, gang, at)

    def yield_slots(self, node: str, at: float) -> None:
        """Places on ``node`` that somebody unknown may be using are nobody's, unless their pods are there already."""
        for gang in self.gangs_on(node):
            for slot, place in enumerate(gang.placement.pods if gang.placement is not None else ()):
                entry = gang.pods.get(gang.slots[slot] or "")
                taken = place.node == node and self.nodes.may_be_used(node, place.leaf_cells)
                if taken and entry is not None and not entry.holds:
                    gang.slots[slot] = entry.slot = None
                    entry.waited = True
            self.give_slots(gang, at)  # another may be free
            self._see_who_can_go(gang, at)

    def fill_slots(self, node: str, at: float) -> None:
        """Somebody unknown on ``node`` is gone."""
        for gang in self.gangs_on(node):
            self.give_slots(gang, at)

    def gangs_on(self, node: str) -> list[Gang]:
        """Who has devices of ``node``, each once. O(its devices)."""
        found = (self.usage.at.get((node, device)) for device in self.nodes.devices.get(node, ()))
        return list({gang.name: gang for gang in found if gang is not None}.values())

    def used_on(self, node: str) -> set[int]:
        """Devices of ``node`` that pods of gangs are on, or may be. O(its devices + pods of these gangs)."""
        return {
            device
            for gang in self.gangs_on(node)
            for place, uid in zip(gang.placement.pods if gang.placement is not None else (), gang.slots, strict=True)
            if place.node == node and uid is not None and gang.pods[uid].holds
            for device in place.leaf_cells
        }

    def can_go(self, entry: PodEntry, gang: Gang, at: float) -> None:
        """It has a place; kube-scheduler hears of that, if it was told to wait."""
        self.to_bind.setdefault(gang.name, at)
        if entry.waited:
            entry.waited = False
            self.instruct(Wake(entry.uid, entry.key))

    def _see_who_can_go(self, gang: Gang, at: float) -> None:
        """Whether a pod of it has a place and is not there. O(its pods)."""
        can = (entry.slot is not None and not entry.bound for entry in gang.pods.values())
        if gang.state is GangState.PLACED and any(can):
            self.to_bind.setdefault(gang.name, at)
        else:
            self.to_bind.pop(gang.name, None)

    def is_on_its_node(self, entry: PodEntry, at: float) -> None:
        """Kubernetes has bound a pod where it was to be."""
        gang = entry.gang
        assert gang is not None
        entry.bound, entry.binding, entry.waited = True, False, False
        gang.waited_since = None
        gang.remember(self.note("bound", gang.name, at, {"pod": entry.key, "node": entry.pod.spec.node_name}))
        self.foreign.moved(gang.placement)
        self._see_who_can_go(gang, at)

    def leave(self, entry: PodEntry, at: float) -> None:
        """A pod does not belong to its gang any more."""
        gang, slot = entry.gang, entry.slot
        entry.gang = entry.slot = None
        if gang is None:
            return
        del gang.pods[entry.uid]
        if not gang.pods:
            self.end(gang, at)
            return
        if slot is not None:
            gang.slots[slot] = None
            self.foreign.moved(gang.placement)
        if gang.state is GangState.PREEMPTED and not gang.on_nodes:
            self.unplace(gang, at, "its pods are gone")
        elif gang.state is GangState.PLACED and slot is not None:
            self.give_slots(gang, at)  # to one that came before there was room
            self._see_who_can_go(gang, at)
            self.flee(gang, at)
        else:
            self.flee(gang, at)  # the last pod that ran may have had no place
            self.line_up_again(gang)

    # -- gangs change ---------------------------------------------------------------------------------------------

    def becomes(self, gang: Gang, event: str, placement: Placement | None, at: float, data: dict[str, object]) -> None:
        """See :meth:`Dispatcher.becomes`. ``placement``: where it is from then on, or what is reserved for it."""
        event = GangEvent(event)
        state = next_state(GANG_TABLE, gang.state, event)
        self.usage.remove(gang)
        held = gang.holds
        self.foreign.moved(gang.placement)
        gang.state = state
        if event is GangEvent.PLACED:
            gang.waited_since, gang.since = gang.since, at
        elif event is GangEvent.RELEASED:  # who was nowhere has waited all the time
            gang.since = at if gang.waited_since is None else gang.waited_since
        elif event is GangEvent.UNRESERVED:
            self.unreserved[gang.name] = gang
        if placement != gang.placement:
            gang.placement, gang.shared = placement, ""
        self.foreign.moved(placement)
        if not (held and gang.holds):
            gang.slots = [None] * (len(placement.pods) if placement is not None and gang.holds else 0)
            gang.widest = 0 if placement is None else placement.gpus
            for entry in gang.pods.values():
                entry.slot = None
        if gang.state is GangState.PREEMPTED:
            self.evicting[gang.name] = gang
        else:
            self.evicting.pop(gang.name, None)
            gang.preempted_by = None
        self._see_who_can_go(gang, at)
        self.usage.add(gang)
        if placement is not None:
            data["placement"] = placement_data(placement)
        gang.remember(self.note(event, gang.name, at, data))

    def line_up(self, gang: Gang) -> None:
        """It waits for its turn, once kube-scheduler has asked for it and all its pods are there."""
        if gang.state is GangState.WAITING and gang.asked and not gang.in_line and gang.complete:
            self.scheduler.wait(gang.entry)

    def call(self, gang: Gang, at: float) -> None:
        """kube-scheduler is to ask for a gang that it asked another process for: which nodes would it take?"""
        if gang.name not in self.unheard:
            self.unheard[gang.name] = at
            for entry in gang.pods.values():
                self.instruct(Wake(entry.uid, entry.key))

    def forget_asking(self, gang: Gang) -> None:
        """It leaves its line until kube-scheduler asks for it again."""
        self.unheard.pop(gang.name, None)
        gang.asked = False
        if gang.in_line:
            self.scheduler.withdraw(gang.entry)

    def line_up_again(self, gang: Gang) -> None:
        """Its pods, or what they may do, have changed."""
        if gang.in_line and not gang.complete:
            self.scheduler.withdraw(gang.entry)
        self.line_up(gang)

    def unplace(self, gang: Gang, at: float, why: str) -> None:
        """No pod of it is on a node: it gives its GPUs back, and waits again."""
        self.scheduler.free(gang.entry)
        self.becomes(gang, GangEvent.RELEASED, None, at, {"why": why})
        for entry in gang.pods.values():
            entry.waited = True  # kube-scheduler may have been told a node that is not its own any more
        self.line_up(gang)

    def withdraw(self, gang: Gang, at: float) -> None:
        """It gives up its reservation, or its place in line."""
        self.scheduler.withdraw(gang.entry)
        if gang.state is GangState.RESERVED:
            self.becomes(gang, GangEvent.UNRESERVED, None, at, {"why": "it gave up what was reserved for it"})
            self.spared(at)

    def end(self, gang: Gang, at: float) -> None:
        """The last pod of a gang is gone: what it held is free."""
        if gang.holds:
            self.scheduler.free(gang.entry)
        else:
            self.withdraw(gang, at)
        self.usage.remove(gang)
        self.foreign.moved(gang.placement)
        for index in (self.gangs, self.unreserved, self.evicting, self.to_bind, self.unheard):
            index.pop(gang.name, None)
        gang.remember(self.note("ended", gang.name, at, {"why": "its last pod is gone"}))
        self.ended.pop(gang.name, None)
        self.ended[gang.name] = gang
        if len(self.ended) > _ENDED:
            self.ended.popitem(last=False)
        for uid in [uid for uid, name in self.outside.items() if name == gang.name]:
            self.join(self.pods[uid], self.pods[uid].members, at)

    def guarantee_changed(self, gang: Gang, why: str, at: float, by: str | None = None) -> None:
        """See :meth:`Dispatcher.stands`. Its pods are told by their annotations."""
        core = self.cluster.group(gang.name) if gang.holds else None
        before = gang.placement
        if core is None or core.placement is None or before is None or core.placement == before:
            return
        kept = GangEvent.REBOUND if gang.guaranteed else GangEvent.RESTORED
        kind = kept if core.guaranteed else GangEvent.DOWNGRADED
        if core.placement.pods != before.pods:
            had: list[tuple[PodPlacement | None, str | None]] = list(zip(before.pods, gang.slots, strict=True))
            had += [(entry.place, entry.uid) for entry in gang.pods.values() if entry.holds]
            gang.keep_places(had, core.placement)
        self.becomes(gang, kind, core.placement, at, {"why": why, "by": by})
        self.scheduler.became(gang.entry, gang.guaranteed)
        if core.placement.gpus == gang.widest:  # else they would forget what a later spec may have again
            self.annotate(gang)
        if gang.state is not GangState.PLACED:
            return
        if not gang.on_nodes and core.placement.gpus < gang.widest:
            self.unplace(gang, at, why)
            return
        self.give_slots(gang, at)

    def annotate(self, gang: Gang) -> None:
        """Pods that are on their nodes say where their gang stands now."""
        assert gang.placement is not None
        gang.shared = bindinfo.shared(gang.placement, gang.ask.members, self.cluster.spec)
        for entry in gang.pods.values():
            if entry.holds and entry.given is not None:
                self.write_notes(entry, bindinfo.notes(entry.given, gang.shared))

    def write_notes(self, entry: PodEntry, notes: dict[str, str]) -> None:
        """Where a pod is stands on itself."""
        entry.notes = notes
        self.instruct(Annotate(entry.uid, entry.key, tuple(notes.items())))

    def spared(self, at: float) -> None:
        """See :meth:`Dispatcher.spared`. Who had to go for it alone stays."""
        why = "nobody wants its GPUs any more"
        for gang in list(self.evicting.values()):
            wanted_by = self.cluster.group(gang.name).preempted_by
            if wanted_by:
                if gang.preempted_by is None or gang.preempted_by.name not in wanted_by:
                    gang.preempted_by = self.gangs[wanted_by[0]]
                continue
            if gang.entry.status is Status.MOVING:
                continue  # it goes for its own sake
            self.scheduler.mark_dirty(gang.vc)  # it may be promoted again
            self.becomes(gang, GangEvent.SPARED, gang.placement, at, {"why": why})
            for entry in gang.pods.values():
                entry.evicted = False  # if that was not done yet, it is not done any more
                if entry.holds and not entry.terminating:
                    self.instruct(Tell(entry.uid, entry.key, "HivedSpared", f"{why}; it runs on"))
                if entry.slot is not None and not entry.holds:
                    self.can_go(entry, gang, at)
            self.give_slots(gang, at)
        super().spared(at)

    def nodes_applied(self, at: float) -> None:
        """Tell the core what is new of nodes; what that changes may let others go."""
        news = self.nodes.apply()
        if news:
            self.note("node", None, at, {"nodes": [self.nodes.situation(name) for name in news[:8]], "all": len(news)})
            self.lost_reservations(self.scheduler.hardware_changed(), "hardware under it turned bad", at)
            for gang in [gang for node in news for gang in self.gangs_on(node)]:
                self.flee(gang, at)

    def flee(self, gang: Gang, at: float) -> None:
        """None of it runs, and it cannot run where it was to: it looks for another place."""
        if gang.state is GangState.PLACED and not gang.on_nodes and self.on_bad_hardware(gang):
            self.unplace(gang, at, "hardware under it is bad")

    def on_bad_hardware(self, gang: Gang) -> bool:
        """Whether it could not be placed where it is now. O(its GPUs)."""
        healthy, bad = self.nodes.healthy, self.nodes.bad_devices
        return any(node not in healthy or (node, device) in bad for node, device in gang.devices())
