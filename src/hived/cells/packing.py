"""Bin packing of unequal pods into the hosts of one cell: best fit, then an exact search of bounded length.

Hosts with equal rooms are interchangeable, so the search counts rooms of each kind rather than hosts, and hosts are
assigned at the end. That keeps it small: nodes of 8 GPUs have 9 kinds when no whole cells are requested.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .host_fit import Demand, Room

#: steps of exact search in one call of find, about ten microseconds each; a gang that needs more counts as not fitting
STEPS = 20_000

#: one pod placed: its room before and after
_Move = tuple[Room, Room]


@dataclass(slots=True)
class Steps:
    """The remaining steps of a search."""

    left: int = STEPS


def pack(rooms: Sequence[Room], demand: Demand, steps: Steps) -> list[int] | None:
    """For each pod in the order of ``demand`` the position of its room; ``None`` when no packing was found.

    Equal rooms are used in order. Best fit costs O(rooms + pods * kinds), the search O(steps * kinds).
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
    """The possible moves of the ``at``-th pod: fewest preempted leaves first, then fewest leaves left over."""
    gpus = demand.needs[at].gpus
    found = sorted(
        (max(0, gpus - room[0]), after[1], room, after)
        for room in kinds
        if room[1] >= gpus and (after := demand.without(room, at)) is not None
    )
    return [(room, after) for _, _, room, after in found]


def _shift(kinds: Counter[Room], before: Room, after: Room) -> None:
    """Change one room of kind ``before`` into kind ``after``."""
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
    """Depth-first search over ``number`` decisions; whether a solution was found.

    ``attempts(i)`` makes an attempt at decision ``i``, yields ``True``, and undoes it when the next one is requested.
    So a solution stays in place when it is found, and without one everything is undone.
    """
    stack: list[Iterator[bool]] = []
    while len(stack) < number:
        stack.append(attempts(len(stack)))
        while not next(stack[-1], False):  # backtrack to the previous decision and its next attempt
            stack.pop()
            if not stack:
                return False
    return True


def _search(kinds: Counter[Room], demand: Demand, steps: Steps) -> list[_Move] | None:
    """Search all placements of the pods, largest first, each state of the rooms at most once."""
    path: list[_Move] = []
    failed: set[tuple[int, frozenset[tuple[Room, int]]]] = set()

    def attempts(at: int) -> Iterator[bool]:
        """Place the ``at``-th pod in each promising room, while there are steps left."""
        # whether the pods from this one on fit depends only on the rooms that can still hold any of them
        smallest = demand.smallest[at]
        rooms = frozenset([(room, number) for room, number in kinds.items() if room[1] >= smallest])
        if (at, rooms) in failed or sum(room[1] * number for room, number in rooms) < demand.left[at]:
            return
        moves = _moves(kinds, demand, at)
        # This pod is the largest of those left: if it fills a room exactly, any other content of that room can be
        # swapped with it, so no other move needs to be tried.
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
