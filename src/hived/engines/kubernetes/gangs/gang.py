"""Gangs and their pods, as the gang scheduler knows them, and what it wants done about them in Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.reasons import Reason
from hived.cluster.requests import Member
from hived.engines.job import EngineJob, Event
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.pod_request import PodRequest, PodRequestError
from hived.scheduling import Status

_REMEMBERED = 200  #: events of one gang
_INDEX = "batch.kubernetes.io/job-completion-index"
_NUMBERS = re.compile(r"(\d{1,18})")


class GangState(StrEnum):
    """Where a gang is in its life."""

    WAITING = "waiting"  #: holds nothing
    RESERVED = "reserved"  #: has a placement kept for it, and waits for others to go
    PLACED = "placed"  #: its GPUs are its own; its pods are bound there, or will be
    PREEMPTED = "preempted"  #: placed, and has to go: no more of its pods are bound


class GangEvent(StrEnum):
    """What moves a gang from state to state; the kinds of :class:`~hived.engines.job.Event` that have one."""

    RESERVED = "reserved"  #: a placement is kept for it, and victims have to go
    UNRESERVED = "unreserved"  #: it lost that, or gave it up
    PLACED = "placed"  #: its GPUs are its own
    PREEMPTED = "preempted"  #: it has to go for another
    SPARED = "spared"  #: it need not go any more
    RELEASED = "released"  #: none of its pods is on a node (any more), and it gave its GPUs back
    DOWNGRADED = "downgraded"  #: it runs on as opportunistic
    RESTORED = "restored"  #: it is guaranteed again
    PROMOTED = "promoted"  #: its turn has come where it runs early: it is guaranteed from now on
    REBOUND = "rebound"  #: it stands in other cells than it did: a new spec


_STANDS = (GangEvent.DOWNGRADED, GangEvent.RESTORED, GangEvent.REBOUND)
_W, _R, _P, _X = GangState.WAITING, GangState.RESERVED, GangState.PLACED, GangState.PREEMPTED

#: state and event to the next state; what is not here is a bug. That its last pod is gone ends a gang in any state
GANG_TABLE: dict[tuple[GangState, GangEvent], GangState] = {
    (_W, GangEvent.RESERVED): _R,
    (_W, GangEvent.PLACED): _P,
    (_R, GangEvent.PLACED): _P,
    (_R, GangEvent.UNRESERVED): _W,
    (_P, GangEvent.PREEMPTED): _X,
    (_X, GangEvent.SPARED): _P,
    (_P, GangEvent.RELEASED): _W,
    (_X, GangEvent.RELEASED): _W,
    # where it is, in other cells or in none
    **{(state, event): state for state in (_P, _X) for event in _STANDS},
    (_P, GangEvent.PROMOTED): _P,
}


@dataclass(slots=True, eq=False)
class PodEntry:
    """A pod that lives, and concerns HiveD."""

    pod: Pod
    uid: str = field(init=False)
    key: str = field(init=False)  #: ``namespace/name``
    ask: PodRequest | None = None  #: what it asks for; None: that cannot be understood
    members: tuple[Member, ...] | None = None  #: the gang that its owner makes of it, where that was read
    gang: Gang | None = None  #: the gang that it belongs to; None: none, as ``refused`` says
    slot: int | None = None  #: its place among those of the gang's placement; None: has none
    #: where it is while it ``holds``, as its annotations say, whatever a new spec has left of that
    place: PodPlacement | None = None
    #: the annotations about where it is that were written last; None: by another than us
    notes: dict[str, str] | None = None
    bound: bool = False  #: whether Kubernetes has it on its node
    binding: bool = False  #: whether a Binding is on its way, or may be
    refused: PodRequestError | None = None  #: why it cannot be scheduled as it is
    waited: bool = False  #: whether kube-scheduler was told to wait with it, and so has to be told when it can go
    told: str = ""  #: what its latest Event was about: a reason in a word, or what is wrong
    evicted: bool = False  #: whether it was told to go

    def __post_init__(self) -> None:
        self.uid, self.key = self.pod.metadata.uid, self.pod.key

    @property
    def holds(self) -> bool:
        """Whether it is on its node, or may be."""
        return self.bound or self.binding

    @property
    def given(self) -> PodPlacement | None:
        """The place of its gang that is meant for it."""
        placed = self.gang.placement if self.gang is not None and self.slot is not None else None
        return None if placed is None or self.slot is None else placed.pods[self.slot]

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted."""
        return self.pod.metadata.deletion_timestamp is not None


