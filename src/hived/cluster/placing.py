"""A request becomes a group that is admitted in the open transaction: a new one, one that has reserved, one that runs.

A reservation that waits for slow victims must not keep its group from GPUs that have come free since.
"""

from __future__ import annotations

from hived.cluster.explain.diagnose import reasons
from hived.errors import RequestError

from . import guaranteed, opportunistic
from .demands import Demand
from .groups import Group
from .parts import Part
from .reasons import Reason
from .requests import EVERY_NODE, Request
from .state import State
from .suggested import Suggested


def admitted(
    state: State,
    request: Request,
    demand: Demand,
    suggested: Suggested | None,
    now: float,
    near: tuple[Part, ...] = (),
    idle: bool = False,
) -> Group | None:
    """The group of a request that holds nothing yet, as it is admitted; None, and none open: it has to wait.

    ``near``: where it ran, and would stay; ``idle``: no opportunistic group is to end for it.
    """
    if state.joined and request.group in state.joined:
        on = state.joined[request.group]
        raise RequestError("group", f"{request.group!r} is a job on the allocation of {on!r}; use another group name")
    if state.ever_bad:
        state.see_bad()
    group = Group(request, demand.tenant, now)
    if near:
        group.near = near
    if request.priority >= 0:
        found = guaranteed.place(state, group, demand, suggested)
    else:
        found = (opportunistic.on_idle if idle else opportunistic.place)(state, group, demand, suggested)
    if not found:
        return None
    state.admit(group)
    return group


def replanned(
    state: State, group: Group, demand: Demand, suggested: Suggested | None, now: float
) -> Group | tuple[Reason, ...] | None:
    """A group that has reserved, as it is admitted elsewhere in the open transaction; None: it keeps its reservation.

    Or why it has to wait without the reservation; nothing has changed then. It is placed again where the reservation is
    not on the suggested nodes; where it needs no victim of its own VC any more; or where its virtual leaves can be
    bound to idle physical ones. In this order, so that a VC decides as if it were alone: loans never change which of
    its leaves the group takes.

    O(pods) where too few leaf cells are free, or nothing has changed since; else O(pods * levels + groups on its nodes)
    and what placing it costs.
    """
    request = group.request
    state.see_bad()
    again = Group(request, group.tenant, now)
    if suggested is not None and not all(map(suggested.of(group.chain), {part.node for part in group.parts})):
        state.give_up_reservation(group)
        place = opportunistic.place if request.opportunistic else guaranteed.place
        if place(state, again, demand, suggested):
            state.replace(group, again)
            return again
        why = reasons(state, request, demand, suggested)
        state.undo.rollback()
        return why
    seen = state.version, EVERY_NODE if suggested is None else suggested.given
    own = group.guaranteed and any(victim.guaranteed for victim in group.victims)
    if not group.victims or group.replanned == seen or not _may_start(state, group, demand, own):
        return None
    state.give_up_reservation(group)
    if _started(state, group, again, demand, suggested, own):
        state.replace(group, again)
        return again
    state.undo.rollback()
    group.replanned = seen
    return None


def moved(
    state: State,
    group: Group,
    request: Request,
    demand: Demand,
    suggested: Suggested | None,
    now: float,
    in_place: bool = False,
) -> Group | None:
    """A group that runs, as it is admitted in the open transaction as if its own leaves were free; None: nowhere.

    ``request``: its own or, to promote a loan, a guaranteed one. Nobody of its VC ends for it. ``in_place``: one that
    would come to other leaves is not admitted, and nothing is open then.
    """
    state.see_bad()
    again = Group(request, demand.tenant, now)
    again.near = group.parts
    if request.opportunistic:
        state.vacate(group)
        found = opportunistic.quietly(state, again, demand, suggested)
    elif group.guaranteed:
        state.vacate(group)
        found = guaranteed.on_free(state, again, demand, suggested)
    else:
        found = guaranteed.promoted(state, again, group, demand, suggested, in_place)
    if not found:
        state.undo.rollback()
        return None
    if in_place and again.parts != group.parts:
        state.undo.rollback()
    else:
        state.replace(group, again)
    return again


def _may_start(state: State, group: Group, demand: Demand, own: bool) -> bool:
    """Whether enough leaf cells are free at all; ``own``: in its VC, where others of that are its victims. O(pods)."""
    if own:
        pools = [state.pools[group.tenant][choice.where] for choice in demand.choices]
        return any(pool.total() >= group.gpus for pool in pools)
    used = state.chains[group.chain].used
    free = sum([(mask & ~used[node]).bit_count() for _, node, mask in group.parts])
    chains = [group.chain] if group.guaranteed else [choice.chain for choice in demand.choices]
    return any(state.chains[chain].idle_gpus + free * (chain == group.chain) >= group.gpus for chain in chains)


def _started(state: State, group: Group, again: Group, demand: Demand, suggested: Suggested | None, own: bool) -> bool:
    """Place a group without the victims that are left; ``own``: some of them are of its VC."""
    if not group.guaranteed:
        return opportunistic.on_idle(state, again, demand, suggested)
    if own:
        return guaranteed.on_free(state, again, demand, suggested)
    return guaranteed.bound_to_idle(state, again, group, suggested)
