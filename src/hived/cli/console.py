"""Where the command line prints: as wide as the terminal, and as wide as it takes where there is none."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

_PIPED_WIDTH = 10_000


class _Console(Console):
    """Prints what it is given: a name with a bracket or a colon in it is no markup and no emoji."""

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


def counted(number: int, word: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def show_verbs(context: typer.Context) -> None:
    """A group that was called without a verb shows which it has."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
