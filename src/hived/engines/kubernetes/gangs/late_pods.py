"""Late pods: pods of a running gang that have no place in it, since their node is lost or the gang has grown.

A running gang keeps its cells for the pods that run. A place on lost hardware is given up once a pod waits for it:
no job could use that cell. The pods without a place wait as a gang of their own, the *rest*, in the line of their VC.
So they are placed, preempt and are explained as any gang. Once the rest is placed, it becomes part of the running gang.

    running gang   n0  n1(lost)   ->   n0         ->   n0  n2
    rest                               waits: 1 pod    (ended)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hived.cluster.decisions import Placement
from hived.cluster.requests import OPPORTUNISTIC, Member
from hived.engine.states import JobState
from hived.engines.kubernetes.pods.pod_request import PodRequest, PodRequestError
from hived.spec.compiled import ClusterSpec

from .gang import Gang, PodEntry, in_rank_order, sizes_of
from .gang_table import GangTable


def settle(table: GangTable, at: float) -> None:
    """Look at the gangs that may have late pods, or whose rest is out of date. O(pods of those gangs)."""
    while table.unsettled:
        gang = table.unsettled.pop(next(iter(table.unsettled)))
        if table.gangs.get(gang.name) is not gang:
            continue
        if gang.part_of is not None:
            main = gang.part_of
            if table.gangs.get(main.name) is not main or main.rest is not gang:
                _dissolve(table, gang, at)
                continue
            gang = main
        _settle(table, gang, at)


def _settle(table: GangTable, gang: Gang, at: float) -> None:
    rest = gang.rest
    if gang.state is not JobState.RUNNING or not gang.on_nodes or not gang.settled:
        if rest is not None and gang.state is not JobState.RUNNING:
            _dissolve(table, rest, at)
        return
    placement = gang.placement
    assert placement is not None
    waiting = [entry for entry in gang.pods.values() if not entry.holds]
    if not waiting and rest is None:
        return
    for entry in waiting:
        if entry.given is not None and not table.usable(gang, entry.given):
            take_slot(entry, gang)
    table.give_slots(gang, at)
    late = late_pods(gang)
    if late:
        _detach_replaced(table, gang, late, at)
        if not gang.on_nodes:
            table.release_from_bad_hardware(gang, at)
            return
        free = [slot for slot, uid in enumerate(gang.slots) if uid is None]
        give_up(table, gang, [slot for slot in free if not table.usable(gang, placement.pods[slot])], at)
    missing = _missing(gang)
    if rest is not None and _is_out_of_date(table, gang, rest, missing):
        _dissolve(table, rest, at)
    elif late and missing:
        _wait_as_rest(table, gang, missing, late, at)


def late_pods(gang: Gang) -> list[PodEntry]:
    """Pods of a running gang that wait for a place, by rank. O(its pods)."""
    return in_rank_order(entry for entry in gang.pods.values() if entry.slot is None and not entry.holds)


def take_slot(entry: PodEntry, gang: Gang) -> None:
    """Take its slot from a pod that is not bound."""
    slot = entry.slot
    assert slot is not None
    gang.slots[slot] = entry.slot = None
    entry.needs_wake = True  # kube-scheduler may have got the node


def refused(table: GangTable, entry: PodEntry, gang: Gang, at: float) -> bool:
    """kube-scheduler does not take the node of a pod; whether the pod gives its place up for another one.

    Only where there is another one now: kube-scheduler may take the node a moment later.
    """
    slot, place, placement = entry.slot, entry.given, gang.placement
    if slot is None or place is None or placement is None or gang.rest is not None or not gang.settled:
        return False
    kept = [other for other in range(len(placement.pods)) if other != slot]
    if not kept:
        return False
    ask = _ask_of_rest(gang, (Member(1, len(place.leaf_cells)),))
    barred = gang.entry.excluded | _too_far(table.cluster.spec, gang, gang.ask, {slot})
    table.recover(gang, _part(placement, kept))  # its VC has the cell for another node then
    trial = table.cluster.plan(ask.request(), excluded_nodes=barred)
    if table.recover(gang, placement) != placement:
        table.reshape(gang, placement, list(gang.slots), "its VC's cells are not bound there any more", at)
    if trial.outcome != "now":
        return False
    take_slot(entry, gang)
    give_up(table, gang, [slot], at)
    table.unsettled[gang.name] = gang
    return True


def _detach_replaced(table: GangTable, gang: Gang, late: Iterable[PodEntry], at: float) -> None:
    """Part with pods that are being deleted on lost nodes, once another pod waits in their place: nobody ends them.

    Their devices are kept until the API server has deleted them.
    """
    waiting = Counter(entry.ask.leaf_cells for entry in late if entry.ask is not None)
    for entry in list(gang.pods.values()):
        place = entry.given
        if place is None or not entry.bound or not entry.terminating or not table.nodes.lost(place.node):
            continue
        if waiting[len(place.leaf_cells)] > 0:
            waiting[len(place.leaf_cells)] -= 1
            take_slot(entry, gang)
            entry.gang = None
            del gang.pods[entry.uid]
            what = f"another pod of {gang.name} takes its place, since {place.node} is lost and cannot end it"
            table.keep_devices(entry, PodRequestError("replaced", what), place.leaf_cells, at)


def give_up(table: GangTable, gang: Gang, gone: list[int], at: float) -> None:
    """Give up free places of a running gang."""
    placement = gang.placement
    if not gone or placement is None:
        return
    kept = [slot for slot in range(len(placement.pods)) if slot not in gone]
    if kept:
        nodes = ", ".join(dict.fromkeys(placement.pods[slot].node for slot in gone))
        why = f"it gives up its place on {nodes}: a pod cannot start there"
        table.reshape(gang, _part(placement, kept), [gang.slots[slot] for slot in kept], why, at)


def _part(placement: Placement, slots: list[int]) -> Placement:
    """Some places of a placement."""
    levels = tuple(placement.reserved_levels[slot] for slot in slots) if placement.guaranteed else ()
    return Placement(placement.chain, tuple(placement.pods[slot] for slot in slots), levels)


def join_placed(table: GangTable, at: float) -> bool:
    """Make each rest that was placed a part of its gang; whether there was any."""
    placed, table.placed_rests = table.placed_rests, []
    for rest in placed:
        gang, more = rest.part_of, rest.placement
        if gang is None or more is None or rest.state is not JobState.RUNNING:
            continue
        if gang.state is not JobState.RUNNING or gang.rest is not rest or gang.placement is None:
            table.unsettled[rest.name] = rest
            continue
        there, slots = gang.placement, [*gang.slots, *rest.slots]
        both = there.guaranteed and more.guaranteed
        levels = there.reserved_levels + more.reserved_levels if both else ()
        moved = list(rest.pods.values())
        for entry in moved:
            table.leave(entry, at, f"it is part of {gang.name} now")
        for entry in moved:
            gang.pods[entry.uid], entry.gang = entry, gang
        nodes = ", ".join(dict.fromkeys(place.node for place in more.pods))
        why = f"{len(more.pods)} more of its pods have a place, on {nodes}"
        table.reshape(gang, Placement(there.chain, there.pods + more.pods, levels), slots, why, at)
        for entry in moved:
            if entry.slot is not None:
                entry.needs_wake = True
                table.ready_to_bind(entry, gang, at)
        table.unsettled[gang.name] = gang
    return bool(placed)


def _wait_as_rest(
    table: GangTable, gang: Gang, missing: tuple[Member, ...], late: Iterable[PodEntry], at: float
) -> None:
    """Have late pods wait as the rest of their gang, which is made if there is none."""
    rest = gang.rest
    if rest is None:
        ask = _ask_of_rest(gang, missing)
        rest = gang.rest = table.new_gang(ask, gang.submitted_at, at, gang.family, gang.entry.view.user)
        rest.part_of, rest.since, rest.asked = gang, at, True
        rest.entry.may_preempt = gang.entry.may_preempt
        rest.not_offered, rest.emptied = gang.not_offered, gang.emptied
        rest.barred = _too_far(table.cluster.spec, gang, gang.ask, set())
        table.exclude(rest)
    room = sizes_of(missing) - Counter(entry.ask.leaf_cells for entry in rest.pods.values() if entry.ask is not None)
    for entry in late:
        assert entry.ask is not None
        if room[entry.ask.leaf_cells] > 0:
            room[entry.ask.leaf_cells] -= 1
            del gang.pods[entry.uid]
            rest.pods[entry.uid], entry.gang = entry, rest
            if rest.state is JobState.RUNNING:
                table.give_slot(entry, rest, at)
    if not rest.pods:
        gang.rest = None
        table.end(rest, at)
        return
    table.requeue(rest)


def _dissolve(table: GangTable, rest: Gang, at: float) -> None:
    """End a rest; its pods join their gang again, as they would if they came now."""
    pods = list(rest.pods.values())
    for entry in pods:
        entry.needs_wake = entry.needs_wake or rest.holds
        table.leave(entry, at, "its pods wait otherwise by now")
    for entry in pods:
        table.join(entry, entry.members, at)


def _ask_of_rest(gang: Gang, missing: tuple[Member, ...]) -> PodRequest:
    """The request of the rest of a gang: of the gang's kind, and free to use any node that is close enough."""
    priority = gang.ask.priority if gang.guaranteed else OPPORTUNISTIC
    name = f"{gang.name} (late pods)"
    return replace(gang.ask, group=name, members=missing, priority=priority, within=None, early=False)


