"""``hived ps``, ``explain``, ``cancel`` and ``wait``: jobs, all at a glance or one by one."""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from hived.errors import ConflictError, HivedError, InputError
from hived.server.kubernetes.schema import GroupExplanation
from hived.server.schema import Explanation, Job, Jobs
from hived.words import counted

from .asking import Asking, asks_engine
from .client import Engine, group_path, job_path
from .console import messages, note
from .formats import (
    ACTIVE,
    ENDED,
    STATE_STYLES,
    WAITING,
    Cell,
    Form,
    age,
    clean,
    clean_lines,
    clock,
    columns,
    exit_code,
    print_table,
    priority,
    rich_table,
    runtime,
    standing,
    where,
)
from .options import JobOrGroupArgument, JobsArgument, NumberOption, OfVcOption, seconds
from .retrying import Retrying
from .screen import full_screen, has_screen

_PAGE = 100
_QUICKEST_S, _SLOWEST_S = 0.05, 1.0
_OUT_OF_TIME = 124  #: as timeout(1) has it
JOB_COLUMNS = columns("ID NAME VC GPUS PRIO STATE AGE RUN WHERE/WHY", right="ID GPUS PRIO AGE RUN", cut="WHERE/WHY")


@asks_engine
def ps(
    ask: Asking,
    every: Annotated[bool, typer.Option("--all", "-a", help="Ended jobs too.")] = False,
    vc: OfVcOption = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            "-s",
            metavar="STATE",
            help=f"In this state; again for more: {', '.join((*ACTIVE, *ENDED))}.",
            show_default="all but ended ones",
            autocompletion=lambda: [*ACTIVE, *ENDED],
        ),
    ] = None,
    number: NumberOption = 100,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="On the whole screen, every second; q leaves.")] = False,
) -> None:
    """List the jobs that run and wait: where they are, or why they are not there yet.

    GPUS: of all its tasks. PRIO: opp for opportunistic. AGE: since it was submitted. RUN: how long it has run.

    \bExamples:
      hived ps
      hived ps --all -n 20
      hived ps --vc vision --status queued
      hived ps -o json | jq '.jobs[].name'
    """
    states = _states(status or [], every, ask.state)
    with ask.connect({"kubernetes": "hived groups"}) as there:
        if watch and ask.form is Form.TABLE and has_screen():
            retry = Retrying()
            full_screen(lambda _width, height: _picture(retry(lambda: _listed(there, states, vc, number)), height))
            return
        answer = _listed(there, states, vc, number)
        if ask.printed(answer.model_dump()):
            return
    if not answer.jobs:
        note(
            "no jobs" + (f" of {clean(vc)}" if vc else "") + ("" if every or status else "; ended ones: hived ps --all")
        )
        return
    print_table(JOB_COLUMNS, job_rows(answer.jobs))
    if answer.total > len(answer.jobs):
        note(f"{len(answer.jobs):,} of {answer.total:,} jobs; all of them: -n 0")


#: states in which a job has GPUs
_HOLDING = ("running", "stopping")


def _states(asked: list[str], every: bool, folder: Path | None) -> tuple[str, ...]:
    known = (*ACTIVE, *ENDED)
    if folder is not None and str(folder) in known:
        raise InputError(f"--state {folder}: names the engine's folder; for jobs in a state: --status {folder}")
    for name in asked:
        if name not in known:
            raise InputError(f"--status {name}: no state of a job; one of {', '.join(known)}")
    if asked and every:
        raise InputError("--all and --status: give one of them")
    return tuple(asked) or (known if every else ACTIVE)


def _listed(there: Engine, states: tuple[str, ...], vc: str | None, number: int) -> Jobs:
    """At most ``number`` jobs (0: all), in the order in which they are shown: those with GPUs are cut off last."""
    jobs: list[Job] = []
    total = 0
    for kind in (_HOLDING, WAITING, ENDED):
        if some := tuple(state for state in states if state in kind):
            found, matching = _pages(there, some, vc, number - len(jobs) if number else math.inf)
            jobs += sorted(found, key=lambda job: job.id)
            total += matching
    return Jobs(jobs=jobs, total=max(total, len(jobs)))


def _pages(there: Engine, states: tuple[str, ...], vc: str | None, most: float) -> tuple[list[Job], int]:
    """The latest jobs in these states, page by page, at most ``most``; and how many there are in all."""
    jobs: list[Job] = []
    total, before = 0, None
    while True:
        limit = int(min(_PAGE, most - len(jobs)))
        page = there.understood(Jobs, there.get("/v1/jobs", state=states, vc=vc, limit=max(1, limit), before=before))
        total = total or page.total
        jobs += page.jobs[:limit]
        if len(page.jobs) < limit or len(jobs) >= most:
            return jobs, total
        before = page.jobs[-1].id


