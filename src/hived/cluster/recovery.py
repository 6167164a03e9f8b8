"""Recovery of running groups: after a restart, or under a new spec.

A placement has the leaf cells of each pod, and the level of the pod's reserved cell. That is enough: the physical cell
of that level is the reserved one, and every other cell follows. Records are processed in one fixed order, whatever
order they are given in, so the same records give the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hived.errors import RequestError
from hived.spec.compiled import ClusterSpec

from .decisions import Placement, PodPlacement, Record
from .demands import check_form
from .explain.reasons import LostReservation, Suspended
from .groups import Group
from .node_index import NodeIndex
from .parts import Part
from .requests import OPPORTUNISTIC, Request
from .restoring import rearrange, restore
from .state import State
from .states import GroupEvent, LeafEvent


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """The effect of a new spec on the groups."""

    kept: tuple[str, ...]  #: run as before
    downgraded: tuple[tuple[str, str], ...]  #: were guaranteed, run on as opportunistic: name and why
    lost: tuple[tuple[str, tuple[str, ...]], ...]  #: have pods on removed nodes or devices: name, and nodes
    cancelled: tuple[str, ...]  #: requeued: preempting groups, and guests that are no longer accepted


class Located(NamedTuple):
    """The leaf cells of a placement in this cluster."""

    parts: tuple[Part, ...]  #: leaf cells, pod by pod; of several chains where the spec has split a group
    pods: tuple[PodPlacement, ...]  #: the same by name, without missing devices
    missing: tuple[str, ...]  #: names of the nodes with missing devices

    @property
    def chain(self) -> int:
        """Number of the first part's chain; 0 where no device is left."""
        return self.parts[0].chain if self.parts else 0


def located(index: NodeIndex, placement: Placement) -> Located:
    """Locate a placement: in its own chain as far as that has its devices, else in others."""
    parts: list[Part] = []
    pods, missing = [], []
    for node, devices in placement.pods:
        there, left = index.parts(node, devices, placement.chain)
        parts += there
        if left:
            pods.append(PodPlacement(node, left))
        if len(left) < len(devices):
            missing.append(node)
    return Located(tuple(parts), tuple(pods), tuple(dict.fromkeys(missing)))


def recover(state: State, index: NodeIndex, records: Sequence[Record]) -> Reconfiguration:
    """Take over running groups. Raises :class:`RequestError`, before anything has changed, for impossible records.

    A group runs on whatever the spec is now: if its VC's cells cannot be bound to its leaves, as opportunistic. Groups
    are processed by priority, the highest first, guests last, then by name; but those that do not find cells of the
    levels that they had come after all others, so that nobody loses cells to them.
    """
    for position, record in enumerate(records):
        _check_form(position, record)
    ordered = sorted(records, key=lambda record: (-record.request.priority, record.request.guest, record.group))
    recovery = Recovery(state)
    left = list(zip(ordered, _places(state, index, ordered), strict=True))
    for as_it_was in (True, False):
        now, left = left, []
        for record, at in now:
            recorded = tuple(record.placement.reserved_levels)
            if not recovery.add(record, at, recorded, bool(recorded), as_it_was=as_it_was):
                left.append((record, at))
    return recovery.report()


def reconfigured(old: State, spec: ClusterSpec) -> tuple[State, Reconfiguration]:
    """The state under ``spec``, and the effect on each group. ``old`` is unchanged. O(cells + groups).

    No group ends for it (HiveD, OSDI'20, section 4: work-preserving). Guaranteed groups are processed first, the higher
    priority before the lower and the older before the younger; those that do not find cells of the types that they had
    come after all others, so that nobody loses cells to them. Each stays guaranteed if cells that its VC now reserves
    can safely be bound to its leaves. Who was opportunistic before stays so, and is promoted at its turn; but what had
    made room for a group that has not started yet is guaranteed again where it can be, since reservations end. Groups
    that stay guaranteed take other cells of their VC, where they run, if that lets more of the others be promoted.
    """
    new = State(spec, old.sharing, old.rank, old.binding, old.ranks)
    new.spare_work(old.spares_work)
    new.now = old.now
    new.version = old.version + 1  # earlier decisions are out of date
    index = NodeIndex(new.chains)
    recovery = Recovery(new)
    running = [group for group in old.by_age() if group.running]
    ordered = sorted(running, key=lambda g: (not g.guaranteed, g.guest, -g.request.priority, g.sequence))
    later = [group for group in ordered if group.guaranteed and not _taken_over(recovery, old, index, group, True)]
    for group in later:
        _taken_over(recovery, old, index, group, False)
    recovery.keep_more()
    for group in ordered:
        if not group.guaranteed:
            _taken_over(recovery, old, index, group, False)
    rearrange(new)
    for waiting in sorted(old.waiting.values(), key=lambda w: w.sequence):
        new.wait(waiting.request, waiting.reasons, waiting.since)
    for group in old.by_age():
        if not group.running:
            new.wait(group.request, (LostReservation(None, None),), group.since)
            recovery.cancelled.append(group.name)
    new.evicted = old.evicted
    for nodes in old.chains:  # bad hardware stays bad, by names of nodes and devices
        for node in sorted(nodes.bad_nodes):
            for device in nodes.devices(node, nodes.bad[node]):
                for chain, number, mask in index.of(nodes.names[node], device):
                    new.set_bad(chain, number, new.chains[chain].bad[number] | mask)
    return new, recovery.report()


