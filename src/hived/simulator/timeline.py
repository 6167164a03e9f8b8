"""The timeline of GPUs: which jobs are on each, when, and how they share it. Times in milliseconds.

A *lane* is one GPU. Its body has the height 1, and a job in it the height of its share of the GPU's time, so that areas
are GPU time. Packed jobs, which have their share of the time together, divide its height. Guests are above the body:
they have no time of their own (AntMan, OSDI'20, 3.3).

Which jobs are packed is derived: shares of jobs that take turns on a GPU sum to 1 at most, so where they sum to more,
jobs of one placement and share are packed, those that are slowed down the most first. Packed jobs that leave so much of
a GPU's time unused that their shares fit beside each other are taken for jobs that take turns.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import NamedTuple

from hived.cluster.decisions import Placement
from hived.errors import InputError
from hived.scheduling import Kind

from .record import Run

DAY_MS = 86_400_000
#: the height of the band of guests, of a lane's body
GUESTS = 0.3
#: colours of jobs: a job has one of these numbers
COLOURS = 8
_MOST_LANES = 128
_LANES = 32  #: of a timeline for which no node is named
_SLACK = 1e-6  #: of sums of shares, which are rounded in files


class Way(Enum):
    """How a job has a GPU."""

    WHOLE = "whole"  #: all of its time
    SLICED = "sliced"  #: a share of its time
    PACKED = "packed"  #: at the same time as other jobs, all or a share of it
    GUEST = "guest"  #: beside its owner, in what that leaves idle


class Box(NamedTuple):
    """A job on a GPU, for an interval without a change of its share, its rate, or its place in the lane."""

    job: int  #: number in the trace
    start: int
    end: int
    bottom: float  #: of a lane, 0 to 1; of guests above 1
    top: float
    way: Way
    share: float  #: of the GPU's time; of guests 1
    rate: float  #: of its work there, see :class:`~.record.Run`; 0: it holds the GPU and is paused


class Lane(NamedTuple):
    """A GPU."""

    node: str
    device: int
    boxes: list[Box]  #: by job, then by start


@dataclass(frozen=True, slots=True)
class Steps:
    """A step function: ``values[n]`` holds from ``at[n]`` to ``at[n + 1]``, the last until the window's end."""

    at: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One scheme and policy of a simulation, as far as timelines are made of it."""

    label: str
    runs: Sequence[Run]
    names: Sequence[str]  #: of jobs, by number
    gpus: Mapping[str, Sequence[int]]  #: device indices of every node
    end: int  #: of the simulation


@dataclass(frozen=True, slots=True)
class Timeline:
    """The GPUs of some nodes for some time."""

    start: int
    end: int
    lanes: list[Lane]
    names: dict[int, str]  #: of the jobs in it, in order of their first starts there
    colours: dict[int, int]  #: of the same; up to 8 jobs that share a GPU have different ones
    rates: dict[int, Steps]  #: rate of progress of each job, on these nodes

    @property
    def ways(self) -> set[Way]:
        """Those that occur."""
        return {box.way for lane in self.lanes for box in lane.boxes}

    @property
    def pauses(self) -> bool:
        """Whether a job holds GPUs without progress."""
        return any(not box.rate and box.way is not Way.GUEST for lane in self.lanes for box in lane.boxes)

    def total(self) -> Steps:
        """The sum of all rates."""
        changes: dict[int, float] = {self.start: 0.0}
        for steps in self.rates.values():
            for at, before, after in zip(steps.at, [0.0, *steps.values], steps.values, strict=False):
                changes[at] = changes.get(at, 0.0) + after - before
        total = 0.0
        values = []
        for at in sorted(changes):
            total += changes[at]
            values.append(max(0.0, total))
        return Steps(sorted(changes), values)


def timeline(recorded: Recorded, nodes: Sequence[str], start: int, end: int) -> Timeline:
    """The timeline of ``nodes`` from ``start`` to ``end``.

    O(r log r) for the r runs on these nodes, for a bounded number of jobs that share a GPU, after a look at all runs.
    """
    chosen = set(nodes)
    there = [run for run in recorded.runs if any(pod.node in chosen for pod in run.placement.pods)]
    colours = _colours(there)
    shown = [run for run in there if run.start < end and run.end > start]
    jobs = {run.job for run in shown}
    on: dict[tuple[str, int], list[Run]] = {(node, device): [] for node in nodes for device in recorded.gpus[node]}
    for run in shown:
        for node, devices in run.placement.pods:
            if node in chosen:
                for device in devices:
                    on[node, device].append(run)
    return Timeline(
        start,
        end,
        [Lane(node, device, _boxes(runs, start, end)) for (node, device), runs in on.items()],
        {job: recorded.names[job] for job in colours if job in jobs},
        {job: colour for job, colour in colours.items() if job in jobs},
        _rates(shown, start, end),
    )


def _colours(runs: Iterable[Run]) -> dict[int, int]:
    """A colour for each job, in order of first starts.

    One that no other job has on its GPUs at the time, else that fewest have; of these the one given last the longest
    ago. It depends on all runs of the nodes, not on the window: a job keeps its colour when the window moves.
    """
    spans: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
    for run in runs:
        of_job = spans.setdefault(run.job, {})
        for gpu in run.placement.devices():
            start, end = of_job.get(gpu, (run.start, run.end))
            of_job[gpu] = min(start, run.start), max(end, run.end)
    used_until: dict[tuple[str, int], list[int]] = {}
    given = list(range(-COLOURS, 0))
    found: dict[int, int] = {}
    for job in sorted(spans, key=lambda job: (min(spans[job].values())[0], job)):
        conflicts = [0] * COLOURS
        for gpu, (start, _) in spans[job].items():
            for colour, until in enumerate(used_until.setdefault(gpu, [-1] * COLOURS)):
                conflicts[colour] += until > start
        colour = min(range(COLOURS), key=lambda one: (conflicts[one], given[one]))
        given[colour] = len(found)
        found[job] = colour
        for gpu, (_, end) in spans[job].items():
            used_until[gpu][colour] = max(end, used_until[gpu][colour])
    return found


class _Held(NamedTuple):
    """A job on a GPU at a moment."""

    job: int
    first: int  #: when it first had the GPU
    guest: bool
    turns: tuple[tuple[Placement, float], ...]  #: placement and share of each of its rows
    rate: float

    @property
    def share(self) -> float:
        return math.fsum(share for _, share in self.turns)


def _boxes(runs: Sequence[Run], start: int, end: int) -> list[Box]:
    """The boxes of one GPU."""
    first: dict[int, int] = {}
    for run in runs:
        first[run.job] = min(run.start, first.get(run.job, run.start))
    found: list[Box] = []
    last: dict[int, int] = {}  # of each job, its last box in ``found``
    for low, high, active in _segments(runs, start, end):
        rows: dict[int, list[Run]] = {}
        for run in active:
            rows.setdefault(run.job, []).append(run)
        held = [
            _Held(
                job,
                first[job],
                of[0].kind is Kind.GUEST,
                tuple((run.placement, run.share) for run in of),
                math.fsum(run.rate for run in of),
            )
            for job, of in rows.items()
        ]
        for box in _stacked(held, low, high):
            before = last.get(box.job)
            if before is not None and found[before]._replace(start=low, end=high) == box and found[before].end == low:
                found[before] = found[before]._replace(end=high)
            else:
                last[box.job] = len(found)
                found.append(box)
    return sorted(found, key=attrgetter("job", "start"))


def _segments(runs: Sequence[Run], start: int, end: int) -> Iterator[tuple[int, int, list[Run]]]:
    """Intervals between two changes, and the runs in each."""
    waiting = sorted(runs, key=attrgetter("start"), reverse=True)
    cuts = {max(start, run.start) for run in runs} | {min(end, run.end) for run in runs}
    active: list[Run] = []
    for low, high in pairwise(sorted(cuts)):
        active = [run for run in active if run.end > low]
        while waiting and waiting[-1].start <= low:
            active.append(waiting.pop())
        if active:
            yield low, high, active


def _stacked(held: Sequence[_Held], low: int, high: int) -> Iterator[Box]:
    """The boxes of one interval: units of jobs stacked by when they came, guests above."""
    guests = sorted((one for one in held if one.guest), key=attrgetter("first", "job"))
    units = _units([one for one in held if not one.guest])
    room = max(1.0, math.fsum(unit[0].share for unit in units))  # above 1 only for runs that break the rules of shares
    bottom = 0.0
    for unit in units:
        height = unit[0].share / len(unit) / room
        for one in unit:
            whole = one.share >= 1 - _SLACK
            way = Way.PACKED if len(unit) > 1 else Way.WHOLE if whole else Way.SLICED
            yield Box(one.job, low, high, _tidy(bottom), _tidy(bottom + height), way, _tidy(one.share), one.rate)
            bottom += height
    for place, one in enumerate(guests):
        floor, ceiling = (1 + GUESTS * at / len(guests) for at in (place, place + 1))
        yield Box(one.job, low, high, floor, ceiling, Way.GUEST, 1.0, one.rate)


def _units(held: Sequence[_Held]) -> list[list[_Held]]:
    """The jobs of each unit that has turns on a GPU: units of one job, unless that is more than the GPU's time."""
    units = [[one] for one in sorted(held, key=attrgetter("first", "job"))]
    total = math.fsum(unit[0].share for unit in units)
    while total > 1 + _SLACK:
        alike: dict[object, list[list[_Held]]] = {}
        for unit in units:
            alike.setdefault(unit[0].turns, []).append(unit)
        pairs = [
            sorted(same, key=lambda unit: (len(unit), unit[0].rate, unit[0].first, unit[0].job))[:2]
            for same in alike.values()
            if len(same) > 1
        ]
        if not pairs:
            break
        one, other = min(pairs, key=lambda pair: (pair[0][0].rate + pair[1][0].rate) / pair[0][0].share)
        units.remove(other)
        one += other
        total -= one[0].share
    return units


