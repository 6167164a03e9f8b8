"""Replay of an event log, compared byte for byte: the same events give the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from hived.cluster.decisions import Decision, Wait
from hived.cluster.requests import COMMITTED
from hived.errors import InputError
from hived.spec.compiled import ClusterSpec

from .codec import from_line, to_line
from .journal import Committed, Event, Opened, Placed, Refused, Scheduled

C = TypeVar("C")


class ReplayError(InputError):
    """A replay differs from its log."""

    def __init__(self, number: int, recorded: str, replayed: str, what: str) -> None:
        message = f"event log, line {number}: {what}\n  the log has {recorded}\n  the replay has {replayed}"
        super().__init__(message)
        self.number = number  #: of the line, 1-based
        self.what = what  #: the difference in words
        self.recorded = recorded  #: the line of the log
        self.replayed = replayed  #: the line that the replay would have written


def replay(lines: Iterable[str], make: Callable[[ClusterSpec], C]) -> C:
    """Replay ``lines`` on the cluster that ``make`` opens for the first of them; returns that cluster.

    Raises :class:`ReplayError` at the first line that the cluster would not have written, and :class:`InputError`
    for an invalid line. Any other exception of the cluster is a bug, and passes through. Decisions since the last
    change of the cluster are kept, since any of them may be committed; else O(1) memory over the cluster's own.
    """
    cluster: C | None = None
    offered: dict[Decision, Decision] = {}
    for number, end in enumerate(lines, 1):
        line = end.rstrip("\r\n")
        event = from_line(line, number)
        if isinstance(event, Opened):
            if cluster is not None:
                what = "the cluster is opened twice; replay one log after the other"
                raise ReplayError(number, line, "a cluster already", what)
            cluster = make(event.spec)
            actual: Event = event
        elif cluster is None:
            what = "the first event opens the cluster; give the log from its start"
            raise ReplayError(number, line, "nothing yet", what)
        else:
            if isinstance(event, Committed):  # the replay's own equal decision, which the cluster can commit
                event = replace(event, decision=offered.get(event.decision, event.decision))
            try:
                actual = event.answered(event.apply(cluster))
            except InputError as error:
                actual = Refused.of(event, error)
            if isinstance(actual, Scheduled | Placed):
                _track(actual.decision if isinstance(actual, Scheduled) else actual.answer, offered)
        replayed = _shown(actual)
        if replayed != line:
            raise ReplayError(number, line, replayed, _difference(event, actual))
    if cluster is None:
        raise InputError("the event log is empty; its first line is the event that opened the cluster")
    return cluster


def _track(decision: Decision | None, offered: dict[Decision, Decision]) -> None:
    """Keep ``decision``, and drop all decisions of an earlier version of the cluster. Amortized O(1)."""
    if (
        decision is None
        or isinstance(decision, Wait)
        or decision.provenance is None
        or decision.provenance is COMMITTED
    ):
        return  # nothing to commit, or committed already
    before = next(iter(offered.values()), decision)
    if not isinstance(before, Wait) and before.provenance and before.provenance.version != decision.provenance.version:
        offered.clear()
    offered[decision] = decision


def _shown(event: Event) -> str:
    try:
        return to_line(event)
    except InputError:  # a call that the log has as refused, with arguments that only a refused call can record
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
