"""``hived replay``: an exported event log carried out again, and compared byte for byte."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from hived.cluster.cluster import Cluster
from hived.errors import InputError
from hived.events.replay import ReplayError
from hived.events.replay import replay as carry_out
from hived.words import counted

from .console import messages

#: how the line begins with which an engine opens its core
_OPENS = '{"is":"Opened",'


def replay(
    log: Annotated[
        Path,
        typer.Argument(help="What hived events --export or hived serve --event-log wrote; - for standard input."),
    ],
) -> None:
    """Carry an event log out again, and compare every decision byte for byte.

    Every start of an engine opens a log of its own; they are replayed one after the other. Exit code 0: all the same.

    \b
    Examples:
      hived events --export decisions.jsonl && hived replay decisions.jsonl
      hived events --export - | hived replay -
    """
    starts = line = 0

    def numbered() -> Iterator[str]:
        nonlocal line
        for line, text in enumerate(_lines(log), 1):  # noqa: B007  # the number is for the messages below
            yield text

    def start_of(text: str) -> int:
        nonlocal starts
        starts += text.startswith(_OPENS)
        return starts

    with messages().status("replaying") as status:
        for _, start in groupby(numbered(), start_of):
            try:
                carry_out(start, Cluster)
            except ReplayError as error:  # its numbers count from the start
                raise InputError(f"{log}:{line}: not the same: {error.what}\n  {error}") from None
            status.update(f"replaying: {counted(line, 'line')}")
    if not line:
        raise InputError(f"{log}: is empty; export a log with: hived events --export FILE")
    typer.echo(f"{counted(line, 'line')} of {counted(starts, 'start')} of an engine: byte for byte the same")


def _lines(log: Path) -> Iterator[str]:
    if str(log) == "-":
        yield from sys.stdin
        return
    try:
        with log.open(encoding="utf-8") as file:
            yield from file
    except OSError as error:
        raise InputError(f"{log}: cannot be read ({error.strerror}); give what hived events --export wrote") from None
    except UnicodeDecodeError:
        raise InputError(f"{log}: is no event log (not UTF-8); give what hived events --export wrote") from None
