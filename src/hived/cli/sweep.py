"""``hived sim sweep``: experiments for every combination of options, in parallel, as one Parquet file and a table."""

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

from hived.cluster.sharing import BindingKind, Sharing
from hived.errors import InputError
from hived.exchange import ArbiterKind
from hived.policies import DEFAULT, split_policy
from hived.simulator.experiment import Preempted, Safety, some
from hived.simulator.intervals import CONFIDENCE, Estimate
from hived.simulator.parallel import all_cores
from hived.simulator.sizing import LOAD, Quotas
from hived.simulator.study import DAYS, JOBS
from hived.simulator.sweep import TABLE, Means, Row, grid, means, metric_names, varying
from hived.simulator.sweep import sweep as run_sweep
from hived.simulator.traces import StillRunning
from hived.words import counted

from .console import messages, note, output
from .reading import Running, SkipBadRows

#: metrics of the table, unless others are asked for
_SHOWN = ("mean_s", "p95_s", "queue_to_private", "anomalies_jobs", "run_utilization", "run_preempted_gpus")
_ALL = "all"  #: a tenant: all together
_LISTED = "A list by commas is a run each"


def _list(metavar: str, help_: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, metavar=f"{metavar},...", help=help_, rich_help_panel=_LISTED, **settings)


def sweep(
    out: Annotated[Path, typer.Option(help="Folder for the results; a sweep that was interrupted continues there.")],
    policy: Annotated[
        str,
        _list("POLICY", "Policies inside the tenants' clusters, as in hived sim run; TENANT=POLICY: in all runs."),
    ] = DEFAULT,
    spec: Annotated[str | None, _list("FILE", "Cluster specs.")] = None,
    nodes: Annotated[
        str | None, _list("N", "Nodes of 8 GPUs, without a spec.", show_default=f"for a load of {LOAD:.0%}")
    ] = None,
    quotas: Annotated[
        str | None, _list("QUOTAS", "What tenants reserve without a spec: demand, table1.", show_default="demand")
    ] = None,
    trace: Annotated[str | None, _list("FILE", "Traces.", show_default="a synthetic trace for each seed")] = None,
    skip_bad_rows: SkipBadRows = False,
    still_running: Running = StillRunning.KEEP,
    jobs: Annotated[
        str | None, _list("N", "Jobs of the synthetic trace; the paper has 141950.", show_default=str(JOBS))
    ] = None,
    days: Annotated[
        str | None, _list("DAYS", "Days of the synthetic trace; the paper has 60.", show_default=str(DAYS))
    ] = None,
    window: Annotated[str | None, _list("DAY:DAY", "Only jobs submitted on these days.")] = None,
    sample: Annotated[str | None, _list("SHARE", "Each job with this probability; by seed.")] = None,
    clock_compression: Annotated[str, _list("X", "Divide submission times by this; durations stay.")] = "1",
    until: Annotated[str | None, _list("DAY", "Stop at this day of the simulation.")] = None,
    preempted: Annotated[
        str, _list("WHAT", "What a preempted job does when it runs again: resume, restart.")
    ] = Preempted.RESUME.value,
    binding: Annotated[
        str, _list("WHEN", "When hived binds the cells of a tenant: dynamic, static.")
    ] = BindingKind.DYNAMIC.value,
    safety: Annotated[str | None, _list("WHAT", "What hived promises to tenants: work-conserving, exact.")] = None,
    exchange: Annotated[
        str | None, _list("ARBITER", "Tenants trade idle cells under hived: balanced, auction.")
    ] = None,
    soft: Annotated[
        str, _list("SHARE", "Share of the multi-GPU jobs that accept any GPUs of their tenant; by seed.")
    ] = "0",
    models: Annotated[str | None, _list("FILE", "Files of job models, as hived sim run --models.")] = None,
    mix: Annotated[
        str | None, typer.Option(metavar="NAME=WEIGHT,...", help="Models of jobs without one; by seed.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Each combination so many times, with the seeds 1, 2, ...", min=1)] = 1,
    scheme: Annotated[str, typer.Option(metavar="SCHEME,...", help="Sharing schemes of every run.")] = ",".join(
        Sharing
    ),
    no_opportunistic: Annotated[
        bool, typer.Option("--no-opportunistic", help="Start none on idle GPUs before its turn.")
    ] = False,
    filter_: Annotated[
        str | None,
        typer.Option("--filter", metavar="EXPRESSION", help="Only jobs that meet this, as hived sim run --filter."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", "-j", help="How many run at a time.", min=1, show_default="all cores")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="COLUMN,...", help="Metrics to print: any columns of the Parquet file.")
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="TENANT,...", help="Tenants to print; all: all together.")] = _ALL,
) -> None:
    """Simulate every combination of options and seeds in parallel, and compare their means.

    Writes sweep.parquet to --out: a row per run, scheme and tenant. Prints means with confidence intervals over the
    seeds. Interrupted, the same command continues; with longer lists it adds runs.

    Example: hived sim sweep --nodes 200,240,279 --policy yarn-cs --seeds 20 --processes 2 --out sweep/
    """
    _alternatives("--spec", spec, "--nodes", nodes)
    _alternatives("--spec", spec, "--quotas", quotas)
    _alternatives("--trace", trace, "--jobs", jobs)
    _alternatives("--trace", trace, "--days", days)
    lists = {
        "trace": _values("--trace", trace, str),
        "trace_jobs": _values("--jobs", jobs, _positive),
        "trace_days": _values("--days", days, _positive),
        "window": _values("--window", window, str),
        "sample": _values("--sample", sample, _number),
        "clock_compression": _values("--clock-compression", clock_compression, _number),
        "until": _values("--until", until, _number),
        "soft": _values("--soft", soft, _number),
        "models": _values("--models", models, str),
        "spec": _values("--spec", spec, str),
        "nodes": _values("--nodes", nodes, _positive),
        "quotas": _values("--quotas", quotas, _one_of(Quotas)),
        "binding": _values("--binding", binding, _one_of(BindingKind)),
        "safety": _values("--safety", safety, _one_of(Safety)),
        "exchange": _values("--exchange", exchange, _one_of(ArbiterKind)),
        "preempted": _values("--preempted", preempted, _one_of(Preempted)),
        "policy": _policies(policy),
    }
    axes: dict[str, Sequence[Any]] = {name: values for name, values in lists.items() if values}
    axes["filter"] = (filter_,)
    axes["skip_bad_rows"] = (skip_bad_rows,)
    axes["still_running"] = (still_running.value,)
    axes["mix"] = (mix,)
    axes["opportunistic"] = (not no_opportunistic,)
    axes["schemes"] = (tuple(dict.fromkeys(_values("--scheme", scheme, _one_of(Sharing)))),)
    axes["seed"] = range(1, seeds + 1)
    settings = grid(axes)
    with _progress(len(settings)) as progress:
        try:
            table = run_sweep(settings, out, processes or all_cores(), progress)
        except KeyboardInterrupt:
            note(f"interrupted: finished runs are kept in {out}, and the same command continues")
            raise
    changing = [name for name in axes if name in varying(settings) and name != "seed"]  # in the order of the rows
    _print(table, changing, metric, tenant)
    output().print(f"\n{counted(len(settings), 'run')}: {out / TABLE}", markup=False)


