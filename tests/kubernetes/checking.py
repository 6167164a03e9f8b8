"""Invariants of the gang scheduler: its state is re-derived after every event of a test."""

from __future__ import annotations

from hived.cluster.states import GroupState
from hived.engine.dispatcher import Usage
from hived.engine.states import JobState
from hived.engines.kubernetes.gangs.foreign import ForeignPod
from hived.engines.kubernetes.gangs.gang import Gang
from hived.engines.kubernetes.gangs.gang_table import GangTable
from hived.engines.kubernetes.gangs.nodes import Nodes
from hived.errors import RequestError, ensure
from hived.scheduling import Status
from hived.scheduling.checks import check_scheduler
from hived.spec.compiled import Device

#: state of a gang in the core; None: the core may not have it
_IN_CORE = {
    JobState.QUEUED: (GroupState.PENDING, None),
    JobState.RESERVED: (GroupState.PREEMPTING,),
    JobState.RUNNING: (GroupState.ALLOCATED,),
    JobState.STOPPING: (GroupState.BEING_PREEMPTED,),
}


def validate(gang_scheduler: GangTable) -> None:
    """Raise :class:`~hived.errors.InvariantError` if an index, the usage counts or the core disagree. O(all)."""
    gang_scheduler.cluster.validate()
    gang_scheduler.cluster.check_safety()
    _check_nodes(gang_scheduler.nodes)
    for name, gang in gang_scheduler.gangs.items():
        ensure(name == gang.name, f"{gang} has its name")
        _check_pods(gang_scheduler, gang)
        _check_place(gang)
        if gang.state is JobState.RUNNING:
            _check_no_place_is_idle(gang_scheduler, gang)
            stuck = not gang.on_nodes and gang_scheduler.on_bad_hardware(gang)
            ensure(not stuck, f"none of {gang} runs, and it stays where it cannot run")
        _check_core(gang_scheduler, gang)
    _check_entries(gang_scheduler)
    _check_lines(gang_scheduler)
    _check_indexes(gang_scheduler)
    _check_usage(gang_scheduler)
    _check_foreign(gang_scheduler)
    unknown = [name for name in gang_scheduler.cluster.groups() if name not in gang_scheduler.gangs]
    ensure(not unknown, f"the core has groups that are no gangs: {unknown}")


def _check_nodes(nodes: Nodes) -> None:
    ensure(not nodes._changed & nodes.devices.keys(), f"nodes that the core has not got: {nodes._changed}")
    for name in nodes.devices:
        ensure(nodes._reported(name) == nodes.wanted(name), f"what is bad of {name}")
    ensure(all(d in nodes.devices.get(name, ()) for name, d in nodes.bad_devices), "bad devices are of the spec")
    ensure(nodes.bad_nodes.keys() <= nodes.devices.keys(), "bad nodes are of the spec")
    shut = [nodes._kept_devices(name) for name in nodes.devices]
    ensure(nodes.faulty == {place for faulty, _ in shut for place in faulty}, "what is faulty")
    ensure(nodes.kept == {place for _, kept in shut for place in kept}, "what is kept")
    ensure(nodes.healthy == nodes.devices.keys() - nodes.bad_nodes.keys(), "which nodes are healthy")


def _check_pods(gang_scheduler: GangTable, gang: Gang) -> None:
    ensure(bool(gang.pods), f"{gang} has pods")
    for uid, entry in gang.pods.items():
        ensure(uid == entry.uid and gang_scheduler.pods.get(uid) is entry, f"{entry.key} of {gang} lives")
        ensure(entry.gang is gang, f"{entry.key} is of {gang}")
        ensure(entry.ask is not None and entry.ask.group == (gang.part_of or gang).name, f"{entry.key} asks for {gang}")
        ensure(entry.refused is None, f"{entry.key} of {gang} is not refused")
        ensure(not (entry.bound and entry.binding), f"{entry.key} is bound or being bound, not both")
        ensure(gang.holds or not entry.holds, f"{entry.key} is on a node, and {gang} holds nothing")


