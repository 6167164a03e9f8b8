"""Jobs of one machine: specification, what their events make of them, and the outcome of an attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple

from pydantic import Field

from hived.engine.job import EngineJob, Event, Limits, placement_data, placement_from
from hived.engine.states import Effect, JobEvent, JobState
from hived.engines.submission import Submission
from hived.errors import ConflictError

#: between SIGTERM and SIGKILL, of a job that says nothing else
DEFAULT_GRACE_S = 30.0


class JobSpec(Submission):
    """A submission that the engine has taken, with what it was silent about."""

    cwd: str = "/"
    environment: dict[str, str] = Field(default_factory=dict, repr=False)
    """Beside the variables that hived adds."""
    grace_s: float = DEFAULT_GRACE_S
    """Between SIGTERM and SIGKILL."""
    user: str = ""
    """Its submitter."""
    is_limited: bool = False
    """Whether its submitter has the limits of a member of its virtual cluster."""
    waits_for: tuple[tuple[int, str], ...] = ()
    """Numbers of jobs, and how they have to end: ``after``, without those that had ended so already."""
    array_id: int = 0
    """Number of the first job of its array; 0: of none."""
    array_index: int = 0
    array_most: int = 0
    """Of its array at a time; 0: all."""
    uid: int = -1
    """The user that it runs as; -1: the engine's, in a version that knew no other."""
    submission: str = ""
    """Random id of this submission; "": of a version that had none."""
    sequence: int = -1
    """How many of its VC were submitted before it; -1: of a version that had none."""

    def submitted_before(self, number: int) -> int:
        """How many of its VC were submitted before it; of a version that did not count them, all jobs."""
        return number if self.sequence < 0 else self.sequence

    def stored(self) -> dict[str, Any]:
        """It as a row of the store has it."""
        plain = {**dict(self), "name": self.name or "", "environment": list(self.environment.items())}
        return plain | {"after": []}  # as numbers, in waits_for

    @classmethod
    def restored(cls, plain: Mapping[str, Any]) -> JobSpec:
        """The inverse of :meth:`stored`, of this version or the one before it: its values were checked when it came."""
        found = {**plain, "command": tuple(plain["command"]), "environment": dict(plain["environment"])}
        found["after"] = ()
        found.setdefault("requeue", True)
        found.setdefault("umask", None)
        found["waits_for"] = tuple((int(number), str(when)) for number, when in plain.get("waits_for", ()))
        return cls.model_construct(**found)


#: programs that run the program named in their arguments
_INTERPRETERS = ("python", "bash", "sh", "zsh", "torchrun", "env", "nice", "uv")


