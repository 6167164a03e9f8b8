"""``hived ps``, ``explain``, ``cancel``, ``wait`` and ``logs``: jobs in lists or one by one, and their output."""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Column
from rich.text import Text

from hived.engine.states import PHASES, JobState, Phase
from hived.errors import ConflictError, ForbiddenError, HivedError, InputError, NotFoundError
from hived.server.schema import Explanation, Job, Jobs, LogPage
from hived.words import counted, limits_text

from .client import Engine, Retrying, path_of
from .console import full_screen, has_screen, messages, note
from .escaping import clean, clean_lines
from .formats import (
    NOT_STARTED,
    STATE_STYLES,
    Fact,
    Form,
    age,
    clock,
    columns,
    duration,
    exit_code,
    print_facts,
    print_table,
    priority,
    rich_table,
    runtime,
    status_text,
    time_of,
    timestamp,
    where,
)
from .options import (
    Asking,
    JobArgument,
    JobsArgument,
    NumberOption,
    OfUserOption,
    OfVcOption,
    SomeJobsArgument,
    WholeArrayOption,
    asks_engine,
    duration_option,
    state_option,
)

_PAGE = 100
_QUICKEST_S, _SLOWEST_S = 0.05, 1.0
_OUT_OF_TIME = 124  #: as in timeout(1)


@asks_engine
def ps(
    ask: Asking,
    every: Annotated[bool, typer.Option("--all", "-a", help="Ended jobs too.")] = False,
    vc: OfVcOption = None,
    user: OfUserOption = None,
    status: Annotated[
        list[str] | None,
        state_option("In this state; again for more", tuple(JobState), "--status", show_default="all but ended ones"),
    ] = None,
    number: NumberOption = 100,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="On the whole screen, every second; q leaves.")] = False,
) -> None:
    """List the jobs that run and wait: where they are, or why they are not there yet. On Kubernetes: affinity groups.

    GPUS: of all its tasks. PODS: there are, of those that there have to be. PRIO: opp for opportunistic. AGE: since it
    was submitted. RUN: how long it has run.

    \bExamples:
      hived ps
      hived ps --all -n 20
      hived ps --vc vision --status queued
      hived ps --user $USER
      hived ps -o json | jq '.jobs[].name'
    """
    asked, whose = _asked(status or [], every, ask.state), {"vc": vc, "user": user}
    with ask.connect() as there:
        if watch and ask.form is Form.TABLE and has_screen():
            retry = Retrying()
            full_screen(lambda _width, height: _picture(retry(lambda: _listed(there, asked, whose, number)), height))
            return
        answer = _listed(there, asked, whose, number)
        if ask.printed(answer.model_dump(mode="json")):
            return
    if not answer.jobs:
        note(
            "no jobs"
            + "".join(f" of {clean(name)}" for name in (user, vc) if name)
            + ("" if every or status else "; ended ones: hived ps --all")
        )
        return
    print_table(*job_table(answer.jobs))
    if answer.total > len(answer.jobs):
        note(f"{len(answer.jobs):,} of {answer.total:,} jobs; all of them: -n 0")


#: a question for jobs: in some states, or in those of a phase
_Asked = Mapping[str, Sequence[str]]


def _asked(states: Sequence[str], every: bool, folder: Path | None) -> list[_Asked]:
    """The questions for the jobs in these states, without any those that have not ended: a phase of them after another.

    Jobs with GPUs are first, so that they are cut off last. An engine of another version may have other states.
    """
    known = [state.value for state in JobState]
    states = [name.lower() for name in states]
    if folder is not None and (state := str(folder).lower()) in known:
        raise InputError(f"--state {folder}: names the engine's folder; for jobs in a state: --status {state}")
    for name in states:
        if name not in known:
            raise InputError(f"--status {name}: no state of a job; one of {', '.join(known)}")
    if states and every:
        raise InputError("--all and --status: give one of them")
    phases = (Phase.HOLDING, Phase.WAITING, *((Phase.ENDED,) if every or states else ()))
    if not states:
        return [{"phase": [phase]} for phase in phases]
    chosen = [[state for state in states if PHASES[JobState(state)] is phase] for phase in phases]
    return [{"state": some} for some in chosen if some]


def _listed(there: Engine, asked: Iterable[_Asked], whose: Mapping[str, str | None], number: int) -> Jobs:
    """At most ``number`` jobs (0: all), in the order of the questions."""
    jobs: list[Job] = []
    total = 0
    for one in asked:
        found, matching = _pages(there, one, whose, number - len(jobs) if number else math.inf)
        jobs += sorted(found, key=lambda job: int(job.id) if job.id.isdecimal() else 0)
        total += matching
    return Jobs(jobs=jobs, total=max(total, len(jobs)), next=None)


