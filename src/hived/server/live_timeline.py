"""Timelines of GPUs of a running engine, from the events of its jobs.

A box is a job on a GPU between two changes. Turns may be as short as seconds: what is too close together to be drawn is
one box for each job, with the height of its share of that time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import ceil
from operator import attrgetter
from typing import Literal, NamedTuple

from hived.engine.job import Event

from .histories import spells
from .pictures import MOST_BOXES, GpuBox, GpuLane, GpuTimeline, GpuUser

#: the height of the band of guests, of a lane's body, and how many colours jobs have: as in `hived.simulator.timeline`,
#: which is not loaded beside an engine
GUESTS, COLOURS = 0.3, 8
#: what is shorter than one of so many parts of the window, some pixels, is drawn as a share of the time: the first
#: number with which there are not too many boxes
PARTS = (300, 150, 75, 40, 20, 10)
#: shares are of this part of the window at most, so that they are seen to change, and of so many times the shortest
#: segment at least, in which jobs have had their turns
_MIXED, _TURNS = 12, 5
#: jobs that have less than this of a lane's height are drawn as one with others; with few parts, less than two of them
_LEAST = 1 / 64
#: stands for these jobs
_SEVERAL = -1


class Life(NamedTuple):
    """A job of a timeline, and its events."""

    number: int  #: rank among all jobs of the engine
    id: str
    name: str
    vc: str
    gpus: int
    events: Sequence[Event]


class _On(NamedTuple):
    """A job on a GPU."""

    job: int  #: place among those of the timeline
    start: float
    end: float
    guest: bool
    paused: bool  #: suspended by hand
    limit: float


Way = Literal["whole", "sliced", "packed", "guest"]


class _Part(NamedTuple):
    """A job's part of a GPU; the fields of :class:`~.pictures.GpuBox`, and its height."""

    job: int
    way: Way
    height: float
    share: float
    rate: float
    limit: float


class _Segment(NamedTuple):
    """A GPU from one change to the next."""

    start: float
    end: float
    parts: tuple[_Part, ...]  #: by job


class _Box(NamedTuple):
    start: float
    end: float
    bottom: float
    part: _Part


def node_timeline(
    node: str, devices: Sequence[int], lives: Iterable[Life], start: float, end: float, now: float
) -> GpuTimeline:
    """Who has the GPUs of a node from ``start`` to ``end``, as far as that is not after ``now``.

    O(n log n) for the n events of ``lives``, for a bounded number of jobs that share a GPU.
    """
    jobs, on = _on_node(node, devices, lives, start, min(end, now))
    lanes = {device: _segments(there) for device, there in on.items()}
    boxes: dict[int, list[_Box]] = {}
    for parts in PARTS:
        mixing = _Mixing((end - start) / parts, (end - start) / _MIXED, max(_LEAST, 2 / parts))
        boxes = {device: _boxes(_drawn(segments, mixing)) for device, segments in lanes.items()}
        if sum(map(len, boxes.values())) <= MOST_BOXES:
            break
    drawn = sorted({box.part.job for of in boxes.values() for box in of} - {_SEVERAL})
    place, colours = {job: at for at, job in enumerate(drawn)}, _colours(jobs, on)
    return GpuTimeline(
        node=node,
        start=start,
        end=end,
        lanes=[
            GpuLane(
                device=device,
                boxes=[
                    GpuBox(
                        job=place.get(part.job), start=low, end=high, bottom=bottom, top=round(bottom + part.height, 6),
                        way=part.way, share=part.share, rate=part.rate, limit=part.limit,
                    )
                    for low, high, bottom, part in of
                ],
            )
            for device, of in boxes.items()
        ],
        jobs=[
            GpuUser(id=jobs[job].id, name=jobs[job].name, vc=jobs[job].vc, gpus=jobs[job].gpus, colour=colours[job])
            for job in drawn
        ],
    )  # fmt: skip


