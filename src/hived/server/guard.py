"""Authorization of requests: the token, and protection against foreign pages in a browser.

A Unix socket is guarded by the permission of its file, so its clients need no token. Over TCP everything but the page
itself needs the token, since other users of the machine reach 127.0.0.1 too. On both, requests of a browser on behalf
of a foreign page are refused, by ``Host`` (DNS rebinding) and by ``Origin`` (cross-site requests): a socket can be
forwarded to a port, which browsers reach.

A browser sends a cookie to every server on its host, whatever the port. So the cookie of the dashboard is named after
its server, holds nothing of a token's secret, is valid for no other server, and only reads: a change needs the token,
or the key of a session (:mod:`hived.access.sessions`).

The engine's own token is its owner's, and does everything; the link of the dashboard has something else
(:func:`looking`), which gives the cookie alone. A person's token (:mod:`hived.access.tokens`) is theirs; it
and its cookie end when it is revoked or has expired. Who asks is ``scope["state"]["person"]`` from here on.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Collection, MutableMapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hived.access import Person
from hived.errors import UnavailableError

from .failures import answer

#: paths without secrets; what signs in shows a code of its own
_OPEN = re.compile(r"/|/static(/.*)?|/favicon\.ico|/healthz|/openapi\.json|/v1/sign-in", re.DOTALL)
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}
_TOKEN_HEADER = (
    "needs the header Authorization: Bearer TOKEN (the command line sends it, with --token-file or HIVED_TOKEN)"
)
_TOKEN_LINK = f"open the dashboard's link with ?token=TOKEN; a program {_TOKEN_HEADER}"
_NOT_IN_FORCE = (
    "the token is none of this engine, or it has expired or was revoked; make another on the engine's machine (hived "
    "token create), and show it with --token-file or HIVED_TOKEN"
)
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="hived"'}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # a link with the token in it goes nowhere else
    "Cache-Control": "no-store",
}


class Place(NamedTuple):
    """A host and its port, as named in a header; no port: the scheme's default."""

    name: str
    port: int | None


class Holders(Protocol):
    """Who holds which token."""

    @property
    def owner(self) -> Person:
        """Whose the engine's own token is, and the socket where the kernel says nothing of its peer."""

    async def holder(self, text: str) -> Person | None:
        """Whose a token in force is. Raises :class:`~hived.errors.UnavailableError` where that cannot be found out."""

    def by_id(self, number: str) -> Person | None:
        """The same, by its id."""


class _NoTokens:
    """Nobody has a token of their own."""

    owner = Person("", owns=True)

    async def holder(self, _text: str) -> Person | None:
        return None

    def by_id(self, _number: str) -> Person | None:
        return None


_NOTHING = re.compile(r"(?!)")


