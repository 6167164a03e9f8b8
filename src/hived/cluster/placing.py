"""The placement of a request in the open transaction: for a new group, a preempting group, or a loan at its turn.

A preempting group with slow victims is placed again, so that it can start on GPUs that were freed meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from hived.cells import is_packing
from hived.cluster.explain.diagnose import reasons

from . import guaranteed, opportunistic
from .decisions import VirtualLeaves
from .demands import Demand
from .groups import Group
from .guests import Leaves
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


def replanned(
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
        place = opportunistic.place if request.opportunistic else guaranteed.place
        if place(state, again, demand, suggested):
            state.replace(group, again)
            return again
        why = reasons(state, request, demand, suggested)
        state.undo.rollback()
        return why
    seen = state.version, EVERY_NODE if suggested is None else suggested.given
    own_vc = group.guaranteed and any(victim.guaranteed for victim in group.victims)
    if not group.victims or group.replanned == seen or not _may_start(state, group, demand, own_vc):
        return None
    state.give_up_reservation(group)
    if _started(state, group, again, demand, suggested, own_vc):
        state.replace(group, again)
        return again
    state.undo.rollback()
    group.replanned = seen
    return None


def promoted(
    state: State, loan: Group, request: Request, demand: Demand, suggested: Suggested | None, at: VirtualLeaves | None
) -> Group | None:
    """Place a loan anew by a guaranteed request, and admit it in the open transaction if it stays where it runs.

    A placement on other leaves is returned without being admitted, and no transaction is open then. None: its VC has no
    room. No group of its VC is preempted for it. ``at``: the free leaves of its VC that it takes.
    """
    state.refresh_doomed()
    again = Group(request, demand.tenant, loan.since)
    again.near = loan.parts
    if not guaranteed.promoted(state, again, loan, demand, suggested, at):
        state.undo.rollback()
        return None
    if stays_in_place(again, loan):
        state.replace(loan, again)
    else:
        state.undo.rollback()
    return again


def stays_in_place(again: Group, group: Group) -> bool:
    """Whether a new placement leaves a running group where it is, and takes nothing from others.

    A group that is being preempted has leaves that are reserved for another one: it has to go.
    """
    return again.parts == group.parts and not again.victims and not again.overtaken


def select_victims(
    state: State, request: Request, demand: Demand, suggested: Suggested | None, candidates: Sequence[Group]
) -> list[Group] | None:
    """The groups of its VC that a request preempts to start; None: all candidates do not suffice.

    The shortest prefix of ``candidates`` that suffices, without groups whose leaf cells are not needed; among these the
    last is spared first. All trials are in one transaction that is rolled back, and bind as the preemption itself will.
    O(victims * what placing the request costs); O(candidates) where all do not suffice.
    """
    state.refresh_doomed()
    loan = state.groups.get(request.group)
    if loan is not None and not request.opportunistic:
        state.vacate(loan)
    aside: dict[Group, None] = {}

    def set_aside(groups: Sequence[Group]) -> None:
        for group in groups:
            aside[group] = None
            if not request.opportunistic:
                state.set_aside(group)

    def put_back(groups: Sequence[Group]) -> None:
        for group in groups:
            del aside[group]
            if not request.opportunistic:
                state.put_back(group)

    def suffices() -> bool:
        mark = state.undo.mark()
        trial = Group(request, demand.tenant, 0.0)
        if request.opportunistic:
            found = opportunistic.preempting(state, trial, demand, suggested, list(aside))
        else:
            found = guaranteed.on_free(state, trial, demand, suggested)
        state.undo.rollback(mark)
        return found

    def suffice(number: int) -> bool:
        set_aside(candidates[len(aside) : number])
        put_back(candidates[number : len(aside)])
        return suffices()

    number = _first_number(suffice, len(candidates), request.opportunistic or is_packing(state.rank_of(request.vc)))
    if number < 0:
        state.undo.rollback()
        return None
    set_aside(candidates[len(aside) : number])
    put_back(candidates[number : len(aside)])
    for group in candidates[:number][-2::-1]:  # the last one is needed: the prefix without it does not suffice
        put_back((group,))
        if not suffices():
            set_aside((group,))
    victims = [group for group in candidates[:number] if group in aside]
    state.undo.rollback()
    return victims


def _first_number(suffice: Callable[[int], bool], most: int, grows: bool) -> int:
    """The first number of candidates up to ``most`` that suffices, -1 for none.

    ``grows``: whether more of them suffice then too, as with ranks of hosts that refuse none. The cost is that of the
    victims then, and else of all candidates.
    """
    if not grows:
        return next((number for number in range(most + 1) if suffice(number)), -1)
    end = 1
    while not suffice(min(end, most)):
        if end >= most:
            return -1
        end *= 2
    numbers = range(end // 2 + 1 if end > 1 else 0, min(end, most))
    return numbers.start + bisect_left(numbers, True, key=suffice)


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
    state: State, group: Group, again: Group, demand: Demand, suggested: Suggested | None, own_vc: bool
) -> bool:
    """Place a preempting group without its remaining victims; ``own_vc``: some of them are of its VC."""
    if not group.guaranteed:
        return opportunistic.on_idle(state, again, demand, suggested)
    if own_vc:
        return guaranteed.on_free(state, again, demand, suggested)
    return guaranteed.bound_to_idle(state, again, group, suggested)
