"""What the HTTP API speaks: requests and answers of ``/v1`` of both engines, as the OpenAPI document shows them.

What only one engine has is a part of its own (``process``, ``replica``), or a request that the other one refuses as
``unsupported``. Times are seconds since the epoch (UTC) unless a field says otherwise. Unknown fields are refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StringConstraints

from hived.engine.holdings import Use
from hived.engine.states import JobState
from hived.engines.submission import ANY_TEXT, ARRAY, FOLDER, NAME, VARIABLE, Model
from hived.engines.submission import Submission as Submission  # the body of ``POST /v1/jobs``

#: how long to wait for a training job to come to the end of a mini-batch
Patience = Annotated[float, Field(strict=True, gt=0, le=86_400)]
REF = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
SUBJECT = r"^[^\x00-\x20\x7f,]+$"
#: a code of a link: what has a place in an address
CODE = r"^[A-Za-z0-9_-]+$"
#: each of these patterns in words, for the error message of a text that does not match
FORMS = {
    NAME: "has to be letters, digits and . _ -, a letter first, 63 at most",
    REF: "has to be a job's id (12) or name (train-12)",
    VARIABLE: "has to be letters, digits and _, no digit first, 255 at most",
    FOLDER: "has to be a path from the root, /, of at most 4,096 characters",
    ARRAY: "has to be indexes, 1-40 or 0-9:3 or 1,5,7, and maybe how many at a time, 1-40%4",
    ANY_TEXT: "may not have a NUL character in it",
    CODE: "has to be the code of a link, letters, digits, _ and -",
    SUBJECT: "has to be the name of a user, without spaces and commas",
}
#: jobs of a request that does something to several: nothing else is answered for some 0.1 s at most
MOST_AT_ONCE = 100
EngineKind = Literal["local", "kubernetes", "results"]


class Error(Model):
    """Every error has this shape, whatever its status."""

    code: str
    """For programs: invalid, not_found, never_fits, conflict, unsupported, forbidden, unauthorized, too_large, ..."""
    message: str
    """What, where, have against need, the way out."""
    field: str | None = None
    """Of the request, where one is wrong."""


class ErrorAnswer(Model):
    error: Error


class Health(Model):
    """The server answers."""

    status: Literal["ok"] = "ok"
    engine: EngineKind
    """What answers: the engine of one machine, that of a Kubernetes cluster, or none: results of a simulation."""


# -- jobs -------------------------------------------------------------------------------------------------------------


class Place(Model):
    """Devices of one node."""

    node: str
    devices: list[int]


TaskState = Literal["waiting", "starting", "running", "suspended", "stopping", "ended"]


class Task(Place):
    """One process of a job, or one pod."""

    name: str
    """``task 0``, or the pod's ``namespace/name``."""
    uid: str = ""
    """Of a pod."""
    state: TaskState
    """Of a pod: it has no node; it is being bound; it is bound; it is being deleted."""
    node: str
    """That it has or has reserved; "": none."""


class JobHeader(Model):
    """What is said of a job wherever it is shown."""

    id: str
    """By which requests name it: a number; on Kubernetes the name of its affinity group."""
    name: str
    """Unique among all: the name asked for and the id, ``train-12``; on Kubernetes the same as the id."""
    vc: str
    gpus: int
    """Of all tasks."""
    priority: int
    """-1: opportunistic."""
    user: str = ""
    """Who submitted it; "": not known."""


class Process(Model):
    """What only a job of processes has."""

    command: list[str]
    cwd: str
    gpus_per_task: int
    attempt: int
    """How often it was started."""
    resumes: int
    """How often it was preempted and queued again."""
    retries: int
    """How often it failed and was queued again."""
    max_retries: int
    time_limit_s: float | None
    exit_code: int | None
    """As a shell has it: 128 + signal where a signal ended it."""
    array: int | None = None
    """Id of the first job of its array; None: of none."""
    array_index: int | None = None
    options: list[str] = Field(default_factory=list)
    """What else it was submitted with, as options of ``hived submit``."""


class Limits(Model):
    """What a training job is limited to, beside others on its GPUs or by hand."""

    memory: int
    """Device bytes per process; 0: no limit."""
    share: float
    """Of its GPUs' time; 1: all of it."""
    why: str
    since: float
    by_hand: bool = True
    """Not by what shares GPUs among jobs."""