def _alternatives(one: str, given: str | None, other: str, also: str | None) -> None:
    if given is not None and also is not None:
        raise InputError(f"{one} and {other}: give one of them")


def _values(option: str, text: str | None, convert: Callable[[str], Any]) -> list[Any]:
    """The values of a list by commas; none if it is not given."""
    if text is None:
        return []
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InputError(f"{option} {text}: a value is empty; give values by commas, such as 1,2")
    try:
        return [convert(word) for word in words]
    except ValueError as error:
        raise InputError(f"{option} {text}: {error}") from None


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"{word} is no number") from None


def _positive(word: str) -> int:
    if not word.isascii() or not word.isdigit() or int(word) < 1:
        raise ValueError(f"{word} is no whole number above 0")
    return int(word)


def _policies(text: str) -> list[Any]:
    """A run for each policy; each has the policies of tenants."""
    words = _values("--policy", text, str)
    of_tenants = [word for word in words if split_policy(word)[0]]
    return [(word, *of_tenants) for word in words if word not in of_tenants] or [(DEFAULT, *of_tenants)]


def _one_of(names: Any) -> Callable[[str], str]:
    """A value of an enum."""
    known = [name.value for name in names]

    def convert(word: str) -> str:
        if word not in known:
            raise ValueError(f"{word} is none of {', '.join(known)}")
        return word

    return convert


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
    tenants = [None if name == _ALL else name for name in _values("--tenant", tenant, str)]
    usual = [name for name in _SHOWN if name in known and (None in tenants or not name.startswith("run_"))]
    asked = usual if metric is None else _values("--metric", metric, str)
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
