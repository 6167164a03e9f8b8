"""``hived replay``: an exported event log carried out again, and compared byte for byte."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from hived.cluster.cluster import Cluster
from hived.cluster.replay import ReplayError
from hived.cluster.replay import replay as carry_out
from hived.errors import InputError
from hived.words import counted

from .console import messages

#: how the line begins with which an engine opens its core
_OPENS = '{"is":"Opened",'


def replay(
    log: Annotated[Path, typer.Argument(help="What hived events --export wrote; - for standard input.")],
) -> None:
    """Carry an event log out again, and compare every decision byte for byte.

    Every start of an engine opens a log of its own; they are replayed one after the other. Exit code 0: all the same.

    \b
    Examples:
      hived events --export decisions.jsonl && hived replay decisions.jsonl
      hived events --export - | hived replay -
    """
    starts = lines = 0
    with messages().status("replaying") as status:
        for first, part in _parts(_lines(log)):
            try:
                carry_out(part, Cluster)
            except ReplayError as error:
                # its numbers count from the start of the part
                where = f"{log}:{first + error.number - 1}"
                raise InputError(f"{where}: not the same: {error.what}\n  {error}") from None
            starts, lines = starts + 1, first - 1 + len(part)
            status.update(f"replaying: {counted(lines, 'line')}")
    if not starts:
        raise InputError(f"{log}: is empty; export a log with: hived events --export FILE")
    typer.echo(f"{counted(lines, 'line')} of {counted(starts, 'start')} of an engine: byte for byte the same")


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


def _parts(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The log of each start: the number of its first line (1-based), and its lines."""
    first, part = 1, []  # type: int, list[str]
    for number, line in enumerate(lines, 1):
        if line.startswith(_OPENS) and part:
            yield first, part
            first, part = number, []
        part.append(line)
    if part:
        yield first, part
