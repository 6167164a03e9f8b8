"""The service behind the HTTP API of one machine's engine, in the types of :mod:`.schema`; and its dashboard view."""

from __future__ import annotations

import asyncio
import codecs
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from hived import __version__
from hived.cluster.decisions import Placement
from hived.cluster.explain.reasons import Reason
from hived.cluster.explain.sentences import MAX_NAMED, say
from hived.engine.explaining import planned
from hived.engine.job import Event
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.engines.local.engine import Engine
from hived.engines.local.explaining import by_rank, event_text, explain, held_up, in_words, reasons, shortly, with_cures
from hived.engines.local.model import DEFAULT_GRACE_S, Job, JobSpec
from hived.engines.local.tasks import Liveness
from hived.errors import NotFoundError, RequestError
from hived.spec import parse_spec
from hived.spec.compiled import Device

from . import pictures, schema
from .exchange import ExchangeService
from .live import DashboardView, Now, stays
from .mapping import of, safety_margin

T = TypeVar("T")
#: poll interval of a growing output file, in seconds
_POLL_S = 0.2
#: bytes of the widest character: the least size of a page of output
_WIDEST = 4


class LocalService:
    """The API's operations on the engine; call from the thread of the event loop only.

    ``ref`` is a job's id (``12``), its name (``train-12``), or the name asked for (``train``: the latest of them).
    Raises errors of :mod:`hived.errors`: :class:`~hived.errors.NotFoundError` for an unknown job, node or device,
    :class:`~hived.errors.InputError` (often a :class:`~hived.errors.RequestError` with the field),
    :class:`~hived.errors.NeverFitsError`, :class:`~hived.errors.ConflictError`, :class:`~hived.errors.StorageError`,
    :class:`~hived.errors.UnavailableError`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: trades of cells
        self.market = ExchangeService(_Trader(engine))
        self._name = lru_cache(10_000)(lambda number: engine.find(str(number)).name)

    # -- jobs -----------------------------------------------------------------------------------------------------

    async def submit(self, submission: schema.Submission, user: str) -> schema.Job:
        """Submit a job; it is on the disk when this returns."""
        grace_s = DEFAULT_GRACE_S
        if submission.priority < 0 or submission.early:
            grace_s = min(grace_s, self._engine.job_scheduler.health.grace_of_loans(submission.vc))
        job = self._engine.submit(_spec(submission, user, grace_s))
        await asyncio.sleep(0)  # so that the answer says whether it has started
        return self.shown(job)

    def plan(self, submission: schema.Submission) -> schema.Plan:
        """Dry run of a submission, behind the present backlog."""
        spec = _spec(submission, "", DEFAULT_GRACE_S)
        answer = self._engine.plan(spec)
        job_scheduler = self._engine.job_scheduler
        line = job_scheduler.scheduler.before(spec.vc, spec.priority, MAX_NAMED)
        request = self._engine.request(spec)
        why = with_cures(job_scheduler, request, answer.reasons, lambda other: other.priority >= spec.priority)
        outcome, text, decision, found = planned(
            replace(answer, reasons=why), line, "it", in_words, job_scheduler.usage.lent, by_rank(spec.tasks)
        )
        return schema.Plan(
            outcome=outcome,
            text=text,
            placement=_places(None if decision is None else decision.placement),
            victims=list(getattr(decision, "victims", ())),
            reasons=[_reason(reason) for reason in found],
        )

    def jobs(self, states: Sequence[str], vc: str | None, limit: int, before: int | None) -> schema.Jobs:
        """Jobs in one of ``states`` (none: all), the latest first, with ids below ``before``."""
        found, total = self._engine.store.jobs(states, vc, limit, before)
        here = self._engine.job_scheduler.jobs
        return schema.Jobs(jobs=[self.shown(here.get(job.id, job)) for job in found], total=total)

    def job(self, ref: str) -> schema.Job:
        """One job."""
        return self.shown(self._engine.find(ref))

    def explain(self, ref: str) -> schema.Explanation:
        """Explain why a job waits, where it runs, or how it ended."""
        job = self._engine.find(ref)
        job_scheduler = self._engine.job_scheduler
        why = [] if job.state.ended else [_reason(reason) for reason in reasons(job_scheduler, job)]
        return schema.Explanation(job=job.id, text=explain(job_scheduler, job, self._engine.clock()), reasons=why)

    async def cancel(self, ref: str) -> schema.Job:
        """Withdraw or stop a job. Raises :class:`~hived.errors.ConflictError` for a job that has ended."""
        return self.shown(self._engine.cancel(ref))

    def shown(self, job: Job) -> schema.Job:
        """A job as a type of the API."""
        spec = job.spec
        kind = ("guaranteed" if job.guaranteed else "opportunistic") if job.state.holds else None
        reason = job.reason
        if job.state in (JobState.QUEUED, JobState.RESERVED, JobState.BACKOFF):
            reason = "; ".join(shortly(self._engine.job_scheduler, job))
        elif job.state is JobState.RUNNING and (waits := held_up(self._engine.job_scheduler, job)):
            reason = waits[0]
        return schema.Job(
            id=job.id,
            name=job.name,
            vc=spec.vc,
            gpus=job.gpus,
            gpus_per_task=spec.gpus,
            tasks=spec.tasks,
            priority=spec.priority,
            early=spec.early,
            state=job.state,
            kind=kind,  # type: ignore[arg-type]  # one of two words
            placement=_places(job.placement),
            command=list(spec.command),
            cwd=spec.cwd,
            user=spec.user,
            attempt=job.attempt,
            resumes=job.resumes,
            retries=job.retries,
            max_retries=spec.retries,
            time_limit_s=spec.time_limit_s,
            submitted_at=job.submitted_at,
            started_at=job.started_at,
            ended_at=job.ended_at,
            exit_code=job.exit_code,
            reason=reason,
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
            # a task may have put anything in the place of its output: never block
            file = os.open(task.output, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return schema.LogPage(text="", offset=0, next=0, end=over)
        try:
            status = os.fstat(file)
            size = status.st_size if stat.S_ISREG(status.st_mode) else 0
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            most = min(max(limit, _WIDEST), size - start)
            data = os.pread(file, most, start) if most else b""
        finally:
            os.close(file)
        if offset < 0 and start:
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

    def shown_event(self, event: Event) -> schema.JobEvent:
        """An event as a type of the API, with its sentence."""
        text = event_text(event, "" if event.job is None else self._name(event.job))
        return schema.JobEvent(seq=event.seq, at=event.at, kind=event.kind, job=event.job, text=text)

    # -- the machine ----------------------------------------------------------------------------------------------

    def about(self) -> schema.About:
        """Version, size and state of the engine."""
        engine = self._engine
        spec = engine.cluster.spec
        health = engine.job_scheduler.health
        return schema.About(
            version=__version__,
            started_at=engine.started_at,
            pid=os.getpid(),
            simulated=engine.devices.simulated,
            source=engine.devices.what,
            gpus=spec.gpus,
            nodes=len(spec.node_names),
            vcs=[vc.name for vc in spec.virtual_clusters],
            draining=bool(health.drained) and len(health.drained) >= spec.gpus,
            jobs=engine.store.counts(),
            safety_margin=safety_margin(engine.cluster),
        )

    def devices(self, node: str | None = None, offset: int = 0, limit: int = 1000) -> list[schema.Device]:
        """Devices in the order of the spec: ``limit`` of them from number ``offset`` on; of one node, or of all.

        O(devices before the last one shown).
        """
        chosen = iter(self._engine.cluster.spec.devices() if node is None else self._engine.chosen(node, None))
        return self._shown_devices(list(islice(islice(chosen, offset, None), limit)))

    async def drain(self, drain: schema.Drain) -> list[schema.Device]:
        """Drain devices, or undo that. Returns the devices chosen."""
        return self._shown_devices(self._engine.drain(drain.node, drain.device, drain.undo, drain.now))

    async def reconfigure(self, spec: schema.SpecText) -> schema.Reconfigured:
        """Go on under a new spec; every job runs on (work-preserving)."""
        report = self._engine.reconfigure(parse_spec(spec.yaml, "the new spec"))
        return schema.Reconfigured(
            kept=list(report.kept),
            downgraded=[name for name, _ in report.downgraded],
            lost=[name for name, _ in report.lost],
            cancelled=list(report.cancelled),
        )

    def decisions(self) -> Iterator[str]:
        """The core's event log: lines of JSON, oldest first (docs/tutorials/tour.md)."""
        return self._engine.store.decisions()

    def _shown_devices(self, chosen: Sequence[tuple[str, int]]) -> list[schema.Device]:
        job_scheduler = self._engine.job_scheduler
        health = job_scheduler.health
        return [
            schema.Device(
                node=node,
                device=device,
                state=job_scheduler.cluster.leaf_state(node, device).value,
                healthy=(node, device) not in health.bad,
                drained=(node, device) in health.drained,
                why_bad=health.bad.get((node, device), ""),
                job=holder.id if (holder := job_scheduler.usage.at.get((node, device))) is not None else None,
            )
            for node, device in chosen
        ]


