"""``hived sim run``: a trace under the sharing schemes, with a table, files and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hived.cluster import Sharing
from hived.simulator.exchange import HOUR_MS
from hived.simulator.exchange_report import exchanged
from hived.simulator.experiment import Results
from hived.simulator.figures import need_matplotlib
from hived.simulator.output import check_output
from hived.simulator.report import Report, RunReport, shorter_under_quota
from hived.simulator.scenario import Scenario
from hived.simulator.study import simulate as run_study
from hived.simulator.traces import TABLE1, Description, StillRunning, describe, generate_table1, read_trace, write_trace
from hived.words import counted

from .console import messages, numbers, output
from .formats import json_text
from .reading import Running, SkipBadRows, print_reading
from .scenario import takes_scenario


@takes_scenario
def simulate(
    scenario: Scenario,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    no_figures: Annotated[bool, typer.Option("--no-figures", help="Write no figures.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="Write jobs and runs as Parquet too.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace earlier results in --out.")] = False,
) -> None:
    """Simulate a multi-tenant GPU cluster under the sharing schemes and compare what tenants get.

    Writes jobs.csv, runs.csv, series.csv, summary.json and figures to --out, and prints a table per tenant.

    Writes scenario.yaml too: --scenario out/scenario.yaml simulates the same again.

    Without spec and trace: 20,000 jobs over 30 days, on a cluster sized for a load of 80%; a first look of seconds.

    They are of the tenants and sizes of the HiveD paper's Table 1, with durations and arrivals as in Philly's trace.

    In Python: hived.simulate (docs/howto/research.md).

    Example: hived sim run --spec spec.yaml --trace philly.csv.gz --clock-compression 1.5 --out results/
    """
    errors = messages()
    check_output(out, overwrite)
    if not no_figures:
        need_matplotlib()
    with ExitStack() as reading:
        reading.enter_context(
            errors.status("generating a synthetic trace" if scenario.trace is None else "reading the trace")
        )

        def progress(labels: list[str], count: int) -> AbstractContextManager[Callable[[str, int], None]]:
            reading.close()
            return _bars(errors, labels, count)

        study = run_study(scenario, progress=progress)
    with errors.status("writing results"):
        study.save(out, overwrite=overwrite, figures=not no_figures, parquet=parquet)
    _print(study.report, study.results, out)


@contextmanager
def _bars(console: Console, labels: list[str], jobs: int) -> Iterator[Callable[[str, int], None]]:
    """One progress bar per run, in jobs submitted."""
    columns = (
        TextColumn("{task.description:>16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=5) as progress:
        tasks = {label: progress.add_task(label, total=jobs, start=False) for label in labels}

        def report(label: str, done: int) -> None:
            progress.start_task(tasks[label])  # once
            progress.update(tasks[label], completed=done)

        yield report


def _print(report: Report, results: Results, out: Path) -> None:
    console = output()
    trace = results.trace
    kind = "synthetic trace" if trace.synthetic else "trace"
    console.print(
        f"{kind} [bold]{escape(trace.name)}[/bold]: {counted(len(trace.jobs), 'job')} "
        f"over {report.window_s / 86400:.1f} days, asking for {100 * report.load:.0f}% of {report.gpus:,} GPUs "
        f"on {counted(report.nodes, 'node')}"
    )
    print_reading(trace.dropped, trace.running, console)
    for policy in results.policies:
        runs = [run for run in report.runs if run.policy == policy]
        console.print(f"\nmean queueing delay in minutes ({policy})", style="italic")
        console.print(_tenant_table(runs))
        _print_quota(console, runs)
        console.print(f"\nminutes of all {counted(report.compared, 'compared job')}", style="italic")
        console.print(_time_table(runs))
        console.print("\ncluster, while jobs arrive: shares of its GPUs, and of its nodes", style="italic")
        console.print(_cluster_table(runs, report.nodes))
        console.print("\nthe whole run", style="italic")
        console.print(_course_table(runs))
        _print_exchange(console, results, policy)
    never = report.never_fit()
    if never:
        shown = ", ".join(f"{job['job_id']} ({job['tenant']}, {job['gpus']} GPUs)" for job in never[:5])
        more = f" and {len(never) - 5:,} more, all in summary.json" if len(never) > 5 else ""
        console.print(f"never fit their private cluster, left out of comparisons: {shown}{more}", markup=False)
    left_out = len(trace.jobs) - report.compared - len(never)
    if left_out > 0:
        console.print(f"left out too: {counted(left_out, 'job')} that not every run finished")
    console.print(f"results: {out}/", markup=False)


def _print_quota(console: Console, runs: list[RunReport]) -> None:
    """Where a quota is better than HiveD, which promises nothing against it."""
    if not any(run.scheme == Sharing.QUOTA.value for run in runs):
        return
    found = [
        f"{'all together' if tenant is None else tenant} {_minutes(quota)} min for {_minutes(hived)}"
        for tenant, quota, hived in shorter_under_quota(runs)
        if _minutes(quota) != _minutes(hived)
    ]
    if found:
        console.print(f"shorter under quota than under hived: {'; '.join(found)}", markup=False)
    elif any(run.scheme == Sharing.HIVED.value for run in runs):
        console.print("shorter under quota than under hived: no tenant")


def _minutes(s: float) -> str:
    if math.isnan(s):
        return "-"
    return f"{s / 60:,.1f}" if s < 6e5 else f"{s / 60:,.0f}"


def _tenant_table(runs: list[RunReport]) -> Table:
    shared = [run for run in runs if run.scheme != Sharing.PRIVATE.value and run.overall.anomalies is not None]
    headings = ["jobs", *(run.scheme for run in runs), *(f"{run.scheme}/private" for run in shared)]
    table = numbers("tenant", [*headings, *(f"worse under {run.scheme}" for run in shared)])
    rows = [[run.tenants[n] for run in runs] for n in range(len(runs[0].tenants))]
    for row in (*rows, [run.overall for run in runs]):
        ratios, worse = [], []
        for run, cell in zip(runs, row, strict=True):
            if run in shared and cell.anomalies is not None:
                text = "-" if math.isnan(cell.to_private) else f"{cell.to_private:.2f}"  # inf: private does not wait
                ratios.append(f"[red]{text}[/red]" if cell.to_private > 1 else text)
                jobs, minutes = cell.anomalies.jobs, cell.anomalies.minutes
                worse.append(f"{counted(jobs, 'job')}, {minutes:,.0f} min" if jobs else "none")
        table.add_row(
            "all" if row[0].tenant is None else escape(row[0].tenant),
            f"{row[0].delay.jobs:,}",
            *(_minutes(cell.delay.mean_s) for cell in row),
            *ratios,
            *worse,
            style="bold" if row[0].tenant is None else "",
        )
    return table


def _time_table(runs: list[RunReport]) -> Table:
    """Queueing delay and completion time of all jobs: mean and percentiles."""
    table = numbers("", ("scheme", "mean", "50%", "90%", "95%", "99%"))
    for run in runs:
        of = run.overall.delay
        times = (of.mean_s, of.median_s, of.p90_s, of.p95_s, of.p99_s)
        table.add_row("queueing delay" if run is runs[0] else "", run.scheme, *map(_minutes, times))
    for run in runs:
        of = run.overall.delay
        times = (
            of.completion_mean_s, of.completion_median_s, of.completion_p90_s, of.completion_p95_s, of.completion_p99_s,
        )  # fmt: skip
        table.add_row("completion time" if run is runs[0] else "", run.scheme, *map(_minutes, times))
    return table


def _cluster_table(runs: list[RunReport], nodes: int) -> Table:
    several = nodes > 1  # with one node, a share of the nodes is 0 or 1
    of_nodes = ("internal frag.", "external frag.", "fragmented nodes", "partly used") if several else ()
    guests = ("guests",) if any(run.guests for run in runs) else ()
    table = numbers("scheme", ("utilization", "guaranteed", "opportunistic", *guests, *of_nodes))
    for run in runs:
        shares = [run.utilization, run.guaranteed, run.opportunistic]
        if guests:
            shares.append(run.guests)
        if several:
            shares += [run.internal, run.external, run.fragmentation, run.partly_used]
        table.add_row(run.scheme, *(f"{100 * share:.1f}%" for share in shares))
    return table


def _course_table(runs: list[RunReport]) -> Table:
    headings = ("makespan days", "preemptions", "GPUs preempted", "GPU hours lost", "unfinished jobs")
    table = numbers("scheme", headings)
    for run in runs:
        table.add_row(
            run.scheme,
            f"{run.makespan_s / 86400:,.1f}",
            *(f"{n:,}" for n in (run.preemptions, run.preempted_gpus)),
            f"{run.lost_gpu_s / 3600:,.1f}",
            f"{run.unfinished:,}",
        )
    return table


def _print_exchange(console: Console, results: Results, policy: str) -> None:
    """What tenants had of trading cells, if they did."""
    for record in results.records:
        if record.policy != policy or not record.looks:
            continue
        headings = ("cells", "utilization", "by trades", "gain", "GPU hours given", "of these used", "taken and used")
        table = numbers("tenant", headings)
        for of in exchanged(results.spec, record.looks, HOUR_MS, results.trace.jobs[-1].submit_ms):
            shares = (of.utilization, of.increase, of.gain)
            hours = (of.given_h, of.contributed_h, of.benefited_h)
            row = (f"{of.reserved:,}", *(f"{100 * share:.1f}%" for share in shares), *(f"{h:,.0f}" for h in hours))
            table.add_row(escape(of.tenant), *row)
        trades = counted(len(record.trades), "trade")
        console.print(f"\n{trades} of cells under hived, {results.scenario.exchange}", style="italic")
        console.print(table)


_TABLE1_JOBS = sum(sum(row.jobs) for row in TABLE1)


def generate(
    output: Annotated[Path, typer.Option("--out", "-o", help="CSV to write, gzipped if it ends in .gz.")],
    jobs: Annotated[int, typer.Option(help="Jobs in all; Table 1 has 141950.", min=1)] = _TABLE1_JOBS,
    days: Annotated[int, typer.Option(help="Days over which they arrive.", min=1)] = 60,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.", min=0)] = 1,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
) -> None:
    """Write a synthetic trace: jobs per tenant and size as in the paper's Table 1, times as in Philly's statistics.

    Example: hived trace generate --jobs 141950 --days 60 --seed 1 -o t.csv.gz
    """
    write_trace(generate_table1(jobs, days, seed), output, overwrite=force)
    typer.echo(f"{output}: {jobs:,} synthetic jobs over {days} days (seed {seed})", err=True)


def describe_trace(
    trace: Annotated[Path, typer.Argument(help="Our CSV, Philly's cluster_job_log or Helios' CSV, gzipped or not.")],
    skip_bad_rows: SkipBadRows = False,
    still_running: Running = StillRunning.KEEP,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show what a trace holds: jobs per tenant and size, durations, load.

    Example: hived trace describe philly-2017-oct-nov.csv.gz
    """
    description = describe(read_trace(trace, skip_bad_rows=skip_bad_rows, still_running=still_running))
    if as_json:
        typer.echo(json_text(description.to_json()))
        return
    _print_description(description)


def _print_description(description: Description) -> None:
    console = output()
    kind = "synthetic trace" if description.synthetic else "trace"
    jobs = counted(description.total.jobs, "job")
    console.print(f"{kind} [bold]{escape(description.name)}[/bold]: {jobs}, {description.days:.1f} days")
    print_reading(description.dropped, description.running, console)
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