def job_rows(jobs: list[Job]) -> list[tuple[str | Cell, ...]]:
    """What :data:`JOB_COLUMNS` say of jobs."""
    now = time.time()
    return [
        (
            str(job.id),
            job.name,
            job.vc,
            f"{job.gpus:,}",
            "opp" if job.kind == "opportunistic" else priority(job.priority),
            Cell(job.state, STATE_STYLES[job.state]),
            age(now - job.submitted_at),
            runtime(job, now),
            _where_or_why(job),
        )
        for job in jobs
    ]


def _where_or_why(job: Job) -> str:
    place = where(job.placement)
    if job.state in ENDED:
        return job.reason or (f"exit code {job.exit_code}" if job.exit_code else "-")
    if job.state in ("running", "stopping") and job.kind == "opportunistic" and job.priority >= 0:
        if job.reason:
            return f"{place} as opportunistic: {job.reason}"
        return f"{place} before its turn" if job.early else place
    if job.state in ("running", "stopping") or not job.reason:
        return place or "-"
    return f"{place} {job.reason}" if place else job.reason


def _picture(answer: Jobs, height: int) -> RenderableType:
    room = max(1, height - 4)
    title = Text(f"hived ps  {clock(time.time())}  {counted(answer.total, 'job')}, every second; q leaves\n", "dim")
    return Group(title, rich_table(JOB_COLUMNS, job_rows(answer.jobs[:room])))


@asks_engine
def explain(ask: Asking, job: JobOrGroupArgument) -> None:
    """Say why a job waits and what would help, where it runs, or how it ended; the same of a group on Kubernetes.

    \bExamples:
      hived explain train
      hived explain 12 -o json
      hived explain team-a/worker-0 --engine http://127.0.0.1:9096
    """
    with ask.connect() as there:
        told: Explanation | GroupExplanation
        if there.kind == "kubernetes":
            answer = there.get(group_path("explain", job))
            told = there.understood(GroupExplanation, answer)
        else:
            answer = there.get(job_path(job, "/explain"))
            told = there.understood(Explanation, answer)
    if not ask.printed(answer):
        typer.echo(clean_lines(told.text.rstrip("\n")))


@asks_engine
def cancel(ask: Asking, jobs: JobsArgument) -> None:
    """Withdraw jobs that wait, and stop those that run: SIGTERM, after their grace SIGKILL.

    One that cannot be cancelled does not keep the others from it; the exit code is then of the first such.

    \bExamples:
      hived cancel train-12
      hived cancel 12 13 14
      hived cancel $(hived submit -q --vc vision -- sleep 60)
    """
    failed: HivedError | None = None
    with ask.connect({"kubernetes": "kubectl delete"}) as there:
        for ref in jobs:
            try:
                answer = there.post(job_path(ref, "/cancel"))
            except (InputError, ConflictError) as error:
                if len(jobs) == 1:
                    raise
                messages().print(f"hived: {clean(str(error))}", markup=False)
                failed = failed or error
                continue
            if not ask.printed(answer, one_of_many=True):
                job = there.understood(Job, answer)
                words = "is cancelled" if job.state == "cancelled" else "is being stopped"
                typer.echo(f"{clean(job.name)} {words}")
    if failed is not None:
        raise typer.Exit(failed.exit_code)


@asks_engine
def wait(
    ask: Asking,
    jobs: JobsArgument,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="DURATION", help="Longest wait, 90s or 2h.", parser=seconds, show_default="none"),
    ] = None,
) -> None:
    """Wait until jobs have ended. Ctrl-C leaves them alone.

    The exit code is that of the first, as they are given, that did not succeed; 0 when all did; 124 when time is out.

    \bExamples:
      hived wait train-12 && hived submit --vc vision -- python evaluate.py
      hived wait 12 13 14 --timeout 2h
    """
    until = None if timeout is None else time.monotonic() + timeout
    retry = Retrying()
    with ask.connect({"kubernetes": "kubectl wait"}) as there:
        open_jobs = {ref: there.understood(Job, there.get(job_path(ref))) for ref in jobs}
        ids = {ref: str(job.id) for ref, job in open_jobs.items()}  # a name could mean a later job in a while
        ended: dict[str, Job] = {}
        pause = _QUICKEST_S
        while True:
            for ref in [ref for ref, job in open_jobs.items() if job.state in ENDED]:
                ended[ref] = open_jobs.pop(ref)
                if not ask.printed(ended[ref].model_dump(), one_of_many=True):
                    typer.echo(standing(ended[ref]))
            if not open_jobs:
                break
            if until is not None and time.monotonic() >= until:
                names = ", ".join(clean(job.name) for job in open_jobs.values())
                note(f"out of time; not ended: {names}")
                raise typer.Exit(_OUT_OF_TIME)
            time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
            pause = min(1.5 * pause, _SLOWEST_S)
            for ref in list(open_jobs):
                open_jobs[ref] = there.understood(Job, retry(partial(there.get, job_path(ids[ref]))))
    raise typer.Exit(next((code for ref in jobs if (code := exit_code(ended[ref]))), 0))
