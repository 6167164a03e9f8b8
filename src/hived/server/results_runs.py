"""``runs.csv`` of a finished simulation: who held which GPUs when, checked against the jobs and the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from hived.simulator.output import RUN_COLUMNS

from .pictures import Chain, Stretch
from .results_files import NEVER, Fates, Jobs, Key, milliseconds, refuse, rows, whole_number
from .timeline import Ints

Placed = tuple[str, tuple[Stretch, ...]]  #: a placement as in the file, and as stretches of leaves


class Places:
    """The nodes of one scheme's cluster by their names in placements."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = chains
        sizes = [chain.levels[chain.node_level - 1].gpus for chain in chains]
        #: number of each chain's first node, and of its first leaf, among all
        self.first_node = list(accumulate((len(chain.nodes) for chain in chains), initial=0))
        leaves = (len(chain.nodes) * size for chain, size in zip(chains, sizes, strict=True))
        self.first_leaf = list(accumulate(leaves, initial=0))
        self.sizes = sizes
        self._nodes: dict[str, list[tuple[int, int]]] = {}  # a machine with two kinds of device is a node of two chains
        for number, chain in enumerate(chains):
            for node, name in enumerate(chain.nodes):
                self._nodes.setdefault(name, []).append((number, node))
        self._known: dict[str, tuple[Stretch, ...]] = {}

    @property
    def nodes(self) -> int:
        """In all chains."""
        return self.first_node[-1]

    @property
    def gpus(self) -> int:
        """In all chains."""
        return self.first_leaf[-1]

    def stretches(self, placement: str) -> tuple[Stretch, ...]:
        """``node:0,1;node2:4`` as stretches of leaves. ``ValueError`` for what is not in the cluster."""
        known = self._known.get(placement)
        if known is None:
            found = [self._part(part) for part in placement.split(";")]
            if len({part[0][:2] for part in found}) < len(found):
                raise ValueError(f"the placement {placement[:60]!r} has a node twice")
            known = self._known[placement] = tuple(stretch for part in found for stretch in part)
        return known

    def _part(self, part: str) -> tuple[Stretch, ...]:
        name, _, text = part.rpartition(":")
        devices = [whole_number(device, 0) for device in text.split(",")]
        for number, node in self._nodes.get(unquote(name), ()):
            indices = self.chains[number].devices.get(node)
            size = self.sizes[number]
            leaf_of = {device: leaf for leaf, device in enumerate(indices or range(size))}
            leaves = sorted(leaf_of[device] for device in devices if device in leaf_of)
            if len(leaves) == len(devices) == len(set(leaves)):
                breaks = [n for n in range(1, len(leaves)) if leaves[n] != leaves[n - 1] + 1]
                ends = zip([0, *breaks], [*breaks, len(leaves)], strict=True)
                return tuple((number, node, leaves[low], high - low) for low, high in ends)
        raise ValueError(f"the cluster of cluster.json has no {part[:60]!r}")


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


def read_runs(path: Path, jobs: Jobs, fates: dict[Key, Fates], places: dict[Key, Places]) -> dict[Key, Runs]:
    """``runs.csv``, in agreement with ``jobs.csv`` and the cluster."""
    plain: dict[Key, list[tuple[int, int, int, int, int]]] = {key: [] for key in fates}
    placed: dict[Key, list[Placed]] = {key: [] for key in fates}
    kinds = {"guaranteed": 0, "opportunistic": 1}
    for line, (scheme, policy, job, start, end, kind, placement) in rows(path, RUN_COLUMNS):
        own = plain.get((scheme, policy))
        number = jobs.number.get(job)
        if own is None or number is None or kind not in kinds:
            what = f"{scheme} {policy}" if own is None else f"job {job[:40]!r}" if number is None else repr(kind[:40])
            refuse(path, line, f"{what} is neither in jobs.csv nor a kind of GPUs")
        try:
            begin, finish = milliseconds(start), milliseconds(end)
            placed[scheme, policy].append((placement, places[scheme, policy].stretches(placement)))
        except ValueError as error:
            refuse(path, line, str(error))
        if begin >= finish:
            refuse(path, line, f"ends at {end}, and starts at {start}")
        own.append((number, begin, finish, kinds[kind], line))
    return {
        key: _checked(path, jobs, fates[key], places[key], key, np.asarray(found, dtype=np.int64), placed[key])
        for key, found in plain.items()
    }


def _checked(
    path: Path, jobs: Jobs, fates: Fates, places: Places, key: Key, columns: Ints, placed: list[Placed]
) -> Runs:
    """The runs of one scheme and policy, once they agree with themselves and with the jobs."""
    job, start, end, lent, line = columns.reshape(-1, 5).T
    order = np.lexsort((start, job))
    job, start, end, lent, line = job[order], start[order], end[order], lent[order], line[order]
    place = [placed[n][0] for n in order.tolist()]
    parts = [placed[n][1] for n in order.tolist()]
    held = np.asarray([sum(part[3] for part in stretches) for stretches in parts], dtype=np.int64)
    name = " ".join(key)

    def none_of(wrong: Ints, what: str) -> None:
        if len(wrong):
            refuse(path, int(line[wrong[0]]), f"job {jobs.ids[job[wrong[0]]][:40]!r} {what} ({name})")

    none_of(np.flatnonzero(start < jobs.submit[job]), "runs before it is submitted")
    none_of(np.flatnonzero(held < jobs.gpus[job]), "has fewer GPUs than it asked for")
    same = job[1:] == job[:-1]
    none_of(1 + np.flatnonzero(same & (start[1:] < end[:-1])), "is in two places at once")
    of_job = np.searchsorted(job, np.arange(len(jobs.ids) + 1))
    finished = np.flatnonzero((fates.finish < NEVER) & (jobs.duration > 0))
    first, last = of_job[finished], of_job[finished + 1] - 1
    missing = finished[last < first]
    if len(missing):
        who = jobs.ids[missing[0]][:40]
        refuse(path, 0, f"job {who!r} finished by jobs.csv and has no row here ({name}): the file is cut short")
    differ = (start[first] != fates.start[finished]) | (end[last] != fates.finish[finished])
    none_of(first[np.flatnonzero(differ)], "does not start and finish here as it does in jobs.csv")
    none_of(_held_twice(places, start, end, parts), "is on GPUs that another job holds")
    return Runs(job, start, end, lent, held, parts, place, of_job)


def _held_twice(places: Places, start: Ints, end: Ints, parts: list[tuple[Stretch, ...]]) -> Ints:
    """The runs that begin on a leaf before another there has ended. O(leaves held, sorted)."""
    flat = [
        (run, places.first_leaf[chain] + node * places.sizes[chain] + leaf, count)
        for run, stretches in enumerate(parts)
        for chain, node, leaf, count in stretches
    ]
    run, leaf, count = np.asarray(flat, dtype=np.int64).reshape(-1, 3).T
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    run, leaf = np.repeat(run, count), np.repeat(leaf, count) + within
    order = np.lexsort((start[run], leaf))
    run, leaf = run[order], leaf[order]
    twice = (leaf[1:] == leaf[:-1]) & (start[run[1:]] < end[run[:-1]])
    return np.asarray(run[1:][twice], dtype=np.int64)
