"""The HTTP application of the service on Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Collection

from fastapi import APIRouter, FastAPI, Response

from hived.engines.kubernetes.engine import Engine
from hived.server.app import ONCE, guarded, new_app, private
from hived.server.failures import declared
from hived.server.sources import Source

from .engine_service import EngineService
from .extender import extender_routes
from .inspection import inspection_routes
from .metrics import Metrics, metrics_routes
from .routes import api_routes

#: without the token: kube-scheduler and the kubelet cannot send it
_OPEN = re.compile(r"/v1/extender/.*|/readyz", re.DOTALL)
#: Prometheus and users of upstream's inspection go by the address of a pod, and send the token where there is one
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
    """Everything that is served. Without a ``token`` all can be looked at and nothing changed.

    ``hosts``: names that it goes by, see :class:`~hived.server.guard.Guard`.
    """
    service = EngineService(engine, may_change=token is not None)
    app = new_app("HiveD on Kubernetes", _DESCRIPTION, "kubernetes")
    responses = private(token)
    app.include_router(_readiness(engine), responses=declared(503))
    app.include_router(extender_routes(engine, metrics, needs_certificate=needs_certificate))
    app.include_router(inspection_routes(service), responses=responses)
    app.include_router(metrics_routes(metrics), responses=responses)
    app.include_router(api_routes(service), responses=responses, dependencies=ONCE)
    paths = ("/healthz", "/readyz")
    return guarded(app, source, token, hosts, open_paths=paths, open_to_all=_OPEN, by_any_name=_BY_ANY_NAME)


def _readiness(engine: Engine) -> APIRouter:
    router = APIRouter(tags=["engine"])

    @router.get("/readyz", response_class=Response)
    async def check_readiness() -> Response:
        """200 once this replica can do its part: it decides and knows all there is, or it stands by."""
        if not engine.ready:
            why = "pods and nodes are being listed" if engine.leader else "the lease cannot be read"
            return Response(f"not ready: {why} {engine.problem}".rstrip() + "\n", 503, media_type="text/plain")
        role = "decides" if engine.leader else f"stands by; {engine.holder} leads"
        # what was decided stays right while the API server is away
        but = f", but does not hear of Kubernetes: {engine.problem}" if engine.problem else ""
        return Response(f"ready: {engine.identity} {role}{but}\n", media_type="text/plain")

    return router
