"""``hived spec``: making a cluster spec, from quotas or from the demand in a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hived.cluster import check_feasible
from hived.errors import InputError
from hived.simulator.planner import (
    Levels,
    PlannedSpec,
    demands_of,
    equal_base,
    like_base,
    make_plan,
    predict,
    share_by_quotas,
    share_like,
    sizes_of,
)
from hived.simulator.report import TenantReport
from hived.simulator.traces import TABLE1, StillRunning, Trace, read_trace
from hived.spec import parse_spec, read_quotas, spec_from_quotas
from hived.spec.quotas import Quotas
from hived.words import counted

from .console import messages, numbers, output
from .reading import Running, SkipBadRows, print_reading

_PIPED_WIDTH = 10_000


def from_quotas(
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.", min=1)],
    quotas: Annotated[Path, typer.Option(help="CSV with the columns tenant and quota_pct.")],
    output: Annotated[Path, typer.Option("--out", "-o", help="The spec to write; - for standard output.")] = Path("-"),
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node, a power of two.", min=1)] = 8,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
) -> None:
    """Turn quotas (percent of the cluster) into a spec in which every tenant reserves whole nodes.

    Nodes are shared out by largest remainder, at least one to each tenant.

    Example: hived spec from-quotas --nodes 200 --quotas tenants.csv -o spec.yaml
    """
    text = spec_from_quotas(nodes, read_quotas(quotas), gpus_per_node=gpus_per_node)
    check_feasible(parse_spec(text, str(output)))
    _write_new(text, output, force)
    if str(output) != "-":
        typer.echo(f"{output}: {nodes} nodes of {gpus_per_node} GPUs", err=True)


def from_demand(
    trace: Annotated[Path, typer.Option(help="A trace: our CSV, Philly's JSON or Helios' CSV.")],
    skip_bad_rows: SkipBadRows = False,
    still_running: Running = StillRunning.KEEP,
    spec: Annotated[Path, typer.Option("--out", "-o", help="The spec to write; - for standard output.")] = Path("-"),
    nodes: Annotated[int | None, typer.Option(help="Nodes of the cluster.", min=1)] = None,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node, a power of two.", min=1)] = 8,
    levels: Annotated[Levels, typer.Option(help="Cells of all levels up to a node, or nodes alone.")] = Levels.ALL,
    like: Annotated[
        Path | None, typer.Option(help="A spec: its nodes, and each tenant's GPUs in it, stay as they are.")
    ] = None,
    quotas: Annotated[
        str | None, typer.Option(help="Each tenant's GPUs by quota: table1, or a CSV as for from-quotas.")
    ] = None,
    largest: Annotated[
        bool, typer.Option("--largest/--no-largest", help="Give each tenant enough for its largest job.")
    ] = True,
    no_predict: Annotated[bool, typer.Option("--no-predict", help="Simulate no delays.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
) -> None:
    """Plan which cells each tenant should reserve, from the GPU time that its jobs in a trace ask for.

    All GPUs are shared out by GPU time, or as --like or --quotas say, and each tenant's among the sizes of its jobs.
    The table has per size of cell the GPUs asked for, the cells given, and the delay that tenants would have on them.

    Example: hived spec from-demand --trace t.csv.gz --nodes 279 -o spec.yaml
    """
    if (nodes is None) == (like is None):
        raise InputError("give the cluster: --nodes, or the spec of one with --like")
    if like is not None and quotas is not None:
        raise InputError("give each tenant's GPUs once: --like, or --nodes with --quotas")
    errors = messages()
    with errors.status("reading the trace"):
        loaded = read_trace(trace, skip_bad_rows=skip_bad_rows, still_running=still_running)
    print_reading(loaded.dropped, loaded.running, errors)
    demands, gpus = demands_of(loaded), None
    if like is not None:
        base, existing = like_base(like)
        demands, gpus = share_like(demands, existing, levels)
    else:
        assert nodes is not None
        known = None if quotas is None else _quotas(quotas)
        base = equal_base(nodes, gpus_per_node, [d.tenant for d in demands] if known is None else [t for t, _ in known])
        if known is not None:
            _, sizes = sizes_of(base.chain, levels)
            demands, gpus = share_by_quotas(demands, known, base.chain.gpus, sizes[0], f"--quotas {quotas}")
    planned = make_plan(base, demands, gpus, levels, largest=largest)
    _write_new(planned.text, spec, force)
    delays = {} if no_predict else _predicted(planned, loaded, errors)
    to_stdout = str(spec) == "-"
    _print(planned, delays, errors if to_stdout else output())
    if not to_stdout:
        typer.echo(f"{spec}: {counted(len(planned.plan.tenants), 'tenant')} on {base.source}", err=True)


def _write_new(text: str, path: Path, force: bool) -> None:
    """Write ``text`` to a new file, or with ``force`` over one; to standard output for ``-``."""
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path}: exists already; give --force to overwrite it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another -o") from None


def _quotas(name: str) -> Quotas:
    """The quotas of the paper, or of a file."""
    return [(row.tenant, row.quota_percent) for row in TABLE1] if name == "table1" else read_quotas(name)


def _predicted(planned: PlannedSpec, trace: Trace, errors: Console) -> Mapping[str, TenantReport]:
    """The predicted delays, with a bar of the jobs simulated."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, refresh_per_second=5, transient=True) as progress:
        task = progress.add_task("predicting delays", total=len(trace.jobs))
        return predict(planned.spec, trace, lambda _, done: progress.update(task, completed=done))


def _print(planned: PlannedSpec, delays: Mapping[str, TenantReport], console: Console) -> None:
    plan = planned.plan
    total = sum(tenant.demand.total for tenant in plan.tenants) or 1
    sizes = [counted(size, "GPU") for size in plan.sizes]
    late = ["mean delay", "p95", "never fit"] if delays else []
    table: Table = numbers("tenant", ["jobs", "GPU time", "GPUs", *sizes, "largest job", *late])
    for tenant in plan.tenants:
        demand = tenant.demand
        cells = [f"{float(asked):,.1f} → {number:,}" for asked, number in zip(tenant.asked, tenant.cells, strict=True)]
        largest = f"{demand.largest:,}" if tenant.runs_largest else f"[red]{demand.largest:,} does not fit[/red]"
        row = [f"{demand.jobs:,}", f"{100 * demand.total / total:.1f}%", f"{tenant.gpus:,}", *cells, largest]
        if delays:
            found = delays[demand.tenant].delay
            row += [_minutes(found.mean_s), _minutes(found.p95_s), f"{demand.jobs - found.jobs:,}"]
        table.add_row(escape(demand.tenant), *row)
    console.print(table, width=None if console.is_terminal else _PIPED_WIDTH)
    spec = planned.spec
    spare = spec.gpus - sum(map(spec.reserved, spec.virtual_clusters))
    console.print("by size of cell: GPUs asked for by share of the tenant's GPU time → cells given")
    console.print(f"spare: {counted(spare, 'GPU')} of {spec.gpus:,}")
    if delays:
        console.print("delays in minutes, simulated on each tenant's cells alone; sharing under hived adds none")


def _minutes(s: float) -> str:
    return "-" if math.isnan(s) else f"{s / 60:,.1f}"
