"""Deciding: who goes, in the order of the lines; who has to make room; and what is written when a pod is bound."""

from __future__ import annotations

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Bind, Placement, Preempt, Wait
from hived.cluster.reasons import Misconfigured, Reason, WaitingForPreemption
from hived.cluster.requests import Request
from hived.engines.lines import Lines
from hived.errors import ConflictError, NotFoundError, RequestError

from . import bindinfo, foreign
from .answering import tell_again
from .gangs import Gang, GangEvent, GangState
from .standing import in_rank_order
from .state import MindState
from .turns import Binding, Tell


class Decider(MindState):
    """The part of the mind that asks the core, and carries its answers out."""

    def __init__(self, cluster: Cluster, lines: Lines[Gang], evict_after: float, first_seq: int) -> None:
        super().__init__(cluster, lines, evict_after, first_seq)
        #: why others wait that ask for the same, as of the change ``_waits_seq``
        self._waits: dict[tuple[Request, frozenset[str]], tuple[Reason, ...]] = {}
        self._waits_seq = first_seq

    def dispatch(self, at: float) -> None:
        """Let go who can: those with a reservation, the lines of the VCs where something changed, then loans."""
        foreign.settle(self, at)
        again = True
        while again:
            for gang in list(self.reserved.values()):
                if gang.name in self.reserved and self._stands_otherwise(gang):
                    self._ask(gang, at)
            self.lines.dispatch(lambda gang: self._ask(gang, at), self._share)
            again = any(self._stands_otherwise(gang) for gang in self.reserved.values())
        for gang in self.unreserved.values():
            tell_again(self, gang)
        self.unreserved.clear()

    def _stands_otherwise(self, gang: Gang) -> bool:
        """Whether a gang that has reserved can start by now, there or elsewhere, or has to go from there."""
        decision = self.cluster.plan(gang.request, excluded_nodes=gang.excluded).decision
        return not isinstance(decision, Preempt) or decision.placement != gang.placement

    def _ask(self, gang: Gang, at: float) -> Bind | Preempt | Wait | None:
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
        had = gang.placement if gang.state is GangState.RESERVED else None
        try:
            decision = self.cluster.schedule(gang.request, now=at, excluded_nodes=gang.excluded)
        except RequestError as error:
            gang.wrong = error.message
            gang.reasons = (Misconfigured(error.field, error.message),)
            return None
        gang.wrong = ""
        if isinstance(decision, Wait):
            gang.reasons = self._waits[kind] = decision.reasons
            if had is not None:
                self.unreserve(gang, "kube-scheduler does not take its nodes any more", at)
            return decision
        if isinstance(decision, Preempt) and decision.placement == had:
            return decision  # as before: some victims are not gone yet
        if isinstance(decision, Preempt) and not gang.heard:  # nobody ends for nodes that it may not be able to use
            self.call(gang, at)
            gang.reasons = (WaitingForPreemption(decision.victims),)
            return Wait(gang.name, gang.reasons)
        self.cluster.commit(decision)
        if had is not None and isinstance(decision, Preempt):
            self.becomes(gang, GangEvent.UNRESERVED, None, at, {"why": "other GPUs are reserved for it by now"})
        for name in decision.overtaken:
            self.unreserve(self.gangs[name], f"{gang.name}, of a higher priority, took it", at)
        for name in decision.downgraded:
            self.stands(self.gangs[name], f"made room for {gang.name}", at, gang.name)
        if gang.in_line:
            self.lines.of(gang).remove(gang)
            gang.in_line = False
        if isinstance(decision, Preempt):
            self.becomes(gang, GangEvent.RESERVED, decision.placement, at, {"victims": list(decision.victims)})
            self._preempt(gang, [self.gangs[name] for name in decision.victims], at)
        else:
            self._place(gang, decision.placement, at)
        if had is not None and decision.placement != had:
            self.others_are_spared(at)
            self.lines.freed(gang.vc)
        return decision

    def _place(self, gang: Gang, placement: Placement, at: float) -> None:
        """``gang`` has its GPUs: its pods get their places, and kube-scheduler hears of those that it gave up."""
        self.becomes(gang, GangEvent.PLACED, placement, at, {"adopted": False})
        for entry in in_rank_order(gang.pods.values()):
            self.give_slot(entry, gang, at)

    def _preempt(self, gang: Gang, victims: list[Gang], at: float) -> None:
        for victim in victims:
            if victim.state is not GangState.PLACED:
                continue  # it has to go for somebody else already
            self.preempted[victim.vc, gang.vc] += 1
            victim.preempted_by = gang
            victim.evict_at, victim.evict_from = at + self.evict_after, None
            victim.displaced_by = gang.name, gang.vc, gang.priority
            why = f"preempted by {gang.name} of {gang.vc}"
            self.becomes(victim, GangEvent.PREEMPTED, victim.placement, at, {"why": why})
            takes = "what its VC reserved" if gang.vc != victim.vc else "it by its higher priority"
            for entry in victim.pods.values():
                if entry.holds:
                    self.instruct(Tell(entry.uid, entry.key, "HivedPreempted", f"{why}, which takes {takes}", True))
            if not victim.on_nodes:
                self.unplace(victim, at, why)
                self.line_up(victim)

    def _share(self, vc: str) -> float:
        """GPUs that a VC has on loan over those that it reserved: who has the least is asked first."""
        return self.usage.lent.get(vc, 0) / max(1, self.nodes.reserved_gpus(vc))

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
        """That was done."""
        entry = self.pods.get(uid)
        if entry is not None and entry.gang is not None and not entry.bound:
            entry.bound, entry.binding, entry.waited = True, False, False
            self.is_on_its_node(entry, at)
