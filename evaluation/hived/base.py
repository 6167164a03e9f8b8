"""The clusters that several figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..experiment import Scale
from ..results import Result
from ..simulations import Arm, Simulation, Workload, arms

FULL_NODES, CROWDED_NODES = 279, 200


def full(workload: Workload) -> Simulation:
    """The paper's cluster under all schemes."""
    return Simulation(workload, FULL_NODES, arms(), workload.clock)


def crowded(workload: Workload) -> Simulation:
    """The paper's smaller cluster under all schemes."""
    return Simulation(workload, CROWDED_NODES, arms(), workload.crowded)


def by_load(workload: Workload, scale: Scale) -> dict[str, Simulation]:
    """The paper's cluster at faster clocks, by clock: HiveD, with static binding, and with cells of all levels.

    The paper does not give the load of its trace, and what binding and levels save depends on it.
    """
    compared = (
        Arm("hived", "hived"), Arm("static", "hived", binding="static"), Arm("levels", "hived", levels="all"),
    )  # fmt: skip
    clocks = [workload.clock * speed for speed in scale.speeds]
    return {_at(clock): Simulation(workload, FULL_NODES, compared, clock) for clock in clocks}


def loads(
    first: Result, workload: Workload, scale: Scale, results: Mapping[str, Result]
) -> Sequence[tuple[str, Result]]:
    """``first`` and the results of :func:`by_load`, with their clocks and loads in words."""
    clocks = [workload.clock * speed for speed in scale.speeds]
    found = [(workload.clock, first), *((clock, results[_at(clock)]) for clock in clocks)]
    return [(f"load {result.number('load'):.2f} (clock x{clock:.3g})", result) for clock, result in found]


def _at(clock: float) -> str:
    return f"clock x{clock:.6g}"
