"""The bare buddy allocator at 65,536 and 1,048,576 GPUs: what is under every request that ``contract`` measures."""

from __future__ import annotations

import random

from hived.cells import BuddyAllocator, Hierarchy

from .clusters import SIZES, racks_of_1024_nodes
from .measuring import Figure, seconds


def allocator(racks: int, number: int = 100_000, seed: int = 1) -> float:
    """Seconds per operation, allocations and releases alike, at every level. Synthetic."""
    hierarchy = Hierarchy(racks_of_1024_nodes(racks).chains[0])
    buddy = BuddyAllocator(hierarchy)
    rng = random.Random(seed)
    work = [(rng.random(), rng.randrange(1, 5)) for _ in range(number)]

    def run() -> None:
        held: list[tuple[int, int]] = []
        for chance, level in work:
            if chance < 0.45 and held:
                buddy.release(*held.pop())
            else:
                cell = buddy.allocate(level)
                if cell >= 0:
                    held.append((level, cell))
        for level, cell in held:
            buddy.release(level, cell)

    return seconds(run) / number


def measure() -> list[Figure]:
    """All figures of the core."""
    return [
        Figure(f"the bare allocator, per operation, {name} GPUs", 1e3 * allocator(racks), "ms")
        for name, racks in SIZES.items()
    ]
