"""The events of a log: the calls of a cluster that requested a decision or changed it.

A log starts with :class:`Opened`. Every other event is a call that can be applied to any cluster, as
:func:`~hived.events.replay.replay` does. :mod:`.codec` encodes each as one line.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, get_args

from hived.cluster.decisions import Bind, Decision, Placement, PodPlacement, Preempt, Record, VirtualLeaves
from hived.cluster.placement_request import (
    ANYWHERE,
    ON_IDLE,
    Anywhere,
    Beside,
    OnHosts,
    OnIdle,
    Over,
    PlacementConstraint,
    PlacementRequest,
)
from hived.cluster.requests import Request
from hived.cluster.trade import TradeEffect
from hived.errors import InputError, RequestError
from hived.spec.compiled import ClusterSpec


@dataclass(frozen=True, slots=True)
class Opened:
    """A new cluster. The first event of a log, and only the first."""

    spec: ClusterSpec


class Call:
    """A call of a cluster: the fields are the arguments of one of its methods, and ``answer`` its result."""

    __slots__ = ()
    call: ClassVar[str]  #: the name of the method

    @property
    def arguments(self) -> tuple[object, ...]:
        """The arguments of the method."""
        # every call is a dataclass, which this base class cannot declare
        names = [field.name for field in fields(self) if field.name != "answer"]  # type: ignore[arg-type]
        return tuple([getattr(self, name) for name in names])

    @classmethod
    def of(cls, *arguments: Any) -> Call:
        """The call with these arguments. Raises ``TypeError`` if they are too few or too many."""
        return cls(*arguments)

    def apply(self, cluster: Any) -> Any:
        """Call the method of ``cluster`` and return its result. Raises what the method raises."""
        return getattr(cluster, self.call)(*self.arguments)

    def answered(self, answer: Any) -> Event:
        """The event to be logged once ``answer`` is known."""
        return self  # type: ignore[return-value]  # a call without a result is its own event


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
        """The request, its suggested nodes and time; the excluded nodes if there are any."""
        excluded = (self.excluded_nodes,) if self.excluded_nodes else ()
        return (self.request, self.suggested_nodes, self.now, *excluded)

    @classmethod
    def of(cls, request: Any, suggested_nodes: Any, now: Any, excluded_nodes: Any = ()) -> Scheduled:
        """The request, not answered yet."""
        return cls(request, suggested_nodes, now, None, excluded_nodes)

    def answered(self, answer: Decision) -> Scheduled:
        """The same call with its answer."""
        return replace(self, decision=answer)


@dataclass(frozen=True, slots=True)
class Placed(Call):
    """A request was answered for a scheduler that keeps its own queues."""

    call = "place"
    request: Request
    now: float = 0.0  #: seconds
    near: Placement | None = None
    idle: bool = False
    excluded_nodes: tuple[str, ...] = ()
    keep: bool = False
    victims: tuple[str, ...] = ()
    hosts: tuple[tuple[int, int], ...] = ()
    beside: tuple[PodPlacement, ...] | None = None
    at: VirtualLeaves | None = None
    answer: Bind | Preempt | None = None  #: None: it waits

    @property
    def arguments(self) -> tuple[object, ...]:
        """What a log has of a call that was refused, without the last if there is none."""
        given = self.request, self.now, self.near, self.idle, self.excluded_nodes, self.keep, self.victims, self.hosts
        return (*given, self.beside) if self.at is None else (*given, self.beside, self.at)

    @classmethod
    def asked(cls, asked: PlacementRequest, excluded_nodes: Any, keep: bool) -> Placed:
        """The call, not answered yet. The field of its constraint says which it is; none: anywhere."""
        constraint, fields = asked.constraint, dict[str, Any]()
        match constraint:
            case Anywhere():
                pass
            case OnIdle():
                fields = {"idle": True}
            case OnHosts(hosts):
                fields = {"hosts": tuple(hosts)}
            case VirtualLeaves():
                fields = {"at": constraint}
            case Beside(leaves):
                fields = {"beside": tuple(leaves)}
            case Over(victims):
                fields = {"victims": tuple(victims)}
            case _:
                raise RequestError("constraint", f"a PlacementConstraint, not {constraint!r}")
        return cls(asked.request, asked.now, asked.near, excluded_nodes=excluded_nodes, keep=keep, **fields)

    def apply(self, cluster: Any) -> Any:
        """Ask for the placement. Raises what ``Cluster.place`` raises."""
        constraint: PlacementConstraint = ON_IDLE if self.idle else ANYWHERE
        if self.victims:
            constraint = Over(self.victims)
        elif self.at is not None:
            constraint = self.at
        elif self.hosts:
            constraint = OnHosts(self.hosts)
        elif self.beside is not None:
            constraint = Beside(self.beside)
        return cluster.place(
            PlacementRequest(self.request, constraint, self.now, self.near, self.excluded_nodes), self.keep
        )

    def answered(self, answer: Bind | Preempt | None) -> Placed:
        """The same call with its answer."""
        return replace(self, answer=answer)


@dataclass(frozen=True, slots=True)
class Promoted(Call):
    """A promotion was requested: an opportunistic group to become guaranteed in place."""

    call = "promote"
    request: Request
    at: VirtualLeaves | None = None
    excluded_nodes: tuple[str, ...] = ()
    answer: bool | None = None  #: whether it was promoted; None: its VC has no room

    @property
    def arguments(self) -> tuple[object, ...]:
        """The request; the leaf cells and the excluded nodes if there are any."""
        if self.excluded_nodes:
            return self.request, self.at, self.excluded_nodes
        return (self.request,) if self.at is None else (self.request, self.at)

    def answered(self, answer: bool | None) -> Promoted:
        """The same call with its answer."""
        return replace(self, answer=answer)


@dataclass(frozen=True, slots=True)
class Held(Call):
    """A guest was to become a loan in place, or a loan a guest."""

    call = "hold"
    group: str
    loan: bool
    answer: bool = False  #: whether it did

    def answered(self, answer: bool) -> Held:
        """The same call with its answer."""
        return replace(self, answer=answer)


@dataclass(frozen=True, slots=True)
class Committed(Call):
    """A decision was carried out."""

    call = "commit"
    decision: Decision


@dataclass(frozen=True, slots=True)
class Released(Call):
    """A running group has ended."""

    call = "release"
    group: str


@dataclass(frozen=True, slots=True)
class Cancelled(Call):
    """A waiting group was withdrawn."""

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
    """Running groups were recovered."""

    call = "recover"
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Reconfigured(Call):
    """A new spec under running groups."""

    call = "reconfigure"
    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class Traded(Call):
    """A spec in which virtual clusters have traded cells."""

    call = "trade"
    spec: ClusterSpec
    answer: bool = False  #: whether it was carried out; ``False``: it takes a reconfiguration

    def answered(self, answer: TradeEffect | None) -> Traded:
        """The same call with its answer."""
        return replace(self, answer=answer is not None)


@dataclass(frozen=True, slots=True)
class Sparing(Call):
    """From now on loans make room that lose the least work, or again those with the fewest GPUs."""

    call = "spare_work"
    spares: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A call that raised an :class:`InputError`, and changed nothing."""

    call: str  #: name of the method, e.g. ``schedule``
    #: in order, of any type; values without a form in a log are read as :class:`~hived.events.codec.Opaque`
    arguments: tuple[object, ...]
    error: str  #: type and message

    @classmethod
    def of(cls, call: Call | Refused, error: InputError) -> Refused:
        """The event of a ``call`` that raised ``error``."""
        return cls(call.call, call.arguments, f"{type(error).__name__}: {error}")

    def again(self) -> Call:
        """The refused call. Raises :class:`InputError` if a cluster has no such method."""
        try:
            return _CALLS[self.call].of(*self.arguments)
        except (KeyError, TypeError):
            message = f"no such call with {len(self.arguments)} arguments; there are {', '.join(_CALLS)}"
            raise InputError(message) from None

    def apply(self, cluster: Any) -> Any:
        """Try the call again."""
        return self.again().apply(cluster)

    def answered(self, answer: Any) -> Event:
        """The event of the call if it is not refused any more."""
        return self.again().answered(answer)


Event = (
    Opened
    | Scheduled
    | Committed
    | Released
    | Cancelled
    | Placed
    | Promoted
    | Held
    | NodeHealth
    | DeviceHealth
    | Recovered
    | Reconfigured
    | Traded
    | Sparing
    | Refused
)

#: by the name of the method
_CALLS: dict[str, type[Call]] = {kind.call: kind for kind in get_args(Event) if issubclass(kind, Call)}
