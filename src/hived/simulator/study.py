"""A study: a trace under the sharing schemes, as ``hived simulate`` and, in a notebook, ``hived.simulate`` run it."""

from __future__ import annotations

import csv
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from hived.cluster import check_feasible
from hived.cluster.sharing import BindingKind, Sharing
from hived.errors import InputError
from hived.policies import split_policy
from hived.scheduling import Policy
from hived.spec import load_spec, parse_spec, spec_from_dict
from hived.spec.compiled import ClusterSpec
from hived.words import counted

from .experiment import Options, PolicyGiven, Preempted, Results, Safety, check_tenants, labels, run_experiment, some
from .figures import STEMS, draw, need_matplotlib, styled, write_figures
from .models import Models, assign_models
from .output import (
    CHECKSUMS,
    PARQUET,
    TRADES,
    chains_of,
    check_output,
    checksums,
    whole_folder,
    write_cluster,
    write_jobs,
    write_runs,
    write_series,
    write_summary,
    write_trades,
)
from .report import Report, RunReport, make_report
from .sizing import Quotas, cluster_for
from .timeline import Recorded
from .timeline_figure import picture_of
from .traces import (
    StillRunning,
    Trace,
    compress_clock,
    cut_window,
    filter_jobs,
    generate_table1,
    is_frame,
    read_trace,
    read_window,
    sample_jobs,
    trace_of,
    write_trace,
)
from .traces.fields import FieldError, check_jobs

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

#: a path, YAML text, plain data of its form, or a compiled spec
SpecInput: TypeAlias = "str | os.PathLike[str] | Mapping[str, object] | ClusterSpec"
#: a path, a frame of Polars or pandas, or a trace
TraceInput: TypeAlias = "str | os.PathLike[str] | Trace | Any"
#: a context, for these labels and this number of jobs, in which a run reports its label and the jobs submitted so far
Progress: TypeAlias = "Callable[[list[str], int], AbstractContextManager[Callable[[str, int], None]]]"
Frames = Literal["polars", "pandas"]

#: of the synthetic trace; with the cluster sized for it the first look takes a few seconds, and shows sharing anomalies
JOBS, DAYS = 20_000, 30

_DAY_MS = 86_400_000
_MOST_DAYS = 10**9
_Named = TypeVar("_Named", Sharing, Preempted, Quotas, BindingKind, Safety, StillRunning)


