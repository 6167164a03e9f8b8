"""A group that has reserved is planned again: its reservation is not suggested any more, or it could start elsewhere.

A reservation that waits for slow victims must not keep its group from GPUs that have come free since. What is tried
here is undone again: only a commit moves a reservation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import guaranteed, opportunistic
from .demands import Demand
from .dooming import see_bad
from .groups import Group
from .obstacles import reasons
from .plans import Plan
from .reasons import Reason
from .requests import EVERY_NODE
from .standing import rebind, recorded
from .state import State
from .suggested import Suggested
from .tenancy import by_host


def replanned(
    state: State, group: Group, demand: Demand, suggested: Suggested | None
) -> Plan | tuple[Reason, ...] | None:
    """Another plan for a group that has reserved; why it has to wait without its reservation; None: it keeps that.

    The plan is another one where the reservation is not on the suggested nodes; where the group needs no victim of its
    own VC any more; or where its virtual leaves could be bound to idle physical ones. In this order, so that a VC
    decides as if it were alone: loans never change which of its leaves the group takes.

    Nothing is changed or left bound. O(pods) where too few leaf cells are free, or nothing has changed since; else
    O(pods * levels + groups on its nodes) and what a plan costs.
    """
    request = group.request
    see_bad(state)  # not while the group is set aside: its cells must not be doomed for others
    seen = state.version, EVERY_NODE if suggested is None else suggested.given
    if suggested is not None and not all(map(suggested.of(group.chain), {part.node for part in group.parts})):
        with _set_aside(state, group):
            place = opportunistic.place if request.opportunistic else guaranteed.place
            plan = place(state, request, demand, suggested)
            if plan is None:
                return reasons(state, request, demand, suggested)
        plan.version, plan.suggested = seen
        return plan
    own = group.guaranteed and any(victim.guaranteed for victim in group.victims)
    if not group.victims or group.replanned == seen or not _may_start(state, group, demand, own):
        return None
    with _set_aside(state, group):
        plan = _started(state, group, demand, suggested, own)
    if plan is None:
        group.replanned = seen
    else:
        plan.version, plan.suggested = seen
    return plan


def _may_start(state: State, group: Group, demand: Demand, own: bool) -> bool:
    """Whether enough leaf cells are free at all; ``own``: in its VC, where others of that are its victims. O(pods)."""
    if own:
        pools = [state.tenancies[group.tenant][choice.where] for choice in demand.choices]
        for tenancy in pools:
            tenancy.settle()
        return any(tenancy.totals[-1] >= group.gpus for tenancy in pools)
    used = state.floors[group.chain].states.used
    free = sum([(mask & ~used[node]).bit_count() for _, node, mask in group.parts])
    chains = [group.chain] if group.guaranteed else [choice.chain for choice in demand.choices]
    return any(state.floors[chain].idle_gpus + free * (chain == group.chain) >= group.gpus for chain in chains)


def _started(state: State, group: Group, demand: Demand, suggested: Suggested | None, own: bool) -> Plan | None:
    """A plan without the victims that are left, while the group is set aside; ``own``: some are of its VC's cells."""
    if not group.guaranteed:
        return opportunistic.on_idle(state, group.request, demand, suggested)
    if own:
        return guaranteed.on_free(state, group.request, demand, suggested)
    tenancy = state.tenancies[group.tenant][group.tenancy]
    return guaranteed.bound_to_idle(state, group, demand, tenancy, suggested)


@contextmanager
def _set_aside(state: State, group: Group) -> Iterator[None]:
    """While this is open, nobody has reserved what ``group`` has; then all is as it was, and no plan is left bound."""
    binder = state.tenancies[group.tenant][group.tenancy].binder if group.guaranteed else None
    bindings = recorded(binder, [host for host, _ in by_host(group.spots)]) if binder is not None else []
    wanted = [(victim, list(victim.preempted_by)) for victim in group.victims]
    borrowers = list(state.borrowers[group.tenant])
    state.give_up(group)
    try:
        yield
    finally:
        state.step_back()
        if binder is not None:
            rebind(binder, bindings)
        state.reserve_again(group, wanted, borrowers)
