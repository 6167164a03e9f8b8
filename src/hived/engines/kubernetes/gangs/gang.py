"""Gangs and their pods as the gang scheduler sees them, and its instructions to Kubernetes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.explain.reasons import ReasonKind
from hived.cluster.requests import Member
from hived.engine.job import EngineJob, Event
from hived.engine.states import Effect, JobEvent, JobState
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.pod_request import PodRequest, PodRequestError
from hived.scheduling import Status

_REMEMBERED = 200  #: events of one gang
_INDEX = "batch.kubernetes.io/job-completion-index"
_NUMBERS = re.compile(r"(\d{1,18})")


@dataclass(slots=True, eq=False)
class PodEntry:
    """A live pod that HiveD schedules."""

    pod: Pod
    uid: str = field(init=False)
    key: str = field(init=False)  #: ``namespace/name``
    ask: PodRequest | None = None  #: its request; None: invalid
    members: tuple[Member, ...] | None = None  #: the gang as its owner defines it, if the owner was read
    gang: Gang | None = None  #: the gang that it belongs to; None: none, for the reason in ``refused``
    slot: int | None = None  #: its index in the gang's placement; None: it has no slot
    #: its node and devices by its annotations while it ``holds``, even if a new spec has dropped some of them
    place: PodPlacement | None = None
    #: the placement annotations that were last written; None: not by this process
    annotations: dict[str, str] | None = None
    bound: bool = False  #: whether Kubernetes has bound it
    binding: int = 0  #: number of Bindings that are in flight, or may be: kube-scheduler may ask for one again
    refused: PodRequestError | None = None  #: why it cannot be scheduled as it is
    needs_wake: bool = False  #: whether kube-scheduler holds it back and must be woken once it can be bound
    reported: str = ""  #: summary of its latest Event: the kind of a reason, or an error
    evicted: bool = False  #: whether its eviction was requested

    def __post_init__(self) -> None:
        self.uid, self.key = self.pod.metadata.uid, self.pod.key

    @property
    def holds(self) -> bool:
        """Whether it is bound, or may be."""
        return self.bound or self.binding > 0

    @property
    def given(self) -> PodPlacement | None:
        """The node and devices of its slot; None: it has no slot."""
        placed = self.gang.placement if self.gang is not None and self.slot is not None else None
        return None if placed is None or self.slot is None else placed.pods[self.slot]

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted."""
        return self.pod.metadata.deletion_timestamp is not None


