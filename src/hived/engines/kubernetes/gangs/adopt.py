"""Taking bound pods in: who runs, runs, and the core learns where. Nobody is given what they may be using."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hived.cluster.decisions import Placement, PodPlacement, Record
from hived.engines.kubernetes.pods.untrusted import PodRequestError
from hived.errors import InvariantError, RequestError
from hived.scheduling import loan_of
from hived.spec.compiled import Device

from .actions import Tell
from .claims import Found, Unknown, gather, without
from .gang import Gang, GangEvent, GangState, PodEntry
from .gang_table import GangTable


def take(table: GangTable, entries: Iterable[PodEntry], at: float) -> None:
    """``entries`` are bound, and new. O(their pods, and what the core charges for as many groups)."""
    entries = list(entries)
    for entry in entries:
        table.forget_refusal(entry)
    freed = {node for entry in entries if (node := table.nodes.free(entry.uid)) is not None}
    found, unknown = gather(entries)
    taken: dict[Device, str] = {}
    ready: list[tuple[Found, Placement, list[PodEntry | None]]] = []
    again: list[PodEntry] = []
    for one in found:
        gang = table.gangs.get(one.ask.group)
        if gang is not None and gang.holds and not gang.on_nodes and not _is_there(gang, one):
            table.unplace(gang, at, "a pod of it was put elsewhere by somebody else")
        if gang is not None and gang.holds:
            unknown += _into(table, gang, one, at)
            continue
        # others of it wait, and find it again below; the last to leave may let in who was kept outside of it
        while (gang := table.gangs.get(one.ask.group)) is not None:
            for entry in list(gang.pods.values()):
                entry.waited = entry.waited or gang.asked
                again.append(entry)
                table.leave(entry, at)
        placement, kept, lost = _without_conflicts(table, one, taken, at)
        unknown += lost
        if any(kept):
            ready.append((one, placement, kept))
            taken |= dict.fromkeys(placement.devices(), one.ask.group)
    unknown += _recover(table, ready, at)
    for person in unknown:
        _hold(table, person, at)
    for entry in again:
        table.join(entry, entry.members, at)
    table.nodes_applied(at)
    for node in freed:
        table.fill_slots(node, at)


def _is_there(gang: Gang, found: Found) -> bool:
    """Whether the pods that were found are of this gang, where it is meant to be."""
    assert gang.placement is not None
    return gang.placement.pods == found.info.pods and gang.ask.disagrees(found.ask) is None


def _into(table: GangTable, gang: Gang, found: Found, at: float) -> list[Unknown]:
    """Pods of a gang that has its GPUs already; those that are not where it is are unknown."""
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
        _put_in(gang, entry, found, place)
        gang.slots[slot], entry.slot = entry.uid, slot
        if other is not None and gang.state is GangState.PLACED:
            table.give_slot(other, gang, at)
        table.is_on_its_node(entry, at)
    return unknown


def _conflict(entry: PodEntry, place: PodPlacement, who: str) -> Unknown:
    """A pod that was bound to GPUs of somebody else."""
    error = PodRequestError("conflict", f"{who} on {place.node}; delete one of the two")
    return Unknown(entry, error, place.leaf_cells)


def _put_in(gang: Gang, entry: PodEntry, found: Found, place: PodPlacement) -> None:
    """A bound pod belongs to ``gang``, and is on ``place``."""
    gang.pods[entry.uid] = entry
    entry.gang, entry.ask, entry.bound, entry.binding, entry.place = gang, found.ask, True, False, place


def _without_conflicts(
    table: GangTable, found: Found, taken: dict[Device, str], at: float
) -> tuple[Placement, list[PodEntry | None], list[Unknown]]:
    """The placement, without pods whose devices somebody else has; who is on each place; and who is left out."""
    placement = found.info.placement(table.cluster.spec)
    if found.ask.priority < 0:
        placement = Placement(placement.chain, placement.pods)
    bad: dict[int, str] = {}
    for slot, pod in enumerate(placement.pods):
        for device in pod.leaf_cells:
            place = pod.node, device
            other = table.usage.at.get(place)
            if other is not None and not other.on_nodes:  # what is true wins over what was meant
                table.unplace(other, at, f"{found.ask.group} was put on its GPUs by somebody else")
            elif other is not None or place in taken:
                bad[slot] = other.name if other is not None else taken[place]
    wanted = set(placement.devices())
    for gang in table.reserved():
        if gang.placement is not None and not wanted.isdisjoint(gang.placement.devices()):
            table.withdraw(gang, at)
            table.line_up(gang)
    lost = [
        _conflict(entry, placement.pods[slot], f"group {name} has its GPUs")
        for slot, name in bad.items()
        if (entry := found.entries.get(slot)) is not None
    ]
    kept = [found.entries.get(slot) for slot in range(len(placement.pods)) if slot not in bad]
    return without(placement, set(bad)), kept, lost


def _recover(table: GangTable, ready: list[tuple[Found, Placement, list[PodEntry | None]]], at: float) -> list[Unknown]:
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
            table.cluster.recover(records)
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
        _founded(table, one, placement, kept, at)
    return unknown


def _blamed(error: RequestError, records: Sequence[Record]) -> int:
    """Which record an error is about."""
    for number, (name, *_) in enumerate(records):
        if error.field in (f"records[{name!r}]", f"records[{number}]"):
            return number
    raise InvariantError(f"what could not be recovered has no name: {error}") from error


def _founded(table: GangTable, found: Found, placement: Placement, kept: list[PodEntry | None], at: float) -> None:
    """A gang that runs is known from now on."""
    first = min((entry for entry in kept if entry is not None), key=lambda entry: (entry.pod.created_at, entry.key))
    gang = table.new_gang(found.ask, first.pod.created_at, at)
    gang.asked = True
    core = table.cluster.group(gang.name).placement
    assert core is not None
    for place, entry in zip(placement.pods, kept, strict=True):
        if entry is not None:
            _put_in(gang, entry, found, place)
    since = min((entry.pod.bound_at for entry in gang.pods.values()), default=at)
    table.becomes(gang, GangEvent.PLACED, core, min(at, since or at), {"adopted": True})
    table.scheduler.runs(gang.entry, core.guaranteed)
    gang.waited_since = None
    if gang.name in table.to_bind:
        table.to_bind[gang.name] = at
    gang.widest = placement.gpus
    gang.keep_places([(entry.place, entry.uid) for entry in gang.pods.values()], core)
    if core.pods == found.info.pods and core != found.info.placement(table.cluster.spec):
        table.annotate(gang)


def _hold(table: GangTable, unknown: Unknown, at: float) -> None:
    """Nobody gets what a pod may be using that is no gang's."""
    entry, error = unknown.entry, unknown.error
    entry.refused, entry.bound, entry.binding = error, True, False
    table.refused[entry.uid] = entry
    if unknown.devices != ():
        table.conflicts[entry.uid] = str(error)
        why = f"pod {entry.key} may be using it: {error}"
        node = entry.pod.spec.node_name or ""
        table.nodes.hold(entry.uid, node, unknown.devices, why)
        table.foreign.touched(node)
        table.nodes_applied(at)
        table.yield_slots(node, at)
    table.instruct(Tell(entry.uid, entry.key, "HivedConflict", str(error), True))
