"""Tokens of people, for an engine that is reached over a network: kept as digests, listed, revoked, ended by time.

A token is ``hived_ID_SECRET``. The id is public: lists, events and cookies have it. The secret is 256 random bits, so
that a plain digest of it is enough: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hived.errors import NotFoundError

_PREFIX = "hived_"


@dataclass(frozen=True, slots=True)
class Token:
    """A token that was given to somebody."""

    id: str
    user: str
    digest: str
    created_at: float
    expires_at: float | None  #: None: never
    vcs: tuple[str, ...] | None = None  #: to which it is limited; None: to none
    by: str = ""  #: who has made it

    def holds(self, now: float) -> bool:
        """Whether it is in force."""
        return self.expires_at is None or now < self.expires_at


class Tokens:
    """All tokens of an engine that were not revoked."""

    def __init__(self, known: Iterable[Token] = ()) -> None:
        self._known = {token.id: token for token in known}

    def __iter__(self) -> Iterator[Token]:
        return iter(self._known.values())

    def create(
        self,
        number: str,
        secret: str,
        user: str,
        now: float,
        lasts_s: float | None,
        vcs: tuple[str, ...] | None,
        by: str,
    ) -> tuple[Token, str]:
        """A new token for a user, and its text, which is told once; ``number`` and ``secret``: random. O(tokens).

        Those that have expired are forgotten.
        """
        text = text_of(number, secret)
        expires = None if lasts_s is None else now + lasts_s
        self._known = {token.id: token for token in self if token.holds(now)}
        made = self._known[number] = Token(number, user, digest_of(text), now, expires, vcs, by)
        return made, text

    def revoke(self, number: str) -> Token:
        """Forget a token. Raises :class:`~hived.errors.NotFoundError`."""
        if number not in self._known:
            raise NotFoundError(f"there is no token {number!r}; hived token ls lists them")
        return self._known.pop(number)

    def shown(self, text: str, now: float) -> Token | None:
        """The token in force with this text. O(1)."""
        found = self.known(id_in(text), now)
        return found if found is not None and hmac.compare_digest(found.digest, digest_of(text)) else None

    def known(self, number: str, now: float) -> Token | None:
        """The token in force with this id. O(1)."""
        found = self._known.get(number)
        return found if found is not None and found.holds(now) else None

    def plain(self) -> list[dict[str, object]]:
        """All of them as plain data."""
        return [asdict(token) for token in self]

    @classmethod
    def restored(cls, plain: Iterable[Mapping[str, Any]]) -> Tokens:
        """The inverse of :meth:`plain`. Raises ``TypeError`` for anything else."""
        return cls(Token(**{**of, "vcs": None if of["vcs"] is None else tuple(of["vcs"])}) for of in plain)


def text_of(number: str, secret: str) -> str:
    """A token, or the key of a session, as it is shown."""
    return f"{_PREFIX}{number}_{secret}"


def id_in(text: str) -> str:
    """The id in such a text."""
    return text.removeprefix(_PREFIX).partition("_")[0]


def digest_of(text: str) -> str:
    """What is kept of it."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
