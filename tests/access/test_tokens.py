"""Tokens of people: in force until they are revoked or expire, and nothing of them is kept that opens anything."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hived.access import Person, Sessions, Token, Tokens
from hived.access.sessions import LINK_S, SESSION_S
from hived.errors import NotFoundError

SECRET = "ab" * 32


def made(lasts_s: float | None = None, vcs: tuple[str, ...] | None = None) -> tuple[Tokens, Token, str]:
    tokens = Tokens()
    token, text = tokens.create("3f9a1c02", SECRET, "ann", 100.0, lasts_s, vcs, "root")
    return tokens, token, text


def test_the_text_opens_and_nothing_near_it() -> None:
    tokens, token, text = made()
    assert tokens.shown(text, 1e12) == token
    near = text[:-1], text + "0", text.upper(), token.id, token.digest, f"hived_{token.id}_"
    for wrong in ("", "hived__", "é\udcff", *near):
        assert tokens.shown(wrong, 100.0) is None


def test_it_expires() -> None:
    tokens, token, text = made(60.0)
    assert tokens.shown(text, 159.9) == token
    assert tokens.shown(text, 160.0) is None
    assert tokens.known(token.id, 160.0) is None


def test_it_is_revoked() -> None:
    tokens, token, text = made()
    assert tokens.revoke(token.id) == token
    assert tokens.shown(text, 100.0) is None
    with pytest.raises(NotFoundError, match="no token '3f9a1c02'; hived token ls"):
        tokens.revoke(token.id)


def test_what_is_kept_opens_nothing() -> None:
    tokens, token, text = made(60.0, ("vision",))
    kept = json.dumps(tokens.plain())
    assert SECRET not in kept
    assert text not in kept
    restored = Tokens.restored(json.loads(kept))
    assert restored.shown(text, 100.0) == token
    assert list(restored) == list(tokens)


def test_expired_ones_are_forgotten() -> None:
    tokens, _, _ = made(60.0)
    tokens.create("00000001", SECRET, "bob", 200.0, None, None, "root")
    assert [token.user for token in tokens] == ["bob"]


ANN = Person("ann", frozenset({"users"}))


def test_links_and_sessions_end_by_time() -> None:
    sessions = Sessions()
    sessions.link("early", ANN, 0.0)
    sessions.link("late", ANN, 100.0)
    with pytest.raises(NotFoundError, match="too old"):
        sessions.begin("early", "s1", "x", LINK_S)
    session, key, _ = sessions.begin("late", "s1", "x", LINK_S)
    end = LINK_S + SESSION_S
    assert (session.person.token, session.person.until, session.person.name) == ("s1", end, "ann")
    assert sessions.shown(key, end - 1) is session
    assert sessions.shown(key, end) is None
    assert sessions.known("s1", end) is None


def test_a_session_lasts_no_longer_than_its_token() -> None:
    sessions = Sessions()
    assert sessions.link("code", replace(ANN, token="t", until=60.0), 0.0) == 60.0
    session, _, _ = sessions.begin("code", "s1", "x", 10.0)
    assert session.person.until == 60.0


def test_one_person_has_so_many_sessions() -> None:
    """The oldest of theirs make room, and nobody else's."""
    sessions = Sessions()
    sessions.link("bob", Person("bob"), 0.0)
    _, his, _ = sessions.begin("bob", "s-bob", "x", 0.0)
    keys = []
    for number in range(50):
        sessions.link(f"code {number}", ANN, 0.0)
        keys.append(sessions.begin(f"code {number}", f"s{number}", "x", 0.0)[1])
    assert [sessions.shown(key, 1.0) is not None for key in keys] == [False] * 30 + [True] * 20
    assert sessions.shown(his, 1.0) is not None
    for number in range(50):
        sessions.link(f"unused {number}", ANN, 0.0)
    with pytest.raises(NotFoundError):
        sessions.begin("unused 29", "s", "x", 1.0)
    sessions.begin("unused 30", "s", "x", 1.0)
