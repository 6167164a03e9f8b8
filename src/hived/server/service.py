"""The operations of the HTTP API, in the types of :mod:`.schema`: what both engines share, and what each one gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar, Generic, TypeVar

from hived import __version__
from hived.access import Access, Person, Role
from hived.cluster.decisions import PodPlacement
from hived.cluster.explain.queries import PlanAnswer
from hived.cluster.explain.reasons import Misconfigured
from hived.cluster.explain.sentences import in_lines
from hived.cluster.requests import Request
from hived.engine.dispatcher import Dispatcher
from hived.engine.explaining import Explainer
from hived.engine.holdings import Accounts
from hived.engine.job import EngineJob, Event, JobFilter
from hived.engine.sentences import event_text
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.errors import NotFoundError, RequestError, UnsupportedError
from hived.spec.compiled import ClusterSpec

from . import schema
from .mapping import kept_idle, kind_of, of, safety_margin, virtual_clusters
from .permits import Whose
from .trades import ExchangeService

J = TypeVar("J", bound=EngineJob)
T = TypeVar("T")
_ON_ITS_NODE = "command a training job with hived train inside its pod"
_ONLY_LOOKS = "its dashboard only looks: jobs are pods, and kubectl changes them"
_KNOWS_PEOPLE = "it is Kubernetes that knows people there, and makes tokens for them: kubectl create token"
#: characters of a command in a list of jobs
MOST_IN_A_LIST = 4_096
_SHOWN = 100  #: jobs in each list of a virtual cluster


class Service(ABC, Generic[J]):
    """The API's operations on an engine; call from the thread of its event loop only.

    ``ref`` names a job: its id (``12``), its name (``train-12``), or the name asked for (``train``: the latest of
    them); on Kubernetes an affinity group by its name, or by a pod of it. Raises errors of :mod:`hived.errors`:
    :class:`~hived.errors.NotFoundError` for an unknown job, node or device, :class:`~hived.errors.InputError` (often a
    :class:`~hived.errors.RequestError` with the field), :class:`~hived.errors.NeverFitsError`,
    :class:`~hived.errors.ConflictError`, :class:`~hived.errors.StorageError`, :class:`~hived.errors.ForbiddenError`,
    :class:`~hived.errors.UnavailableError` while it does not decide, and :class:`~hived.errors.UnsupportedError` for
    what this kind of engine leaves to others.
    """

    kind: ClassVar[schema.EngineKind]

    def __init__(self) -> None:
        #: trades of cells
        self.market = ExchangeService(self)

    # -- what each engine gives -----------------------------------------------------------------------------------

    @abstractmethod
    def scheduler(self) -> Dispatcher[J, Any]:
        """Its jobs. Raises :class:`~hived.errors.UnavailableError` while it does not decide."""

    @abstractmethod
    def find(self, ref: str) -> J:
        """A job that is known: it waits, runs, or has ended."""

    @abstractmethod
    def jobs(self, chosen: JobFilter, limit: int, page: str | None) -> schema.Jobs:
        """Jobs as they are chosen, at most ``limit``.

        From the ``page`` on that an answer before this one has named.
        """

    @abstractmethod
    def tasks(self, job: J) -> list[schema.Task]:
        """The tasks of a job that there are."""

    @abstractmethod
    def explainer(self) -> Explainer[J]:
        """Explains its jobs."""

    @abstractmethod
    def clock(self) -> float:
        """The time now, in seconds since the epoch."""

    @abstractmethod
    def plan(self, request: schema.PlanRequest, person: Person) -> schema.Plan:
        """Dry run of a submission or of manifests, behind the present backlog."""

    @abstractmethod
    def events(self, after: int, limit: int, ref: str | None) -> schema.Events:
        """The first events after number ``after``; of one job, or of all. After -1: the latest ones."""

    @abstractmethod
    async def accounts(self, start: float, end: float) -> schema.Accounts:
        """GPU seconds between two times, by user, virtual cluster and use."""

    @abstractmethod
    async def changed(self, after: int) -> None:
        """Return once there is an event after number ``after``."""

    @abstractmethod
    def access(self) -> Access:
        """Who may do what, by the spec in force."""

    def named(self, ref: str, user: str) -> str:
        """The job that a user means: of several under a name their own, else the latest."""
        return ref

    def owns(self, user: str) -> bool:
        """Whether the engine, and the machine it runs on, is this user's."""
        return False

    @abstractmethod
    def whose(self, ref: str) -> Whose | None:
        """Whose a job is; None: others than the engine guard its jobs."""

    def holder_of(self, ref: str) -> str:
        """Who holds a job; "": nobody, or its submission."""
        return ""

    @abstractmethod
    async def _drain(self, drain: schema.Drain, user: str) -> schema.Drained:
        """See :meth:`drain`."""

    @abstractmethod
    async def reconfigure(self, spec: schema.SpecText, user: str, dry_run: bool = False) -> schema.Reconfigured:
        """Go on under a new spec, by ``user``; every job runs on (work-preserving).

        ``dry_run``: change nothing, and say what would be.
        """

    @abstractmethod
    def spec(self) -> schema.Spec:
        """The spec in force."""

    @abstractmethod
    def engine(self) -> schema.Engine:
        """What answers."""

    @property
    @abstractmethod
    def trading(self) -> LiveTrading:
        """The market, to be read."""

    @abstractmethod
    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        """Change the market by ``act``, which is given the time; it is stored when this returns."""

    # -- what only one of them has --------------------------------------------------------------------------------

    async def submit(self, submission: schema.Submission, person: Person) -> schema.Job:
        """Submit a job; it is on the disk when this returns."""
        raise self._unsupported("submit with kubectl apply -f FILE")

    async def cancel(self, ref: str, user: str, now: bool = False) -> schema.Job:
        """Withdraw or stop a job, by ``user``. Raises :class:`~hived.errors.ConflictError` for one that has ended."""
        raise self._unsupported("end it with kubectl delete")

    def together(self) -> AbstractContextManager[None]:
        """Make what :meth:`cancel`, :meth:`hold`, :meth:`release` and :meth:`requeue` do within one commit.

        Raises :class:`~hived.errors.StorageError` at its end.
        """
        return nullcontext()

    async def suspend(self, ref: str, how: schema.Suspension, user: str) -> schema.Job:
        """Suspend a training job. Raises :class:`~hived.errors.NotYetError` where it takes longer."""
        raise self._unsupported(_ON_ITS_NODE)

    async def resume(self, ref: str, how: schema.Resumption, user: str) -> schema.Job:
        """Let a suspended training job go on."""
        raise self._unsupported(_ON_ITS_NODE)

    async def limit(self, ref: str, how: schema.Limiting, user: str) -> schema.Job:
        """Limit a training job."""
        raise self._unsupported(_ON_ITS_NODE)

    async def scale(self, ref: str, how: schema.Scaling, user: str) -> schema.Job:
        """Have an elastic training job go on with another number of workers."""
        raise self._unsupported(_ON_ITS_NODE)

    async def hold(self, ref: str, user: str) -> schema.Job:
        """Keep a job that waits out of line."""
        raise self._unsupported('hold a Job back with kubectl patch job JOB -p \'{"spec":{"suspend":true}}\'')

    async def release(self, ref: str, user: str) -> schema.Job:
        """Let a held job go."""
        raise self._unsupported('let a Job go with kubectl patch job JOB -p \'{"spec":{"suspend":false}}\'')

    async def requeue(self, ref: str, how: schema.Requeueing, user: str) -> schema.Job:
        """Stop a job, and queue it again."""
        raise self._unsupported("delete its pods with kubectl delete pod: their owner makes new ones")

    async def prioritize(self, ref: str, how: schema.Prioritizing, user: str) -> schema.Job:
        """Give a job another priority among those that share its GPUs."""
        raise self._unsupported(_ON_ITS_NODE)

    async def edit(self, ref: str, how: schema.Editing, person: Person) -> schema.Job:
        """Have a job that waits ask for something else."""
        raise self._unsupported("what a pod asks for cannot be changed: delete its owner, and make it anew")

    async def training(self, ref: str) -> schema.Training:
        """What the processes of a training job say of themselves."""
        raise self._unsupported(_ON_ITS_NODE)

    def log(self, ref: str, rank: int, attempt: int | None, offset: int, limit: int) -> schema.LogPage:
        """Output of a task from byte ``offset`` (below 0: from the end), at most ``limit`` bytes, whole characters."""
        raise self._unsupported("read it with kubectl logs POD")

    async def log_grown(self, ref: str, rank: int, attempt: int | None, offset: int) -> None:
        """Return once there is output beyond ``offset``, or the task has ended."""
        raise self._unsupported("read it with kubectl logs POD")

    def tokens(self, user: str | None) -> list[schema.Token]:
        """The tokens of people in force, of one user or of all."""
        raise self._unsupported(_KNOWS_PEOPLE)

    async def create_token(self, new: schema.NewToken, user: str) -> schema.MadeToken:
        """Make a token, told so by ``user``."""
        raise self._unsupported(_KNOWS_PEOPLE)

    async def revoke_token(self, number: str, user: str) -> schema.Token:
        """Revoke a token, told so by ``user``. Raises :class:`~hived.errors.NotFoundError`."""
        raise self._unsupported(_KNOWS_PEOPLE)

    def sign_in_link(self, person: Person) -> schema.SignInLink:
        """Make a link with which a browser acts as somebody."""
        raise self._unsupported(_ONLY_LOOKS)

    def sign_in(self, code: str) -> tuple[Person, schema.SignedIn]:
        """Begin the session of a link; and whose it is. Raises :class:`~hived.errors.NotFoundError`."""
        raise self._unsupported(_ONLY_LOOKS)

    def sign_out(self, person: Person) -> schema.Me:
        """End the session of somebody."""
        raise self._unsupported(_ONLY_LOOKS)

    async def resubmit(self, ref: str, person: Person, indexes: str | None = None) -> schema.Job:
        """Submit a job of their own again; ``indexes``: of its array, as an array of these."""
        raise self._unsupported("submit with kubectl apply -f FILE")

    def decisions(self) -> Iterator[str]:
        """The core's event log: lines of JSON, oldest first (docs/tutorials/tour.md)."""
        raise self._unsupported("start it with --event-log FILE")

    def _unsupported(self, way_out: str) -> UnsupportedError:
        return UnsupportedError(f"the engine decides for a Kubernetes cluster; {way_out}")

    def process(self, job: J) -> schema.Process | None:
        """What only a job of processes has."""
        return None

    def finished(self, job: J) -> bool | None:
        """Whether the pods of a job that has ended did so by themselves."""
        return None

    def victims(self, job: J) -> Sequence[str]:
        """The jobs that still have to go for one with a reservation."""
        return self.scheduler().cluster.group(job.name).victims if job.state is JobState.RESERVED else ()

    def foreign(self) -> int:
        """GPUs kept from jobs for pods that HiveD did not place."""
        return 0

    def of_kubernetes(self) -> Mapping[str, Any]:
        """What only nodes of Kubernetes have (:class:`~.schema.Nodes`)."""
        return {"missing": [], "unmanaged": 0, "foreign_pods": []}

    # -- what both share ------------------------------------------------------------------------------------------

    def me(self, person: Person, looks: bool) -> schema.Me:
        """Who asks, and what they may do; ``looks``: as they ask, they may only look."""
        access = self.access()
        return schema.Me(
            user=person.name,
            acts=not looks and (person.owns or person.name != ""),
            operator=access.role(person) is Role.OPERATOR,
            roles={vc: access.role(person, vc).name.lower() for vc in access.vcs},
            named=[vc for vc in access.vcs if access.is_named(person, vc)],
            until=person.until,
        )

    async def drain(self, drain: schema.Drain, user: str) -> schema.Drained:
        """Drain devices, or undo that, told so by ``user``. Returns those that it is about, as they are now."""
        if drain.undo and drain.now:
            raise RequestError("now", "sends away who runs there, and undoing a drain sends nobody away: leave one out")
        if drain.undo and drain.reason:
            raise RequestError("reason", "is of a drain, and undoing one takes it away: leave one out")
        return await self._drain(drain, user)

    def job(self, ref: str) -> schema.Job:
        """One job."""
        return self.shown(self.find(ref))

    def explain(self, ref: str) -> schema.Explanation:
        """Explain why a job waits, where it runs, or how it ended."""
        return self.explained(self.find(ref))

    def explained(self, job: J) -> schema.Explanation:
        """The explanation of a job."""
        explainer = self.explainer()
        found = [reason_data(reason, explainer.say(reason)) for reason in explainer.reasons(job)]
        text = in_lines(explainer.explain(job, self.clock()))
        return schema.Explanation(job=job.key, task="", text=text, reasons=found)

    def shown(self, job: J) -> schema.Job:
        """A job as a type of the API."""
        turns = self.explainer().turns_of(job)
        return schema.Job(
            **of(job),
            early=job.entry.early,
            state=job.state,
            kind=kind_of(job) if job.holds else None,
            size=job.size,
            tasks=self.tasks(job),
            victims=list(self.victims(job)),
            why=self.explainer().shortly(job),
            submitted_at=job.submitted_at,
            since=job.since,
            started_at=job.started_at,
            ended_at=job.ended_at,
            finished=self.finished(job),
            turns=None if turns is None else schema.Turns(**turns._asdict()),
            beside=list(job.beside),
            limits=None if job.limits is None else schema.Limits(**job.limits._asdict()),
            process=self.process(job),
        )

    def nodes(self, name: str | None, offset: int, limit: int) -> schema.Nodes:
        """Nodes in the order of the spec: ``limit`` of them from number ``offset`` on; or one. O(nodes + devices)."""
        hardware = self.scheduler().hardware
        if name is not None and name not in hardware.devices:
            raise NotFoundError(f"the spec has no node {name!r}; hived devices shows those it has")
        names = list(hardware.devices) if name is None else [name]
        bad = {*hardware.bad_nodes, *(node for node, _ in hardware.bad_devices)}
        return schema.Nodes(
            nodes=[self.node(node, hardware.devices[node]) for node in names[offset : offset + limit]],
            total=len(names),
            bad=len(bad),
            **self.of_kubernetes(),
        )

    def node(self, name: str, devices: Iterable[int]) -> schema.Node:
        """Some devices of a node of the spec."""
        scheduler = self.scheduler()
        hardware = scheduler.hardware
        return schema.Node(
            name=name,
            why=hardware.bad_nodes.get(name, ""),
            devices=[
                schema.Device(
                    device=device,
                    state=scheduler.cluster.leaf_state(name, device).value,
                    healthy=(name, device) not in hardware.faulty,
                    drained=(name, device) in hardware.kept,
                    why=hardware.why((name, device)),
                    jobs=[job.key for job in sorted(scheduler.usage.on((name, device)), key=attrgetter("id"))],
                )
                for device in devices
            ],
        )

    def vcs(self) -> list[schema.VcUsage]:
        """The virtual clusters, in GPUs: those of the spec, and removed ones that still have some. O(VCs)."""
        scheduler = self.scheduler()
        names = dict.fromkeys(vc.name for vc in scheduler.cluster.spec.virtual_clusters)
        return [self._of_vc(name) for name in (*names, *scheduler.usage.others(names))]

    def _of_vc(self, name: str) -> schema.VcUsage:
        usage = self.scheduler().usage
        return schema.VcUsage(
            name=name,
            reserved=self.scheduler().hardware.reserved_gpus(name),
            used=usage.used[name],
            borrowed=usage.lent[name],
            waiting=usage.waiting[name],
        )

    def vc(self, name: str) -> schema.Vc:
        """One of :meth:`vcs`. O(jobs that have not ended)."""
        scheduler = self.scheduler()
        cluster = scheduler.cluster
        found = next((vc for vc in virtual_clusters(cluster.spec) if vc.name == name), None)
        if found is None and name not in scheduler.usage.others(()):
            names = ", ".join(vc.name for vc in cluster.spec.virtual_clusters[:10])
            raise NotFoundError(f"there is no virtual cluster {name!r}; there are {names}")
        holders = (job for job in scheduler.active() if job.vc == name and job.holds)
        line = [job for job in scheduler.waiting(scheduler.usage.waiting.total()) if job.vc == name]
        return schema.Vc(
            usage=self._of_vc(name),
            rules=self._rules(name),
            cells=[] if found is None else found.reserved,
            doomed=[f"{kind} of {chain}, on {node}" for vc, chain, kind, node in cluster.doomed() if vc == name],
            running=[self.shown(job) for job in islice(holders, _SHOWN)],
            waiting=[self.shown(job) for job in line[:_SHOWN]],
        )

    def _rules(self, name: str) -> schema.Rules | None:
        scheduler = self.scheduler()
        found = next((vc for vc in scheduler.cluster.spec.virtual_clusters if vc.name == name), None)
        if found is None:
            return None
        access = {} if found.access is None else asdict(found.access)
        return schema.Rules(policy=scheduler.policies[name].name, **access)

    def usage(self) -> schema.Usage:
        """GPUs and jobs. O(VCs + bad GPUs + jobs with a reservation)."""
        scheduler = self.scheduler()
        cluster, usage, hardware = scheduler.cluster, scheduler.usage, scheduler.hardware
        foreign = self.foreign()
        none = {state.value: 0 for state in JobState if not state.ended}
        return schema.Usage(
            gpus=cluster.spec.gpus + hardware.beyond(),
            guaranteed=usage.used.total(),
            opportunistic=usage.lent.total(),
            reserved=kept_idle(cluster, scheduler.reserved()),
            bad=hardware.idle_bad(usage.at) - foreign,
            foreign=foreign,
            unavailable=cluster.unavailable_to_all(),
            doomed=len(cluster.doomed()),
            jobs=none | usage.per_state(),
            vcs=self.vcs(),
            safety_margin=safety_margin(cluster),
        )

    def _engine_of(self, started_at: float, **more: Any) -> schema.Engine:
        return schema.Engine(engine=self.kind, version=__version__, started_at=started_at, **more)


