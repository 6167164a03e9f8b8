"""Sweeps: an experiment for every combination of parameters and seeds, in several processes, as one table.

A sweep is a scenario with lists of values for some parameters. One run is a :class:`~.scenario.Scenario` with one of
each and all schemes, since the comparison with private clusters needs them in one experiment. The table has a row per
run, scheme and tenant, and one for all tenants together.
"""

from __future__ import annotations

import hashlib
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hived.cluster.feasibility import check_feasible
from hived.errors import InputError
from hived.installed import __version__
from hived.policies import DEFAULT, by_vc, make_policy, split_policy
from hived.spec import load_spec
from hived.spec.document import KeyPath

from .intervals import Estimate, estimate
from .parallel import Kept, Task, kept_results, run_tasks, write_whole
from .report import Report
from .scenario import FIELDS, ParameterError, Scenario, kind_of, plain_value, policies_by_tenant, read_scenario
from .study import study_of
from .traces import StillRunning, Trace, generate_table1, read_trace

if TYPE_CHECKING:
    import polars

#: the file of all runs
TABLE = "sweep.parquet"
#: the folder of the results of single runs, from which an interrupted sweep continues
RUNS = "runs"

Value = str | int | float | bool | None
Row = dict[str, Value]

#: the parameters that determine results, in the order of a sweep's runs: the last one changes fastest
AXES = (
    "trace", "jobs", "days", "window", "sample", "clock_compression", "until", "soft", "models", "spec", "nodes",
    "quotas", "binding", "victims", "safety", "exchange", "preempted", "policy", "filter", "skip_bad_rows",
    "still_running", "mix", "opportunistic", "schemes", "seed",
)  # fmt: skip
#: parameters that have the name of a metric, and their columns
_COLUMNS = {"jobs": "trace_jobs", "days": "trace_days"}
_PARAMETERS = {column: name for name, column in _COLUMNS.items()}
#: columns that are parameters; ``scheme`` and ``tenant`` come after them, then metrics
OPTIONS = tuple(_COLUMNS.get(name, name) for name in FIELDS if name in AXES and name != "schemes")


def axis(name: str, values: Sequence[Any]) -> list[Any]:
    """The values of a parameter in the runs of a sweep, of the values given. All schemes are in every run.

    A run has one of the policies, and all those of tenants.
    """
    if _whole(name):
        return [tuple(values)]
    if name != "policy":
        return list(values)
    found = list(policies_by_tenant(values))
    of_tenants = [f"{tenant}={policy}" for tenant, policy in found if tenant]
    return [(policy, *of_tenants) for tenant, policy in found if not tenant] or [(DEFAULT, *of_tenants)]


def _whole(name: str) -> bool:
    """Whether a list of values is one value."""
    return FIELDS[name].several and name != "policy"


def load_axes(path: str | PathLike[str]) -> dict[str, list[Any]]:
    """The axes of a scenario's file, in which each parameter may have a list of values.

    Raises :class:`~hived.errors.SpecError` as :meth:`Scenario.load`.
    """
    file = read_scenario(path)
    axes: dict[str, list[Any]] = {}
    wrong: list[tuple[KeyPath, str]] = []
    for name, value in file.parameters.items():
        single = not isinstance(value, list) or not value or name not in FIELDS or _whole(name)
        made = []
        for at, one in [((name,), value)] if single else [((name, n), one) for n, one in enumerate(value)]:
            try:
                made.append(getattr(Scenario(**{name: one}), name))
            except ParameterError as error:
                wrong += [((*at, *path[1:]), message) for path, message in error.wrong]
            else:
                if FIELDS[name].path and not isinstance(one, str | None):
                    wrong.append((at, "expected a path: the table of a sweep has it"))
        axes[name] = axis(name, [policy for policies in made for policy in policies]) if name == "policy" else made
    try:
        if not wrong:
            Scenario(**{name: values[0] for name, values in axes.items()})
    except ParameterError as error:
        wrong = error.wrong
    if wrong:
        raise file.error(wrong)
    return axes


