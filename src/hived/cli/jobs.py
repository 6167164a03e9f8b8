"""Verbs for jobs that there are: explain, cancel, hold, release, requeue, edit, priority and wait."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Annotated, NamedTuple

import typer

from hived.engine.states import JobState
from hived.engines.local import terminal
from hived.engines.submission import ARRAY, indexes_of, text_of
from hived.errors import ConflictError, ForbiddenError, HivedError, InputError, NotFoundError
from hived.server.schema import MOST_AT_ONCE, Events, Explanation, Job, JobOutcomes
from hived.words import counted

from .client import Engine, Retrying, path_of
from .console import messages, note
from .escaping import clean, clean_lines
from .formats import (
    Fact,
    Form,
    duration,
    exit_code,
    print_facts,
    priority,
    status_text,
    timestamp,
)
from .job_lists import NAMED, asked_for, check_chosen, listed, note_one_of_array
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
    state_option,
)

_SOME_OF_AN_ARRAY = re.compile(r"(.+)_\[([0-9,:-]+)\]")
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
        # on Kubernetes there are no arrays, and it may be of a pod that is of no job
        is_process = explanation.job.isdecimal()
        known = there.parsed(Job, there.get(path_of("jobs", job))) if details or is_process else None
        if known is not None:
            note_one_of_array(there, known, job)
        ran = _ran_on(there, known) if details and known is not None and known.state.ended else None
    if not ask.printed(answer):
        typer.echo(clean_lines(explanation.text.rstrip("\n")))
        if details and known is not None:
            typer.echo()
            print_facts([*_facts(known), *([] if ran is None else [("it ran on", ran)])])


def _ran_on(there: Engine, job: Job) -> str | None:
    """Where a job that has ended ran last, by its events; None: that is not known, or it never ran."""
    found = there.parsed(Events, there.get("/v1/events", job=job.id, limit=_EVENTS)).events
    last = next((clean(event.text) for event in reversed(found) if event.kind == "started"), None)
    return None if last is None else last.removeprefix(f"{clean(job.name)} runs on ")


def _facts(job: Job) -> list[Fact]:
    """What a job has asked for, and what has become of it."""
    facts: list[Fact] = [
        ("id", job.id),
        ("of", f"{clean(job.user or '-')} in {clean(job.vc)}, priority {priority(job.priority)}"),
    ]
    if (process := job.process) is not None:
        limit = "none" if process.time_limit_s is None else duration(process.time_limit_s)
        if process.time_limit_s is not None and job.state.holds and job.started_at is not None:
            limit += f", {duration(max(0.0, job.started_at + process.time_limit_s - time.time()))} left"
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
        if process.options:
            facts.append(("options", clean(" ".join(process.options))))
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
    status: Annotated[
        list[str] | None,
        state_option("In this state; again for more", tuple(JobState), "--status", show_default="all but ended ones"),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="All that were submitted under this name.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that have not ended.")] = False,
    array: WholeArrayOption = False,
    now: Annotated[bool, typer.Option("--now", help="At once, without their grace, also where they are told.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Withdraw jobs that wait, and stop those that run: SIGTERM, after their grace SIGKILL.

    By name, or those of a user, of a virtual cluster, in a state, of one name, or all, after a question. An array by
    the id of its first job, or by its name, is all of it; 12_3 is index 3 of array 12. One that cannot be cancelled
    does not keep the others from it; the exit code is then of the first such, as they are given.

    \bExamples:
      hived cancel train-12
      hived cancel 12 13 14
      hived cancel 12_3
      hived cancel 12_[3-5]
      hived cancel --user $USER --vc vision
      hived cancel $(hived submit -q --vc vision -- sleep 60)
    """
    by_sort = bool(every or user or vc or status or name)
    if by_sort is bool(jobs):
        ways = "--user, --vc, --status, --name or --all"
        raise InputError(f"name jobs, or say which: {ways}" + (", not both" if jobs else ""))
    if by_sort and array:
        raise InputError("--array is for jobs that are named; leave it out, or name one of the array")
    if every and (user or vc or status or name):
        raise InputError("--all is every user's of every virtual cluster; leave it out, or what else says which")
    with ask.connect() as there:
        sort = _Sort(user, vc, status or (), name)
        if by_sort:
            found = _chosen(there, sort, yes)
            chosen = _Chosen(found, {job.id for job in found})
        else:
            chosen = _named(there, jobs or (), array)
    said = {True: "is cancelled", False: "is being stopped"}

    def told(job: Job) -> str:
        return f"{clean(job.name)} {said[job.state == 'cancelled']}"

    # what is held first, and then what waits: none starts on what another one has given up; and of what is held those
    # first that were submitted later, which may wait for the others
    ordered = sorted(chosen.jobs, key=_withdrawn_first)
    _each(ask, chosen, _at_once("cancel", now=now), told, ordered)


