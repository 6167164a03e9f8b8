"""Who may ask: the token, and requests of pages that are not ours.

A Unix socket is guarded by the permission of its file, so whoever reaches it needs no token. Over TCP everything but
the page itself needs the token, since other users of the machine reach 127.0.0.1 too. On both, what a browser sends on
behalf of a foreign page is refused, by ``Host`` (DNS rebinding) and by ``Origin`` (cross-site requests): a socket can
be forwarded to a port, and then browsers reach that as well.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .failures import answer

COOKIE = "hived_token"

_OPEN = re.compile(r"/|/static(/.*)?|/favicon\.ico|/healthz|/openapi\.json", re.DOTALL)  #: paths without secrets
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}
_TOKEN_LINK = (
    "open the dashboard's link with ?token=TOKEN, or send the header Authorization: Bearer TOKEN "
    "(the command line does, with --token-file or HIVED_TOKEN)"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # a link with the token in it goes nowhere else
    "Cache-Control": "no-store",
}


class Place(NamedTuple):
    """A host and its port, as a header names it; no port: the scheme's own."""

    name: str
    port: int | None


class Guard:
    """An ASGI application behind its guard.

    ``hosts`` are the names that this server goes by, with a port (``gpu1:8080``: only that) or without (any: a tunnel
    has its own). Those of loopback, and the address that a connection came to, always count: somebody else's name can
    lead here, but an address cannot be made to mean another.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Collection[str],
        local: bool,
        open_to_all: re.Pattern[str] | None = None,
    ) -> None:
        """``open_to_all``: paths for programs, which come by any name and without a token, but never from a page."""
        self._app = app
        self._open_to_all = open_to_all
        self._token = token
        self._hosts = {place(host) for host in hosts}
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # there are none here
            return

        async def harden(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        response = self._instead(Request(scope))
        await (response or self._app)(scope, receive, harden)

    def _instead(self, request: Request) -> Response | None:
        """What a request is answered that the application must not see."""
        named = request.headers.get("host")
        host = place(named or "")
        if self._open_to_all is not None and self._open_to_all.fullmatch(request.scope["path"]):
            # a page under somebody else's name that leads here sends no Origin with a GET, but is in a browser
            browser = "mozilla" in request.headers.get("user-agent", "").lower()
            if "origin" in request.headers or (browser and not self._is_ours(host, request)):
                return answer("forbidden", "a page may not ask for this")
            return None
        if not self._is_ours(host, request) and not (self._local and named is None):
            return answer(
                "forbidden",
                f"this server does not go by the name {(named or '')[:253]!r} that the Host header has; "
                "use localhost, or a name that it was started with",
            )
        origins = request.headers.getlist("origin")
        if any(not _same(origin, host) for origin in origins):
            return answer("forbidden", "a page of another origin may not ask this server")
        if self._local or self._token is None:
            return None
        return self._without_token(request, from_page=bool(origins))

    def _is_ours(self, host: Place, request: Request) -> bool:
        if host.name == "":
            return False
        if self._local and "." not in host.name and ":" not in host.name:
            return True  # what clients call a socket is up to them; no public name is without a dot
        known = host in self._hosts or Place(host.name, None) in self._hosts
        return known or host.name in _LOOPBACK or _is_address(host.name, request)

    def _without_token(self, request: Request, *, from_page: bool) -> Response | None:
        """What becomes of a request over TCP that does not show the token."""
        path, safe = request.scope["path"], request.method in _SAFE_METHODS  # request.url would believe the Host header
        if path == "/" and safe and "token" in request.query_params:
            if not self._is_token(request.query_params["token"]):
                return _unauthorized("the token in this link is not that of this engine")
            response = RedirectResponse("/", status_code=303)
            response.set_cookie(COOKIE, self._token or "", httponly=True, samesite="strict", path="/")
            return response
        if _OPEN.fullmatch(path):
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return None if self._is_token(given.strip()) else _unauthorized("the token is not that of this engine")
        if COOKIE not in request.cookies:
            return _unauthorized("this needs the token")
        if not self._is_token(request.cookies[COOKIE]):
            return _unauthorized("the token of this browser is not that of this engine any more")
        if not safe and not from_page:
            return answer(
                "forbidden", "a change with the cookie needs an Origin header; without, send the token as Bearer"
            )
        return None

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), (self._token or "").encode())


def place(netloc: str) -> Place:
    """The host and port of a ``Host`` header or of the like; an empty name where it cannot be understood."""
    if re.search(r"[^\w.:\[\]-]", netloc, re.ASCII):
        return Place("", None)
    try:
        parts = urlsplit(f"//{netloc}")
        return Place(parts.hostname or "", parts.port)
    except ValueError:
        return Place("", None)


def _is_address(name: str, request: Request) -> bool:
    """Whether ``name`` is the address in numbers that the connection came to."""
    to = (request.scope.get("server") or ("", None))[0]
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(to)
    except ValueError:
        return False


def _same(origin: str, host: Place) -> bool:
    """Whether a page of ``origin`` came from ``host``: the same name and port, whoever may have added the TLS."""
    scheme, _, rest = origin.partition("://")
    if scheme not in _PORTS or host.name == "":
        return False
    page = place(rest)
    return page.name == host.name and (page.port or _PORTS[scheme]) == (host.port or _PORTS[scheme])


def _unauthorized(message: str) -> Response:
    return answer("unauthorized", f"{message}: {_TOKEN_LINK}", headers={"WWW-Authenticate": 'Bearer realm="hived"'})
