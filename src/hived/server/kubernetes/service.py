"""What the HTTP API asks of the service on Kubernetes, in the words of :mod:`.schema`."""

from __future__ import annotations

from typing import Protocol

from .schema import (
    Drained,
    DrainRequest,
    GroupExplanation,
    GroupInfo,
    Groups,
    PlanAnswer,
    PlanRequest,
    Status,
    VcDetail,
)


class KubernetesService(Protocol):
    """The engine, as the API sees it. One thread: that of the event loop.

    ``ref`` is the name of a group, or a pod's ``namespace/name`` or ``name`` (of namespace ``default``). Raises what
    :mod:`hived.errors` has: :class:`~hived.errors.NotFoundError` for what is not there,
    :class:`~hived.errors.UnavailableError` while it is not ready or Kubernetes does not answer.
    """

    def status(self) -> Status:
        """The service and its cluster."""

    def vc(self, name: str) -> VcDetail:
        """One virtual cluster."""

    def groups(self, vc: str | None, state: str | None, limit: int, offset: int) -> Groups:
        """Groups by name."""

    def group(self, ref: str) -> GroupInfo:
        """One group."""

    def explain(self, ref: str) -> GroupExplanation:
        """Why it waits, where it is."""

    def plan(self, request: PlanRequest) -> PlanAnswer:
        """What manifests would come to now. Raises :class:`~hived.errors.InputError` for those that are wrong."""

    async def drain(self, request: DrainRequest) -> Drained:
        """Cordon a node, or take that back."""
