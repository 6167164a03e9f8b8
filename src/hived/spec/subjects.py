"""Subjects: users, groups, namespaces and service accounts, as a spec names them."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a subject names; the prefix of its text, but for a user, which has none."""

    USER = "user"
    GROUP = "group"
    NAMESPACE = "namespace"
    SERVICE_ACCOUNT = "serviceaccount"
    ANYBODY = "*"


class Subject(NamedTuple):
    """Whom an entry of a spec means.

    >>> Subject.of("ann"), str(Subject.of("group:vision-team")), Subject.of("serviceaccount:ml/train").name
    (Subject(kind=<Kind.USER: 'user'>, name='ann'), 'group:vision-team', 'ml/train')
    """

    kind: Kind
    name: str

    @classmethod
    def of(cls, text: str) -> Subject:
        """The subject that a text names. Raises :class:`ValueError` with what is wrong, and the way out."""
        if text == Kind.ANYBODY:
            return cls(Kind.ANYBODY, "")
        prefix, sign, name = text.partition(":")
        if not sign or prefix == "system":  # users of Kubernetes are called system:serviceaccount:...
            return cls(Kind.USER, text)
        if prefix not in _PREFIXES:
            raise ValueError(f"has the prefix `{prefix}:`; it is one of {', '.join(f'{kind}:' for kind in _PREFIXES)}")
        if not name or name.strip() != name:
            raise ValueError(f"names nobody after `{prefix}:`")
        if prefix == Kind.SERVICE_ACCOUNT and len([part for part in name.split("/") if part]) != 2:
            raise ValueError("a service account is serviceaccount:NAMESPACE/NAME")
        return cls(Kind(prefix), name)

    def is_met_by(self, user: str, groups: Collection[str]) -> bool:
        """Whether a user, of these groups, is meant; "": somebody who is not known. O(1) with a set."""
        match self.kind:
            case Kind.ANYBODY:
                return True
            case Kind.USER:
                return user == self.name and user != ""
            case Kind.GROUP:
                return self.name in groups
            case Kind.NAMESPACE:
                return f"system:serviceaccounts:{self.name}" in groups
            case Kind.SERVICE_ACCOUNT:
                namespace, _, name = self.name.partition("/")
                return user == f"system:serviceaccount:{namespace}:{name}"

    def __str__(self) -> str:
        return self.name if self.kind is Kind.USER else "*" if self.kind is Kind.ANYBODY else f"{self.kind}:{self.name}"


_PREFIXES = (Kind.USER, Kind.GROUP, Kind.NAMESPACE, Kind.SERVICE_ACCOUNT)