def _check_place(gang: Gang) -> None:
    waits = gang.state is JobState.QUEUED
    ensure((gang.placement is None) == waits, f"{gang} has a placement or waits")
    places = len(gang.placement.pods) if gang.holds and gang.placement is not None else 0
    ensure(len(gang.slots) == places, f"{gang}: {places} places, and {len(gang.slots)} slots")
    for slot, uid in enumerate(gang.slots):
        ensure(uid is None or (uid in gang.pods and gang.pods[uid].slot == slot), f"{gang}: who has place {slot}")
    for entry in gang.pods.values():
        ensure(entry.slot is None or gang.slots[entry.slot] == entry.uid, f"{entry.key} has place {entry.slot}")
    ensure(gang.state is not JobState.STOPPING or gang.on_nodes, f"{gang} has to go, and is on no node")
    goes, moves = gang.preempted_by is not None, gang.entry.status is Status.MOVING or gang.entry.yields
    ensure((goes or moves) == (gang.state is JobState.STOPPING), f"{gang}: for whom it goes")
    ensure(gang.in_line == (waits and gang.asked and gang.complete), f"{gang}: in line, or not")


def _check_no_place_is_idle(gang_scheduler: GangTable, gang: Gang) -> None:
    """A pod waits beside a place of its size only where nobody can have it."""
    assert gang.placement is not None
    free = {
        len(pod.leaf_cells)
        for pod, uid in zip(gang.placement.pods, gang.slots, strict=True)
        if uid is None and gang_scheduler.nodes.usable(*pod)
    }
    for entry in gang.pods.values():
        idle = entry.slot is None and not entry.holds and entry.ask is not None and entry.ask.leaf_cells in free
        ensure(not idle, f"{entry.key} of {gang} waits beside a free place")


def _check_core(gang_scheduler: GangTable, gang: Gang) -> None:
    try:
        core = gang_scheduler.cluster.group(gang.name)
    except RequestError:
        ensure(None in _IN_CORE[gang.state], f"the core does not know {gang}")
        return
    moves = (gang.entry.status is Status.MOVING or gang.entry.yields) and core.state is GroupState.ALLOCATED
    ensure(moves or core.state in _IN_CORE[gang.state], f"{gang} is {core.state.value} to the core")
    ensure(core.placement == gang.placement, f"{gang}: its placement is {core.placement} to the core")
    ensure(core.guaranteed == gang.guaranteed, f"{gang}: guaranteed or not")
    if gang.preempted_by is not None:
        ensure(gang.preempted_by.name in core.preempted_by, f"{gang} goes for {core.preempted_by}")


def _check_entries(gang_scheduler: GangTable) -> None:
    for uid, entry in gang_scheduler.pods.items():
        ensure(uid == entry.uid and uid == entry.pod.metadata.uid, f"{entry.key} by its uid")
        gang = entry.gang
        ensure((gang is None) == (entry.refused is not None), f"{entry.key} is of a gang, or refused")
        ensure(gang is None or uid in gang.pods, f"{entry.key} is one of the pods of {gang}")
        ensure(gang is None or gang_scheduler.gangs.get(gang.name) is gang, f"{gang} of {entry.key} is")
        ensure(gang is not None or entry.slot is None, f"{entry.key} has a place of no gang")
        ensure(not entry.pod.spec.node_name or entry.bound, f"{entry.key} is on a node, and not bound")
    refused = {uid for uid, entry in gang_scheduler.pods.items() if entry.refused is not None}
    ensure(gang_scheduler.refused.keys() == refused, "refused pods")
    for uid in gang_scheduler.conflicts.keys() - gang_scheduler.foreign.pods.keys():
        entry = gang_scheduler.pods[uid]
        ensure(entry.bound and entry.refused is not None, f"{entry.key} is in conflict")
    for uid, name in gang_scheduler.outside.items():
        entry = gang_scheduler.pods[uid]
        ensure(uid in refused and not entry.bound, f"{entry.key} is kept outside")
        ensure(name in gang_scheduler.gangs, f"{entry.key} is kept outside of {name}, which is no more")


def _check_lines(gang_scheduler: GangTable) -> None:
    check_scheduler(gang_scheduler.scheduler)
    gang_scheduler.trading.validate()
    known = {gang.id: gang.entry for gang in gang_scheduler.gangs.values() if gang.entry.status is not Status.NOWHERE}
    ensure(known.items() <= gang_scheduler.scheduler.jobs.items(), "jobs that wait or hold GPUs")
    for entry in gang_scheduler.scheduler.jobs.values():
        ensure(gang_scheduler.gangs[entry.name].entry is entry, f"{entry} is of a gang that is")
    for gang in gang_scheduler.gangs.values():
        ensure(gang.holds is gang.entry.holds, f"{gang} is {gang.entry.status.value} to the scheduler")


