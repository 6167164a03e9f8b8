"""The service behind the HTTP API of one machine's engine, in the types of :mod:`.schema`; and its dashboard view."""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from itertools import count, groupby, takewhile
from math import inf
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TypeVar

from hived.access import NOBODY, SESSION, Access, Person, Role, Session, Sessions, Token
from hived.engine.job import Event, JobFilter
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.engines.local.engine import Engine
from hived.engines.local.environment import PREVIOUS
from hived.engines.local.explaining import JobExplainer
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.job_users import uid_of, unknown_accounts
from hived.engines.local.model import DEFAULT_GRACE_S, Job, JobSpec, Limiting, default_name
from hived.engines.local.tasks import Liveness
from hived.engines.submission import indexes_of
from hived.errors import ConflictError, ForbiddenError, InputError, NotFoundError, RequestError, UnsupportedError
from hived.spec import parse_spec
from hived.spec.compiled import ClusterSpec, Device
from hived.spec.writing import spec_text
from hived.words import counted, duration

from . import pictures, schema
from .histories import ended_jobs, story
from .limits import groups_of, local_user
from .live import DashboardView, Now
from .live_timeline import Life
from .permits import Whose
from .service import Service, in_short, plan_one, shown_accounts, shown_event, shown_spec, whole_number

T = TypeVar("T")
#: bytes of a command and its environment: they are kept with each job
MOST_OF_A_JOB = 262_144
#: of all jobs of a submission
MOST_OF_A_SUBMISSION = 128 << 20
#: jobs that another one waits for, that are named of it
_WAITS_SHOWN = 10
#: variables of the environment, by the index in an array
_Variables = Mapping[int, Mapping[str, str]]
_NONE: _Variables = MappingProxyType({})
#: arrays of one name that are looked at for an index
_ARRAYS = 20
#: end of the name of an array of some of another one that is still there
_AGAIN = re.compile(r"_again\d*$")
#: what may be changed of one of an array by itself
_ASKED = attrgetter("gpus", "tasks", "priority", "time_limit_s", "retries")
#: poll interval of a growing output file, in seconds
_POLL_S = 0.2
#: of output of which the beginning is not kept: where the first whole line begins, which progress bars end otherwise
_LINE_END, _LONGEST_LINE = re.compile(rb"\r\n|\n|\r(?!$)"), 4_096
#: bytes of the widest character: the least size of a page of output
_WIDEST = 4


