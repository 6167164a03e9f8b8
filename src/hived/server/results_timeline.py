"""Timelines of GPUs, of runs that are read back from a folder of results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, cached_property

from hived.cluster.decisions import Placement
from hived.errors import InputError, NotFoundError
from hived.scheduling import Kind
from hived.simulator.record import Run
from hived.simulator.timeline import Recorded, timeline

from .pictures import MOST_BOXES, GpuBox, GpuLane, GpuTimeline, GpuUser, Places
from .results_files import KINDS, Jobs, Runs, Tenant, pods_of

_KINDS = tuple(Kind(kind) for kind in KINDS)


class Timelines:
    """The timelines of one scheme and policy."""

    def __init__(self, label: str, tenants: Sequence[Tenant], jobs: Jobs, places: Places, runs: Runs, end: int) -> None:
        """``end``: of the simulation, in milliseconds."""
        self._label, self._jobs, self._places, self._runs, self._end = label, jobs, places, runs, end
        self._vcs = [tenant.name for tenant in tenants]

    @cached_property
    def _gpus(self) -> dict[str, list[int]]:
        """Device indices of every node."""
        return {node: self._places.devices(node) for node in self._places.numbers}

    @cached_property
    def _on(self) -> dict[str, list[int]]:
        """The rows of every node."""
        names = [chain.nodes for chain in self._places.chains]
        found: dict[str, list[int]] = {node: [] for node in self._gpus}
        for row, parts in enumerate(self._runs.parts):
            for name in {names[chain][node] for chain, node, _, _ in parts}:
                found[name].append(row)
        return found

    def recorded(self, rows: Iterable[int] | None = None) -> Recorded:
        """Rows of ``runs.csv`` (None: all), as timelines of GPUs are made of them. O(rows)."""
        runs, pods = self._runs, cache(pods_of)
        found = [
            Run(
                int(runs.job[row]),
                int(runs.start[row]),
                int(runs.end[row]),
                _KINDS[runs.kind[row]],
                Placement(self._places.chains[runs.parts[row][0][0]].name, pods(runs.place[row])),
                float(runs.share[row]),
                float(runs.rate[row]),
            )
            for row in (range(len(runs.job)) if rows is None else rows)
        ]
        return Recorded(self._label, found, self._jobs.ids, self._gpus, self._end)

    def of_node(self, node: str, start: float, end: float) -> GpuTimeline:
        """Who has the GPUs of a node from ``start`` to ``end``, in seconds.

        Raises :class:`~hived.errors.NotFoundError` for a node that is not there, and
        :class:`~hived.errors.InputError` for times that are none and for too many changes.
        """
        if node not in self._gpus:
            raise NotFoundError(f"no node {node[:60]!r} in {self._label}")
        low, high = round(start * 1000), round(end * 1000)
        if not low < high:
            raise InputError(f"from {start:g} to {end:g}: give an earlier start than end")
        shown = timeline(self.recorded(self._on[node]), [node], low, high)
        boxes = sum(len(lane.boxes) for lane in shown.lanes)
        if boxes > MOST_BOXES:
            raise InputError(f"{boxes:,} changes are too many for one picture; choose a shorter time")
        place = {job: at for at, job in enumerate(shown.names)}
        return GpuTimeline(
            node=node,
            start=start,
            end=end,
            lanes=[
                GpuLane(
                    device=lane.device,
                    boxes=[
                        GpuBox(
                            job=place[box.job], start=box.start / 1000, end=box.end / 1000, bottom=box.bottom,
                            top=box.top, way=box.way.value, share=box.share, rate=box.rate,
                        )
                        for box in lane.boxes
                    ],
                )
                for lane in shown.lanes
            ],
            jobs=[
                GpuUser(id=name, name=name, vc=self._vcs[self._jobs.tenant[job]], gpus=int(self._jobs.gpus[job]),
                        colour=shown.colours[job])
                for job, name in shown.names.items()
            ],
        )  # fmt: skip
