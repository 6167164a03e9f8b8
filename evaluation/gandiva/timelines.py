"""Figures 7 to 11: small clusters, event by event, with jobs made by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from hived.simulator.record import Record
from hived.simulator.traces import TraceJob

from ..drawing import Panel, over_time
from ..experiment import Results, Scale, Trials, counted
from ..measures import Floats
from ..simulations import MINUTE_MS, Trial, Workload, made
from .base import GANDIVA, migrations, played

_LONG = 1_000.0
Plain = Mapping[str, Any]


def at(plain: Plain, what: str, name: str, minute: float) -> float:
    """The rate, share or GPUs of a job at a minute."""
    return float(plain[what][name][int(np.argmin(np.abs(np.asarray(plain["minutes"]) - minute)))])


def figure_7(plain: Plain) -> dict[str, Any]:
    """Jobs of one, two and four GPUs, more than four servers have."""
    servers: dict[str, list[str]] = defaultdict(list)
    for name, places in plain["where"].items():
        for node in places["30.5"]:
            servers[node].append(name.partition("-")[0])
    return {
        "ones": [names.count("one") for names in servers.values()],
        "mixed": sum(len(set(names)) > 1 for names in servers.values()),
        "shares": sorted({f"{at(plain, 'share', f'one-{n}', 30):.3f}" for n in range(12)}),
    }


def figure_8(plain: Plain) -> dict[str, Any]:
    """A job of 8 GPUs, and jobs of two that find free GPUs on several servers alone."""
    return {
        "apart": [len(plain["where"][f"j{n}"]["20.5"]) for n in range(1, 4)],
        "together": [len(plain["where"][f"j{n}"]["30.5"]) for n in range(4)],
        "rates": [[at(plain, "rate", f"j{n}", minute) for minute in (20, 30)] for n in range(1, 4)],
        "migrations": plain["migrations"],
    }


def figure_9(plain: Plain) -> dict[str, Any]:
    """Four long jobs; two short ones join after 25 minutes."""
    shares = [at(plain, "share", name, 30) for name in plain["rate"]]
    return {
        "shares": sorted({f"{share:.3f}" for share in shares}),
        "equal": all(abs(share - 4 / 6) < 1e-6 for share in shares),
        "loss": 1 - sum(at(plain, "rate", name, 30) for name in plain["rate"]) / 4,
    }


def figure_10(plain: Plain) -> dict[str, Any]:
    """Two jobs of a model that packs well, in the same time as others that do not, on one GPU."""
    late, rates = ([at(plain, what, f"sr-{n}", 40) for n in range(2)] for what in ("share", "rate"))
    return {"late": late, "rates": sum(rates)}


def figure_11(plain: Plain) -> dict[str, Any]:
    """An elastic job among short ones."""
    return {"gpus": [gpus for gpus, _ in groupby(round(value) for value in plain["gpus"]["grower"] if value)]}


class Case(NamedTuple):
    """A figure."""

    jobs: Sequence[TraceJob]
    servers: int
    policy: str
    last: float  #: minute shown
    series: Callable[[Plain], dict[str, Any]]


CASES = {
    "fig7": Case(
        [
            *[made(f"one-{n}", 1, _LONG, n / 100) for n in range(4)],
            made("two-0", 2, _LONG, 1),
            made("two-1", 2, _LONG, 1),
            made("four-0", 4, _LONG, 2),
            *[made(f"one-{n}", 1, _LONG, n) for n in range(4, 12)],
            made("four-1", 4, _LONG, 21),
        ],
        4, "gandiva:packs=false", 40, figure_7,
    ),
    "fig8": Case(
        [
            made("deepspeech", 8, 23, 0, "DeepSpeech"),
            made("j0", 2, _LONG, 0),
            made("filler-6", 2, _LONG, 0),  # beside it, so that its server is full
            *[made(f"filler-{n}", 3, _LONG, 1) for n in range(6)],
            *[made(f"j{n}", 2, _LONG, 2 + n, "ResNet-50") for n in range(1, 4)],
        ],
        9, "gandiva", 40, figure_8,
    ),
    "fig9": Case(
        [
            *[made(f"long-{n}", 1, 90, 0, "ResNet-50") for n in range(4)],
            *[made(f"short-{n}", 1, 10, 25, "ResNet-50") for n in range(2)],
        ],
        1, "gandiva:packs=false", 60, figure_9,
    ),
    "fig10": Case(
        [
            *[made(f"other-{n}", 1, _LONG, 0, "ResNext-50") for n in range(3)],  # have the other GPUs
            made("sr-0", 1, 60, 0, "SR"),
            made("sr-1", 1, 60, 5, "SR"),
        ],
        1, "gandiva", 60, figure_10,
    ),
    "fig11": Case(
        [
            made("grower", 1, 400, elastic=True),
            made("short-1", 1, 25),
            made("short-2", 2, 45),
            made("two", 2, 60, 75),
            made("one", 1, 60, 90),
        ],
        1, "gandiva", 120, figure_11,
    ),
}  # fmt: skip


def carry_out(figure: str) -> dict[str, Any]:
    """Simulate a figure: rates, shares and GPUs of each job by the minute, and where the jobs are."""
    case = CASES[figure]
    record = played(case.jobs, case.servers, case.policy)
    minutes = np.arange(0.05, case.last, 0.1)
    where = {one.job_id: {f"{at:g}": nodes_at(record, one.job_id, at) for at in (20.5, 30.5)} for one in case.jobs}
    return {
        "minutes": minutes.tolist(),
        **{what: progress(record, minutes, what) for what in ("rate", "share", "gpus")},
        "where": where,
        "migrations": migrations(record),
    }


def progress(record: Record, minutes: Floats, what: str) -> dict[str, list[float]]:
    """The rate, share or GPUs of each job at these minutes. O(runs * minutes)."""
    found = {one.job_id: np.zeros(len(minutes)) for one in record.jobs}
    for run in record.runs:
        inside = (minutes * MINUTE_MS >= run.start) & (minutes * MINUTE_MS < run.end)
        found[record.jobs[run.job].job_id][inside] += getattr(run, what)
    return {name: values.tolist() for name, values in found.items()}


def nodes_at(record: Record, name: str, minute: float) -> list[str]:
    """The servers of a job at a minute."""
    runs = [run for run in record.runs if run.start <= minute * MINUTE_MS < run.end]
    return sorted({pod.node for run in runs if record.jobs[run.job].job_id == name for pod in run.placement.pods})


def _series(figure: str, workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    plain, case = results["run"].plain, CASES[figure]
    shown = [name for name in plain["rate"] if not name.startswith(("other", "filler"))][:6]
    minutes: Floats = np.asarray(plain["minutes"])
    total = np.sum([np.asarray(values) for values in plain["rate"].values()], axis=0)
    lines = {name: (minutes, np.asarray(plain["rate"][name])) for name in shown}
    panels = [Panel("rate", lines), Panel("sum of all", {"all": (minutes, total)})]
    title = f"Gandiva, Figure {figure[3:]}: progress of jobs over time (simulated)"
    return {
        "cluster": f"{counted(case.servers, 'server')} of 4 GPUs, policy {case.policy}",
        **case.series(plain),
        "figures": {f"gandiva-{figure}": partial(over_time, title, panels, "minutes")},
    }


def _simulations(figure: str, workload: Workload, scale: Scale) -> Trials:
    return {"run": Trial(carry_out, (figure,))}


for _name in CASES:
    GANDIVA.add(_name, partial(_simulations, _name), partial(_series, _name), by_hand=True)
