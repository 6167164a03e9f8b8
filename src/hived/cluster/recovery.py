"""Taking over groups that run already: after a restart, or under a new spec.

A placement says where each pod runs, and at which level its VC had reserved the cell that it stands in. That is enough:
the physical cell of that level is the one reserved, every other cell follows. Records are taken in one fixed order,
whatever order they come in, so the same records give the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hived.errors import RequestError
from hived.spec.compiled import ClusterSpec

from .decisions import Placement, PodPlacement, Record
from .demands import check_form
from .groups import Group
from .names import Names
from .parts import Part
from .reasons import LostReservation, Suspended
from .requests import OPPORTUNISTIC, Request
from .state import State
from .states import GroupEvent, LeafEvent


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """What a new spec meant for the groups that ran."""

    kept: tuple[str, ...]  #: run as they did
    downgraded: tuple[tuple[str, str], ...]  #: were guaranteed, run on as opportunistic: name and why
    lost: tuple[tuple[str, tuple[str, ...]], ...]  #: have pods on nodes or devices that are no more: name, and nodes
    cancelled: tuple[str, ...]  #: had reserved, or were guests of whom nobody takes in any more, and wait again


class Located(NamedTuple):
    """Where the pods of a placement are in this cluster."""

    parts: tuple[Part, ...]  #: leaf cells, pod by pod; of several chains where the spec has torn a group apart
    pods: tuple[PodPlacement, ...]  #: the same by name, as far as the devices are left
    gone: tuple[str, ...]  #: names of the nodes on which devices are missing

    @property
    def chain(self) -> int:
        """Number of the first part's chain; 0 where there is nothing left."""
        return self.parts[0].chain if self.parts else 0


def located(names: Names, placement: Placement) -> Located:
    """Where a placement is; in the chain that it names, as far as its devices are there."""
    parts: list[Part] = []
    pods, gone = [], []
    for node, devices in placement.pods:
        there, left = names.parts(node, devices, placement.chain)
        parts += there
        if left:
            pods.append(PodPlacement(node, left))
        if len(left) < len(devices):
            gone.append(node)
    return Located(tuple(parts), tuple(pods), tuple(dict.fromkeys(gone)))


def recover(state: State, names: Names, records: Sequence[Record]) -> Reconfiguration:
    """Take over groups that run. Raises :class:`RequestError`, before anything has changed, for what cannot be true.

    Whatever the spec has become since they started, they run: what its VC's cells cannot stand under is opportunistic.
    The higher priority is taken first, guests last, then by name.
    """
    for position, record in enumerate(records):
        _check_form(position, record)
    ordered = sorted(records, key=lambda record: (-record.request.priority, record.request.guest, record.group))
    report = TakingOver(state)
    for record, at in zip(ordered, _places(state, names, ordered), strict=True):
        recorded = tuple(record.placement.reserved_levels)
        report.add(record, at, recorded, was_guaranteed=bool(recorded))
    return report.finished()


def reconfigured(old: State, spec: ClusterSpec) -> tuple[State, Reconfiguration]:
    """The state under ``spec``, and what that meant for each group. ``old`` stays as it is. O(cells + groups).

    Nothing dies for it (HiveD, OSDI'20, section 4: work-preserving). Guaranteed groups come first, the higher priority
    before the lower and who has run for longer before who has not; each keeps its guarantee if cells that its VC now
    reserves can stand under it, and safety survives that. Then those that had lost theirs have another chance.
    """
    new = State(spec, old.sharing, old.rank)
    new.version = old.version + 1  # what was planned before is out of date
    names = Names(new.chains)
    report = TakingOver(new)
    running = [group for group in old.by_age() if group.running]
    for group in sorted(running, key=lambda g: (not g.guaranteed, g.guest, -g.request.priority, g.sequence)):
        placement = group.origin or group.placement
        assert placement is not None
        at = located(names, placement)
        if not group.guest and any(new.chains[chain].used[node] & mask for chain, node, mask in at.parts):
            # two names for one device, and who came first has it
            at = Located((), (), tuple(dict.fromkeys((*at.gone, *(node for node, _ in at.pods)))))
        record = Record(group.name, group.request, placement)
        wanted = _same_types(old, new, group, at) or (0,) * len(at.parts)
        report.add(record, at, wanted, group.guaranteed, group)
    for waiting in sorted(old.waiting.values(), key=lambda w: w.sequence):
        new.wait(waiting.request, waiting.reasons, waiting.since)
    for group in old.by_age():
        if not group.running:
            new.wait(group.request, (LostReservation(None, None),), group.since)
            report.cancelled.append(group.name)
    new.jobs, new.joined, new.evicted = old.jobs, old.joined, old.evicted
    for nodes in old.chains:  # what was bad stays bad, by node and device
        for node in sorted(nodes.bad_nodes):
            for device in nodes.devices(node, nodes.bad[node]):
                for chain, number, mask in names.of(nodes.names[node], device):
                    new.set_bad(chain, number, new.chains[chain].bad[number] | mask)
    return new, report.finished()


