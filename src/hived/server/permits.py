"""Whether who asks may do what a request does: the one place where ``/v1`` asks the rules of :mod:`hived.access`.

Each method returns who asks, and raises :class:`~hived.errors.ForbiddenError`. A route that changes something, or shows
what is its owner's alone, calls one of them first; ``tests/access`` tries every route as everybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fastapi import Request

from hived.access import SESSION, Access, Person, Role
from hived.errors import ForbiddenError

from . import schema
from .limits import asking


class Whose(NamedTuple):
    """Whose a job is."""

    job: str  #: its name
    user: str  #: "": not known
    vc: str


class Governed(Protocol):
    """An engine with rules of who may do what."""

    def access(self) -> Access:
        """The rules of the spec in force. Raises :class:`~hived.errors.UnavailableError`."""

    def owns(self, user: str) -> bool:
        """Whether the engine, and the machine it runs on, is this user's."""

    def named(self, ref: str, user: str) -> str:
        """The job that a user means: of several under a name their own, else the latest."""

    def whose(self, ref: str) -> Whose | None:
        """Whose a job is; None: others than the engine guard its jobs. Raises :class:`~hived.errors.NotFoundError`."""

    def holder_of(self, ref: str) -> str:
        """Who holds a job; "": nobody, or its submission."""


class Permits:
    """The permissions of an engine."""

    def __init__(self, engine: Governed) -> None:
        self._engine = engine

    def named(self, request: Request, ref: str) -> str:
        """The job that somebody means: of several under a name their own, else the latest."""
        return self._engine.named(ref, asking(request).name)

    def of_job(self, request: Request, ref: str, what: str) -> tuple[Person, str]:
        """To do ``what`` ("cancel") to a job; and which one that is, as :meth:`named`."""
        person, ref = asking(request), self.named(request, ref)
        if (whose := self._engine.whose(ref)) is not None:
            self._engine.access().check_job(person, what, *whose)
        return person, ref

    def to_release(self, request: Request, ref: str) -> tuple[Person, str]:
        """To let a held job go: what somebody else holds, who may for others, its owner does not."""
        person, ref = self.of_job(request, ref, "release")
        holder, whose = self._engine.holder_of(ref), self._engine.whose(ref)
        if whose is not None and holder not in ("", person.name):
            access = self._engine.access()
            if access.role(person, whose.vc) < Role.ADMIN:
                who = access.granters(whose.vc)
                raise ForbiddenError(
                    f"{person.name or 'nobody'} may not release {whose.job}: {holder} holds it; ask {who}"
                )
        return person, ref

    def to_read(self, request: Request, ref: str) -> tuple[Person, str]:
        """To read the output of a job; and which one that is. A cookie does not: every server of this host gets it."""
        if getattr(request.state, "looks", False):
            raise ForbiddenError("the cookie of the dashboard shows no output; sign in by a link of hived dashboard")
        return self.of_job(request, ref, "read the output of")

    def priority(self, request: Request, ref: str, priority: int) -> tuple[Person, str]:
        """To give a job another priority; and which one that is."""
        person, ref = self.of_job(request, ref, "change the priority of")
        if (whose := self._engine.whose(ref)) is not None:
            self._engine.access().check_priority(person, whose.vc, priority)
        return person, ref

    def to_trade(self, request: Request, vc: str) -> Person:
        """To trade the cells of a virtual cluster."""
        person = asking(request)
        self._engine.access().check_trade(person, vc)
        return person

    def to_operate(self, request: Request, what: str) -> Person:
        """To do what operators alone do."""
        person = asking(request)
        self._engine.access().check_operator(person, what)
        return person

    def to_make_token(self, request: Request, user: str) -> Person:
        """To make a token for a user: for oneself, but by no token, so that none makes itself last longer."""
        person = asking(request)
        if person.token.startswith(SESSION):
            raise ForbiddenError("a browser that is signed in makes no tokens: ask on the machine, or with a token")
        if person.token and person.name == user:
            raise ForbiddenError(
                f"a token makes no token, so that none makes itself last longer: {user} asks on the machine"
            )
        if person.name != user or not person.name:
            self._engine.access().check_operator(person, f"make a token for {user}")
        if not person.owns and self._engine.owns(user):
            raise ForbiddenError(f"{person.name} may not make a token for {user}, whose the engine is: {user} makes it")
        return person

    def to_revoke_token(self, request: Request, known: Sequence[schema.Token], number: str) -> Person:
        """To revoke a token: one's own. Who may not learns nothing of others' tokens."""
        person = asking(request)
        limited = person.vcs is not None and person.token != number  # it ends no token that may do more
        if limited or not any(token.id == number and token.user == person.name for token in known):
            self._engine.access().check_operator(person, f"revoke token {number!r}, which is not theirs")
        return person

    def to_sign_in(self, request: Request) -> Person:
        """To have a browser act as oneself: by no session, so that none makes itself last longer."""
        person = asking(request)
        if not person.name and not person.owns:
            raise ForbiddenError("who shows nothing has no session: ask on the machine itself, or with a token")
        if person.token.startswith(SESSION):
            raise ForbiddenError("a browser that is signed in signs in no other: ask on the machine, or with a token")
        return person

    def sees_all(self, request: Request) -> bool:
        """Whether who asks is an operator."""
        return self._engine.access().role(asking(request)) is Role.OPERATOR
