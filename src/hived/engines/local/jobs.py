"""A job as the engine knows it: what was asked for, and what its events have made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from hived.cluster.requests import Member, Request
from hived.engines.event import Event, placement_data, placement_from
from hived.engines.job import EngineJob, next_state

from .model import JOB_TABLE, JobEvent, JobSpec, JobState

#: programs that run the one named after them
_INTERPRETERS = ("python", "bash", "sh", "zsh", "torchrun", "env", "nice", "uv")


def default_name(command: tuple[str, ...]) -> str:
    """What a job is called that was given no name: its program, or the script that an interpreter runs."""
    words = list(command)
    while len(words) > 1 and PurePath(words[0]).name.rstrip("0123456789.").startswith(_INTERPRETERS):
        following = next((n for n, word in enumerate(words[1:], 1) if not word.startswith("-") and "=" not in word), 0)
        if not following or "-c" in words[1:following]:
            break
        words = words[following:]
    stem = PurePath(words[0]).name.split(".")[0]
    kept = "".join(sign if (sign.isascii() and sign.isalnum()) or sign in "_-" else "-" for sign in stem)
    return kept.strip("-_")[:40] or "job"


class Job(EngineJob):
    """A job. Its fields change by :meth:`apply` alone, so that a job is exactly what its events say."""

    state: JobState

    def __init__(self, number: int, spec: JobSpec, submitted_at: float) -> None:
        name = f"{spec.name or default_name(spec.command)}-{number}"
        members = (Member(spec.tasks, spec.gpus),)
        request = Request(name, spec.vc, spec.priority, members, lazy_preemption=spec.lazy_preemption)
        super().__init__(number, request, spec.gpus * spec.tasks, submitted_at, submitted_at, spec.early)
        self.spec = spec
        self.state = JobState.QUEUED
        #: how often it was started
        self.attempt = 0
        #: how often it was queued again with nothing to blame it for
        self.resumes = 0
        #: how often it has failed and was queued again
        self.retries = 0
        #: where its tasks meet (MASTER_PORT), of this attempt
        self.port = 0
        self.started_at: float | None = None
        self.ended_at: float | None = None
        #: of the task that decided how it ended
        self.exit_code: int | None = None
        #: why it is where it is, in words
        self.reason = ""
        #: why it is being stopped: preempted, cancelled, drained, time_limit or task_failed
        self.stopping_for = ""
        #: when it is queued again
        self.retry_at: float | None = None
        #: tasks of this attempt that have ended, by rank: code, whether told to stop, and what else was said
        self.endings: dict[int, dict[str, Any]] = {}

    @property
    def key(self) -> str:
        """What addresses call it."""
        return str(self.id)

    @property
    def holds(self) -> bool:
        """Whether it has GPUs."""
        return self.state.holds

    @property
    def limit_at(self) -> float | None:
        """When this attempt has run for as long as it may. Its supervisors see to it, a moment before."""
        limit = self.spec.time_limit_s
        return None if limit is None or self.started_at is None else self.started_at + limit + 0.5

    def apply(self, event: Event) -> None:
        """``event`` happened to it. Raises :class:`~hived.errors.InvariantError` where it cannot have."""
        kind, data = JobEvent(event.kind), event.data
        before = self.state
        self.state = next_state(JOB_TABLE, before, kind)
        if self.state is not before and not {before, self.state} <= {JobState.QUEUED, JobState.RESERVED}:
            self.since = event.at
        match kind:
            case JobEvent.RESERVED:
                self.placement = placement_from(data["placement"])
                self.reason = f"waits until {_names(data['victims'])} gone"
            case JobEvent.UNRESERVED:
                self.placement, self.reason = None, str(data["why"])
            case JobEvent.STARTED:
                self.placement = placement_from(data["placement"])
                self.attempt += 1
                self.port = int(data["port"])
                self.started_at, self.reason, self.stopping_for = event.at, "", ""
                self.exit_code, self.endings = None, {}
            case JobEvent.STOPPING:
                self.stopping_for, self.reason = str(data["cause"]), str(data["why"])
                if (by := data.get("by")) is not None:
                    self.displaced_by = (by[0], by[1], by[2])
            case JobEvent.TASK_ENDED:
                self.endings[int(data["rank"])] = dict(data)
            case JobEvent.DOWNGRADED | JobEvent.RESTORED | JobEvent.REBOUND | JobEvent.PROMOTED:
                self.placement = placement_from(data["placement"])
                self.reason = str(data["why"])
            case JobEvent.PREEMPTED:
                self._holds_nothing()
                self.resumes += 1
                self.reason = str(data["why"])
            case JobEvent.RETRYING:
                self._holds_nothing()
                self.retries += 1
                self.retry_at = float(data["at"])
                self.exit_code, self.reason = data.get("code"), str(data["why"])
            case JobEvent.QUEUED:
                self.retry_at = None
            case JobEvent.SUCCEEDED | JobEvent.FAILED | JobEvent.CANCELLED:
                self._holds_nothing()
                self.ended_at, self.exit_code, self.reason = event.at, data.get("code"), str(data.get("why", ""))

    def _holds_nothing(self) -> None:
        self.placement, self.stopping_for = None, ""

    # -- as a row of the store ------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What its events have made of it, as plain data."""
        plain = {name: getattr(self, name) for name in _STATUS}
        plain["state"], plain["preempted_by"] = self.state.value, self.displaced_by
        plain["guaranteed"] = self.holds and self.guaranteed
        plain["placement"] = None if self.placement is None else placement_data(self.placement)
        return plain

    @classmethod
    def restored(cls, number: int, spec: Mapping[str, Any], status: Mapping[str, Any]) -> Job:
        """The job with this specification, as plain data, and this :meth:`status`."""
        job = cls(number, msgspec.convert(spec, JobSpec), status["submitted_at"])
        for name in _STATUS:
            setattr(job, name, status[name])
        job.state = JobState(status["state"])
        job.placement = None if status["placement"] is None else placement_from(status["placement"])
        job.displaced_by = None if status["preempted_by"] is None else tuple(status["preempted_by"])
        job.endings = {int(rank): ending for rank, ending in status["endings"].items()}
        return job


#: what is written of a job as it is
_STATUS = (
    "submitted_at", "since", "attempt", "resumes", "retries", "port", "started_at", "ended_at", "exit_code", "reason",
    "stopping_for", "retry_at", "endings",
)  # fmt: skip


def _names(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
