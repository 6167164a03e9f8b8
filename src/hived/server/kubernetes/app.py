"""The HTTP application of the service on Kubernetes, and ``/v1`` of the command line: groups, plans and drains."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Path, Query, Response

from hived.engine.states import JobState
from hived.engines.kubernetes.engine import Engine
from hived.server.app import ONCE, guarded, new_app, private
from hived.server.dashboard import Source
from hived.server.exchange import exchange_routes
from hived.server.failures import declared
from hived.server.routes import BODY, AtMost, First, Vc

from . import schema
from .engine_service import EngineService
from .extender import extender_routes
from .inspection import inspection_routes
from .metrics import Metrics, metrics_routes
from .schema import Groups

if TYPE_CHECKING:
    from .engine_service import EngineService


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
State = Annotated[JobState | None, Query(description="Only in this state.")]

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
    """The API of ``service``, which is called in the event loop's thread."""
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
    async def list_groups(vc: Vc = None, state: State = None, limit: AtMost = 100, offset: First = 0) -> Groups:
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


#: open without the token: kube-scheduler and the kubelet cannot send it
_OPEN = re.compile(r"/v1/extender/.*|/readyz", re.DOTALL)
#: served under any host name: Prometheus and users of upstream's inspection use pod addresses, with the token if any
_BY_ANY_NAME = re.compile(r"/v1/inspect/.*|/metrics", re.DOTALL)
_DESCRIPTION = """\
HiveD as kube-scheduler's extender, and what it knows of its cluster.

Every error has the shape of `ErrorAnswer`, but for those under `/v1/extender` and `/v1/inspect`, which have upstream's.
"""


def make_kubernetes_app(
    engine: Engine,
    source: Source,
    metrics: Metrics,
    *,
    token: str | None,
    hosts: Collection[str],
    needs_certificate: bool = False,
) -> FastAPI:
    """The whole HTTP application. Without a ``token`` it is read-only.

    ``hosts``: accepted host names, see :class:`~hived.server.guard.Guard`.
    """
    service = EngineService(engine, may_change=token is not None)
    app = new_app("HiveD on Kubernetes", _DESCRIPTION, "kubernetes")
    responses = private(token)

    @app.get("/readyz", tags=["engine"], response_class=Response, responses=declared(503))
    async def check_readiness() -> Response:
        """200 once this replica can do its part: it decides and knows all there is, or it stands by."""
        if not engine.ready:
            why = "pods and nodes are being listed" if engine.leader else "the lease cannot be read"
            return Response(f"not ready: {why} {engine.problem}".rstrip() + "\n", 503, media_type="text/plain")
        role = "decides" if engine.leader else f"stands by; {engine.holder} leads"
        # decisions stay valid while the API server is away
        but = f", but does not hear of Kubernetes: {engine.problem}" if engine.problem else ""
        return Response(f"ready: {engine.identity} {role}{but}\n", media_type="text/plain")

    app.include_router(extender_routes(engine, metrics, needs_certificate=needs_certificate))
    app.include_router(inspection_routes(service), responses=responses)
    app.include_router(metrics_routes(metrics), responses=responses)
    app.include_router(api_routes(service), responses=responses, dependencies=ONCE)
    app.include_router(exchange_routes(service.market), responses=responses, dependencies=ONCE)
    paths = ("/healthz", "/readyz")
    return guarded(app, source, token, hosts, open_paths=paths, open_to_all=_OPEN, by_any_name=_BY_ANY_NAME)
