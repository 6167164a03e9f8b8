"""Whose a bearer token is, by the API server (TokenReview): users and service accounts, as Kubernetes knows them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from .api import KubeApi

_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
#: for how long an answer holds, in seconds: so long a token that was revoked opens something yet
HOLDS_S = 60.0
_REMEMBERED = 10_000  #: answers
_LONGEST = 16_384  #: characters of a token


class _User(msgspec.Struct):
    username: str = ""
    groups: list[str] | None = None


class _ReviewStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User | None = None
    audiences: list[str] | None = None


class _Review(msgspec.Struct):
    status: _ReviewStatus


class TokenReviews:
    """Asks the API server whose tokens are, and remembers its answers by a digest of them."""

    def __init__(self, api: KubeApi, audience: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``audience``: for whom tokens have to be made, so that one for the API server opens nothing here."""
        self._api, self._audience, self._clock = api, audience, clock
        self._known: OrderedDict[bytes, tuple[float, tuple[str, frozenset[str]] | None]] = OrderedDict()
        self._asking = asyncio.Semaphore(8)

    async def who(self, token: str) -> tuple[str, frozenset[str]] | None:
        """The user and groups of a token in force; None: it is none of this cluster, or for others.

        Raises :class:`~hived.errors.UnavailableError` where the API server does not answer, or lets nobody ask.
        """
        if not 0 < len(token) <= _LONGEST or not token.isascii():
            return None
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None and self._clock() < known[0]:
            return known[1]
        async with self._asking:  # whoever shows any token must not flood the API server
            found = await self._ask(token)
        self._known[digest] = self._clock() + HOLDS_S, found
        self._known.move_to_end(digest)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return found

    async def _ask(self, token: str) -> tuple[str, frozenset[str]] | None:
        spec = {"token": token, "audiences": [self._audience]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        status = msgspec.json.decode(await self._api.post(_PATH, body), type=_Review).status
        user = status.user
        if not status.authenticated or user is None or self._audience not in (status.audiences or ()):
            return None
        return (user.username, frozenset(user.groups or ())) if user.username else None
