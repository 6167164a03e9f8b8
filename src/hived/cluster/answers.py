"""From a plan to the answer that the caller sees, and back."""

from __future__ import annotations

from hived.errors import RequestError

from . import guaranteed, opportunistic
from .decisions import Bind, Preempt
from .demands import Demand
from .dooming import see_bad
from .groups import Group
from .plans import Plan
from .requests import Request
from .state import State
from .states import GroupState
from .suggested import Suggested

#: what a group cannot change while it has its placement
FIXED = ("vc", "priority", "members", "leaf_cell_type", "pinned_cell_id", "within", "soft_affinity", "lazy_preemption")


def plan_for(state: State, request: Request, demand: Demand, suggested: Suggested | None) -> Plan | None:
    """How ``request`` could be placed now, None when it has to wait. What is bound for it stays bound."""
    see_bad(state)
    place = opportunistic.place if request.opportunistic else guaranteed.place
    plan = place(state, request, demand, suggested)
    if plan is not None:
        plan.version = state.version
        if suggested is not None:
            plan.suggested = suggested.given
    return plan


def offer(state: State, plan: Plan) -> Bind | Preempt:
    """The answer that a plan makes. O(pods)."""
    hierarchy = state.floors[plan.chain].chain.hierarchy
    level = state.level(plan)
    within = hierarchy.name(level) if level else None
    name = plan.request.group
    downgraded = tuple([group.name for group in plan.downgraded])
    overtaken = tuple([group.name for group in plan.overtaken])
    placement = state.placement(plan)
    if plan.victims:
        victims = tuple([group.name for group in plan.victims])
        return Preempt(name, placement, victims, within, plan.relaxed, downgraded, overtaken)
    return Bind(name, placement, within, plan.relaxed, downgraded, overtaken)


def again(state: State, group: Group) -> Bind | Preempt:
    """The answer for a group that has its placement."""
    assert group.placement is not None
    within = _within(state, group)
    if group.state is GroupState.PREEMPTING and group.victims:
        victims = sorted(group.victims, key=lambda victim: victim.sequence)
        return Preempt(group.name, group.placement, tuple(v.name for v in victims), within, group.relaxed)
    return Bind(group.name, group.placement, within, group.relaxed)


def _within(state: State, group: Group) -> str | None:
    return state.floors[group.chain].chain.hierarchy.name(group.level) if group.level else None


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
