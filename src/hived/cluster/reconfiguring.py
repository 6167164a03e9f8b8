"""A new spec under running groups: nothing dies for it (HiveD, OSDI'20, section 3.5: work-preserving)."""

from __future__ import annotations

from hived.spec.compiled import ClusterSpec

from .decisions import Placement
from .groups import Group
from .recovery import Names, Reconfiguration, admit_running, free_on_floor, located, reserved_levels
from .requests import OPPORTUNISTIC
from .state import State


def reconfigured(old: State, spec: ClusterSpec) -> tuple[State, Reconfiguration]:
    """The state under ``spec``, and what that meant for each group. ``old`` stays as it is. O(cells + groups).

    Guaranteed groups come first, the higher priority before the lower and who has run for longer before who has not;
    each keeps its guarantee if cells that its VC now reserves can stand under it, and safety survives that.
    """
    names_now = [vc.name for vc in spec.virtual_clusters]
    running = [group for group in old.groups.values() if group.running]
    departed = sorted({group.request.vc for group in running} - set(names_now))
    new = State(spec, departed)
    names = Names(new.floors)
    tenants = {name: number for number, name in enumerate(new.tenants)}
    kept, downgraded, lost, cancelled = [], [], [], []
    order = sorted(running, key=lambda g: (not g.guaranteed, -g.request.priority, g.sequence))
    for group in order:
        placement = group.placement
        assert placement is not None
        chain, parts, pods = located(new, names, placement)
        if not free_on_floor(new, parts):  # two names for one device: who came first has it
            chain, parts, pods = -1, (), ()
        gone = tuple(dict.fromkeys(node for pod, (node, _) in enumerate(placement.pods) if pod not in pods))
        tenant = tenants[group.request.vc]
        levels = _levels(old, new, group, tenant, chain, placement) if group.request.priority > OPPORTUNISTIC else []
        if not pods:
            placement = Placement(placement.chain, ())
        record = (group.name, group.request, placement)
        again = admit_running(new, names, record, tenant, group.since, levels if not gone else [])
        if gone:
            lost.append((group.name, gone))
        if group.guaranteed and not again.guaranteed:
            downgraded.append((group.name, _why(spec, group, chain, gone, levels)))
        elif not gone:
            kept.append(group.name)
    for waiting in sorted(old.waiting.values(), key=lambda w: w.sequence):
        new.wait(waiting.request, waiting.reasons, waiting.since)
    for group in old.groups.values():
        if not group.running:
            cancelled.append(group.name)
            new.wait(group.request, (), group.since)
    _carry_health(old, new, names)
    report = Reconfiguration(
        tuple(sorted(kept)), tuple(sorted(downgraded)), tuple(sorted(lost)), tuple(sorted(cancelled))
    )
    return new, report


def _levels(
    old: State, new: State, group: Group, tenant: int, chain: int, placement: Placement
) -> list[tuple[int, ...]]:
    """The levels at which the group's VC may have reserved its cells now: of the types that it had first."""
    if chain < 0:
        return []
    levels = {level.cell_type: number for number, level in enumerate(new.spec.chains[chain].levels, 1)}
    had = old.floors[group.chain].chain.hierarchy
    same_types = [levels.get(had.name(level), 0) for level in placement.reserved_levels]
    return reserved_levels(new, tenant, chain, same_types or [0] * len(placement.pods))


def _why(spec: ClusterSpec, group: Group, chain: int, gone: tuple[str, ...], levels: list[tuple[int, ...]]) -> str:
    vc = group.request.vc
    if all(vc != other.name for other in spec.virtual_clusters):
        return f"virtual cluster {vc} is no more"
    if gone:
        return f"some of its devices are no more (on {', '.join(gone)})"
    if not levels:
        return f"{vc} has no cells in chain {spec.chains[chain].name} any more"
    return f"the cells that {vc} has now cannot stand where it runs"


def _carry_health(old: State, new: State, names: Names) -> None:
    for floor in old.floors:
        spec = floor.chain.hierarchy.spec
        for node, bad in enumerate(floor.chain.bad):
            if bad:
                devices = [spec.device_index(node, leaf) for leaf in range(spec.gpus_per_node) if bad >> leaf & 1]
                for chain, number in names.nodes.get(spec.node_names[node], ()):
                    leaves = names.leaves(chain, number)
                    mask = 0
                    for device in devices:
                        if device in leaves:
                            mask |= 1 << leaves[device]
                    new.set_bad(chain, number, new.floors[chain].chain.bad[number] | mask)