def _taken_over(recovery: Recovery, old: State, index: NodeIndex, group: Group, as_it_was: bool) -> bool:
    """Add a running group of the old state; see :meth:`Recovery.add`."""
    placement = group.origin or group.placement
    assert placement is not None
    assert group.placement is not None
    at, new = located(index, placement), recovery.state
    if not group.guest and any(new.chains[chain].used[node] & mask for chain, node, mask in at.parts):
        # the spec has two names for one device now, and the first group keeps it
        at = Located((), (), tuple(dict.fromkeys((*at.missing, *(node for node, _ in at.pods)))))
    record = Record(group.name, group.request, placement)
    preemptor, levels = group.downgraded_by, group.placement.reserved_levels
    if preemptor is not None and not preemptor.running:
        levels = group.former_levels
    wanted = _same_types(old, new, group, levels, at.chain)
    return recovery.add(record, at, wanted, group.guaranteed, group, as_it_was)


def _same_types(old: State, new: State, group: Group, reserved: Sequence[int], chain: int) -> tuple[int, ...]:
    """The present levels, in a chain, of the types that a group's reserved cells had; 0 for types that were removed."""
    levels = {name: level for level, name in enumerate(new.chains[chain].chain.names)}
    had = old.chains[group.chain].chain.names
    return tuple([levels.get(had[level], 0) for level in reserved])


def _check_form(position: int, record: Record) -> None:
    """Raise :class:`RequestError` for a malformed record."""
    name, request, placement, _ = record
    where = f"records[{position}]"
    if not isinstance(request, Request) or not isinstance(placement, Placement):
        raise RequestError(where, "expected (group, request, placement)")
    check_form(request)
    if name != request.group:
        raise RequestError(where, f"its request is of group {request.group!r}, not {name!r}")
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
    """Whether its fields are of the declared types."""
    try:
        numbers = [number for _, devices in placement.pods for number in devices] + [*placement.reserved_levels]
        named = all(isinstance(name, str) for name in (placement.chain, *(node for node, _ in placement.pods)))
        return named and all(type(n) is int for n in numbers) and all(len(devices) for _, devices in placement.pods)
    except (TypeError, ValueError):
        return False


def _places(state: State, index: NodeIndex, records: Sequence[Record]) -> list[Located]:
    """Locate the groups of some records. Raises :class:`RequestError` for records that no cluster can have written.

    Those repeat a group, have more pods than requested, or a device that another group uses: one of these
    records, or one that runs already.
    """
    places: list[Located] = []
    taken: dict[tuple[int, int], list[tuple[int, str]]] = {}
    seen = {*state.groups}
    for name, request, placement, _ in records:
        where = f"records[{name!r}]"
        if name in seen:
            raise RequestError(where, "this group runs already, or is given twice")
        seen.add(name)
        whole = request.whole_nodes  # a pod may have been split into several
        most = sum(member.pods * (max(1, member.leaf_cells) if whole else 1) for member in request.members)
        if len(placement.pods) > most or len(placement.reserved_levels) not in (0, len(placement.pods)):
            raise RequestError(where, f"{len(placement.pods)} pods are placed, and {most} were asked for")
        places.append(located(index, placement))
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


