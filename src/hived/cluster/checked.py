"""A cluster that doubts itself: for tests, and for a production cluster that somebody suspects."""

from __future__ import annotations

from collections.abc import Callable, Collection

from hived.cells import LevelSafety, Rank
from hived.spec.compiled import ClusterSpec

from .cluster import Cluster
from .decisions import Decision
from .groups import Group
from .pool import packed
from .requests import Request


class CheckedCluster(Cluster):
    """Like :class:`Cluster`, and re-derives everything after every answer and every change. O(cluster) each.

    Raises :class:`~hived.errors.InvariantError` at the change that broke something, rather than at what follows from
    it. ``on_safety``: told the rows of ``check_safety`` then, for a metric.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        on_safety: Callable[[tuple[LevelSafety, ...]], None] | None = None,
        rank: Rank = packed,
    ) -> None:
        super().__init__(spec, rank=rank)
        self._on_safety = on_safety
        self._check()

    def _check(self) -> None:
        self.validate()
        rows = self.check_safety()
        if self._on_safety is not None:
            self._on_safety(rows)

    def schedule(
        self,
        request: Request,
        suggested_nodes: Collection[str] | None = None,
        now: float = 0.0,
        excluded_nodes: Collection[str] = (),
    ) -> Decision:
        decision = super().schedule(request, suggested_nodes, now, excluded_nodes)
        self.validate()
        return decision

    def cancel(self, group: str) -> None:
        super().cancel(group)
        self._check()

    def _keep(self, group: Group | None = None) -> None:
        super()._keep(group)
        self._check()
