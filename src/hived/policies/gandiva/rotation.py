"""Weighted round-robin of gangs on the GPUs of one server, as the cycle that it repeats (Gandiva, 4.2.2, Figure 9).

In every slice the gangs are taken in the order of priority and of the least service for their weight, and run if they
still fit. So gangs change GPUs, and six jobs of one GPU have 4/6 of the time each on four:

    slice 1    0 1 2 3        the gangs on each GPU
    slice 2    0 1 4 5
    slice 3    2 3 4 5

The order depends on sizes, weights and priorities alone, and repeats: a cycle is computed once for a server with the
same sizes, and shares are read off it without simulating slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

#: slices after which a cycle is cut off; equal gangs repeat after as many slices as there are gangs, or fewer
MAX_SLICES = 2_000


@dataclass(frozen=True, slots=True)
class Rotation:
    """A cycle of slices of one length."""

    #: per slice: the gangs that run, each with its positions among the server's GPUs
    slices: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]
    #: per gang: the positions that it has, with the fraction of the time; () if it never runs
    turns: tuple[tuple[tuple[tuple[int, ...], float], ...], ...]
    #: per gang: the fraction of all slices in which it runs
    shares: tuple[float, ...]
    #: per gang: the fraction of all slices at whose start it is resumed
    resumes: tuple[float, ...]


@lru_cache(maxsize=20_000)
def rotation(
    gpus: int, sizes: tuple[int, ...], weights: tuple[int, ...] = (), priorities: tuple[int, ...] = ()
) -> Rotation:
    """The cycle of gangs of these sizes on ``gpus`` GPUs.

    ``weights`` (default 1 each) and ``priorities`` (default 0; a higher one is never suspended for a lower one) are of
    the gangs. A gang larger than ``gpus`` never runs. O(slices * gangs log gangs); cached.
    """
    number = len(sizes)
    weights = weights or (1,) * number
    priorities = priorities or (0,) * number
    served = [0] * number
    gangs = [gang for gang in range(number) if sizes[gang] <= gpus]
    order: Callable[[int], float | tuple[float, float]] = served.__getitem__
    if len({*weights}) > 1 or len({*priorities}) > 1:
        order = lambda i: (-priorities[i], served[i] / weights[i])  # noqa: E731
    seen: dict[tuple[int, ...], int] = {}
    slices: list[tuple[int, ...]] = []
    tiers = [[i for i in gangs if priorities[i] == p] for p in sorted({*priorities})]
    start = 0
    while len(slices) < MAX_SLICES:
        state = _relative(served, weights, tiers)
        if state in seen:
            start = seen[state]
            break
        seen[state] = len(slices)
        left, chosen = gpus, []
        # the service for its weight; ties by number
        for gang in sorted(gangs, key=order):
            if sizes[gang] <= left:
                left -= sizes[gang]
                chosen.append(gang)
        for gang in chosen:
            served[gang] += 1
        slices.append(tuple(chosen))
    return _placed(gpus, sizes, slices[start:])


def _relative(served: Sequence[int], weights: Sequence[int], tiers: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The service of each gang without the rounds that all gangs of its priority have had."""
    state = list(served)
    for tier in tiers:
        rounds = min((served[i] // weights[i] for i in tier), default=0)
        for i in tier:
            state[i] -= rounds * weights[i]
    return tuple(state)


def _placed(gpus: int, sizes: tuple[int, ...], slices: Sequence[tuple[int, ...]]) -> Rotation:
    """Give the gangs of every slice their GPUs: the same as in the slice before, else those furthest left."""
    number, length = len(sizes), len(slices)
    before: dict[int, tuple[int, ...]] = {}
    placed = []
    resumes = [0] * number
    for at, chosen in enumerate(slices):
        free = [True] * gpus
        now: dict[int, tuple[int, ...]] = {}
        for gang in chosen:
            if gang in before:
                now[gang] = before[gang]
                for position in before[gang]:
                    free[position] = False
        for gang in sorted(chosen, key=lambda i: (-sizes[i], i)):
            if gang not in now:
                now[gang] = _positions(free, sizes[gang])
                for position in now[gang]:
                    free[position] = False
                resumes[gang] += at > 0
        placed.append(tuple([(gang, now[gang]) for gang in sorted(now)]))
        before = now
    last = dict(placed[-1])
    for gang, positions in placed[0]:
        resumes[gang] += last.get(gang) != positions
    counts: list[dict[tuple[int, ...], int]] = [{} for _ in range(number)]
    for of_slice in placed:
        for gang, positions in of_slice:
            counts[gang][positions] = counts[gang].get(positions, 0) + 1
    return Rotation(
        tuple(placed),
        tuple([tuple([(positions, n / length) for positions, n in of.items()]) for of in counts]),
        tuple([sum(of.values()) / length for of in counts]),
        tuple([n / length for n in resumes]),
    )


def _positions(free: Sequence[bool], size: int) -> tuple[int, ...]:
    """Free positions for a gang: an aligned block if there is one, else the first."""
    for start in range(0, len(free) - size + 1, size):
        if all(free[start : start + size]):
            return tuple(range(start, start + size))
    return tuple([position for position, is_free in enumerate(free) if is_free][:size])
