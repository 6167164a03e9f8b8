"""Where the command line prints: as wide as the terminal, and wide enough for whole words where there is none."""

from __future__ import annotations

from rich.console import Console

_PIPED_WIDTH = 180


def output() -> Console:
    """Standard output."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPED_WIDTH)


def messages() -> Console:
    """Standard error: progress and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)