class Turns(Model):
    """How a job takes turns with others of its virtual cluster on the GPUs of a server."""

    share: float
    """Of the time, in which it has GPUs."""
    jobs: int
    """That share them, it included."""
    gpus: int
    """Which they share."""
    slice_s: float
    packed_with: tuple[str, ...]
    """Names of jobs that run beside it on the same GPUs."""


class Job(JobHeader):
    """A job as it is now: processes of one machine, or on Kubernetes an affinity group of pods."""

    early: bool = False
    """Whether it may start before its turn, on GPUs that others leave idle."""
    state: JobState
    kind: Literal["guaranteed", "opportunistic", "guest"] | None
    """Of the GPUs it has; None: has none."""
    size: int
    """Tasks that it consists of; ``tasks`` are those there are."""
    tasks: list[Task]
    victims: list[str]
    """While reserved: the jobs that still have to go."""
    why: list[str]
    """Why it is where it is, in sentences, the most decisive first; empty where the state says all."""
    submitted_at: float
    since: float
    """When it began to wait, or got the GPUs that it has, or began to be stopped, or ended."""
    started_at: float | None
    """Latest."""
    ended_at: float | None
    finished: bool | None
    """Of a job that has ended on Kubernetes: whether its pods ended by themselves, how is not known; else they were
    evicted or deleted. None: any other."""
    beside: list[str] = Field(default_factory=list)
    """Names of jobs that run on its GPUs all the time too: of a guest the owner first, of an owner its guests."""
    limits: Limits | None = None
    """None: none."""
    turns: Turns | None = None
    """None: it has its GPUs for itself, or waits for some."""
    process: Process | None
    """None: on Kubernetes."""
    finds_files: bool | None = None
    """Of a job that was submitted again just now: whether what the one before kept is there, and is not deleted by now.
    None: any other."""


class JobOutcome(Model):
    """What has become of a job that something was to be done to."""

    job: Job | None = None
    """As it is now; None: it was refused."""
    error: Error | None = None
    """Why it was refused."""


class JobOutcomes(Model):
    """What has become of several jobs."""

    outcomes: list[JobOutcome]
    """Of each, in the order in which they were named."""


class Several(Model):
    """Several jobs, something done to which is one commit. A job that refuses it keeps no other from it."""

    jobs: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=1_024, pattern=ANY_TEXT)], ...],
        Field(min_length=1, max_length=MOST_AT_ONCE),
    ]
    """By their ids or names, in the order in which it is done."""


class CancellingSeveral(Several):
    """Withdraw jobs that wait, and stop those that run."""

    now: StrictBool = False
    """Without their grace."""


class RequeueingSeveral(Several):
    """Stop jobs, and queue them again."""

    hold: StrictBool = False
    """They are held then, until they are released."""


class Suspension(Model):
    """Suspend a training job at the end of a mini-batch."""

    timeout_s: Patience = 60.0
    lease_s: Annotated[float, Field(strict=True, ge=0, le=31_536_000)] = 0.0
    """After so long it goes on by itself, if nobody suspends it again; 0: never."""


class Resumption(Model):
    """Let a suspended training job go on."""

    timeout_s: Patience = 60.0


class Limiting(Model):
    """Limit a training job from its next mini-batch on; what is left out stays as it is."""

    memory: Annotated[int, Field(strict=True, ge=0, le=2**50)] | None = None
    """Device bytes per process; 0: no limit."""
    memory_most: Annotated[int, Field(strict=True, ge=0, le=2**50)] = 0
    """Up to which the limit may rise by itself, by what had no room; 0: it stays."""
    share: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    """Of its GPUs' time."""
    lease_s: Annotated[float, Field(strict=True, ge=0, le=31_536_000)] = 0.0
    """After so long there are no limits again; 0: never."""


class Scaling(Model):
    """Have an elastic training job go on with another number of workers."""

    workers: Annotated[int, Field(strict=True, ge=1, le=1024)]
    timeout_s: Patience = 60.0


class Requeueing(Model):
    """Stop a job, and queue it again."""

    hold: StrictBool = False
    """It is held then, until it is released."""


class Resubmitting(Model):
    """Submit a job of one's own again, as it was submitted, whatever has become of it: a new job."""

    indexes: Annotated[str, StringConstraints(max_length=4_096, pattern=ARRAY)] | None = None
    """Of the array of the job, which is submitted again as an array of these: ``1-40``, ``1,5,7``. They have its
    limit at a time, or another one, ``1-40%2``. Those that ask for different sizes, limits or priorities by now go
    apart. None: the job alone."""


