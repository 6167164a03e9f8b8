"""From a request to a group in the open transaction, and from that to the answer that the caller sees."""

from __future__ import annotations

from hived.errors import RequestError

from . import guaranteed, opportunistic
from .decisions import Bind, Preempt
from .demands import Demand
from .dooming import see_bad
from .groups import Group
from .parts import Part
from .requests import EVERY_NODE, Asked, Given, Request
from .state import State
from .states import GroupState
from .suggested import Suggested

#: what a group cannot change while it has its placement
FIXED = (
    "vc",
    "priority",
    "members",
    "leaf_cell_type",
    "pinned_cell_id",
    "within",
    "soft_affinity",
    "lazy_preemption",
    "whole_nodes",
)


def admitted(
    state: State,
    request: Request,
    demand: Demand,
    suggested: Suggested | None,
    now: float,
    near: tuple[Part, ...] = (),
    idle: bool = False,
) -> Group | None:
    """The group of ``request``, placed and admitted in the open transaction; None, and none open: it has to wait.

    ``near``: where it ran, and would stay; ``idle``: no opportunistic group is to end for it.
    """
    if request.group in state.joined:
        on = state.joined[request.group]
        raise RequestError("group", f"{request.group!r} is a job on the allocation of {on!r}; use another group name")
    see_bad(state)
    group = Group(request, demand.tenant, now)
    group.near = near
    if request.priority >= 0:
        found = guaranteed.place(state, group, demand, suggested)
    else:
        found = (opportunistic.on_idle if idle else opportunistic.place)(state, group, demand, suggested)
    if not found:
        return None
    state.admit(group)
    return group


def offer(
    state: State, group: Group, given: Given = EVERY_NODE, idle: bool = False, moves: bool = False
) -> Bind | Preempt:
    """The answer that a group admitted in the open transaction makes; ``given``, ``idle``: as asked. O(pods)."""
    assert group.placement is not None
    within = _within(state, group)
    asked = Asked(group.request, given, group.since, state.version, group.near, idle, moves)
    if not (group.victims or group.downgraded or group.overtaken):  # the common case
        return Bind(group.name, group.placement, within, group.relaxed, (), (), asked)
    downgraded = tuple([other.name for other in group.downgraded])
    overtaken = tuple([other.name for other in group.overtaken])
    if group.victims:
        victims = tuple([other.name for other in group.victims])
        return Preempt(group.name, group.placement, victims, within, group.relaxed, downgraded, overtaken, asked)
    return Bind(group.name, group.placement, within, group.relaxed, downgraded, overtaken, asked)


def again(state: State, group: Group) -> Bind | Preempt:
    """The answer for a group that has its placement."""
    assert group.placement is not None
    within = _within(state, group)
    if group.state is GroupState.PREEMPTING and group.victims:
        victims = sorted(group.victims, key=lambda victim: victim.sequence)
        return Preempt(group.name, group.placement, tuple(v.name for v in victims), within, group.relaxed)
    return Bind(group.name, group.placement, within, group.relaxed)


def _within(state: State, group: Group) -> str | None:
    return state.chains[group.chain].chain.names[group.level] if group.level else None


def refuse_another(group: Group, request: Request) -> None:
    """A group asks again: it must be the same request."""
    known = group.request
    if known == request:
        return
    for name in FIXED:
        was, wanted = getattr(known, name), getattr(request, name)
        if was != wanted:
            raise RequestError(
                name,
                f"group {group.name!r} is {group.state.value} with {was!r}, not {wanted!r}; use another group name",
            )
