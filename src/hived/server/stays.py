"""A job's life as stretches of time, from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from hived.engines.job import Event

from .pictures import Stay

_Kind = Literal["waiting", "reserved", "guaranteed", "opportunistic", "stopping", "backoff"]
#: what a job does after an event; placed: guaranteed or opportunistic, as its placement says
Doing = Literal["waiting", "reserved", "placed", "stopping", "backoff"]

#: events that put a job that has GPUs under other cells, or none
_ELSEWHERE = ("downgraded", "restored", "promoted", "rebound")
#: what a job of any engine does after an event; None: nothing more
AFTER: dict[str, Doing | None] = {
    "reserved": "reserved",
    "unreserved": "waiting",
    **dict.fromkeys(_ELSEWHERE, "placed"),
}


def stays(events: Iterable[Event], after: Mapping[str, Doing | None]) -> list[Stay]:
    """Stretch by stretch; the last one without an end, while the job has none. What lasted no time is left out.

    ``after``: see :data:`AFTER`; events of other kinds say nothing of that. Where the clock was set back between two
    events, the later one counts as of the same moment.
    """
    starts: list[tuple[float, _Kind | None, str]] = []
    at = float("-inf")
    for event in events:
        at = max(at, event.at)
        if event.kind not in after:
            continue
        now = starts[-1] if starts else (at, None, "")
        doing, placement = after[event.kind], event.data.get("placement")
        where = now[2] if doing == "stopping" else ""
        if placement is not None:
            where = ";".join(f"{node}:{','.join(map(str, devices))}" for node, devices in placement["pods"])
        kind: _Kind | None
        if now[1] == "stopping" and event.kind in _ELSEWHERE:
            kind = "stopping"  # it still has to
        elif doing == "placed":
            kind = "guaranteed" if placement is not None and placement["levels"] else "opportunistic"
        else:
            kind = doing
        if starts and kind is not None and now[0] == at:
            starts.pop()
        if not starts or starts[-1][1:] != (kind, where):
            starts.append((at, kind, where))
    ends = [start for start, _, _ in starts[1:]] + [None]
    return [
        Stay(start=start, end=end, kind=kind, where=where)
        for (start, kind, where), end in zip(starts, ends, strict=True)
        if kind is not None
    ]
