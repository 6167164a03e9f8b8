"""``hived events``: what happened, what happens, and the core's decision log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import typer
from rich.text import Text

from hived.errors import InputError, StorageError
from hived.server.schema import Events, Job, JobEvent

from .asking import Asking, asks_engine
from .client import Engine, job_path
from .completion import complete_job
from .console import note, output, patience
from .formats import clean, clock, timestamp
from .retrying import Retrying

_PAGE = 100


@asks_engine
def events(
    ask: Asking,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens.")] = False,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Of one job.", show_default="all", autocompletion=complete_job),
    ] = None,
    number: Annotated[int, typer.Option("-n", "--number", metavar="N", help="The last N; 0: none.", min=0)] = 20,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write the core's decision log there; - for standard output."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --export.")] = False,
) -> None:
    """Show what happened, in words; with --follow what happens, through restarts of the engine.

    With --export it is the core's decision log instead, from the first: lines of JSON that replay byte for byte.

    \bExamples:
      hived events
      hived events -f --job train-12
      hived events -f -o json | jq .text
      hived events --export decisions.jsonl
    """  # fmt: skip
    with ask.connect({"kubernetes": "kubectl get events"}) as there:
        if export is not None:
            if follow or job is not None:
                raise InputError("--export is of all that happened until now; leave --follow and --job away")
            _export(there, export, force)
            return
        ref = None if job is None else str(there.understood(Job, there.get(job_path(job))).id)
        first = _latest(there, ref, number)
        if not follow and ask.printed(first.model_dump()):
            return
        for event in first.events:
            _show(ask, event)
        if follow:
            _follow(ask, there, ref, first.last)
        elif not first.events and number:
            note("nothing happened yet")


def _latest(there: Engine, ref: str | None, number: int) -> Events:
    """The last ``number`` events."""
    answer = _events(there, ref, -1, max(1, min(number, _PAGE)))
    if number == 0:
        return Events(events=[], last=answer.last)
    if number <= _PAGE:
        return answer
    # more than a page: go through the numbers, which have no gaps, from far enough back; of one job, from the first
    kept: list[JobEvent] = []
    after = 0 if ref is not None else max(0, answer.last - number)
    while after < answer.last:
        page = _events(there, ref, after, _PAGE)
        if not page.events:
            break
        kept += page.events
        after = page.events[-1].seq
    return Events(events=kept[-number:], last=max(after, answer.last))


def _events(there: Engine, ref: str | None, after: int, limit: int) -> Events:
    return there.understood(Events, there.get("/v1/events", after=after, limit=limit, job=ref))


def _show(ask: Asking, event: JobEvent) -> None:
    if ask.printed(event.model_dump(), one_of_many=True):
        return
    job = "-" if event.job is None else str(event.job)
    kind, text = clean(event.kind), clean(event.text)
    console = output()
    if console.is_terminal:
        line = Text.assemble((clock(event.at), "dim"), f"  {job:>5}  ", (f"{kind:<12}", "cyan"), f"  {text}")
        console.print(line, soft_wrap=True)
    else:
        sys.stdout.write(f"{timestamp(event.at)}  {job:>5}  {kind:<12}  {text}\n")
        sys.stdout.flush()


def _follow(ask: Asking, there: Engine, ref: str | None, after: int) -> None:
    def begin() -> Iterator[tuple[str, Any]]:
        return there.stream("/v1/events/stream", after=after, job=ref)

    for name, value in Retrying().stream(begin):
        if name == "event" and (told := there.understood(JobEvent, value)).seq > after:
            _show(ask, told)
            after = told.seq


def _export(there: Engine, file: Path, force: bool) -> None:
    """All lines, or none: a file that is there is whole."""
    if str(file) == "-":
        sys.stdout.flush()
        for bits in there.raw("/v1/decisions"):
            sys.stdout.buffer.write(bits)
        sys.stdout.buffer.flush()
        return
    if file.exists() and not force:
        raise InputError(f"{file}: exists already; give --force to overwrite it")
    lines, draft = 0, file.parent / f".{file.name}.{token_hex(8)}.part"
    try:
        with draft.open("xb") as out:
            try:
                with patience("reading the decision log"):
                    for bits in there.raw("/v1/decisions"):
                        out.write(bits)
                        lines += bits.count(b"\n")
                out.flush()
                os.fsync(out.fileno())
                draft.replace(file)
            finally:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{file}: cannot be written ({error.strerror}); choose another --export") from None
    note(f"{file}: {lines:,} lines")