def _missing(gang: Gang) -> tuple[Member, ...]:
    """The pods for which a running gang has no place. O(its pods * sizes)."""
    assert gang.placement is not None
    left, there = sizes_of(gang.ask.members), list[int]()
    for place, uid in zip(gang.placement.pods, gang.slots, strict=True):
        ask = None if uid is None else gang.pods[uid].ask
        there.append(len(place.leaf_cells) if ask is None else ask.leaf_cells)
    there += [e.ask.leaf_cells for e in gang.pods.values() if e.holds and e.slot is None and e.ask is not None]
    for size in sorted(there, reverse=True):
        # a place may have fewer devices than its pod asks for: by another spec, or by annotations of somebody else
        larger = (other for other, pods in left.items() if other > size and pods > 0)
        left[size if left[size] > 0 else min(larger, default=size)] -= 1
    return tuple(Member(pods, size) for size, pods in left.items() if pods > 0)


def _is_out_of_date(table: GangTable, gang: Gang, rest: Gang, missing: tuple[Member, ...]) -> bool:
    """Whether the gang lacks other pods by now, is of another kind, or has a place for a pod of its rest."""
    assert gang.placement is not None
    ask = _ask_of_rest(gang, missing)
    if (rest.ask.members, rest.ask.priority) != (ask.members, ask.priority):
        return True
    if rest.placement is not None:
        return False
    free = [place for place, uid in zip(gang.placement.pods, gang.slots, strict=True) if uid is None]
    usable = {len(place.leaf_cells) for place in free if table.usable(gang, place)}
    return any(entry.ask is not None and entry.ask.leaf_cells in usable for entry in rest.pods.values())


def _too_far(spec: ClusterSpec, gang: Gang, ask: PodRequest, without: set[int]) -> frozenset[str]:
    """Nodes outside of the chain of a running gang, or of the cell that has to hold it. O(nodes), if there are any."""
    placement = gang.placement
    assert placement is not None
    if len(spec.chains) == 1 and ask.within is None:
        return frozenset()
    chain = spec.chain(placement.chain)
    allowed: Iterable[str] = chain.node_names
    if ask.within is not None:
        there = {place.node for slot, place in enumerate(placement.pods) if slot not in without}
        wanted = ask.within.rpartition(".")[2]
        gpus = next((level.gpus for level in chain.levels if level.cell_type == wanted), chain.gpus_per_node)
        size = max(1, gpus // chain.gpus_per_node)
        cells = {number // size for number, name in enumerate(chain.node_names) if name in there}
        allowed = [name for number, name in enumerate(chain.node_names) if number // size in cells]
    return frozenset(spec.node_names).difference(allowed)
