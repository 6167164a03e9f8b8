"""Pods with GPUs that HiveD does not decide about: what they may be using is nobody's until they are gone.

Which GPUs of its node such a pod has is mostly unknown (a device plugin picks them), so as many as it asks for are kept
from jobs: those that it names, else some that no pod is known to be on, those first that cost least; all of its node
where it does not say how many. Where fewer are left than it asks for, somebody shares GPUs with it, and that is told:
for what it lacks, GPUs in use are given to no other job, so that nobody waits for their user to go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import TYPE_CHECKING

from hived.cluster.decisions import Placement
from hived.cluster.states import LeafState
from hived.engines.kubernetes.pods import pod_request as asking
from hived.engines.kubernetes.pods.objects import Pod
from hived.engines.kubernetes.pods.pod_request import named_devices, uses
from hived.words import counted

from .gang import Tell

if TYPE_CHECKING:
    from .gang_table import GangTable


@dataclass(slots=True)
class ForeignPod:
    """A bound pod of which HiveD knows only what it asks for."""

    uid: str
    key: str  #: ``namespace/name``
    version: str  #: resourceVersion
    node: str
    gpus: int | None  #: that it asks for; None: it does not say how many
    named: tuple[int, ...] | None  #: the devices that it has, where its annotations say so
    kept: tuple[int, ...] = ()  #: devices that are kept from jobs for it
    shared: tuple[int, ...] = ()  #: devices in use that it is taken to share for want of others: no other job gets them
    short: int = 0  #: GPUs that it asks for and that others are using, as far as is known

    @property
    def guessed(self) -> bool:
        """Whether what is kept is a guess: so many as it asks for, and nobody says which."""
        return self.gpus is not None and self.named is None

    def __str__(self) -> str:
        number = "its GPUs" if self.gpus is None else f"{self.gpus:,} of its GPUs"
        return f"pod {self.key}, which HiveD did not place, has {number}"

    @property
    def situation(self) -> str:
        """What it has, and what comes of that."""
        number = "GPUs, and it is not said how many," if self.gpus is None else counted(self.gpus, "GPU")
        which = f" ({', '.join(map(str, self.kept))})" if self.named is not None else ""
        unknown = " (which ones is not known)" if self.guessed else ""
        return (
            f"it has {number}{which} of {self.node}{unknown}, and HiveD did not place it: "
            "as many are kept from others until it is gone"
        )


class ForeignPods:
    """All of them, wherever they are. O(1) for each change."""

    def __init__(self) -> None:
        #: by uid
        self.pods: dict[str, ForeignPod] = {}
        #: the same by node, the earliest first
        self.on: dict[str, dict[str, ForeignPod]] = {}
        #: nodes of such pods where others have come or gone: what is kept may have to be chosen again
        self.crowded: set[str] = set()

    def add(self, pod: ForeignPod) -> None:
        """It is there."""
        self.pods[pod.uid] = pod
        self.on.setdefault(pod.node, {})[pod.uid] = pod
        self.crowded.add(pod.node)

    def remove(self, uid: str) -> ForeignPod | None:
        """It is gone; None: it was never here."""
        pod = self.pods.pop(uid, None)
        if pod is not None:
            del self.on[pod.node][uid]
            if not self.on[pod.node]:
                del self.on[pod.node]
            self.touched(pod.node)
        return pod

    def touched(self, node: str) -> None:
        """Somebody has come to ``node``, or left it."""
        if node in self.on:
            self.crowded.add(node)

    def moved(self, placement: Placement | None) -> None:
        """A gang with this placement has come or gone, or pods of it have. O(its pods)."""
        if self.on and placement is not None:
            for pod in placement.pods:
                self.touched(pod.node)


def of(pod: Pod) -> ForeignPod | None:
    """A bound pod that HiveD does not decide about, as far as it uses GPUs; None: another, or it uses none."""
    node = pod.spec.node_name
    if not node or pod.ended or asking.concerns(pod):
        return None
    some, gpus = uses(pod)
    version = pod.metadata.resource_version
    return ForeignPod(pod.metadata.uid, pod.key, version, node, gpus, named_devices(pod, gpus)) if some else None


def take(table: GangTable, pods: Iterable[Pod], at: float) -> None:
    """``pods`` are there, some of them perhaps foreign. O(pods + what is on the nodes of the foreign ones)."""
    for pod in sorted(pods, key=lambda pod: (pod.created_at, pod.key)):
        now, before = of(pod), table.foreign.pods.get(pod.metadata.uid)
        if before is not None and (now is None or (now.gpus, now.named) != (before.gpus, before.named)):
            gone(table, before.uid, at)
            before = None
        if now is None:
            continue
        if before is not None:
            before.version = now.version
            continue
        table.foreign.add(now)
        settle(table, at)
        if now.node in table.nodes.devices and not now.short:
            table.instruct(Tell(now.uid, now.key, "HivedForeign", now.situation))


def gone(table: GangTable, uid: str, at: float) -> None:
    """A pod is gone, or is foreign no more."""
    pod = table.foreign.remove(uid)
    if pod is not None:
        table.conflicts.pop(uid, None)
        table.nodes.free(uid)
        table.nodes_applied(at)
        table.fill_slots(pod.node, at)
        settle(table, at)


def settle(table: GangTable, at: float) -> None:
    """Choose again where somebody has come or gone. O(devices of those nodes, and pods of the gangs there)."""
    while table.foreign.crowded:
        nodes, table.foreign.crowded = sorted(table.foreign.crowded), set()
        for node in nodes:
            _share_out(table, node, at)


def foreign_pods(table: GangTable) -> list[ForeignPod]:
    """Those on nodes of the spec, the earliest first. O(foreign pods)."""
    return [pod for pod in table.foreign.pods.values() if pod.node in table.nodes.devices]


def kept_for_others(table: GangTable) -> int:
    """GPUs that are kept for foreign pods, on nodes that jobs could come to else. O(foreign pods)."""
    healthy, users = table.nodes.healthy, table.usage.at
    here = (pod for pod in table.foreign.pods.values() if pod.node in healthy)
    return len({(pod.node, device) for pod in here for device in pod.kept} - users.keys())


def _share_out(table: GangTable, node: str, at: float) -> None:
    """What each foreign pod on ``node`` keeps from jobs: what it names, or what it had, and more while it lacks any."""
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
    for pod in pods:  # what nobody wants; then what they share as before, so that whoever waits elsewhere is let be
        lacks = (pod.gpus or 0) - len(kept[pod.uid]) if pod.guessed else 0
        free = _choose(there, sizes, left, min(lacks, list(left.values()).count(0)))
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


def _keep(table: GangTable, pod: ForeignPod, kept: tuple[int, ...], shared: tuple[int, ...], used: set[int]) -> None:
    """``pod`` may be using ``kept`` and ``shared``; what it lacks is in conflict."""
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
        table.instruct(Tell(pod.uid, pod.key, "HivedConflict", text, True))


def _ranks(table: GangTable, node: str, used: set[int]) -> dict[int, int]:
    """Devices of ``node`` that no pod is known to be on: what it costs to keep them, 0 nothing."""
    named = table.nodes.held_by_others(node, table.foreign.pods)
    marked = table.nodes.marked(node)
    found = {}
    for device in table.nodes.devices.get(node, ()):
        gang = table.usage.at.get((node, device))
        if device in used or device in named:
            continue
        if device in marked:
            found[device] = 4  # nobody has it, and the foreign pod hardly either
        elif gang is not None:
            found[device] = 3 if gang.on_nodes else 2
        else:
            found[device] = int(table.cluster.leaf_state(node, device) is LeafState.RESERVED)
    return found


def _in_use(table: GangTable, node: str, used: set[int]) -> dict[int, tuple[bool, bool]]:
    """Devices of ``node`` that pods of gangs are on, and nobody else: the least is the first that is shared.

    Those that a gang has reserved come last, since it would have to look for others; those of loans come first.
    """
    named = table.nodes.held_by_others(node, table.foreign.pods)
    users = {device: table.usage.at[node, device] for device in used - named}
    reserved = {device for device in used if table.cluster.leaf_state(node, device) is LeafState.RESERVING}
    return {device: (device in reserved, gang.guaranteed) for device, gang in users.items()}


def _choose(there: Sequence[int], sizes: Sequence[int], left: dict[int, int], number: int) -> list[int]:
    """So many of what is ``left``, which has them no more: the cheapest, then those whose cells are broken already.

    ``sizes``: devices of the cells inside the node, from small to large. O(number * devices * levels).
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
