"""The scheduler's record of a job, and the queues of jobs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import replace
from heapq import merge
from math import inf

from hived.cluster.decisions import Placement
from hived.cluster.demands import Demand
from hived.cluster.requests import OPPORTUNISTIC, Request

from .checked_policy import CheckedPolicy
from .policy import JobView
from .states import GUARANTEED, LEAVING, LENT, MOVING, NOWHERE, Status

#: sort key in a queue: negated priority, the policy's key, the job's number
Key = tuple[float, ...]


_HOLDS = (GUARANTEED, LENT, MOVING, LEAVING)
_BEFORE_TURN = (LENT, MOVING, LEAVING)


class Entry:
    """A job of the scheduler. Its request decides in which queues it waits.

    *guaranteed*: for its turn. *opportunistic*: for idle GPUs. *early*: for both; it may start on idle GPUs before its
    turn, and keeps its place in line while it runs there. So does a job that a trade or a new spec has made a loan.
    """

    #: nodes that it cannot use
    excluded: frozenset[str] = frozenset()
    #: whether it may preempt; if not, it waits for GPUs that need no preemption
    may_preempt = True
    #: its place in the order; () before it was first queued
    key: Key = ()
    status: Status = NOWHERE
    #: the policy of its VC, from the time it is first queued
    policy: CheckedPolicy | None = None
    #: GPUs times the time for which it had them, in the engine's unit; counted where the policy preempts
    attained: float = 0
    #: of the time for which it had its GPUs, what counted for the work that it has kept, less the time to resume
    kept: float = 0
    #: ``kept`` when it last left its GPUs
    settled: float = 0
    #: whether it keeps its work, when it has left the GPUs that it was displaced from
    keeps = True
    #: whether its loan was taken from it, and it has not left its GPUs yet
    yields = False
    #: the queues for its turn and for a loan; None where its request can never fit
    line: Queue | None = None
    backlog: Queue | None = None
    #: whether it is in its backlog
    queued = False
    #: GPUs that it holds, counted where the policy preempts: more than it asked for where it has whole nodes
    held = 0
    #: its place among reservations
    reservation = 0
    #: whether a job of its VC has made a loan of it, by lazy preemption
    made_way = False
    #: whether it runs as a guest before its turn, rather than on a loan
    guest = False
    #: the GPUs that it runs on or that are reserved for it
    placement: Placement | None = None
    #: the loan that it ran on until its turn came: it is placed as close to that as possible
    near: Placement | None = None
    #: the demands of its request at its turn and before it, checked by the cluster
    demand: Demand | None = None
    loan_demand: Demand | None = None
    _loan: Request | None = None
    _loan_class: Hashable = None

    def __init__(
        self, number: int, request: Request, view: JobView, early: bool = False, request_class: Hashable | None = None
    ) -> None:
        """``request``: that at its turn; ``request_class``: equal for jobs whose requests differ by name alone."""
        self.number = number
        self.name = request.group
        self.vc = request.vc
        self.request = request
        #: among jobs that share GPUs with it; changes while it runs
        self.priority = request.priority
        #: its attributes for the policy
        self.view = view
        #: how long it runs in all, in seconds; None: unknown. Its view has it if the policy is clairvoyant
        self.duration = view.duration
        #: whether it may start on idle GPUs before its turn
        self.early = early and request.priority >= 0
        self.request_class: Hashable = replace(request, group="any") if request_class is None else request_class
        #: equal for jobs that get the same decision: the class of the request, and excluded nodes
        self.equivalence_class: Hashable = self.request_class
        #: whether it shares no GPUs with others of its VC, since it would not obey
        self.alone = False
        #: whether somebody has suspended it, so that it has no use for turns
        self.halted = False

    def stand_alone(self) -> None:
        """Share no GPUs with others from now on; the job is in no queue: they find it by its class."""
        if not self.alone:
            self.alone = True
            self.become_guest(False)
            self.request_class = self.request_class, "alone"
            self.exclude(self.excluded)

    def become_guest(self, guest: bool) -> None:
        """Run as a guest before its turn from now on, or on a loan."""
        self.guest, self._loan, self._loan_class = guest, None, None

    def resize(self, request: Request, gpus: int) -> None:
        """Take over a request for other members; the job is in no queue."""
        self.request, self._loan = request, None
        self.view = self.view._replace(gpus=gpus)
        self.request_class = replace(request, group="any")
        if self.alone:
            self.request_class = self.request_class, "alone"
        self.exclude(self.excluded)
        self.demand = self.loan_demand = None

    def ask(self, priority: int) -> None:
        """Ask with another priority, and so for another turn; the job is in no queue."""
        self.priority, self.view, self.key = priority, self.view._replace(priority=priority), ()
        self.resize(replace(self.request, priority=priority), self.view.gpus)

    @property
    def loan(self) -> Request:
        """The request for a loan before its turn."""
        if self._loan is None:
            self._loan = loan_of(self.request, self.guest)
        return self._loan

    def exclude(self, nodes: frozenset[str]) -> None:
        """Exclude nodes for the job, which is in no queue: they find it by its class."""
        self.excluded, self._loan_class = nodes, None
        self.equivalence_class = (self.request_class, nodes) if nodes else self.request_class

    @property
    def loan_class(self) -> Hashable:
        """Equal for jobs that get the same loans: of whatever VC, if they take those of nobody."""
        if self._loan_class is None:
            request_class = self.request_class
            if not self.early:  # it may take loans of VCs above their share
                request_class = request_class, self.vc
            elif isinstance(request_class, Request):
                request_class = replace(self.loan, group="any", vc="any")
            self._loan_class = (request_class, self.excluded) if self.excluded else request_class
        return self._loan_class

    @property
    def awaited(self) -> Request:
        """The request that it waits for: at its turn or, if its VC is too small, for a loan."""
        return self.loan if self.line is None and self.backlog is not None else self.request

    @property
    def place_in(self) -> Queue | None:
        """The line in which it has its place while it runs on a loan; None: it stays on that (decision 0022)."""
        return None if self.made_way and not self.early else self.line

    @property
    def holds(self) -> bool:
        """Whether it holds GPUs."""
        return self.status in _HOLDS

    @property
    def runs_as_guest(self) -> bool:
        """Whether it runs, and holds no cells."""
        return self.guest and self.status in _BEFORE_TURN

    def __repr__(self) -> str:
        return f"Entry({self.name!r}, {self.status.value})"


def loan_of(request: Request, guest: bool = False) -> Request:
    """The opportunistic request of a job that may start early: the same GPUs, on any idle cells, or as a guest."""
    return Request(
        request.group,
        request.vc,
        OPPORTUNISTIC,
        request.members,
        request.leaf_cell_type,
        within=request.within,
        soft_affinity=request.soft_affinity,
        whole_nodes=request.whole_nodes,
        guest=guest,
    )


class Queue:
    """Jobs by key, strictly head-of-line; the head is *passed by* if its reason to wait may last for ever.

    O(log entries) to find a place, and a shift in memory of the entries behind it.
    """

    __slots__ = ("_entries", "_passed", "first", "gpus")

    def __init__(self) -> None:
        #: of all jobs here
        self.gpus = 0
        self._entries: list[tuple[Key, Entry]] = []
        #: jobs that were passed by
        self._passed: list[tuple[Key, Entry]] = []
        #: the head of line
        self.first: Entry | None = None

    def add(self, entry: Entry) -> None:
        """Insert ``entry`` by its key."""
        entries = self._entries
        item = (entry.key, entry)
        if not entries or entries[-1] < item:
            entries.append(item)
        else:
            insort(entries, item)
        self.gpus += entry.view.gpus
        self.first = entries[0][1]

    def remove(self, entry: Entry) -> None:
        """Remove ``entry``, if it is here."""
        if self.first is not entry:
            for entries in (self._entries, self._passed):
                place = bisect_left(entries, (entry.key,))
                if place < len(entries) and entries[place][1] is entry:
                    del entries[place]
                    self.gpus -= entry.view.gpus
                    return
            return
        self.gpus -= entry.view.gpus
        del self._entries[0]
        self.first = self._entries[0][1] if self._entries else None

    def pass_by(self) -> None:
        """Set the head aside, so that it does not block the jobs behind it."""
        insort(self._passed, self._entries.pop(0))
        self.first = self._entries[0][1] if self._entries else None

    def restore(self) -> None:
        """Put the jobs that were passed by back into their places."""
        if self._passed:
            self._entries = list(merge(self._entries, self._passed))
            self._passed = []
            self.first = self._entries[0][1]

    @property
    def passes(self) -> bool:
        """Whether any job was passed by."""
        return bool(self._passed)

    @property
    def holds_back_some(self) -> bool:
        """Whether another job than the head may keep those behind it from their turns."""
        return False

    def ahead(self, key: Key, most: int) -> tuple[int, list[Entry]]:
        """Count the jobs before ``key`` that may block others, and list the first ``most`` of them."""
        place = bisect_left(self._entries, (key,))
        return place, [entry for _, entry in self._entries[: min(place, most)]]

    def blocking(self, key: Key, most: int, now: float) -> tuple[int, list[Entry]]:
        """The same of those that keep a job with ``key``, for which there is room, from its turn at ``now``."""
        return self.ahead(key, most)

    def of_classes(self, status: Status) -> list[Entry]:
        """The first job of a status; where jobs pass each other, that of each class of requests, in order."""
        first = next((entry for _, entry in self._entries if entry.status is status), None)
        return [] if first is None else [first]

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, entry in merge(self._entries, self._passed))

    def __contains__(self, entry: object) -> bool:
        return any(entry is other for other in self)

    def __len__(self) -> int:
        return len(self._entries) + len(self._passed)


class BackfillQueue(Queue):
    """A backfilled queue: jobs pass each other, by equivalence class, since all of a class get the same decision.

    The first job of a class that does not fit is *passed by* with all of its class, until :meth:`restore`. O(log jobs)
    per change, O(classes) for the next head.
    """

    __slots__ = ("_by_class", "_by_submission", "_length", "_marked", "patience", "retries")

    def __init__(self, patience: float, retries: bool, by_submission: bool) -> None:
        """``patience``: in seconds; ``retries``: a better head of a class that was passed is tried anew.

        ``by_submission``: the head of a class is the one that waits longest.
        """
        super().__init__()
        self.patience = patience
        self.retries = retries
        self._by_submission = by_submission
        self._by_class: dict[Hashable, list[tuple[Key, Entry]]] = {}
        self._marked: set[Hashable] = set()
        self._length = 0

    def add(self, entry: Entry) -> None:
        entries = self._by_class.setdefault(entry.equivalence_class, [])
        item = (entry.key, entry)
        insort(entries, item)
        self._length += 1
        self.gpus += entry.view.gpus
        if entries[0][1] is not entry:
            return
        if self.retries:
            self._marked.discard(entry.equivalence_class)
        if entry.equivalence_class not in self._marked and (self.first is None or entry.key < self.first.key):
            self.first = entry

    def remove(self, entry: Entry) -> None:
        entries = self._by_class.get(entry.equivalence_class, [])
        place = bisect_left(entries, (entry.key,))
        if place < len(entries) and entries[place][1] is entry:
            del entries[place]
            self._length -= 1
            self.gpus -= entry.view.gpus
            if not entries:
                del self._by_class[entry.equivalence_class]
                self._marked.discard(entry.equivalence_class)
            if self.first is entry:
                self._find_first()

    def pass_by(self) -> None:
        if self.first is not None:
            self._marked.add(self.first.equivalence_class)
            self._find_first()

    def restore(self) -> None:
        if self._marked:
            self._marked.clear()
            self._find_first()

    def _find_first(self) -> None:
        first: Entry | None = None
        for of_class, entries in self._by_class.items():
            if of_class not in self._marked and (first is None or entries[0][0] < first.key):
                first = entries[0][1]
        self.first = first

    @property
    def passes(self) -> bool:
        return bool(self._marked)

    @property
    def holds_back_some(self) -> bool:
        return self.passes and self.patience < inf

    def may_pass(self, now: float) -> bool:
        """Whether the head, which does not fit, lets the jobs behind it pass at ``now``."""
        return self.first is not None and now - self.first.view.submitted < self.patience

    def holds_back(self, entry: Entry, now: float) -> bool:
        """Whether a job that was passed by is out of patience at ``now``, and before ``entry`` in line.

        O(classes); O(jobs) where the order is another than that of submission.
        """
        if self.patience == inf:
            return False
        for of_class in self._marked:
            for key, other in self._by_class[of_class]:
                if key > entry.key:
                    break
                if now - other.view.submitted >= self.patience:
                    return True
                if self._by_submission:
                    break
        return False

    def of_classes(self, status: Status) -> list[Entry]:
        firsts = [next((e for e in entries if e[1].status is status), None) for entries in self._by_class.values()]
        return [entry for _, entry in sorted([first for first in firsts if first is not None])]

    def ahead(self, key: Key, most: int) -> tuple[int, list[Entry]]:
        before = [entry for entry in self if entry.key < key]
        return len(before), before[:most]

    def blocking(self, key: Key, most: int, now: float) -> tuple[int, list[Entry]]:
        """See :meth:`Queue.blocking`: who is out of patience; the others are passed. O(jobs)."""
        before = [one for one in self if one.key < key and now - one.view.submitted >= self.patience]
        return len(before), before[:most]

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, entry in merge(*self._by_class.values()))

    def __len__(self) -> int:
        return self._length


class VcQueues:
    """The queues of one virtual cluster.

    The *line* holds jobs that wait for their turn; a job that runs early keeps its place. The *backlog* holds jobs that
    wait for a loan and do not run. A job larger than its VC (or the cluster) has no turn: it is *outsized* if it can
    run on a loan (outsized jobs block only each other), else a *misfit*.
    """

    __slots__ = ("backlog", "line", "misfits", "outsized")

    def __init__(self, patience: float, retries: bool, by_submission: bool) -> None:
        """``patience``: 0 for strict queues, else as for :class:`BackfillQueue`."""
        self.line: Queue = BackfillQueue(patience, retries, by_submission) if patience else Queue()
        self.backlog: Queue = BackfillQueue(patience, retries, by_submission) if patience else Queue()
        self.outsized: Queue = BackfillQueue(patience, retries, by_submission) if patience else Queue()
        self.misfits = Queue()
