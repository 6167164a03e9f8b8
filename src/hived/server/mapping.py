"""Parts of the pictures of any running engine: the map of a spec, holders of GPUs, usage and loans of VCs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.explain.reasons import CellsGiven
from hived.cluster.states import LeafState
from hived.engine.dispatcher import Usage
from hived.engine.job import EngineJob
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.errors import InvariantError
from hived.scheduling.extension import TakingTurns
from hived.spec.compiled import ChainSpec, ClusterSpec, LevelSpec
from hived.words import ranges

from . import pictures
from .pictures import Places
from .schema import Limits, Reserved


def of(job: EngineJob) -> dict[str, Any]:
    """The fields of :class:`~.schema.JobHeader`."""
    return {
        "id": job.key,
        "name": job.name,
        "vc": job.vc,
        "gpus": job.gpus,
        "priority": job.priority,
        "user": job.entry.view.user,
    }


#: how a job takes turns; None: it does not
TurnsOf = Callable[[Any], TakingTurns | None]


def nobody_shares(_job: EngineJob) -> None:
    """How a job takes turns where none does."""


def kind_of(job: EngineJob) -> Literal["guaranteed", "opportunistic", "guest"]:
    """What the GPUs of a job are to it."""
    if job.guest:
        return "guest"
    return "guaranteed" if job.guaranteed else "opportunistic"


class Map:
    """Nodes and devices of a spec as the numbers of pictures. O(nodes) to make."""

    def __init__(self, spec: ClusterSpec, beyond: Iterable[PodPlacement] = ()) -> None:
        """``beyond``: devices that jobs hold and the spec may lack. They get chains of their own, after the spec's."""
        self.spec = spec
        self._places = Places(_chains(spec))
        self.nodes = len(self._places.numbers)
        #: the spec with the devices beyond it, as shown
        self._shown_spec = replace(spec, chains=(*spec.chains, *self._beyond(beyond)))
        self._places.chains = self.chains = _chains(self._shown_spec)
        self.gpus = self._shown_spec.gpus
        #: GPUs that each VC reserved, in the order of the spec
        self.reserved = {vc.name: spec.reserved(vc) for vc in spec.virtual_clusters}
        self._chains = {chain.name: number for number, chain in enumerate(spec.chains)}
        #: cache of holders by id, with the placement and the fields that each was made of: a job stays the same from
        #: picture to picture until it has an event
        self._shown: dict[str, tuple[Placement, dict[str, Any], pictures.Holder]] = {}
        #: number of the latest event in the last picture, and its holders
        self._all: tuple[int, list[pictures.Holder]] | None = None

    def holders(self, seq: int, jobs: Iterable[EngineJob], turns: TurnsOf = nobody_shares) -> list[pictures.Holder]:
        """All of ``jobs`` that have a placement after event number ``seq``; all pictures of one number share the list.

        O(jobs), and :meth:`holder` for new or changed ones; O(1) where the number is that of the last picture. Other
        jobs are dropped from the cache.
        """
        if self._all is None or self._all[0] != seq:
            self._all = seq, [holder for job in jobs if (holder := self.holder(job, turns(job))) is not None]
            self._shown = {holder.id: self._shown[holder.id] for holder in self._all[1]}
        return self._all[1]

    def holder(self, job: EngineJob, turns: TakingTurns | None = None) -> pictures.Holder | None:
        """The holder of a job; None: it has no placement. O(its GPUs), or O(1) if unchanged since it was last shown."""
        placement = job.placement
        if placement is None:
            return None
        fields = {
            **of(job),
            "kind": kind_of(job),
            "share": 1.0 if turns is None else turns.share,
            "packed_with": () if turns is None else turns.packed_with,
            "limits": None if job.limits is None else Limits(**job.limits._asdict()),
            "since": job.since,
            "stopping": job.state is JobState.STOPPING,
            "suspended": job.state is JobState.SUSPENDED,
        }
        if job.state is JobState.RESERVED:
            fields["kind"] = "reserved"
        known = self._shown.get(job.key)
        if known is not None and known[0] is placement and known[1] == fields:
            return known[2]
        parts, binding = self.parts(placement, job.vc)
        holder = pictures.Holder(**fields, parts=parts, binding=binding)
        self._shown[job.key] = placement, fields, holder
        return holder

    def _beyond(self, held: Iterable[PodPlacement]) -> Iterator[ChainSpec]:
        """A chain per node that has devices which the spec lacks."""
        devices: dict[str, set[int]] = {}
        for pod in held:
            devices.setdefault(pod.node, set()).update(pod.leaf_cells)
        following = count(len(self.spec.chains))
        for node, wanted in sorted(devices.items()):
            for number, at in self._places.numbers.get(node, ()):
                wanted.difference_update(self._places.chains[number].indices(at))
            if wanted:
                many, name = len(wanted), f"{node} (not in the spec)"
                levels = (LevelSpec("GPU", 1, 1), LevelSpec("NODE", many, many))
                self._places.numbers.setdefault(node, []).append((next(following), 0))
                yield ChainSpec(name, levels, 2, 1, (name,), {0: tuple(sorted(wanted))})

    def devices(self, node: str) -> list[int]:
        """Device indices of a node; none where it is not there."""
        return self._places.devices(node)

    def stretches(self, node: str, devices: Iterable[int], chain: str = "") -> list[pictures.Stretch]:
        """Stretches of devices of a node, in this chain before others."""
        return self._places.stretches(node, devices, self._chains.get(chain, -1))

    def parts(self, placement: Placement, vc: str) -> tuple[list[pictures.Stretch], list[str]]:
        """Stretches of a placement, and per part the cell of ``vc`` bound there: "" for an opportunistic one."""
        parts: list[pictures.Stretch] = []
        binding = []
        levels = placement.reserved_levels or (0,) * len(placement.pods)
        for pod, level in zip(placement.pods, levels, strict=True):
            for part in self.stretches(pod.node, pod.leaf_cells, placement.chain):
                parts.append(part)
                binding.append(self.binding(part, level, vc) if level else "")
        return parts, binding

    def binding(self, part: pictures.Stretch, level: int, vc: str) -> str:
        """The reserved cell that a guaranteed part is bound to."""
        chain, node, first, _ = part
        spec = self._shown_spec.chains[chain]
        size = spec.levels[level - 1].gpus
        leaf = node * spec.gpus_per_node + first
        cell = leaf // size
        what = f"{vc}'s {spec.levels[level - 1].cell_type}"
        if level > spec.node_level:
            return f"in {what}, bound to number {cell} of {spec.cells_at(level)}"
        start = cell * size - node * spec.gpus_per_node
        devices = [spec.device_index(node, leaf) for leaf in range(start, start + size)]
        whole = "GPU" if size == 1 else "GPUs"
        return f"in {what}, bound to {spec.node_names[node]} {whole} {ranges(devices)}"


