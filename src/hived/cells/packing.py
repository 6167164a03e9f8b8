"""Unequal pods into the hosts of one cell: best fit first, then an exact search with a bounded number of steps.

Hosts with equal rooms are interchangeable, so the search counts rooms of each kind rather than hosts, and the hosts are
put in at the end. That keeps it small: nodes of 8 GPUs have 9 kinds when no whole cells are asked for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .host_fit import Demand, Room

#: steps of exact search in one call of find, some ten microseconds each; a gang found only by more is said not to fit
STEPS = 20_000

#: one pod placed: the room it was placed in, and what is left of that
_Move = tuple[Room, Room]


@dataclass(slots=True)
class Steps:
    """How many steps a search may still take."""

    left: int = STEPS


def pack(rooms: Sequence[Room], demand: Demand, steps: Steps) -> list[int] | None:
    """For each pod in the order of ``demand`` the position of its room; ``None`` when no way was found.

    Among equal rooms the first is used first. Best fit costs O(rooms + pods * kinds), the search O(steps * kinds).
    """
    if sum(room[1] for room in rooms) < demand.gpus:
        return None
    kinds = Counter(rooms)
    moves = _best_fit(Counter(kinds), demand)
    if moves is None:
        moves = _Search(kinds, demand, steps).run()
    if moves is None:
        return None
    where: dict[Room, deque[int]] = {}
    for position, room in enumerate(rooms):
        where.setdefault(room, deque()).append(position)
    chosen = []
    for before, after in moves:
        position = where[before].popleft()
        where.setdefault(after, deque()).appendleft(position)
        chosen.append(position)
    return chosen


def _moves(kinds: Counter[Room], demand: Demand, at: int) -> list[_Move]:
    """Where the ``at``-th pod can go: at least cost, then where the fewest leaves stay."""
    gpus = demand.needs[at].gpus
    found = [
        (max(0, gpus - room[0]), after[1], room, after)
        for room in kinds
        if room[1] >= gpus and (after := demand.without(room, at)) is not None
    ]
    found.sort()
    return [(room, after) for _, _, room, after in found]


def _shift(kinds: Counter[Room], before: Room, after: Room) -> None:
    """One room of the kind ``before`` is now one of the kind ``after``."""
    if kinds[before] == 1:
        del kinds[before]
    else:
        kinds[before] -= 1
    kinds[after] += 1


def _best_fit(kinds: Counter[Room], demand: Demand) -> list[_Move] | None:
    moves = []
    for at in range(len(demand.needs)):
        move = next(iter(_moves(kinds, demand, at)), None)
        if move is None:
            return None
        _shift(kinds, *move)
        moves.append(move)
    return moves


class _Search:
    """Depth-first through all ways to place the pods, largest first, each state of the rooms at most once."""

    __slots__ = ("_demand", "_failed", "_kinds", "_left", "_steps")

    def __init__(self, kinds: Counter[Room], demand: Demand, steps: Steps) -> None:
        self._kinds = kinds
        self._demand = demand
        self._steps = steps
        self._failed: set[tuple[int, frozenset[tuple[Room, int]]]] = set()
        # leaves that the pods from the i-th on need
        self._left = [sum(need.gpus for need in demand.needs[at:]) for at in range(len(demand.needs))]

    def run(self) -> list[_Move] | None:
        """The moves, ``None`` when there are none or the steps are used up."""
        path: list[_Move] = []
        choices = [self._choices(0)]
        while choices:
            if self._steps.left <= 0:
                return None
            move = next(choices[-1], None)
            if move is None:
                choices.pop()
                if path:
                    self._failed.add(self._state(len(path)))
                    before, after = path.pop()
                    _shift(self._kinds, after, before)
                continue
            self._steps.left -= 1
            _shift(self._kinds, *move)
            path.append(move)
            if len(path) == len(self._demand.needs):
                return path
            choices.append(self._choices(len(path)))
        return None

    def _state(self, at: int) -> tuple[int, frozenset[tuple[Room, int]]]:
        """What decides whether the pods from ``at`` on fit: the rooms that can still hold any of them."""
        smallest = self._demand.smallest[at]
        return at, frozenset(item for item in self._kinds.items() if item[0][1] >= smallest)

    def _choices(self, at: int) -> Iterator[_Move]:
        """Ways to place the ``at``-th pod that can still lead anywhere."""
        at, rooms = state = self._state(at)
        if state in self._failed or sum(room[1] * number for room, number in rooms) < self._left[at]:
            return iter(())
        moves = _moves(self._kinds, self._demand, at)
        # The largest pod of those left: where it fills a room, whatever else would go there can change places with it,
        # so no other way needs to be tried.
        exact = [move for move in moves if not move[1][1]]
        return iter(exact[:1] or moves)