def _on_node(
    node: str, devices: Sequence[int], lives: Iterable[Life], start: float, end: float
) -> tuple[list[Life], dict[int, list[_On]]]:
    """The jobs that were on a node, in order of their first starts there, and on each device when.

    A job that is suspended is on no GPU, but for one that is so by hand: nobody else has its turn.
    """
    found: list[tuple[float, Life, list[tuple[int, _On]]]] = []
    for life in lives:
        on: list[tuple[int, _On]] = []
        for since, until, doing in spells(life.events):
            low, high = max(start, since), end if until is None else min(end, until)
            paused = doing.kind == "suspended"
            if low >= high or doing.kind == "reserved" or (paused and (doing.guest or not doing.by_hand)):
                continue
            one = _On(0, low, high, doing.guest, paused, doing.limit)
            here = (places for pods in doing.turns for name, places in pods if name == node)
            on += [(device, one) for device in {device for places in here for device in places}]
        if on:
            found.append((on[0][1].start, life, on))
    found.sort(key=lambda one: (one[0], one[1].number))
    by_device: dict[int, list[_On]] = {device: [] for device in devices}
    for job, (_, _, on) in enumerate(found):
        for device, one in on:
            if device in by_device:  # else the spec lacks it by now
                by_device[device].append(one._replace(job=job))
    return [life for _, life, _ in found], by_device


def _segments(on: Sequence[_On]) -> list[_Segment]:
    """A GPU from its first job in the window to its last."""
    found: list[_Segment] = []
    waiting, active = sorted(on, key=attrgetter("start"), reverse=True), list[_On]()
    for low, high in pairwise(sorted({at for one in on for at in (one.start, one.end)})):
        active = [one for one in active if one.end > low]
        while waiting and waiting[-1].start <= low:
            active.append(waiting.pop())
        parts = _parts(active)
        if found and found[-1].parts == parts:
            found[-1] = found[-1]._replace(end=high)
        else:
            found.append(_Segment(low, high, parts))
    return found


def _parts(active: Iterable[_On]) -> tuple[_Part, ...]:
    """The parts of those that have a GPU at a moment."""
    there = sorted(active, key=attrgetter("job"))
    guests = [one for one in there if one.guest]
    owners = [one for one in there if not one.guest and not one.paused] or [one for one in there if one.paused]
    way: Way = "packed" if len(owners) > 1 else "whole"
    height, room = round(1 / max(1, len(owners)), 6), max(1.0, sum(one.limit for one in guests))
    return (
        *(_Part(one.job, way, height, 1.0, float(not one.paused), one.limit) for one in owners),
        *(_Part(one.job, "guest", round(GUESTS * one.limit / room, 6), 1.0, 1.0, one.limit) for one in guests),
    )


class _Mixing(NamedTuple):
    """What is drawn as shares of a time."""

    least: float  #: shorter segments
    most: float  #: for so long at most
    height: float  #: jobs with less are drawn as one


def _drawn(segments: Sequence[_Segment], mixing: _Mixing) -> Iterator[_Segment]:
    """Segments as they are, but for neighbours that are all too short: those are mixed."""
    for short, group in groupby(segments, lambda segment: segment.end - segment.start < mixing.least):
        of = list(group)
        yield from _mixed(of, mixing) if short and len(of) > 1 else of


