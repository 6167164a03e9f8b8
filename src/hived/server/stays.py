"""A job's life as stretches of time, from its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hived.engines.local.model import Event

from .pictures import Stay

_Kind = Literal["waiting", "reserved", "guaranteed", "opportunistic", "stopping", "backoff"]

#: what a job does after an event; None: nothing more
_AFTER: dict[str, _Kind | None] = {
    "submitted": "waiting",
    "reserved": "reserved",
    "unreserved": "waiting",
    "stopping": "stopping",
    "preempted": "waiting",
    "retrying": "backoff",
    "queued": "waiting",
    "succeeded": None,
    "failed": None,
    "cancelled": None,
}


def stays(events: Sequence[Event]) -> list[Stay]:
    """Stretch by stretch; the last one without an end, while the job has none.

    Where the clock was set back between two events, the later one counts as of the same moment.
    """
    found: list[Stay] = []
    now: tuple[float, _Kind, str] | None = None
    where = ""
    at = float("-inf")
    for event in events:
        at = max(at, event.at)
        data: Mapping[str, Any] = event.data
        if event.kind in ("started", "downgraded", "restored", "rebound"):
            kind: _Kind | None = "guaranteed" if data["placement"]["levels"] else "opportunistic"
            if now is not None and now[1] == "stopping":
                kind = "stopping"
            where = placed(data["placement"])
        elif event.kind in _AFTER:
            kind = _AFTER[event.kind]
            where = where if kind == "stopping" else placed(data["placement"]) if kind == "reserved" else ""
        else:
            continue
        if now is not None and (kind, where) != now[1:]:
            found.append(Stay(start=now[0], end=at, kind=now[1], where=now[2]))
        if kind is None:
            now = None
        elif now is None or (kind, where) != now[1:]:
            now = (at, kind, where)
    if now is not None:
        found.append(Stay(start=now[0], end=None, kind=now[1], where=now[2]))
    return found


def placed(placement: Mapping[str, Any]) -> str:
    """``node:0,1;node2:3``."""
    return ";".join(f"{node}:{','.join(map(str, devices))}" for node, devices in placement["pods"])