def grid(axes: Mapping[str, Sequence[Any]]) -> list[Scenario]:
    """A scenario for every combination of values of ``axes``, in the order of :data:`AXES`.

    Specs and traces are paths, policies tuples of names. A value that is there twice counts once. Raises
    :class:`~.scenario.ParameterError`.
    """
    names = sorted(axes, key=lambda name: AXES.index(name) if name in AXES else -1)
    return [
        Scenario(**dict(zip(names, chosen, strict=True)))
        for chosen in product(*(dict.fromkeys(axes[name]) for name in names))
    ]


def varying(settings: Sequence[Scenario]) -> tuple[str, ...]:
    """The columns that have more than one value."""
    rows = [_columns(one) for one in settings]
    return tuple(name for name in OPTIONS if len({row[name] for row in rows}) > 1)


def column_of(name: str) -> str:
    """The column of a parameter."""
    return _COLUMNS.get(name, name)


def check_settings(settings: Sequence[Scenario]) -> None:
    """Raise :class:`~hived.errors.InputError` for what every run would meet, some perhaps after hours.

    Seeds without effect, specs that are not feasible, policies that cannot be made.
    """
    several = len({one.seed for one in settings}) > 1
    for one in settings:
        if several and one.trace is not None and one.sample is None and not one.soft and not one.mix:
            raise InputError(
                f"--seeds: nothing is drawn from the trace {one.trace}, so runs of all seeds are the same; "
                "give --sample, --soft or --mix, or one seed, or no --trace for synthetic traces"
            )
    for spec, names in dict.fromkeys((one.spec, one.policy) for one in settings):
        if spec is not None:
            compiled = load_spec(Path(spec))
            check_feasible(compiled)
            by_vc(compiled, dict(split_policy(name) for name in names if split_policy(name)[0]))
        for name in names:
            make_policy(split_policy(name)[1])


def tasks_of(settings: Sequence[Scenario]) -> list[Task]:
    """The tasks of a sweep.

    The identity of each has the parameters, the content of its spec, trace and policies' modules, and hived's version.
    """
    names = varying(settings) or ("policy", "seed")
    digest, modules = lru_cache(_digest), lru_cache(_modules)  # of this call: files may change before another
    tasks = []
    for one in settings:
        files = {path: digest(path) for path in (one.spec, one.trace, one.models) if path}
        content = {**files, **modules(one.spec, one.policy)}
        columns, schemes = _columns(one), plain_value(one.schemes)
        identity = {"hived": __version__, **columns, "schemes": schemes, "sha256": content}
        tasks.append(Task(" ".join(f"{name}={columns[name]}" for name in names), run, (one, files), identity))
    return tasks


def _columns(setting: Scenario) -> Row:
    """The parameters as they stand in the table."""
    row = {_COLUMNS.get(name, name): plain_value(value) for name, value in setting.effective()}
    return {name: row[name] for name in OPTIONS} | {"policy": " ".join(setting.policy)}


def _modules(spec: str | None, names: tuple[str, ...]) -> dict[str, str]:
    """The modules of the policies that are not hived's own, those that the spec names too, and their digests."""
    given = [split_policy(name)[1] for name in names]
    if spec is not None:
        given += [vc.policy for vc in load_spec(Path(spec)).virtual_clusters if vc.policy]
    modules = {type(make_policy(name)).__module__ for name in given}
    files = {name: getattr(sys.modules[name], "__file__", None) for name in sorted(modules)}
    return {name: _digest(file) for name, file in files.items() if file and not name.startswith("hived.")}


