"""The three kinds of failure, and the exit code each one gives the command line.

1. What the user gave is wrong (:class:`InputError` and what derives from it): a spec, a trace, an option. Exit 2.
2. It is right, but does not fit: :class:`InfeasibleError`. Exit 2 as well, with the numbers attached.
3. We broke an invariant: :class:`InvariantError`. A bug, always; loud, exit 70.

A message has one line that says what, where, have against need, and the way out.
"""

from __future__ import annotations

from dataclasses import dataclass


class HivedError(Exception):
    """Base of every error that hived raises on purpose."""

    exit_code = 1


class InputError(HivedError):
    """What was given cannot be used as it is."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file: 1-based line, 1-based column (0 where it is not known)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class SpecError(InputError):
    """A cluster spec is wrong. Says where, what, and the likely meant word."""

    def __init__(self, message: str, where: Location | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class TraceError(InputError):
    """A trace is wrong. Says which file and row."""

    def __init__(self, message: str, where: Location | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class RequestError(InputError):
    """A request, or a call about a group, cannot be carried out as it is. Nothing has changed."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        #: which field of the request (or argument of the call) is wrong, e.g. ``vc`` or ``members[1].pods``
        self.field = field
        #: what is wrong with it, and the way out
        self.message = message


class InfeasibleError(InputError):
    """A right spec whose virtual clusters do not fit the physical cluster."""


class InvariantError(HivedError):
    """A bug of ours: an invariant does not hold. Nothing that follows can be trusted."""

    exit_code = 70


def ensure(holds: bool, what: str) -> None:
    """Raise :class:`InvariantError` unless ``holds``: what every ``validate()`` is made of."""
    if not holds:
        raise InvariantError(f"invariant broken: {what} (a bug of hived, please report it with the input)")
