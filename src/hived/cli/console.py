"""Where the command line prints: as wide as the terminal, and as wide as it takes where there is none."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from .formats import clean_lines

_PIPED_WIDTH = 10_000


class _Console(Console):
    """Prints what it is given: a name with a bracket or a colon in it is no markup and no emoji.

    Names are other people's text: signs in them that could command the terminal are written out, wherever they stand.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """As it is, but for what could command the terminal and is not rich's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> NoReturn:
        """Whoever read our output has left; :func:`hived.cli.app.main` knows what to do."""
        raise BrokenPipeError


def output() -> Console:
    """Standard output."""
    console = _Console(highlight=False, emoji=False)
    return console if console.is_terminal else _Console(highlight=False, emoji=False, width=_PIPED_WIDTH)


def messages() -> Console:
    """Standard error: progress and errors."""
    return _Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def numbers(first: str, headings: Iterable[str]) -> Table:
    """A table of numbers, which stand to the right, and of what they are in the first column."""
    table = Table(first, box=None)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def note(text: str) -> None:
    """One line for people beside the output proper, on standard error."""
    messages().print(text, markup=False, style="dim")


@contextmanager
def patience(words: str, after_s: float = 1.0) -> Iterator[None]:
    """A spinner on standard error for what takes longer than ``after_s``; none where that is no terminal."""
    console = messages()
    if not console.is_terminal:
        yield
        return
    status = console.status(words)
    timer = threading.Timer(after_s, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # so that it does not start what has been stopped
        status.stop()


def show_verbs(context: typer.Context) -> None:
    """A group that was called without a verb shows which it has."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
