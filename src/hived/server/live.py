"""The engine of one machine as the dashboard sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import groupby

from hived.cluster.decisions import PodPlacement
from hived.cluster.states import LeafState
from hived.engines.local import telling
from hived.engines.local.engine import Engine
from hived.engines.local.explaining import explain, shortly
from hived.engines.local.jobs import Job
from hived.engines.local.model import Event, JobState
from hived.errors import NotFoundError
from hived.spec.compiled import ClusterSpec

from . import pictures
from .curves import LiveCurves
from .stays import stays

VIEW = "live"
#: how much of the queue is shown
_SHOWN = 200
#: events that are read at a time
_PAGE = 10_000
#: events that change more than the job they are about
_HARDWARE = frozenset({"device_bad", "device_healthy", "drained", "undrained", "reconfigured", "engine_started"})


class LiveSource:
    """Implements :class:`~.sources.Source`. A picture costs O(jobs that hold GPUs), an update O(what changed)."""

    live = True

    def __init__(self, engine: Engine, title: str) -> None:
        self._engine = engine
        self._title = title
        self._map = _Map(engine.cluster.spec)
        self._curves = LiveCurves()

    def layout(self) -> pictures.Layout:
        """What does not change from moment to moment."""
        spec = self._engine.cluster.spec
        return pictures.Layout(
            title=self._title,
            clock="unix",
            synthetic=self._engine.devices.simulated,
            start=self._engine.started_at,
            end=None,
            vcs=virtual_clusters(spec),
            views=[pictures.View(key=VIEW, label="this machine", chains=chains(spec))],
        )

    def picture(self, view: str, at: float | None = None) -> pictures.Picture:
        """Now."""
        self._check(view)
        machine = self._engine.machine
        holders = [self._holder(job) for job in machine.jobs.values() if job.placement is not None]
        return pictures.Picture(
            seq=self._engine.last_event,
            at=self._engine.clock(),
            holders=holders,
            bad=self._bad(),
            queue=self._queue(),
            queue_total=sum(machine.occupancy.waiting.values()),
            usage=self._usage(),
            totals=self._totals(),
        )

    def update(self, view: str, seq: int) -> pictures.Update | None:
        """What changed since; from the latest events alone."""
        self._check(view)
        recent = self._engine.recent
        if not recent or seq > recent[-1].seq or seq + 1 < recent[0].seq:
            return None
        new = _after(recent, seq)
        if any(event.kind == "reconfigured" for event in new):
            return None
        jobs = self._engine.machine.jobs
        touched = dict.fromkeys(event.job for event in new if event.job is not None)
        held = [jobs[number] for number in touched if number in jobs and jobs[number].placement is not None]
        totals = self._totals()
        at = self._engine.clock()
        waiting = sum(self._engine.machine.occupancy.waiting.values())
        return pictures.Update(
            seq=recent[-1].seq,
            at=at,
            gone=[str(n) for n in touched if n not in jobs or jobs[n].placement is None],
            holders=[self._holder(job) for job in held],
            bad=self._bad() if any(event.kind in _HARDWARE for event in new) else None,
            queue=self._queue(),
            queue_total=waiting,
            usage=self._usage(),
            totals=totals,
            sample=self._curves.add(at, totals, waiting),
        )

    def _events(self, job: int) -> list[Event]:
        """All of one job."""
        found: list[Event] = []
        while page := self._engine.store.events(found[-1].seq if found else 0, _PAGE, job):
            found += page
        return found

    async def changed(self, seq: int) -> None:
        """Return once something is newer."""
        await self._engine.changed(seq)

    def curves(self, view: str) -> pictures.Curves:
        """Since the engine started."""
        self._check(view)
        waiting = sum(self._engine.machine.occupancy.waiting.values())
        self._curves.add(self._engine.clock(), self._totals(), waiting)
        return self._curves.shown()

    async def sample(self) -> None:
        """Take samples while things change, whether or not somebody looks. Until cancelled."""
        while True:
            last = self._engine.last_event
            self._curves.add(self._engine.clock(), self._totals(), sum(self._engine.machine.occupancy.waiting.values()))
            await asyncio.sleep(1.0)
            await self._engine.changed(last)

    def story(self, view: str, job: str) -> pictures.Story:
        """A job's life, from its events."""
        self._check(view)
        found = self._engine.find(job)
        events = self._events(found.id)
        at = self._engine.clock()
        return pictures.Story(
            id=str(found.id),
            name=found.name,
            vc=found.spec.vc,
            gpus=found.gpus,
            priority=found.spec.priority,
            state=found.state.value,
            command=" ".join(found.spec.command),
            explanation=explain(self._engine.machine, found, at),
            stays=stays(events),
            moments=[pictures.Moment(at=event.at, text=telling.tell(event, found.name)) for event in events],
        )

    def comparison(self) -> pictures.Comparison | None:
        """There is one view."""
        return None

    # -- parts of a picture ---------------------------------------------------------------------------------------

    def _check(self, view: str) -> None:
        if view != VIEW:
            raise NotFoundError(f"no view {view!r}; there is {VIEW}")
        if self._map.spec is not self._engine.cluster.spec:
            self._map = _Map(self._engine.cluster.spec)

    def _holder(self, job: Job) -> pictures.Holder:
        assert job.placement is not None
        parts: list[pictures.Stretch] = []
        binding = []
        levels = job.placement.reserved_levels or (0,) * len(job.placement.pods)
        for pod, level in zip(job.placement.pods, levels, strict=True):
            for part in self._map.stretches(job.placement.chain, pod):
                parts.append(part)
                binding.append(self._map.binding(part, level, job.spec.vc) if level else "")
        kind = "guaranteed" if job.placement.guaranteed else "opportunistic"
        return pictures.Holder(
            id=str(job.id),
            name=job.name,
            vc=job.spec.vc,
            kind="reserved" if job.state is JobState.RESERVED else kind,  # type: ignore[arg-type]  # one of the words
            gpus=job.gpus,
            since=job.since,
            stopping=job.state is JobState.STOPPING,
            priority=job.spec.priority,
            parts=parts,
            binding=binding,
        )

    def _bad(self) -> list[pictures.Stretch]:
        health = self._engine.machine.health
        by_node: dict[str, list[int]] = {}
        for node, device in [*health.bad, *health.drained]:
            by_node.setdefault(node, []).append(device)
        found: list[pictures.Stretch] = []
        for node, devices in by_node.items():
            found += self._map.stretches("", PodPlacement(node, tuple(sorted(set(devices)))))
        return found

    def _queue(self) -> list[pictures.Waiting]:
        machine = self._engine.machine
        shown = list(machine.reserved.values())
        shown += [job for job in machine.backing_off() if len(shown) < _SHOWN]
        # the first of every line, then the second ones, and so on: no tenant's queue hides another's
        lines = [group[vc] for group in (machine.lines.own, machine.lines.borrowers) for vc in sorted(group)]
        rank = 0
        while len(shown) < _SHOWN and (lines := [line for line in lines if rank < len(line)]):
            shown += [line[rank] for line in lines]
            rank += 1
        return [
            pictures.Waiting(
                id=str(job.id),
                name=job.name,
                vc=job.spec.vc,
                gpus=job.gpus,
                priority=job.spec.priority,
                since=job.since,
                state=job.state.value,  # type: ignore[arg-type]  # one of three
                why=shortly(machine, job),
            )
            for job in shown[:_SHOWN]
        ]

    def _usage(self) -> list[pictures.Usage]:
        machine = self._engine.machine
        counts = machine.occupancy
        reserved = {vc.name: machine.health.reserved_gpus(vc.name) for vc in self._engine.cluster.spec.virtual_clusters}
        idle = {vc: max(0, gpus - counts.used[vc]) for vc, gpus in reserved.items()}
        # GPUs that nobody reserved are lent first; what is lent beyond them is idle in some VC
        beyond = max(0, sum(counts.lent.values()) - max(0, self._map.gpus - sum(reserved.values())))
        share = min(1.0, beyond / total) if (total := sum(idle.values())) else 0.0
        return [
            pictures.Usage(
                vc=vc,
                reserved=gpus,
                used=counts.used[vc],
                lent=round(idle[vc] * share, 2),
                borrowed=counts.lent[vc],
                waiting=counts.waiting[vc],
            )
            for vc, gpus in reserved.items()
        ]

    def _totals(self) -> pictures.Totals:
        machine = self._engine.machine
        counts = machine.occupancy
        # of those that are kept, the ones that nobody uses any more
        reserved = sum(
            machine.cluster.leaf_state(pod.node, device) is LeafState.RESERVED
            for job in machine.reserved.values()
            if job.placement is not None
            for pod in job.placement.pods
            for device in pod.leaf_cells
        )
        return pictures.Totals(
            gpus=self._map.gpus,
            guaranteed=sum(counts.used.values()),
            opportunistic=sum(counts.lent.values()),
            reserved=reserved,
            bad=sum(count for _, _, _, count in self._bad()),
            fragmentation=len(counts.nodes) / self._map.nodes if self._map.nodes else 0.0,
        )