class LocalService(Service[Job]):
    """The API's operations on the engine of one machine."""

    kind = "local"

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._name = lru_cache(10_000)(lambda number: engine.find(str(number)).name)
        self._owner = local_user(os.geteuid())
        self._access: tuple[ClusterSpec, Access] | None = None
        #: of the spec in force, as it is shown
        self._text: tuple[ClusterSpec, str] | None = None
        #: why the last spec was refused that was to be in force; "": it is
        self._spec_problem = ""
        self._sessions = Sessions()
        #: of the dashboard, as it is reached on this machine; None: it is served on the socket alone
        self.address: str | None = None
        #: called with the id of a token that was revoked
        self.revoked: Callable[[str], None] = lambda _: None

    # -- jobs -----------------------------------------------------------------------------------------------------

    def scheduler(self) -> JobScheduler:
        """Its jobs."""
        return self._engine.job_scheduler

    async def submit(self, submission: schema.Submission, person: Person) -> schema.Job:
        """Submit a job; it is on the disk when this returns."""
        return await self._submit(submission, person)

    async def _submit(self, submission: schema.Submission, person: Person, variables: _Variables = _NONE) -> schema.Job:
        """``variables``: more of the environment, by the index in its array; of a job of none 0."""
        _check(submission)
        _check_length(submission, 1 if submission.array is None else len(indexes_of(submission.array)[0]))
        is_limited = self._check_permitted(submission, person)
        given, grace_s = dict(submission), submission.grace_s
        if grace_s is None:
            grace_s = min(DEFAULT_GRACE_S, self._most_grace_s(submission, person))
        if not submission.opportunistic and submission.vc in self._vcs():
            self.access().check_grace(person, submission.vc, grace_s)
        given["after"] = tuple(
            after.model_copy(update={"job": self._awaited(after.job, person.name)}) for after in submission.after
        )
        given |= {
            "cwd": submission.cwd or _own_folder(),
            "grace_s": grace_s,
            "user": person.name,
            "uid": self._uid(person),
            "is_limited": is_limited,
        }
        job = self._engine.submit(JobSpec.model_construct(**given), variables)
        await asyncio.sleep(0)  # so that the answer says whether it has started
        return self.shown(job)

    async def resubmit(self, ref: str, person: Person, indexes: str | None = None) -> schema.Job:
        """Submit a job of their own again, as it was submitted; or some of its array, as an array."""
        job = self._engine.find(ref)
        spec = job.spec
        if spec.user != person.name:
            whose = f"it is {spec.user}'s, and would run what they" if spec.user else "nobody knows who"
            raise ForbiddenError(f"{person.name or 'nobody'} may not submit {job.name} again: {whose} had submitted")
        name, array, these = spec.name, None, [job]
        if indexes is not None:
            name, array, these = self._again(job, indexes)
        elif spec.array_id:  # the name of an array stays the array's: of it, this is its index
            array, index = str(spec.array_index), f"_{spec.array_index}"
            name = (name or default_name(spec.command)).removesuffix(index)[:50] + index
        plain = {name: getattr(these[0].spec, name) for name in schema.Submission.model_fields}
        environment = {name: value for name, value in spec.environment.items() if name != PREVIOUS}
        # what it waited for is over
        more = {"name": name or None, "after": (), "array": array, "hold": False, "environment": environment}
        again = schema.Submission.model_construct(**plain | more)
        grace_s = max(one.spec.grace_s for one in these)  # the spec may allow less by now
        again = again.model_copy(update={"grace_s": min(grace_s, self._most_grace_s(again, person))})
        begun = [one for one in these if one.attempt]
        kept = {  # they may be deleted by now
            one.spec.array_index: {PREVIOUS: str(self._engine.shared_folder(one))}
            for one in begun
            if self._engine.has_files(one)
        }
        finds = len(kept) == len(begun)
        for one in these:  # of one that never began, what it was to begin with
            if not one.attempt and (before := one.spec.environment.get(PREVIOUS)):
                kept[one.spec.array_index] = {PREVIOUS: before}
        found = await self._submit(again, person, kept)
        return found.model_copy(update={"finds_files": finds}) if begun else found

    def _again(self, of: Job, indexes: str) -> tuple[str, str, list[Job]]:
        """Name and indexes of an array that some of another one are submitted again as; and those."""
        if not of.spec.array_id:
            raise RequestError("indexes", f"{of.name} is of no array")
        wanted, most = indexes_of(indexes)
        up_to = takewhile(lambda one: one.spec.array_index <= wanted[-1], self._engine.array(of))
        found = {one.spec.array_index: one for one in up_to}
        if lacking := [index for index in wanted if index not in found]:
            raise NotFoundError(f"array {of.spec.array_id} has no index {lacking[0]}")
        these = [found[index] for index in wanted]
        first = these[0]
        for one in these[1:]:
            if _ASKED(one.spec) != _ASKED(first.spec):
                raise RequestError(
                    "indexes",
                    f"{first.name} and {one.name} ask for different sizes, limits or priorities by now: submit them "
                    "again one after the other",
                )
        name = of.spec.name or default_name(of.spec.command)
        there = [one for one in self.scheduler().jobs.values() if one.spec.array_id == of.spec.array_id]
        if there:  # while some of the array is there, its name is the array's
            taken = {one.spec.name for one in self.scheduler().jobs.values() if one.spec.user == of.spec.user}
            base = _AGAIN.sub("", name)[:50]
            name = next(free for n in count(1) if (free := f"{base}_again{n if n > 1 else ''}") not in taken)
        # whoever ended last has the limit of then
        most = most or max(there or these, key=lambda one: one.ended_at or 0.0).spec.array_most
        return name, indexes.partition("%")[0] + (f"%{most}" if most else ""), these

    def _most_grace_s(self, submission: schema.Submission, person: Person) -> float:
        """How long a job may have to end, by the spec in force; inf: as long as may be asked for."""
        found: list[float | None] = []
        if submission.opportunistic or submission.early:
            found.append(self.scheduler().hardware.grace_of_loans(submission.vc))
        access = self.access()
        if not submission.opportunistic and access.role(person, submission.vc) is Role.MEMBER:
            found.append(access.most_grace_s(submission.vc))
        return min((most for most in found if most is not None), default=inf)

    def _uid(self, person: Person) -> int:
        """The user that a job of theirs runs as. Raises :class:`~hived.errors.ForbiddenError` where none can."""
        uid = self.owner.uid if person.owns and person.uid is None else person.uid
        uid = uid_of(person.name) if uid is None else uid
        if uid == 0 and not person.owns:
            raise ForbiddenError("jobs of root are submitted by root itself, on the machine or with the engine's token")
        return self._engine.job_users.check(person.name, uid)

    def _check_permitted(self, submission: schema.Submission, person: Person) -> bool:
        """Whether the limits of members are theirs. Raises :class:`~hived.errors.ForbiddenError`."""
        vc = submission.vc
        if vc not in self._vcs():
            return False  # the engine says that there is none
        many = 1 if submission.array is None else len(indexes_of(submission.array)[0])
        jobs = self.scheduler().usage.jobs_of[vc, person.name]
        gpus = submission.gpus * submission.tasks
        return self.access().check_submission(person, vc, submission.priority, jobs, gpus, many) is Role.MEMBER

    def _vcs(self) -> set[str]:
        return {vc.name for vc in self._engine.cluster.spec.virtual_clusters}

    # -- who asks -------------------------------------------------------------------------------------------------

    def access(self) -> Access:
        """Who may do what, by the spec in force. O(subjects of the spec), where that has changed."""
        spec = self._engine.cluster.spec
        if self._access is None or self._access[0] is not spec:
            self._access = spec, Access(spec, self.owner.name)
        return self._access[1]

    def named(self, ref: str, user: str) -> str:
        """The job that a user means: of several under a name their own, else the latest. O(log jobs)."""
        store = self._engine.store
        own = store.latest(ref, user)
        name, _, index = ref.rpartition("_")
        of = store.latest(name, user) if index.isdigit() else None
        if own is not None:  # one of an array that was submitted again alone; or an array since then has that index
            if (
                of is not None
                and self._engine.find(str(of)).spec.array_id > own
                and self._engine.knows(f"{of}_{index}")
            ):
                return f"{of}_{index}"
            return str(own)
        if of is None:
            return ref
        newest = f"{of}_{index}"  # of an array of theirs, by its index
        command = self._engine.find(str(of)).spec.command
        for _ in range(_ARRAYS):  # it may have been submitted again without those that had succeeded
            if of is None or (spec := self._engine.find(str(of)).spec).command != command:
                break
            if self._engine.knows(f"{of}_{index}"):
                return f"{of}_{index}"
            of = store.latest(name, user, spec.array_id or of)
        return newest if store.job(ref) is None else ref

    def _awaited(self, ref: str, user: str) -> str:
        """The job that a user means, or by the name of an array the first job of it, which is all of it."""
        own = self.named(ref, user)
        if own == ref or not own.isdigit():
            return own
        job = self._engine.find(own)
        return ref if job.name == ref else str(job.spec.array_id or own)

    def owns(self, user: str) -> bool:
        """Whether the engine, and the machine it runs on, is this user's."""
        return uid_of(user) in (0, self.owner.uid)

    def whose(self, ref: str) -> Whose:
        """Whose a job is."""
        job = self._engine.find(ref)
        return Whose(job.name, job.spec.user, job.vc)

    def holder_of(self, ref: str) -> str:
        """Who holds a job; "": nobody, or its submission."""
        job = self._engine.find(ref)
        return job.held_by if job.held_by_hand else ""

    @property
    def owner(self) -> Person:
        """Whose the engine is."""
        return self._owner

    async def holder(self, text: str) -> Person | None:
        """Whose a token in force is, or the key of a session."""
        if (session := self._sessions.shown(text, self.clock())) is not None:
            return self._person_of(session)
        return self._person(self._engine.tokens.shown(text, self.clock()))

    def by_id(self, number: str) -> Person | None:
        """The same, by its id."""
        if (session := self._sessions.known(number, self.clock())) is not None:
            return self._person_of(session)
        return self._person(self._engine.tokens.known(number, self.clock()))

    def _person_of(self, session: Session) -> Person:
        """Whose a session is, with the groups that they have now."""
        return replace(session.person, groups=groups_of(session.person.name))

    def sign_in_link(self, person: Person) -> schema.SignInLink:
        """Make a link with which a browser acts as somebody."""
        code = secrets.token_urlsafe(32)
        until = self._sessions.link(code, person, self.clock())
        return schema.SignInLink(code=code, address=self.address, until=until)

    def sign_in(self, code: str) -> tuple[Person, schema.SignedIn]:
        """Begin the session of a link. Raises :class:`~hived.errors.NotFoundError` for one that does not work."""
        number, secret = f"{SESSION}{secrets.token_hex(4)}", secrets.token_hex(32)
        session, text, ended = self._sessions.begin(code, number, secret, self.clock())
        for other in ended:
            self.revoked(other)
        self._signed_in(session)
        return session.person, schema.SignedIn(key=text, me=self.me(session.person, False))

    def _signed_in(self, session: Session) -> None:
        self._engine.signed_in(session.person.name, session.id)

    def sign_out(self, person: Person) -> schema.Me:
        """End the session of somebody. Raises :class:`~hived.errors.ConflictError` where they have none."""
        if not person.token.startswith(SESSION):
            raise ConflictError("this is no session of a browser; hived token revoke ends a token")
        if (session := self._sessions.end(person.token)) is not None:
            self._signed_out(session, person.name)
        return self.me(NOBODY, True)

    def _signed_out(self, session: Session, by: str) -> None:
        self.revoked(session.id)
        self._engine.signed_out(session.person.name, session.id, by)

    def _person(self, token: Token | None) -> Person | None:
        """Who has a token: a user of this machine has the groups that they have here."""
        if token is None:
            return None
        vcs = None if token.vcs is None else frozenset(token.vcs)
        return Person(token.user, groups_of(token.user), vcs=vcs, token=token.id, until=token.expires_at)

    def tokens(self, user: str | None) -> list[schema.Token]:
        """The tokens of people in force, and sessions of browsers, of one user or of all, the latest first."""
        now = self.clock()
        known = [shown_token(token) for token in self._engine.tokens if token.holds(now)]
        known += [_shown_session(session) for session in self._sessions if self._sessions.known(session.id, now)]
        known.sort(key=attrgetter("created_at"), reverse=True)
        return [token for token in known if user in (None, token.user)]

    async def create_token(self, new: schema.NewToken, user: str) -> schema.MadeToken:
        """Make a token, told so by ``user``."""
        vcs = {vc.name for vc in self._engine.cluster.spec.virtual_clusters}
        if unknown := [vc for vc in new.vcs or () if vc not in vcs]:
            raise RequestError("vcs", f"there is no virtual cluster {unknown[0]!r}; there are {', '.join(sorted(vcs))}")
        made, text = self._engine.create_token(new.user, new.lasts_s, new.vcs, user)
        person, access = self._person(made), self.access()
        roles = {vc: access.role(person, vc).name.lower() for vc in new.vcs or sorted(vcs)} if person else {}
        return schema.MadeToken(token=shown_token(made), text=text, roles=roles)

    async def revoke_token(self, number: str, user: str) -> schema.Token:
        """Revoke a token, told so by ``user``. Raises :class:`~hived.errors.NotFoundError`."""
        if (session := self._sessions.end(number)) is not None:
            self._signed_out(session, user)
            return _shown_session(session)
        gone = self._engine.revoke_token(number, user)
        for ended in (gone.id, *self._sessions.end_of(gone.id)):
            self.revoked(ended)
        return shown_token(gone)

    # -- jobs -----------------------------------------------------------------------------------------------------

    @property
    def database(self) -> str:
        """The id of its database."""
        return self._engine.store.database

    def plan(self, request: schema.PlanRequest, person: Person) -> schema.Plan:
        """Dry run of a submission, behind the present backlog and within the limits of who asks."""
        if request.manifests:
            raise UnsupportedError("manifests are for Kubernetes, and this is the engine of one machine; plan a job")
        if request.job is None:
            return schema.Plan(jobs=[])
        spec = request.job
        _check(spec)
        answer, wanted = self._engine.plan(spec), spec.request()
        explainer = JobExplainer(self.scheduler(), spec.tasks)
        why = explainer.with_cures(wanted, answer.reasons, lambda other: other.priority >= spec.priority)
        name = spec.name or default_name(spec.command)
        answer = replace(answer, reasons=why)
        found = plan_one(explainer, self.scheduler(), wanted, answer, "it", name, spec.early, self.clock())
        if found.outcome != "never":
            found = self._within_limits(found, spec, person)
        return schema.Plan(jobs=[found])

    def _within_limits(self, found: schema.PlannedJob, spec: schema.Submission, person: Person) -> schema.PlannedJob:
        """A plan, or that a limit of its member would hold it. Raises :class:`~hived.errors.ForbiddenError`."""
        why = ""
        if self._check_permitted(spec, person) and spec.priority >= 0:
            why = self.scheduler().holds.why_not_yet(spec.vc, person.name, found.gpus, spec.priority)
        if not why:
            return found
        text = f"{counted(found.gpus, 'GPU')} of {spec.vc}: held: {why}"
        return found.model_copy(
            update={"outcome": "waits", "text": text, "placement": [], "victims": [], "reasons": []}
        )

    def explainer(self) -> JobExplainer:
        """Explains its jobs."""
        return JobExplainer(self.scheduler(), read_by=self._engine.read_by)

    def clock(self) -> float:
        """See :meth:`Service.clock`."""
        return self._engine.clock()

    def jobs(self, chosen: JobFilter, limit: int, page: str | None) -> schema.Jobs:
        """Jobs as they are chosen, the latest first; a page is the number that theirs are below."""
        before = None if page is None else whole_number("page", page)
        found, total = self._engine.store.jobs(chosen, limit, before)
        here = self._engine.job_scheduler.jobs
        more = str(found[-1].id) if len(found) == limit and found[-1].id > 1 else None
        return schema.Jobs(jobs=[in_short(self.shown(here.get(job.id, job))) for job in found], total=total, next=more)

    def find(self, ref: str) -> Job:
        """One job, as it is or as it ended."""
        return self._engine.find(ref)

    async def cancel(self, ref: str, user: str, now: bool = False) -> schema.Job:
        """Withdraw or stop a job. Raises :class:`~hived.errors.ConflictError` for a job that has ended."""
        return self.shown(self._engine.cancel(ref, user, now))

    def together(self) -> AbstractContextManager[None]:
        """Make what is done to jobs within one turn of the engine."""
        return self._engine.together()

    async def suspend(self, ref: str, how: schema.Suspension, user: str) -> schema.Job:
        """Suspend a training job. Raises :class:`~hived.errors.NotYetError` where it takes longer."""
        return self.shown(await self._engine.training.suspend(self.find(ref), how.timeout_s, how.lease_s, user))

    async def resume(self, ref: str, how: schema.Resumption, user: str) -> schema.Job:
        """Let a suspended training job go on."""
        return self.shown(await self._engine.training.resume(self.find(ref), how.timeout_s, user))

    async def limit(self, ref: str, how: schema.Limiting, user: str) -> schema.Job:
        """Limit a training job."""
        if how.memory is None and how.share is None:
            raise RequestError("share", "nothing to change; give memory, share or both")
        limiting = Limiting(how.memory, how.share, how.memory_most, how.lease_s)
        return self.shown(await self._engine.training.limit(self.find(ref), limiting, user))

    async def scale(self, ref: str, how: schema.Scaling, user: str) -> schema.Job:
        """Have an elastic training job go on with another number of workers."""
        return self.shown(await self._engine.training.scale(self.find(ref), how.workers, how.timeout_s, user))

    async def hold(self, ref: str, user: str) -> schema.Job:
        """Keep a job that waits out of line. Raises :class:`~hived.errors.ConflictError` for any other."""
        return self.shown(self._engine.hold(ref, user))

    async def release(self, ref: str, user: str) -> schema.Job:
        """Let a held job go. Raises :class:`~hived.errors.ConflictError` for any other."""
        return self.shown(self._engine.release(ref, user))

    async def requeue(self, ref: str, how: schema.Requeueing, user: str) -> schema.Job:
        """Stop a job, and queue it again. Raises :class:`~hived.errors.ConflictError` for one that does not run."""
        return self.shown(self._engine.requeue(ref, how.hold, user))

    async def prioritize(self, ref: str, how: schema.Prioritizing, user: str) -> schema.Job:
        """Give a job another priority among those that share its GPUs."""
        return self.shown(self._engine.prioritize(ref, how.priority, user))

    async def edit(self, ref: str, how: schema.Editing, person: Person) -> schema.Job:
        """Have a job that waits ask for something else. Raises as :meth:`submit`."""
        changes, job = how.changes(), self.find(ref)
        if how.at_a_time is not None:
            if changes:
                raise RequestError("at_a_time", "is of all of the array: ask for what else changes by itself")
            return self.shown(self._engine.limit_array(ref, how.at_a_time, person.name))
        if not changes:
            raise RequestError("gpus", "nothing to change; say what it is to ask for")
        if how.no_time_limit and how.time_limit_s is not None:
            raise RequestError("time_limit_s", "a time limit, and none; give one of the two")
        if changes.get("time_limit_s", 1) is None and job.spec.limit_signal is not None:
            raise RequestError(
                "time_limit_s", f"{job.name} gets {job.spec.limit_signal} before its time limit: it has to have one"
            )
        spec = job.spec
        if spec.limit_signal is not None and (how.time_limit_s or inf) <= spec.limit_signal_s:
            lead = f"{spec.limit_signal} comes {spec.limit_signal_s:g} s before its end"
            raise RequestError("time_limit_s", f"has to be more than that: {lead}, and would come at once")
        if how.grace_s is not None and not spec.opportunistic:
            self.access().check_grace(person, job.vc, how.grace_s)
        if how.gpus is not None or how.tasks is not None:
            gpus = (how.gpus or spec.gpus) * (how.tasks or spec.tasks)
            self.access().check_size(person, job.vc, gpus, is_limited=job.priority >= 0)
        return self.shown(self._engine.edit(ref, changes, person.name))

    async def training(self, ref: str) -> schema.Training:
        """What the processes of a training job say of themselves."""
        job = self.find(ref)
        found = await self._engine.training.status(job)
        plain = {**found.plain(), "name": job.name, "command": " ".join(job.spec.command)}
        return schema.Training.model_validate(plain)

    def tasks(self, job: Job) -> list[schema.Task]:
        """A task for each rank."""
        pods = () if job.placement is None else job.placement.pods
        held_up = self._engine.job_scheduler.held_up
        found: list[schema.Task] = []
        for rank in range(job.size):
            state: schema.TaskState = "waiting"
            if job.state.ended or rank in job.endings:
                state = "ended"
            elif (job.id, job.attempt, rank) in held_up:
                state = "starting"
            elif job.holds:
                state = "running" if job.state is JobState.RUNNING else "suspended" if job.state.stays else "stopping"
            place = pods[rank] if rank < len(pods) else None
            node, devices = ("", []) if place is None else (place.node, list(place.leaf_cells))
            found.append(schema.Task(name=f"task {rank}", state=state, node=node, devices=devices))
        return found

    def process(self, job: Job) -> schema.Process:
        """What only a job of processes has."""
        spec = job.spec
        return schema.Process(
            command=list(spec.command),
            cwd=spec.cwd,
            gpus_per_task=spec.gpus,
            attempt=job.attempt,
            resumes=job.resumes,
            retries=job.retries,
            max_retries=spec.retries,
            time_limit_s=spec.time_limit_s,
            exit_code=job.exit_code,
            array=spec.array_id or None,
            array_index=spec.array_index if spec.array_id else None,
            options=list(_options(job)),
        )

    # -- output and events ----------------------------------------------------------------------------------------

    def log(self, ref: str, rank: int, attempt: int | None, offset: int, limit: int) -> schema.LogPage:
        """Output of a task from byte ``offset`` (below 0: from the end), at most ``limit`` bytes, whole characters."""
        job = self._engine.find(ref)
        if job.attempt == 0 and attempt is None:
            return schema.LogPage(text="", offset=0, next=0, end=job.state.ended)
        task = self._engine.task(job, rank, attempt)
        # checked before reading: output written in between is read the next time, and the end is not reported too early
        over = not job.state.holds or (attempt or job.attempt) < job.attempt or rank in job.endings
        liveness = task.liveness()
        if liveness is Liveness.FOREIGN:
            raise NotFoundError(f"{task.folder} has the files of another job, and nothing of {job.name}")
        over = over or liveness not in (Liveness.UNCLAIMED, Liveness.ALIVE)
        try:
            file = task.open_output()  # of what a task may have put there: never block
        except OSError:
            if job.state.ended and not (self._engine.folder / "jobs" / str(job.id)).exists():
                kept = self._engine.keeping.files_s
                now = f"; now that is {duration(kept)} after their end" if kept < inf else ""
                raise NotFoundError(
                    f"the files of {job.name} are not there any more: hived up --keep says for how long they are kept"
                    + now
                ) from None
            return schema.LogPage(text="", offset=0, next=0, end=over)
        try:
            status = os.fstat(file)
            size = status.st_size if stat.S_ISREG(status.st_mode) else 0
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            left = _data_from(file, start, size) if start < size else start  # what was printed first may be given up
            is_cut, start = left > start, left
            most = min(max(limit, _WIDEST), size - start)
            data = os.pread(file, most, start) if most else b""
        finally:
            os.close(file)
        line = _LINE_END.search(data, 0, _LONGEST_LINE) if is_cut else None
        if line is not None:  # what is left begins somewhere in a line
            start, data = start + line.end(), data[line.end() :]
        elif (is_cut or offset < 0) and start:
            beyond = _continued(data)  # the end of a character that began before
            start, data = start + beyond, data[beyond:]
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text = decoder.decode(data, final=over and start + len(data) >= size)
        following = start + len(data) - len(decoder.getstate()[0])  # the beginning of a character that goes on
        return schema.LogPage(text=text, offset=start, next=following, end=over and following >= size)

    async def log_grown(self, ref: str, rank: int, attempt: int | None, offset: int) -> None:
        """Return once there is output beyond ``offset``, or the task has ended."""
        while True:
            page = self.log(ref, rank, attempt, offset, 16)
            if page.next > offset or page.end:
                return
            await asyncio.sleep(_POLL_S)

    def events(self, after: int, limit: int, ref: str | None) -> schema.Events:
        """The first events after number ``after``; of one job, or of all. After -1: the latest ones."""
        number = None if ref is None else self._engine.find(ref).id
        found = self._engine.store.events(after, limit, number)
        return schema.Events(events=[self.shown_event(event) for event in found], last=self._engine.last_event)

    async def changed(self, after: int) -> None:
        """Return once there is an event after number ``after``."""
        await self._engine.changed(after)

    def shown_event(self, event: Event) -> schema.Event:
        """An event as a type of the API, with its sentence."""
        return shown_event(event, "" if event.job is None else self._name(event.job))

    async def accounts(self, start: float, end: float) -> schema.Accounts:
        """GPU seconds between two times, by user, virtual cluster and use."""
        now = self.clock()
        found = await asyncio.to_thread(self._engine.store.gpu_seconds, start, end, now)
        return shown_accounts(found, start, min(end, now))

    def decisions(self) -> Iterator[str]:
        """The core's event log: lines of JSON, oldest first (docs/tutorials/tour.md)."""
        return self._engine.store.decisions()

    # -- the machine ----------------------------------------------------------------------------------------------

    async def _drain(self, drain: schema.Drain, user: str) -> schema.Drained:
        chosen = self._engine.drain(drain.node, drain.device, drain.undo, drain.now, user, drain.reason)
        nodes = groupby(chosen, key=itemgetter(0))
        return schema.Drained(
            nodes=[self.node(name, (device for _, device in of)) for name, of in nodes], undone=drain.undo
        )

    async def reconfigure(self, spec: schema.SpecText, user: str, dry_run: bool = False) -> schema.Reconfigured:
        """Go on under a new spec; every job runs on (work-preserving). ``dry_run``: only say what would be."""
        engine = self._engine
        try:
            new = parse_spec(spec.yaml, "the new spec")
            warnings = await asyncio.to_thread(unknown_accounts, new)
            jobs = {job.name: job for job in self.scheduler().jobs.values()}
            kept = {vc.name for vc in new.virtual_clusters}
            lost = Counter(job.vc for job in jobs.values() if job.state.waits and job.vc not in kept)
            warnings += [
                f"{counted(many, 'waiting job')} of {vc} can never start: it is no more" for vc, many in lost.items()
            ]
            report = None
            if spec.instead_of in (None, engine.spec_loaded_at):
                report = engine.would_reconfigure(new) if dry_run else engine.reconfigure(new, user)
        except InputError as error:
            if not dry_run:
                self._spec_problem = str(error)
            raise
        if report is None:
            raise ConflictError(
                f"another spec has come into force meanwhile ({engine.spec_source}), and nothing was changed: see what "
                "would change now, hived spec diff FILE, and apply again"
            )
        if not dry_run:
            self._spec_problem = ""

        def affected(name: str, why: str) -> schema.AffectedJob:
            return schema.AffectedJob(name=name, vc=jobs[name].vc, gpus=jobs[name].gpus, why=why)

        gone = "some of its devices are no more"
        return schema.Reconfigured(
            dry_run=dry_run,
            kept=list(report.kept),
            downgraded=[affected(name, why) for name, why in report.downgraded],
            on_removed_devices=[
                affected(name, f"{gone} (on {', '.join(nodes)})" if nodes else gone) for name, nodes in report.lost
            ],
            requeued=[affected(name, _why_requeued(jobs[name])) for name in report.cancelled],
            warnings=warnings,
        )

    def spec(self) -> schema.Spec:
        """The spec in force, without trades: they are no part of it."""
        engine = self._engine
        base = engine.trading.base
        if self._text is None or self._text[0] is not base:
            self._text = base, spec_text(base)
        return shown_spec(base, self._text[1], engine.spec_source, engine.spec_loaded_at, self._spec_problem)

    def engine(self) -> schema.Engine:
        """What answers."""
        engine = self._engine
        keeping = engine.keeping
        settings = schema.Settings(
            jobs=engine.job_users.text(),
            fences=sorted(map(str, engine.fences)),
            files_s=None if keeping.files_s == inf else keeping.files_s,
            output_bytes=keeping.output or None,
        )
        simulated = engine.devices.simulated
        return self._engine_of(engine.started_at, ready=True, simulated=simulated, replica=None, settings=settings)

    # -- trades of cells ------------------------------------------------------------------------------------------

    @property
    def trading(self) -> LiveTrading:
        """The market, to be read."""
        return self._engine.trading

    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        """Change the market."""
        return self._engine.trade(act)


