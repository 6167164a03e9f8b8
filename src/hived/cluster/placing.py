"""The placement of a new group, in the way that its request asks for, in the open transaction."""

from __future__ import annotations

from collections.abc import Sequence

from . import guaranteed, opportunistic
from .decisions import VirtualLeaves
from .demands import Demand
from .groups import Group
from .guests import Leaves
from .parts import Part
from .requests import Request
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
    victims: Sequence[Group] = (),
    hosts: Sequence[tuple[int, int]] = (),
    beside: Leaves | None = None,
    at: VirtualLeaves | None = None,
) -> Group | None:
    """Place and admit a new group; None, and no transaction open, where it has to wait.

    ``near``: the leaves where it ran, which it prefers; ``idle``: an opportunistic group takes idle leaves only;
    ``victims``: running groups of its VC that it preempts; ``hosts``: of its VC, one for each pod, that it takes free
    leaves of; ``beside``: of a guest, leaves that it may run on, the best first; ``at``: the leaves of its VC that it
    takes, which are free.
    """
    if state.ever_bad:
        state.refresh_doomed()
    group = Group(request, demand.tenant, now)
    if near:
        group.near = near
    if victims and request.opportunistic:
        found = opportunistic.preempting(state, group, demand, suggested, victims)
    elif victims:
        found = guaranteed.preempting(state, group, demand, suggested, victims)
    elif at is not None:
        found = guaranteed.on_leaves(state, group, demand, at, suggested)
    elif hosts:
        found = guaranteed.on_hosts(state, group, demand, hosts)
    elif request.priority >= 0:
        found = guaranteed.place(state, group, demand, suggested)
    elif request.guest:
        found = opportunistic.as_guest(state, group, demand, suggested, beside)
    else:
        found = (opportunistic.on_idle if idle else opportunistic.place)(state, group, demand, suggested)
    if not found:
        return None
    state.admit(group)
    return group
