"""``hived logs``: what jobs print, whole, its end, or as it comes."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import typer

from hived.errors import NotFoundError
from hived.server.schema import Job, LogPage
from hived.words import counted

from .client import Engine, Retrying, path_of
from .console import note
from .escaping import clean
from .formats import (
    NOT_STARTED,
    exit_code,
    size_text,
    status_text,
)
from .job_lists import note_one_of_array
from .options import (
    Asking,
    JobArgument,
    asks_engine,
)

_QUICKEST_S, _SLOWEST_S = 0.05, 1.0
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
    """Show what a job prints, standard output and standard error together; of a gang, what one of its tasks does.

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
            ranks = "rank 0" if one.size == 1 else f"ranks 0 to {one.size - 1}"
            raise NotFoundError(f"--rank {rank}: {one.name} has {counted(one.size, 'task')}, {ranks}")
        note_one_of_array(there, one, job)
        started = one.process.attempt
        if attempt is not None and attempt > started:
            raise NotFoundError(f"--attempt {attempt}: {one.name} was started {started} time(s)")
        if one.size > 1 and rank == 0:
            note(f"task 0 of {one.size:,}; others: --rank 1" + (f" to {one.size - 1}" if one.size > 2 else ""))
        if attempt is None and started > 1:
            note(
                f"of its start {started:,}; earlier ones: --attempt 1" + (f" to {started - 1:,}" if started > 2 else "")
            )
        start = 0
        if started and tail is not None:
            start = show_tail(there, one, rank, attempt or started, tail, out)
        if follow:
            one = follow_job(there, one, out, rank=rank, attempt=attempt, start=start)
        elif started and tail is None:
            out.begins(0)
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
        self._next = 0
        self.empty = True  #: whether there was no output

    def begins(self, offset: int) -> None:
        """Say where the next page begins, if all that was printed is there; below 0: not known."""
        self._next = offset

    def page(self, page: LogPage) -> None:
        """Write the next page."""
        self.empty = self.empty and not page.text
        if 0 <= self._next < page.offset:
            note(f"{size_text(page.offset - self._next)} before this are not kept (hived up --most-output)")
        self._next = page.next
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
    back, before = _PAGE_BYTES, -1
    while True:
        pages = list(log_pages(there, job, rank, attempt, -back))
        text = "".join(page.text for page in pages)
        first = pages[0].offset if pages else 0
        # the first line may be truncated; where what was printed first is not kept, more bytes are no more of it
        if first in (0, before) or len(text.splitlines()) > lines:
            break
        back, before = back * 4, first
    kept = "".join(text.splitlines(keepends=True)[-lines:] if lines else [])
    end = pages[-1].next if pages else 0
    out.begins(0 if len(text.splitlines()) <= lines else -1)
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
    out.begins(offset)
    pages = retry.stream(lambda: there.stream(path, rank=rank, attempt=attempt, offset=offset))
    for name, value in pages:
        if name == "end":
            return
        if name == "log":
            page = there.parsed(LogPage, value)
            if page.text:
                out.page(page)
            offset = page.next
