"""A new spec under running groups: nothing dies for it (HiveD, OSDI'20, section 4: work-preserving)."""

from __future__ import annotations

from hived.spec.compiled import ClusterSpec

from .decisions import Record
from .groups import Group
from .names import Names
from .reasons import LostReservation
from .recovery import Located, Reconfiguration, TakingOver, located, reserved_levels
from .requests import OPPORTUNISTIC
from .state import State


def reconfigured(old: State, spec: ClusterSpec) -> tuple[State, Reconfiguration]:
    """The state under ``spec``, and what that meant for each group. ``old`` stays as it is. O(cells + groups).

    Guaranteed groups come first, the higher priority before the lower and who has run for longer before who has not;
    each keeps its guarantee if cells that its VC now reserves can stand under it, and safety survives that. Then those
    that had lost theirs have another chance.
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
        if not group.guest:
            at = _apart(new, at)
        levels: list[tuple[int, ...]] = []
        if group.request.priority > OPPORTUNISTIC and at.parts and not at.gone:
            levels = _levels(old, new, group, at)
        record = Record(group.name, group.request, placement)
        report.add(record, at, levels, group.guaranteed, group.since, group.guest)
    for waiting in sorted(old.waiting.values(), key=lambda w: w.sequence):
        new.wait(waiting.request, waiting.reasons, waiting.since)
    for group in old.by_age():
        if not group.running:
            new.wait(group.request, (LostReservation(None, None),), group.since)
            report.cancelled.append(group.name)
    new.jobs, new.joined, new.evicted = old.jobs, old.joined, old.evicted
    for nodes in old.chains:  # what was bad stays bad, by node and device
        for node in sorted(nodes.sick):
            for device in nodes.devices(node, nodes.bad[node]):
                for chain, number, mask in names.of(nodes.names[node], device):
                    new.set_bad(chain, number, new.chains[chain].bad[number] | mask)
    return new, report.finished()


def _apart(state: State, at: Located) -> Located:
    """``at``, without leaves that somebody has already: two names for one device, and who came first has it."""
    if all(not state.chains[chain].used[node] & mask for chain, node, mask in at.parts):
        return at
    return Located(0, (), (), tuple(dict.fromkeys((*at.gone, *(node for node, _ in at.pods)))))


def _levels(old: State, new: State, group: Group, at: Located) -> list[tuple[int, ...]]:
    """The levels at which the group's VC may have reserved its cells now: of the types that it had first."""
    assert group.placement is not None
    levels = {level.cell_type: number for number, level in enumerate(new.chains[at.chain].chain.spec.levels, 1)}
    had = old.chains[group.chain].chain
    same_types = tuple([levels.get(had.name(level), 0) for level in group.placement.reserved_levels])
    return reserved_levels(new, new.tenant(group.request.vc), at.chain, same_types or (0,) * len(at.parts))
