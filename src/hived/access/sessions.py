"""Sessions of the dashboard: a link that works once, and the key that a browser has for it from then on.

A link proves who has asked for it, on the socket or by a token, and hands that over to a browser. The key is for
changes; it is in the storage of the page, which no other server gets, not even one on another port of this host. All of
it is in memory alone: sessions end with the engine, after twelve hours, when the browser signs out, and with the token
by which their link was asked for.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hived.errors import NotFoundError

from .people import Person
from .tokens import digest_of, id_in, text_of

#: what the id of a session begins with, and that of no token
SESSION = "s"
#: seconds for which a link works
LINK_S = 300.0
#: seconds for which a session lasts at most
SESSION_S = 12 * 3600.0
#: links and sessions of one person by one token; the oldest make room
_MOST = 20


@dataclass(frozen=True, slots=True)
class _Link:
    person: Person
    until: float


@dataclass(frozen=True, slots=True)
class Session:
    """A browser that has signed in."""

    id: str
    digest: str
    #: who it is: with the id of the session as that of their token, and its end
    person: Person
    parent: str  #: id of the token by which its link was asked for; "": by none
    begun_at: float


class Sessions:
    """All sessions of an engine, and the links to those that have not begun. O(those of one person) per change."""

    def __init__(self) -> None:
        self._links: dict[str, _Link] = {}
        self._known: dict[str, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(self._known.values())

    def link(self, code: str, person: Person, now: float) -> float:
        """Make a link with this random ``code`` for a person; until when it works."""
        until = min(now + LINK_S, person.until if person.until is not None else now + LINK_S)
        self._links = {key: link for key, link in self._links.items() if now < link.until}
        whose = person.name, person.token
        own = [key for key, link in self._links.items() if (link.person.name, link.person.token) == whose]
        for key in own[: max(0, len(own) + 1 - _MOST)]:
            del self._links[key]
        self._links[digest_of(code)] = _Link(person, until)
        return until

    def begin(self, code: str, number: str, secret: str, now: float) -> tuple[Session, str, list[str]]:
        """Begin the session of a link, which is used up by this; and the text of its key, which is told once.

        And the ids of older sessions that have made room for it. ``number`` and ``secret``: random.

        Raises :class:`~hived.errors.NotFoundError` for a link that does not work.
        """
        link = self._links.pop(digest_of(code), None)
        if link is None or now >= link.until:
            raise NotFoundError("this link was used already, or is too old: hived dashboard makes another")
        until = min(now + SESSION_S, link.person.until if link.person.until is not None else now + SESSION_S)
        self._known = {session.id: session for session in self._known.values() if not _over(session, now)}
        whose = link.person.name, link.person.token
        own = [key for key, known in self._known.items() if (known.person.name, known.parent) == whose]
        ended = own[: max(0, len(own) + 1 - _MOST)]
        for key in ended:
            del self._known[key]
        text = text_of(number, secret)
        person = replace(link.person, token=number, until=until)
        begun = self._known[number] = Session(number, digest_of(text), person, link.person.token, now)
        return begun, text, ended

    def shown(self, text: str, now: float) -> Session | None:
        """The session with this key. O(1)."""
        found = self.known(id_in(text), now)
        return found if found is not None and hmac.compare_digest(found.digest, digest_of(text)) else None

    def known(self, number: str, now: float) -> Session | None:
        """The session with this id. O(1)."""
        found = self._known.get(number)
        return None if found is None or _over(found, now) else found

    def end(self, number: str) -> Session | None:
        """End a session; None: there is none with this id."""
        return self._known.pop(number, None)

    def end_of(self, token: str) -> list[str]:
        """End the sessions and links that were asked for by a token, which was revoked; the ids of the former."""
        self._links = {key: link for key, link in self._links.items() if link.person.token != token}
        ended = [session.id for session in self._known.values() if session.parent == token]
        for number in ended:
            del self._known[number]
        return ended


def _over(session: Session, now: float) -> bool:
    until = session.person.until
    return until is not None and now >= until
