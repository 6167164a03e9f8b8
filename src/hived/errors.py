"""The kinds of failure, and the exit code each one gives the command line.

1. What the user gave is wrong (:class:`InputError` and what derives from it): a spec, a trace, an option. Exit 2;
   :class:`NotFoundError` 4.
2. It is right, but does not fit: :class:`InfeasibleError` (exit 2), :class:`NeverFitsError` (3), with the numbers.
3. The world is in the way: :class:`UnavailableError` (69), :class:`StorageError` (73), :class:`ForbiddenError` (77).
4. We broke an invariant: :class:`InvariantError`. A bug, always; loud, exit 70.

A message has one line that says what, where, have against need, and the way out.
"""

from __future__ import annotations

from dataclasses import dataclass


class HivedError(Exception):
    """Base of every error that hived raises on purpose."""

    exit_code = 1  #: of the command line
    code = "error"  #: in answers of the HTTP API


class InputError(HivedError):
    """What was given cannot be used as it is."""

    exit_code = 2
    code = "invalid"


class NeverFitsError(InputError):
    """A right request that could not start even if everything were free."""

    exit_code = 3
    code = "never_fits"


class NotFoundError(InputError):
    """Nothing of that name."""

    exit_code = 4
    code = "not_found"


class ConflictError(InputError):
    """What is asked for cannot be done in the state that things are in."""

    code = "conflict"


class UnavailableError(HivedError):
    """Nobody answers, or it cannot be done at the moment."""

    exit_code = 69
    code = "unavailable"


class StorageError(HivedError):
    """What has to be kept cannot be written: a full disk, a folder without permission."""

    exit_code = 73
    code = "storage"


class ForbiddenError(HivedError):
    """Without permission: no token, a wrong one, or a page of another origin."""

    exit_code = 77
    code = "forbidden"


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
    code = "bug"


def ensure(holds: bool, what: str) -> None:
    """Raise :class:`InvariantError` unless ``holds``: what every ``validate()`` is made of."""
    if not holds:
        raise InvariantError(f"invariant broken: {what} (a bug of hived, please report it with the input)")