def _shown_session(session: Session) -> schema.Token:
    """A session, beside tokens."""
    person = session.person
    return schema.Token(
        id=session.id,
        user=person.name,
        vcs=None if person.vcs is None else tuple(sorted(person.vcs)),
        created_at=session.begun_at,
        expires_at=person.until,
        by="hived dashboard",
    )


def shown_token(token: Token) -> schema.Token:
    """A token as a type of the API: nothing of it that opens anything."""
    return schema.Token(
        id=token.id,
        user=token.user,
        vcs=token.vcs,
        created_at=token.created_at,
        expires_at=token.expires_at,
        by=token.by,
    )


def _why_requeued(job: Job) -> str:
    """Why a job is in line again under a new spec, as it was before that."""
    if job.state.holds:
        return "the VC that it is a guest of takes none like it any more"
    return "GPUs that were kept for it are kept no more"


def _check(submission: schema.Submission) -> None:
    """Raise :class:`~hived.errors.RequestError` for what no single field shows."""
    if not submission.command[0]:
        raise RequestError("command", "its first word is empty, and has to name a program")
    if submission.early and submission.opportunistic:
        raise RequestError("early", "an opportunistic job has no turn to be early for; leave one of the two out")
    limit = submission.time_limit_s
    if submission.limit_signal is not None and limit is not None and submission.limit_signal_s >= limit:
        raise RequestError("limit_signal_s", f"has to be less than the time limit of {limit:g} s, or it comes at once")


