"""Sweeps: an experiment for every combination of options and seeds, in several processes, as one table.

One run (a :data:`Setting`) has one value of every option of :func:`~.study.simulate` and all schemes, since the
comparison with private clusters needs them in one experiment. The table has a row per run, scheme and tenant, and one
for all tenants together.
"""

from __future__ import annotations

import hashlib
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from inspect import signature
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hived import __version__
from hived.cluster.feasibility import check_feasible
from hived.errors import InputError
from hived.policies import by_vc, make_policy, split_policy
from hived.spec import load_spec

from .intervals import Estimate, estimate
from .parallel import Kept, Task, kept_results, run_tasks, write_whole
from .report import Report
from .study import simulate
from .traces import StillRunning, Trace, generate_table1, read_trace

if TYPE_CHECKING:
    import polars

#: the file of all runs
TABLE = "sweep.parquet"
#: the folder of the results of single runs, from which an interrupted sweep continues
RUNS = "runs"

Value = str | int | float | bool | None
Row = dict[str, Value]
#: the options of one run: all of :data:`OPTIONS`, and ``schemes``
Setting = Mapping[str, Any]

#: parameters of a simulation that determine no result
_SHOWN = ("tenants", "frames", "progress")
#: names of options whose parameter has the name of a metric
_PARAMETERS = {"trace_jobs": "jobs", "trace_days": "days"}
_RENAMED = {parameter: name for name, parameter in _PARAMETERS.items()}
_OPTIONS = {
    _RENAMED.get(name, name): parameter
    for name, parameter in signature(simulate).parameters.items()
    if name not in _SHOWN
}
_DEFAULTS: dict[str, Any] = {name: parameter.default for name, parameter in _OPTIONS.items()}
#: columns that are options; ``scheme`` and ``tenant`` come after them, then metrics
OPTIONS = tuple(name for name in _DEFAULTS if name != "schemes")
#: options that a spec or a trace leaves without effect: null
_WITH_SPEC, _WITH_TRACE = ("nodes", "quotas"), ("trace_jobs", "trace_days")


def grid(axes: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """A setting for every combination of values of ``axes``, by the names of :data:`OPTIONS`, and ``schemes``.

    Specs and traces are paths, policies names; a tuple of names has those of tenants, ``TENANT=NAME``, beside the
    default. A value that is there twice counts once; the last axis changes fastest. Raises
    :class:`~hived.errors.InputError` for a name that is no option.
    """
    if unknown := [name for name in axes if name not in _DEFAULTS]:
        raise InputError(f"{unknown[0]}: no such option of a simulation; there are {', '.join(_DEFAULTS)}")
    values = [tuple(dict.fromkeys(_plain(value) for value in axis)) for axis in axes.values()]
    defaults = {name: _plain(value) for name, value in _DEFAULTS.items()}
    settings: list[Setting] = []
    for chosen in product(*values):
        setting = defaults | dict(zip(axes, chosen, strict=True))
        setting |= dict.fromkeys(_WITH_SPEC if setting["spec"] is not None else ())
        setting |= dict.fromkeys(_WITH_TRACE if setting["trace"] is not None else ())
        settings.append(setting)
    return settings


def _plain(value: Any) -> Any:
    """An enum's value; a path's text; a tuple of such."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value.value if isinstance(value, Enum) else str(value) if isinstance(value, Path) else value


def varying(settings: Sequence[Setting]) -> tuple[str, ...]:
    """The options that have more than one value."""
    return tuple(name for name in OPTIONS if len({one[name] for one in settings}) > 1)


def check_settings(settings: Sequence[Setting]) -> None:
    """Raise :class:`~hived.errors.InputError` for what every run would meet, some perhaps after hours.

    Seeds without effect, specs that are not feasible, policies that cannot be made.
    """
    several = len({one["seed"] for one in settings}) > 1
    for one in settings:
        if several and one["trace"] is not None and one["sample"] is None and not one["soft"] and not one["mix"]:
            raise InputError(
                f"--seeds: nothing is drawn from the trace {one['trace']}, so runs of all seeds are the same; "
                "give --sample, --soft or --mix, or one seed, or no --trace for synthetic traces"
            )
    for spec, names in dict.fromkeys((one["spec"], _policy_names(one)) for one in settings):
        if spec is not None:
            compiled = load_spec(Path(spec))
            check_feasible(compiled)
            by_vc(compiled, dict(split_policy(name) for name in names if split_policy(name)[0]))
        for name in names:
            make_policy(split_policy(name)[1])


def tasks_of(settings: Sequence[Setting]) -> list[Task]:
    """The tasks of a sweep.

    The identity of each has the options, the content of its spec, trace and policies' modules, and hived's version.
    """
    names = varying(settings) or ("policy", "seed")
    digest, modules = lru_cache(_digest), lru_cache(_modules)  # of this call: files may change before another
    tasks = []
    for one in settings:
        files = {path: digest(path) for path in (one["spec"], one["trace"], one["models"]) if path}
        content = {**files, **modules(one["spec"], _policy_names(one))}
        identity = {"hived": __version__, **_columns(one), "schemes": list(one["schemes"]), "sha256": content}
        tasks.append(Task(" ".join(f"{name}={_columns(one)[name]}" for name in names), run, (one, files), identity))
    return tasks


def _columns(setting: Setting) -> Row:
    """The options as they stand in the table."""
    return {name: setting[name] for name in OPTIONS} | {"policy": " ".join(_policy_names(setting))}


def _policy_names(setting: Setting) -> tuple[str, ...]:
    """The policy of a run, and ``TENANT=NAME`` for those of tenants."""
    return (setting["policy"],) if isinstance(setting["policy"], str) else tuple(setting["policy"])


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


def run(setting: Setting, digests: Mapping[str, str]) -> list[Row]:
    """The rows of one run. ``digests`` are those of its files when the sweep began."""
    for path, digest in digests.items():
        if digest != _digest(path):
            raise InputError(f"{path}: has changed since the sweep began; start again, with another --out")
    if setting["trace"] is None:
        trace = _generated(setting["trace_jobs"], setting["trace_days"], setting["seed"])
    else:
        reading = setting["skip_bad_rows"], setting["still_running"]
        trace = _read(setting["trace"], digests[setting["trace"]], *reading)
    given = {name: value for name, value in setting.items() if name != "trace" and value is not None}
    options = {_PARAMETERS.get(name, name): value for name, value in given.items()}
    return list(rows(setting, simulate(trace=trace, **options).report))


# a process reads or generates a trace once: the runs of one trace are neighbours (see :func:`sweep`)
_generated = lru_cache(maxsize=1)(generate_table1)


@lru_cache(maxsize=1)
def _read(path: str, digest: str, skip_bad_rows: bool, still_running: str) -> Trace:
    """A trace; a file of another digest is another trace."""
    return read_trace(path, skip_bad_rows=skip_bad_rows, still_running=StillRunning(still_running))


def rows(setting: Setting, report: Report) -> Iterator[Row]:
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
    settings: Sequence[Setting], out: Path, processes: int, finished: Callable[[int, int], None] | None = None
) -> list[Row]:
    """Run ``settings`` in ``processes`` processes and write :data:`TABLE` into ``out``; the rows of all runs.

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


def _trace_key(setting: Setting) -> tuple[str, int, int, int]:
    return setting["trace"] or "", setting["trace_jobs"] or 0, setting["trace_days"] or 0, setting["seed"]


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

    if name in _OPTIONS:
        kinds = [kind for kind in ("bool", "int", "float") if str(_OPTIONS[name].annotation).startswith(kind)]
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
