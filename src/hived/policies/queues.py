"""The jobs of one tenant that are not guaranteed yet.

*The line* holds all whose turn can come, those that run opportunistically too: who runs early keeps the place. *The
backlog* holds those of them that run nowhere. *The outsized* are larger than the tenant's cluster: their turn never
comes, they can only borrow, and they hold nobody back. All three are heaps in the policy's order, from which jobs that
left are dropped when they come up, so that leaving costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from heapq import heappop, heappush

from hived.cluster import Allocation

from .protocols import Request


class Status(Enum):
    """Where a job stands; every change of it is made in :mod:`hived.policies.scheduler`.

    WAITING -> LENT (idle GPUs), GUARANTEED (its turn); LENT -> WAITING (preempted), GUARANTEED (its turn), DONE;
    GUARANTEED -> DONE.
    """

    WAITING = "waiting"
    LENT = "lent"
    GUARANTEED = "guaranteed"
    DONE = "done"


class Entry:
    """A submitted job. Entries compare by their place in the order, their number settles ties."""

    __slots__ = ("allocation", "key", "number", "outsized", "queued", "request", "status", "tenant")

    def __init__(self, number: int, tenant: int, key: tuple[int, ...], request: Request, outsized: bool) -> None:
        self.number = number
        self.tenant = tenant
        #: its place in the order
        self.key = (*key, number)
        self.request = request
        #: larger than its tenant's cluster
        self.outsized = outsized
        self.status = Status.WAITING
        self.allocation = Allocation(request.job, tenant, request.gpus)
        #: whether a heap of those that run nowhere has it (perhaps only until it comes up)
        self.queued = False

    def __lt__(self, other: Entry) -> bool:
        return self.key < other.key


class TenantQueue:
    """One tenant's line, backlog and outsized jobs. Joining costs O(log jobs), leaving nothing."""

    __slots__ = ("backlog", "line", "outsized")

    def __init__(self) -> None:
        self.line: list[Entry] = []
        self.backlog: list[Entry] = []
        self.outsized: list[Entry] = []

    def head(self) -> Entry | None:
        """Whose turn it is."""
        line = self.line
        while line:
            entry = line[0]
            if entry.status is Status.WAITING or entry.status is Status.LENT:
                return entry
            heappop(line)
        return None

    def wait(self, entry: Entry) -> None:
        """It runs nowhere, and would borrow."""
        if not entry.queued:
            entry.queued = True
            heappush(self.outsized if entry.outsized else self.backlog, entry)

    def next_borrower(self, fits: Callable[[int], bool], known: dict[int, bool]) -> Entry | None:
        """Who may borrow next: the first that runs nowhere, or the first of the outsized; ``None``: neither fits.

        ``known`` remembers what ``fits`` said of a size.
        """
        best: Entry | None = None
        for heap in (self.backlog, self.outsized):
            while heap:
                entry = heap[0]
                if entry.status is Status.WAITING:
                    gpus = entry.request.gpus
                    suits = known.get(gpus)
                    if suits is None:
                        suits = known[gpus] = fits(gpus)
                    if suits and (best is None or entry < best):
                        best = entry
                    break
                heappop(heap).queued = False
        return best

    def stop_waiting(self, borrower: Entry) -> None:
        """It borrows, and was first."""
        heappop(self.outsized if borrower.outsized else self.backlog).queued = False
