"""An event log carried out again, and compared byte for byte: the same events give the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from hived.errors import InputError
from hived.spec.compiled import ClusterSpec

from .decisions import Decision, Placement, Wait
from .journal import (
    Cancelled,
    Committed,
    DeviceHealth,
    Event,
    NodeHealth,
    Opened,
    Reconfigured,
    Recovered,
    Refused,
    Released,
    Scheduled,
    from_line,
    to_line,
)
from .requests import Request


class Replayable(Protocol):
    """What a cluster has to have, so that its log can be carried out on it."""

    def schedule(
        self,
        request: Request,
        suggested_nodes: tuple[str, ...] | None,
        now: float,
        excluded_nodes: tuple[str, ...] = (),
        /,
    ) -> Decision:
        """Answer a request."""

    def commit(self, decision: Decision, /) -> object:
        """Carry out an answer."""

    def release(self, group: str, /) -> object:
        """A group that ran has ended."""

    def cancel(self, group: str, /) -> object:
        """A group that waited is withdrawn."""

    def set_node_health(self, node: str, healthy: bool, /) -> object:
        """A node is bad, or healthy."""

    def set_device_health(self, node: str, device: int, healthy: bool, /) -> object:
        """A device is bad, or healthy."""

    def recover(self, records: tuple[tuple[str, Request, Placement], ...], /) -> object:
        """Take over groups that run already."""

    def reconfigure(self, spec: ClusterSpec, /) -> object:
        """Carry on under a new spec."""


C = TypeVar("C", bound=Replayable)


class ReplayError(InputError):
    """A replay does not give what the log has."""

    def __init__(self, number: int, recorded: str, replayed: str, what: str) -> None:
        message = f"event log, line {number}: {what}\n  the log has {recorded}\n  the replay has {replayed}"
        super().__init__(message)
        self.number = number  #: of the line, 1-based
        self.what = what  #: what is different, in words
        self.recorded = recorded  #: the line of the log
        self.replayed = replayed  #: the line that the replay would have written


def replay(lines: Iterable[str], make: Callable[[ClusterSpec], C]) -> C:
    """The cluster that ``make`` opens for the first of ``lines``, after all the others have been carried out on it.

    Raises :class:`ReplayError` at the first line that the cluster would not have written, and :class:`InputError`
    for a line that is none. What else the cluster raises is a bug, and passes through. Keeps every placement that was
    offered, since a commit may be of any; else O(1) memory over the cluster's own.
    """
    cluster: C | None = None
    offered: dict[Decision, Decision] = {}
    for number, end in enumerate(lines, 1):
        line = end.rstrip("\r\n")
        event = from_line(line, number)
        if cluster is None:
            if not isinstance(event, Opened):
                raise ReplayError(
                    number, line, "nothing yet", "the first event opens the cluster; give the log from its start"
                )
            cluster = make(event.spec)
            actual: Event = event
        elif isinstance(event, Opened):
            raise ReplayError(
                number, line, "a cluster already", "the cluster is opened twice; replay one log after the other"
            )
        else:
            actual = _carry_out(event, cluster, offered)
        replayed = _shown(actual)
        if replayed != line:
            raise ReplayError(number, line, replayed, _difference(event, actual))
    if cluster is None:
        raise InputError("the event log is empty; its first line is the event that opened the cluster")
    return cluster


def _scheduled(
    request: Request,
    suggested_nodes: tuple[str, ...] | None,
    now: float,
    *rest: Any,
) -> Scheduled:
    """The event of a request; ``rest``: the excluded nodes, if there are any, and the answer."""
    *excluded, decision = rest
    return Scheduled(request, suggested_nodes, now, decision, *excluded)


#: per method: how many arguments it takes, and the event of a call that was carried out, from these and the answer
_CALLS: dict[str, tuple[tuple[int, ...], Callable[..., Event]]] = {
    "schedule": ((3, 4), _scheduled),
    "commit": ((1,), Committed),
    "release": ((1,), Released),
    "cancel": ((1,), Cancelled),
    "set_node_health": ((2,), NodeHealth),
    "set_device_health": ((3,), DeviceHealth),
    "recover": ((1,), Recovered),
    "reconfigure": ((1,), Reconfigured),
}


def _call(event: Event) -> tuple[str, tuple[object, ...]]:
    """Method and arguments that gave ``event``."""
    match event:
        case Scheduled(request, suggested_nodes, now, _, excluded_nodes):
            return "schedule", (request, suggested_nodes, now, *([excluded_nodes] if excluded_nodes else []))
        case Committed(decision):
            return "commit", (decision,)
        case Released(group):
            return "release", (group,)
        case Cancelled(group):
            return "cancel", (group,)
        case NodeHealth(node, healthy):
            return "set_node_health", (node, healthy)
        case DeviceHealth(node, device, healthy):
            return "set_device_health", (node, device, healthy)
        case Recovered(records):
            return "recover", (records,)
        case Reconfigured(spec) | Opened(spec):
            return "reconfigure", (spec,)
        case Refused(call, arguments):
            return call, arguments


def _carry_out(event: Event, cluster: Replayable, offered: dict[Decision, Decision]) -> Event:
    """Do the same to ``cluster``, and say what came of it."""
    call, arguments = _call(event)
    takes, done = _CALLS.get(call, ((), Released))
    if len(arguments) not in takes:
        known = ", ".join(f"{name} of {' or '.join(map(str, numbers))}" for name, (numbers, _) in _CALLS.items())
        return Refused(call, arguments, f"no such call with {len(arguments)} arguments; there are {known}")
    if call == "commit":
        arguments = tuple(_own(argument, offered) for argument in arguments)
    try:
        answer = getattr(cluster, call)(*arguments)
    except InputError as error:
        return Refused.of(call, arguments, error)
    if call != "schedule":
        return done(*arguments)
    if not isinstance(answer, Wait):
        offered.pop(answer, None)  # the last of equal ones is kept, with the plan it carries
        offered[answer] = answer
    return done(*arguments, answer)


def _own(decision: object, offered: dict[Decision, Decision]) -> object:
    """The replay's own decision that equals ``decision``, which knows how it was made; ``decision`` when none does."""
    try:
        return offered.get(decision, decision)  # type: ignore[call-overload]  # any object may be looked up
    except TypeError:  # not hashable, so none of ours
        return decision


def _shown(event: Event) -> str:
    try:
        return to_line(event)
    except InputError:  # a call that the log has as refused, with arguments that only a refused call can have
        return repr(event)


def _difference(event: Event, actual: Event) -> str:
    if event == actual:
        return "the line is not as hived writes it; give the log unchanged"
    if isinstance(event, Refused) and isinstance(actual, Refused):
        return f"{event.call} is refused with another error"
    if isinstance(event, Refused):
        return f"{event.call} is not refused any more"
    if isinstance(actual, Refused):
        return f"{actual.call} is refused"
    return "another decision"
