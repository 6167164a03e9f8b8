"""What was offered to groups that hold nothing yet: only that can be committed, and once."""

from __future__ import annotations

from hived.errors import RequestError

from .decisions import Bind, Preempt
from .plans import Plan

#: how many groups' offers are kept; those offered something first are forgotten first
GROUPS = 10_000
#: how many offers to one group
OFFERS = 16


class Offers:
    """Offers by group, with their plans. All operations are O(offers to one group)."""

    __slots__ = ("_by_group",)

    def __init__(self) -> None:
        self._by_group: dict[str, list[tuple[Bind | Preempt, Plan]]] = {}

    def remember(self, decision: Bind | Preempt, plan: Plan) -> None:
        """``decision`` was offered to its group, in place of what was offered to another request of that name."""
        offers = self._by_group.pop(decision.group, None)
        if offers is None or offers[-1][1].request != plan.request:
            offers = []
        offers.append((decision, plan))
        self._by_group[decision.group] = offers[-OFFERS:]
        if len(self._by_group) > GROUPS:
            del self._by_group[next(iter(self._by_group))]

    def plan(self, decision: Bind | Preempt) -> Plan:
        """The plan of the latest offer equal to ``decision``. Raises :class:`RequestError` when there is none."""
        group = decision.group if isinstance(decision.group, str) else ""
        for offered, plan in reversed(self._by_group.get(group, ())):
            if offered is decision or offered == decision:
                return plan
        raise RequestError(
            "decision", f"{decision.group!r} was not offered this, or not since it last ran; schedule it again"
        )

    def forget(self, group: str) -> None:
        """``group`` has taken an offer, has ended, or is withdrawn."""
        self._by_group.pop(group, None)
