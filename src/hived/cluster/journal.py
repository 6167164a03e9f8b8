"""The event log of a cluster: every call that asked something of it or changed it, one line of JSON each.

A log starts with :class:`Opened`, and :func:`~hived.cluster.replay.replay` carries it out again. Lines are ASCII, no
spaces between words; equal events have equal lines, byte for byte. Their form follows the fields: see :mod:`.codec`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NoReturn, get_args

from hived.errors import InputError
from hived.spec.compiled import (
    ChainSpec,
    ClusterSpec,
    LevelSpec,
    PinnedCellSpec,
    VirtualCellsSpec,
    VirtualClusterSpec,
)

from .codec import Mismatch, anything, codec_of
from .decisions import Decision, Placement, PodPlacement
from .reasons import Reason
from .requests import Member, Request

#: what keeps its type among the arguments of a refused call
_KNOWN = (
    *(Request, Member, Placement, PodPlacement, *get_args(Decision), *get_args(Reason)),
    *(ClusterSpec, ChainSpec, LevelSpec, PinnedCellSpec, VirtualCellsSpec, VirtualClusterSpec),
)

# ------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Opened:
    """A new cluster. The first event of a log, and only the first."""

    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request was answered."""

    request: Request
    suggested_nodes: tuple[str, ...] | None
    now: float  #: seconds
    decision: Decision
    excluded_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """A decision was carried out."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class Released:
    """A group that ran has ended."""

    group: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A group that waited was withdrawn."""

    group: str


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """A node turned bad or healthy."""

    node: str
    healthy: bool


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """A device turned bad or healthy."""

    node: str
    device: int
    healthy: bool


@dataclass(frozen=True, slots=True)
class Recovered:
    """Groups that run already were taken over: (group, request, placement)."""

    records: tuple[tuple[str, Request, Placement], ...]


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """A new spec under running groups."""

    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that raised an :class:`InputError`, and changed nothing."""

    call: str  #: name of the method, e.g. ``schedule``
    #: all of them, in order, of any type; what has no form in a log is read as :class:`~hived.cluster.codec.Opaque`
    arguments: tuple[object, ...] = field(metadata={"codec": anything(_KNOWN)})
    error: str  #: type and message

    @classmethod
    def of(cls, call: str, arguments: tuple[object, ...], error: InputError) -> Refused:
        """The event that ``call(*arguments)`` raised ``error``."""
        return cls(call, arguments, f"{type(error).__name__}: {error}")


Event = (
    Opened
    | Scheduled
    | Committed
    | Released
    | Cancelled
    | NodeHealth
    | DeviceHealth
    | Recovered
    | Reconfigured
    | Refused
)


# -------------------------------------------------------------------------------------------------- lines

_DUMP = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode
_EVENT = codec_of(Event)


def to_line(event: Event) -> str:
    """``event`` as one line, without its end.

    Raises :class:`InputError` when a value has not the type of its field (possible in :class:`Refused` only, and there
    it is written down). O(length).
    """
    try:
        return _DUMP(_EVENT.write(event))
    except Mismatch as error:
        raise InputError(f"cannot be written to the event log: {error}; log calls that were carried out only") from None


def from_line(line: str, number: int = 1) -> Event:
    """The event of ``line``, which is the ``number``-th of its log (1-based).

    Raises :class:`InputError` that says the number, what is wrong and the way out. O(length).
    """
    where = f"event log, line {number}"
    try:
        plain = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where}: not one line of JSON ({error}); if the log was cut short there, drop that line"
        ) from None
    try:
        event: Event = _EVENT.read(plain)
    except Mismatch as error:
        raise InputError(f"{where}: {error}; give the log as this version of hived wrote it") from None
    return event


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in a log")
