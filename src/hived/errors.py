"""The kinds of failure, and the exit code each one gives the command line.

1. The input is wrong (:class:`InputError` and its subclasses): a spec, a trace, an option. Exit 2;
   :class:`NotFoundError` 4, :class:`PolicyError` 5.
2. The input is right but does not fit: :class:`InfeasibleError` (exit 2), :class:`NeverFitsError` (3), with numbers.
3. The environment fails: :class:`UnavailableError` (69), :class:`StorageError` (73), :class:`ForbiddenError` (77).
4. An invariant is broken: :class:`InvariantError`. Always a bug; exit 70.

A message is one line with what is wrong, where, need against supply, and the way out.
"""

from __future__ import annotations

from dataclasses import dataclass


class HivedError(Exception):
    """Base of every error that hived raises on purpose."""

    exit_code = 1  #: of the command line
    code = "error"  #: in answers of the HTTP API


class InputError(HivedError):
    """The input cannot be used as it is."""

    exit_code = 2
    code = "invalid"


class NeverFitsError(InputError):
    """A valid request that could not start even in an empty cluster."""

    exit_code = 3
    code = "never_fits"


class NotFoundError(InputError):
    """There is no object of that name."""

    exit_code = 4
    code = "not_found"


class ConflictError(InputError):
    """The operation is not possible in the present state."""

    code = "conflict"


class UnsupportedError(InputError):
    """This kind of engine leaves that to others: what to use instead."""

    code = "unsupported"


class PolicyError(InputError):
    """A scheduling policy raises, or answers what is not allowed: its name, the job, the time, and the way out."""

    exit_code = 5
    code = "policy"

    def __init__(self, policy: str, what: str, job: str = "", at: float | None = None) -> None:
        of = f", job {job}" if job else ""
        when = "" if at is None else f", at {at:,.3f} s"
        super().__init__(f"policy {policy}{of}{when}: {what}")
        self.policy = policy
        #: what it does wrong, and the way out
        self.what = what
        #: the name of the job, "" where it is not known here
        self.job = job
        self.at = at  #: seconds, in the engine's time


class UnavailableError(HivedError):
    """A service does not answer, or the operation is not possible at the moment."""

    exit_code = 69
    code = "unavailable"


class NotYetError(UnavailableError):
    """What was asked for has not happened in the time given, and still may."""

    exit_code = 124
    code = "not_yet"


class StorageError(HivedError):
    """Persistent data cannot be written: a full disk, a folder without permission."""

    exit_code = 73
    code = "storage"


class ForbiddenError(HivedError):
    """No permission: no token, a wrong one, or a page of another origin."""

    exit_code = 77
    code = "forbidden"


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file: 1-based line, 1-based column (0 if unknown)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class SpecError(InputError):
    """An error in a cluster spec: where, what, and the likely meant word."""

    def __init__(self, message: str, where: Location | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class TraceError(InputError):
    """An error in a trace, with file and row."""

    def __init__(self, message: str, where: Location | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class ModelError(InputError):
    """An error in a table of job models or in a mix of them, with file and row."""

    def __init__(self, message: str, where: Location | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class RequestError(InputError):
    """A request, or a call about a group, is invalid. Nothing has changed."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        #: the invalid field of the request (or argument of the call), e.g. ``vc`` or ``members[1].pods``
        self.field = field
        #: the error, and the way out
        self.message = message


class InfeasibleError(InputError):
    """A valid spec whose virtual clusters do not fit the physical cluster."""


class InvariantError(HivedError):
    """A broken invariant: a bug of hived, after which no state can be trusted."""

    exit_code = 70
    code = "bug"


def ensure(holds: bool, what: str) -> None:
    """Raise :class:`InvariantError` unless ``holds``; used by every ``validate()``."""
    if not holds:
        raise InvariantError(f"invariant broken: {what} (a bug of hived, please report it with the input)")