def _pages(there: Engine, asked: _Asked, whose: Mapping[str, str | None], most: float) -> tuple[list[Job], int]:
    """The latest jobs of a question, page by page, at most ``most``; and their total number."""
    jobs: list[Job] = []
    total, after = 0, None
    while True:
        limit = int(min(_PAGE, most - len(jobs)))
        page = there.parsed(Jobs, there.get("/v1/jobs", **asked, **whose, limit=max(1, limit), page=after))
        total = total or page.total
        jobs += page.jobs[:limit]
        after = page.next
        if after is None or len(jobs) >= most:
            return jobs, total


def _name(job: Job) -> str:
    """After its array and index, where it is of one: the end of a name is cut on a narrow terminal."""
    if job.process is None or job.process.array is None:
        return job.name
    return f"{job.process.array}_{job.process.array_index} {job.name}"


def job_table(jobs: list[Job], *, vc: bool = True) -> tuple[tuple[Column, ...], list[tuple[str | Text, ...]]]:
    """The columns and the rows of jobs; ``vc``: whether they are of several virtual clusters."""
    now, pods = time.time(), any(job.process is None for job in jobs)
    cells: dict[str, Callable[[Job], str | Text]] = {
        "ID": lambda job: job.id,
        "NAME": _name,
        "USER": lambda job: job.user or "-",
        "VC": lambda job: job.vc,
        "GPUS": lambda job: f"{job.gpus:,}",
        "PODS": lambda job: f"{len(job.tasks):,}/{job.size:,}",
        "PRIO": lambda job: "opp" if job.kind == "opportunistic" else priority(job.priority),
        "STATE": lambda job: Text(job.state, STATE_STYLES[job.state]),
        "AGE": lambda job: age(now - job.submitted_at),
        "RUN": lambda job: runtime(job, now),
        "WHERE/WHY": _where_or_why,
    }
    hidden = {"ID"} if pods else {"PODS"}  # a group has its name alone; a job has all its tasks from the start
    if not vc:
        hidden.add("VC")
    if not any(job.user for job in jobs):
        hidden.add("USER")
    shown = {name: cell for name, cell in cells.items() if name not in hidden}
    headings = columns(" ".join(shown), right="ID GPUS PODS PRIO AGE RUN", cut="WHERE/WHY")
    return headings, [tuple(cell(job) for cell in shown.values()) for job in jobs]


#: jobs beside one that are named
_NAMED = 3


def _where_or_why(job: Job) -> str:
    place, why = where(job.tasks), "; ".join(job.why)
    if job.state.ended:
        exit_code = None if job.process is None else job.process.exit_code
        return why or (f"exit code {exit_code}" if exit_code else "-")
    if job.beside and job.state.holds:
        names = ", ".join(job.beside[:_NAMED]) + (", ..." if len(job.beside) > _NAMED else "")
        limits = None if job.limits is None else limits_text(job.limits.memory, job.limits.share).removeprefix("is ")
        since = "" if job.limits is None else f" since {clock(job.limits.since)}"
        return f"{place} {'beside' if job.kind == 'guest' else 'with'} {names}" + (
            f", {limits}{since}" if limits else ""
        )
    if job.state.holds and job.kind == "opportunistic" and job.priority >= 0:
        if why:
            return f"{place} as opportunistic: {why}"
        return f"{place} before its turn" if job.early else place
    if job.turns is not None and job.state.holds:
        packed = f", beside {', '.join(job.turns.packed_with)}" if job.turns.packed_with else ""
        shared = f"{counted(job.turns.jobs, 'job')} on {counted(job.turns.gpus, 'GPU')}"
        return f"{place} sliced {job.turns.share:.0%}, {shared}{packed}"
    if job.state is JobState.RUNNING or not why:
        return place or "-"
    return f"{place} {why}" if place else why


def _picture(answer: Jobs, height: int) -> RenderableType:
    room = max(1, height - 4)
    title = Text(f"hived ps  {clock(time.time())}  {counted(answer.total, 'job')}, every second; q leaves\n", "dim")
    return Group(title, rich_table(*job_table(answer.jobs[:room])))


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
            ("command", clean(shlex.join(process.command))),
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
    found = _listed(there, _asked([], False, None), {"user": user, "vc": vc}, 0).jobs
    of = "".join(f" of {clean(name)}" for name in (user, vc) if name)
    if not found:
        note(f"no jobs{of} that have not ended")
    elif not yes:
        named = ", ".join(clean(job.name) for job in found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
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
    jobs = _listed(there, _asked([], False, None), {}, 0).jobs
    of = [(job.process.array, job.id) for job in jobs if job.process is not None]
    found = [number for array in arrays for each, number in of if each == array]
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
        float | None, duration_option(help="Longest run, with its unit: 90s, 30m, 2h or 1d.", show_default="as it is")
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


_PAGE_BYTES = 1_048_576  #: the engine's maximum: the cost of a page hardly depends on its length
#: the escape sequences that may reach a terminal: colours, and clearing a line
_PRINTABLE = re.compile(r"\x1b\[[0-9;:]*m|\x1b\[[0-2]?K")
_CUT_OFF = re.compile(r"\x1b(\[[0-9;:?]*)?\Z")
#: all escape sequences, and all control characters but line ends, tabs, carriage returns and backspaces
_CLEARED = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)


