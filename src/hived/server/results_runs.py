"""``runs.csv`` of a finished simulation: who held which GPUs when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from hived.simulator.output import RUN_COLUMNS

from .pictures import Chain, Stretch
from .places import Places
from .results_files import Jobs, Key, milliseconds, reading
from .timeline import Ints

Placed = tuple[str, tuple[Stretch, ...]]  #: a placement as in the file, and as stretches of leaves


class Placements(Places):
    """The nodes of one scheme's cluster, and what placements on them are as stretches."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        super().__init__(chains)
        self._known: dict[str, tuple[Stretch, ...]] = {}

    def read(self, placement: str) -> tuple[Stretch, ...]:
        """``node:0,1;node2:4`` as stretches of leaves. ``ValueError`` for what is not in the cluster."""
        known = self._known.get(placement)
        if known is None:
            found = [stretch for part in placement.split(";") for stretch in self._part(part)]
            known = self._known[placement] = tuple(found)
        return known

    def _part(self, part: str) -> list[Stretch]:
        name, _, text = part.rpartition(":")
        devices = [int(device) for device in text.split(",")]
        found = self.stretches(unquote(name), devices)
        if sum(number for _, _, _, number in found) != len(devices):
            raise ValueError(f"the cluster of cluster.json has no {part[:60]!r}")
        return found


@dataclass(frozen=True, slots=True)
class Runs:
    """The intervals in which jobs held GPUs in one run, by job, then by start. Arrays (runs,)."""

    job: Ints
    start: Ints
    end: Ints
    lent: Ints  #: 1: opportunistic, 0: guaranteed
    held: Ints  #: GPUs
    parts: list[tuple[Stretch, ...]]
    place: list[str]  #: as in the file
    of_job: Ints  #: a job's runs are those from ``of_job[job]`` to ``of_job[job + 1]`` (jobs + 1,)


def read_runs(path: Path, jobs: Jobs, places: dict[Key, Placements]) -> dict[Key, Runs]:
    """``runs.csv``, the placements as stretches of leaves. O(runs log runs)."""
    plain: dict[Key, list[tuple[int, int, int, int]]] = {key: [] for key in places}
    placed: dict[Key, list[Placed]] = {key: [] for key in places}
    lent = {"guaranteed": 0, "opportunistic": 1}
    with reading(path, RUN_COLUMNS) as rows:
        for scheme, policy, job, start, end, kind, placement in rows:
            key = scheme, policy
            plain[key].append((jobs.number[job], milliseconds(start), milliseconds(end), lent[kind]))
            placed[key].append((placement, places[key].read(placement)))
    return {key: _sorted(jobs, np.asarray(found, dtype=np.int64), placed[key]) for key, found in plain.items()}


def _sorted(jobs: Jobs, columns: Ints, placed: list[Placed]) -> Runs:
    job, start, end, lent = columns.reshape(-1, 4).T
    order = np.lexsort((start, job))
    job = job[order]
    place = [placed[n][0] for n in order.tolist()]
    parts = [placed[n][1] for n in order.tolist()]
    held = np.asarray([sum(part[3] for part in stretches) for stretches in parts], dtype=np.int64)
    of_job = np.searchsorted(job, np.arange(len(jobs.ids) + 1))
    return Runs(job, start[order], end[order], lent[order], held, parts, place, of_job)
