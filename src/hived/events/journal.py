"""The events of a log: the calls of a cluster that asked something of it or changed it.

A log starts with :class:`Opened`. Every other event is a call: it can be carried out on any cluster, which is all that
:func:`~hived.events.replay.replay` does. :mod:`.codec` makes one line of each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, get_args

from hived.cluster.decisions import Bind, Decision, Placement, Preempt, Record
from hived.cluster.requests import Request
from hived.errors import InputError
from hived.spec.compiled import ClusterSpec


@dataclass(frozen=True, slots=True)
class Opened:
    """A new cluster. The first event of a log, and only the first."""

    spec: ClusterSpec


class Call:
    """A call of a cluster: the fields are the arguments of one of its methods, and ``answer`` what that said."""

    __slots__ = ()
    call: ClassVar[str]  #: the name of the method

    @property
    def arguments(self) -> tuple[object, ...]:
        """What the method is called with."""
        # every call is a dataclass, which this base cannot say
        names = [field.name for field in fields(self) if field.name != "answer"]  # type: ignore[arg-type]
        return tuple([getattr(self, name) for name in names])

    @classmethod
    def of(cls, *arguments: Any) -> Call:
        """The call with these arguments. Raises ``TypeError`` where they are too few or too many."""
        return cls(*arguments)

    def apply(self, cluster: Any) -> Any:
        """Carry it out on ``cluster``; what that answers. Raises what the method raises."""
        return getattr(cluster, self.call)(*self.arguments)

    def answered(self, answer: Any) -> Event:
        """The event that is written once ``answer`` is known."""
        return self  # type: ignore[return-value]  # a call that answers nothing is its own event


@dataclass(frozen=True, slots=True)
class Scheduled(Call):
    """A request was answered."""

    call = "schedule"
    request: Request
    suggested_nodes: tuple[str, ...] | None
    now: float  #: seconds
    decision: Decision | None = None  #: None: not answered yet; never in a log
    excluded_nodes: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[object, ...]:
        """The request, and what it was restricted to; the excluded nodes where there are any."""
        excluded = (self.excluded_nodes,) if self.excluded_nodes else ()
        return (self.request, self.suggested_nodes, self.now, *excluded)

    @classmethod
    def of(cls, request: Any, suggested_nodes: Any, now: Any, excluded_nodes: Any = ()) -> Scheduled:
        """The request, not answered yet."""
        return cls(request, suggested_nodes, now, None, excluded_nodes)

    def answered(self, answer: Decision) -> Scheduled:
        """The same request with its answer."""
        return replace(self, decision=answer)


@dataclass(frozen=True, slots=True)
class Placed(Call):
    """A request was answered, for a scheduler that keeps its own queues."""

    call = "place"
    request: Request
    now: float = 0.0  #: seconds
    near: Placement | None = None
    idle: bool = False
    excluded_nodes: tuple[str, ...] = ()
    keep: bool = False
    answer: Bind | Preempt | None = None  #: None: it waits

    def answered(self, answer: Bind | Preempt | None) -> Placed:
        """The same request with its answer."""
        return replace(self, answer=answer)


@dataclass(frozen=True, slots=True)
class Moved(Call):
    """It was asked where a group that runs could be instead."""

    call = "move"
    request: Request
    now: float = 0.0  #: seconds
    excluded_nodes: tuple[str, ...] = ()
    answer: Bind | Preempt | None = None  #: None: nowhere

    def answered(self, answer: Bind | Preempt | None) -> Moved:
        """The same question with its answer."""
        return replace(self, answer=answer)


@dataclass(frozen=True, slots=True)
class Promoted(Call):
    """An opportunistic group was to be guaranteed on the very leaf cells that it has."""

    call = "promote"
    request: Request
    answer: bool | None = None  #: whether it is; None: its VC has no room

    def answered(self, answer: bool | None) -> Promoted:
        """The same question with its answer."""
        return replace(self, answer=answer)


@dataclass(frozen=True, slots=True)
class Committed(Call):
    """A decision was carried out."""

    call = "commit"
    decision: Decision


@dataclass(frozen=True, slots=True)
class Released(Call):
    """A group that ran has ended."""

    call = "release"
    group: str


@dataclass(frozen=True, slots=True)
class Suspended(Call):
    """A group that ran gave its leaf cells up, and waits."""

    call = "suspend"
    group: str


@dataclass(frozen=True, slots=True)
class Joined(Call):
    """One job more runs on an allocation."""

    call = "join"
    group: str
    job: str


@dataclass(frozen=True, slots=True)
class Left(Call):
    """A job on an allocation has ended."""

    call = "leave"
    group: str
    job: str


@dataclass(frozen=True, slots=True)
class Cancelled(Call):
    """A group that waited was withdrawn."""

    call = "cancel"
    group: str


@dataclass(frozen=True, slots=True)
class NodeHealth(Call):
    """A node turned bad or healthy."""

    call = "set_node_health"
    node: str
    healthy: bool


@dataclass(frozen=True, slots=True)
class DeviceHealth(Call):
    """A device turned bad or healthy."""

    call = "set_device_health"
    node: str
    device: int
    healthy: bool


@dataclass(frozen=True, slots=True)
class Recovered(Call):
    """Groups that run already were taken over."""

    call = "recover"
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Reconfigured(Call):
    """A new spec under running groups."""

    call = "reconfigure"
    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that raised an :class:`InputError`, and changed nothing."""

    call: str  #: name of the method, e.g. ``schedule``
    #: all of them, in order, of any type; what has no form in a log is read as :class:`~hived.events.codec.Opaque`
    arguments: tuple[object, ...]
    error: str  #: type and message

    @classmethod
    def of(cls, call: Call | Refused, error: InputError) -> Refused:
        """The event that ``call`` raised ``error``."""
        return cls(call.call, call.arguments, f"{type(error).__name__}: {error}")

    def again(self) -> Call:
        """The call. Raises :class:`InputError` where a cluster has no such method."""
        try:
            return _CALLS[self.call].of(*self.arguments)
        except (KeyError, TypeError):
            message = f"no such call with {len(self.arguments)} arguments; there are {', '.join(_CALLS)}"
            raise InputError(message) from None

    def apply(self, cluster: Any) -> Any:
        """Try the call again."""
        return self.again().apply(cluster)

    def answered(self, answer: Any) -> Event:
        """The event that the call is, where it is not refused any more."""
        return self.again().answered(answer)


Event = (
    Opened
    | Scheduled
    | Committed
    | Released
    | Cancelled
    | Placed
    | Moved
    | Promoted
    | Suspended
    | Joined
    | Left
    | NodeHealth
    | DeviceHealth
    | Recovered
    | Reconfigured
    | Refused
)

#: by the name of the method
_CALLS: dict[str, type[Call]] = {kind.call: kind for kind in get_args(Event) if issubclass(kind, Call)}