def _check_indexes(gang_scheduler: GangTable) -> None:
    gangs = gang_scheduler.gangs.values()
    reserved = {gang.name: gang for gang in gang_scheduler.reserved()}
    for state, index in ((JobState.RESERVED, reserved), (JobState.STOPPING, gang_scheduler.evicting)):
        ensure(index == {gang.name: gang for gang in gangs if gang.state is state}, f"gangs that are {state.value}")
    placed = [gang for gang in gangs if gang.state is JobState.RUNNING]
    waits = [gang for gang in placed if any(one.slot is not None and not one.bound for one in gang.pods.values())]
    differ = gang_scheduler.to_bind.keys() ^ {gang.name for gang in waits}
    ensure(not differ, f"who can be bound: {sorted(differ)}")


def _check_usage(gang_scheduler: GangTable) -> None:
    usage: Usage[Gang] = Usage()
    held: dict[Device, Gang] = {}
    kept: dict[Device, Gang] = {}
    for gang in gang_scheduler.gangs.values():
        usage.add(gang)
        of = held if gang.holds else kept
        for node, device in gang.placement.devices() if gang.placement is not None else ():
            other = of.setdefault((node, device), gang)
            ensure(other is gang, f"device {device} of {node}: {gang} and {other}")
    for name in ("used", "lent", "waiting", "states", "nodes", "displaced", "at"):
        ours = {key: value for key, value in getattr(usage, name).items() if value}
        theirs = {key: value for key, value in getattr(gang_scheduler.usage, name).items() if value}
        ensure(ours == theirs, f"sums: {name}: {ours} and {theirs}")


def _check_foreign(gang_scheduler: GangTable) -> None:
    """As many GPUs as foreign pods request are kept from jobs, or else all that no pod is known to use."""
    on: dict[str, list[ForeignPod]] = {}
    for uid, pod in gang_scheduler.foreign.pods.items():
        ensure(uid == pod.uid and uid not in gang_scheduler.pods, f"{pod.key} is foreign, by its uid")
        on.setdefault(pod.node, []).append(pod)
    ensure(
        on == {node: list(pods.values()) for node, pods in gang_scheduler.foreign.on.items()}, "foreign pods by node"
    )
    for node in on.keys() - gang_scheduler.foreign.dirty:
        there, used = set(gang_scheduler.nodes.devices.get(node, ())), gang_scheduler.used_on(node)
        others = gang_scheduler.nodes.held_by_others(node, gang_scheduler.foreign.pods)
        guessed = [device for pod in on[node] if pod.guessed for device in pod.kept]
        ensure(len(guessed) == len(set(guessed)), f"{node}: a device is kept for two foreign pods")
        ensure(not used.intersection(guessed), f"{node}: a device in use is kept for a foreign pod")
        shared = [device for pod in on[node] for device in pod.shared]
        ensure(len(shared) == len(set(shared)), f"{node}: two foreign pods share a device with a job")
        ensure(used.issuperset(shared), f"{node}: a foreign pod shares a device that nobody uses")
        idle = there - used - others - {device for pod in on[node] for device in pod.kept}
        wanted = {device for name, device in gang_scheduler.usage.at if name == node}
        for gang in gang_scheduler.reserved():
            kept = gang.placement.devices() if gang.placement is not None else ()
            wanted.update(device for name, device in kept if name == node)
        for pod in on[node]:
            ensure(gang_scheduler.nodes.held(pod.uid) == (pod.kept + pod.shared or None), f"what is kept for {pod.key}")
            ensure((pod.uid in gang_scheduler.conflicts) == (pod.short > 0), f"{pod.key} is in conflict, or not")
            if not pod.guessed:
                named = there if pod.named is None else there.intersection(pod.named)
                ensure(set(pod.kept) == named, f"{pod.key} keeps {named}")
            elif there:
                ensure(len(pod.kept) + pod.short == pod.gpus, f"{pod.key}: {len(pod.kept)} and {pod.short}")
                ensure(not (pod.short and idle - wanted), f"{pod.key} lacks {pod.short}, and {idle - wanted} are idle")
                left = (idle | used) - others - set(shared) - {device for one in on[node] for device in one.kept}
                ensure(pod.short == len(pod.shared) or not left, f"{pod.key} lacks {pod.short}, and could have {left}")
