"""The contract of a shared cluster, the same for the three sharing schemes that the papers compare.

A cluster answers four requests and keeps no queue: who is next is a policy's business. Each request changes the state
at once and fully, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..allocation import Allocation, ClusterView, Grant, Part, Place

#: A placement for people: per node its name and the device indices.
NamedPlacement = tuple[tuple[str, tuple[int, ...]], ...]


class SharedCluster(Protocol):
    """What a scheduler asks of a private, a quota-shared or a HiveD cluster."""

    @property
    def tenants(self) -> Sequence[str]:
        """Names of the tenants; everywhere else a tenant is its number here."""

    @property
    def lends(self) -> bool:
        """Whether idle GPUs are lent to opportunistic jobs at all."""

    @property
    def independent(self) -> bool:
        """Whether a tenant's guaranteed requests depend on that tenant's own jobs alone."""

    def waits_for_others(self, tenant: int, gpus: int) -> bool:
        """Whether GPUs that other tenants give back may be all that a guaranteed request of this size lacks."""

    def view(self, tenant: int) -> ClusterView:
        """The cluster as this tenant's policy sees it."""

    def guarantee(self, holder: Allocation, place: Place) -> Grant | None:
        """Make ``holder`` guaranteed: from nothing, or from opportunistic (in place where that can be, else moved).

        Opportunistic jobs in the way lose their GPUs and are returned. ``None``: it must wait, nothing changed.
        """

    def lend(self, holder: Allocation) -> bool:
        """Start ``holder`` on idle GPUs; ``False``: there are none that suit, nothing changed."""

    def release(self, holder: Allocation) -> None:
        """``holder`` gives all its GPUs back."""

    def can_lend(self, gpus: int) -> bool:
        """Whether a job of this size would start on idle GPUs now."""

    def can_ever_lend(self, gpus: int) -> bool:
        """Whether it would if nobody else ran."""

    def lent(self, tenant: int) -> int:
        """GPUs that the tenant's jobs hold opportunistically."""

    def named(self, parts: Sequence[Part]) -> NamedPlacement:
        """A placement with the names of the spec."""

    def node_sizes(self) -> Sequence[Sequence[int]]:
        """GPUs of every node, per chain (in the private scheme: per pool). O(nodes)."""

    def validate(self) -> None:
        """Re-derive every index and count from scratch; :class:`~hived.errors.InvariantError` where one is off."""