def _digest(path: str) -> str:
    """The SHA-256 of a file."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def run(setting: Scenario, digests: Mapping[str, str]) -> list[Row]:
    """The rows of one run. ``digests`` are those of its files when the sweep began."""
    for path, digest in digests.items():
        if digest != _digest(path):
            raise InputError(f"{path}: has changed since the sweep began; start again, with another --out")
    return list(rows(setting, study_of(setting, lambda one: _loaded(one, digests)).report))


def _loaded(setting: Scenario, digests: Mapping[str, str]) -> Trace:
    if setting.trace is None:
        return _generated(setting.jobs, setting.days, setting.seed)
    return _read(setting.trace, digests[setting.trace], setting.skip_bad_rows, setting.still_running)


# a process reads or generates a trace once: the runs of one trace are neighbours (see :func:`sweep`)
_generated = lru_cache(maxsize=1)(generate_table1)


@lru_cache(maxsize=1)
def _read(path: str, digest: str, skip_bad_rows: bool, still_running: StillRunning) -> Trace:
    """A trace; a file of another digest is another trace."""
    return read_trace(path, skip_bad_rows=skip_bad_rows, still_running=still_running)


def rows(setting: Scenario, report: Report) -> Iterator[Row]:
    """The rows of a report: per scheme, all tenants (``tenant`` is None), then each tenant.

    Metrics have the names of ``summary.json``. Those of the whole run begin with ``run_`` and are null in the rows of
    single tenants. NaN, an undefined number, becomes null.
    """
    plain: Any = report.to_json()
    runs = plain.pop("runs")
    del plain["options"], plain["hived_version"]
    plain["trace"].pop("clock_compression", None)
    whole = _flat("run_", plain)
    options = _columns(setting)
    for one in runs:
        tenants = {None: one.pop("overall"), **one.pop("tenants")}
        del one["policy"]
        scheme = one.pop("scheme")
        of_run = {**whole, **_flat("run_", one)}
        for tenant, metrics in tenants.items():
            shared = of_run if tenant is None else dict.fromkeys(of_run)
            yield {**options, "scheme": scheme, "tenant": tenant, **_flat("", metrics), **shared}


def _flat(prefix: str, plain: Mapping[str, Any]) -> Row:
    """Nested data as one row, names joined by ``_``. Of a list, its length."""
    row: Row = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            row |= _flat(f"{prefix}{name}_", value)
        elif isinstance(value, list | tuple):
            row[prefix + name] = len(value)
        elif isinstance(value, np.generic) and not isinstance(value, float):
            row |= _flat(prefix, {name: value.item()})
        else:
            row[prefix + name] = None if isinstance(value, float) and math.isnan(value) else value
    return row


def sweep(
    settings: Sequence[Scenario], out: Path, processes: int | None, finished: Callable[[int, int], None] | None = None
) -> list[Row]:
    """Run ``settings`` and write :data:`TABLE` into ``out``; the rows of all runs.

    In ``processes`` processes; None: as many as there are cores that this process may use.
    Continues where an earlier sweep in ``out`` stopped. The folder may hold results of fewer runs than these, never of
    other ones: a list of values may grow. The same settings give the same bytes, whatever ``processes`` is and however
    often the sweep was interrupted. ``finished(done, total)`` counts runs.

    Raises :class:`~hived.errors.InputError` for a folder of other results, and
    :class:`~hived.simulator.parallel.TaskError` for a run that fails; finished runs stay.
    """
    check_folder(out)
    check_settings(settings)
    tasks = tasks_of(settings)
    with kept_results(out / RUNS) as kept:
        _check_runs(out, kept, tasks)
        # neighbours share a trace
        by_trace = sorted(zip(settings, tasks, strict=True), key=lambda pair: _trace_key(pair[0]))
        run_tasks([task for _, task in by_trace], kept, processes, finished)
        table = [row for task in tasks for row in kept.result(task)]
        write_table(table, out / TABLE)
    return table


def _trace_key(setting: Scenario) -> tuple[str, int, int, int]:
    synthetic = setting.trace is None
    return setting.trace or "", synthetic * setting.jobs, synthetic * setting.days, setting.seed


def check_folder(out: Path) -> None:
    """Raise :class:`~hived.errors.InputError` unless ``out`` is a folder of a sweep, empty, or not there."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file, not a folder for results; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not (out / RUNS).is_dir():
        raise InputError(f"{out}: holds other files than a sweep's, and results are never mixed; choose another --out")


