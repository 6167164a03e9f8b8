"""``hived sim sweep``: experiments for every combination of parameters, in parallel: one Parquet file and a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from hived.errors import InputError
from hived.simulator.experiment import some
from hived.simulator.intervals import CONFIDENCE, Estimate
from hived.simulator.sweep import AXES, TABLE, Means, Row, column_of, grid, means, metric_names, varying
from hived.simulator.sweep import sweep as run_sweep
from hived.words import counted

from .console import messages, note, output
from .scenario import naming_flags, takes_axes, words_of

#: metrics of the table, unless others are asked for
_SHOWN = ("mean_s", "p95_s", "queue_to_private", "anomalies_jobs", "run_utilization", "run_preempted_gpus")
_ALL = "all"  #: a tenant: all together


@takes_axes
def sweep(
    axes: dict[str, list[Any]],
    out: Annotated[Path, typer.Option(help="Folder for the results; a sweep that was interrupted continues there.")],
    seeds: Annotated[
        int | None,
        typer.Option(help="Each combination so many times, with the seeds 1, 2, ...", min=1, show_default="1"),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", "-j", help="How many run at a time.", min=1, show_default="all cores")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="Metrics to print: any columns of the Parquet file.")
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="TENANT,...", help="Tenants to print; all: all together.")] = _ALL,
) -> None:
    """Simulate every combination of parameters and seeds in parallel, and compare their means.

    Writes sweep.parquet to --out: a row per run, scheme and tenant. Prints means with confidence intervals over the
    seeds. Interrupted, the same command continues; with longer lists it adds runs.

    Example: hived sim sweep --nodes 200,240,279 --policy yarn-cs --seeds 20 --processes 2 --out sweep/
    """
    if seeds is not None:
        axes["seed"] = list(range(1, seeds + 1))
    with naming_flags():
        settings = grid(axes)
    with _progress(len(settings)) as progress:
        try:
            table = run_sweep(settings, out, processes, progress)
        except KeyboardInterrupt:
            note(f"interrupted: finished runs are kept in {out}, and the same command continues")
            raise
    columns = [column_of(name) for name in AXES if name != "seed"]  # in the order of the rows
    changing = [name for name in columns if name in varying(settings)]
    _print(table, changing, metric, tenant)
    output().print(f"\n{counted(len(settings), 'run')}: {out / TABLE}", markup=False)


@contextmanager
def _progress(runs: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar of finished runs."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    # the time left follows from the runs of the last hours: one can take minutes
    bar = Progress(*columns, console=messages(), refresh_per_second=2, speed_estimate_period=7200)
    task = bar.add_task("simulating", total=runs, start=False)

    def finished(done: int, total: int) -> None:
        bar.start()  # after the options were checked
        bar.start_task(task)
        bar.update(task, completed=done, total=total)

    try:
        yield finished
    finally:
        if bar.live.is_started:
            bar.stop()


def _print(table: list[Row], options: Sequence[str], metric: str | None, tenant: str) -> None:
    known = metric_names(table)
    tenants = [None if name == _ALL else name for name in words_of("--tenant", tenant)]
    usual = [name for name in _SHOWN if name in known and (None in tenants or not name.startswith("run_"))]
    asked = usual if metric is None else words_of("--metric", metric)
    if unknown := [name for name in asked if name not in known]:
        raise InputError(f"--metric {unknown[0]}: no such metric; there are {some(known, 100)}")
    names = list(dict.fromkeys(str(row["tenant"]) for row in table if row["tenant"] is not None))
    if strange := [name for name in tenants if name is not None and name not in names]:
        raise InputError(f"--tenant {strange[0]}: no such tenant; there are {some(names, 100)}")
    shown = [one for one in means(table, asked) if one.tenant in tenants]
    seeds = max(one.seeds for one in shown)
    console = output()
    if seeds == 1:
        console.print("one seed, so no confidence intervals", style="italic")
    else:
        console.print(
            f"means over {seeds} seeds ± half of the {CONFIDENCE:.0%} confidence interval (Student's t)", style="italic"
        )
    console.print(_table(shown, options, asked, tenants != [None]))


def _table(shown: Sequence[Means], options: Sequence[str], metrics: Sequence[str], with_tenants: bool) -> Table:
    first = [*options, "scheme", *(["tenant"] if with_tenants else [])]
    table = Table(*first, *(Column(name, justify="right") for name in metrics), box=None)
    for one in shown:
        labels = [str(one.options[name]) for name in options]
        labels += [one.scheme, *([one.tenant or _ALL] if with_tenants else [])]
        table.add_row(*map(escape, labels), *(_text(one.metrics[name], one.seeds) for name in metrics))
    return table


def _text(estimate: Estimate, seeds: int) -> str:
    if math.isnan(estimate.mean):
        return "-"
    decimals = 0 if abs(estimate.mean) >= 1000 else 1 if abs(estimate.mean) >= 10 else 3
    text = f"{estimate.mean:,.{decimals}f}"
    if estimate.half is not None:
        text += f" ± {estimate.half:,.{decimals}f}"
    return text if estimate.values == seeds else f"{text} ({estimate.values} of {seeds})"