def reason_data(reason: Any, text: str) -> dict[str, object]:
    """A reason as data: its kind, its sentence and its fields."""
    fields: Mapping[str, object] = asdict(reason)
    return {"kind": reason.kind.value, "text": text, **fields}


def plan_one(
    explainer: Explainer[Any],
    jobs: Dispatcher[Any, Any],
    request: Request,
    answer: PlanAnswer,
    title: str,
    name: str,
    early: bool = False,
    at: float | None = None,
) -> schema.PlannedJob:
    """The plan of a request: the core's ``answer``, behind the jobs of its VC that come first.

    ``title``: its name in the text; ``early``: it may start on a loan; ``at``: now.
    Raises :class:`~hived.errors.RequestError` for a request that is wrong for this cluster.
    """
    if answer.reasons and isinstance(wrong := answer.reasons[0], Misconfigured):
        raise RequestError("gpus" if wrong.field.startswith("members") else wrong.field, wrong.message)
    found = explainer.planned(request, answer, jobs.scheduler.plan, title, early, at)
    return schema.PlannedJob(
        name=name,
        vc=request.vc,
        gpus=sum(member.pods * member.leaf_cells for member in request.members),
        outcome=found.outcome,
        text=found.text,
        placement=[] if found.decision is None else places(found.decision.placement.pods),
        victims=list(getattr(found.decision, "victims", ())),
        reasons=[reason_data(reason, explainer.say(reason)) for reason in found.reasons],
    )


