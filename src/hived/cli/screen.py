"""The whole screen, drawn again and again until somebody leaves."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.live import Live

from .console import output

_LEAVE = frozenset("qQ\x03\x04")


def has_screen() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    console = output()
    return console.is_terminal and not console.is_dumb_terminal


def full_screen(draw: Callable[[int, int], RenderableType], every_s: float = 1.0) -> None:
    """Show ``draw(width, height)`` every ``every_s`` seconds, until q or Ctrl-C."""
    console = output()
    try:
        first = draw(*console.size)  # what is wrong from the start is told on the ordinary screen
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
    """``pressed(seconds)`` waits for a key, and is "?" when none came."""
    if not sys.stdin.isatty():
        yield _no_keys
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def pressed(seconds: float) -> str:
        if not select.select([keyboard], [], [], seconds)[0]:
            return "?"
        return os.read(keyboard, 1).decode("ascii", "replace") or "q"  # nothing: the terminal has gone

    try:
        tty.setcbreak(keyboard)
        yield pressed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> str:
    time.sleep(seconds)
    return "?"
