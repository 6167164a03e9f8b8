"""``hived ps`` and ``hived history``: jobs in lists."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Column
from rich.text import Text

from hived.engine.states import PHASES, JobState, Phase
from hived.errors import InputError
from hived.server.schema import Job, Jobs, Usage
from hived.words import counted, limits_text, ranges

from . import slurm
from .client import Engine, Retrying
from .console import full_screen, has_screen, note
from .escaping import clean
from .formats import (
    STATE_STYLES,
    Form,
    age,
    clock,
    columns,
    print_table,
    priority,
    rich_table,
    runtime,
    time_of,
    where,
)
from .options import (
    Asking,
    NumberOption,
    OfUserOption,
    OfVcOption,
    asks_engine,
    state_option,
)

_PAGE = 100


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
    each: Annotated[bool, typer.Option("--each", "-r", help="A line for each of an array that waits.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="On the whole screen, every second; q leaves.")] = False,
) -> None:
    """List the jobs that run and wait: where they are, or why they are not there yet. On Kubernetes: affinity groups.

    Those of an array that wait for the same are a line: 12_[3-40], with the GPUs of each.

    GPUS: of all its tasks. PODS: there are, of those that there have to be. PRIO: opp for opportunistic. AGE: since it
    was submitted. RUN: how long it has run.

    \bExamples:
      hived ps
      hived ps --all -n 20
      hived ps --vc vision --status queued
      hived ps --user $USER
      hived ps -o json | jq '.jobs[].name'
    """
    asked, whose = asked_for(status or [], every, ask.state), {"vc": vc, "user": user}
    with ask.connect() as there:
        folds = not each and ask.form is Form.TABLE
        if watch and ask.form is Form.TABLE and has_screen():
            retry = Retrying()
            full_screen(
                lambda _width, height: _picture(retry(lambda: listed(there, asked, whose, number, folds)), height, each)
            )
            return
        answer = listed(there, asked, whose, number, folds)
        if not answer.jobs:
            check_chosen(there, vc, user)
        if ask.printed(answer.model_dump(mode="json")):
            _note_more(answer)
            return
    if not answer.jobs:
        note(
            "no jobs"
            + "".join(f" of {clean(name)}" for name in (user, vc) if name)
            + ("" if every or status else "; ended ones: hived ps --all")
        )
        return
    print_table(*job_table(answer.jobs, each=each))
    _note_more(answer)


def _note_more(answer: Jobs) -> None:
    """Say of a list that it was cut, to who reads JSON too."""
    if answer.total > len(answer.jobs):
        note(f"{len(answer.jobs):,} of {answer.total:,} jobs; all of them: -n 0")


def check_chosen(there: Engine, vc: str | None, user: str | None) -> None:
    """Refuse a virtual cluster that there is not, and several where one is asked for: there are no jobs of these."""
    for option, value in (("--vc", vc), ("--user", user)):
        if value is not None and "," in value:
            raise InputError(f"{option} {value}: one at a time; leave it out for all")
    if vc is not None:
        known = [one.name for one in there.parsed(Usage, there.get("/v1/usage")).vcs]
        if vc not in known:
            raise InputError(f"--vc {vc}: there is no such virtual cluster; there are {', '.join(map(clean, known))}")


#: a question for jobs: in some states, or in those of a phase
Asked = Mapping[str, Sequence[str]]


def asked_for(states: Sequence[str], every: bool, folder: Path | None) -> list[Asked]:
    """The questions for the jobs in these states, without any those that have not ended: a phase of them after another.

    Jobs with GPUs are first, so that they are cut off last. An engine of another version may have other states.
    """
    known = [state.value for state in JobState]
    states = [name for given in states for name in given.lower().split(",")]
    if folder is not None and (state := str(folder).lower()) in known:
        raise InputError(f"--state {folder}: names the engine's folder; for jobs in a state: --status {state}")
    for name in states:
        if name not in known:
            here = f"; what Slurm calls so: {ours}" if (ours := slurm.STATES.get(name)) else ""
            raise InputError(f"--status {name}: no state of a job; one of {', '.join(known)}{here}")
    if states and every:
        raise InputError("--all and --status: give one of them")
    phases = (Phase.HOLDING, Phase.WAITING, *((Phase.ENDED,) if every or states else ()))
    if not states:
        return [{"phase": [phase]} for phase in phases]
    chosen = [[state for state in states if PHASES[JobState(state)] is phase] for phase in phases]
    return [{"state": some} for some in chosen if some]


def listed(
    there: Engine, asked: Iterable[Asked], whose: Mapping[str, object], number: int, folds: bool = False
) -> Jobs:
    """At most ``number`` jobs (0: all), in the order of the questions; ``folds``: lines of :func:`_folded`."""
    jobs: list[Job] = []
    total, lines = 0, 0
    for one in asked:
        found, matching, more = _pages(there, one, whose, number - lines if number else math.inf, folds)
        jobs += sorted(found, key=lambda job: int(job.id) if job.id.isdecimal() else 0)
        total, lines = total + matching, lines + more
    return Jobs(jobs=jobs, total=max(total, len(jobs)), next=None)


def _pages(
    there: Engine, asked: Asked, whose: Mapping[str, object], most: float, folds: bool
) -> tuple[list[Job], int, int]:
    """The latest jobs of a question, page by page, in at most ``most`` lines; their total number, and the lines."""
    lines: dict[object, list[Job]] = {}
    total, after = 0, None
    while True:
        limit = _PAGE if folds else int(min(_PAGE, most - len(lines)))
        page = there.parsed(Jobs, there.get("/v1/jobs", **asked, **whose, limit=max(1, limit), page=after))
        total = total or page.total
        more = False
        for job in page.jobs:
            line = _line_of(job) if folds else job.id
            if line in lines or len(lines) < most:
                lines.setdefault(line, []).append(job)
                more = more or line != job.id  # the line of an array goes on, perhaps, on the next page
        after = page.next
        if after is None or (len(lines) >= most and not more):
            return [job for of in lines.values() for job in of], total, len(lines)


def _name(job: Job, indexes: str = "") -> str:
    """After its array and index, where it is of one: the end of a name is cut on a narrow terminal."""
    if job.process is None or job.process.array is None:
        return job.name
    # of several, the name of the array: that of one means this one alone
    name = job.name.removesuffix(f"-{job.id}") if indexes else job.name
    return f"{job.process.array}_{indexes or job.process.array_index} {name}"


def _folded(jobs: Iterable[Job]) -> list[tuple[Job, str]]:
    """The first of those of an array that wait for the same, in place of them, and their indexes; "": one alone."""
    alike: dict[object, list[Job]] = {}
    for job in jobs:
        alike.setdefault(_line_of(job), []).append(job)
    return [(some[0], "" if len(some) == 1 else f"[{_indexes(some)}]") for some in alike.values()]


def _line_of(job: Job) -> object:
    """What jobs of one line have in common."""
    of = job.process
    waits = of is not None and of.array is not None and job.state.waits
    return (of.array, job.state, tuple(job.why), job.gpus, job.priority) if waits and of is not None else job.id


def _indexes(jobs: Iterable[Job]) -> str:
    return ranges(sorted(job.process.array_index or 0 for job in jobs if job.process is not None)).replace(" ", "")


def job_table(
    jobs: list[Job], *, vc: bool = True, each: bool = False
) -> tuple[tuple[Column, ...], list[tuple[str | Text, ...]]]:
    """The columns and the rows of jobs; ``vc``: whether they are of several virtual clusters.

    ``each``: a row for each of an array, also of those that wait for the same.
    """
    now, pods = time.time(), any(job.process is None for job in jobs)
    rows = [(job, "") for job in jobs] if each else _folded(jobs)
    indexes = {job.id: of for job, of in rows}
    cells: dict[str, Callable[[Job], str | Text]] = {
        "ID": lambda job: job.id,
        "NAME": lambda job: _name(job, indexes[job.id]),
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
    return headings, [tuple(cell(job) for cell in shown.values()) for job, _ in rows]


def note_one_of_array(there: Engine, job: Job, ref: str) -> None:
    """Say which one of an array is shown, where it was asked for by what means all of it to other verbs."""
    of = job.process
    if of is None or of.array is None or ref not in (str(of.array), job.name.removesuffix(f"-{job.id}")):
        return
    many = there.parsed(Jobs, there.get("/v1/jobs", array=of.array, limit=1)).total
    if many > 1:
        ref = clean(ref)
        note(f"{ref} is an array of {many:,}: this is {ref}_{of.array_index}; another by its index: {ref}_INDEX")


#: jobs beside one that are named
NAMED = 3


def _where_or_why(job: Job) -> str:
    place, why = where(job.tasks), "; ".join(job.why)
    if job.state.ended:
        exit_code = None if job.process is None else job.process.exit_code
        return why or (f"exit code {exit_code}" if exit_code else "-")
    if job.beside and job.state.holds:
        names = ", ".join(job.beside[:NAMED]) + (", ..." if len(job.beside) > NAMED else "")
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


def _picture(answer: Jobs, height: int, each: bool) -> RenderableType:
    room = max(1, height - 4)
    columns_, rows = job_table(answer.jobs, each=each)
    title = Text(f"hived ps  {clock(time.time())}  {counted(answer.total, 'job')}, every second; q leaves\n", "dim")
    return Group(title, rich_table(columns_, rows[:room]))


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
    until: Annotated[
        str | None, typer.Option("--until", "-E", metavar="TIME", help="Ended before then.", show_default="now")
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
      hived history --since 2026-11-01 --until 2026-12-01 -n 0
      hived history -o json | jq '.jobs[].process.exit_code'
    """
    asked = asked_for(status or [], False, ask.state) if status or ask.state is not None else []
    asked = asked if status else [{"phase": [Phase.ENDED]}]
    now = time.time()
    which: dict[str, object] = {
        "vc": vc,
        "user": user,
        "name": name,
        "ended_since": None if since is None else time_of("--since", since, now),
        "ended_before": None if until is None else time_of("--until", until, now),
    }
    with ask.connect() as there:
        answer = listed(there, asked, which, number)
    if ask.printed(answer.model_dump(mode="json")):
        _note_more(answer)
        return
    if not answer.jobs:
        note("no such job has ended" if status or any(which.values()) else "no job has ended yet")
        return
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
    _note_more(answer)
