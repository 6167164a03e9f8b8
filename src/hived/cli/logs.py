"""``hived logs``: what a job prints, and following it through preemptions and restarts of the engine."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import typer

from hived.errors import NotFoundError
from hived.server.schema import Job, LogPage

from .asking import Asking, asks_engine
from .client import Engine, job_path
from .console import note
from .formats import ENDED, NOT_STARTED, WAITING, clean, standing
from .options import JobArgument
from .retrying import Retrying

_PAGE = 1_048_576  #: bytes, the most that the engine gives at once: what a page costs hardly depends on its length
_QUICKEST_S, _SLOWEST_S = 0.05, 1.0
#: the commands that may reach a terminal: colours, and clearing a line
_PRINTABLE = re.compile(r"\x1b\[[0-9;:]*m|\x1b\[[0-2]?K")
_CUT_OFF = re.compile(r"\x1b(\[[0-9;:?]*)?\Z")
#: every command to it, and every control character but line ends, tabs, carriage returns and backspaces
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
    with ask.connect({"kubernetes": "kubectl logs POD"}) as there:
        one = there.understood(Job, there.get(job_path(job)))
        out = Output(ask)
        if rank >= one.tasks:
            raise NotFoundError(f"--rank {rank}: {one.name} has {one.tasks} task(s), ranks 0 to {one.tasks - 1}")
        if attempt is not None and attempt > one.attempt:
            raise NotFoundError(f"--attempt {attempt}: {one.name} was started {one.attempt} time(s)")
        start = 0
        if one.attempt and tail is not None:
            start = show_tail(there, one, rank, attempt or one.attempt, tail, out)
        if follow:
            one = follow_job(there, one, out, rank=rank, attempt=attempt, start=start)
        elif one.attempt and tail is None:
            show_all(there, one, rank, attempt or one.attempt, out)
        if out.empty and tail != 0:
            _explain_silence(one)


def _explain_silence(job: Job) -> None:
    """Say why there is no output; of a job that never will have any, as an error."""
    name = clean(job.name)
    if job.state in ENDED and (job.attempt == 0 or job.exit_code == NOT_STARTED):
        raise NotFoundError(f"no output, since it was never started: {standing(job).removesuffix('.')}")
    if job.attempt == 0:
        note(f"{name} has not started yet" + (f": {clean(job.reason)}" if job.reason else ""))
    else:
        note(f"{name} has printed nothing" + ("" if job.state in ENDED else " yet"))


class Output:
    """Where output of jobs goes: as it is into a pipe; to a terminal without what could command it, colours aside."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask
        self._terminal = sys.stdout.isatty()
        self._rest = ""
        self.empty = True  #: whether there was none

    def page(self, page: LogPage) -> None:
        """One stretch more."""
        self.empty = self.empty and not page.text
        if self._ask.printed(page.model_dump(), one_of_many=True):
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
    """Text without what commands a terminal, colours and the signs that progress bars use aside."""
    return _CLEARED.sub(lambda match: match.group() if _PRINTABLE.fullmatch(match.group()) else "", text)


def show_all(there: Engine, job: Job, rank: int, attempt: int, out: Output) -> None:
    """All that there is."""
    offset = 0
    while (page := _page(there, job, rank, attempt, offset)).next > offset:
        out.page(page)
        offset = page.next


def show_tail(there: Engine, job: Job, rank: int, attempt: int, lines: int, out: Output) -> int:
    """The last ``lines`` lines; how far it came, in bytes."""
    back = _PAGE
    while True:
        pages = [_page(there, job, rank, attempt, -back)]
        while (page := _page(there, job, rank, attempt, pages[-1].next)).next > page.offset:
            pages.append(page)
        text = "".join(page.text for page in pages)
        if pages[0].offset == 0 or len(text.splitlines()) > lines:  # the first may lack its beginning
            break
        back *= 4
    kept = "".join(text.splitlines(keepends=True)[-lines:] if lines else [])
    end = pages[-1].next
    if kept:
        out.page(LogPage(text=kept, offset=max(0, end - len(kept.encode())), next=end, end=pages[-1].end))
    return end


def _page(there: Engine, job: Job, rank: int, attempt: int, offset: int) -> LogPage:
    path = job_path(str(job.id), "/log")
    return there.understood(LogPage, there.get(path, rank=rank, attempt=attempt, offset=offset, limit=_PAGE))


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
    """Print what ``job`` prints until it has ended, or only ``attempt``; the job as it is then.

    ``say`` tells what happens to it meanwhile; ``said``: the reason for its waiting that has been told.
    """
    retry, path = Retrying(), job_path(str(job.id))

    def looks() -> Iterator[Job]:
        """The job, again and again; why it waits is said meanwhile."""
        nonlocal said
        pause = _QUICKEST_S
        while True:
            now = there.understood(Job, retry(partial(there.get, path)))
            yield now
            if now.reason and now.reason != said and now.state in WAITING:
                said = now.reason
                say(f"{clean(now.name)} waits: {clean(now.reason)}")
            time.sleep(pause)
            pause = min(1.5 * pause, _SLOWEST_S)

    first = number = attempt or max(job.attempt, 1)
    while True:
        now = next(now for now in looks() if now.attempt >= number or now.state in ENDED)
        if now.attempt < number:
            return now
        if number > first:
            say(f"{clean(now.name)} runs again, attempt {number}:")
        _stream(there, now, rank, number, start if number == first else 0, out, retry)
        if attempt is not None:
            return now
        # it has ended, is back in the queue, or has been started again
        now = next(now for now in looks() if now.attempt > number or now.state in (*ENDED, *WAITING))
        if now.state in ENDED and now.attempt == number:
            return now
        if now.attempt == number:
            said = now.reason
            say(f"{clean(now.name)} is back in the queue" + (f": {clean(now.reason)}" if now.reason else ""))
        number += 1


def _stream(there: Engine, job: Job, rank: int, attempt: int, offset: int, out: Output, retry: Retrying) -> None:
    """All output of one task of one attempt, until it has ended."""
    path = job_path(str(job.id), "/log/stream")

    def begin() -> Iterator[tuple[str, Any]]:
        return there.stream(path, rank=rank, attempt=attempt, offset=offset)

    for name, value in retry.stream(begin):
        if name == "end":
            return
        if name == "log":
            page = there.understood(LogPage, value)
            if page.text:
                out.page(page)
            offset = page.next