class Guard:
    """An ASGI application behind authorization.

    ``hosts`` are the names of this server, with a port (``gpu1:8080``: only that) or without (any: a tunnel has its
    own). Loopback names, and the address of the connection, are always accepted: a foreign name can resolve to this
    server, but an address cannot mean another one.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Collection[str],
        local: bool,
        open_to_all: re.Pattern[str] = _NOTHING,
        by_any_name: re.Pattern[str] = _NOTHING,
        holders: Holders | None = None,
    ) -> None:
        """``open_to_all``: paths for programs, served under any host name and without a token, but never to a page.

        ``by_any_name``: the same, but they need the token if the server has one.
        """
        self._app = app
        self._open_to_all, self._by_any_name = open_to_all, by_any_name
        self._token = token
        self._hosts = {place(host) for host in hosts}
        self._local = local
        self._holders = holders or _NoTokens()
        self._knows_people = token is not None or holders is not None
        self._cookie, self._session = session(token or "")
        self._looking = None if token is None else looking(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # this server has no websockets
            return

        async def harden(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if (person := scope["state"].get("signed_in")) is not None and not self._local:
                    headers.append("Set-Cookie", self._cookie_of(person, scope))
            await send(message)

        scope.setdefault("state", {})
        try:
            response = await self._instead(Request(scope))
        except UnavailableError as error:
            response = answer("unavailable", str(error))
        await (response or self._app)(scope, receive, harden)

    async def _instead(self, request: Request) -> Response | None:
        """The refusal of a request, or another answer in place of the application's; None: pass the request on."""
        named = request.headers.get("host")
        host = place(named or "")
        path = request.scope["path"]
        is_open = self._open_to_all.fullmatch(path) is not None
        if is_open or self._by_any_name.fullmatch(path):
            # a page under a foreign name that resolves to this server sends no Origin with a GET, but is in a browser
            browser = "mozilla" in request.headers.get("user-agent", "").lower()
            if "origin" in request.headers or (browser and not self._is_ours(host, request)):
                return answer("forbidden", "a page may not ask for this")
            return None if is_open or self._token is None else await self._without_token(request)
        if not self._is_ours(host, request) and not (self._local and named is None):
            return answer(
                "forbidden",
                f"this server does not go by the name {(named or '')[:253]!r} that the Host header has; "
                "use localhost, or a name that it was started with",
            )
        origins = request.headers.getlist("origin")
        if any(not _same(origin, host) for origin in origins):
            return answer("forbidden", "a page of another origin may not ask this server")
        if self._local:
            scope_state(request).setdefault("person", self._holders.owner)
        elif self._knows_people and (refusal := await self._without_token(request)) is not None:
            return refusal
        if path.endswith("\n"):  # routes match it as if it were not there, and so would pass what reads the path itself
            return answer("not_found", f"there is nothing at {path!r}")
        return None

    def _is_ours(self, host: Place, request: Request) -> bool:
        if host.name == "":
            return False
        if self._local and "." not in host.name and ":" not in host.name:
            return True  # clients name a socket as they like; no public name is without a dot
        known = host in self._hosts or Place(host.name, None) in self._hosts
        return known or host.name in _LOOPBACK or _is_address(host.name, request)

    async def _without_token(self, request: Request) -> Response | None:
        """The answer to a request over TCP that shows no token in force; None: pass it on, and say whose it is."""
        path, safe = request.scope["path"], request.method in _SAFE_METHODS  # request.url would believe the Host header
        if path == "/" and safe and "token" in request.query_params:
            given = request.query_params["token"]
            looks = self._looking is not None and _is(given, self._looking)
            found = self._holders.owner if looks else await self._shown(given)
            if found is None or not (found.owns or found.token):  # of Kubernetes: nothing to make a cookie of
                return _unauthorized("the token in this link is none of this engine, or is no longer in force")
            return RedirectResponse("/", 303, {"Set-Cookie": self._cookie_of(found, request.scope)})
        if _OPEN.fullmatch(path):
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found = await self._shown(given.strip())
            if found is None:
                return answer("unauthorized", _NOT_IN_FORCE, headers=_CHALLENGE)
        elif self._token is None:
            return None  # who shows nothing looks
        else:
            found = self._in_session(request.cookies.get(self._cookie, ""))
            if found is None:
                return _unauthorized("this needs the token")
            if not safe:
                return answer("forbidden", f"the cookie of the dashboard only looks, and a change {_TOKEN_HEADER}")
            scope_state(request)["looks"] = True
        scope_state(request)["person"] = found
        return None

    async def _shown(self, text: str) -> Person | None:
        """Who shows this token."""
        if self._token is not None and _is(text, self._token):
            return self._holders.owner
        return await self._holders.holder(text)

    def _cookie_of(self, person: Person, scope: Scope) -> str:
        """The header that gives a browser the cookie of a person."""
        made = Response()
        made.set_cookie(
            self._cookie,
            self._session_of(person),
            httponly=True,
            samesite="strict",
            path="/",
            secure=scope["scheme"] == "https",
        )
        return made.headers["set-cookie"]

    def _session_of(self, person: Person) -> str:
        """The value of a person's cookie: the id of their token, and that this server has made it."""
        if not person.token:
            return self._session
        return f"{person.token}.{hmac.digest(self._session.encode(), person.token.encode(), 'sha256').hex()}"

    def _in_session(self, cookie: str) -> Person | None:
        """Whose a cookie is, while their token is in force."""
        number, sign, _ = cookie.partition(".")
        found = self._holders.by_id(number) if sign else self._holders.owner
        return found if found is not None and _is(cookie, self._session_of(found)) else None


def scope_state(request: Request) -> MutableMapping[str, Any]:
    """What is known of a request."""
    found: MutableMapping[str, Any] = request.scope["state"]
    return found


def session(token: str) -> tuple[str, str]:
    """Name and value of the cookie of the server with this token: the same after a restart, and on every replica."""
    name, value = (hmac.digest(token.encode(), what, "sha256").hex() for what in (b"cookie", b"session"))
    return f"hived_{name[:16]}", value


def looking(token: str) -> str:
    """What a link shows in place of the engine's token, to be given on: it opens the dashboard, and nothing else."""
    return hmac.digest(token.encode(), b"looking", "sha256").hex()[:32]


def _is(given: str, right: str | None) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), (right or "").encode())


def place(netloc: str) -> Place:
    """The host and port of a ``Host`` header or the like; an empty name where it is malformed."""
    if re.search(r"[^\w.:\[\]-]", netloc, re.ASCII):
        return Place("", None)
    try:
        parts = urlsplit(f"//{netloc}")
        return Place(parts.hostname or "", parts.port)
    except ValueError:
        return Place("", None)


def _is_address(name: str, request: Request) -> bool:
    """Whether ``name`` is the numeric address to which the connection was made."""
    to = (request.scope.get("server") or ("", None))[0]
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(to)
    except ValueError:
        return False


def _same(origin: str, host: Place) -> bool:
    """Whether a page of ``origin`` came from ``host``: the same name and port, even if a proxy has added TLS."""
    scheme, _, rest = origin.partition("://")
    if scheme not in _PORTS or host.name == "":
        return False
    page = place(rest)
    return page.name == host.name and (page.port or _PORTS[scheme]) == (host.port or _PORTS[scheme])


def _unauthorized(message: str) -> Response:
    return answer("unauthorized", f"{message}: {_TOKEN_LINK}", headers=_CHALLENGE)
