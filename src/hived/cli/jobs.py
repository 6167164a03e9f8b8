"""Verbs for jobs that there are: explain, cancel, hold, release, requeue, edit, priority and wait."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer

from hived.engines.local import terminal
from hived.errors import ConflictError, ForbiddenError, HivedError, InputError, NotFoundError
from hived.server.schema import Explanation, Job
from hived.words import counted

from .client import Engine, Retrying, path_of
from .console import messages, note
from .escaping import clean, clean_lines
from .formats import (
    Fact,
    duration,
    exit_code,
    print_facts,
    priority,
    status_text,
    timestamp,
)
from .job_lists import NAMED, asked_for, listed
from .options import (
    Asking,
    JobArgument,
    JobsArgument,
    OfUserOption,
    OfVcOption,
    SomeJobsArgument,
    WholeArrayOption,
    asks_engine,
    duration_option,
)

_QUICKEST_S, _SLOWEST_S = 0.05, 1.0
_OUT_OF_TIME = 124  #: as in timeout(1)


@asks_engine
def explain(
    ask: Asking,
    job: JobArgument,
    details: Annotated[
        bool, typer.Option("--details", "-d", help="With its command, folder, size, limits, times and exit code.")
    ] = False,
) -> None:
    """Say why a job waits and what would help, where it runs, or how it ended; on Kubernetes also of a single pod.

    \bExamples:
      hived explain train
      hived explain --details train
      hived explain 12 -o json
      hived explain team-a/worker-0 --engine http://127.0.0.1:9096
    """
    with ask.connect() as there:
        answer = there.get(path_of("explain", job))
        explanation = there.parsed(Explanation, answer)
        known = there.parsed(Job, there.get(path_of("jobs", job))) if details else None
    if not ask.printed(answer):
        typer.echo(clean_lines(explanation.text.rstrip("\n")))
        if known is not None:
            typer.echo()
            print_facts(_facts(known))


def _facts(job: Job) -> list[Fact]:
    """What a job has asked for, and what has become of it."""
    facts: list[Fact] = [
        ("id", job.id),
        ("of", f"{clean(job.user or '-')} in {clean(job.vc)}, priority {priority(job.priority)}"),
    ]
    if (process := job.process) is not None:
        limit = "none" if process.time_limit_s is None else duration(process.time_limit_s)
        facts += [
            ("command", clean(shlex.join(terminal.shown(process.command)))),
            ("folder", clean(process.cwd)),
            ("size", _size(job)),
            ("time limit", limit),
            ("starts", f"{process.attempt:,}, after {counted(process.resumes, 'preemption')} and "
             f"{counted(process.retries, 'failure')} of {process.max_retries:,}"),
        ]  # fmt: skip
        if process.array is not None:
            facts.append(("array", f"{process.array}, index {process.array_index}"))
    times = {"submitted": job.submitted_at, "started": job.started_at, "ended": job.ended_at}
    facts += [(name, timestamp(at)) for name, at in times.items() if at is not None]
    if process is not None and process.exit_code is not None:
        facts.append(("exit code", str(process.exit_code)))
    return facts


@asks_engine
def cancel(
    ask: Asking,
    jobs: SomeJobsArgument = None,
    user: OfUserOption = None,
    vc: OfVcOption = None,
    every: Annotated[bool, typer.Option("--all", help="All that have not ended.")] = False,
    array: WholeArrayOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Withdraw jobs that wait, and stop those that run: SIGTERM, after their grace SIGKILL.

    By name, or those of a user, of a virtual cluster, or all, after a question. One that cannot be cancelled does not
    keep the others from it; the exit code is then of the first such.

    \bExamples:
      hived cancel train-12
      hived cancel 12 13 14
      hived cancel 12_3
      hived cancel --array 12
      hived cancel --user $USER --vc vision
      hived cancel $(hived submit -q --vc vision -- sleep 60)
    """
    by_sort = bool(every or user or vc)
    if by_sort is bool(jobs):
        raise InputError("name jobs, or say which: --user, --vc or --all" + (", not both" if jobs else ""))
    if by_sort and array:
        raise InputError("--array is for jobs that are named; leave it out, or name one of the array")
    if every and (user or vc):
        raise InputError("--all is every user's of every virtual cluster; leave it out, or --user and --vc")
    with ask.connect() as there:
        if by_sort:
            chosen = _chosen(there, user, vc, yes)
            refs = [job.id for job in sorted(chosen, key=lambda job: job.state.holds)]
        else:
            refs = list(_waiting_first(there, _arrays(there, jobs or (), array)))
    said = {True: "is cancelled", False: "is being stopped"}
    one = len(refs) == 1 and not array

    def told(job: Job) -> str:
        of = job.process.array if one and job.process is not None else None
        rest = "" if of is None else f"; it is one of array {of}, which --array cancels whole"
        return f"{clean(job.name)} {said[job.state == 'cancelled']}{rest}"

    _each(ask, refs, "/cancel", told)


