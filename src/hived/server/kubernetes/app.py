"""The HTTP application of the service on Kubernetes: the API, and the doors of kube-scheduler and of upstream."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from fastapi import FastAPI, Response

from hived.engines.kubernetes.engine import Engine
from hived.server.app import add_api, guarded, new_app, private
from hived.server.dashboard import Source
from hived.server.failures import declared
from hived.server.guard import Holders

from .engine_service import EngineService
from .extender import extender_routes
from .inspection import inspection_routes
from .metrics import KubernetesMetrics

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
    *,
    token: str | None,
    hosts: Collection[str],
    needs_certificate: bool = False,
    measured: Callable[[Engine, EngineService], KubernetesMetrics] = KubernetesMetrics,
    people: Holders | None = None,
) -> FastAPI:
    """The whole HTTP application. Without a ``token`` of its own and ``people`` it is read-only.

    ``people``: whose other tokens are; who shows none looks then, where it has no ``token``.
    ``measured`` makes its metrics. ``hosts``: accepted host names, see :class:`~hived.server.guard.Guard`.
    """
    service = EngineService(engine, may_change=token is not None or people is not None)
    metrics = measured(engine, service)
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
    add_api(app, service, metrics, responses)
    paths = ("/healthz", "/readyz")
    return guarded(
        app, source, token, hosts, open_paths=paths, open_to_all=_OPEN, by_any_name=_BY_ANY_NAME, holders=people
    )