def _check_runs(out: Path, kept: Kept, tasks: Sequence[Task]) -> None:
    others = kept.others(tasks)
    if not others:
        return
    other = others[0]
    nearest = min((task.identity for task in tasks), key=lambda mine: len(_differences(other, mine)))
    found = ", ".join(
        f"{name} {_shown(other, name)}, now {_shown(nearest, name)}" for name in _differences(other, nearest)
    )
    more = f", and {len(others) - 1:,} more such runs" if len(others) > 1 else ""
    raise InputError(
        f"{out}: has results of another sweep, and results are never mixed: a run there has {found}{more}; "
        "choose another --out, or the same options (lists of values may grow)"
    )


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]


def _shown(identity: Mapping[str, Any], name: str) -> str:
    value = identity.get(name)
    if isinstance(value, Mapping):
        return " ".join(f"{key}:{str(part)[:8]}" for key, part in value.items() if part is not None) or "none"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def frame(table: Sequence[Row]) -> polars.DataFrame:
    """The rows as a frame. A metric that no row has is no column."""
    import polars

    named = (*OPTIONS, "scheme", "tenant")
    columns = dict.fromkeys([*named, *(name for row in table for name, value in row.items() if value is not None)])
    data: dict[str, list[Value]] = {name: [row.get(name) for row in table] for name in columns}
    return polars.DataFrame(
        [polars.Series(name, values, dtype=_kind(name, values), strict=False) for name, values in data.items()]
    )


def _kind(name: str, values: Sequence[Value]) -> type[polars.DataType]:
    """The type of a column: as the option is declared, or of all values of a metric."""
    import polars

    if name in OPTIONS:
        kinds = [getattr(kind_of(_PARAMETERS.get(name, name)), "__name__", "")]
    else:
        kinds = list({type(value).__name__ for value in values if value is not None})
    if len(kinds) == 1:
        return {"bool": polars.Boolean, "int": polars.Int64, "float": polars.Float64}.get(kinds[0], polars.String)
    return polars.Float64 if set(kinds) == {"int", "float"} else polars.String


def write_table(table: Sequence[Row], path: Path) -> None:
    """The rows as a Parquet file, whole or not at all."""
    content = io.BytesIO()
    frame(table).write_parquet(content)
    write_whole(path, content.getvalue())


@dataclass(frozen=True, slots=True)
class Means:
    """Metrics of one combination of options, scheme and tenant, over its seeds."""

    options: Row
    scheme: str
    tenant: str | None
    seeds: int
    metrics: dict[str, Estimate]  #: over the seeds for which a metric is defined


def means(table: Sequence[Row], metrics: Sequence[str]) -> list[Means]:
    """The mean of each metric over the seeds, in the order of the table."""
    groups: dict[tuple[Value, ...], list[Row]] = {}
    for row in table:
        key = tuple([row[name] for name in (*OPTIONS, "scheme", "tenant") if name != "seed"])
        groups.setdefault(key, []).append(row)
    found = []
    for of_group in groups.values():
        first = of_group[0]
        estimates = {
            name: estimate([float(value) for row in of_group if isinstance(value := row.get(name), int | float)])
            for name in metrics
        }
        options = {name: first[name] for name in OPTIONS if name != "seed"}
        tenant = first["tenant"]
        found.append(
            Means(options, str(first["scheme"]), None if tenant is None else str(tenant), len(of_group), estimates)
        )
    return found


def metric_names(table: Sequence[Row]) -> list[str]:
    """The columns that are numbers and no options."""
    names = dict.fromkeys(
        name for row in table for name, value in row.items() if type(value) in (int, float) and name not in OPTIONS
    )
    return list(names)