@asks_engine
def logs(
    ask: Asking,
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    rank: Annotated[int, typer.Option(metavar="R", help="Which task of a gang.", min=0)] = 0,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="Which start of the job, from 1.", min=1, show_default="the latest")
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", help="Only the last N lines.", min=0, show_default="all")
    ] = None,
) -> None:
    """Show what a job prints, standard output and standard error together.

    With --follow it goes on until the job has ended, through preemptions and restarts of the engine. Ctrl-C leaves the
    job alone.

    \bExamples:
      hived logs train
      hived logs -f train-12
      hived logs --tail 20 --rank 3 12
      hived logs --attempt 1 12 > first.log
    """
    with ask.connect() as there:
        one = there.parsed(Job, there.get(path_of("jobs", job)))
        out = Output(ask)
        if one.process is None:
            there.get(path_of("logs", one.id))  # its engine says where the output is
            return
        if rank >= one.size:
            raise NotFoundError(f"--rank {rank}: {one.name} has {one.size} task(s), ranks 0 to {one.size - 1}")
        started = one.process.attempt
        if attempt is not None and attempt > started:
            raise NotFoundError(f"--attempt {attempt}: {one.name} was started {started} time(s)")
        start = 0
        if started and tail is not None:
            start = show_tail(there, one, rank, attempt or started, tail, out)
        if follow:
            one = follow_job(there, one, out, rank=rank, attempt=attempt, start=start)
        elif started and tail is None:
            for page in log_pages(there, one, rank, attempt or started, 0):
                out.page(page)
        if out.empty and tail != 0:
            _explain_silence(one)


def _explain_silence(job: Job) -> None:
    """Print why there is no output; for a job that never will have any, raise the reason as an error."""
    name, started = clean(job.name), attempt_of(job)
    if job.state.ended and (started == 0 or exit_code(job) == NOT_STARTED):
        raise NotFoundError(f"no output, since it was never started: {status_text(job).removesuffix('.')}")
    if started == 0:
        note(f"{name} has not started yet" + _because(job))
    else:
        note(f"{name} has printed nothing" + ("" if job.state.ended else " yet"))


def attempt_of(job: Job) -> int:
    """How often a job was started."""
    return 0 if job.process is None else job.process.attempt


def _because(job: Job) -> str:
    return f": {clean('; '.join(job.why))}" if job.why else ""