def _check_length(submission: schema.Submission, many: int) -> None:
    """Raise :class:`~hived.errors.RequestError` for an environment and a command that are too much to keep."""
    words = [*submission.command, *submission.environment, *submission.environment.values()]
    size = sum(len(word.encode(errors="replace")) + 1 for word in words)
    both = f"the environment and the command are {size:,} bytes"
    if size > MOST_OF_A_JOB:
        less = "put what is large into a file, or pass less: hived submit --no-env"
        raise RequestError("environment", f"{both}, and may be {MOST_OF_A_JOB:,}; {less}")
    if many * size > MOST_OF_A_SUBMISSION:
        most = f"{many:,} times, and may be {MOST_OF_A_SUBMISSION:,} in all"
        raise RequestError("environment", f"{both}, {most}; pass less, or submit it in parts")


def _options(job: Job) -> Iterator[str]:
    """What a job was submitted with that its other fields do not say."""
    spec = job.spec
    if spec.array is not None:
        yield f"--array {spec.array}"
    # of one of an array the wait is for a failure among all of it
    hows = ((number, how if how in ("any", "ok") else "fail") for number, how in spec.waits_for[:_WAITS_SHOWN])
    yield from (f"--after {number}:{how}" for number, how in hows)
    if spec.grace_s != DEFAULT_GRACE_S:
        yield f"--grace {spec.grace_s:g}s"
    if spec.limit_signal is not None:
        yield f"--signal {spec.limit_signal}@{spec.limit_signal_s:g}s"
    if spec.checkpoint_signal is not None:
        yield f"--checkpoint-signal {spec.checkpoint_signal}"
    yield from ("--early",) * spec.early
    yield from ("--lazy",) * spec.lazy_preemption
    yield from ("--no-requeue",) * (not spec.requeue)
    if spec.share is not None:
        yield "--share" if spec.share else "--no-share"


