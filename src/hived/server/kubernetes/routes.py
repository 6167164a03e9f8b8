"""``/v1`` on Kubernetes: the cluster, its virtual clusters, its groups; plans and drains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, Path, Query

from hived.server.failures import declared
from hived.server.routes import BODY, Vc

from . import schema
from .schema import Groups, GroupStateName

if TYPE_CHECKING:
    from .engine_service import EngineService

_LARGEST = 2**63 - 1

VcName = Annotated[str, Path(min_length=1, max_length=253, description="A virtual cluster.", examples=["vision"])]
GroupRef = Annotated[
    str,
    Path(
        min_length=1,
        max_length=1_024,
        description="A group by its name, or by a pod of it: `namespace/name`, or `name` in the namespace `default`.",
        examples=["train"],
    ),
]
State = Annotated[GroupStateName | None, Query(description="Only in this state.")]
Limit = Annotated[int, Query(ge=1, le=1_000, description="At most so many.")]
FirstGroup = Annotated[int, Query(ge=0, le=_LARGEST, description="How many to leave out: the pages before.")]

_POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "labels": {"hived.io/vc": "vision"}},
    "spec": {"containers": [{"name": "train", "image": "train", "resources": {"limits": {"nvidia.com/gpu": 4}}}]},
}
_PLANS: dict[str, Any] = {"a pod of four GPUs": {"value": {"objects": [_POD]}}}
_DRAINS: dict[str, Any] = {
    "no new pods": {"value": {"node": "gpu1"}},
    "let pods come again": {"value": {"node": "gpu1", "undo": True}},
}


def api_routes(service: EngineService) -> APIRouter:
    """The API of ``service``, which is asked in the event loop's thread."""
    router = APIRouter(prefix="/v1", tags=["cluster"])

    @router.get("/status", responses=declared(403, 503))
    async def get_status() -> schema.Status:
        """The service and its cluster, at a glance."""
        return service.status()

    @router.get("/vcs", responses=declared(403, 503))
    async def list_vcs() -> list[schema.VcSummary]:
        """The virtual clusters, in GPUs."""
        return service.status().vcs

    @router.get("/vcs/{name:path}", responses=declared(403, 404, 422, 503))
    async def get_vc(name: VcName) -> schema.VcDetail:
        """One virtual cluster: what it reserved, what runs in it, what waits."""
        return service.vc(name)

    @router.get("/groups", responses=declared(403, 404, 422, 503))
    async def list_groups(vc: Vc = None, state: State = None, limit: Limit = 100, offset: FirstGroup = 0) -> Groups:
        """Affinity groups, by name."""
        return service.groups(vc, state, limit, offset)

    @router.get("/groups/{ref:path}", responses=declared(403, 404, 422, 503))
    async def get_group(ref: GroupRef) -> schema.GroupInfo:
        """One affinity group."""
        return service.group(ref)

    @router.get("/explain/{ref:path}", responses=declared(403, 404, 422, 503))
    async def explain_group(ref: GroupRef) -> schema.GroupExplanation:
        """Why a group waits, where it is, whom it waits for."""
        return service.explain(ref)

    @router.post("/plan", responses=declared(*BODY, 404, 409, 503))
    async def plan_objects(request: Annotated[schema.PlanRequest, Body(openapi_examples=_PLANS)]) -> schema.PlanAnswer:
        """What would become of manifests now; nothing is created, nothing is remembered."""
        return service.plan(request)

    @router.post("/drain", responses=declared(*BODY, 404, 409, 503))
    async def drain_node(request: Annotated[schema.DrainRequest, Body(openapi_examples=_DRAINS)]) -> schema.Drained:
        """Cordon a node, or let pods come again. Whoever runs there runs on."""
        return await service.drain(request)

    return router
