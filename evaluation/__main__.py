"""``python -m evaluation``: the evaluation of a paper, run again, with a report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from hived import HivedError
from hived.simulator.traces import StillRunning

from .command import reproduce as run_reproduction
from .papers import Paper
from .report import INDEX


def reproduce(
    paper: Annotated[Paper, typer.Argument(help="Whose evaluation.")],
    out: Annotated[Path, typer.Option(help="Folder for the report; interrupted, the same command continues there.")],
    trace: Annotated[
        Path | None,
        typer.Option(help="A trace; for hived, of the tenants of its Table 1. Without one: a synthetic trace."),
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave out rows of the trace that are wrong.")
    ] = False,
    still_running: Annotated[
        StillRunning, typer.Option(help="Jobs that had not ended when their log did: kept with their time so far.")
    ] = StillRunning.KEEP,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few days of the trace and fewer seeds: minutes; not judged.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these experiments, for example fig6-200,fig7.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", "-j", help="How many run at a time.", min=1, show_default="all cores")
    ] = None,
) -> None:
    """Run every figure of a paper's evaluation again, and write a report with the paper's numbers beside ours.

    Writes index.md and figures to --out. Says of each figure whether its shape holds; not with --quick.

    Example: python -m evaluation hived --trace philly.csv.gz --out report/
    """
    names = [word.strip() for word in only.split(",")] if only is not None else []
    with _progress() as finished:
        try:
            report = run_reproduction(
                out,
                trace,
                paper=paper,
                skip_bad_rows=skip_bad_rows,
                still_running=still_running,
                quick=quick,
                only=names,
                processes=processes,
                finished=finished,
            )
        except KeyboardInterrupt:
            print(
                f"interrupted: finished simulations are kept in {out}, and the same command continues", file=sys.stderr
            )
            sys.exit(130)
    table = Table("experiment", "trace", "shape", box=None)
    for name, label, shape in report.shapes():
        table.add_row(name, label, shape.value)
    Console(markup=False, emoji=False).print(table)
    print(f"\n{out / INDEX}")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar of finished simulations."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=2, speed_estimate_period=7200)
    task = bar.add_task("simulating", start=False)

    def finished(done: int, total: int) -> None:
        bar.start()
        bar.start_task(task)
        bar.update(task, completed=done, total=total)

    try:
        yield finished
    finally:
        bar.stop()


if __name__ == "__main__":
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(reproduce)
    try:
        command()
    except HivedError as error:
        print(f"evaluation: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