class Gang(EngineJob):
    """An affinity group: pods placed all or none."""

    state: GangState

    def __init__(self, number: int, ask: PodRequest, submitted_at: float, since: float) -> None:
        """``submitted_at``: when its first pod was created; ``ask``: of that one."""
        super().__init__(number, ask.request(), ask.gpus, submitted_at, since, ask.early)
        #: nobody is preempted for it before kube-scheduler has said, to this process, which nodes it takes
        self.entry.may_preempt = ask.anywhere
        #: the others agree, but for their number of leaf cells
        self.ask, self.key = ask, self.name
        #: while it has them and none of it has been on a node: since when it waited
        self.waited_since: float | None = None
        self.state = GangState.WAITING
        #: its living pods, by uid
        self.pods: dict[str, PodEntry] = {}
        #: whether kube-scheduler has asked for it
        self.asked = False
        #: how often it was reminded of it since
        self.reminders = 0
        #: devices of it when it was placed: a new spec may have left it fewer
        self.widest = 0
        #: per pod of the placement: uid of the pod that has it
        self.slots: list[str | None] = []
        #: healthy nodes that its last filter question left out
        self.not_offered: frozenset[str] = frozenset()
        #: nodes that its last preempt question offered, which pods of lower priority may have to leave first
        self.emptied: frozenset[str] = frozenset()
        #: why it waits, as the core said last
        self.reasons: tuple[Reason, ...] = ()
        #: while preempted: for whom, and when its pods are told to go
        self.preempted_by: Gang | None = None
        self.evict_at = 0.0
        #: when they were told so first; None: they were not yet
        self.evict_from: float | None = None
        #: the part of the annotations that its pods share; "" where it has to be made
        self.shared = ""
        #: what happened to it, latest last
        self.history: list[Event] = []

    @property
    def in_line(self) -> bool:
        """Whether it waits for its turn, or for idle GPUs."""
        return self.entry.status is Status.WAITING

    @property
    def holds(self) -> bool:
        """Whether GPUs are its own."""
        return self.state in (GangState.PLACED, GangState.PREEMPTED)

    @property
    def on_nodes(self) -> bool:
        """Whether a pod of it is on its node, or may be."""
        return any(entry.holds for entry in self.pods.values())

    @property
    def complete(self) -> bool:
        """Whether all pods that have to exist before it is placed do, and can be bound once it is.

        O(1) where there are too few; else O(its pods).
        """
        least = self.ask.size if self.ask.whole else 1
        return len(self.pods) >= least and len(self.pods) - self.held_back >= least

    @property
    def held_back(self) -> int:
        """How many of its pods cannot be bound as they are. O(its pods)."""
        return sum(entry.pod.held_back and not entry.holds for entry in self.pods.values())

    def keep_places(self, before: Iterable[tuple[PodPlacement | None, str | None]], now: Placement) -> None:
        """A new spec has taken devices away, or given them back: who had some of a place of ``now`` has it."""
        had = {(place.node, device): uid for place, uid in before if place and uid for device in place.leaf_cells}
        there = ([had.get((pod.node, device)) for device in pod.leaf_cells] for pod in now.pods)
        self.slots = [next(filter(None, uids), None) for uids in there]
        slots = {uid: slot for slot, uid in enumerate(self.slots)}
        for entry in self.pods.values():
            entry.slot = slots.get(entry.uid)

    def remember(self, event: Event) -> None:
        """``event`` happened to it. Of too many, the latest stay that say where it is, and no pod that was bound."""
        self.history.append(event)
        if len(self.history) > _REMEMBERED:
            self.history = [one for one in self.history if one.kind != "bound"][-_REMEMBERED // 2 :]

    def __repr__(self) -> str:
        return f"Gang({self.name!r}, {self.state.value})"


def in_rank_order(entries: Iterable[PodEntry]) -> list[PodEntry]:
    """Pods as their ranks are, so that neighbours are close: by completion index, else by name, numbers as numbers."""
    return sorted(entries, key=lambda entry: (_index(entry.pod), _natural(entry.key), entry.uid))


def _index(pod: Pod) -> int:
    text = pod.annotation(_INDEX) or ""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    parts = _NUMBERS.split(name)
    return tuple((int(part), "") if number % 2 else (0, part) for number, part in enumerate(parts))


# -- what is wanted done: each can be done again, and none of them has to succeed for safety ---------------------------


@dataclass(frozen=True, slots=True)
class _OfPod:
    """Something about a pod."""

    uid: str
    key: str  #: ``namespace/name``


@dataclass(frozen=True, slots=True)
class Evict(_OfPod):
    """Have a pod end: its gang has to go."""

    why: str
    grace: int | None = None  #: seconds that it has for it; None: what it asks for
    delete: bool = False  #: evictions have had their time: delete it, whatever its disruption budget says


@dataclass(frozen=True, slots=True)
class Wake(_OfPod):
    """Have kube-scheduler look at a pod again: it was told to wait, and can go now."""


@dataclass(frozen=True, slots=True)
class Bind(_OfPod):
    """Bind a pod although kube-scheduler would not take the node: the pod asked for that."""


@dataclass(frozen=True, slots=True)
class Annotate(_OfPod):
    """A bound pod stands in other cells than its annotations say."""

    notes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tell(_OfPod):
    """Make an Event of a pod."""

    reason: str
    message: str
    warning: bool = False
    gist: str = ""  #: what tells it from others for this reason; "": its message


@dataclass(frozen=True, slots=True)
class Binding(_OfPod):
    """The answer to kube-scheduler's bind: what to write, in one call."""

    node: str
    notes: dict[str, str]


Instruction = Evict | Wake | Bind | Annotate | Tell
