"""Carrying out what the scheduler decides: who goes, who has to make room; and what is written when a pod is bound."""

from __future__ import annotations

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.cluster.reasons import WaitingForPreemption
from hived.engines.kubernetes.pods import bind_info as bindinfo
from hived.errors import ConflictError, NotFoundError
from hived.scheduling import (
    Downgrade,
    Hold,
    Instruction,
    Move,
    Policy,
    Promote,
    Reserve,
    Scheduler,
    Start,
    Stop,
    Unreserve,
)

from . import foreign
from .actions import Binding, Tell
from .extender_answers import tell_again
from .gang import Gang, GangEvent, GangState
from .gang_table import GangTable
from .pod_order import in_rank_order


class GangDispatcher(GangTable):
    """The part of the gang scheduler that carries out what the scheduler decides."""

    def __init__(self, cluster: Cluster, policy: Policy, evict_after: float, first_seq: int) -> None:
        super().__init__(cluster, Scheduler(cluster, policy, self._carry_out), evict_after, first_seq)
        self._now = 0.0

    def dispatch(self, at: float) -> None:
        """Let go who can."""
        self._now = at
        foreign.settle(self, at)
        self.scheduler.dispatch(at)
        for gang in self.unreserved.values():
            tell_again(self, gang)
        self.unreserved.clear()

    def _carry_out(self, instruction: Instruction) -> None:
        """What the scheduler has decided happens."""
        gang, at = self._gang(instruction.job), self._now
        match instruction:
            case Start(placement=placement):
                elsewhere = gang.state is GangState.RESERVED and placement != gang.placement
                self._place(gang, placement, at)
                if elsewhere:
                    self.others_are_spared(at)
            case Reserve(placement=placement, victims=victims):
                elsewhere = gang.state is GangState.RESERVED
                if elsewhere:
                    self.becomes(gang, GangEvent.UNRESERVED, None, at, {"why": "other GPUs are reserved for it by now"})
                self.becomes(gang, GangEvent.RESERVED, placement, at, {"victims": list(victims)})
                if elsewhere:
                    self.others_are_spared(at)
            case Stop(by=number):
                self._preempt(gang, self._gang(number), at)
            case Unreserve(by=None):
                self.unreserve(gang, "kube-scheduler does not take its nodes any more", at)
            case Unreserve(by=int(number)):
                self.unreserve(gang, f"{self._gang(number).name}, of a higher priority, took it", at)
            case Downgrade(by=number):
                by = self._gang(number).name
                self.stands(gang, f"made room for {by}", at, by)
            case Promote():
                core = self.cluster.group(gang.name).placement
                self.becomes(gang, GangEvent.PROMOTED, core, at, {"why": f"its turn in {gang.vc} has come"})
                self.annotate(gang)
            case Move():
                why = f"its turn in {gang.vc} has come, on other GPUs"
                self._has_to_go(gang, at, why, f"{why}; it starts there once its pods are gone from here")
            case Hold(reasons=reasons):
                gang.reasons = reasons
                if isinstance(reasons[0], WaitingForPreemption) and not gang.entry.may_preempt:
                    self.call(gang, at)  # nobody ends for nodes that it may not be able to use

    def _gang(self, number: int) -> Gang:
        return self.gangs[self.scheduler.jobs[number].name]

    def _place(self, gang: Gang, placement: Placement, at: float) -> None:
        """``gang`` has its GPUs: its pods get their places, and kube-scheduler hears of those that it gave up."""
        self.becomes(gang, GangEvent.PLACED, placement, at, {"adopted": False})
        self.unheard.pop(gang.name, None)
        for entry in in_rank_order(gang.pods.values()):
            self.give_slot(entry, gang, at)

    def _preempt(self, victim: Gang, gang: Gang, at: float) -> None:
        if victim.state is not GangState.PLACED:
            return  # it has to go for somebody else already
        self.preempted[victim.vc, gang.vc] += 1
        victim.displaced_by = gang.name, gang.vc, gang.priority
        why = f"preempted by {gang.name} of {gang.vc}"
        takes = "what its VC reserved" if gang.vc != victim.vc else "it by its higher priority"
        self._has_to_go(victim, at, why, f"{why}, which takes {takes}", gang)

    def _has_to_go(self, gang: Gang, at: float, why: str, told: str, by: Gang | None = None) -> None:
        """A gang that is placed gives its GPUs back: at once, or when its pods are gone from their nodes."""
        gang.preempted_by = by
        gang.evict_at, gang.evict_from = at + self.evict_after, None
        self.becomes(gang, GangEvent.PREEMPTED, gang.placement, at, {"why": why})
        for entry in gang.pods.values():
            if entry.holds:
                self.instruct(Tell(entry.uid, entry.key, "HivedPreempted", told, True))
        if not gang.on_nodes:
            self.unplace(gang, at, why)
            self.line_up(gang)

    # -- binding -----------------------------------------------------------------------------------------------------

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
        entry.notes = bindinfo.notes(place, gang.shared)
        return Binding(uid, entry.key, node, entry.notes)

    def bound(self, uid: str, at: float) -> None:
        """Kubernetes has bound the pod to its node."""
        entry = self.pods.get(uid)
        if entry is not None and entry.gang is not None and not entry.bound:
            entry.bound, entry.binding, entry.waited = True, False, False
            self.is_on_its_node(entry, at)
