"""Figure 15, Table 5 and Figure 17: sharing of 180 and of 100 GPUs against bin packing without over-subscription."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

import numpy as np

from hived.simulator.models import Models, assign_models
from hived.simulator.record import Record
from hived.simulator.traces import TraceJob

from ..against_private import add_private
from ..drawing import Panel, over_time
from ..experiment import Results, Scale, Trials
from ..measures import completion, gpu_time, makespan, rounded
from ..simulations import (
    MINUTE_MS,
    UNCHANGED,
    Trial,
    Workload,
    drawn,
    made,
    perturbed,
    power_of_two,
    trace_label,
)
from .base import GANDIVA, PERTURBED, migrations, played

SERVERS, DAYS, MIX = 25, 9.0, "cv=10,nlp=60,speech=30"
LOADS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
#: what the jobs train: models by the paper's parts, or nothing that is known, which packing and locality do not change
MIXES = {"models 10:60:30": MIX, "unknown models": "*=1"}
#: kinds of jobs in the order of the paper's Table 1: two, three and three, with these probabilities
_KINDS = (("VAE", "SR"), ("RHN", "SCRNN", "MI-LSTM"), ("LSTM", "ResNet-50", "ResNext-50"))
_WEIGHTS = (0.3, 0.25, 0.45)
_BATCHES, _FIRST, _LAST = 100, 20, 200


def mixed_jobs(seed: int, number: int) -> list[TraceJob]:
    """Jobs submitted within two hours, of 30 to 45 minutes alone; the two largest kinds on one, two or four GPUs."""
    random = Random(seed)
    times = sorted(random.uniform(0, 120) for _ in range(number))
    found = []
    for at, time in enumerate(times):
        (kinds,) = random.choices(_KINDS, _WEIGHTS)
        model = random.choice(kinds)
        gpus = random.choice((2, 4)) if model in ("ResNet-50", "ResNext-50") else 1
        found.append(made(f"job-{at}", gpus, random.uniform(30, 45), time, model))
    return found


def share(policy: str, jobs: int, servers: int, quantity: str, factor: float) -> dict[str, Any]:
    """Time to the first 100 mini-batches, utilization, and packings."""
    models = perturbed(quantity, factor)
    record = played(mixed_jobs(1, jobs), servers, policy, models)
    used = utilization(record, models, servers)
    return {"batches": to_batches(record, models), "used": used, "packed": packed_gpus(record)}


def to_batches(record: Record, models: Models) -> float:
    """Mean seconds from its submission until a job has done 100 mini-batches."""
    runs: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for run in record.runs:
        runs[run.job][run.start, run.end] += run.rate
    times = []
    for number, rates in runs.items():
        one = record.jobs[number]
        left = _BATCHES * models.of(one.model).batch_s * 1000
        for (start, end), rate in sorted(rates.items()):
            if rate * (end - start) >= left:
                times.append((start + left / rate - one.submit_ms) / 1000)
                break
            left -= rate * (end - start)
    return float(np.mean(times))


def utilization(record: Record, models: Models, servers: int) -> list[float]:
    """Mean utilization of all GPUs by the minute: what a job uses alone, times its rate."""
    use = np.zeros(_LAST)
    for run in record.runs:
        weight = run.gpus * models.of(record.jobs[run.job].model).utilization * run.rate
        for minute in range(run.start // MINUTE_MS, min(_LAST, -(-run.end // MINUTE_MS))):
            inside = min(run.end, (minute + 1) * MINUTE_MS) - max(run.start, minute * MINUTE_MS)
            use[minute] += weight * inside / MINUTE_MS
    return rounded(use / (4 * servers))


def packed_gpus(record: Record) -> float:
    """Mean number of GPUs with packed jobs in the time shown: the shares of the jobs on such a GPU exceed its time."""
    first, last = _FIRST * MINUTE_MS, _LAST * MINUTE_MS
    return gpu_time(record, first, last, lambda run: run.share, 1 + 1e-6) / (last - first)


#: jobs and servers, and in a quick run
_SIZES = (1_000, 45), (200, 9)
_BOTH = {"bin packing": "yarn-cs", "Gandiva": "gandiva:migrates=false:grows=false"}


def _shares(workload: Workload, scale: Scale) -> Trials:
    """By name of the policy and what is changed."""
    return {
        (name, *change): Trial(share, (policy, *scale.of(*_SIZES), *change), 20.0)
        for name, policy in _BOTH.items()
        for change in (UNCHANGED, *scale.of(PERTURBED, ()))
    }


@GANDIVA.of("fig15", _shares)
def figure_15(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Time-slicing and packing."""
    of = {key: {**one.plain, "use": float(np.mean(one.plain["used"][_FIRST:_LAST]))} for key, one in results.items()}
    base, ours = (of[name, *UNCHANGED] for name in _BOTH)
    minutes = np.arange(_LAST, dtype=float)
    lines = {name: (minutes, 100 * np.asarray(one["used"])) for name, one in (("bin packing", base), ("Gandiva", ours))}
    title = "Gandiva, Figure 15: GPU utilization of 180 GPUs (simulated)"
    jobs, servers = scale.of(*_SIZES)
    return {
        "jobs": jobs,
        "servers": servers,
        "base": base,
        "ours": ours,
        "perturbed": [
            (*change, of["Gandiva", *change], of["bin packing", *change]) for change in scale.of(PERTURBED, ())
        ],
        "figures": {"gandiva-fig15": partial(over_time, title, [Panel("utilization (%)", lines)], "minutes")},
    }