def simulate(
    spec: SpecInput | None = None,
    trace: TraceInput | None = None,
    *,
    skip_bad_rows: bool = False,
    still_running: str = StillRunning.KEEP.value,
    schemes: str | Iterable[str] = tuple(Sharing),
    policy: PolicyGiven | Iterable[PolicyGiven] | Mapping[str, PolicyGiven] = "yarn-cs",
    opportunistic: bool = True,
    preempted: str = Preempted.RESUME,
    until: float | None = None,
    filter: str | None = None,  # noqa: A002 - the name of the option
    window: str | tuple[float, float] | None = None,
    sample: float | None = None,
    clock_compression: float = 1.0,
    binding: str = BindingKind.DYNAMIC,
    safety: str | None = None,
    exchange: str | None = None,
    soft: float = 0.0,
    models: str | os.PathLike[str] | None = None,
    mix: str | None = None,
    seed: int = 1,
    jobs: int = JOBS,
    days: int = DAYS,
    nodes: int | None = None,
    quotas: str = Quotas.DEMAND,
    tenants: Sequence[str] = (),
    frames: Frames = "polars",
    progress: Progress | None = None,
) -> Study:
    """Simulate ``trace`` on the cluster of ``spec`` under every scheme and policy.

    As ``hived simulate``, which calls it and whose options ``hived simulate --help`` describes.

    ``spec`` is a path, YAML text, plain data or a :class:`~hived.spec.ClusterSpec`; without one, a cluster is sized for
    the trace (:func:`~.sizing.cluster_for`). ``trace`` is a path, a frame of Polars or pandas with the columns of a
    file, or a :class:`~.traces.Trace`; without one, a synthetic one is generated. ``skip_bad_rows`` leaves out the rows
    of a file or frame that are wrong, and counts them by kind in ``Trace.dropped``; jobs that had not ended when their
    log did have their time so far and the status ``running``: ``still_running`` is ``keep`` or ``leave-out``. The trace
    is filtered, cut to the window, sampled, and its clock compressed, in this order. ``until`` and ``window`` are in
    days, ``tenants`` are those of the figures over time. ``safety`` is that of all tenants under ``hived``, whatever
    the spec says of each (``docs/explanation/exact-safety.md``); ``exchange`` the arbiter by which they trade cells
    there (``docs/explanation/exchange.md``).
    ``policy`` is a name, a :class:`~hived.scheduling.Policy`, several of these for several runs, or a mapping of
    tenants to theirs. With ``models``, a file of job models (``docs/reference/models.md``), jobs run at the rate that
    affinity and jobs beside them allow; under a policy by which they share GPUs they always do.
    ``mix`` draws the models of jobs without one. Deterministic. Raises :class:`~hived.errors.InputError`, in one
    line, for anything that is wrong.
    """
    named = tuple(dict.fromkeys(_named(Sharing, scheme, "scheme") for scheme in _several(schemes)))
    policies, of_tenants = _policies(policy)
    if not named or not policies:
        raise InputError("nothing to simulate: give at least one scheme and one policy")
    if until is not None and not 0 < until <= _MOST_DAYS:
        raise InputError(f"until {until:g} (--until): must be a number of days above 0, at most {_MOST_DAYS:,}")
    if frames not in ("polars", "pandas"):
        raise InputError(f"frames {frames!r}: give polars or pandas")
    table = None if models is None and mix is None else Models.load(models)
    options = Options(
        named,
        policies,
        opportunistic,
        _named(Preempted, preempted, "preempted"),
        None if until is None else round(until * _DAY_MS),
        clock_compression,
        _named(BindingKind, binding, "binding"),
        soft,
        seed,
        table,
        of_tenants,
        None if safety is None else _named(Safety, safety, "safety"),
        exchange,
    )
    cluster = None if spec is None else _spec(spec)
    if cluster is not None:
        check_feasible(cluster)
    running = _named(StillRunning, still_running, "still_running")
    loaded = generate_table1(jobs, days, seed) if trace is None else _trace(trace, skip_bad_rows, running)
    if filter is not None:
        loaded = filter_jobs(loaded, filter)
    if window is not None:
        first, last = read_window(window) if isinstance(window, str) else window
        loaded = cut_window(loaded, first, last)
    if sample is not None:
        loaded = sample_jobs(loaded, sample, seed)
    if mix is not None:
        loaded = replace(loaded, jobs=assign_models(loaded.jobs, mix, seed, table))
    loaded = compress_clock(loaded, clock_compression)
    if cluster is None:
        cluster = cluster_for(loaded, nodes, _named(Quotas, quotas, "quotas"))
    check_tenants(cluster, loaded)
    known = [vc.name for vc in cluster.virtual_clusters]
    for name in tenants:
        if name not in known:
            raise InputError(f"tenant {name}: no such tenant in {cluster.source}, which has {some(known)}")
    with nullcontext() if progress is None else progress(labels(cluster, options), len(loaded.jobs)) as report:
        results = run_experiment(cluster, loaded, options, report)
    return Study(results, tuple(tenants), frames)


def _policies(
    given: PolicyGiven | Iterable[PolicyGiven] | Mapping[str, PolicyGiven],
) -> tuple[tuple[PolicyGiven, ...], tuple[tuple[str, PolicyGiven], ...]]:
    """The policies of the runs, and those of single tenants: ``TENANT=NAME``, or from a mapping."""
    if isinstance(given, Mapping):
        return ("yarn-cs",), tuple(given.items())
    of_runs: list[PolicyGiven] = []
    of_tenants: list[tuple[str, PolicyGiven]] = []
    for one in [given] if isinstance(given, str | Policy) else given:
        tenant, name = split_policy(one) if isinstance(one, str) else ("", one)
        if tenant:
            of_tenants.append((tenant, name))
        else:
            of_runs.append(name)
    return tuple(dict.fromkeys(of_runs)) or ("yarn-cs",), tuple(of_tenants)