class Prioritizing(Model):
    """Another priority of a job that waits, or among those that share its GPUs."""

    priority: Annotated[int, Field(strict=True, ge=0, le=1000)]
    """A higher one is never suspended for a lower one."""


class Editing(Model):
    """What a job that waits asks for from now on. What is left out stays as it is."""

    gpus: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] | None = None
    """Per task."""
    tasks: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    time_limit_s: Annotated[float, Field(strict=True, gt=0, le=31_536_000)] | None = None
    no_time_limit: StrictBool = False
    """It has none any more."""
    retries: Annotated[int, Field(strict=True, ge=0, le=1000)] | None = None
    grace_s: Annotated[float, Field(strict=True, ge=0, le=3600)] | None = None
    at_a_time: Annotated[int, Field(strict=True, ge=0, le=999_999)] | None = None
    """How many of its array are in line or at work at a time, 0: all. It is asked for by itself, of any job of it."""

    def changes(self) -> dict[str, int | float | None]:
        """What was given, by its name in :class:`Submission`."""
        given = self.model_dump(exclude_none=True, exclude={"no_time_limit", "at_a_time"})
        return given | ({"time_limit_s": None} if self.no_time_limit else {})


class TrainingProcess(Model):
    """What a process of a training job says of itself. Bytes are of its device unless a field says otherwise."""

    rank: int
    pid: int
    state: str
    """starting, running, waiting, suspended, moving, ready, handed or moved."""
    state_s: float
    """For how long."""
    tier: str
    """How it releases its memory: pager, framework, stop."""
    why: str
    """A command is not carried out."""
    note: str
    """A limit is not kept in full, or a lower tier is in force than wanted."""
    not_now_s: float
    """For how long a command has met no end of a mini-batch; 0: none waits."""
    device: str
    mini_batches: int
    mini_batch_s: float
    """Smoothed over about ten."""
    device_bytes: int
    used_bytes: int
    peak_bytes: int
    least_bytes: int
    """At the last end of a mini-batch that was looked at."""
    host_bytes: int
    """Tensors of the device that stand in the memory of the host."""
    utilization: float
    sample_age_s: float | None
    memory_limit: int | None
    share: float
    last_change_s: float
    """That the last suspension, resumption or move took."""
    last_change_bytes: int
    moves_by: Literal["state"] | None = None
    """``state``: its script names its state, and so it moves. None: it does not."""


class Training(Model):
    """A training job, as its processes say."""

    name: str
    command: str
    launching: bool
    """No process has ended a mini-batch yet."""
    processes: list[TrainingProcess]


class Jobs(Model):
    jobs: list[Job]
    total: int
    """That match, on other pages too."""
    next: str | None
    """``page`` of the next request; None: there are no more."""


class Event(Model):
    """Something that happened."""

    seq: int
    at: float
    kind: str
    job: str | None
    """Its id."""
    text: str
    """In words, for people."""


class Events(Model):
    events: list[Event]
    last: int
    """Number of the latest event there is; ask for ``after`` this."""


class Explanation(Model):
    """Why a job waits, where it is, whom it waits for, how it ended."""

    job: str
    """Its id; "": a pod that is of no job."""
    task: str
    """The pod, where one was asked for, else ""."""
    text: str
    """Lines."""
    reasons: list[dict[str, object]]
    """As data: ``kind`` and the numbers."""


class PlanRequest(Model):
    """What would be submitted: a job; or on Kubernetes what ``kubectl apply`` would be given."""

    job: Submission | None = None
    manifests: Annotated[list[dict[str, object]], Field(max_length=1000)] = Field(default_factory=list)
    """Pods, Jobs, CronJobs, JobSets, PyTorchJobs, Deployments, ReplicaSets, StatefulSets; others without a VC."""
    namespace: Annotated[str, StringConstraints(max_length=63)] = "default"
    """Of manifests that name none."""


class PlannedJob(Model):
    """What would become of one job now, or of equal pods that are placed one by one."""

    name: str
    vc: str
    gpus: int
    outcome: Literal["now", "waits", "never", "unknown"]
    """``waits``: not all of its tasks would start now. ``unknown``: what pods its object has is not known."""
    text: str
    placement: list[Place]
    """By task."""
    victims: list[str]
    """Jobs that would be preempted."""
    reasons: list[dict[str, object]]