def default_name(command: tuple[str, ...]) -> str:
    """Name of a job submitted without one: its program, or the script that an interpreter runs."""
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
    """A job of one machine. Its fields change only by :meth:`apply`, so that its events determine it."""

    #: as the store has it, which need not write it again
    stored_spec: JobSpec | None = None

    def __init__(self, number: int, spec: JobSpec, submitted_at: float) -> None:
        name = f"{spec.name or default_name(spec.command)}-{number}"
        gpus, limit = spec.gpus * spec.tasks, spec.time_limit_s
        super().__init__(
            number,
            spec.request(name),
            gpus,
            submitted_at,
            submitted_at,
            spec.early,
            spec.submitted_before(number),
            spec.user,
            limit,
        )
        self.spec, self.ref, self.size = spec, number, spec.tasks
        #: how often it was started
        self.attempt = 0
        #: how often it was requeued without a failure of its own
        self.resumes = 0
        #: how often it has failed and was requeued
        self.retries = 0
        #: rendezvous port of its tasks (MASTER_PORT) in this attempt
        self.port = 0
        #: share of its GPUs' time with which this attempt was started, as a guest; None: all of it
        self.floor: float | None = None
        #: of the task that decided its outcome
        self.exit_code: int | None = None
        #: whether somebody holds it, until it is released
        self.held_by_hand = False
        #: who does, "": its submission, or not known
        self.held_by = ""
        #: why it was told to stop last: by its events, and in no row
        self.stopped_why = ""
        #: whether it is stopped without its grace
        self.at_once = False
        #: arrays of which one has failed, of those that it waits for so
        self.failed_of: tuple[int, ...] = ()
        #: whether its time limit is another one than when this attempt was started
        self.relimited = False
        #: when its backoff ends
        self.retry_at: float | None = None
        #: endings of the tasks of this attempt that have ended, by rank: the fields of their event
        self.endings: dict[int, dict[str, Any]] = {}

    def mark(self, database: str, rank: int | None = None) -> str:
        """Mark of a task of the present attempt; ``rank`` None: what the marks of all its tasks begin with.

        Numbers of jobs and attempts come again, in another database and in a copy of this one, so they are not in it
        alone. ``database``: the id of the database.
        """
        own = f"{database}/{self.spec.submission or self.id}."
        if rank is None:
            return own
        return f"{own}{self.attempt}.{rank}" + (f"@{self.started_at!r}" if self.spec.submission else "")

    @property
    def limit_at(self) -> float | None:
        """When this attempt reaches its time limit. Its supervisors enforce the limit half a second before."""
        limit = self.spec.time_limit_s
        return None if limit is None or self.started_at is None else self.started_at + limit + 0.5

    def apply(self, event: Event) -> Effect:
        """See :meth:`EngineJob.apply`."""
        effect, data = super().apply(event), event.data
        match JobEvent(event.kind):
            case JobEvent.STARTED:
                self.attempt += 1
                self.port, self.floor = int(data["port"]), data.get("floor")
                self.exit_code, self.endings, self.relimited, self.at_once = None, {}, False, False
            case JobEvent.TASK_ENDED:
                self.endings[int(data["rank"])] = dict(data)
            case JobEvent.REQUEUED:
                self.resumes += 1
            case JobEvent.RETRYING:
                self.retries += 1
                self.retry_at, self.exit_code = float(data["at"]), data.get("code")
            case JobEvent.QUEUED:
                self.retry_at, self.held_by_hand = None, False
            case JobEvent.HELD:
                self.held_by_hand = bool(data.get("by_hand"))
                self.held_by = str(data.get("by") or "")
                if (array := data.get("failed_of")) is not None:
                    self.failed_of += (int(array),)
            case JobEvent.STOPPING:
                self.at_once = self.at_once or bool(data.get("at_once"))
                self.stopped_why = str(data.get("why") or "")
                if data["cause"] == "requeued":
                    self.held_by_hand = bool(data.get("hold"))
                    self.held_by = str(data.get("held_by") or "")
            case JobEvent.EDITED:
                self._edit({name: has for name, (_, has) in data["changes"].items()})
            case JobEvent.SUCCEEDED | JobEvent.FAILED | JobEvent.CANCELLED:
                self.exit_code = data.get("code")
        return effect

    def _edit(self, changes: Mapping[str, object]) -> None:
        """Ask for something else; it is in no queue, or asks for another time limit alone, or its array has another."""
        if (most := changes.get("array_most")) is not None:
            indexes = None if self.spec.array is None else self.spec.array.partition("%")[0]
            array = indexes if indexes is None or most == 0 else f"{indexes}%{most}"
            self.spec = self.spec.model_copy(update={"array_most": most, "array": array})
            return
        spec = self.spec = self.spec.model_copy(update=changes)
        if self.holds:
            self.entry.duration, self.relimited = spec.time_limit_s, True
            return
        self.size, self.gpus = spec.tasks, spec.gpus * spec.tasks
        entry, asked = self.entry, spec.request(self.name)
        entry.duration, entry.key = spec.time_limit_s, ()
        entry.view = entry.view._replace(duration=spec.time_limit_s)
        entry.resize(replace(entry.request, members=asked.members), self.gpus)

    # -- as a row of the store ------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Its fields that events change, as plain data."""
        plain = {name: getattr(self, name) for name in _STATUS}
        plain["state"], plain["preempted_by"] = self.state.value, self.displaced_by
        plain["guaranteed"] = self.holds and self.guaranteed
        plain["placement"] = None if self.placement is None else placement_data(self.placement)
        if self.state is JobState.SUSPENDED:
            plain |= {"suspended_for": self.suspended_for, "by_hand": self.by_hand, "resumes_at": self.resumes_at}
        if self.limits is not None:
            plain["limits"] = self.limits
        if self.floor is not None:
            plain["floor"] = self.floor
        if self.beside:
            plain |= {"guest": self.guest, "beside": list(self.beside)}
        if self.held_by_hand:
            plain["held_by_hand"] = True
            plain["held_by"] = self.held_by
        if self.at_once:
            plain["at_once"] = True
        if self.failed_of:
            plain["failed_of"] = list(self.failed_of)
        if self.relimited:
            plain["relimited"] = True
        if self.entry.request.priority != self.spec.priority:
            plain["asks_with"] = self.entry.request.priority
        if self.priority != self.spec.priority:
            plain["priority"] = self.priority
        return plain

    @classmethod
    def restored(cls, number: int, spec: Mapping[str, Any], status: Mapping[str, Any]) -> Job:
        """The job with this specification, as plain data, and this :meth:`status`."""
        job = cls(number, JobSpec.restored(spec), status["submitted_at"])
        for name in _STATUS:
            setattr(job, name, status[name])
        job.state = JobState(status["state"])
        job.placement = None if status["placement"] is None else placement_from(status["placement"])
        job.displaced_by = None if status["preempted_by"] is None else tuple(status["preempted_by"])
        job.endings = {int(rank): ending for rank, ending in status["endings"].items()}
        job.suspended_for, job.by_hand = status.get("suspended_for", ""), status.get("by_hand", False)
        job.resumes_at = status.get("resumes_at")
        job.limits = Limits(*status["limits"]) if "limits" in status else None
        job.floor, job.held_by_hand = status.get("floor"), status.get("held_by_hand", False)
        job.held_by = status.get("held_by", "")
        job.at_once = status.get("at_once", False)
        job.failed_of = tuple(status.get("failed_of", ()))
        job.relimited = status.get("relimited", False)
        job.guest, job.beside = status.get("guest", False), tuple(status.get("beside", ()))
        if "asks_with" in status:
            job.entry.ask(status["asks_with"])
        job.entry.priority = status.get("priority", job.entry.priority)
        return job


