"""Runs read back from a folder of results, as timelines of GPUs are made of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from urllib.parse import unquote

from hived.cluster.decisions import Placement, PodPlacement
from hived.scheduling import Kind
from hived.simulator.record import Run

from .pictures import Places
from .results_files import KINDS, Runs

_KINDS = tuple(Kind(kind) for kind in KINDS)


def recorded_runs(runs: Runs, places: Places, rows: Iterable[int]) -> list[Run]:
    """Rows of ``runs.csv`` as runs. O(rows)."""
    pods = cache(_pods)
    return [
        Run(
            int(runs.job[row]),
            int(runs.start[row]),
            int(runs.end[row]),
            _KINDS[runs.kind[row]],
            Placement(places.chains[runs.parts[row][0][0]].name, pods(runs.place[row])),
            float(runs.share[row]),
            float(runs.rate[row]),
        )
        for row in rows
    ]


def _pods(place: str) -> tuple[PodPlacement, ...]:
    """``node:0,1;node2:4``."""
    parts = [part.rpartition(":") for part in place.split(";")]
    return tuple(PodPlacement(unquote(name), tuple(map(int, leaves.split(",")))) for name, _, leaves in parts)


def gpus_of_nodes(places: Places) -> dict[str, list[int]]:
    """Device indices of every node."""
    found: dict[str, list[int]] = {}
    for chain in places.chains:
        for number, node in enumerate(chain.nodes):
            found.setdefault(node, []).extend(chain.indices(number))
    return found