class Recovery:
    """A recovery in progress: adds running groups to a state one by one, and collects the report."""

    def __init__(self, state: State) -> None:
        self.state = state
        #: names of the requeued groups
        self.cancelled: list[str] = []
        self._kept: list[str] = []
        self._downgraded: list[tuple[str, str]] = []
        self._lost: list[tuple[str, tuple[str, ...]]] = []

    def add(
        self,
        record: Record,
        at: Located,
        wanted: tuple[int, ...],
        was_guaranteed: bool,
        before: Group | None = None,
        as_it_was: bool = False,
    ) -> bool:
        """Add a group where it runs: guaranteed if its VC's cells can be bound there, else opportunistic.

        ``wanted``: for each pod, the level of its reserved cell; where that fails, all levels at which its VC has
        reserved any are tried. Empty: opportunistic. ``as_it_was``: a guaranteed group is added in cells of these
        levels, or not at all: ``False`` then, and nothing has changed. The caller has made sure that no other group has
        its leaves. A guest is requeued where the groups there do not accept it. O(tries * pods * levels).
        """
        state, request = self.state, record.request
        nodes = state.chains[at.chain]
        since = record.since if before is None else before.since
        tenant, guest = state.tenant(request.vc), request.guest
        guests = state.guests_on[at.chain]
        if guest and (guests is None or at.missing or not guests.admit(tenant, at.parts)):
            state.wait(request, (Suspended(sum(mask.bit_count() for _, _, mask in at.parts)),), since)
            self.cancelled.append(record.group)
            return True
        group = Group(request, tenant, since)
        group.guest = guest
        levels: list[tuple[int, ...]] = []
        if wanted and at.parts and not at.missing and request.priority > OPPORTUNISTIC:
            pools = state.pools[group.tenant]
            reserved = sorted({level for pool in pools if pool.nodes.number == at.chain for level in pool.levels})
            levels = [wanted] if all(level in reserved for level in wanted) else []
            levels += [] if as_it_was else [(level,) * len(wanted) for level in reserved]
        group.sequence = state.sequence + 1
        group.chain, group.parts = at.chain, at.parts
        group.origin = record.placement if at.missing else None
        bound_at: tuple[int, ...] = ()
        for of_pods in levels if len(group.chains) == 1 and len(at.parts) == len(at.pods) else ():
            found = state.readmitted(group.tenant, request, at.chain, at.parts, of_pods)
            if found is not None:
                pool, group.spots = found
                group.pool = pool.number
                pool.allocate(group)
                bound_at = of_pods
                break
        if as_it_was and was_guaranteed and not bound_at:
            return False
        state.sequence = group.sequence
        group.placement = Placement(nodes.hierarchy.spec.name, at.pods, bound_at)
        if not bound_at and request.priority > OPPORTUNISTIC:
            group.priority = OPPORTUNISTIC
            state.downgraded[group] = None
        if group.guest:
            state.guests_of(at.chain).add(group)
        else:
            if not bound_at:
                state.lend(group)
            for chain in state.chains_of(group):
                chain.claim(LeafEvent.ALLOCATE, group)
            state.evict(group)
        group.level = nodes.common_level(at.parts)
        group.within = nodes.chain.names[group.level] if group.level else None
        state.transition(group, GroupEvent.BIND)
        state.waiting.pop(group.name, None)
        state.groups[group.name] = group
        if at.missing or not at.parts:  # without parts and missing nodes: it had lost all before
            self._lost.append((group.name, at.missing))
        if was_guaranteed and not group.guaranteed:
            self._downgraded.append((group.name, self._why(group, at, levels)))
        elif at.parts and not at.missing:
            self._kept.append(group.name)
        return True

    def keep_more(self) -> None:
        """Restore groups that others of the same pass have kept from their cells, where all can have cells."""
        restored = {group.name for group in restore(self.state)}
        self._downgraded = [(name, why) for name, why in self._downgraded if name not in restored]
        self._kept += restored

    def _why(self, group: Group, at: Located, levels: Sequence[tuple[int, ...]]) -> str:
        """The reason of a downgrade."""
        vc = group.request.vc
        if all(vc != other.name for other in self.state.spec.virtual_clusters):
            return f"virtual cluster {vc} is no more"
        if at.missing:
            return f"some of its devices are no more (on {', '.join(at.missing)})"
        if not levels:
            return f"{vc} has no cells in chain {self.state.chains[at.chain].hierarchy.spec.name} any more"
        return f"the cells that {vc} has now cannot stand where it runs"

    def report(self) -> Reconfiguration:
        """The effect on all groups, sorted by name."""
        kept, cancelled = tuple(sorted(self._kept)), tuple(sorted(self.cancelled))
        return Reconfiguration(kept, tuple(sorted(self._downgraded)), tuple(sorted(self._lost)), cancelled)