def _withdrawn_first(job: Job) -> tuple[bool, bool, int]:
    is_held, number = job.state is JobState.HELD, int(job.id) if job.id.isdecimal() else 0
    return job.state.holds, not is_held, -number if is_held else number


class _Sort(NamedTuple):
    """Which jobs are meant: all, but for what is given here."""

    user: str | None
    vc: str | None
    states: Sequence[str]
    name: str | None  #: that they were submitted under


def _chosen(there: Engine, sort: _Sort, yes: bool) -> list[Job]:
    """The jobs of a sort that have not ended, once that was agreed to."""
    whose = {"user": sort.user, "vc": sort.vc, "name": sort.name}
    found = [
        job
        for job in listed(there, asked_for(sort.states, False, None), whose, 0).jobs
        if not job.state.ended and sort.name in (None, job.name.removesuffix(f"-{job.id}"))
    ]
    of = "".join(f" of {clean(name)}" for name in (sort.user, sort.vc) if name)
    of += f" called {clean(sort.name)}" if sort.name else ""
    of += f" in state {clean(', '.join(sort.states))}" if sort.states else ""
    if not found:
        check_chosen(there, sort.vc, sort.user)
        note(f"no jobs{of} that have not ended")
    elif not yes:
        named = ", ".join(clean(job.name) for job in found[:NAMED]) + (", ..." if len(found) > NAMED else "")
        what = f"cancel {counted(len(found), 'job')}{of} ({named})"
        if not sys.stdin.isatty():
            raise InputError(f"--yes is needed to {what} without a question")
        if not typer.confirm(f"{what}?", err=True):
            raise InputError("nothing was cancelled")
    return found


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Jobs that something is to be done to, in the order in which they were named."""

    jobs: Sequence[Job]
    #: ids of those of an array or a sort, of which those are meant that can
    of_many: Collection[str] = ()
    #: of names that are no job's, each after how many of the jobs
    unknown: Sequence[tuple[int, HivedError]] = ()


def _named(
    there: Engine,
    refs: Sequence[str],
    whole: bool,
    may: Callable[[JobState], bool] = lambda state: not state.ended,
    again: bool = False,
) -> _Chosen:
    """The jobs of these names; an array by the id of its first job or its name is those of it that ``may``.

    ``whole``: so it is by any job of it. ``again``: those of it too that have ended, and not succeeded. ``12_[3-5,7]``,
    as hived ps has it, is so many of array 12, and ``train_[3-5,7]`` of the one of that name.
    """
    found: dict[str, Job] = {}
    of_many: set[str] = set()
    unknown: list[tuple[int, HivedError]] = []

    def refuse(error: HivedError) -> None:
        _complain(error)
        unknown.append((len(found), error))

    for ref, known in _each_named(there, refs):
        try:
            job = known or there.parsed(Job, there.get(path_of("jobs", ref)))
        except NotFoundError as error:  # it keeps no other from it
            refuse(error)
            continue
        array = _array_of(job, ref, whole)
        if array is None:
            found.setdefault(job.id, job)
            of_many.discard(job.id)
            continue
        those = [
            one
            for one in listed(there, asked_for([], again, None), {"array": array}, 0).jobs
            if one.state is not JobState.SUCCEEDED
        ]
        those.sort(key=lambda one: int(one.id))
        if not those:
            how = "succeeded" if again else "ended"
            refuse(
                ConflictError(
                    f"all of array {array} has {how}; hived requeue {array}_INDEX makes a new job of one of it"
                )
            )
        # where it can be done to none of them, it is said of the first why
        for one in [one for one in those if may(one.state)] or those[:1]:
            if found.setdefault(one.id, one) is one:
                of_many.add(one.id)
    return _Chosen([*found.values()], of_many, unknown)


def _each_named(there: Engine, refs: Iterable[str]) -> Iterator[tuple[str, Job | None]]:
    """Names of jobs, one by one; and the jobs, where many of an array were named, and are read together."""
    for given in refs:
        some = _one_by_one(there, given)
        known: dict[str, Job] = {}
        if len(some) > _MANY:
            name = some[0].rpartition("_")[0]
            if (array := _array_called(there, name)) is not None:
                those = listed(there, asked_for([], True, None), {"array": array}, 0).jobs
                known = {f"{name}_{job.process.array_index}": job for job in those if job.process is not None}
        yield from ((ref, known.get(ref)) for ref in some)


def _one_by_one(there: Engine, ref: str) -> Sequence[str]:
    """Names of the jobs of ``12_[3-5,7]``, or ``train_[3-5,7]``; of anything else, itself."""
    match = _SOME_OF_AN_ARRAY.fullmatch(ref)
    if match is None or re.fullmatch(ARRAY, match[2]) is None:
        return [ref]
    name = match[1]
    if not name.isdecimal():  # by its id: train_3 may be what index 3 was submitted again as
        name = str(_array_called(there, name) or name)
    return [f"{name}_{index}" for index in indexes_of(match[2])[0]]


def _array_called(there: Engine, name: str) -> int | None:
    """The array of the job of this name; None: there is none."""
    try:
        process = there.parsed(Job, there.get(path_of("jobs", name))).process
    except NotFoundError:
        return None
    return None if process is None else process.array


def _array_of(job: Job, ref: str, whole: bool) -> int | None:
    """The array that a name means as a whole; None: the job alone. ``whole``: it is to be the array."""
    array = None if job.process is None else job.process.array
    if whole and array is None:
        raise InputError(f"--array: {clean(job.name)} is of no array")
    return array if whole or ref in (str(array), job.name.removesuffix(f"-{job.id}")) else None


#: events of a job that are looked at, the latest
_EVENTS = 100
#: that many jobs are not said one by one
_MANY = 12
#: what is done to jobs, and for each, in their order, how it is then, or why it refuses
_Act = Callable[[Engine, Sequence[Job]], Iterator[Job | HivedError]]


def _at_once(what: str, **how: object) -> _Act:
    """An operation that the engine does to many jobs in one turn."""

    def act(there: Engine, jobs: Sequence[Job]) -> Iterator[Job | HivedError]:
        for first in range(0, len(jobs), MOST_AT_ONCE):
            some = [job.id for job in jobs[first : first + MOST_AT_ONCE]]
            answer = there.parsed(JobOutcomes, there.post(f"/v1/jobs/{what}", {"jobs": some, **how}))
            for one in answer.outcomes:
                if one.job is not None:
                    yield one.job
                elif one.error is not None:
                    yield there.refusal(one.error)

    return act


def _one_after_another(what: str, body: object = None) -> _Act:
    """An operation that the engine does to one job at a time."""

    def act(there: Engine, jobs: Sequence[Job]) -> Iterator[Job | HivedError]:
        for job in jobs:
            try:
                yield there.parsed(Job, there.post(path_of("jobs", job.id, f"/{what}"), body))
            except (InputError, ForbiddenError) as error:
                yield error

    return act


def _each(ask: Asking, chosen: _Chosen, act: _Act, said: Callable[[Job], str], jobs: Sequence[Job] = ()) -> None:
    """Have something done to jobs; one that refuses keeps no other from it. ``jobs``: the same in another order."""
    with ask.connect() as there:
        _end(chosen, _tell(ask, there, chosen, jobs or chosen.jobs, act, said))


def _tell(
    ask: Asking, there: Engine, chosen: _Chosen, jobs: Sequence[Job], act: _Act, said: Callable[[Job], str]
) -> dict[str, HivedError | None]:
    """Have something done to some of the chosen jobs, and say so; by their ids, why they refused, or None."""
    refused: dict[str, HivedError | None] = {}
    states = Counter[str]()
    heard = True
    for job, told in zip(jobs, act(there, jobs), strict=True):
        if isinstance(told, HivedError):
            refused[job.id] = told
            if not _is_expected(chosen, job, told):
                _complain(told)
            continue
        refused[job.id] = None
        states[clean(told.state)] += 1
        try:
            if heard and not ask.printed(told.model_dump(mode="json"), one_of_many=True) and len(jobs) <= _MANY:
                typer.echo(said(told))
        except BrokenPipeError:  # nobody reads on: what was asked for is done all the same
            heard = False
    if not heard:
        raise BrokenPipeError
    if len(jobs) > _MANY and states and ask.form is Form.TABLE:
        typer.echo(f"{counted(states.total(), 'job')}: {', '.join(f'{many:,} {of}' for of, many in states.items())}")
    return refused


def _end(chosen: _Chosen, refused: Mapping[str, HivedError | None]) -> None:
    """End with the exit code of the first, as they were named, that it could not be done to."""
    failed = [*chosen.unknown]
    expected = None
    for number, job in enumerate(chosen.jobs):
        if (error := refused[job.id]) is None:
            continue
        if _is_expected(chosen, job, error):
            expected = expected or error
        else:
            failed.append((number, error))
    if expected is not None and not failed and all(refused.values()):
        raise expected
    if failed:
        raise typer.Exit(min(failed, key=itemgetter(0))[1].exit_code)


def _is_expected(chosen: _Chosen, job: Job, error: HivedError) -> bool:
    """Whether it is one of many, of which those are meant that can."""
    return isinstance(error, ConflictError) and job.id in chosen.of_many


def _complain(error: HivedError) -> None:
    messages().print(f"hived: {clean(str(error))}", markup=False)


@asks_engine
def hold(ask: Asking, jobs: JobsArgument, array: WholeArrayOption = False) -> None:
    """Keep jobs that wait out of line, until hived release.

    \bExamples:
      hived hold train-12
      hived hold 12 13 14
    """
    with ask.connect() as there:
        chosen = _named(there, jobs, array, lambda state: state.waits)
    _each(ask, chosen, _at_once("hold"), status_text)


@asks_engine
def release(ask: Asking, jobs: JobsArgument, array: WholeArrayOption = False) -> None:
    """Let held jobs go into line again.

    \bExamples:
      hived release train-12
      hived release 12 13 14
    """
    with ask.connect() as there:
        chosen = _named(there, jobs, array, lambda state: state is JobState.HELD)
    _each(ask, chosen, _at_once("release"), status_text)


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
    with ask.connect() as there:
        chosen = _named(there, [job], False, lambda state: state.waits)
    act = _one_after_another("priority", {"priority": priority})
    _each(ask, chosen, act, lambda job: f"{clean(job.name)}: priority {job.priority}")


@asks_engine
def edit(
    ask: Asking,
    jobs: JobsArgument,
    array: Annotated[
        bool,
        typer.Option(
            "--array",
            help="With all of their arrays that have not ended. --array %N: so many of an array at a time; %0: all.",
        ),
    ] = False,
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
    released. The priority is changed by hived priority. Of an array it can be changed how many are in line or at work
    at a time; those beyond that run on.

    \bExamples:
      hived edit train-12 --gpus 2 --time-limit 4h
      hived edit 12 13 --no-time-limit
      hived edit 12_3 --time-limit 8h
      hived edit 12 --array %4
    """
    wish = {"gpus": gpus, "tasks": nodes, "time_limit_s": time_limit, "retries": retries, "grace_s": grace}
    body = {name: value for name, value in wish.items() if value is not None}
    if no_time_limit:
        body["no_time_limit"] = True
    if any(ref.startswith("%") for ref in jobs):
        _limit_array(ask, jobs, array and not body)
        return
    if not body:
        options = "--gpus, --nodes, --time-limit, --retries or --grace; for so many of an array at a time: --array %4"
        raise InputError(f"nothing to change; give {options}")
    only_limit = body.keys() <= {"time_limit_s", "no_time_limit"}
    if wrong := next((ref for ref in jobs if "=" in ref), None):
        raise InputError(f"{wrong}: is no job; options say what changes, --time-limit 4h")
    with ask.connect() as there:
        chosen = _named(there, jobs, array, lambda state: state.waits or (only_limit and not state.ended))
    _each(ask, chosen, _one_after_another("edit", body), _edited)


