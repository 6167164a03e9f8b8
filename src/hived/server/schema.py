"""What the HTTP API speaks: requests and answers of ``/v1``, as the OpenAPI document shows them.

Times are seconds since the epoch (UTC) unless a field says otherwise. Unknown fields are refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints


class Model(BaseModel):
    """Of all requests and answers: strict in what they have."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]
Value = Annotated[str, StringConstraints(max_length=131_071, pattern=r"^[^\x00]*$")]
JobStateName = Literal["queued", "reserved", "running", "stopping", "backoff", "succeeded", "failed", "cancelled"]


class Error(Model):
    """Every error has this shape, whatever its status."""

    code: (
        str  #: for programs: invalid, not_found, never_fits, conflict, forbidden, unauthorized, too_large, storage, ...
    )
    message: str  #: what, where, have against need, the way out
    field: str | None = None  #: of the request, where one is wrong


class ErrorAnswer(Model):
    error: Error


# -- jobs -------------------------------------------------------------------------------------------------------------


class Submission(Model):
    """A job to run."""

    vc: Annotated[str, Field(min_length=1, max_length=253)]
    command: Annotated[list[Text], Field(min_length=1, max_length=1024)]
    gpus: Annotated[int, Field(ge=1, le=1_048_576)] = 1  #: per task
    tasks: Annotated[int, Field(ge=1, le=4096)] = 1  #: processes of the gang, placed and started all or none
    priority: Annotated[int, Field(ge=-1, le=1000)] = 0  #: -1: opportunistic
    name: Name | None = None
    cwd: Annotated[str, StringConstraints(pattern=r"^/[^\x00]{0,4095}$")] | None = None  #: None: the engine's own
    environment: Annotated[dict[VariableName, Value], Field(max_length=4096)] = Field(default_factory=dict)
    retries: Annotated[int, Field(ge=0, le=1000)] = 0
    backoff_s: Annotated[float, Field(ge=0, le=300)] = 5.0
    time_limit_s: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    grace_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    lazy_preemption: bool = False


class TaskPlace(Model):
    """Where one task of a job runs."""

    rank: int
    node: str
    devices: list[int]


class Job(Model):
    """A job as it is now."""

    id: int
    name: str  #: unique among all: the name asked for and the id, ``train-12``
    vc: str
    gpus: int  #: of all tasks
    gpus_per_task: int
    tasks: int
    priority: int
    state: JobStateName
    kind: Literal["guaranteed", "opportunistic"] | None  #: of the GPUs it has; None: has none
    placement: list[TaskPlace]  #: what it has or has reserved; empty: nothing
    command: list[str]
    cwd: str
    user: str
    attempt: int  #: how often it was started
    resumes: int  #: how often it was preempted and queued again
    retries: int  #: how often it failed and was queued again
    max_retries: int
    time_limit_s: float | None
    submitted_at: float
    started_at: float | None  #: of the latest attempt
    ended_at: float | None
    exit_code: int | None  #: as a shell has it: 128 + signal where a signal ended it
    reason: str  #: why it is where it is, in one line of words; "" where the state says all


class Jobs(Model):
    jobs: list[Job]
    total: int  #: that match, beyond the limit too


class JobEvent(Model):
    """Something that happened."""

    seq: int
    at: float
    kind: str
    job: int | None
    text: str  #: in words, for people


class Events(Model):
    events: list[JobEvent]
    last: int  #: number of the latest event there is; ask for ``after`` this


class Explanation(Model):
    job: int
    text: str  #: lines
    reasons: list[dict[str, object]]  #: as data: ``kind`` and the numbers


class Plan(Model):
    outcome: Literal["now", "waits", "never"]
    text: str
    placement: list[TaskPlace]
    victims: list[str]  #: jobs that would have to go
    reasons: list[dict[str, object]]


class LogPage(Model):
    """A stretch of a task's output."""

    text: str  #: UTF-8, what is not is replaced
    offset: int  #: of its first byte
    next: int  #: offset to go on from
    end: bool  #: whether the task has ended, so that nothing comes any more


# -- the machine ------------------------------------------------------------------------------------------------------


class Drain(Model):
    """Keep new jobs off devices, or let them come again."""

    node: Annotated[str, Field(max_length=253)] | None = None  #: None: all nodes
    device: Annotated[int, Field(ge=0, le=1_048_576)] | None = None  #: None: all of the node
    undo: bool = False
    now: bool = False  #: whoever runs there is preempted and queued again


class Device(Model):
    node: str
    device: int
    state: Literal["free", "used", "reserving", "reserved"]
    healthy: bool
    drained: bool
    why_bad: str
    job: int | None


class About(Model):
    """The engine."""

    version: str
    started_at: float
    pid: int
    simulated: bool  #: whether its devices are
    source: str  #: the spec
    gpus: int
    nodes: int
    vcs: list[str]
    draining: bool  #: whether all devices are drained
    jobs: dict[str, int]  #: how many per state
    safety_margin: int | None  #: least cells to spare over all levels; never below 0


class SpecText(Model):
    """A new cluster spec, as YAML."""

    yaml: Annotated[str, StringConstraints(min_length=1, max_length=4_000_000)]


class Reconfigured(Model):
    kept: list[str]
    downgraded: list[str]
    lost: list[str]
    cancelled: list[str]
