"""How verbs read a trace: their options, and what is said of the jobs that are not as in the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from hived.simulator.traces import StillRunning
from hived.words import counted

SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows of the trace that are wrong; counted by kind.")
]
Running = Annotated[
    StillRunning,
    typer.Option("--still-running", help="Jobs that had not ended when their log did: kept with their time so far."),
]


def print_reading(dropped: Sequence[tuple[str, int]], running: int, console: Console) -> None:
    """Print how many jobs were left out, by reason, and how many have only their time so far."""
    for reason, count in dropped:
        console.print(f"left out of the trace: {counted(count, 'job')} ({reason})", style="yellow", markup=False)
    if running:
        console.print(f"still running when the log ends: {counted(running, 'job')}, time so far", style="yellow")
