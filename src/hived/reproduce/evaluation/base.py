"""The two clusters that several figures share."""

from __future__ import annotations

from ..simulations import Simulation, Workload, arms

FULL_NODES, CROWDED_NODES = 279, 200


def full(workload: Workload) -> Simulation:
    """The paper's cluster under all schemes."""
    return Simulation(workload, FULL_NODES, arms(), workload.clock)


def crowded(workload: Workload) -> Simulation:
    """The paper's smaller cluster under all schemes."""
    return Simulation(workload, CROWDED_NODES, arms(), workload.crowded)
