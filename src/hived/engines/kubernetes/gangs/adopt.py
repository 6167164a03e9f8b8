"""Adopts bound pods, after a restart or when another client has bound them: running pods stay, and the core follows.

Annotations are checked against each other: pods of one gang must agree on a placement, and a device has one owner.
Devices that a pod with invalid or conflicting annotations may use are kept from jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hived.cluster.decisions import Placement, PodPlacement, Record
from hived.cluster.requests import Member
from hived.engine.states import JobEvent, JobState
from hived.engines.kubernetes.pods import keys, pod_request
from hived.engines.kubernetes.pods.bind_info import BindInfo, bind_info
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.pod_request import PodRequest, PodRequestError, named_devices, uses
from hived.errors import InvariantError, RequestError
from hived.scheduling import loan_of
from hived.spec.compiled import ClusterSpec, Device

from .gang import Gang, PodEntry
from .gang_table import GangTable


@dataclass(slots=True)
class Found:
    """A gang reconstructed from the annotations of its bound pods."""

    ask: PodRequest
    info: BindInfo
    placement: Placement  #: as annotated; later without slots whose devices another gang holds
    entries: dict[int, PodEntry] = field(default_factory=dict)  #: by their slots in ``placement``


@dataclass(frozen=True, slots=True)
class Unknown:
    """A bound pod that fits into no gang."""

    entry: PodEntry
    error: PodRequestError
    devices: tuple[int, ...] | None  #: devices that it may use; None: any of its node


#: a pod, its request, and the placement of its gang
_Report = tuple[PodEntry, PodRequest, BindInfo]


def gather(entries: Iterable[PodEntry], spec: ClusterSpec) -> tuple[list[Found], list[Unknown]]:
    """Gangs of bound pods, the earliest first. O(pods), and O(pods * versions) if pods of a gang disagree."""
    said: dict[str, list[_Report]] = {}
    unknown: list[Unknown] = []
    for entry in sorted(entries, key=lambda entry: (entry.pod.created_at, entry.key)):
        try:
            ask, info = _read(entry.pod, said)
        except PodRequestError as error:
            unknown.append(Unknown(entry, error, _devices(entry)))
        else:
            said.setdefault(ask.group, []).append((entry, ask, info))
    found = []
    for of in said.values():
        infos = [info for _, _, info in of]
        info = (_united(infos) if of[0][1].owner else None) or _majority(infos)
        ask = replace(of[0][1], members=info.members) if of[0][1].owner else of[0][1]
        one = Found(ask, info, info.placement(spec))
        wrong = _wrong(one)
        for entry, of_pod, said_info in of:
            if (problem := wrong or _add(one, entry, of_pod, said_info)) is not None:
                unknown.append(Unknown(entry, problem, _devices(entry)))
        if one.entries:
            found.append(one)
    return found, unknown


def _read(pod: Pod, said: dict[str, list[_Report]]) -> tuple[PodRequest, BindInfo]:
    """The request and bind info of a pod, if they agree with those of its group in ``said``."""
    info = bind_info(pod)
    if info is None:
        raise PodRequestError(
            "unplaced", f"it was bound to {pod.spec.node_name} by somebody else, and has no GPUs of HiveD"
        )
    if info.pod.node != pod.spec.node_name:
        raise PodRequestError("bind-info", f"it is on {pod.spec.node_name}, and its annotations say {info.pod.node}")
    ask = pod_request.read_request(pod, info.members)
    if (of := said.get(ask.group)) and (why := of[0][1].disagrees(ask)) is not None:
        raise PodRequestError("disagrees", f"its group {ask.group} has pods that ask for something else: {why}")
    return ask, info


def _united(infos: list[BindInfo]) -> BindInfo | None:
    """One placement of several groups of one pod; None: they are no such groups.

    A former version placed each pod alone whose owner defined one pod at a time.
    """
    pods = dict.fromkeys(info.pod for info in infos)
    devices = {(pod.node, device) for pod in pods for device in pod.leaf_cells}
    if len(infos) == 1 or any(len(info.pods) > 1 or info.chain != infos[0].chain for info in infos):
        return None
    if len(pods) < len(infos) or len(devices) < sum(len(pod.leaf_cells) for pod in pods):
        return None
    types = tuple(info.cell_types[0] for info in infos)
    return BindInfo(
        infos[0].pod, infos[0].chain, tuple(pods), types, tuple(Member(1, len(pod.leaf_cells)) for pod in pods)
    )


def _majority(infos: list[BindInfo]) -> BindInfo:
    """The version that places most of these pods where they are, then that of most pods, then the largest.

    A pod that is bound after a spec has taken devices away from its gang has a smaller version. After a change between
    guaranteed and opportunistic some pods may have stale annotations, so guaranteed wins if that is possible.
    """
    versions = {(info.pods, all(info.cell_types)): info for info in reversed(infos)}
    if len(versions) == 1:
        return infos[0]
    votes = Counter(info.pods for info in infos)

    def weight(info: BindInfo) -> tuple[int, int, int, bool]:
        places = set(info.pods)
        there = sum(one.pod in places for one in infos)
        return there, votes[info.pods], len(places), all(info.cell_types)

    return max(reversed(versions.values()), key=weight)


def _wrong(found: Found) -> PodRequestError | None:
    """Why the placement of a gang is impossible: the core would refuse it, and check all other records again."""
    pods, ask = found.info.pods, found.ask
    largest = max(member.leaf_cells for member in ask.members)
    most = max(len(pod.leaf_cells) for pod in pods)
    if len(pods) > ask.size:
        what = f"it places {len(pods)} pods, and its group {ask.group} has {ask.size}"
    elif most > largest:
        what = f"a pod has {most} devices, more than the {largest} asked for"
    elif len(set(found.placement.devices())) < found.placement.gpus:
        what = f"two pods of its group {ask.group} have the same device"
    else:
        return None
    return PodRequestError("bind-info", f"annotation {keys.BIND_INFO}: {what}")


def _add(of: Found, entry: PodEntry, ask: PodRequest, info: BindInfo) -> PodRequestError | None:
    """Add a pod to its slot of a gang, or return why it does not fit in."""
    if of.info.pods is not info.pods and info.pod not in of.info.pods:
        return PodRequestError("disagrees", f"pods of its group {ask.group} do not agree about where the group is")
    other = of.entries.setdefault(of.info.pods.index(info.pod), entry)
    what = f"{other.key} was bound to the same GPUs; delete one of the two"
    return None if other is entry else PodRequestError("conflict", what)


def _devices(entry: PodEntry) -> tuple[int, ...] | None:
    """Devices that a pod with invalid annotations may use: () none, None any of its node.

    The owner of a pod can change its annotations but not its resources: these give whether it has devices, and mostly
    how many.
    """
    some, number = uses(entry.pod)
    return named_devices(entry.pod, number) if some else ()


def take(table: GangTable, entries: Iterable[PodEntry], at: float) -> None:
    """Adopt new bound pods. O(pods, and what the core charges for as many groups)."""
    entries = list(entries)
    for entry in entries:
        table.forget_refusal(entry)
    freed = {node for entry in entries if (node := table.nodes.free(entry.uid)) is not None}
    found, unknown = gather(entries, table.cluster.spec)
    for one in found:
        if one.ask.counted:  # pods without GPUs among them, which may have ended by now
            one.ask = replace(one.ask, members=one.info.members)
    taken: dict[Device, str] = {}
    ready: list[Found] = []
    again: list[PodEntry] = []
    for one in found:
        gang = table.gangs.get(one.ask.group)
        if gang is not None and gang.holds and not gang.on_nodes and not _matches(gang, one):
            table.unplace(gang, at, "a pod of it was put elsewhere by somebody else")
        if gang is not None and gang.holds:
            unknown += _join_placed(table, gang, one, at)
            continue
        # its waiting pods join it again below; when the last one leaves, pods that were kept outside may join
        while (gang := table.gangs.get(one.ask.group)) is not None:
            for entry in list(gang.pods.values()):
                entry.needs_wake = entry.needs_wake or gang.asked
                again.append(entry)
                table.leave(entry, at)
        unknown += _without_conflicts(table, one, taken, at)
        if one.entries:
            ready.append(one)
            taken |= dict.fromkeys(one.placement.devices(), one.ask.group)
    unknown += _recover(table, ready, at)
    for pod in unknown:
        table.keep_devices(pod.entry, pod.error, pod.devices, at)
    for entry in again:
        table.join(entry, entry.members, at)
    table.nodes_applied(at)
    for node in freed:
        table.fill_slots(node, at)


def _matches(gang: Gang, found: Found) -> bool:
    """Whether the found pods are of this gang, in its planned placement."""
    assert gang.placement is not None
    return gang.placement.pods == found.info.pods and gang.ask.disagrees(found.ask) is None


def _join_placed(table: GangTable, gang: Gang, found: Found, at: float) -> list[Unknown]:
    """Add found pods to a gang that holds its GPUs already; pods outside its placement are unknown."""
    assert gang.placement is not None
    unknown = []
    for number, entry in found.entries.items():
        place = found.info.pods[number]
        slot = gang.placement.pods.index(place) if place in gang.placement.pods else -1
        why = gang.ask.disagrees(found.ask)
        if slot < 0 or why is not None:
            what = f"its group {gang.name} is elsewhere, or asks for something else ({why})"
            unknown.append(Unknown(entry, PodRequestError("conflict", what), place.leaf_cells))
            continue
        other = table.pods.get(gang.slots[slot] or "")
        if other is not None and other is not entry and other.holds:
            unknown.append(_conflict(entry, place, f"{other.key} has its GPUs"))
            continue
        if other is not None:
            other.slot = None
        _attach(gang, entry, found, place)
        gang.slots[slot], entry.slot = entry.uid, slot
        if other is not None and gang.state is JobState.RUNNING:
            table.give_slot(other, gang, at)
        table.mark_bound(entry, at)
    return unknown


def _conflict(entry: PodEntry, place: PodPlacement, holder: str) -> Unknown:
    """A pod that was bound to GPUs of another pod or gang."""
    error = PodRequestError("conflict", f"{holder} on {place.node}; delete one of the two")
    return Unknown(entry, error, place.leaf_cells)


def _attach(gang: Gang, entry: PodEntry, found: Found, place: PodPlacement) -> None:
    """Add a pod that is bound to ``place`` to ``gang``."""
    gang.pods[entry.uid] = entry
    entry.gang, entry.ask, entry.bound, entry.binding, entry.place = gang, found.ask, True, 0, place


def _without_conflicts(table: GangTable, found: Found, taken: dict[Device, str], at: float) -> list[Unknown]:
    """Remove the slots of ``found`` whose devices another gang holds; their pods are unknown."""
    placement = found.placement
    bad: dict[int, str] = {}
    for slot, pod in enumerate(placement.pods):
        for device in pod.leaf_cells:
            place = pod.node, device
            other = table.usage.at.get(place)
            if other is not None and not other.on_nodes:  # observed state overrides planned placements
                table.unplace(other, at, f"{found.ask.group} was put on its GPUs by somebody else")
            elif other is not None or place in taken:
                bad[slot] = other.name if other is not None else taken[place]
    wanted = set(placement.devices())
    for gang in table.reserved():
        if not wanted.isdisjoint(gang.devices()):
            table.withdraw(gang, at)
            table.line_up(gang)
    lost = [
        _conflict(entry, placement.pods[slot], f"group {name} has its GPUs")
        for slot, name in bad.items()
        if (entry := found.entries.get(slot)) is not None
    ]
    kept = [slot for slot in range(len(placement.pods)) if slot not in bad]
    guaranteed = placement.guaranteed and found.ask.priority >= 0
    levels = tuple(placement.reserved_levels[slot] for slot in kept) if guaranteed else ()
    found.placement = Placement(placement.chain, tuple(placement.pods[slot] for slot in kept), levels)
    found.entries = {number: found.entries[slot] for number, slot in enumerate(kept) if slot in found.entries}
    return lost


def _recover(table: GangTable, ready: list[Found], at: float) -> list[Unknown]:
    """Recover all gangs in the core at once; pods of gangs that the core refuses are unknown."""
    unknown = []
    records = [_record(one) for one in ready]
    while records:
        try:
            table.cluster.recover(records)
        except RequestError as error:
            number = _blamed(error, records)
            one = ready.pop(number)
            del records[number]
            refused = PodRequestError("unrecoverable", error.message)
            places = one.placement.pods
            unknown += [Unknown(entry, refused, places[slot].leaf_cells) for slot, entry in one.entries.items()]
        else:
            break
    for one in ready:
        _register(table, one, at)
    return unknown


def _record(found: Found) -> Record:
    request = found.ask.request()
    loan = found.ask.early and not found.placement.guaranteed
    since = min([entry.pod.bound_at for entry in found.entries.values()], default=0.0)
    return Record(found.ask.group, loan_of(request) if loan else request, found.placement, since)


def _blamed(error: RequestError, records: Sequence[Record]) -> int:
    """Index of the record that an error is about."""
    for number, (name, *_) in enumerate(records):
        if error.field in (f"records[{name!r}]", f"records[{number}]"):
            return number
    raise InvariantError(f"what could not be recovered has no name: {error}") from error


def _register(table: GangTable, found: Found, at: float) -> None:
    """Add a running gang to the table."""
    first = min(found.entries.values(), key=lambda entry: (entry.pod.created_at, entry.key))
    pod = first.pod
    gang = table.new_gang(found.ask, pod.created_at, at, pod_request.family(pod, found.ask.group), pod.user)
    gang.asked = True
    core = table.cluster.group(gang.name).placement
    assert core is not None
    for slot, entry in found.entries.items():
        _attach(gang, entry, found, found.placement.pods[slot])
    since = min((entry.pod.bound_at for entry in gang.pods.values()), default=at)
    table.becomes(gang, JobEvent.STARTED, core, min(at, since or at), {"adopted": True})
    table.scheduler.adopt(gang.entry, core.guaranteed, at)
    gang.waited_since = None
    if gang.name in table.to_bind:
        table.to_bind[gang.name] = at
    gang.widest = found.placement.gpus
    gang.keep_places([(entry.place, entry.uid) for entry in gang.pods.values()], core)
    if core.pods == found.info.pods and core != found.info.placement(table.cluster.spec):
        table.annotate(gang)
