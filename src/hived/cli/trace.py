"""``hived trace``: making and describing traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from hived.simulator.traces import TABLE1, Description, describe, generate_table1, read_trace, write_trace
from hived.words import counted

from .console import numbers, output, show_verbs
from .formats import json_text

trace_app = typer.Typer(invoke_without_command=True, callback=show_verbs, help="Make and describe traces.")


@trace_app.command()
def generate(
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV to write, gzipped if it ends in .gz.")],
    jobs: Annotated[int, typer.Option(help="Jobs in all; Table 1 has 141950.", min=1)] = sum(
        sum(row.jobs) for row in TABLE1
    ),
    days: Annotated[int, typer.Option(help="Days over which they arrive.", min=1)] = 60,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.", min=0)] = 1,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
) -> None:
    """Write a synthetic trace: jobs per tenant and size as in the paper's Table 1, times as in Philly's statistics.

    Example: hived trace generate --jobs 141950 --days 60 --seed 1 -o t.csv.gz
    """
    write_trace(generate_table1(jobs, days, seed), output, overwrite=force)
    typer.echo(f"{output}: {jobs:,} synthetic jobs over {days} days (seed {seed})", err=True)


@trace_app.command("describe")
def describe_trace(
    trace: Annotated[Path, typer.Argument(help="Our CSV, Philly's cluster_job_log or Helios' CSV, gzipped or not.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show what a trace holds: jobs per tenant and size, durations, load.

    Example: hived trace describe philly-2017-oct-nov.csv.gz
    """
    description = describe(read_trace(trace))
    if as_json:
        typer.echo(json_text(description.to_json()))
        return
    _print(description)


def _print(description: Description) -> None:
    console = output()
    kind = "synthetic trace" if description.synthetic else "trace"
    jobs = counted(description.total.jobs, "job")
    console.print(f"{kind} [bold]{escape(description.name)}[/bold]: {jobs}, {description.days:.1f} days")
    for reason, count in description.dropped:
        console.print(f"left out: {count:,} jobs ({reason})", style="yellow", markup=False)
    sizes = (f"{size} GPU" for size in description.size_classes)
    table = numbers("tenant", ("jobs", *sizes, "GPU hours", "mean h", "median h", "p95 h", "load GPUs"))
    for row in (*description.tenants, description.total):
        last = row is description.total
        table.add_row(
            "all" if row.tenant is None else escape(row.tenant),
            f"{row.jobs:,}",
            *(f"{count:,}" for count in row.jobs_by_size),
            f"{row.gpu_hours:,.0f}",
            *(f"{s / 3600:.2f}" for s in (row.mean_duration_s, row.median_duration_s, row.p95_duration_s)),
            f"{row.offered_load_gpus:,.1f}",
            style="bold" if last else "",
        )
    console.print(table)
    week = description.busiest_week
    console.print(
        f"busiest week: number {week.week + 1}, {week.jobs:,} jobs, "
        f"asking for {week.offered_load_gpus:,.0f} GPUs on average"
    )