class Plan(Model):
    jobs: list[PlannedJob]
    """Each beside those before it. Empty: nothing in the manifests is for HiveD."""


class LogPage(Model):
    """A stretch of a task's output."""

    text: str
    """UTF-8, what is not is replaced."""
    offset: int
    """Of its first byte: beyond the one asked for where what came before is not kept (``hived up --most-output``)."""
    next: int
    """Offset to go on from."""
    end: bool
    """Whether the task has ended, so that nothing comes any more."""


# -- nodes ------------------------------------------------------------------------------------------------------------


class Device(Model):
    device: int
    state: Literal["free", "used", "reserving", "reserved"]
    healthy: bool
    drained: bool
    """Whether it is kept from new jobs though healthy: drained, or for a pod that HiveD did not place."""
    why: str
    """Why it takes no jobs; "" where the node or its state says it, or where it takes them."""
    jobs: list[str]
    """The ids of the jobs that have it: one, or several that share it, suspended ones too."""


class Node(Model):
    """A node of the spec."""

    name: str
    why: str
    """Why it takes no jobs; "": it takes them, but for what is said of its devices."""
    devices: list[Device]


class Nodes(Model):
    """Nodes in the order of the spec."""

    nodes: list[Node]
    total: int
    """On other pages too."""
    bad: int
    """Of all nodes: those of which no device takes jobs, or not all."""
    missing: list[str]
    """On Kubernetes: of the spec, and not there; the first 20."""
    unmanaged: int
    """On Kubernetes: there, and not in the spec."""
    foreign_pods: list[str]
    """On Kubernetes: pods with GPUs that HiveD did not place, and what they have, in words; the first 20."""


class Drain(Model):
    """Keep new jobs off devices, or let them come again. On Kubernetes a node is cordoned, and pods run on."""

    node: Annotated[str, StringConstraints(max_length=253, pattern=ANY_TEXT)] | None = None
    """None: all nodes."""
    device: Annotated[int, Field(strict=True, ge=0, le=1_048_576)] | None = None
    """None: all of the node."""
    undo: StrictBool = False
    now: StrictBool = False
    """Whoever runs there is preempted and queued again."""
    reason: Annotated[str, StringConstraints(max_length=253, pattern=ANY_TEXT)] = ""
    """For others, who see it where jobs and devices are explained."""


class Drained(Model):
    """The nodes that a drain was about, with the devices chosen, as they are now."""

    nodes: list[Node]
    undone: bool


# -- virtual clusters, usage, the spec, the engine --------------------------------------------------------------------


class Reserved(Model):
    """Cells of one kind that a virtual cluster has reserved."""

    cell_type: str
    """``RACK.NODE.SOCKET``."""
    gpus: int
    """Of one cell."""
    number: int
    pinned: str | None = None
    """Id of the pinned cell."""


class VcUsage(Model):
    """A virtual cluster, in GPUs."""

    name: str
    reserved: int
    used: int
    """By its guaranteed jobs."""
    borrowed: int
    """By its opportunistic jobs."""
    waiting: int
    """Jobs."""


class Rules(Model):
    """Who may use a virtual cluster, and how much, by the spec; None: there is no limit."""

    policy: str
    """By which its jobs have their turns."""
    members: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    max_priority: int | None = None
    """That a member may ask for."""
    max_jobs: int | None = None
    """Of a member, that have not ended."""
    max_gpus: int | None = None
    """Of a member's guaranteed jobs that run or are in line; others of theirs are held."""
    max_grace_seconds: int | None = None
    """Of a member's guaranteed job, between SIGTERM and SIGKILL."""
    file_group: str = ""
    """Of the machine, who may read the files of its jobs."""


class Vc(Model):
    """One virtual cluster: what it has reserved, what runs in it, what waits."""

    usage: VcUsage
    rules: Rules | None = None
    """None: the spec has it no more."""
    cells: list[Reserved]
    doomed: list[str]
    """Cells that cannot be healthy any more, in words."""
    running: list[Job]
    """The first 100."""
    waiting: list[Job]
    """In the order of their turns, the first 100."""