def _limit_array(ask: Asking, words: Sequence[str], alone: bool) -> None:
    """Have so many of an array in line or at work at a time; ``words``: the array, and ``%4``."""
    most = next(word for word in words if word.startswith("%"))
    refs = [word for word in words if word != most]
    if not (alone and len(refs) == 1 and len(words) == 2 and re.fullmatch("%[0-9]{1,6}", most)):
        raise InputError(
            f"{most}: is of one array and goes alone, hived edit 12 --array %4; of all of it at a time: %0"
        )
    with ask.connect() as there:
        answer = there.post(path_of("jobs", refs[0], "/edit"), {"at_a_time": int(most[1:])})
        job = there.parsed(Job, answer)
    if not ask.printed(answer):
        many = f"at most {int(most[1:]):,} of it" if int(most[1:]) else "all of it may be"
        number = None if job.process is None else job.process.array
        typer.echo(f"array {number}: {many} in line or at work at a time")


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
    a new job, with the command and the environment of that one. An array by the id of its first job, or by its name,
    is those of it that run, have failed, or were cancelled; those that have ended become an array again, of which as
    many may be at work at a time.

    \bExamples:
      hived requeue train-12
      hived requeue --hold train-12
      hived requeue 12_[3-5]
    """

    def may(state: JobState) -> bool:
        return state.holds or state.ended

    found_there = Counter[bool]()

    def finds(job: Job) -> str:
        if job.finds_files is not None:
            found_there[job.finds_files] += 1
        gone = "; what the one before kept in its HIVED_JOB_DIR is deleted by now (hived up --keep)"
        return gone if job.finds_files is False else ""

    stopped = "{} is being stopped, to " + ("be held" if hold else "start again")
    with ask.connect() as there:
        found = _named(there, jobs, False, may, again=not hold)
        over = [job for job in found.jobs if job.state.ended]
        if over and hold:
            why = "has ended, and is not stopped; submit it again, and hold that"
            raise InputError(f"--hold: {clean(over[0].id)} {why}")
        running = [job for job in found.jobs if not job.state.ended]
        alone, together = _by_array(over)
        again = _tell(
            ask,
            there,
            found,
            alone,
            _one_after_another("resubmit"),
            lambda job: f"{clean(job.name)} is {job.state.value}: submitted again" + finds(job),
        )
        for those in together:
            again |= _resubmitted(ask, there, those, finds)
        refused: dict[str, HivedError | None] = {}
        # who may not submit gets what runs stopped for nothing
        if forbidden := next((error for error in again.values() if isinstance(error, ForbiddenError)), None):
            refused = dict.fromkeys((job.id for job in running), forbidden)
            if running:
                note(f"so none of those that run was stopped ({counted(len(running), 'job')})")
        else:
            refused = _tell(
                ask, there, found, running, _at_once("requeue", hold=hold), lambda job: stopped.format(clean(job.name))
            )
    if found_there[True]:
        note("what the ended one has kept in its HIVED_JOB_DIR is in HIVED_PREVIOUS_JOB_DIR of the new one")
    _end(found, refused | again)


#: characters of the indexes of an array
_MOST_INDEXES = 4_000


def _by_array(jobs: Sequence[Job]) -> tuple[list[Job], list[list[Job]]]:
    """Those that are submitted again by themselves, and those as an array each: they ask for the same."""
    found: dict[object, list[Job]] = {}
    for job in jobs:
        process = job.process
        if process is None or process.array is None:
            found[job.id] = [job]
            continue
        size = (job.gpus, job.size, job.priority, process.time_limit_s, process.max_retries)
        parts = found.setdefault((process.array, *size), [])
        parts.append(job)
    groups = [list(part) for those in found.values() for part in _parts(sorted(those, key=_index))]
    return [job for part in groups if len(part) == 1 for job in part], [part for part in groups if len(part) > 1]


def _index(job: Job) -> int:
    return (job.process.array_index if job.process is not None else None) or 0


def _parts(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Jobs of an array by index, in parts whose indexes have room in a request."""
    if len(jobs) > 1 and len(text_of([*map(_index, jobs)])) > _MOST_INDEXES:
        half = len(jobs) // 2
        yield from _parts(jobs[:half])
        yield from _parts(jobs[half:])
    else:
        yield jobs


def _resubmitted(
    ask: Asking, there: Engine, jobs: Sequence[Job], finds: Callable[[Job], str]
) -> dict[str, HivedError | None]:
    """Have some of an array submitted again as an array, and say so; by their ids, why that was refused, or None."""
    array, indexes = None if jobs[0].process is None else jobs[0].process.array, text_of([*map(_index, jobs)])
    try:
        answer = there.post(path_of("jobs", jobs[0].id, "/resubmit"), {"indexes": indexes})
    except (InputError, ForbiddenError) as error:
        _complain(error)
        return {job.id: error for job in jobs}
    new = there.parsed(Job, answer)
    if not ask.printed(answer, one_of_many=True):
        name = clean(new.name.removesuffix(f"-{new.id}"))
        now = f"array {new.id}, {name}, as many of it at a time"
        typer.echo(f"{len(jobs):,} of array {array} ({indexes}) are submitted again: {now}{finds(new)}")
    return dict.fromkeys((job.id for job in jobs), None)


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
        open_jobs = {
            key: job for given in jobs for ref in _one_by_one(there, given) for key, job in _with_its_array(there, ref)
        }
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
    array = _array_of(job, ref, False)
    if array is None:
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
