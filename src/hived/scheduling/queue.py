"""Jobs as a scheduler knows them, and the queues in which they wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import replace
from enum import Enum
from heapq import merge

from hived.cluster.decisions import Placement
from hived.cluster.demands import Demand
from hived.cluster.requests import OPPORTUNISTIC, Request

from .policy import JobView

#: a place in a queue: the higher priority, then what the policy says, then the number
Key = tuple[int, ...]


class Status(Enum):
    """What a job has; every change of it is made in :mod:`hived.scheduling.scheduler`."""

    NOWHERE = "nowhere"  #: it holds nothing, and does not wait
    WAITING = "waiting"
    RESERVED = "reserved"  #: GPUs are kept for it until its victims are gone
    LENT = "lent"  #: opportunistic GPUs
    MOVING = "moving"  #: the same, which it is leaving for those of its turn
    LEAVING = "leaving"  #: the same, and it has no turn any more
    GUARANTEED = "guaranteed"


# asked of every job at every step, and members are looked up slowly in an enum before Python 3.12
NOWHERE, WAITING, RESERVED, LENT, MOVING, LEAVING, GUARANTEED = Status
_HOLDS = (GUARANTEED, LENT, MOVING, LEAVING)


class Entry:
    """A job. What is asked for decides where it waits.

    *guaranteed*: for its turn. *opportunistic*: for idle GPUs. *early*: for both; it may start on idle GPUs before its
    turn, and keeps its place in line while it runs there.
    """

    #: nodes that it cannot go to
    excluded: frozenset[str] = frozenset()
    #: whether others may be preempted for it; it waits where that is what it takes
    may_preempt = True
    #: its place in the order; () before it has waited
    key: Key = ()
    status = NOWHERE
    #: where it waits for its turn, None if that can never come; and where for a loan, the same
    line: Queue | None = None
    backlog: Queue | None = None
    #: whether its backlog has it
    queued = False
    #: where it runs, or what is reserved for it
    placement: Placement | None = None
    #: where it ran until its turn came: it stays as close to that as it can
    near: Placement | None = None
    #: what it asks for at its turn, and before it, as the cluster has checked it
    demand: Demand | None = None
    loan_demand: Demand | None = None
    _loan: Request | None = None

    def __init__(
        self, number: int, request: Request, view: JobView, early: bool = False, shape: Hashable | None = None
    ) -> None:
        """``request``: what is asked for at its turn; ``shape``: equal for jobs whose requests differ by name alone."""
        self.number = number
        self.name = request.group
        self.vc = request.vc
        self.request = request
        #: as the policy sees it
        self.view = view
        #: whether it may start on idle GPUs before its turn
        self.early = early and request.priority >= 0
        self.shape: Hashable = replace(request, group="any") if shape is None else shape
        #: equal for those that get the same answers: shape and excluded nodes
        self.kind: Hashable = self.shape

    @property
    def loan(self) -> Request:
        """What is asked for before its turn."""
        if self._loan is None:
            self._loan = loan_of(self.request)
        return self._loan

    @property
    def awaited(self) -> Request:
        """What it waits for: its turn or, where its VC is too small for that, idle GPUs."""
        return self.loan if self.line is None and self.backlog is not None else self.request

    @property
    def holds(self) -> bool:
        """Whether GPUs are its own."""
        return self.status in _HOLDS

    def __repr__(self) -> str:
        return f"Entry({self.name!r}, {self.status.value})"


def loan_of(request: Request) -> Request:
    """What a job that may start early asks for before its turn: the same GPUs, wherever they are idle."""
    return Request(
        request.group,
        request.vc,
        OPPORTUNISTIC,
        request.members,
        request.leaf_cell_type,
        within=request.within,
        soft_affinity=request.soft_affinity,
        whole_nodes=request.whole_nodes,
    )


class Queue:
    """Entries by key. Nobody passes the first one, but those turned down for what holds nobody back are *passed by*.

    O(log entries) to find a place, and a shift of what is behind it in memory.
    """

    __slots__ = ("_aside", "_entries", "first")

    def __init__(self) -> None:
        self._entries: list[tuple[Key, Entry]] = []
        #: who was passed by
        self._aside: list[tuple[Key, Entry]] = []
        #: who is next
        self.first: Entry | None = None

    def add(self, entry: Entry) -> None:
        """``entry`` waits here."""
        entries = self._entries
        item = (entry.key, entry)
        if not entries or entries[-1] < item:
            entries.append(item)
        else:
            insort(entries, item)
        self.first = entries[0][1]

    def remove(self, entry: Entry) -> None:
        """``entry`` waits here no more."""
        if self.first is not entry:
            for entries in (self._entries, self._aside):
                place = bisect_left(entries, (entry.key,))
                if place < len(entries) and entries[place][1] is entry:
                    del entries[place]
                    return
            return
        del self._entries[0]
        self.first = self._entries[0][1] if self._entries else None

    def pass_by(self) -> None:
        """The first holds nobody back."""
        insort(self._aside, self._entries.pop(0))
        self.first = self._entries[0][1] if self._entries else None

    def restore(self) -> None:
        """Who was passed by is looked at again."""
        if self._aside:
            self._entries = list(merge(self._entries, self._aside))
            self._aside = []
            self.first = self._entries[0][1]

    @property
    def passes(self) -> bool:
        """Whether somebody was passed by."""
        return bool(self._aside)

    def ahead(self, key: Key, most: int) -> tuple[int, list[Entry]]:
        """How many of those who may hold others back are before ``key``, and the first ``most`` of them."""
        place = bisect_left(self._entries, (key,))
        return place, [entry for _, entry in self._entries[: min(place, most)]]

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, entry in merge(self._entries, self._aside))

    def __contains__(self, entry: object) -> bool:
        return any(entry is other for other in self)

    def __len__(self) -> int:
        return len(self._entries) + len(self._aside)


class VcQueues:
    """Where the jobs of one virtual cluster wait.

    *The line* holds who has a turn to come: who runs early keeps the place. *The backlog* holds who runs nowhere and
    would borrow. Requests that the VC (or the cluster) is too small for have no turn: the *outsized* can only borrow,
    and hold back nobody else, the *misfits* cannot even do that.
    """

    __slots__ = ("backlog", "line", "misfits", "outsized")

    def __init__(self) -> None:
        self.line = Queue()
        self.backlog = Queue()
        self.outsized = Queue()
        self.misfits = Queue()