def _several(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _named(kind: type[_Named], name: str, what: str) -> _Named:
    try:
        return kind(name)
    except ValueError:
        raise InputError(f"{what} {name!r}: no such {what}; there is {some([each.value for each in kind])}") from None


def _spec(given: SpecInput) -> ClusterSpec:
    if isinstance(given, ClusterSpec):
        return given
    if isinstance(given, Mapping):
        return spec_from_dict(given)
    if isinstance(given, str) and ("\n" in given or given.lstrip().startswith("{")):
        return parse_spec(given, "spec")
    if isinstance(given, str | os.PathLike):
        return load_spec(Path(given))
    raise InputError(f"a spec is a path, YAML text, a mapping or a ClusterSpec, not {type(given).__name__}")


def _trace(given: TraceInput, skip_bad_rows: bool, still_running: StillRunning) -> Trace:
    if isinstance(given, Trace):
        _check(given)
        return given
    if is_frame(given):
        return trace_of(given, skip_bad_rows=skip_bad_rows, still_running=still_running)
    if isinstance(given, str | os.PathLike):
        return read_trace(given, skip_bad_rows=skip_bad_rows, still_running=still_running)
    raise InputError(f"a trace is a path, a frame or a Trace, not {type(given).__name__}")


def _check(trace: Trace) -> None:
    """Raise unless a trace made in memory is one that a file could have."""
    if not trace.jobs:
        raise InputError(f"{trace.name}: no jobs: a trace needs at least one")
    try:
        check_jobs(trace.jobs, "be simulated")
    except FieldError as error:
        raise InputError(f"{trace.name}: {error}") from None
    for number, (job, after) in enumerate(pairwise(trace.jobs), start=2):
        if after.submit_ms < job.submit_ms:
            raise InputError(f"{trace.name}: job {number} comes before job {number - 1}; sort jobs by submit_ms")


@dataclass(frozen=True)
class Study:
    """The results of :func:`simulate`: frames, figures, files.

    A frame is the table of the same name that :meth:`save` writes, or the numbers of ``summary.json``.
    """

    results: Results
    tenants: tuple[str, ...] = ()  #: of the figures over time; none: those that sharing changes most
    kind: Frames = "polars"  #: of frames

    @cached_property
    def report(self) -> Report:
        """All numbers, as objects."""
        return make_report(self.results)

    @cached_property
    def trace(self) -> Any:
        """A row per job of the trace as simulated, with its users, models and priorities if it has any."""
        return self._frame(_table(lambda path: write_trace(self.results.trace, path)))

    @cached_property
    def jobs(self) -> Any:
        """A row per scheme, policy and job: start, finish, queueing delay (seconds; null if it never ended)."""
        return self._frame(_table(lambda path: write_jobs(self.results, path)))

    @cached_property
    def runs(self) -> Any:
        """A row per interval in which a job held GPUs."""
        return self._frame(_table(lambda path: write_runs(self.results, path)))

    @cached_property
    def series(self) -> Any:
        """A row per scheme, policy and hour: utilization, fragmentation, and each tenant's delay."""
        return self._frame(_table(lambda path: write_series(self.report, path)))

    @cached_property
    def summary(self) -> Any:
        """A row per scheme, policy and tenant, over the jobs compared.

        ``queue_to_private`` is the mean delay over that in the private cluster, ``anomalies_jobs`` the number of jobs
        that wait longer than there.
        """
        return self._frame(_rows(self.report, "tenants"))

    @cached_property
    def schemes(self) -> Any:
        """A row per scheme and policy: the whole cluster, and all tenants together."""
        return self._frame(_rows(self.report, "overall"))

    def to_pandas(self) -> Study:
        """The same results with frames of pandas."""
        other = replace(self, kind="pandas")
        other.__dict__["report"] = self.report
        return other

    def figure(self, name: str, policy: str | None = None) -> Figure:
        """A figure by name, ``delay`` (over time) or ``normalised`` (to the private cluster); of the first policy."""
        need_matplotlib()
        if name not in STEMS:
            raise InputError(f"figure {name!r}: no such figure; there is {some(list(STEMS))}")
        chosen = self.report.runs[0].policy if policy is None else policy
        with styled():
            for _, of, figure in draw(self.report, self.tenants, [name]):
                if of == chosen:
                    return figure
        raise InputError(f"figure {name}, policy {chosen}: no such run, or it lacks what the figure compares")

    def figures(self) -> dict[str, Figure]:
        """All figures by name, with the policy after a dash where there are several."""
        need_matplotlib()
        with styled():
            drawn = list(draw(self.report, self.tenants))
        several = len(self.results.policies) > 1
        return {f"{name}-{policy}" if several else name: figure for name, policy, figure in drawn}

    def timeline(
        self,
        nodes: str | Iterable[str] = (),
        window: str | tuple[float, float] | None = None,
        *,
        scheme: str | None = None,
        policy: str | None = None,
        rates: bool = False,
    ) -> Figure:
        """Who runs on the GPUs of nodes, and when, as ``hived timeline`` draws it.

        Without ``nodes`` and ``window`` (days, ``"2:2.5"``): where and when jobs share GPUs, else
        where and when most run. ``scheme`` and ``policy``:
        the last ones, unless given. With ``rates``, below it each job's rate of progress and the sum.
        """
        found = [
            record
            for record in self.results.records
            if scheme in (None, record.scheme) and policy in (None, record.policy)
        ]
        if not found:
            raise InputError(f"timeline, {scheme or 'any scheme'}, {policy or 'any policy'}: no such run")
        record = found[-1]
        gpus: dict[str, list[int]] = {}
        for chain in chains_of(self.results.spec, record.scheme):
            of_each = range(chain["levels"][chain["node_level"] - 1]["gpus"])
            for number, node in enumerate(chain["nodes"]):
                gpus.setdefault(node, []).extend(chain["devices"].get(str(number), of_each))
        names = [job.job_id for job in record.jobs]
        recorded = Recorded(f"{record.scheme} {record.policy}", record.runs, names, gpus, record.end)
        days = read_window(window) if isinstance(window, str) else window
        return picture_of(recorded, tuple(_several(nodes)), days, rates)

    def save(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, figures: bool = True, parquet: bool = False
    ) -> Path:
        """Write the files of ``hived simulate`` to ``folder``, all or none; returns it.

        ``overwrite`` replaces earlier results; ``parquet`` adds ``jobs.parquet`` and ``runs.parquet``.
        """
        folder = Path(folder)
        check_output(folder, overwrite)
        if figures:
            need_matplotlib()
        with whole_folder(folder) as draft:
            write_jobs(self.results, draft / "jobs.csv")
            write_runs(self.results, draft / "runs.csv")
            write_cluster(self.results, draft / "cluster.json")
            write_series(self.report, draft / "series.csv")
            if self.results.options.exchange is not None:
                write_trades(self.results, draft / TRADES)
            if parquet:
                for name in PARQUET:
                    packed = BytesIO()
                    _read((draft / name).with_suffix(".csv")).write_parquet(packed)
                    (draft / name).write_bytes(packed.getvalue())
            if figures:
                write_figures(self.report, draft, self.tenants)
            write_summary(self.report, draft / "summary.json")
            (draft / CHECKSUMS).write_text(checksums(draft), encoding="utf-8")
        return folder

    def __repr__(self) -> str:
        """The cluster, the load, and each scheme's mean delay."""
        lines = [
            f"{run.scheme} {run.policy}: mean queueing delay {_minutes(run)} min, {_anomalies(run)}"
            for run in self.report.runs
        ]
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        """The same as a table."""
        head = "".join(f"<th>{word}</th>" for word in ("scheme", "policy", "mean delay (min)", "worse than private"))
        rows = "".join(
            f"<tr><td>{escape(run.scheme)}</td><td>{escape(run.policy)}</td>"
            f"<td>{_minutes(run)}</td><td>{_anomalies(run)}</td></tr>"
            for run in self.report.runs
        )
        return f"<p>{escape(self._title())}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def _title(self) -> str:
        report, trace = self.report, self.results.trace
        return (
            f"{trace.name}: {counted(len(trace.jobs), 'job')} over {report.window_s / 86400:.1f} days, asking for "
            f"{100 * report.load:.0f}% of {report.gpus:,} GPUs on {counted(report.nodes, 'node')}"
        )

    def _frame(self, frame: polars.DataFrame) -> Any:
        if self.kind == "polars":
            return frame
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InputError("frames of pandas need pandas: pip install pandas; or take those of Polars") from None
        return pandas.DataFrame(frame.to_dict(as_series=False))


def _minutes(run: RunReport) -> str:
    return f"{run.overall.delay.mean_s / 60:,.1f}" if run.overall.delay.jobs else "-"


def _anomalies(run: RunReport) -> str:
    found = run.overall.anomalies
    if found is None:
        return "not compared with private"
    return f"{counted(found.jobs, 'job')} worse by {found.minutes:,.0f} min" if found.jobs else "no job worse"


#: the columns of the tables that are text, whatever their values look like
_TEXT = ("scheme", "policy", "job_id", "tenant", "kind", "placement", "status", "user", "model")


def _table(write: Callable[[Path], None]) -> polars.DataFrame:
    """The table that ``write`` writes to a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        write(path)
        return _read(path)


def _read(path: Path) -> polars.DataFrame:
    """One of our CSV files, with the types that its columns have whatever the values."""
    import polars as pl

    with path.open(encoding="utf-8") as file:
        names = next(csv.reader(file))
    types = dict.fromkeys(_TEXT, pl.String) | {name: pl.Float64 for name in names if re.search("_s$|^delay_s ", name)}
    known = {name: kind for name, kind in types.items() if name in names}
    return pl.read_csv(path, schema_overrides=known, infer_schema_length=None)


def _rows(report: Report, part: Literal["tenants", "overall"]) -> polars.DataFrame:
    """The numbers of ``summary.json``: a row per run, or per run and tenant."""
    import polars as pl

    plain: Any = report.to_json()["runs"]
    rows = []
    for run in plain:
        tenants, overall = run.pop("tenants"), run.pop("overall")
        if part == "overall":
            rows.append(_flat(run | {name: value for name, value in overall.items() if name not in run}))
        else:
            names = {"scheme": run["scheme"], "policy": run["policy"]}
            rows += [names | {"tenant": tenant} | _flat(numbers) for tenant, numbers in tenants.items()]
    return pl.DataFrame(rows, infer_schema_length=None)


def _flat(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers with those of a mapping beside them, ``anomalies_jobs``; an undefined one is null."""
    flat: dict[str, Any] = {}
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}_{inner}": each for inner, each in _flat(value).items()}
        else:
            flat[name] = None if isinstance(value, float) and math.isnan(value) else value
    return flat
