"""GPUs that are not for jobs: those of foreign pods, which HiveD did not place, and those that nodes do not advertise.

Which GPUs of its node such a pod has is mostly unknown (a device plugin picks them), so as many as it requests are kept
from jobs until it ends: the devices that its annotations name, else unused ones, the cheapest first; all of its node if
its number is unknown. If fewer are left than it requests, gangs share GPUs with it, which is reported as a conflict:
for the missing number, GPUs in use are given to no other job, so that no job waits for their current user to end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import nsmallest

from hived.cluster.states import LeafState
from hived.engines.kubernetes.pods.objects import Pod
from hived.words import counted

from .foreign import ForeignPod, of
from .gang import RecordEvent
from .gang_table import GangTable
from .nodes import lack_of

#: cost of keeping a device that the annotation of its node marks: no gang holds it, and hardly the foreign pod
_MARKED = 4


def take(table: GangTable, pods: Iterable[Pod], at: float) -> None:
    """Add or update the foreign ones of ``pods``. O(pods + what is on the nodes of the foreign ones)."""
    for pod in sorted(pods, key=lambda pod: (pod.created_at, pod.key)):
        now, before = of(pod), table.foreign.pods.get(pod.metadata.uid)
        if before is not None and (now is None or (now.gpus, now.named) != (before.gpus, before.named)):
            removed(table, before.uid, at)
            before = None
        if now is None:
            continue
        if before is not None:
            before.version = now.version
            continue
        table.foreign.add(now)
        refresh(table, at)
        if now.node in table.nodes.devices and not now.short:
            table.instruct(RecordEvent(now.uid, now.key, "HivedForeign", now.situation))


def removed(table: GangTable, uid: str, at: float) -> None:
    """Remove a pod that has ended, or is not foreign any more."""
    pod = table.foreign.remove(uid)
    if pod is not None:
        table.conflicts.pop(uid, None)
        table.nodes.free(uid)
        table.nodes_applied(at)
        table.fill_slots(pod.node, at)
        refresh(table, at)


def refresh(table: GangTable, at: float) -> None:
    """Choose kept devices again on dirty nodes. O(devices of those nodes, and pods of the gangs there)."""
    table.foreign.dirty |= table.nodes.recount
    table.nodes.recount.clear()
    while table.foreign.dirty:
        nodes, table.foreign.dirty = sorted(table.foreign.dirty), set()
        for node in nodes:
            if node in table.foreign.on:
                _assign_devices(table, node, at)
            _assign_missing(table, node, at)


def foreign_pods(table: GangTable) -> list[ForeignPod]:
    """Foreign pods on nodes of the spec, the earliest first. O(foreign pods)."""
    return [pod for pod in table.foreign.pods.values() if pod.node in table.nodes.devices]


def kept_for_others(table: GangTable) -> int:
    """Number of GPUs that are kept for foreign pods on healthy nodes. O(foreign pods)."""
    healthy, users = table.nodes.healthy, table.usage.at
    here = (pod for pod in table.foreign.pods.values() if pod.node in healthy)
    return len({(pod.node, device) for pod in here for device in pod.kept} - users.keys())


def _assign_devices(table: GangTable, node: str, at: float) -> None:
    """Choose the devices kept for each foreign pod on ``node``: the named ones, else those kept before, then more."""
    pods = list(table.foreign.on.get(node, {}).values())
    there = table.nodes.devices.get(node, ())
    used = table.used_on(node)
    left, busy = _ranks(table, node, used), _in_use(table, node, used)
    sizes = table.nodes.cells.get(node, ())
    kept: dict[str, list[int]] = {}
    shared: dict[str, list[int]] = {}
    for pod in sorted(pods, key=lambda pod: pod.named is None):
        had = pod.kept if pod.guessed else there if pod.named is None else pod.named
        kept[pod.uid] = [device for device in had if device in (left if pod.guessed else there)]
        for device in kept[pod.uid]:
            left.pop(device, None)
            busy.pop(device, None)
    for pod in pods:  # first free devices, then those shared before, so that reservations elsewhere stay undisturbed
        lacks = (pod.gpus or 0) - len(kept[pod.uid]) if pod.guessed else 0
        free = _choose(there, sizes, left, min(lacks, list(left.values()).count(0)))
        if pod.shared:  # nobody else can have a marked one: better than to share
            free += _choose(there, sizes, {d: cost for d, cost in left.items() if cost == _MARKED}, lacks - len(free))
        for device in free:
            left.pop(device, None)
        kept[pod.uid] += free
        shared[pod.uid] = [device for device in pod.shared if device in busy][: max(0, lacks - len(free))]
        for device in shared[pod.uid]:
            del busy[device]
    for pod in pods:
        lacks = (pod.gpus or 0) - len(kept[pod.uid]) - len(shared[pod.uid]) if pod.guessed else 0
        more = _choose(there, sizes, left, lacks)
        kept[pod.uid] += more
        for device in nsmallest(lacks - len(more), busy, key=lambda device: (busy[device], device)):
            shared[pod.uid].append(device)
            del busy[device]
        _keep(table, pod, tuple(sorted(kept[pod.uid])), tuple(sorted(shared[pod.uid])), used)
    table.nodes_applied(at)
    table.yield_slots(node, at)
    table.fill_slots(node, at)


def _assign_missing(table: GangTable, node: str, at: float) -> None:
    """Choose the devices that ``node`` does not advertise: which ones is not known, so unused ones, and few changes.

    Devices in use come last: they are given to no other job.
    """
    holder = lack_of(node)
    number, why = table.nodes.lacking(node)
    if not number and node not in table.foreign.lacking:
        return
    before, used = table.nodes.held(holder) or (), table.used_on(node)
    others = table.nodes.held_by_others(node, (holder,))
    left = {device: cost for device, cost in _ranks(table, node, used).items() if cost != _MARKED}
    left |= {device: 0 for device in before if device not in used}
    left = {device: cost for device, cost in left.items() if device not in others}
    chosen = [device for device in before if device in left][:number]
    for device in chosen:
        del left[device]
    chosen += _choose(table.nodes.devices[node], table.nodes.cells.get(node, ()), left, number - len(chosen))
    busy = sorted(used - others, reverse=True)
    chosen += busy[: number - len(chosen)]
    (table.foreign.lacking.add if number else table.foreign.lacking.discard)(node)
    if tuple(sorted(chosen)) != before:
        if chosen:
            table.nodes.hold(holder, node, tuple(sorted(chosen)), why)
        else:
            table.nodes.free(holder)
        table.nodes_applied(at)
        table.yield_slots(node, at)
        table.fill_slots(node, at)


def _keep(table: GangTable, pod: ForeignPod, kept: tuple[int, ...], shared: tuple[int, ...], used: set[int]) -> None:
    """Keep ``kept`` and ``shared`` for ``pod``; a shortage is a conflict."""
    if (kept, shared) != (pod.kept, pod.shared):
        pod.kept, pod.shared = kept, shared
        if kept or shared:
            table.nodes.hold(pod.uid, pod.node, kept + shared, str(pod))
        else:
            table.nodes.free(pod.uid)
    short = max(0, (pod.gpus or 0) - len(kept)) if pod.guessed else len(used.intersection(kept))
    pod.short = short if pod.node in table.nodes.devices else 0
    before = table.conflicts.get(pod.uid)
    if not pod.short:
        table.conflicts.pop(pod.uid, None)
        return
    gangs = [gang.name for gang in table.gangs_on(pod.node) if gang.on_nodes]
    names = ", ".join(gangs[:3]) + (f" and {len(gangs) - 3} more groups" if len(gangs) > 3 else "")
    number = "GPUs" if pod.gpus is None else counted(pod.gpus, "GPU")
    others = f"in use by {names}" if names else "not there: the spec has fewer, or other such pods have them"
    text = f"it asks for {number} of {pod.node}, and {pod.short} of them are {others}; HiveD did not place it"
    table.conflicts[pod.uid] = text
    if before is None:
        table.instruct(RecordEvent(pod.uid, pod.key, "HivedConflict", text, True))


def _ranks(table: GangTable, node: str, used: set[int]) -> dict[int, int]:
    """Cost of keeping each device of ``node`` that no pod is known to use; 0: free."""
    named = table.nodes.held_by_others(node, table.foreign.pods)
    marked = table.nodes.marked(node)
    found = {}
    for device in table.nodes.devices.get(node, ()):
        gang = table.usage.at.get((node, device))
        if device in used or device in named:
            continue
        if device in marked:
            found[device] = _MARKED
        elif gang is not None:
            found[device] = 3 if gang.on_nodes else 2
        else:
            found[device] = int(table.cluster.leaf_state(node, device) is LeafState.RESERVED)
    return found


def _in_use(table: GangTable, node: str, used: set[int]) -> dict[int, tuple[bool, bool]]:
    """Sort key of each device of ``node`` that only pods of gangs use: the least is shared first.

    Reserved devices come last, since the preemptor would need other ones; devices on loan come first.
    """
    named = table.nodes.held_by_others(node, table.foreign.pods)
    users = {device: table.usage.at[node, device] for device in used - named}
    reserved = {device for device in used if table.cluster.leaf_state(node, device) is LeafState.RESERVING}
    return {device: (device in reserved, gang.guaranteed) for device, gang in users.items()}


def _choose(there: Sequence[int], sizes: Sequence[int], left: dict[int, int], number: int) -> list[int]:
    """Move ``number`` devices out of ``left``: the cheapest first, then those in cells that are split already.

    ``sizes``: devices per cell inside the node, from small to large. O(number * devices * levels).
    """
    position = {device: index for index, device in enumerate(there)}
    chosen: list[int] = []
    while left and len(chosen) < number:
        rooms = [Counter(position[device] // size for device in left) for size in sizes]

        def cost(device: int, rooms: Sequence[Counter[int]] = rooms) -> tuple[int, ...]:
            at = position[device]
            return left[device], *(room[at // size] for room, size in zip(rooms, sizes, strict=True)), -at

        best = min(left, key=cost)
        chosen.append(best)
        del left[best]
    return chosen