class Gang(EngineJob):
    """An affinity group: pods placed all or none."""

    def __init__(
        self, number: int, ask: PodRequest, submitted_at: float, since: float, sequence: int, user: str
    ) -> None:
        """``submitted_at``: when its first pod was created; ``ask``: the request of that pod; ``user``: whose it is."""
        super().__init__(number, ask.request(), ask.gpus, submitted_at, since, ask.early, sequence, user)
        #: it preempts no gang before kube-scheduler has offered its nodes to this process
        self.entry.may_preempt = ask.anywhere
        #: requests of its pods differ only in their number of leaf cells
        self.ask, self.ref = ask, self.name
        #: start of its wait, while it is placed and none of its pods has been bound
        self.waited_since: float | None = None
        #: its live pods, by uid
        self.pods: dict[str, PodEntry] = {}
        #: its pods that came after it was placed and have no place yet: a gang that becomes part of it once placed
        self.rest: Gang | None = None
        #: the gang whose rest this is
        self.part_of: Gang | None = None
        #: what pods that replace each other have in common (:func:`~..pods.pod_request.family`)
        self.family = self.name
        #: nodes that the rest of a gang cannot use, since they are too far from the gang
        self.barred: frozenset[str] = frozenset()
        #: whether kube-scheduler has asked for it
        self.asked = False
        #: whether a pod of it has ended by itself
        self.ran_out = False
        #: whether it has ended because its pods have; False: they were evicted or deleted
        self.finished = False
        #: how often kube-scheduler was reminded of it since
        self.reminders = 0
        #: number of its devices when it was placed: a new spec may have left it fewer
        self.widest = 0
        #: per slot of the placement: uid of its pod
        self.slots: list[str | None] = []
        #: healthy nodes that its last filter request left out
        self.not_offered: frozenset[str] = frozenset()
        #: nodes that its last preempt request offered, usable once pods of lower priority have left
        self.emptied: frozenset[str] = frozenset()
        #: while preempted: the preemptor, and when its pods are evicted
        self.preempted_by: Gang | None = None
        self.evict_at = 0.0
        #: when they were first evicted; None: not yet
        self.evict_from: float | None = None
        #: the part of the annotations that its pods share; "" until it is computed
        self.shared = ""
        #: its events, latest last
        self.history: list[Event] = []

    def apply(self, event: Event) -> Effect:
        """See :meth:`EngineJob.apply`."""
        since, state, kind = self.since, self.state, JobEvent(event.kind)
        effect = super().apply(event)
        if kind is JobEvent.STARTED:
            self.waited_since = since
        elif kind is JobEvent.REQUEUED and self.waited_since is not None:
            self.since = self.waited_since  # a gang without a bound pod has waited all the time
        elif kind is JobEvent.ENDED:
            self.finished = self.ran_out and state is JobState.RUNNING  # one that is evicted is not done
        return effect

    @property
    def size(self) -> int:  # type: ignore[override]  # it follows from the request, which changes
        """Pods that it consists of."""
        return self.ask.size

    @property
    def decisive(self) -> ReasonKind:
        """See :attr:`EngineJob.decisive`; a gang that is not in line waits for pods, or for kube-scheduler."""
        if self.state is JobState.QUEUED and not self.in_line:
            return ReasonKind.WAITING_FOR_GANG
        return super().decisive

    @property
    def in_line(self) -> bool:
        """Whether it is queued for its turn or for idle GPUs."""
        return self.entry.status is Status.WAITING

    @property
    def settled(self) -> bool:
        """Whether it stays where it runs: it is neither being stopped nor moved."""
        return self.entry.status in (Status.GUARANTEED, Status.LENT) and not self.entry.yields

    @property
    def on_nodes(self) -> bool:
        """Whether a pod of it is bound, or may be."""
        return any(entry.holds for entry in self.pods.values())

    @property
    def all_pods(self) -> int:
        """Number of its pods, those of its rest among them."""
        return len(self.pods) + (0 if self.rest is None else len(self.rest.pods))

    @property
    def complete(self) -> bool:
        """Whether all pods that must exist before it is placed do, and can be bound.

        O(1) if there are too few; else O(its pods).
        """
        least = self.ask.size if self.ask.whole else 1
        return len(self.pods) >= least and len(self.pods) - self.held_back >= least

    @property
    def held_back(self) -> int:
        """Number of its pods that cannot be bound as they are. O(its pods)."""
        return sum(entry.pod.held_back and not entry.holds for entry in self.pods.values())

    def keep_places(self, before: Iterable[tuple[PodPlacement | None, str | None]], now: Placement) -> None:
        """Reassign slots after a new spec took devices away or gave some back: a pod keeps the slot of its devices."""
        had = {(place.node, device): uid for place, uid in before if place and uid for device in place.leaf_cells}
        there = ([had.get((pod.node, device)) for device in pod.leaf_cells] for pod in now.pods)
        self.slots = [next(filter(None, uids), None) for uids in there]
        slots = {uid: slot for slot, uid in enumerate(self.slots)}
        for entry in self.pods.values():
            entry.slot = slots.get(entry.uid)

    def remember(self, event: Event) -> None:
        """Append ``event`` to the history. A history that is too long drops its ``bound`` events and the oldest."""
        self.history.append(event)
        if len(self.history) > _REMEMBERED:
            self.history = [one for one in self.history if one.kind != "bound"][-_REMEMBERED // 2 :]

    def __repr__(self) -> str:
        return f"Gang({self.name!r}, {self.state.value})"


def in_rank_order(entries: Iterable[PodEntry]) -> list[PodEntry]:
    """Pods by rank, so that neighbours are close: by completion index, else by name with numbers as numbers."""
    return sorted(entries, key=lambda entry: (_index(entry.pod), _natural(entry.key), entry.uid))


def sizes_of(members: Iterable[Member]) -> Counter[int]:
    """Number of pods by their leaf cells."""
    found: Counter[int] = Counter()
    for member in members:
        found[member.leaf_cells] += member.pods
    return found


def _index(pod: Pod) -> int:
    text = pod.annotation(_INDEX) or ""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    parts = _NUMBERS.split(name)
    return tuple((int(part), "") if number % 2 else (0, part) for number, part in enumerate(parts))


# -- instructions: each is idempotent, and safety does not depend on the success of any --------------------------------


@dataclass(frozen=True, slots=True)
class _OfPod:
    """An instruction about one pod."""

    uid: str
    key: str  #: ``namespace/name``


@dataclass(frozen=True, slots=True)
class Evict(_OfPod):
    """Evict a pod of a preempted gang."""

    why: str
    grace: int | None = None  #: grace period in seconds; None: the pod's own
    delete: bool = False  #: evictions ran out of time: delete it in spite of its disruption budget


@dataclass(frozen=True, slots=True)
class Wake(_OfPod):
    """Make kube-scheduler retry a pod that it holds back and that can be bound now."""


@dataclass(frozen=True, slots=True)
class Bind(_OfPod):
    """Bind a pod to a node that kube-scheduler refuses, as the pod's request allows."""


@dataclass(frozen=True, slots=True)
class Annotate(_OfPod):
    """Update the placement annotations of a bound pod."""

    annotations: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RecordEvent(_OfPod):
    """Record a Kubernetes Event about a pod."""

    reason: str
    message: str
    warning: bool = False
    summary: str = ""  #: distinguishes Events of one reason; "": the message does


@dataclass(frozen=True, slots=True)
class Binding(_OfPod):
    """The Binding to write for kube-scheduler's bind, with the annotations, in one call."""

    node: str
    annotations: dict[str, str]


Instruction = Evict | Wake | Bind | Annotate | RecordEvent