def _own_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        raise RequestError("cwd", "the folder that the engine was started in is gone; give one to run in") from None


def _data_from(file: int, start: int, size: int) -> int:
    """Where something is left of a file of ``size`` bytes, from ``start`` on; ``size``: nowhere."""
    try:
        return min(os.lseek(file, start, os.SEEK_DATA), size)
    except OSError as error:
        return size if error.errno == errno.ENXIO else start  # there may be file systems that cannot tell


def _continued(data: bytes) -> int:
    """Number of leading bytes that belong to a character that began before them."""
    return next((n for n, byte in enumerate(data[: _WIDEST - 1]) if byte & 0xC0 != 0x80), min(len(data), _WIDEST - 1))


#: events read at a time
_PAGE = 10_000


def local_view(service: LocalService, title: str, acts: bool = False) -> DashboardView[Job]:
    """The dashboard of the engine behind ``service``; ``acts``: whether the API is served beside it."""
    words = {"title": title, "synthetic": service.engine().simulated, "acts": acts}
    words |= {"server": service.database} if acts else {}
    return DashboardView(_Running(service), "this machine", **words)


class _Running:
    """Implements :class:`~.live.RunningEngine`."""

    def __init__(self, service: LocalService) -> None:
        self._service, self._engine = service, service._engine
        self.clock, self.started_at = self._engine.clock, self._engine.started_at

    def now(self) -> Now[Job]:
        job_scheduler = self._engine.job_scheduler
        health, at = job_scheduler.health, job_scheduler.usage.at

        def known(places: Iterable[Device]) -> list[Device]:
            """The devices that the spec or a job has."""
            return [place for place in places if place in at or place[1] in health.devices.get(place[0], ())]

        return Now(
            job_scheduler.cluster.spec,
            self._engine.last_event,
            job_scheduler.usage,
            job_scheduler.cluster,
            self._engine.recent,
            jobs=job_scheduler.jobs,
            reserved=job_scheduler.reserved(),
            faulty=known(health.faulty),
            kept=known(place for place in health.kept if place not in health.faulty),
            beyond=job_scheduler.beyond,
            trading=job_scheduler.trading,
            sharers=() if job_scheduler.guests is not None else job_scheduler.turns.of.keys(),
            turns=self._service.explainer().turns_of,
        )

    async def changed(self, seq: int) -> None:
        await self._engine.changed(seq)

    def waiting(self, most: int) -> Sequence[Job]:
        return self._engine.job_scheduler.waiting(most)

    def shortly(self, job: Job) -> list[str]:
        return self._service.explainer().shortly(job)

    def story(self, ref: str) -> pictures.Story:
        found = self._engine.find(ref)
        lines = self._service.explainer().explain(found, self.clock())
        made = story(found, self._events(found.id), lines, " ".join(found.spec.command))
        return made.model_copy(update={"held_by_hand": found.held_by_hand and found.state is JobState.HELD})

    def _events(self, job: int) -> list[Event]:
        """All events of one job."""
        found: list[Event] = []
        while page := self._engine.store.events(found[-1].seq if found else 0, _PAGE, job):
            found += page
        return found

    async def lives(self, start: float, end: float) -> list[Life]:
        found = await asyncio.to_thread(self._engine.store.histories, start, end)
        lives = []
        for number, events in found.items():
            submitted = events[0].data
            placed = next((event.data["placement"] for event in reversed(events) if event.data.get("placement")), None)
            # another number than it was submitted with, where it was edited since
            gpus = submitted["gpus"] if placed is None else sum(len(devices) for _, devices in placed["pods"])
            lives.append(Life(number, str(number), submitted["name"], submitted["vc"], gpus, events))
        return lives

    def ended(self, offset: int, limit: int) -> pictures.EndedJobs:
        """All ended jobs in the store, the latest submitted first."""
        states = [state.value for state in JobState if state.ended]
        found, total = self._engine.store.jobs(JobFilter(states), limit, None, offset)
        return ended_jobs(found, total)
