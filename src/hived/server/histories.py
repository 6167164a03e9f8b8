"""Histories of jobs, of an engine or of a simulation: the same events, folded into stays and told in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hived.cluster.explain.sentences import in_lines
from hived.engine.job import EngineJob, Event
from hived.engine.sentences import event_text
from hived.engine.states import JobEvent, JobState, state_after
from hived.words import encoded

from . import pictures
from .mapping import of
from .pictures import Stay, StayKind

#: what a job does in a state; in one that is not here it runs as its placement says
STAYS: dict[JobState, StayKind] = {
    JobState.QUEUED: "waiting",
    JobState.RESERVED: "reserved",
    JobState.SUSPENDED: "suspended",
    JobState.STOPPING: "stopping",
    JobState.BACKOFF: "backoff",
    JobState.HELD: "held",
}
#: the fields of events that say how a job runs
_TOLD = ("placement", "turns", "share", "rate", "guest")


class Doing(NamedTuple):
    """What a job does for a while."""

    kind: StayKind | None  #: None: it has ended
    #: the pods, as plain data, of each placement that it has or has reserved; several where it takes turns on them
    turns: tuple[Any, ...] = ()
    share: float = 1.0
    rate: float = 1.0
    guest: bool = False  #: while it is being stopped too
    limit: float = 1.0  #: share of the time that it may use
    by_hand: bool = False  #: it is suspended by somebody, past the scheduler

    @property
    def where(self) -> str:
        """As :class:`~.pictures.Stay` has it."""
        return " or ".join(
            ";".join(f"{encoded(node)}:{','.join(map(str, devices))}" for node, devices in pods) for pods in self.turns
        )


class Spell(NamedTuple):
    """What a job does from ``start`` to ``end``; None: it goes on."""

    start: float
    end: float | None
    doing: Doing


def spells(events: Iterable[Event], until: float | None = None) -> list[Spell]:
    """What a job does, in order, without what has no length; ``until``: the end of the last, None: it has none.

    Where the clock was set back between two events, the later one counts as of the same moment. O(events).
    """
    starts: list[tuple[float, Doing]] = []
    data: dict[str, Any] = {}
    at, state = float("-inf"), None
    for event in events:
        at = max(at, event.at)
        before, state = state, state_after(state, event.kind)
        told = _told(event)
        if state is None or (state is before and not told):
            continue
        held = before is not None and before.holds and state.holds
        data = {**(data if held else {}), **told}  # what it was there, it is no more once it has left
        if state is JobState.RUNNING and "placement" not in data:
            continue  # its start is not among the events any more, and neither is what it did until it left
        doing = _doing(state, data)
        if starts and doing.kind is not None and starts[-1][0] == at:
            starts.pop()
        if not starts or starts[-1][1] != doing:
            starts.append((at, doing))
    ends = [*(start for start, _ in starts), until][1:]
    found = (Spell(start, end, doing) for (start, doing), end in zip(starts, ends, strict=True))
    return [spell for spell in found if spell.doing.kind is not None]


def _told(event: Event) -> dict[str, Any]:
    """What an event says of how a job runs, or stands still, beside its state."""
    match event.kind:
        case JobEvent.LIMITED:
            return {"limit": event.data["share"]}
        case JobEvent.SUSPENDED:
            return {"by_hand": bool(event.data.get("by_hand"))}
    told = {name: event.data[name] for name in _TOLD if name in event.data}
    return told if "floor" not in event.data else {**told, "limit": event.data["floor"]}


def _doing(state: JobState, data: dict[str, Any]) -> Doing:
    """What a job does in a state; ``data``: what its events have told so far."""
    placement = data.get("placement")
    if state.ended or placement is None or not (state.holds or state is JobState.RESERVED):
        return Doing(None if state.ended else STAYS[state])
    turns, guest = tuple(one["pods"] for one in (placement, *data.get("turns", ()))), bool(data.get("guest"))
    if state is JobState.SUSPENDED:
        return Doing(STAYS[state], turns, guest=guest, by_hand=data.get("by_hand", False))
    limit = data.get("limit", 1.0)
    if state in STAYS:
        return Doing(STAYS[state], turns, guest=guest, limit=limit)
    own: StayKind = "guest" if guest else "guaranteed" if placement["levels"] else "opportunistic"
    return Doing(own, turns, data.get("share", 1.0), data.get("rate", 1.0), guest, limit)


def stays(events: Iterable[Event], until: float | None = None) -> list[Stay]:
    """The :func:`spells` of a job, as they are shown. O(events)."""
    return [
        Stay(
            start=start, end=end, kind=doing.kind, where=doing.where, share=doing.share, rate=doing.rate,
            limit=doing.limit, by_hand=doing.by_hand,
        )
        for start, end, doing in spells(events, until)
        if doing.kind is not None
    ]  # fmt: skip


def moments(events: Iterable[Event], name: str) -> list[pictures.Moment]:
    """The events of a job in words."""
    return [pictures.Moment(at=event.at, text=event_text(event, name)) for event in events]


def story(job: EngineJob, events: Sequence[Event], explanation: Sequence[str], command: str = "") -> pictures.Story:
    """The page of a job; ``explanation``: its headline and lines."""
    return pictures.Story(
        **of(job),
        state=job.state.value,
        command=command,
        explanation=in_lines(explanation),
        stays=stays(events),
        moments=moments(events, job.name),
    )


def ended_jobs(jobs: Iterable[EngineJob], total: int) -> pictures.EndedJobs:
    """A page of jobs that have ended, of ``total``."""
    return pictures.EndedJobs(
        jobs=[
            pictures.Ended(
                **of(job), state=job.state.value, at=job.since if job.ended_at is None else job.ended_at, why=job.reason
            )
            for job in jobs
        ],
        total=total,
    )
