"""People whom Kubernetes knows: what a server makes of tokens; whose they are, a real API server says in real/."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hived.access import NOBODY, Person
from hived.engines.kubernetes.client.api import ApiError
from hived.engines.kubernetes.client.token_review import HOLDS_S, TokenReviews
from hived.errors import UnavailableError
from hived.server.failures import answer as answered
from hived.server.guard import Guard, session
from hived.server.limits import asking

from ..server.api.client import Client
from .test_api import ok, talking

ANN = Person("system:serviceaccount:team:ann", frozenset({"system:serviceaccounts:team"}))
OWN = "the-service's-own-token"


def review(authenticated: bool = True, audiences: tuple[str, ...] = ("hived",), **user: Any) -> bytes:
    said = {
        "authenticated": authenticated,
        "audiences": list(audiences),
        "user": user or {"username": "ann", "groups": ["ml"]},
    }
    return ok(json.dumps({"kind": "TokenReview", "status": said}).encode(), "201 Created")


@pytest.mark.parametrize(
    ("said", "who"),
    [
        (review(), ("ann", frozenset({"ml"}))),
        (review(username="bob"), ("bob", frozenset())),
        (review(authenticated=False), None),
        (review(audiences=("https://kubernetes.default.svc",)), None),
        (review(audiences=()), None),
        (review(username=""), None),
        (ok(b'{"status": {}}', "201 Created"), None),
    ],
)
def test_whose_a_token_is(tmp_path: Path, said: bytes, who: tuple[str, frozenset[str]] | None) -> None:
    """One that was made for others opens nothing, whoever's it is."""

    async def story() -> None:
        async with talking(tmp_path, lambda head: said) as api:
            assert await TokenReviews(api, "hived").who("a-token") == who

    asyncio.run(story())


def test_answers_hold_for_a_minute(tmp_path: Path) -> None:
    now, asked = 0.0, []

    def answer(head: str) -> bytes:
        asked.append(head)
        return review()

    async def story() -> None:
        nonlocal now
        async with talking(tmp_path, answer) as api:
            reviews = TokenReviews(api, "hived", lambda: now)
            for _ in range(3):
                assert await reviews.who("a-token") is not None
            assert len(asked) == 1
            now += HOLDS_S
            assert await reviews.who("a-token") is not None
            assert await reviews.who("another") is not None
            assert len(asked) == 3
            assert await reviews.who("") is None
            assert await reviews.who("x" * 20_000) is None
            assert await reviews.who("é") is None
            assert len(asked) == 3

    asyncio.run(story())


def test_an_api_server_that_does_not_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with talking(tmp_path, lambda head: ok(b"{}", "403 Forbidden")) as api:
            with pytest.raises(ApiError, match="grant it by RBAC"):
                await TokenReviews(api, "hived").who("a-token")

    asyncio.run(story())


class People:
    """Knows one token; another one cannot be asked about."""

    owner = Person("", owns=True)

    async def holder(self, text: str) -> Person | None:
        await asyncio.sleep(0)
        if text == "away":
            raise UnavailableError("the API server does not answer")
        return ANN if text == "ann's" else None

    def by_id(self, _number: str) -> Person | None:
        return None


def guarded(token: str | None) -> Client:
    """A server that says who asks."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import Request

        person = asking(Request(scope))
        said = answered("conflict", f"{person.name or person.owns}")
        await said(scope, receive, send)

    return Client(Guard(app, token=token, hosts=(), local=False, holders=People()), base_url="http://localhost")


def who(client: Client, path: str = "/v1/usage", method: str = "GET", **headers: str) -> tuple[int, str]:
    response = client.request(method, path, headers=headers)
    return response.status_code, response.json()["error"]["message"] if response.status_code == 409 else ""


@pytest.mark.parametrize("token", [None, OWN])
def test_who_asks(token: str | None) -> None:
    client = guarded(token)
    assert who(client, Authorization="Bearer ann's") == (409, ANN.name)
    assert who(client, method="POST", Authorization="Bearer ann's") == (409, ANN.name)
    assert who(client, Authorization="Bearer wrong")[0] == 401
    assert who(client, Authorization="Bearer ")[0] == 401
    assert who(client, Authorization="Bearer away")[0] == 503
    assert who(client, Authorization=f"Bearer {OWN}") == ((409, "True") if token else (401, ""))
    assert who(client) == ((401, "") if token else (409, str(NOBODY.owns)))


@pytest.mark.parametrize("token", [None, OWN])
def test_no_cookie_is_made_of_such_a_token(token: str | None) -> None:
    """It would have been that of the server's own token; and where it has none, one that anybody can compute."""
    client = guarded(token)
    assert client.get("/?token=ann's").status_code == 401
    name, value = session(token or "")
    for forged in (session("")[1], f".{value}", f"system:serviceaccount:team:ann.{value}"):
        found = who(client, Cookie=f"{session('')[0]}={forged}; {name}={forged}")
        assert found == ((401, "") if token else (409, "False"))
