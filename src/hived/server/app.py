"""The HTTP application: the API of an engine and its dashboard, or the dashboard of results alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import Depends, FastAPI

from hived import __version__
from hived.errors import ensure

from .dashboard import Source, dashboard_routes
from .failures import answer_failures, declared
from .guard import Guard
from .limits import Limits
from .local_metrics import LocalMetrics
from .local_service import LocalService
from .metrics import Metrics, metrics_routes
from .routes import api_routes, refuse_repeats
from .schema import EngineKind, Health
from .service import Service

_DESCRIPTION = """\
Share the GPUs of a machine among teams, so that each has what a machine of its own share would give it.

Every error has the shape of `ErrorAnswer`: a `code` for programs, a `message` for people, and the `field` of the
request where one is wrong. Times are seconds since the epoch. Over a Unix socket the permission of its file is the
guard; over TCP every request needs a token. Who may do what is up to the spec: docs/reference/permissions.md.
"""
_TAGS = [
    {"name": "jobs", "description": "Submit, follow, explain, cancel."},
    {"name": "events", "description": "What happened, and what happens."},
    {"name": "cluster", "description": "GPUs, nodes, virtual clusters, the spec, and the engine itself."},
    {"name": "trades", "description": "Cells that virtual clusters trade."},
    {"name": "tokens", "description": "Tokens of people, for an engine that is reached over TCP."},
    {"name": "sessions", "description": "Who asks, and browsers that act as somebody."},
    {"name": "engine", "description": "Whether it answers, and its metrics."},
    {"name": "dashboard", "description": "What the dashboard is drawn from."},
]
#: of routes that take parameters
ONCE = [Depends(refuse_repeats)]


def make_app(
    service: LocalService | None, source: Source, *, token: str | None, hosts: Collection[str], local: bool = False
) -> FastAPI:
    """The application that shows ``source``, and with a ``service`` has its API; without, it can only be looked at.

    ``local`` is for a Unix socket: no token. Over TCP a service needs one. ``hosts``: see :class:`~.guard.Guard`.
    """
    ensure(service is None or local or token is not None, "an engine that listens on TCP has a token")
    ensure(token is None or (token != "" and token.isascii()), "a token is some ASCII characters")
    app = new_app(
        "HiveD",
        _DESCRIPTION,
        "results" if service is None else "local",
        summary="One GPU cluster, shared as cells.",
        openapi_tags=_TAGS,
    )
    if service is not None:
        add_api(app, service, LocalMetrics(service), private(token, local))
    return guarded(app, source, token, hosts, local=local, holders=service)


def add_api(
    app: FastAPI, service: Service[Any], metrics: Metrics[Any], errors: dict[int | str, dict[str, Any]]
) -> None:
    """Serve ``/v1`` of ``service`` and ``/metrics``, the same for both engines; ``errors``: of any request."""
    for router in api_routes(service, errors):
        app.include_router(router)
    app.include_router(metrics_routes(metrics), responses=errors)


def new_app(title: str, description: str, engine: EngineKind, **more: Any) -> FastAPI:
    """An application of which nothing is served yet but ``/healthz``; ``more``: of FastAPI's."""
    app = FastAPI(
        title=title,
        version=__version__,
        description=description,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # they would redirect to whatever the Host header says
        generate_unique_id_function=lambda route: route.name,
        **more,
    )
    answer_failures(app)

    @app.get("/healthz", tags=["engine"], responses=declared(403))
    async def check_health() -> Health:
        """Whether the server answers, and what it is; needs no token."""
        return Health(engine=engine)

    return app


def guarded(
    app: FastAPI,
    source: Source,
    token: str | None,
    hosts: Collection[str],
    *,
    local: bool = False,
    open_paths: Collection[str] = ("/healthz",),
    **more: Any,
) -> FastAPI:
    """``app`` with the dashboard of ``source``, behind all that guards it; ``more``: of :class:`~.guard.Guard`."""
    looks = {**private(token, local), **declared(403, 404, 409, 422, 429, 503)}
    app.include_router(dashboard_routes(source), responses=looks, dependencies=ONCE)
    if not local and token is not None:
        _declare_token(app, open_paths)
    # the last that is added is the first that sees a request
    app.add_middleware(Limits)
    app.add_middleware(Guard, token=token, hosts=hosts, local=local, **more)
    return app


def private(token: str | None, local: bool = False) -> dict[int | str, dict[str, Any]]:
    """What is declared to be answered where a token has to be shown."""
    return declared() if local or token is None else declared(401)


def _declare_token(app: FastAPI, open_paths: Collection[str]) -> None:
    """Say in the OpenAPI document how the token is shown, and where it need not be."""
    plain = app.openapi

    def with_token() -> dict[str, Any]:
        document = plain()  # made once
        document.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        for path in open_paths:
            document["paths"][path]["get"]["security"] = []
        return document

    app.openapi = with_token  # type: ignore[method-assign]  # as FastAPI documents it