def _chains(spec: ClusterSpec) -> list[pictures.Chain]:
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

    def cells(chain: str, level: int, number: int, pinned: str | None = None) -> Reserved:
        of_chain = spec.chain(chain)
        gpus = of_chain.levels[level - 1].gpus
        return Reserved(cell_type=of_chain.path_to(level), gpus=gpus, number=number, pinned=pinned)

    return [
        pictures.VirtualCluster(
            name=vc.name,
            gpus=spec.reserved(vc),
            reserved=[cells(some.chain, some.level, some.number) for some in vc.cells]
            + [cells(pin.chain, pin.level, 1, pin.pinned_cell_id) for pin in vc.pinned],
        )
        for vc in spec.virtual_clusters
    ]


def usage(of: Map, sums: Usage[Any], trading: LiveTrading | None = None) -> list[pictures.VcTotals]:
    """Each VC of the spec, and each other that still has GPUs. O(VCs + trades)."""
    used, lent = sums.used, sums.lent
    reserved = {**of.reserved, **dict.fromkeys(sums.others(of.reserved), 0)}
    shares = lent_by(lent.total(), of.gpus, list(reserved.values()), [used[vc] for vc in reserved])
    given: defaultdict[str, list[pictures.Traded]] = defaultdict(list)
    taken: defaultdict[str, list[pictures.Traded]] = defaultdict(list)
    for cells in () if trading is None else trading.given():
        given[cells.vc].append(_traded(cells.to, cells))
        taken[cells.to].append(_traded(cells.vc, cells))
    return [
        pictures.VcTotals(
            vc=vc,
            reserved=size,
            used=used[vc],
            lent=share,
            borrowed=lent[vc],
            waiting=sums.waiting[vc],
            given=given[vc],
            taken=taken[vc],
        )
        for (vc, size), share in zip(reserved.items(), shares, strict=True)
    ]


def _traded(vc: str, of: CellsGiven) -> pictures.Traded:
    return pictures.Traded(vc=vc, cell_type=of.cell_type, number=of.number, until=of.until)


def lent_by(lent: int, gpus: int, reserved: Sequence[int], used: Sequence[int]) -> list[int]:
    """Each VC's part of the ``lent`` GPUs: unreserved GPUs are lent first, then idle ones, in proportion to each VC's.

    >>> lent_by(5, 10, [4, 4], [1, 4])
    [3, 0]
    """
    idle = [max(0, size - number) for size, number in zip(reserved, used, strict=True)]
    return apportioned(max(0, lent - max(0, gpus - sum(reserved))), idle)


def apportioned(number: int, sizes: Sequence[int]) -> list[int]:
    """Apportion ``number`` (at most the sum of ``sizes``) in proportion to ``sizes``, in whole numbers.

    By largest remainders, ties to the first: no share is above its size, and the shares sum to the number.

    >>> apportioned(4, [4, 2, 6]), apportioned(9, [1, 2])
    ([1, 1, 2], [1, 2])
    """
    total = sum(sizes)
    number = min(number, total)
    shares = [number * size // total if total else 0 for size in sizes]
    short = sorted(range(len(sizes)), key=lambda one: (shares[one] * total - number * sizes[one], one))
    for one in short[: number - sum(shares)]:
        shares[one] += 1
    return shares


def kept_idle(cluster: Cluster, reserved: Iterable[EngineJob]) -> int:
    """Reserved GPUs that are idle already, over all jobs with a reservation. O(GPUs reserved)."""
    return sum(
        cluster.leaf_state(node, device) is LeafState.RESERVED
        for job in reserved
        if job.placement is not None
        for node, device in job.placement.devices()
    )


def safety_margin(cluster: Cluster) -> int | None:
    """Least cells to spare over all levels. None: nothing is reserved; -1: sharing safety is broken, which is a bug.

    O(chains * levels).
    """
    try:
        return min((row.margin for row in cluster.check_safety()), default=None)
    except InvariantError:  # the status must be served just then
        return -1
