"""People who ask something of an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who asks: by the kernel's word on a socket, by a token, or by an identity of Kubernetes."""

    name: str  #: of the user; "": not known
    groups: frozenset[str] = frozenset()
    #: whether the engine is theirs: its owner, root, or who has the engine's own token
    owns: bool = False
    #: the virtual clusters to which their token is limited; None: all
    vcs: frozenset[str] | None = None
    token: str = ""  #: id of their token; "": they have shown none of their own
    until: float | None = None  #: when that expires, in seconds since the epoch; None: never
    uid: int | None = None  #: of a user of this machine, by the kernel's word


#: who has shown nothing at all
NOBODY = Person("")
