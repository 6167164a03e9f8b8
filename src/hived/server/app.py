"""The HTTP application: the API of an engine and its dashboard, or the dashboard of results alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute

from hived import __version__
from hived.errors import ensure

from .dashboard import dashboard_routes
from .engine_routes import engine_routes
from .failures import Unexpected, answer_failures, declared
from .guard import Guard
from .job_routes import job_routes
from .limits import Limits
from .parameters import refuse_repeats
from .schema import EngineKind, Health
from .service import Service
from .sources import Source

_DESCRIPTION = """\
Share the GPUs of a machine among teams, so that each has what a machine of its own share would give it.

Every error has the shape of `ErrorAnswer`: a `code` for programs, a `message` for people, and the `field` of the
request where one is wrong. Times are seconds since the epoch. Over a Unix socket the permission of its file is the
guard; over TCP every request needs the token.
"""
_TAGS = [
    {"name": "jobs", "description": "Submit, follow, explain, cancel."},
    {"name": "events", "description": "What happened, and what happens."},
    {"name": "engine", "description": "The engine, its devices, its spec."},
    {"name": "dashboard", "description": "What the dashboard is drawn from."},
]


def make_app(
    service: Service | None, source: Source, *, token: str | None, hosts: Collection[str], local: bool = False
) -> FastAPI:
    """The application that shows ``source``, and with a ``service`` has its API; without, it can only be looked at.

    ``local`` is for a Unix socket: no token. Over TCP a service needs one. ``hosts``: see :class:`~.guard.Guard`.
    """
    ensure(service is None or local or token is not None, "an engine that listens on TCP has a token")
    ensure(token is None or (token != "" and token.isascii()), "a token is some ASCII characters")
    app = FastAPI(
        title="HiveD",
        version=__version__,
        summary="One GPU cluster, shared as cells.",
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # they would redirect to whatever the Host header says
        generate_unique_id_function=operation,
    )
    answer_failures(app)
    app.include_router(health_routes("results" if service is None else "local"), responses=declared(403))
    private = declared() if local or token is None else declared(401)
    once = [Depends(refuse_repeats)]
    if service is not None:
        app.include_router(job_routes(service), responses=private, dependencies=once)
        app.include_router(engine_routes(service), responses=private, dependencies=once)
    looks = {**private, **declared(403, 404, 409, 422, 429, 503)}
    app.include_router(dashboard_routes(source), responses=looks, dependencies=once)
    if not local and token is not None:
        declare_token(app)
    # the last that is added is the first that sees a request
    app.add_middleware(Limits)
    app.add_middleware(Guard, token=token, hosts=hosts, local=local)
    app.add_middleware(Unexpected)
    return app


def operation(route: APIRoute) -> str:
    """What an API document calls a route."""
    return route.name


def health_routes(engine: EngineKind) -> APIRouter:
    """``/healthz`` of an application that is this kind of engine."""
    router = APIRouter(tags=["engine"])

    @router.get("/healthz")
    async def check_health() -> Health:
        """Whether the server answers, and what it is; needs no token."""
        return Health(engine=engine)

    return router


def declare_token(app: FastAPI, open_paths: Collection[str] = ("/healthz",)) -> None:
    """Say in the OpenAPI document how the token is shown, and where it need not be."""
    plain = app.openapi

    def with_token() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            schemes = {"token": {"type": "http", "scheme": "bearer"}}
            document.setdefault("components", {})["securitySchemes"] = schemes
            document["security"] = [{"token": []}]
            for path in open_paths:
                document["paths"][path]["get"]["security"] = []
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = with_token  # type: ignore[method-assign]  # as FastAPI documents it