class _Trader:
    """Implements :class:`~.exchange.Trader`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def trading(self) -> LiveTrading:
        return self._engine.trading

    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        return self._engine.trade(act)


def _spec(submission: schema.Submission, user: str, grace_s: float) -> JobSpec:
    if not submission.command[0]:
        raise RequestError("command", "its first word is empty, and has to name a program")
    if submission.early and submission.priority < 0:
        raise RequestError("early", "an opportunistic job has no turn to be early for; leave one of the two out")
    otherwise = {
        "command": tuple(submission.command),
        "name": submission.name or "",
        "cwd": submission.cwd or _own_folder(),
        "environment": tuple(submission.environment.items()),
        "grace_s": grace_s if submission.grace_s is None else submission.grace_s,
    }
    return JobSpec(**(dict(submission) | otherwise), user=user)


def _own_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        raise RequestError("cwd", "the folder that the engine was started in is gone; give one to run in") from None


def _places(placement: Placement | None) -> list[schema.TaskPlace]:
    pods = () if placement is None else placement.pods
    return [schema.TaskPlace(rank=rank, node=pod.node, devices=list(pod.leaf_cells)) for rank, pod in enumerate(pods)]


def _reason(reason: Reason) -> dict[str, object]:
    plain: Mapping[str, object] = asdict(reason)
    return {"kind": reason.kind.value, "text": say(reason), **plain}


def _continued(data: bytes) -> int:
    """Number of leading bytes that belong to a character that began before them."""
    return next((n for n, byte in enumerate(data[: _WIDEST - 1]) if byte & 0xC0 != 0x80), min(len(data), _WIDEST - 1))


#: events read at a time
_PAGE = 10_000


def local_view(engine: Engine, title: str) -> DashboardView[Job]:
    """The dashboard of ``engine``."""
    return DashboardView(_Running(engine), "this machine", title=title, synthetic=engine.devices.simulated)


class _Running:
    """Implements :class:`~.live.RunningEngine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.clock, self.started_at = engine.clock, engine.started_at

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
            faulty=known(health.bad),
            kept=known(place for place in health.drained if place not in health.bad),
            beyond=job_scheduler.beyond,
            trading=job_scheduler.trading,
        )

    async def changed(self, seq: int) -> None:
        await self._engine.changed(seq)

    def waiting(self, most: int) -> Sequence[Job]:
        job_scheduler = self._engine.job_scheduler
        found = [*job_scheduler.reserved(), *job_scheduler.backing_off()]
        return found + [
            job_scheduler.jobs[entry.number] for entry in job_scheduler.scheduler.in_turn(max(0, most - len(found)))
        ]

    def shortly(self, job: Job) -> list[str]:
        return shortly(self._engine.job_scheduler, job)

    def story(self, ref: str) -> pictures.Story:
        found = self._engine.find(ref)
        events = self._events(found.id)
        return pictures.Story(
            **of(found),
            state=found.state.value,
            command=" ".join(found.spec.command),
            explanation=explain(self._engine.job_scheduler, found, self._engine.clock()),
            stays=stays(events),
            moments=[pictures.Moment(at=event.at, text=event_text(event, found.name)) for event in events],
        )

    def _events(self, job: int) -> list[Event]:
        """All events of one job."""
        found: list[Event] = []
        while page := self._engine.store.events(found[-1].seq if found else 0, _PAGE, job):
            found += page
        return found

    def ended(self, offset: int, limit: int) -> pictures.EndedJobs:
        """All ended jobs in the store, the latest submitted first."""
        states = [state.value for state in JobState if state.ended]
        found, total = self._engine.store.jobs(states, None, limit, None, offset)
        jobs = [
            pictures.Ended(
                **of(job), state=job.state.value, at=job.since if job.ended_at is None else job.ended_at, why=job.reason
            )
            for job in found
        ]
        return pictures.EndedJobs(jobs=jobs, total=total)