def _chosen(there: Engine, user: str | None, vc: str | None, yes: bool) -> list[Job]:
    """The jobs of a user and a virtual cluster (None: of any) that have not ended, once that was agreed to."""
    found = listed(there, asked_for([], False, None), {"user": user, "vc": vc}, 0).jobs
    of = "".join(f" of {clean(name)}" for name in (user, vc) if name)
    if not found:
        note(f"no jobs{of} that have not ended")
    elif not yes:
        named = ", ".join(clean(job.name) for job in found[:NAMED]) + (", ..." if len(found) > NAMED else "")
        what = f"cancel {counted(len(found), 'job')}{of} ({named})"
        if not sys.stdin.isatty():
            raise InputError(f"--yes is needed to {what} without a question")
        if not typer.confirm(f"{what}?", err=True):
            raise InputError("nothing was cancelled")
    return found


def _arrays(there: Engine, refs: Sequence[str], whole: bool) -> Sequence[str]:
    """The jobs of these names; ``whole``: with those of their arrays that have not ended."""
    if not whole:
        return refs
    arrays: dict[int, None] = {}
    for ref in refs:
        job = there.parsed(Job, there.get(path_of("jobs", ref)))
        if job.process is None or job.process.array is None:
            raise InputError(f"--array: {clean(job.name)} is of no array")
        arrays[job.process.array] = None
    found = [job.id for array in arrays for job in listed(there, asked_for([], False, None), {"array": array}, 0).jobs]
    if not found:
        note("all of it has ended")
    return found


def _waiting_first(there: Engine, refs: Sequence[str]) -> Sequence[str]:
    """In an order in which none starts on what another one has given up."""

    def holds(ref: str) -> bool:
        try:
            return there.parsed(Job, there.get(path_of("jobs", ref))).state.holds
        except HivedError:  # it is said when it is cancelled
            return False

    return refs if len(refs) < 2 else sorted(refs, key=holds)


def _each(ask: Asking, jobs: Sequence[str], rest: str, said: Callable[[Job], str], body: object = None) -> None:
    """Have something done to jobs; one that refuses keeps no other from it, and gives the exit code."""
    failed: HivedError | None = None
    with ask.connect() as there:
        for ref in jobs:
            try:
                answer = there.post(path_of("jobs", ref, rest), body)
            except (InputError, ConflictError, ForbiddenError) as error:
                if len(jobs) == 1:
                    raise
                messages().print(f"hived: {clean(str(error))}", markup=False)
                failed = failed or error
                continue
            if not ask.printed(answer, one_of_many=True):
                typer.echo(said(there.parsed(Job, answer)))
    if failed is not None:
        raise typer.Exit(failed.exit_code)


@asks_engine
def hold(ask: Asking, jobs: JobsArgument, array: WholeArrayOption = False) -> None:
    """Keep jobs that wait out of line, until hived release.

    \bExamples:
      hived hold train-12
      hived hold 12 13 14
    """
    with ask.connect() as there:
        refs = _arrays(there, jobs, array)
    _each(ask, refs, "/hold", status_text)


@asks_engine
def release(ask: Asking, jobs: JobsArgument, array: WholeArrayOption = False) -> None:
    """Let held jobs go into line again.

    \bExamples:
      hived release train-12
      hived release 12 13 14
    """
    with ask.connect() as there:
        refs = _arrays(there, jobs, array)
    _each(ask, refs, "/release", status_text)


@asks_engine
def priority_(
    ask: Asking,
    job: JobArgument,
    priority: Annotated[int, typer.Argument(metavar="N", min=0, max=1000, help="0 to 1000.")],
) -> None:
    """Give a job that waits another priority, or one that takes turns with others on GPUs.

    In line the higher is first, and may preempt lower ones of its virtual cluster. Of those that take turns a higher
    one is never suspended for a lower one; its place in line, if it waits again, stays.

    \bExamples:
      hived priority train-12 10
      hived priority 12 0
    """
    _each(ask, [job], "/priority", lambda job: f"{clean(job.name)}: priority {job.priority}", {"priority": priority})


@asks_engine
def edit(
    ask: Asking,
    jobs: JobsArgument,
    array: WholeArrayOption = False,
    gpus: Annotated[
        int | None, typer.Option("--gpus", "-g", metavar="N", help="GPUs of each task.", min=1, show_default="as it is")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", "-N", metavar="N", help="Tasks of the gang, of --gpus each.", min=1, show_default="as it is"
        ),
    ] = None,
    time_limit: Annotated[
        float | None, duration_option(help="Longest run: 90s, 30m, 2h, or 1-12:00:00.", show_default="as it is")
    ] = None,
    no_time_limit: Annotated[bool, typer.Option("--no-time-limit", help="Let it run as long as it does.")] = False,
    retries: Annotated[
        int | None,
        typer.Option(metavar="N", help="How often it is started again when it fails.", min=0, show_default="as it is"),
    ] = None,
    grace: Annotated[
        float | None,
        duration_option(help="Time between SIGTERM and SIGKILL when it is stopped.", show_default="as it is"),
    ] = None,
) -> None:
    """Have jobs that wait ask for something else. They keep their ids and, under first come first served, their places.

    Of a job that runs the time limit alone is changed; hived requeue --hold stops it and holds it, to be edited and
    released. The priority is changed by hived priority.

    \bExamples:
      hived edit train-12 --gpus 2 --time-limit 4h
      hived edit 12 13 --no-time-limit
      hived edit --array 12 --time-limit 8h
    """
    wish = {"gpus": gpus, "tasks": nodes, "time_limit_s": time_limit, "retries": retries, "grace_s": grace}
    body = {name: value for name, value in wish.items() if value is not None}
    if no_time_limit:
        body["no_time_limit"] = True
    if not body:
        raise InputError("nothing to change; give --gpus, --nodes, --time-limit, --retries or --grace")
    with ask.connect() as there:
        refs = _arrays(there, jobs, array)
    _each(ask, refs, "/edit", _edited, body)


