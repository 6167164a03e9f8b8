"""Histories of jobs, of an engine or of a simulation: the same events, folded into stays and told in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hived.cluster.explain.sentences import in_lines
from hived.engine.job import EngineJob, Event
from hived.engine.sentences import event_text
from hived.engine.states import JobState, state_after
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
}


class _Doing(NamedTuple):
    """What a job does for a while."""

    kind: StayKind | None  #: None: it has ended
    where: str = ""
    share: float = 1.0
    rate: float = 1.0


def stays(events: Iterable[Event], until: float | None = None) -> list[Stay]:
    """The stays of a job, in order, without those of no length; ``until``: the end of the last one, None: it has none.

    Where the clock was set back between two events, the later one counts as of the same moment. O(events).
    """
    starts: list[tuple[float, _Doing]] = []
    data: dict[str, Any] = {}
    at, state = float("-inf"), None
    for event in events:
        at = max(at, event.at)
        before, state = state, state_after(state, event.kind)
        if state is None or (state is before and not {"placement", "rate", "guest"} & event.data.keys()):
            continue
        held = before is not None and before.holds and state.holds
        data = {**(data if held else {}), **event.data}  # what it was there, it is no more once it has left
        doing = _doing(state, data)
        if starts and doing.kind is not None and starts[-1][0] == at:
            starts.pop()
        if not starts or starts[-1][1] != doing:
            starts.append((at, doing))
    ends = [*(start for start, _ in starts), until][1:]
    return [
        Stay(start=start, end=end, kind=doing.kind, where=doing.where, share=doing.share, rate=doing.rate)
        for (start, doing), end in zip(starts, ends, strict=True)
        if doing.kind is not None
    ]


def _doing(state: JobState, data: dict[str, Any]) -> _Doing:
    """What a job does in a state; ``data``: of its events so far, the later before the earlier."""
    placement = data.get("placement")
    if state.ended or placement is None or not (state.holds or state is JobState.RESERVED):
        return _Doing(None if state.ended else STAYS[state])
    turns = [placement, *data.get("turns", ())]
    where = " or ".join(
        ";".join(f"{encoded(node)}:{','.join(map(str, devices))}" for node, devices in one["pods"]) for one in turns
    )
    if state in STAYS:
        return _Doing(STAYS[state], where)
    own: StayKind = "guest" if data.get("guest") else "guaranteed" if placement["levels"] else "opportunistic"
    return _Doing(own, where, data.get("share", 1.0), data.get("rate", 1.0))


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
