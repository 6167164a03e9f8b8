"""``python -m evaluation``: all simulations in parallel, then the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from hived import InputError
from hived.simulator.parallel import Task, kept_results, run_tasks
from hived.simulator.traces import TABLE1, StillRunning, Trace

from . import section53
from .clusters import FULL_NODES, TENANTS
from .experiment import FULL, QUICK, counted
from .papers import EVALUATIONS, Paper
from .report import Part, Report, is_ours, write
from .results import Result
from .simulations import Trial, Workload, digest, offered_load, trace_of

#: the folder of the results of simulations, from which an interrupted reproduction continues
RUNS = "runs"
_DAYS = 60
#: GPUs in use at 279 nodes in the paper, as a share: the clock of the synthetic trace is chosen for this load
PAPER_LOAD = 0.7
#: how much faster the clock of either trace goes at 200 nodes: queues as long as the paper's
CROWDED = 1.5
_QUICK_DAYS = (0.0, 4.0)


def synthetic(quick: bool) -> Workload:
    """The synthetic trace of Table 1, with the clock at which it loads 279 nodes as the paper's trace did."""
    window = _QUICK_DAYS if quick else None
    plain = Workload("synthetic Table 1", None, None, sum(sum(row.jobs) for row in TABLE1), _DAYS, 1.0, 1.0, None)
    clock = round(PAPER_LOAD / offered_load(trace_of(plain), FULL_NODES), 2)
    return replace(plain, clock=clock, crowded=round(CROWDED * clock, 3), window=window)


def given(path: Path, quick: bool, table1: bool, skip_bad_rows: bool, still_running: StillRunning) -> Workload:
    """A trace of a file. Raises :class:`~hived.errors.InputError` unless it has Table 1's tenants, if it has to."""
    window = _QUICK_DAYS if quick else None
    of_file = Workload("", str(path), digest(path), 0, 0, 1.0, CROWDED, window, skip_bad_rows, still_running.value)
    trace = of_file.read()
    if table1:
        check(trace)
    return replace(of_file, name=trace.name)


def check(trace: Trace) -> None:
    """Raise :class:`~hived.errors.InputError` unless the tenants are Table 1's, all of them."""
    found = Counter(job.tenant for job in trace.jobs)
    if strange := sorted(set(found) - set(TENANTS)):
        raise InputError(
            f"{trace.name}: tenant {strange[0]} ({counted(found[strange[0]], 'job')}) is none of the paper's, "
            f"whose quotas are used: {', '.join(TENANTS)}; rename it, or leave its jobs out"
        )
    if missing := [tenant for tenant in TENANTS if not found[tenant]]:
        raise InputError(
            f"{trace.name}: no job of {', '.join(missing)}: the figures need all tenants of the paper's Table 1"
        )


def reproduce(
    out: Path,
    trace: Path | None = None,
    *,
    paper: Paper = Paper.HIVED,
    skip_bad_rows: bool = False,
    still_running: StillRunning = StillRunning.KEEP,
    quick: bool = False,
    only: Sequence[str] = (),
    processes: int | None = 1,
    finished: Callable[[int, int], None] | None = None,
) -> Report:
    """Run every simulation of a paper's evaluation that ``out`` does not have yet, and write the report to ``out``.

    ``quick``: less of everything. What is not made by hand is not judged then. ``only``: the names of experiments.
    ``processes``: None for all cores.

    Without ``trace`` on the synthetic trace; with one on that, and most experiments on the synthetic one too. The same
    arguments give the same bytes, but for the file of timings, whatever ``processes`` is and however often it was
    interrupted.

    Raises :class:`~hived.errors.InputError`, and :class:`~hived.simulator.parallel.TaskError` for a failure.
    """
    if find_spec("matplotlib") is None or find_spec("jinja2") is None:
        raise InputError(
            "a report has figures, which need matplotlib, and a text, which needs jinja2: "
            "pip install -e '.[figures]' jinja2"
        )
    check_folder(out)
    evaluation = EVALUATIONS[paper]
    known = [experiment.name for experiment in evaluation.experiments]
    for name in only:
        if name not in known:
            raise InputError(f"--only {name}: no such experiment; there are {', '.join(known)}")
    chosen = [experiment for experiment in evaluation.experiments if not only or experiment.name in only]
    scale = QUICK if quick else FULL
    first = synthetic(quick) if trace is None else given(trace, quick, evaluation.table1, skip_bad_rows, still_running)
    second = synthetic(quick) if trace is not None and not quick and evaluation.table1 else None
    runs = [
        (one, workload, one.simulations(workload, scale))
        for workload in (first, second)
        for one in chosen
        if workload is not None and (workload is first or one.second)
    ]
    timing = Trial(section53.measure, (scale.requests,)).task("section 5.3") if evaluation.timed and not only else None
    tasks: dict[str, tuple[float, Task]] = {}
    for one, workload, simulations in runs:
        for name, simulation in simulations.items():
            task = simulation.task(f"{one.name} {name} on {workload.name}")
            tasks.setdefault(task.key(), (simulation.cost, task))
    longest = [task for _, task in sorted(tasks.values(), key=lambda pair: -pair[0])]
    parts = {one.name: Part(one, []) for one in chosen}
    with kept_results(out / RUNS) as kept:
        run_tasks([*longest, *([timing] if timing else [])], kept, processes, finished)
        for one, workload, simulations in runs:
            results = {name: Result(kept.result(simulation.task(name))) for name, simulation in simulations.items()}
            outcome = one.evaluate(workload, scale, results)
            parts[one.name].outcomes.append((workload, outcome.unjudged() if quick and not one.by_hand else outcome))
        timed = kept.result(timing) if timing else None
        report = Report(paper, first, second, scale, quick, tuple(parts.values()), timed)
        write(report, out)
    return report


def check_folder(out: Path) -> None:
    """Raise :class:`~hived.errors.InputError` unless ``out`` is a folder of a reproduction, empty, or not there."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file, not a folder for a report; choose another --out")
    if out.is_dir():
        strange = sorted(path.name for path in out.iterdir() if path.name != RUNS and not is_ours(path))
        if strange:
            raise InputError(
                f"{out}: holds other files than a report's ({', '.join(strange[:3])}), and they are never mixed; "
                "choose another --out"
            )