def places(pods: Iterable[PodPlacement]) -> list[schema.Place]:
    """A placement as a type of the API."""
    return [schema.Place(node=pod.node, devices=list(pod.leaf_cells)) for pod in pods]


def shown_spec(spec: ClusterSpec, text: str, source: str, loaded_at: float, problem: str) -> schema.Spec:
    """A spec in force as a type of the API."""
    return schema.Spec(
        source=source,
        loaded_at=loaded_at,
        problem=problem,
        gpus=spec.gpus,
        nodes=len(spec.node_names),
        vcs=[vc.name for vc in spec.virtual_clusters],
        text=text,
    )


def shown_accounts(found: Accounts, start: float, end: float, begins: float | None = None) -> schema.Accounts:
    """Accounts as a type of the API; without those of no time."""
    accounts = [
        schema.Account(user=of.user, vc=of.vc, use=of.use, gpu_seconds=of.gpu_s, jobs=of.jobs)
        for of in found.of
        if of.gpu_s > 0
    ]
    jobs = [schema.JobsOf(user=user, vc=vc, jobs=many) for (user, vc), many in found.jobs.items()]
    return schema.Accounts(start=start, end=end, begins=begins, accounts=accounts, jobs=jobs)


def whole_number(field: str, text: str) -> int:
    """A number of a request that was made by an answer before it. Raises :class:`~hived.errors.RequestError`."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise RequestError(field, "is no page that an answer has named")
    return int(text)


def in_short(job: schema.Job) -> schema.Job:
    """A job of a list: a long command is cut."""
    process = job.process
    if process is None or sum(map(len, process.command)) <= MOST_IN_A_LIST:
        return job
    left, words = MOST_IN_A_LIST, list[str]()
    for word in process.command:
        if left <= 0:
            break
        words.append(word[:left])
        left -= len(word)
    return job.model_copy(update={"process": process.model_copy(update={"command": [*words, "..."]})})


def shown_event(event: Event, name: str) -> schema.Event:
    """An event as a type of the API, with its sentence; ``name``: of its job."""
    job = None if event.job is None else str(event.job)
    return schema.Event(seq=event.seq, at=event.at, kind=event.kind, job=job, text=event_text(event, name))
