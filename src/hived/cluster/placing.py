"""The placement of a new group, by the strategy of its constraint, in the open transaction."""

from __future__ import annotations

from collections.abc import Callable

from . import guaranteed, opportunistic
from .demands import Demand
from .groups import Group
from .parts import Part
from .requests import Request
from .state import State
from .suggested import Suggested

#: chooses leaves for a group, which are bound then; ``False``, and nothing changed, when it has to wait
PlacementStrategy = Callable[[State, Group, Demand, Suggested | None], bool]


def anywhere(state: State, group: Group, demand: Demand, suggested: Suggested | None) -> bool:
    """Choose leaves for a group, with victims if need be."""
    if group.request.priority >= 0:
        return guaranteed.place(state, group, demand, suggested)
    return opportunistic.place(state, group, demand, suggested)


def admitted(
    state: State,
    request: Request,
    demand: Demand,
    suggested: Suggested | None,
    now: float,
    near: tuple[Part, ...] = (),
    strategy: PlacementStrategy = anywhere,
) -> Group | None:
    """Place and admit a new group; None, and no transaction open, where it has to wait.

    ``near``: the leaves where it ran, which it prefers.
    """
    if state.ever_bad:
        state.refresh_doomed()
    group = Group(request, demand.tenant, now)
    if near:
        group.near = near
    if not strategy(state, group, demand, suggested):
        return None
    state.admit(group)
    return group