def by_load(
    workload: Workload, policy: str, load: float, days: float, mix: str, quantity: str, factor: float
) -> dict[str, Any]:
    """Completion times, makespan and migrations of jobs of the trace that ask for this load."""
    found = [one._replace(gpus=power_of_two(one.gpus)) for one in drawn(workload, load * SERVERS * 4, days)]
    jobs = assign_models(found, mix, 1)
    models = perturbed(quantity, factor)
    record = played(jobs, SERVERS, policy, models)
    times = sorted((end - one.submit_ms) / MINUTE_MS for one, end in zip(jobs, record.finish, strict=True))
    used = sum(run.gpus * run.share * (run.end - run.start) for run in record.runs if run.share < 1)
    return {
        "jobs": len(jobs),
        "families": Counter(models.of(one.model).family for one in jobs),
        "completion": completion(record),
        "makespan": makespan(record),
        "migrations": migrations(record),
        "sliced": used / sum(run.gpus * run.share * (run.end - run.start) for run in record.runs),
        "cdf": rounded(np.quantile(times, np.linspace(0, 1, 201))),
    }


def _by_load(workload: Workload, scale: Scale) -> Trials:
    """By load, mix, what is changed, and policy."""
    settings = [(load, mix, UNCHANGED) for mix in MIXES.values() for load in scale.of(LOADS, (0.8,))]
    settings += [(0.8, MIX, change) for change in scale.of(PERTURBED, ())]
    return {
        (load, mix, change, policy): Trial(
            by_load, (workload, policy, load, scale.of(DAYS, 1.0), mix, *change), 10.0 * load
        )
        for load, mix, change in settings
        for policy in ("yarn-cs", "gandiva")
    }


@GANDIVA.of("table5", _by_load)
def table_5(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """A trace of nine days, by load."""
    both: dict[tuple[float, str, tuple[str, float]], list[Mapping[str, Any]]] = {}
    for (load, mix, change, _), result in results.items():
        both.setdefault((load, mix, change), []).append(result.plain)
    swept = [
        (load, name, base, ours)
        for name, of_jobs in MIXES.items()
        for (load, mix, change), (base, ours) in both.items()
        if mix == of_jobs and change == UNCHANGED
    ]
    yarn, gandiva = both[0.8, MIX, UNCHANGED]
    percents = np.linspace(0, 100, 201)
    lines = {"YARN-CS": (np.asarray(yarn["cdf"]), percents), "Gandiva": (np.asarray(gandiva["cdf"]), percents)}
    title = f"Gandiva, Figure 17: completion times at load 0.8 ({trace_label(workload)}, simulated)"
    panels = [Panel("jobs (%)", lines, top=100)]
    gains = {name: [(load, 100 * _gain(base, ours)) for load, of, base, ours in swept if of == name] for name in MIXES}
    curves = {name: (np.asarray(gain)[:, 0], np.asarray(gain)[:, 1]) for name, gain in gains.items()}
    by = f"Gandiva, Table 5: gain in completion time by load ({trace_label(workload)}, simulated)"
    figures = {"gandiva-fig17": partial(over_time, title, panels, "completion time (minutes)")}
    if len(scale.of(LOADS, (0.8,))) > 1:
        figures["gandiva-table5"] = partial(over_time, by, [Panel("YARN-CS over Gandiva, above 1 (%)", curves)], "load")
    return {
        "days": scale.of(DAYS, 1.0),
        "jobs": gandiva["jobs"],
        "loads": swept,
        "gain": _gain,
        "least": min(_gain(base, ours) for _, _, base, ours in swept),
        "perturbed": [(*change, *of) for (_, _, change), of in both.items() if change != UNCHANGED],
        "figures": figures,
    }


def _gain(base: Mapping[str, Any], ours: Mapping[str, Any]) -> float:
    return float(base["completion"] / ours["completion"] - 1)


add_private(GANDIVA, "gandiva", MIX)