class Output:
    """The sink of jobs' output: verbatim into a pipe; to a terminal without control sequences except colours."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask
        self._terminal = sys.stdout.isatty()
        self._rest = ""
        self.empty = True  #: whether there was no output

    def page(self, page: LogPage) -> None:
        """Write the next page."""
        self.empty = self.empty and not page.text
        if self._ask.printed(page.model_dump(mode="json"), one_of_many=True):
            return
        text = page.text
        if self._terminal:
            text = self._rest + text
            cut = _CUT_OFF.search(text)
            self._rest = cut.group() if cut and len(cut.group()) < 64 else ""
            text = harmless(text[: cut.start()] if cut and self._rest else text)
        sys.stdout.write(text)
        sys.stdout.flush()


def harmless(text: str) -> str:
    """Text without control sequences, except colours and the characters that progress bars use."""
    return _CLEARED.sub(lambda match: match.group() if _PRINTABLE.fullmatch(match.group()) else "", text)


def show_tail(there: Engine, job: Job, rank: int, attempt: int, lines: int, out: Output) -> int:
    """Print the last ``lines`` lines; the end offset, in bytes."""
    back = _PAGE_BYTES
    while True:
        pages = list(log_pages(there, job, rank, attempt, -back))
        text = "".join(page.text for page in pages)
        if not pages or pages[0].offset == 0 or len(text.splitlines()) > lines:  # the first line may be truncated
            break
        back *= 4
    kept = "".join(text.splitlines(keepends=True)[-lines:] if lines else [])
    end = pages[-1].next if pages else 0
    if kept:
        out.page(LogPage(text=kept, offset=max(0, end - len(kept.encode())), next=end, end=pages[-1].end))
    return end


def log_pages(there: Engine, job: Job, rank: int, attempt: int, offset: int) -> Iterator[LogPage]:
    """The output from ``offset`` (below 0: from the end) to its present end."""
    path = path_of("logs", job.id)
    while True:
        answer = there.get(path, rank=rank, attempt=attempt, offset=offset, limit=_PAGE_BYTES)
        page = there.parsed(LogPage, answer)
        if page.next <= page.offset:
            return
        yield page
        offset = page.next


def follow_job(
    there: Engine,
    job: Job,
    out: Output,
    *,
    rank: int = 0,
    attempt: int | None = None,
    start: int = 0,
    say: Callable[[str], None] = note,
    said: str = "",
) -> Job:
    """Print the output of ``job`` until it has ended, or only that of ``attempt``; the job at that time.

    ``say`` reports its changes meanwhile; ``said``: the last reported reason of its waiting.
    """
    retry, path = Retrying(), path_of("jobs", job.id)

    def polled() -> Iterator[Job]:
        """The job, polled with growing pauses; changed reasons of its waiting are reported."""
        nonlocal said
        pause = _QUICKEST_S
        while True:
            now = there.parsed(Job, retry(partial(there.get, path)))
            yield now
            if now.why and (why := "; ".join(now.why)) != said and now.state.waits:
                said = why
                say(f"{clean(now.name)} waits: {clean(why)}")
            time.sleep(pause)
            pause = min(1.5 * pause, _SLOWEST_S)

    first = number = attempt or max(attempt_of(job), 1)
    while True:
        now = next(now for now in polled() if attempt_of(now) >= number or now.state.ended)
        if attempt_of(now) < number:
            return now
        if number > first:
            say(f"{clean(now.name)} runs again, attempt {number}:")
        _stream(there, now, rank, number, start if number == first else 0, out, retry)
        if attempt is not None:
            return now
        # it has ended, is back in the queue, or has been started again
        now = next(now for now in polled() if attempt_of(now) > number or not now.state.holds)
        if now.state.ended and attempt_of(now) == number:
            return now
        if attempt_of(now) == number:
            said = "; ".join(now.why)
            say(status_text(now) if now.state.aside else f"{clean(now.name)} is back in the queue" + _because(now))
        number += 1


def _stream(there: Engine, job: Job, rank: int, attempt: int, offset: int, out: Output, retry: Retrying) -> None:
    """Print the output of one task of one attempt until the task has ended."""
    path = path_of("logs", job.id, "/stream")
    pages = retry.stream(lambda: there.stream(path, rank=rank, attempt=attempt, offset=offset))
    for name, value in pages:
        if name == "end":
            return
        if name == "log":
            page = there.parsed(LogPage, value)
            if page.text:
                out.page(page)
            offset = page.next


@asks_engine
def history(
    ask: Asking,
    vc: OfVcOption = None,
    user: OfUserOption = None,
    number: NumberOption = 100,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", "-S", metavar="TIME", help="Ended since then: 12h, 30d, 2026-11-01.", show_default="ever"
        ),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATE", help="In this state: succeeded, failed, cancelled, ended; repeat."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="With this in their names.", show_default="all")
    ] = None,
) -> None:
    """List jobs that have ended, the latest submitted last: how, when, and after how long.

    \bExamples:
      hived history -n 20
      hived history --user $USER --since 7d --status failed
      hived history -o json | jq '.jobs[].process.exit_code'
    """
    asked = _asked(status or [], False, ask.state) if status or ask.state is not None else []
    asked = asked if status else [{"phase": [Phase.ENDED]}]
    chosen = since is not None or name is not None
    with ask.connect() as there:
        answer = _listed(there, asked, {"vc": vc, "user": user}, 0 if chosen else number)
    if chosen:
        first = -math.inf if since is None else time_of("--since", since, time.time())
        jobs = [job for job in answer.jobs if (job.ended_at or math.inf) >= first and (name or "") in job.name]
        answer = Jobs(jobs=jobs[-number:] if number else jobs, total=len(jobs), next=None)
    if ask.printed(answer.model_dump(mode="json")):
        return
    if not answer.jobs:
        note("no such job has ended" if chosen or status or vc or user else "no job has ended yet")
        return
    now = time.time()
    rows = [
        (
            job.id,
            _name(job),
            job.user or "-",
            job.vc,
            f"{job.gpus:,}",
            Text(job.state, STATE_STYLES[job.state]),
            "-" if job.process is None or job.process.exit_code is None else str(job.process.exit_code),
            clock(job.submitted_at),
            "-" if job.started_at is None else clock(job.started_at),
            "-" if job.ended_at is None else clock(job.ended_at),
            runtime(job, now),
            "; ".join(job.why) or "-",
        )
        for job in answer.jobs
    ]
    names = "ID NAME USER VC GPUS STATE CODE SUBMITTED STARTED ENDED RUN WHY"
    print_table(columns(names, right="ID GPUS CODE RUN", cut="WHY"), rows)
    if answer.total > len(answer.jobs):
        note(f"{len(answer.jobs):,} of {answer.total:,} jobs; all of them: -n 0")
