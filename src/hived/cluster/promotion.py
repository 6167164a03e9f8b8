"""The promotion of a loan: a group that runs on idle leaf cells becomes guaranteed, where it runs.

The VC chooses leaves as for a new group, and these are bound to those on which the loan runs, as far as they can be
(:class:`~.binding.BindingHints`). Under a quota a loan is promoted wherever it runs. A group that was guaranteed until
a spec or a trade took its cells gets other leaves where the chosen ones do not serve (:mod:`.restoring`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hived.errors import InvariantError

from . import guaranteed
from .decisions import VirtualLeaves
from .demands import Demand
from .groups import Group
from .requests import Request
from .restoring import Search, is_displaced, others_displaced, pool_for
from .state import State
from .suggested import Suggested


def promoted(
    state: State, loan: Group, request: Request, demand: Demand, suggested: Suggested | None, at: VirtualLeaves | None
) -> Group | None:
    """Place a loan anew by a guaranteed request, and admit it in the open transaction if it stays where it runs.

    A placement on other leaves is returned without being admitted, and no transaction is open then. None: its VC has no
    room. No group of its VC is preempted for it. ``at``: the free leaves of its VC that it takes.
    """
    state.refresh_doomed()
    displaced = at is None and suggested is None and is_displaced(state, loan) and bool(Search(state, [loan]).run())
    others = others_displaced(state, loan) if displaced else []
    again = _chosen(state, loan, request, demand, suggested, at)
    if again is None:
        return None
    if displaced:
        again = _restored(state, loan, again, demand, others)
    if stays_in_place(again, loan):
        state.replace(loan, again)
    else:
        state.undo.rollback()
    return again


def _chosen(
    state: State, loan: Group, request: Request, demand: Demand, suggested: Suggested | None, at: VirtualLeaves | None
) -> Group | None:
    """The group on leaves that its VC chooses, which are bound; None, and nothing bound: its VC has no room."""
    again = Group(request, demand.tenant, loan.since)
    again.near = loan.parts
    if _bind(state, again, loan, demand, suggested, at):
        return again
    state.undo.rollback()
    return None


def _restored(state: State, loan: Group, again: Group, demand: Demand, others: Sequence[Group]) -> Group:
    """A displaced group on the leaves that its VC has chosen, or on others: those beside which more can be restored.

    ``again``: the group on the leaves of its choice, which are bound; ``others``: the other displaced groups.
    """
    fit = len(Search(state, others).run()) if stays_in_place(again, loan) else -1
    if fit == len(others):
        return again
    state.undo.rollback()
    found = Search(state, [loan, *others], 1).run()
    if len(found) <= fit + 1:
        return again if fit < 0 else _chosen(state, loan, again.request, demand, None, None) or again
    state.vacate(loan)
    restored = Group(again.request, again.tenant, again.since)
    pool = pool_for(state, loan)
    spots = None if pool is None else pool.bind_at(loan.parts, found[loan])
    if pool is None or spots is None:
        raise InvariantError(f"{loan}: its cells could be bound a moment ago")
    restored.chain, restored.pool, restored.spots = loan.chain, pool.number, spots
    restored.parts, restored.level, restored.loan = loan.parts, loan.level, loan
    return restored


def stays_in_place(again: Group, group: Group) -> bool:
    """Whether a new placement leaves a running group where it is, and takes nothing from others.

    A group that is being preempted has leaves that are reserved for another one: it has to go.
    """
    return again.parts == group.parts and not again.victims and not again.overtaken


def _bind(
    state: State,
    group: Group,
    loan: Group,
    demand: Demand,
    suggested: Suggested | None,
    at: VirtualLeaves | None,
) -> bool:
    """Bind free leaves of its VC for the group that runs as ``loan``: the loan's own leaves if they can be bound.

    The leaves of ``loan`` are released then. ``False``, and nothing changed: its VC has no room. A placement on other
    leaves need not be bound. ``at``: the leaves of its VC. O(levels + pods).
    """
    group.loan = loan
    others = loan.guest and not state.guests_of(loan.chain).alone(loan)  # they have its leaves, or have reserved them
    keeps = suggested is None and not (loan.preempted_by or others)  # whether it may keep its leaves
    for pool in state.pools[demand.tenant] if keeps and at is None else ():
        spots = pool.in_place(loan.parts) if pool.pinned == group.request.pinned_cell_id else None
        if spots is not None:
            group.pool, group.spots, group.parts, group.level = pool.number, spots, loan.parts, loan.level
            group.chain = pool.nodes.number
            state.vacate(loan)
            return True
    if not (
        guaranteed.on_free(state, group, demand, suggested)
        if at is None
        else guaranteed.on_leaves(state, group, demand, suggested, at)
    ):
        return False
    if sorted(group.parts) == sorted(loan.parts):
        spot_of = dict(zip(group.parts, group.spots, strict=True))  # every pod stays where it is
        group.parts, group.spots = loan.parts, tuple([spot_of[part] for part in loan.parts])
    return True