class Obeying(NamedTuple):
    """What a training job does now, by the pages of all its processes."""

    suspended: bool
    tier: str = ""  #: how it has released its memory
    moved_bytes: int = 0  #: copied for that
    took_s: float = 0.0  #: that this took
    memory: int = 0  #: limit in force, device bytes per process; 0: none
    share: float = 1.0  #: in force
    note: str = ""  #: what is not kept in full
    mini_batch_s: float = 0.0  #: of its slowest process, smoothed
    utilization: float = 0.0  #: part of the time in which its processes were in mini-batches
    peak_bytes: int = 0  #: most device memory of a process
    least_bytes: int = 0  #: of a process, between two mini-batches
    mini_batches: int = 0  #: ended, by its slowest process
    ended_at: float = 0.0  #: when that one ended its last, by ``time.monotonic``
    device_bytes: int = 0  #: most that a process has on its device now, its cache too
    host_bytes: int = 0  #: and of its device tensors in host memory
    device: str = ""  #: of its first process
    elastic: bool = False  #: it grows and shrinks, by what its script declares
    workers: int = 0  #: its processes; 0: their number is changing


class RefusedError(ConflictError):
    """A training job cannot do what it is told, and goes on as it is."""


class Limiting(NamedTuple):
    """Other limits of a training job; None: as it is."""

    memory: int | None  #: device bytes per process; 0: none
    share: float | None  #: of its GPUs' time
    most: int = 0  #: up to which the memory limit may rise by itself; 0: it stays
    lease_s: float = 0.0  #: after so long those of its start hold again; 0: never


#: fields of a job that are stored as they are
_STATUS = (
    "submitted_at", "since", "attempt", "resumes", "retries", "port", "started_at", "ended_at", "exit_code", "reason",
    "stopping_for", "retry_at", "endings",
)  # fmt: skip


#: the longest pause before a failed job is requeued, in seconds
MOST_BACKOFF_S = 300.0


#: causes for which a job is stopped and starts anew later
REQUEUES = ("preempted", "moved", "drained", "requeued")
#: the outcome of an attempt that was stopped for this cause
_STOPPED = {"cancelled": JobEvent.CANCELLED, **dict.fromkeys(REQUEUES, JobEvent.REQUEUED)}


def outcome(job: Job, at: float) -> tuple[JobEvent, dict[str, object]]:
    """The event with which an attempt ends at ``at``, once all its tasks have ended, and the data of that event.

    It follows from the endings of the tasks, and the cause for which the job was stopped. A job whose tasks all ended
    well by themselves has succeeded, even if it was about to be stopped. A job stopped to make room is requeued,
    whatever its exit code: a victim that saves its state and exits with 0 is not done yet.
    """
    endings = list(job.endings.values())
    if all(ending["code"] == 0 and not ending["stopped"] for ending in endings):
        return JobEvent.SUCCEEDED, {"code": 0, "why": ""}
    if (stopped := _STOPPED.get(job.stopping_for)) is not None:
        if stopped is JobEvent.REQUEUED and not job.spec.requeue and job.stopping_for != "requeued":
            stopped = JobEvent.CANCELLED
        return stopped, {"code": None, "why": job.reason}
    first = _blamed(endings)
    if first["rebooted"] and job.spec.requeue:
        return JobEvent.REQUEUED, {"code": None, "why": first["error"]}
    limited = first["limit"] or job.stopping_for == "time_limit"
    if limited:
        what = f"ran into its time limit of {job.spec.time_limit_s:g} s"
    elif first["error"]:
        could_not = "could not go on: " if first["lost"] else "could not be started: " if first["code"] == 127 else ""
        what = f"{could_not}{first['error']}"
    elif first["stopped"]:
        what = "was told to stop by somebody else"
    elif first["signal"]:
        what = f"was ended by signal {first['signal']}"
    else:
        what = f"ended with exit code {first['code']}"
    which = f"task {first['rank']}" if job.spec.tasks > 1 else "it"
    data: dict[str, object] = {"code": first["code"], "why": f"{which} {what}"}
    if limited or job.retries >= job.spec.retries:
        return JobEvent.FAILED, data
    delay = min(MOST_BACKOFF_S, job.spec.backoff_s * 2.0 ** min(job.retries, 30))
    return JobEvent.RETRYING, data | {"at": at + delay}


def _blamed(endings: list[dict[str, Any]]) -> dict[str, Any]:
    """The first ending of a task that failed by itself, in the order of their ends; else of the first task stopped."""
    for ending in endings:
        if ending["limit"] or (not ending["stopped"] and (ending["code"] or ending["lost"])):
            return ending
    return next(ending for ending in endings if ending["code"] or ending["stopped"])