def _same_types(old: State, new: State, group: Group, at: Located) -> tuple[int, ...]:
    """The levels that have now the types of the reserved cells that a group stood in; 0 for types that are no more."""
    assert group.placement is not None
    levels = {name: level for level, name in enumerate(new.chains[at.chain].chain.names)}
    had = old.chains[group.chain].chain.names
    return tuple([levels.get(had[level], 0) for level in group.placement.reserved_levels])


def _check_form(position: int, record: Record) -> None:
    """Raise :class:`RequestError` for what is no record."""
    name, request, placement, jobs = record
    where = f"records[{position}]"
    if not isinstance(request, Request) or not isinstance(placement, Placement):
        raise RequestError(where, "expected (group, request, placement)")
    check_form(request)
    if name != request.group:
        raise RequestError(where, f"its request is of group {request.group!r}, not {name!r}")
    if not isinstance(jobs, tuple) or not all(isinstance(job, str) and job for job in jobs):
        raise RequestError(where, f"jobs are names, not {jobs!r}")
    if not _is_placement(placement):
        raise RequestError(where, f"no placement: {placement!r}")
    devices = [(node, device) for node, of_pod in placement.pods for device in of_pod]
    if len({*devices}) < len(devices):
        raise RequestError(where, "a device is given twice")
    if all(member.cell_type is None for member in request.members):
        most = max(member.leaf_cells for member in request.members)
        if any(len(devices) > most for _, devices in placement.pods):
            raise RequestError(where, f"a pod has more devices than the {most} asked for")


def _is_placement(placement: Placement) -> bool:
    """Whether its fields are of the types that they are said to be."""
    try:
        numbers = [number for _, devices in placement.pods for number in devices] + [*placement.reserved_levels]
        named = all(isinstance(name, str) for name in (placement.chain, *(node for node, _ in placement.pods)))
        return named and all(type(n) is int for n in numbers) and all(len(devices) for _, devices in placement.pods)
    except (TypeError, ValueError):
        return False


def _places(state: State, names: Names, records: Sequence[Record]) -> list[Located]:
    """Where the groups of some records are. Raises :class:`RequestError` for what no cluster can have written.

    That is a group or a job twice, more pods than were asked for, and a device that another group uses: one of these,
    or one that runs already.
    """
    places: list[Located] = []
    taken: dict[tuple[int, int], list[tuple[int, str]]] = {}
    seen = {*state.groups, *state.joined}
    for name, request, placement, jobs in records:
        where, of_record = f"records[{name!r}]", {name, *jobs}
        if of_record & seen or len({*jobs}) < len(jobs):
            raise RequestError(where, "this group, or a job on it, runs already, or is given twice")
        seen |= of_record
        whole = request.whole_nodes  # a pod may have become several
        most = sum(member.pods * (max(1, member.leaf_cells) if whole else 1) for member in request.members)
        if len(placement.pods) > most or len(placement.reserved_levels) not in (0, len(placement.pods)):
            raise RequestError(where, f"{len(placement.pods)} pods are placed, and {most} were asked for")
        places.append(located(names, placement))
        for chain, node, mask in () if request.guest else places[-1].parts:
            nodes = state.chains[chain]
            users = [*taken.setdefault((chain, node), [])]
            if nodes.used[node] & mask:
                users += [(held, group.name) for group, held in nodes.held[node].items()]
            for held, by in users:
                if held & mask:
                    raise RequestError(where, f"a device of {nodes.names[node]} that it runs on is used by {by!r}")
            taken[chain, node].append((mask, name))
    return places


