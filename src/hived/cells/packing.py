"""Unequal pods into the hosts of one cell: best fit first, then an exact search with a bounded number of steps.

Hosts with equal rooms are interchangeable, so the search counts rooms of each kind rather than hosts, and the hosts are
put in at the end. That keeps it small: nodes of 8 GPUs have 9 kinds when no whole cells are asked for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
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
        moves = _search(kinds, demand, steps)
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
    found = sorted(
        (max(0, gpus - room[0]), after[1], room, after)
        for room in kinds
        if room[1] >= gpus and (after := demand.without(room, at)) is not None
    )
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


def backtrack(number: int, attempts: Callable[[int], Iterator[bool]]) -> bool:
    """Depth-first search: whether one attempt for each of so many things, one after the other, leads to the end.

    ``attempts(i)`` carries an attempt for the ``i``-th out, yields ``True``, and undoes it when it is asked for the
    next one. So those that led to the end stay as they are, and where there was no way nothing does.
    """
    stack: list[Iterator[bool]] = []
    while len(stack) < number:
        stack.append(attempts(len(stack)))
        while not next(stack[-1], False):  # back to the one before, and its next attempt
            stack.pop()
            if not stack:
                return False
    return True


def _search(kinds: Counter[Room], demand: Demand, steps: Steps) -> list[_Move] | None:
    """All ways to place the pods, largest first, each state of the rooms at most once."""
    path: list[_Move] = []
    failed: set[tuple[int, frozenset[tuple[Room, int]]]] = set()
    # leaves that the pods from the i-th on need
    left = [sum(need.gpus for need in demand.needs[at:]) for at in range(len(demand.needs))]

    def attempts(at: int) -> Iterator[bool]:
        """Place the ``at``-th pod wherever that can still lead anywhere, while there are steps left."""
        # what decides whether the pods from this one on fit: the rooms that can still hold any of them
        smallest = demand.smallest[at]
        rooms = frozenset([(room, number) for room, number in kinds.items() if room[1] >= smallest])
        if (at, rooms) in failed or sum(room[1] * number for room, number in rooms) < left[at]:
            return
        moves = _moves(kinds, demand, at)
        # The largest pod of those left: where it fills a room, whatever else would go there can change places with it,
        # so no other way needs to be tried.
        exact = [move for move in moves if not move[1][1]]
        for before, after in exact[:1] or moves:
            if steps.left <= 0:
                return
            steps.left -= 1
            _shift(kinds, before, after)
            path.append((before, after))
            yield True
            path.pop()
            _shift(kinds, after, before)
        failed.add((at, rooms))

    return path if backtrack(len(demand.needs), attempts) else None