class Usage(Model):
    """GPUs by what they are for now, each counted once, and jobs by state."""

    gpus: int
    """Of the spec, and those that it lacks and jobs still hold."""
    guaranteed: int
    opportunistic: int
    reserved: int
    """Idle, kept for a job that waits for others to go."""
    bad: int
    """Kept from jobs for a fault or a drain, and not in use."""
    foreign: int
    """On Kubernetes: kept from jobs for pods that HiveD did not place."""
    unavailable: int
    """GPUs that VCs reserved and cannot have now, since they are bad or kept for others."""
    doomed: int
    """Reserved cells that cannot be healthy any more."""
    jobs: dict[str, int]
    """How many per state, those that have not ended."""
    vcs: list[VcUsage]
    safety_margin: int | None
    """Of the spec, whatever is bad: least cells to spare over all levels. None: nothing is reserved; -1: sharing safety
    is broken, which is a bug."""


class Spec(Model):
    """The cluster spec in force."""

    source: str
    """A file, how it was made, or ``configmap/namespace/name``."""
    loaded_at: float
    problem: str
    """Why the latest one was refused; "" where it was not."""
    gpus: int
    nodes: int
    vcs: list[str]
    text: str
    """It as YAML: on Kubernetes as it was written there, on one machine without comments and defaults. Read again, it
    is the same spec."""


class Replica(Model):
    """What only an engine on Kubernetes has."""

    identity: str
    leader: bool
    """Whether this replica decides."""
    holder: str
    """Who holds the lease; "" where there is no election."""


class Settings(Model):
    """What only an engine of one machine has."""

    jobs: str
    """As whom jobs run."""
    fences: list[str]
    """What tasks are kept from by control groups."""
    files_s: float | None
    """How long files of a job are kept once it has ended. None: for ever."""
    output_bytes: int | None
    """How much of what a task prints is kept, of its end. None: all."""


class Engine(Model):
    """What answers."""

    engine: EngineKind
    version: str
    started_at: float
    ready: bool
    """Whether it can do its part."""
    simulated: bool
    """Whether its devices are."""
    replica: Replica | None
    """None: on one machine."""
    settings: Settings | None
    """None: on Kubernetes."""


class SpecText(Model):
    """A new cluster spec, as YAML."""

    yaml: Annotated[str, StringConstraints(min_length=1, max_length=4_000_000)]
    instead_of: Annotated[float, Field(strict=True)] | None = None
    """``loaded_at`` of the spec that this one is to replace: refused (409) where another is in force by now. None:
    whatever is."""


class AffectedJob(Model):
    """A job that does not go on under a new spec as it was."""

    name: str
    vc: str
    gpus: int
    """Of all its tasks."""
    why: str
    """In words."""


class Reconfigured(Model):
    """What a new spec makes of jobs: none ends for it."""

    dry_run: bool
    """Whether nothing has changed: the lists say what would be."""
    kept: list[str]
    """Names of the jobs that run on as before."""
    downgraded: list[AffectedJob]
    """Were guaranteed, and run on where they are as opportunistic, until cells of their VC can stand there again."""
    on_removed_devices: list[AffectedJob]
    """Run on, on devices of which the spec lacks some, and keep those; who was guaranteed is in ``downgraded`` too."""
    requeued: list[AffectedJob]
    """Have GPUs no more that were kept for them while they wait, and are in line for others; or were guests, and are
    stopped and in line again where their host takes none any more."""
    warnings: list[str]
    """What is allowed, and may be a mistake: users and groups that this machine does not have."""


# -- trades of cells --------------------------------------------------------------------------------------------------

VcName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=ANY_TEXT)]
_Start = Annotated[float, Field(strict=True, ge=0, le=1e11)] | None
_Duration = Annotated[float, Field(strict=True, ge=1, le=315_360_000)]
_Credits = Annotated[float, Field(strict=True, ge=0, le=1e6)]


class Cells(Model):
    """Cells of one kind."""

    cell_type: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=ANY_TEXT)]
    """As in the spec, ``RACK.NODE``, or the end of it where no other type has the same."""
    number: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] = 1


class _NewPost(Model):
    vc: VcName
    cells: Cells
    start: _Start = None
    """None: now."""
    duration_s: _Duration


class NewOffer(_NewPost):
    """Cells that a virtual cluster gives away for a while."""

    wants: Cells | None = None
    """Cells of another kind that it wants for them, for the same time."""
    price: _Credits = 0.0
    """In an auction: the least that it takes for a GPU hour."""


class NewRequest(_NewPost):
    """Cells that a virtual cluster asks for."""

    gives: Cells | None = None
    """Cells of another kind that it gives for them, for the same time."""
    bid: _Credits = 1.0
    """In an auction: the most that it pays for a GPU hour."""


