"""Tokens of people: in force until they are revoked or expire, and nothing of them is kept that opens anything."""

from __future__ import annotations

import json

import pytest

from hived.access import Token, Tokens
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
