"""The jobs of one tenant that are not guaranteed yet.

*The line* holds all whose turn can come, those that run opportunistically too: who runs early keeps the place. *The
backlog* holds those of them that run nowhere. *The outsized* are larger than the tenant's cluster: their turn never
comes, they can only borrow, and they hold nobody back. All three are heaps in the policy's order, from which jobs that
left are dropped when they come up, so that leaving costs next to nothing.
"""

from __future__ import annotations

from enum import Enum
from heapq import heappop, heappush

from hived.cluster.decisions import Placement
from hived.cluster.requests import OPPORTUNISTIC, Request

from .policy import JobView


class Status(Enum):
    """Where a job stands; every change of it is made in :mod:`hived.scheduling.scheduler`.

    WAITING -> LENT (idle GPUs), GUARANTEED (its turn); LENT -> WAITING (preempted), GUARANTEED (its turn), DONE;
    GUARANTEED -> DONE.
    """

    WAITING = "waiting"
    LENT = "lent"
    GUARANTEED = "guaranteed"
    DONE = "done"


class Entry:
    """A submitted job. Entries compare by their place in the order; their number settles ties."""

    __slots__ = ("_loan", "held", "key", "number", "outsized", "own", "placement", "queued", "status", "tenant", "view")

    def __init__(
        self, number: int, tenant: int, key: tuple[int, ...], view: JobView, own: Request, outsized: bool
    ) -> None:
        """``own``: what is asked for at its turn."""
        self.number = number
        self.tenant = tenant
        #: its place in the order
        self.key = (*key, number)
        #: as the policy sees it
        self.view = view
        self.own = own
        self._loan: Request | None = None
        #: larger than its tenant's cluster
        self.outsized = outsized
        self.status = Status.WAITING
        #: where it runs, or ran last
        self.placement: Placement | None = None
        #: GPUs that it has, or had last
        self.held = 0
        #: whether a backlog has it (perhaps only until it comes up)
        self.queued = False

    @property
    def loan(self) -> Request:
        """What is asked for before its turn."""
        if self._loan is None:
            own = self.own
            self._loan = Request(own.group, own.vc, OPPORTUNISTIC, own.members, whole_nodes=True)
        return self._loan

    def __lt__(self, other: Entry) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return self.number


#: An entry in a heap: keys are unique, so entries themselves are never compared (tuples compare faster).
Queued = tuple[tuple[int, ...], Entry]


class Backlog:
    """Jobs that run nowhere, in order, the first at hand."""

    __slots__ = ("_heap", "first")

    def __init__(self) -> None:
        self._heap: list[Queued] = []
        #: who waits longest by the policy's order; None when nobody does
        self.first: Entry | None = None

    def __contains__(self, entry: object) -> bool:
        return any(entry is queued for _, queued in self._heap)

    def add(self, entry: Entry) -> None:
        """``entry`` waits now. O(log jobs)."""
        if not entry.queued:
            entry.queued = True
            heappush(self._heap, (entry.key, entry))
        if self.first is None or entry < self.first:
            self.first = entry

    def drop_first(self) -> None:
        """The first does not wait any more: its status says so already. O(log jobs) amortized."""
        heap = self._heap
        while heap and heap[0][1].status is not Status.WAITING:
            heappop(heap)[1].queued = False
        self.first = heap[0][1] if heap else None


class TenantQueue:
    """One tenant's line, backlog and outsized jobs."""

    __slots__ = ("backlog", "line", "outsized")

    def __init__(self) -> None:
        #: who has yet to become guaranteed; a heap
        self.line: list[Queued] = []
        self.backlog = Backlog()
        self.outsized = Backlog()

    def head(self) -> Entry | None:
        """Whose turn it is. O(1), or O(log jobs) after jobs have left."""
        line = self.line
        while line:
            entry = line[0][1]
            if entry.status is Status.WAITING or entry.status is Status.LENT:
                return entry
            heappop(line)
        return None

    def backlog_of(self, entry: Entry) -> Backlog:
        """Where ``entry`` waits when it runs nowhere."""
        return self.outsized if entry.outsized else self.backlog
