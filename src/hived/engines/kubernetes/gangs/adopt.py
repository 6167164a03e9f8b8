"""Taking bound pods in: who runs, runs, and the core learns where. Nobody is given what they may be using."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hived.cluster.decisions import Placement, Record
from hived.engines.kubernetes.pods.untrusted import PodRequestError
from hived.errors import InvariantError, RequestError
from hived.scheduling import loan_of
from hived.spec.compiled import Device

from .actions import Tell
from .claims import Found, Unknown, gather, without
from .gang import Gang, GangEvent, GangState, PodEntry
from .gang_table import GangTable
from .pod_order import bound_at, created_at, standing_slots


def take(gang_scheduler: GangTable, entries: Iterable[PodEntry], at: float) -> None:
    """``entries`` are bound, and new. O(their pods, and what the core charges for as many groups)."""
    entries = list(entries)
    freed = {node for entry in entries if (node := _forget(gang_scheduler, entry)) is not None}
    found, unknown = gather(entries)
    taken: dict[Device, str] = {}
    ready: list[tuple[Found, Placement, list[PodEntry | None]]] = []
    again: list[PodEntry] = []
    for one in found:
        gang = gang_scheduler.gangs.get(one.ask.group)
        if gang is not None and gang.holds and not gang.on_nodes and not _is_there(gang, one):
            gang_scheduler.unplace(gang, at, "a pod of it was put elsewhere by somebody else")
        if gang is not None and gang.holds:
            unknown += _into(gang_scheduler, gang, one, at)
            continue
        # others of it wait, and find it again below; the last to leave may let in who was kept outside of it
        while (gang := gang_scheduler.gangs.get(one.ask.group)) is not None:
            for entry in list(gang.pods.values()):
                entry.waited = entry.waited or gang.asked
                again.append(entry)
                gang_scheduler.leave(entry, at)
        placement, kept, lost = _without_conflicts(gang_scheduler, one, taken, at)
        unknown += lost
        if any(kept):
            ready.append((one, placement, kept))
            taken |= dict.fromkeys(placement.devices(), one.ask.group)
    unknown += _recover(gang_scheduler, ready, at)
    for person in unknown:
        _hold(gang_scheduler, person, at)
    for entry in again:
        gang_scheduler.join(entry, entry.members, at)
    gang_scheduler.nodes_applied(at)
    for node in freed:
        gang_scheduler.fill_slots(node, at)


def _forget(gang_scheduler: GangTable, entry: PodEntry) -> str | None:
    """Why it was refused before does not matter any more; the node where something is free for that."""
    entry.refused = None
    for index in (gang_scheduler.refused, gang_scheduler.conflicts, gang_scheduler.outside):
        index.pop(entry.uid, None)
    return gang_scheduler.nodes.free(entry.uid)


def _is_there(gang: Gang, found: Found) -> bool:
    """Whether the pods that were found are of this gang, where it is meant to be."""
    assert gang.placement is not None
    return gang.placement.pods == found.info.pods and gang.ask.disagrees(found.ask) is None


def _into(gang_scheduler: GangTable, gang: Gang, found: Found, at: float) -> list[Unknown]:
    """Pods of a gang that has its GPUs already; those that are not where it is are unknown."""
    assert gang.placement is not None
    unknown = []
    for number, entry in found.entries.items():
        place = found.info.pods[number]
        slot = gang.placement.pods.index(place) if place in gang.placement.pods else -1
        why = gang.ask.disagrees(found.ask)
        if slot < 0 or why is not None:
            error = PodRequestError(
                "conflict", f"its group {gang.name} is elsewhere, or asks for something else ({why})"
            )
            unknown.append(Unknown(entry, error, place.leaf_cells))
            continue
        other = gang_scheduler.pods.get(gang.slots[slot] or "")
        if other is not None and other is not entry and other.holds:
            error = PodRequestError("conflict", f"{other.key} has its GPUs on {place.node}; delete one of the two")
            unknown.append(Unknown(entry, error, place.leaf_cells))
            continue
        if other is not None:
            other.slot = None
        gang.pods[entry.uid] = entry
        gang.slots[slot] = entry.uid
        entry.gang, entry.slot, entry.ask, entry.bound, entry.binding = gang, slot, found.ask, True, False
        entry.place = place
        if other is not None and gang.state is GangState.PLACED:
            gang_scheduler.give_slot(other, gang, at)
        gang_scheduler.is_on_its_node(entry, at)
    return unknown


def _without_conflicts(
    gang_scheduler: GangTable, found: Found, taken: dict[Device, str], at: float
) -> tuple[Placement, list[PodEntry | None], list[Unknown]]:
    """The placement, without pods whose devices somebody else has; who is on each place; and who is left out."""
    placement = found.info.placement(gang_scheduler.cluster.spec)
    if found.ask.priority < 0:
        placement = Placement(placement.chain, placement.pods)
    bad: dict[int, str] = {}
    for slot, pod in enumerate(placement.pods):
        for device in pod.leaf_cells:
            place = pod.node, device
            other = gang_scheduler.usage.at.get(place)
            if other is not None and not other.on_nodes:  # what is true wins over what was meant
                gang_scheduler.unplace(other, at, f"{found.ask.group} was put on its GPUs by somebody else")
            elif other is not None or place in taken:
                bad[slot] = other.name if other is not None else taken[place]
    wanted = set(placement.devices())
    for gang in gang_scheduler.reserved():
        if gang.placement is not None and not wanted.isdisjoint(gang.placement.devices()):
            gang_scheduler.withdraw(gang, at)
            gang_scheduler.line_up(gang)
    lost = []
    for slot, name in bad.items():
        entry = found.entries.get(slot)
        if entry is not None:
            pod = placement.pods[slot]
            error = PodRequestError("conflict", f"group {name} has its GPUs on {pod.node}; delete one of the two")
            lost.append(Unknown(entry, error, pod.leaf_cells))
    kept = [found.entries.get(slot) for slot in range(len(placement.pods)) if slot not in bad]
    return without(placement, set(bad)), kept, lost


def _recover(
    gang_scheduler: GangTable, ready: list[tuple[Found, Placement, list[PodEntry | None]]], at: float
) -> list[Unknown]:
    """The core takes all of them at once; those that it cannot have are unknown."""
    unknown = []
    records: list[Record] = []
    for one, placement, _ in ready:
        request = one.ask.request()
        if one.ask.early and not placement.guaranteed:
            request = loan_of(request)
        records.append(Record(one.ask.group, request, placement))
    while records:
        try:
            gang_scheduler.cluster.recover(records)
        except RequestError as error:
            number = _blamed(error, records)
            one, placement, kept = ready.pop(number)
            del records[number]
            for pod, entry in zip(placement.pods, kept, strict=True):
                if entry is not None:
                    unknown.append(Unknown(entry, PodRequestError("unrecoverable", error.message), pod.leaf_cells))
        else:
            break
    for one, placement, kept in ready:
        _founded(gang_scheduler, one, placement, kept, at)
    return unknown


def _blamed(error: RequestError, records: Sequence[Record]) -> int:
    """Which record an error is about."""
    for number, (name, *_) in enumerate(records):
        if error.field in (f"records[{name!r}]", f"records[{number}]"):
            return number
    raise InvariantError(f"what could not be recovered has no name: {error}") from error


def _founded(
    gang_scheduler: GangTable, found: Found, placement: Placement, kept: list[PodEntry | None], at: float
) -> None:
    """A gang that runs is known from now on."""
    first = min((entry for entry in kept if entry is not None), key=lambda entry: (created_at(entry.pod), entry.key))
    gang = gang_scheduler.new_gang(found.ask, created_at(first.pod), at)
    gang.asked = True
    core = gang_scheduler.cluster.group(gang.name).placement
    assert core is not None
    for place, entry in zip(placement.pods, kept, strict=True):
        if entry is not None:
            entry.gang, entry.ask, entry.bound, entry.binding, entry.place = gang, found.ask, True, False, place
            gang.pods[entry.uid] = entry
    since = min((bound_at(entry.pod) for entry in gang.pods.values()), default=at)
    gang_scheduler.becomes(gang, GangEvent.PLACED, core, min(at, since or at), {"adopted": True})
    gang_scheduler.scheduler.runs(gang.entry, core.guaranteed)
    gang.waited_since = None
    if gang.name in gang_scheduler.to_bind:
        gang_scheduler.to_bind[gang.name] = at
    gang.widest = placement.gpus
    uids = [None if entry is None else entry.uid for entry in kept]
    gang.slots = standing_slots(zip(placement.pods, uids, strict=True), core)
    places = {uid: slot for slot, uid in enumerate(gang.slots)}
    for entry in gang.pods.values():
        entry.slot = places.get(entry.uid)
    if core.pods == found.info.pods and core != found.info.placement(gang_scheduler.cluster.spec):
        gang_scheduler.annotate(gang)


def _hold(gang_scheduler: GangTable, unknown: Unknown, at: float) -> None:
    """Nobody gets what a pod may be using that is no gang's."""
    entry, error = unknown.entry, unknown.error
    entry.refused, entry.bound, entry.binding = error, True, False
    gang_scheduler.refused[entry.uid] = entry
    if unknown.devices != ():
        gang_scheduler.conflicts[entry.uid] = str(error)
        why = f"pod {entry.key} may be using it: {error}"
        node = entry.pod.spec.node_name or ""
        gang_scheduler.nodes.hold(entry.uid, node, unknown.devices, why)
        gang_scheduler.foreign.touched(node)
        gang_scheduler.nodes_applied(at)
        gang_scheduler.yield_slots(node, at)
    gang_scheduler.instruct(Tell(entry.uid, entry.key, "HivedConflict", str(error), True))
