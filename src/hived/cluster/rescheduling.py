"""The placement of a preempting group anew: it may start on leaf cells that were freed meanwhile."""

from __future__ import annotations

from . import guaranteed, opportunistic
from .demands import Demand
from .explain.diagnose import reasons
from .explain.reasons import Reason
from .groups import Group
from .placing import anywhere
from .requests import EVERY_NODE
from .state import State
from .suggested import Suggested


def rescheduled(
    state: State, group: Group, demand: Demand, suggested: Suggested | None, now: float
) -> Group | tuple[Reason, ...] | None:
    """Place a preempting group anew, and admit it in the open transaction; None: it keeps its reservation.

    Or the reasons why it has to wait without the reservation; nothing has changed then. It is placed anew if the
    reservation is not on the suggested nodes, if it needs no victim of its own VC any more, or if its virtual leaves
    can be bound to idle physical ones. In this order, so that a VC decides as on a private cluster: loans never change
    which of its leaves the group takes.

    O(pods) where too few leaf cells are free, or nothing has changed since; else O(pods * levels + groups on its nodes)
    plus the cost of its placement.
    """
    request = group.request
    state.refresh_doomed()
    again = Group(request, group.tenant, now)
    if suggested is not None and not all(map(suggested.of(group.chain), {part.node for part in group.parts})):
        state.give_up_reservation(group)
        if anywhere(state, again, demand, suggested):
            state.replace(group, again)
            return again
        why = reasons(state, request, demand, suggested)
        state.undo.rollback()
        return why
    seen = state.version, EVERY_NODE if suggested is None else suggested.node_filter
    own_vc = group.guaranteed and any(victim.guaranteed for victim in group.victims)
    if not group.victims or group.rescheduling_failed_at == seen or not _may_start(state, group, demand, own_vc):
        return None
    pool = state.pool_of(group)
    bad = [] if pool is None else [pool.binding.bad[host] for host, _ in group.spots]
    state.give_up_reservation(group)
    if _started(state, group, again, demand, suggested, own_vc, bad):
        state.replace(group, again)
        return again
    state.undo.rollback()
    group.rescheduling_failed_at = seen
    return None


def _may_start(state: State, group: Group, demand: Demand, own_vc: bool) -> bool:
    """Whether enough leaf cells are free at all; ``own_vc``: of its VC, as some of its victims are of it. O(pods)."""
    if own_vc:
        pools = [state.pools[group.tenant][choice.where] for choice in demand.choices]
        return any(pool.total() >= group.gpus for pool in pools)
    used = state.chains[group.chain].used
    free = sum([(mask & ~used[node]).bit_count() for _, node, mask in group.parts])
    chains = [group.chain] if group.guaranteed else [choice.chain for choice in demand.choices]
    return any(state.chains[chain].idle_gpus + free * (chain == group.chain) >= group.gpus for chain in chains)


def _started(
    state: State,
    group: Group,
    again: Group,
    demand: Demand,
    suggested: Suggested | None,
    own_vc: bool,
    bad: list[int],
) -> bool:
    """Place a preempting group without its remaining victims; ``own_vc``: some of them are of its VC.

    ``bad``: the bad leaves of the hosts that it had. Where they are bound to bad hardware again, they keep them: by
    these its leaves were chosen, and others would be farther apart for the next group.
    """
    if not group.guaranteed:
        return opportunistic.on_idle(state, again, demand, suggested)
    if own_vc:
        return guaranteed.on_free(state, again, demand, suggested)
    pool = state.pool_of(group)
    return guaranteed.bound_to_idle(state, again, group, suggested) and (
        pool is None or all(pool.binding.bad[host] in (0, had) for (host, _), had in zip(group.spots, bad, strict=True))
    )