def _edited(job: Job) -> str:
    """What a job asks for now."""
    if (process := job.process) is None:
        return status_text(job)
    limit = "no time limit" if process.time_limit_s is None else f"time limit {duration(process.time_limit_s)}"
    again = f", retries {process.max_retries:,}" if process.max_retries else ""
    return f"{clean(job.name)} asks for {_size(job)}, {limit}{again}; {clean(job.state)}"


def _size(job: Job) -> str:
    """What a job has asked for, in words."""
    return counted(job.gpus, "GPU") + ("" if job.size == 1 else f" in {job.size:,} tasks")


@asks_engine
def requeue(
    ask: Asking,
    jobs: JobsArgument,
    hold: Annotated[bool, typer.Option("--hold", help="Hold them then, until hived release.")] = False,
) -> None:
    """Stop jobs that run, and queue them again: they start anew, in the place in line that their submission gives them.

    One with --checkpoint-signal gets that first, and saves its state. One of yours that has ended is submitted again:
    a new job, with the command and the environment of that one.

    \bExamples:
      hived requeue train-12
      hived requeue --hold train-12
    """
    with ask.connect() as there:
        over = [ref for ref in jobs if there.parsed(Job, there.get(path_of("jobs", ref))).state.ended]
    if over and hold:
        raise InputError(f"--hold: {clean(over[0])} has ended, and is not stopped; submit it again, and hold that")
    running = [ref for ref in jobs if ref not in over]
    if running:
        stopped = "{} is being stopped, to start again"
        _each(ask, running, "/requeue", lambda job: stopped.format(clean(job.name)), {"hold": hold})
    if over:
        _each(ask, over, "/resubmit", lambda job: f"{clean(job.name)} is {job.state.value}: submitted again")


@asks_engine
def wait(
    ask: Asking,
    jobs: JobsArgument,
    timeout: Annotated[float | None, duration_option(help="Longest wait, 90s or 2h.", show_default="none")] = None,
) -> None:
    """Wait until jobs have ended. Ctrl-C leaves them alone.

    An array by the id of its first job, or by its name, is all of it.

    The exit code is that of the first, as they are given, that did not succeed; 0 when all did; 124 when time is out.

    \bExamples:
      hived wait train-12 && hived submit --vc vision -- python evaluate.py
      hived wait 12 13 14 --timeout 2h
    """
    until = None if timeout is None else time.monotonic() + timeout
    retry = Retrying()
    with ask.connect() as there:
        open_jobs = {key: job for ref in jobs for key, job in _with_its_array(there, ref)}
        order = list(open_jobs)
        ids = {ref: job.id for ref, job in open_jobs.items()}  # a name may come to mean a later job
        ended: dict[str, Job] = {}
        pause = _QUICKEST_S
        while True:
            for ref in [ref for ref, job in open_jobs.items() if job.state.ended]:
                ended[ref] = open_jobs.pop(ref)
                if not ask.printed(ended[ref].model_dump(mode="json"), one_of_many=True):
                    typer.echo(status_text(ended[ref]))
            if not open_jobs:
                break
            if until is not None and time.monotonic() >= until:
                names = ", ".join(clean(job.name) for job in open_jobs.values())
                note(f"out of time; not ended: {names}")
                raise typer.Exit(_OUT_OF_TIME)
            time.sleep(pause if until is None else max(0.0, min(pause, until - time.monotonic())))
            pause = min(1.5 * pause, _SLOWEST_S)
            for ref in list(open_jobs):
                open_jobs[ref] = there.parsed(Job, retry(partial(there.get, path_of("jobs", ids[ref]))))
    raise typer.Exit(next((code for ref in order if (code := exit_code(ended[ref]))), 0))


def _with_its_array(there: Engine, ref: str) -> Iterator[tuple[str, Job]]:
    """A job by what it is called; or all jobs of an array, that was named by the id of its first one or by its name."""
    job = there.parsed(Job, there.get(path_of("jobs", ref)))
    array = None if job.process is None else job.process.array
    if array is None or ref not in (str(array), job.name.removesuffix(f"-{job.id}")):
        yield ref, job
        return
    number = array
    while True:
        with suppress(NotFoundError):
            job = there.parsed(Job, there.get(path_of("jobs", str(number))))
            if job.process is not None and job.process.array == array:
                yield job.id, job
                number += 1
                continue
        return