class TakingOver:
    """Groups are put where they run, one after the other; and what becomes of each."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: names of those that wait again
        self.cancelled: list[str] = []
        self._kept: list[str] = []
        self._downgraded: list[tuple[str, str]] = []
        self._lost: list[tuple[str, tuple[str, ...]]] = []

    def add(
        self, record: Record, at: Located, wanted: tuple[int, ...], was_guaranteed: bool, before: Group | None = None
    ) -> None:
        """Put a running group where it runs: guaranteed if its VC's cells can stand there, else opportunistic.

        ``wanted``: for each pod, at which level its VC has reserved the cell that it stands in; where that cannot be,
        all levels at which it has reserved any are tried. None: opportunistic. The caller has seen to it that nobody
        else has its leaves. One that would be a guest is one where others own its leaves, or as it was ``before``; it
        waits where these take no more in. O(tries * pods * levels).
        """
        state, request = self._state, record.request
        nodes = state.chains[at.chain]
        since, guest = (0.0, False) if before is None else (before.since, before.guest)
        if request.guest:
            guest = guest or any(state.chains[chain].used[node] & mask for chain, node, mask in at.parts)
        if guest and (nodes.guests is None or at.gone or not nodes.guests.admit(at.parts)):
            state.wait(request, (Suspended(sum(mask.bit_count() for _, _, mask in at.parts)),), since)
            self.cancelled.append(record.group)
            return
        group = Group(request, state.tenant(request.vc), since)
        group.guest = guest
        levels: list[tuple[int, ...]] = []
        if wanted and at.parts and not at.gone and request.priority > OPPORTUNISTIC:
            pools = state.pools[group.tenant]
            reserved = sorted({level for pool in pools if pool.nodes.number == at.chain for level in pool.levels})
            levels = [wanted] if all(level in reserved for level in wanted) else []
            levels += [(level,) * len(wanted) for level in reserved]
        state.sequence += 1
        group.sequence = state.sequence
        group.chain, group.parts = at.chain, at.parts
        group.origin = record.placement if at.gone else None
        stands: tuple[int, ...] = ()
        for of_pods in levels if len(group.chains) == 1 and len(at.parts) == len(at.pods) else ():
            found = state.readmitted(group.tenant, request, at.chain, at.parts, of_pods)
            if found is not None:
                group.pool, group.spots = found
                group.pool.take(group)
                stands = of_pods
                break
        group.placement = Placement(nodes.hierarchy.spec.name, at.pods, stands)
        if not stands and request.priority > OPPORTUNISTIC:
            group.priority = OPPORTUNISTIC
            state.displaced[group] = None
        if group.guest:
            state.guests_of(at.chain).add(group)
        else:
            if not stands:
                state.lend(group)
            for chain in state.chains_of(group):
                chain.claim(LeafEvent.ALLOCATE, group)
        group.level = nodes.common_level(at.parts)
        group.within = nodes.chain.names[group.level] if group.level else None
        state.happens(group, GroupEvent.BIND)
        state.waiting.pop(group.name, None)
        state.groups[group.name] = group
        state.set_jobs(group.name, record.jobs or state.jobs.get(group.name, ()))
        if at.gone or not at.parts:  # without parts and gone nodes: it had lost all before
            self._lost.append((group.name, at.gone))
        if was_guaranteed and not group.guaranteed:
            self._downgraded.append((group.name, self._why(group, at, levels)))
        elif at.parts and not at.gone:
            self._kept.append(group.name)

    def _why(self, group: Group, at: Located, levels: Sequence[tuple[int, ...]]) -> str:
        """Why it is guaranteed no longer."""
        vc = group.request.vc
        if all(vc != other.name for other in self._state.spec.virtual_clusters):
            return f"virtual cluster {vc} is no more"
        if at.gone:
            return f"some of its devices are no more (on {', '.join(at.gone)})"
        if not levels:
            return f"{vc} has no cells in chain {self._state.chains[at.chain].hierarchy.spec.name} any more"
        return f"the cells that {vc} has now cannot stand where it runs"

    def finished(self) -> Reconfiguration:
        """What became of all of them, sorted by name."""
        kept, cancelled = tuple(sorted(self._kept)), tuple(sorted(self.cancelled))
        return Reconfiguration(kept, tuple(sorted(self._downgraded)), tuple(sorted(self._lost)), cancelled)
