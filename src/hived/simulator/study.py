"""A study: a trace under the sharing schemes, as ``hived simulate`` and, in a notebook, ``hived.simulate`` run it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from importlib import import_module
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hived.cluster import check_feasible
from hived.errors import InputError
from hived.spec import load_spec, parse_spec, spec_from_dict
from hived.spec.compiled import ClusterSpec
from hived.words import counted

from .driver import Driver
from .exchange import Trading
from .experiment import Results, check_tenants, labels, run_experiment, some
from .figures import STEMS, draw, need_matplotlib, styled, write_figures
from .models import assign_models
from .output import (
    CHECKSUMS,
    PARQUET,
    SCENARIO,
    TRADES,
    chains_of,
    check_output,
    checksums,
    whole_folder,
    write_cluster,
    write_summary,
    write_table,
    write_trades,
)
from .record import Record
from .report import Report, RunReport, make_report
from .scenario import Scenario, is_yaml
from .sizing import cluster_for
from .tables import jobs_table, runs_table, series_table, trace_table
from .timeline import Recorded
from .timeline_figure import picture_of
from .traces import (
    Trace,
    TraceJob,
    compress_clock,
    cut_window,
    filter_jobs,
    generate_table1,
    is_frame,
    read_trace,
    read_window,
    sample_jobs,
)
from .traces import trace_of as read_frame
from .traces.fields import FieldError, check_jobs

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

#: a path, YAML text, plain data of its form, or a compiled spec
SpecInput: TypeAlias = "str | os.PathLike[str] | Mapping[str, object] | ClusterSpec"
#: a path, a frame of Polars or pandas, a trace, or jobs in order of submission
TraceInput: TypeAlias = "str | os.PathLike[str] | Trace | Sequence[TraceJob] | Any"
#: a context, for these labels and this number of jobs, in which a run reports its label and the jobs submitted so far
Progress: TypeAlias = "Callable[[list[str], int], AbstractContextManager[Callable[[str, int], None]]]"
Frames = Literal["polars", "pandas"]


def simulate(
    scenario: Scenario | SpecInput | None = None,
    trace: TraceInput | None = None,
    *,
    frames: Frames = "polars",
    progress: Progress | None = None,
    driver: Driver | None = None,
    trading: Trading | None = None,
    **parameters: Any,
) -> Study:
    """Simulate a scenario: its trace on the cluster of its spec, under every scheme and policy.

    ``simulate(scenario)``, or ``simulate(spec, trace)``, and ``parameters``: those of :class:`~.scenario.Scenario`,
    which has them all. They override a scenario's. ``hived simulate`` calls this function, and has them as flags.

    Without a spec, a cluster is sized for the trace (:func:`~.sizing.cluster_for`); without a trace, a synthetic one is
    generated. The trace is filtered, cut to the window, sampled, and its clock compressed, in this order.
    ``skip_bad_rows`` counts the rows that it leaves out, by kind, in ``Trace.dropped``. ``safety``:
    ``docs/explanation/exact-safety.md``; ``exchange``: ``docs/explanation/exchange.md``. With ``models``
    (``docs/reference/models.md``) jobs run at the rate that affinity and jobs beside them allow; under a policy by
    which they share GPUs they always do.

    ``driver`` submits, ends and prioritizes jobs of its own while the simulation runs (:class:`~.driver.Driver`); they
    follow the trace's, which may then have none. ``trading`` decides which cells tenants trade under ``hived``
    (:class:`~.exchange.HourlyTrading`), in place of ``exchange``. Both have a state, so there is one run: one scheme
    and one policy.

    Deterministic; O(log jobs) for every event of a job, and the scheduler's own cost. Raises
    :class:`~hived.errors.InputError`, in one line, for anything that is wrong.
    """
    if frames not in ("polars", "pandas"):
        raise InputError(f"frames {frames!r}: give polars or pandas")
    inputs: dict[str, Any] = {} if trace is None else {"trace": trace}
    if not isinstance(scenario, Scenario):
        inputs |= {} if scenario is None else {"spec": scenario}
        scenario = Scenario()
    return study_of(scenario.replace(**inputs, **parameters), _trace, frames, progress, driver, trading)


def study_of(
    scenario: Scenario,
    trace_of: Callable[[Scenario], Trace],
    frames: Frames = "polars",
    progress: Progress | None = None,
    driver: Driver | None = None,
    trading: Trading | None = None,
) -> Study:
    """Simulate a scenario on the trace that ``trace_of`` reads."""
    cluster = None if scenario.spec is None else _spec(scenario.spec)
    if cluster is not None:
        check_feasible(cluster)
    loaded = _prepared(scenario, trace_of(scenario))
    if not loaded.jobs and driver is None:
        raise InputError(f"{loaded.name}: no jobs: a trace needs at least one")
    if cluster is None:
        cluster = cluster_for(loaded, scenario.nodes, scenario.quotas)
    check_tenants(cluster, loaded)
    known = [vc.name for vc in cluster.virtual_clusters]
    for name in scenario.tenants:
        if name not in known:
            raise InputError(f"tenant {name}: no such tenant in {cluster.source}, which has {some(known)}")
    with nullcontext() if progress is None else progress(labels(cluster, scenario), len(loaded.jobs)) as report:
        results = run_experiment(cluster, loaded, scenario, report, driver=driver, trading=trading)
    return Study(results, frames, driver is not None or trading is not None)


def _prepared(scenario: Scenario, trace: Trace) -> Trace:
    """The trace as it is simulated."""
    seed = scenario.seed
    if scenario.filter is not None:
        trace = filter_jobs(trace, scenario.filter)
    if scenario.window is not None:
        trace = cut_window(trace, *read_window(scenario.window))
    if scenario.sample is not None:
        trace = sample_jobs(trace, scenario.sample, seed)
    if scenario.mix is not None:
        trace = replace(trace, jobs=assign_models(trace.jobs, scenario.mix, seed, scenario.job_models))
    return compress_clock(trace, scenario.clock_compression)


def _spec(given: SpecInput) -> ClusterSpec:
    if isinstance(given, ClusterSpec):
        return given
    if isinstance(given, Mapping):
        return spec_from_dict(given)
    return parse_spec(str(given), "spec") if is_yaml(given) else load_spec(Path(given))


def _trace(scenario: Scenario) -> Trace:
    given, skip, running = scenario.trace, scenario.skip_bad_rows, scenario.still_running
    if given is None:
        return generate_table1(scenario.jobs, scenario.days, scenario.seed)
    if isinstance(given, Trace):
        _check(given)
        return given
    read = read_frame if is_frame(given) else read_trace
    return read(given, skip_bad_rows=skip, still_running=running)


def _check(trace: Trace) -> None:
    """Raise unless a trace made in memory is one that a file could have."""
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
    kind: Frames = "polars"  #: of frames
    acted: bool = False  #: on by a driver or a trading, so that its scenario alone does not give it again

    def record(self, scheme: str = "", policy: str = "") -> Record:
        """The raw record of a run: every job's start and end, and every interval in which it held GPUs. O(runs).

        ``scheme`` and ``policy`` choose one of several. Raises :class:`~hived.errors.InputError` unless they leave one.
        """
        found = [one for one in self.results.records if scheme in ("", one.scheme) and policy in ("", one.policy)]
        if len(found) != 1:
            known = some([f"{one.scheme} {one.policy}" for one in self.results.records])
            raise InputError(f"record: {counted(len(found), 'run')} of {known}; give the scheme and the policy of one")
        return found[0]

    @cached_property
    def report(self) -> Report:
        """All numbers, as objects."""
        return make_report(self.results)

    @cached_property
    def trace(self) -> Any:
        """A row per job of the trace as simulated, with its users, models and priorities if it has any."""
        return self._frame(trace_table(self.results.trace))

    @cached_property
    def jobs(self) -> Any:
        """A row per scheme, policy and job: start, finish, queueing delay (seconds; null if it never ended)."""
        return self._frame(jobs_table(self.results))

    @cached_property
    def runs(self) -> Any:
        """A row per interval in which a job held GPUs."""
        return self._frame(runs_table(self.results))

    @cached_property
    def series(self) -> Any:
        """A row per scheme, policy and hour: utilization, fragmentation, and each tenant's delay."""
        return self._frame(series_table(self.report))

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
            for _, of, figure in draw(self.report, [name]):
                if of == chosen:
                    return figure
        raise InputError(f"figure {name}, policy {chosen}: no such run, or it lacks what the figure compares")

    def figures(self) -> dict[str, Figure]:
        """All figures by name, with the policy after a dash where there are several."""
        need_matplotlib()
        with styled():
            drawn = list(draw(self.report))
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
        """Who runs on the GPUs of nodes, and when, as ``hived sim timeline`` draws it.

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
        return picture_of(recorded, (nodes,) if isinstance(nodes, str) else tuple(nodes), days, rates)

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
        jobs, runs = jobs_table(self.results), runs_table(self.results)
        with whole_folder(folder) as draft:
            write_table(jobs, draft / "jobs.csv")
            write_table(runs, draft / "runs.csv")
            write_cluster(self.results, draft / "cluster.json")
            write_table(series_table(self.report), draft / "series.csv")
            if self.results.scenario.exchange is not None or any(one.looks for one in self.results.records):
                write_trades(self.results, draft / TRADES)
            if parquet:
                for name, table in zip(PARQUET, (jobs, runs), strict=True):
                    packed = BytesIO()
                    table.write_parquet(packed)
                    (draft / name).write_bytes(packed.getvalue())
            if figures:
                write_figures(self.report, draft)
            write_summary(self.report, draft / "summary.json")
            if not self.acted and (scenario := self.results.scenario.text(folder)) is not None:
                (draft / SCENARIO).write_text(scenario, encoding="utf-8")
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