class _Map:
    """Nodes and devices of a spec as the numbers that pictures have. O(nodes) to make."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.gpus = sum(chain.gpus for chain in spec.chains)
        self._numbers: dict[str, list[tuple[int, int]]] = {}
        for number, chain in enumerate(spec.chains):
            for node, name in enumerate(chain.node_names):
                self._numbers.setdefault(name, []).append((number, node))
        self.nodes = len(self._numbers)
        self._chains = {chain.name: number for number, chain in enumerate(spec.chains)}

    def stretches(self, chain: str, pod: PodPlacement) -> list[pictures.Stretch]:
        """Where devices of a node are, in this chain before others."""
        first = self._chains.get(chain, -1)
        found: list[pictures.Stretch] = []
        left = set(pod.leaf_cells)
        for number, node in sorted(self._numbers.get(pod.node, ()), key=lambda place: (place[0] != first, place)):
            spec = self.spec.chains[number]
            indices = spec.device_indices.get(node) or range(spec.gpus_per_node)
            leaves = [leaf for leaf, device in enumerate(indices) if device in left]
            left -= {spec.device_index(node, leaf) for leaf in leaves}
            found += [(number, node, start, count) for start, count in _runs(leaves)]
        return found

    def binding(self, part: pictures.Stretch, level: int, vc: str) -> str:
        """The reserved cell that a guaranteed part stands in."""
        chain, node, first, _ = part
        spec = self.spec.chains[chain]
        size = spec.levels[level - 1].gpus
        leaf = node * spec.gpus_per_node + first
        cell = leaf // size
        what = f"{vc}'s {spec.levels[level - 1].cell_type}"
        if level > spec.node_level:
            return f"in {what}, bound to number {cell} of {spec.cells_at(level)}"
        start = cell * size - node * spec.gpus_per_node
        devices = [spec.device_index(node, leaf) for leaf in range(start, start + size)]
        whole = "GPU" if size == 1 else "GPUs"
        return f"in {what}, bound to {spec.node_names[node]} {whole} {telling.ranges(devices)}"


def chains(spec: ClusterSpec) -> list[pictures.Chain]:
    """The chains of a spec, for a layout."""
    return [
        pictures.Chain(
            name=chain.name,
            levels=[pictures.Level(cell_type=level.cell_type, gpus=level.gpus) for level in chain.levels],
            node_level=chain.node_level,
            nodes=list(chain.node_names),
            devices={node: list(devices) for node, devices in chain.device_indices.items()},
        )
        for chain in spec.chains
    ]


def virtual_clusters(spec: ClusterSpec) -> list[pictures.VirtualCluster]:
    """The virtual clusters of a spec, for a layout."""
    found = []
    for vc in spec.virtual_clusters:
        rows = [(cells.chain, cells.level, cells.number, None) for cells in vc.cells]
        rows += [(pin.chain, pin.level, 1, pin.pinned_cell_id) for pin in vc.pinned]  # type: ignore[misc]
        reserved = [
            pictures.Reserved(
                cell_type=".".join(level.cell_type for level in reversed(spec.chain(chain).levels[level_number - 1 :])),
                gpus=spec.chain(chain).levels[level_number - 1].gpus,
                number=number,
                pinned=pinned,
            )
            for chain, level_number, number, pinned in rows
        ]
        gpus = sum(cells.gpus * cells.number for cells in reserved)
        found.append(pictures.VirtualCluster(name=vc.name, gpus=gpus, reserved=reserved))
    return found


def _after(recent: Iterable[Event], seq: int) -> list[Event]:
    """The events after number ``seq``. O(how many)."""
    found: list[Event] = []
    for event in reversed(recent):  # type: ignore[call-overload]  # a deque
        if event.seq <= seq:
            break
        found.append(event)
    return found[::-1]


def _runs(leaves: list[int]) -> list[tuple[int, int]]:
    """First and length of each run of ascending numbers."""
    found = []
    for _, run in groupby(enumerate(leaves), lambda pair: pair[1] - pair[0]):
        members = [leaf for _, leaf in run]
        found.append((members[0], len(members)))
    return found
