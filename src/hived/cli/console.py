"""The output of the command line: lines, tables, or a full screen that is redrawn until the user leaves."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Column, Table

from .escaping import clean_lines

_PIPED_WIDTH = 10_000


class _Console(Console):
    """Prints text verbatim: brackets and colons in names are no markup and no emoji.

    Names are untrusted text: characters in them that could control the terminal are escaped everywhere.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Verbatim, with control characters escaped except rich's own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> NoReturn:
        """The reader of our output has left; :func:`hived.cli.app.main` handles it."""
        raise BrokenPipeError


def output() -> Console:
    """Standard output."""
    console = _Console(highlight=False, emoji=False)
    return console if console.is_terminal else _Console(highlight=False, emoji=False, width=_PIPED_WIDTH)


def messages() -> Console:
    """Standard error: progress and errors."""
    return _Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


class _Lossy(io.FileIO):
    """A file that drops what it cannot write for want of space."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return len(memoryview(data))


def outlive_a_full_disk() -> None:
    """Lose lines of standard output and error, rather than end, while the disk that they go to is full."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:  # the real one
            lossy = io.BufferedWriter(_Lossy(stream.fileno(), "wb", closefd=False))
            text = io.TextIOWrapper(
                lossy, stream.encoding, stream.errors, None, stream.line_buffering, stream.write_through
            )
            setattr(sys, name, text)


def numbers(first: str, headings: Iterable[str]) -> Table:
    """A table of right-aligned numbers, with their labels in the first column."""
    return Table(first, *(Column(heading, justify="right") for heading in headings), box=None)


def note(text: str, console: Console | None = None) -> None:
    """One line for people beside the output proper, on standard error; ``console``: one that something is drawn on."""
    (console or messages()).print(text, markup=False, style="dim")


@contextmanager
def patience(
    words: str, after_s: float = 1.0, late: Callable[[Console], None] | None = None, late_s: float = 0.0
) -> Iterator[None]:
    """A spinner on standard error for steps longer than ``after_s``; none if that is no terminal.

    ``late`` is called for those that are longer than ``late_s``, on any standard error.
    """
    console = messages()
    with ExitStack() as stack:
        if console.is_terminal:
            status = console.status(words)
            stack.callback(status.stop)
            stack.enter_context(_after(after_s, status.start))
        if late is not None:
            stack.enter_context(_after(late_s, partial(late, console)))
        yield


@contextmanager
def _after(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Act once, beside steps that take longer than that."""
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # so that it does not act after the steps


def show_verbs(context: typer.Context) -> None:
    """Show the help of a group that was called without a verb."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_LEAVE = frozenset("qQ\x03\x04")


def has_screen() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    console = output()
    return console.is_terminal and not console.is_dumb_terminal


def full_screen(draw: Callable[[int, int], RenderableType], every_s: float = 1.0) -> None:
    """Show ``draw(width, height)`` every ``every_s`` seconds, until q or Ctrl-C."""
    console = output()
    try:
        first = draw(*console.size)  # errors of the first draw are printed on the ordinary screen
        with (
            _keys() as pressed,
            Live(first, console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
        ):
            live.refresh()
            while pressed(every_s) not in _LEAVE:
                live.update(draw(*console.size), refresh=True)
    except KeyboardInterrupt:
        pass  # the way out


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """``pressed(seconds)`` waits for a key, and is "?" without one."""
    if not sys.stdin.isatty():
        yield _no_keys
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def pressed(seconds: float) -> str:
        if not select.select([keyboard], [], [], seconds)[0]:
            return "?"
        return os.read(keyboard, 1).decode("ascii", "replace") or "q"  # nothing: the terminal was closed

    try:
        tty.setcbreak(keyboard)
        yield pressed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> str:
    time.sleep(seconds)
    return "?"
