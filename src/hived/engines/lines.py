"""Who is next: per virtual cluster, who waits for its own GPUs and who waits for idle ones, in its policy's order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from hived.cluster.decisions import Bind, Preempt, Wait
from hived.cluster.reasons import BadHardware, NeverFits, NotSuggested
from hived.scheduling import JobView, Policy

#: place in a line: the higher priority, then what the policy says, then the number
Place = tuple[int, ...]
#: what somebody waits for without holding back who is behind: it may never come
_HOLDS_NOBODY_BACK = (NeverFits, BadHardware, NotSuggested)


class InLine(Protocol):
    """Somebody who waits: a job of one machine, a gang of pods. None of this changes while it is in a line."""

    @property
    def id(self) -> int:
        """Unique number; tells those of one instant apart."""

    @property
    def name(self) -> str:
        """Unique name."""

    @property
    def vc(self) -> str:
        """Its virtual cluster."""

    @property
    def priority(self) -> int:
        """As asked for; below 0: opportunistic."""

    @property
    def gpus(self) -> int:
        """Of all its pods or tasks."""

    @property
    def submitted_at(self) -> float:
        """Seconds since the epoch."""


T = TypeVar("T", bound=InLine)


class Line(Generic[T]):
    """Members by place. Nobody passes anybody: who looks takes the first, and goes on only once that has started.

    O(log members) to find a place.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._places: list[Place] = []
        self._members: dict[int, T] = {}

    def place(self, member: T) -> Place:
        """Where ``member`` belongs. It never changes, so one that was preempted or failed comes back to it."""
        submitted = round(member.submitted_at * 1000)
        order = self._policy.order(JobView(member.name, member.gpus, submitted, member.id))
        return (-member.priority, *order, member.id)

    def add(self, member: T) -> None:
        """``member`` waits from now on."""
        insort(self._places, self.place(member))
        self._members[member.id] = member

    def remove(self, member: T) -> None:
        """``member`` waits no more."""
        del self._places[self._rank(member)]
        del self._members[member.id]

    def ahead(self, member: T, most: int) -> tuple[int, list[T]]:
        """How many are before ``member``, and the first ``most`` of them."""
        return self._first(self._rank(member), most)

    def before(self, priority: int, most: int) -> tuple[int, list[T]]:
        """The same of a new one with this priority."""
        return self._first(bisect_left(self._places, (-priority + 1,)), most)

    def _first(self, rank: int, most: int) -> tuple[int, list[T]]:
        return rank, [self._members[place[-1]] for place in self._places[: min(rank, most)]]

    def _rank(self, member: T) -> int:
        return bisect_left(self._places, self.place(member))

    def __getitem__(self, rank: int) -> T:
        """Who is ``rank``-th, from 0."""
        return self._members[self._places[rank][-1]]

    def __contains__(self, member: object) -> bool:
        return self._members.get(getattr(member, "id", -1)) is member

    def __len__(self) -> int:
        return len(self._places)


class Lines(Generic[T]):
    """The lines of all virtual clusters, and which of them have to be looked at since something has changed.

    A VC's own GPUs serve that VC alone, so what becomes free is news for its line and for those who borrow.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        #: per virtual cluster: who waits for its own GPUs
        self.own: dict[str, Line[T]] = {}
        #: per virtual cluster: who waits for idle ones
        self.borrowers: dict[str, Line[T]] = {}
        #: virtual clusters whose next may be able to start
        self._stirred: set[str] = set()
        self._idle_stirred = False

    def of(self, member: T) -> Line[T]:
        """The line that ``member`` stands in, or would."""
        lines = self.borrowers if member.priority < 0 else self.own
        line = lines.get(member.vc)
        if line is None:
            line = lines[member.vc] = Line(self._policy)
        return line

    def add(self, member: T) -> None:
        """``member`` waits; it may be next."""
        self.of(member).add(member)
        if member.priority < 0:
            self._idle_stirred = True
        else:
            self._stirred.add(member.vc)

    def left(self, member: T) -> None:
        """``member`` gives up waiting: who was behind it may be next."""
        self.of(member).remove(member)
        self.freed(member.vc)

    def freed(self, vc: str) -> None:
        """GPUs that somebody of ``vc`` held, or was going to, are free."""
        self._stirred.add(vc)
        self._idle_stirred = True

    def stir(self) -> None:
        """Anything may be different: hardware, the spec."""
        self._stirred.update(self.own)
        self._idle_stirred = True

    def dispatch(self, ask: Callable[[T], Bind | Preempt | Wait | None], share: Callable[[str], float]) -> None:
        """Ask for whoever may be able to start, in order, until it is the turn of one who cannot.

        ``ask`` carries out what is decided, and takes who need not wait any more out of the line; None: the request is
        not right for this cluster, and holds nobody back. ``share``: of a VC's loans, who has the least asks first.
        """
        while self._stirred:
            vc = min(self._stirred)
            self._stirred.discard(vc)
            line = self.own.get(vc)
            rank: int | None = 0
            while line is not None and rank is not None and rank < len(line):
                rank = _next(line, rank, ask)
        if self._idle_stirred:
            self._idle_stirred = False
            self._lend(ask, share)

    def _lend(self, ask: Callable[[T], Bind | Preempt | Wait | None], share: Callable[[str], float]) -> None:
        """Ask for the first of each VC's borrowers, that of the VC with the smallest share on loan first."""
        ranks = {vc: 0 for vc, line in self.borrowers.items() if len(line)}
        while ranks:
            vc = min(ranks, key=lambda name: (share(name), name))
            rank = _next(self.borrowers[vc], ranks[vc], ask)
            if rank is None or rank >= len(self.borrowers[vc]):
                del ranks[vc]
            else:
                ranks[vc] = rank


def _next(line: Line[T], rank: int, ask: Callable[[T], Bind | Preempt | Wait | None]) -> int | None:
    """Ask for who is ``rank``-th in a line; whose turn it is after that, ``None`` if nobody's."""
    answer = ask(line[rank])
    if answer is None:
        return rank + 1
    if isinstance(answer, Wait):
        return rank + 1 if isinstance(answer.reasons[0], _HOLDS_NOBODY_BACK) else None
    return rank  # it has left the line
