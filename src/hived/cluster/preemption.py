"""Who is preempted first: the order of the criteria, and the victims among groups that a policy names.

1. Nobody, while free leaf cells suffice; an affinity that may be relaxed is given up before (:mod:`.guaranteed`).
2. Guaranteed groups of the own VC by precedence (:func:`.pool.precedence_of`): the lowest priority first, and of one
   priority those that lose no work.
3. Of one precedence those with the least loss (:mod:`.victim_selection`); under a quota that is short, the latest
   (:meth:`.sharing.QuotaPool.conflicting`).
4. Loans of other tenants, where the cells of a guaranteed group are bound to their leaf cells: bindings choose the
   cells with the fewest of them (:mod:`.binding`), or whose loans lose the least work (:mod:`.sparing`).
5. For a loan: those of tenants above their share, the farthest above first (:mod:`.opportunistic`).

A policy that preempts equal priorities gives an order of its own: :func:`select_victims`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from hived.cells import is_packing

from . import guaranteed, opportunistic
from .demands import Demand
from .groups import Group
from .requests import Request
from .state import State
from .suggested import Suggested


def select_victims(
    state: State, request: Request, demand: Demand, suggested: Suggested | None, candidates: Sequence[Group]
) -> list[Group] | None:
    """The groups of its VC that a request preempts to start; None: all candidates do not suffice.

    The shortest prefix of ``candidates`` that suffices, without groups whose leaf cells are not needed; among these the
    last is left out first. All trials are in one transaction that is rolled back, and bind as the preemption itself
    will. O(victims * what placing the request costs); O(candidates) where all do not suffice.
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