class Withdrawal(Model):
    number: Annotated[int, Field(strict=True, ge=1, le=2**53)]
    """Of an offer or a request."""
    vc: VcName
    """Whose offer or request it is."""


class Post(Model):
    """An offer or a request that has found nobody yet."""

    number: int
    vc: str
    cells: Cells
    other: Cells | None
    """Wanted for those of an offer, given for those of a request."""
    start: float
    end: float
    price: float
    """In an auction: the least of an offer, the most of a request, for a GPU hour."""


class Trade(Model):
    """Cells that change hands for a while."""

    number: int
    giver: str
    taker: str
    cells: Cells
    back: Cells | None
    """Given for them by the taker."""
    start: float
    end: float
    on: bool
    """Whether it has begun."""
    gpu_hours: float
    price: float
    """Credits for a GPU hour; 1 in a balanced exchange."""


class Market(Model):
    """The market of cells."""

    arbiter: str
    offers: list[Post]
    requests: list[Post]
    trades: list[Trade]
    """Agreed or on."""
    surplus: dict[str, float]
    """Of each virtual cluster: GPU hours (in an auction: credits) that it has given beyond what it took."""


class Posted(Model):
    """What an offer or a request has come to."""

    number: int
    waits: bool
    """Whether it, or what is left of it, is on the board."""
    trades: list[Trade]
    """That it has led to."""


# -- accounts ---------------------------------------------------------------------------------------------------------


class Account(Model):
    """What GPUs were to a user in a virtual cluster, in one way, over some time."""

    user: str
    """"": to the virtual cluster as a whole, or whose is not known."""
    vc: str
    use: Use
    """In use; or suspended, of a job that stood still; or reserved, of the virtual cluster."""
    gpu_seconds: float
    """A GPU that several jobs share counts for each."""
    jobs: int


class JobsOf(Model):
    """Jobs of a user in a virtual cluster that had GPUs; some may have had them in several ways."""

    user: str
    vc: str
    jobs: int


class Accounts(Model):
    """GPU seconds between two times."""

    start: float
    end: float
    """Or now, if that was before it."""
    begins: float | None = None
    """From when on they are whole; not given: from the first job on."""
    accounts: list[Account]
    jobs: list[JobsOf]


# -- tokens of people -------------------------------------------------------------------------------------------------


class NewToken(Model):
    """A token for somebody, by which they reach the engine over TCP."""

    user: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=SUBJECT)]
    """Their name: a user of the machine, or any name that the spec has under members, admins or operators."""
    vcs: Annotated[tuple[VcName, ...], Field(min_length=1, max_length=1024)] | None = None
    """The virtual clusters to which it is limited; None: to none. It gives no role, which the spec does alone."""
    lasts_s: Annotated[float, Field(strict=True, ge=1, le=3_153_600_000)] | None = None
    """None: until it is revoked."""


class Token(Model):
    """A token that was given to somebody."""

    id: str
    user: str
    vcs: tuple[str, ...] | None
    """To which it is limited; None: to none."""
    created_at: float
    expires_at: float | None
    by: str
    """Who has made it."""


class MadeToken(Model):
    """A new token."""

    token: Token
    text: str
    """The token itself, told this once."""
    roles: dict[str, str]
    """What its holder is to each virtual cluster: viewer, member, admin or operator."""


# -- sessions of the dashboard ----------------------------------------------------------------------------------------


class Me(Model):
    """Who asks, and what they may do."""

    user: str
    """"": not known."""
    acts: bool
    """Whether they may change anything as they ask now: a browser that only looks may not."""
    operator: bool
    roles: dict[str, str]
    """What they are to each virtual cluster: viewer, member, admin or operator."""
    named: list[str]
    """The virtual clusters that name them, or a group of theirs, among members or admins, and not just anybody."""
    until: float | None
    """When they have to show something new; None: never."""


class SignInLink(Model):
    """A link for a browser, which works once."""

    code: str
    """What follows ``#sign-in=`` in the address of the dashboard."""
    address: str | None
    """The dashboard, as it is reached on the machine; None: this engine serves none over TCP."""
    until: float
    """When it works no more."""


class SignIn(Model):
    """A code of a link."""

    code: Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=CODE)]


class SignedIn(Model):
    """A session that has begun."""

    key: str
    """For the header ``Authorization: Bearer KEY``; told this once."""
    me: Me
