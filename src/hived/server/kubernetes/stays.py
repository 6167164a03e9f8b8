"""A gang's life as stretches of time, from what is remembered of it."""

from __future__ import annotations

from typing import Literal

from hived.engines.kubernetes.gangs import Gang, GangState
from hived.server.pictures import Stay

_Kind = Literal["waiting", "reserved", "guaranteed", "opportunistic", "stopping"]

#: what a gang does after a change; None: nothing more. Others change nothing, or not for the eye
_AFTER: dict[str, _Kind | None] = {
    "waiting": "waiting",
    "reserved": "reserved",
    "unreserved": "waiting",
    "placed": "guaranteed",
    "preempted": "stopping",
    "spared": "guaranteed",
    "downgraded": "opportunistic",
    "restored": "guaranteed",
    "rebound": "guaranteed",
    "released": "waiting",
    "ended": None,
}


def stays(gang: Gang, ended: bool) -> list[Stay]:
    """Stretch by stretch; the last one without an end, unless the gang has ended. O(changes remembered).

    A gang stays where it is while it holds GPUs, so the last stretches have its place; of those before, nobody
    remembers where they were. Where the clock was set back, the later change counts as of the same moment.
    """
    starts: list[tuple[float, _Kind]] = []
    end: float | None = None
    at = float("-inf")
    stopping = False
    for change in gang.history:
        at = max(at, change.at)
        if change.kind not in _AFTER:
            continue
        kind = _AFTER[change.kind]
        if kind is None:
            end = at
            continue
        # who is downgraded while it has to go still has to
        stopping = kind == "stopping" or (stopping and change.kind in ("downgraded", "restored", "rebound"))
        starts.append((at, "stopping" if stopping else _lent(gang, kind)))
    if not ended:
        now = _now(gang)
        if not starts or starts[-1][1] != now:  # that change is remembered no more, or it said less than it is
            _last(starts, now, gang.since)
    return _stretches(starts, end if ended else None, _where(gang))


def _lent(gang: Gang, kind: _Kind) -> _Kind:
    return "opportunistic" if kind == "guaranteed" and gang.priority < 0 else kind


def _now(gang: Gang) -> _Kind:
    match gang.state:
        case GangState.WAITING:
            return "waiting"
        case GangState.RESERVED:
            return "reserved"
        case GangState.PREEMPTED:
            return "stopping"
    return "guaranteed" if gang.guaranteed else "opportunistic"


def _last(starts: list[tuple[float, _Kind]], kind: _Kind, since: float) -> None:
    """The last stretch is of this kind, and began then at the latest."""
    if starts and starts[-1][0] >= since:
        starts[-1] = starts[-1][0], kind
    else:
        starts.append((since, kind))


def _where(gang: Gang) -> str:
    pods = gang.placement.pods if gang.placement is not None else ()
    return ";".join(f"{pod.node}:{','.join(map(str, pod.leaf_cells))}" for pod in pods)


def _stretches(starts: list[tuple[float, _Kind]], end: float | None, where: str) -> list[Stay]:
    """Neighbours of one kind are one; what lasted no time is left out, but for the last."""
    joined: list[tuple[float, _Kind]] = []
    for start, kind in starts:
        if joined and joined[-1][0] == start:
            joined.pop()
        if not joined or joined[-1][1] != kind:
            joined.append((start, kind))
    last_wait = max((number for number, (_, kind) in enumerate(joined) if kind == "waiting"), default=-1)
    ends = [start for start, _ in joined[1:]] + [end]
    return [
        Stay(start=start, end=until, kind=kind, where=where if number > last_wait else "")
        for number, ((start, kind), until) in enumerate(zip(joined, ends, strict=True))
    ]