def _tidy(value: float) -> float:
    return round(value, 9)


def _rates(runs: Sequence[Run], start: int, end: int) -> dict[int, Steps]:
    """Each job's rate of progress from its first start in the window on."""
    changes: dict[int, dict[int, float]] = {}
    for run in runs:
        of_job = changes.setdefault(run.job, {})
        low, high = max(start, run.start), min(end, run.end)
        of_job[low] = of_job.get(low, 0.0) + run.rate
        of_job[high] = of_job.get(high, 0.0) - run.rate
    found = {}
    for job, of_job in changes.items():
        at, values, rate = [], [], 0.0
        for moment in sorted(of_job):
            rate += of_job[moment]
            at.append(moment)
            values.append(max(0.0, _tidy(rate)))
        found[job] = Steps(at, values)
    return found


def choose_nodes(recorded: Recorded, nodes: Sequence[str]) -> list[str]:
    """The nodes of a timeline; of none given, the one whose GPUs are shared for the longest time.

    Without sharing, those on which the most jobs ran, as many as have :data:`_LANES` GPUs: where a job has whole nodes,
    one node would show one job.

    Raises :class:`~hived.errors.InputError` for a node that is not there, for too many, and where no job ran.
    """
    for node in nodes:
        if node not in recorded.gpus:
            known = list(recorded.gpus)
            some = ", ".join(known[:5]) + (f" and {len(known) - 5:,} more" if len(known) > 5 else "")
            raise InputError(f"node {node[:60]}: no such node in {recorded.label}; there is {some}")
    found = list(dict.fromkeys(nodes))
    if not found:
        if not recorded.runs:
            raise InputError(f"{recorded.label}: no job ran, so there is no timeline")
        uses = _uses(recorded.runs)
        most = sorted(uses, key=lambda node: (-uses[node].shared, -uses[node].runs, -uses[node].held, node))
        several = 1 if uses[most[0]].shared else max(1, _LANES // len(recorded.gpus[most[0]]))
        found = [node for node in recorded.gpus if node in most[:several]]
    gpus = sum(len(recorded.gpus[node]) for node in found)
    if gpus > _MOST_LANES:
        raise InputError(
            f"{len(found)} nodes have {gpus:,} GPUs; a timeline has at most {_MOST_LANES}: give fewer nodes"
        )
    return found


def choose_window(recorded: Recorded, nodes: Sequence[str], days: tuple[float, float] | None) -> tuple[int, int]:
    """Start and end of a timeline. Of no days given: the first day on which jobs share GPUs of the nodes, as far as
    they are in use on it; without sharing the first of those with the most runs.

    Raises :class:`~hived.errors.InputError` for days that are none, and for those in which no job is on the nodes.
    """
    chosen = set(nodes)
    there = [run for run in recorded.runs if any(pod.node in chosen for pod in run.placement.pods)]
    names = ", ".join(nodes)
    if not there:
        raise InputError(f"{names}: no job ran there in {recorded.label}; choose another node")
    first, last = min(run.start for run in there), max(run.end for run in there)
    if days is None:
        since = min(use.since for node, use in _uses(there).items() if node in chosen)
        day = _busiest_day(there) if math.isinf(since) else int(since // DAY_MS)
        low, high = day * DAY_MS, (day + 1) * DAY_MS
        shown = [run for run in there if run.start < high and run.end > low]
        return max(low, min(run.start for run in shown)), min(high, max(run.end for run in shown))
    if not 0 <= days[0] < days[1]:
        raise InputError(f"window {days[0]:g}:{days[1]:g}: give two days from 0 on, the earlier one first")
    low, high = round(days[0] * DAY_MS), min(round(days[1] * DAY_MS), max(last, recorded.end))
    if not any(run.start < high and run.end > low for run in there):
        raise InputError(
            f"window {days[0]:g}:{days[1]:g}: no job is on {names} then; jobs are from day {first / DAY_MS:.3g} to "
            f"{last / DAY_MS:.3g}"
        )
    return low, high


def _busiest_day(runs: Sequence[Run]) -> int:
    """The first of the days on which the most runs are. O(n log n)."""
    change: Counter[int] = Counter()
    for run in runs:
        change[run.start // DAY_MS] += 1
        change[max(run.end - 1, run.start) // DAY_MS + 1] -= 1
    there = dict(zip(sorted(change), accumulate(change[day] for day in sorted(change)), strict=True))
    return max(there, key=lambda day: (there[day], -day))


class _Use(NamedTuple):
    """The use of a node's GPUs."""

    runs: int  #: on each of its GPUs, summed
    held: int  #: time, summed over GPUs and jobs
    shared: int  #: the same beyond the first job of a GPU
    since: float  #: when jobs shared a GPU first; infinity: never


def _uses(runs: Sequence[Run]) -> dict[str, _Use]:
    """The use of every node on which a job ran. O(n log n) for n GPUs of all runs."""
    of_gpu: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for run in runs:
        for node, devices in run.placement.pods:
            for device in devices:
                of_gpu.setdefault((node, device), []).append((run.start, run.end))
    found: dict[str, _Use] = {}
    for (node, _), spans in of_gpu.items():
        held = in_use = latest = 0
        since = math.inf
        for start, end in sorted(spans):
            if start < latest:
                since = min(since, start)
            held += end - start
            in_use += max(0, end - max(start, latest))
            latest = max(latest, end)
        before = found.get(node, _Use(0, 0, 0, math.inf))
        found[node] = _Use(
            before.runs + len(spans), before.held + held, before.shared + held - in_use, min(before.since, since)
        )
    return found