def _mixed(segments: Sequence[_Segment], mixing: _Mixing) -> Iterator[_Segment]:
    """Each job's share of a time, which ends where a job comes first or leaves last, or at multiples of ``most``."""
    least, most, _ = mixing
    low, high = segments[0].start, segments[-1].end
    first = {part.job: segment.start for segment in reversed(segments) for part in segment.parts}
    last = {part.job: segment.end for segment in segments for part in segment.parts}
    ends = {*first.values(), *last.values()} | {number * most for number in range(ceil(low / most), ceil(high / most))}
    cuts = [low]
    for at in sorted(ends):
        if min(at - cuts[-1], high - at) >= _TURNS * least:
            cuts.append(at)
    cuts.append(high)
    there: list[dict[tuple[int, bool], list[tuple[float, _Part]]]] = [{} for _ in cuts[1:]]
    for segment in segments:
        at = bisect_right(cuts, segment.start) - 1
        while at < len(there) and cuts[at] < segment.end:
            seconds = min(segment.end, cuts[at + 1]) - max(segment.start, cuts[at])
            for part in segment.parts:
                there[at].setdefault((part.job, part.way == "guest"), []).append((seconds, part))
            at += 1
    for (start, end), jobs in zip(pairwise(cuts), there, strict=True):
        parts = [_mean(of, end - start) for _, of in sorted(jobs.items(), key=lambda one: (one[0][1], one[0][0]))]
        yield _Segment(start, end, tuple(_with_several(parts, mixing.height)))


def _with_several(parts: Iterable[_Part], least: float) -> Iterator[_Part]:
    """Parts of a mixed segment; the lower ones as one, but for guests, which have none of the GPU's time."""
    guests, height, share = [], 0.0, 0.0
    for part in parts:
        if part.way == "guest":
            guests += [part] if part.height >= GUESTS * least else []
        elif part.height >= least:
            yield part
        else:
            height, share = height + part.height, share + part.share
    if height:
        yield _Part(_SEVERAL, "sliced", round(height, 6), round(min(1.0, share), 4), 1.0, 1.0)
    yield from guests


def _mean(of: Sequence[tuple[float, _Part]], seconds: float) -> _Part:
    """A job's part of a GPU over so many ``seconds``."""
    there = sum(some for some, _ in of)
    share, ways = round(there / seconds, 4), {part.way for _, part in of}
    way: Way = of[0][1].way
    if len(ways) > 1 or (way == "whole" and share < 1):
        way = "sliced"
    return _Part(
        of[0][1].job,
        way,
        round(sum(some * part.height for some, part in of) / seconds, 6),
        share,
        max(part.rate for _, part in of),
        round(sum(some * part.limit for some, part in of) / there, 4),
    )


def _boxes(segments: Iterable[_Segment]) -> list[_Box]:
    """Parts above each other, guests above all others; one that goes on in its place is one box."""
    found: list[_Box] = []
    last: dict[tuple[int, bool], int] = {}  # of each job, its last box in ``found``
    for start, end, parts in segments:
        bottom, above = 0.0, 1.0
        for part in parts:
            guest = part.way == "guest"
            box = _Box(start, end, round(above if guest else bottom, 6), part)
            if guest:
                above += part.height
            else:
                bottom += part.height
            at = last.get((part.job, guest))
            if at is not None and found[at]._replace(start=start, end=end) == box and found[at].end == start:
                found[at] = found[at]._replace(end=end)
            else:
                last[part.job, guest] = len(found)
                found.append(box)
    return found


def _colours(jobs: Sequence[Life], on: Mapping[int, Sequence[_On]]) -> list[int]:
    """A colour for each job: by its number, so that it keeps it, unless another job of this colour shares its GPUs."""
    spans: list[dict[int, tuple[float, float]]] = [{} for _ in jobs]
    for device, there in on.items():
        for one in there:
            start, end = spans[one.job].get(device, (one.start, one.end))
            spans[one.job][device] = min(start, one.start), max(end, one.end)
    used_until = {device: [0.0] * COLOURS for device in on}
    found = []
    for job, of in zip(jobs, spans, strict=True):
        conflicts = [sum(used_until[device][colour] > of[device][0] for device in of) for colour in range(COLOURS)]
        colour = min(range(COLOURS), key=lambda one: (conflicts[one], (one - job.number) % COLOURS))
        for device, (_, end) in of.items():
            used_until[device][colour] = max(end, used_until[device][colour])
        found.append(colour)
    return found
