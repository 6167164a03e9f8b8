"""``python -m evaluation``: the evaluation of a paper, run again, with a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from hived.cli.app import main
from hived.cli.console import messages, note, output
from hived.cli.reading import Running, SkipBadRows

from .command import reproduce as run_reproduction
from .inside import StillRunning, all_cores
from .papers import Paper
from .report import INDEX


def reproduce(
    paper: Annotated[Paper, typer.Argument(help="Whose evaluation.")],
    out: Annotated[Path, typer.Option(help="Folder for the report; interrupted, the same command continues there.")],
    trace: Annotated[
        Path | None,
        typer.Option(help="A trace; for hived, of the tenants of its Table 1. Without one: a synthetic trace."),
    ] = None,
    skip_bad_rows: SkipBadRows = False,
    still_running: Running = StillRunning.KEEP,
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
                processes=processes or all_cores(),
                finished=finished,
            )
        except KeyboardInterrupt:
            note(f"interrupted: finished simulations are kept in {out}, and the same command continues")
            raise
    table = Table("experiment", "trace", "shape", box=None)
    for name, label, shape in report.shapes():
        table.add_row(name, label, shape.value)
    output().print(table)
    output().print(f"\n{out / INDEX}", markup=False)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A progress bar of finished simulations."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    bar = Progress(*columns, console=messages(), refresh_per_second=2, speed_estimate_period=7200)
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
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    command.command()(reproduce)
    main(typer.main.get_command(command))
