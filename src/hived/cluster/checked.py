"""A self-checking cluster, for tests and for debugging in production."""

from __future__ import annotations

from typing import Any

from .cluster import Cluster
from .decisions import Decision
from .groups import Group


class CheckedCluster(Cluster):
    """A :class:`Cluster` that re-derives its state after every answer and every change. O(cluster) each.

    Raises :class:`~hived.errors.InvariantError` at the change that broke an invariant, rather than at its consequences.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.validate()

    def schedule(self, *arguments: Any, **named: Any) -> Decision:
        decision = super().schedule(*arguments, **named)
        self.validate()
        return decision

    def cancel(self, group: str) -> None:
        super().cancel(group)
        self.validate()

    def _commit(self, group: Group | None = None) -> None:
        super()._commit(group)
        self.validate()
