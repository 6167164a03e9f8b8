"""Figures 7 to 11: small clusters, event by event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hived.simulator.traces import TraceJob
from hived.words import counted

from ..drawing import Panel, over_time
from ..experiment import Claim, Experiment, Outcome, Row, Scale, Shape, number, percent
from ..results import Floats, Result
from ..simulations import Workload
from ..trial import Trial
from .base import job, migrations, nodes_at, play, progress

_LONG = 1_000.0


def figure_7() -> list[TraceJob]:
    """Jobs of one, two and four GPUs, more than four servers have."""
    return [
        *[job(f"one-{n}", 1, _LONG, n / 100) for n in range(4)],
        job("two-0", 2, _LONG, 1),
        job("two-1", 2, _LONG, 1),
        job("four-0", 4, _LONG, 2),
        *[job(f"one-{n}", 1, _LONG, n) for n in range(4, 12)],
        job("four-1", 4, _LONG, 21),
    ]


def figure_8() -> list[TraceJob]:
    """A job of 8 GPUs, and jobs of two that find free GPUs on several servers alone."""
    return [
        job("deepspeech", 8, 23, 0, "DeepSpeech"),
        job("j0", 2, _LONG, 0),
        job("filler-6", 2, _LONG, 0),  # beside it, so that its server is full
        *[job(f"filler-{n}", 3, _LONG, 1) for n in range(6)],
        *[job(f"j{n}", 2, _LONG, 2 + n, "ResNet-50") for n in range(1, 4)],
    ]


def figure_9() -> list[TraceJob]:
    """Four long jobs; two short ones join after 25 minutes."""
    return [
        *[job(f"long-{n}", 1, 90, 0, "ResNet-50") for n in range(4)],
        *[job(f"short-{n}", 1, 10, 25, "ResNet-50") for n in range(2)],
    ]


def figure_10() -> list[TraceJob]:
    """Two jobs of a model that packs well, in the same time as others that do not."""
    return [job("sr-0", 1, 60, 0, "SR"), job("sr-1", 1, 60, 5, "SR")]


def figure_11() -> list[TraceJob]:
    """An elastic job among short ones."""
    return [
        job("grower", 1, 400, elastic=True),
        job("short-1", 1, 25),
        job("short-2", 2, 45),
        job("two", 2, 60, 75),
        job("one", 1, 60, 90),
    ]


#: per figure: its jobs, servers, policy, and the minutes shown
_CASES: dict[str, tuple[Callable[[], list[TraceJob]], int, str, float]] = {
    "fig7": (figure_7, 4, "gandiva:packs=false", 40),
    "fig8": (figure_8, 9, "gandiva", 40),
    "fig9": (figure_9, 1, "gandiva:packs=false", 60),
    "fig10": (figure_10, 1, "gandiva", 60),
    "fig11": (figure_11, 1, "gandiva", 120),
}


def carry_out(figure: str) -> dict[str, Any]:
    """Simulate a figure: rates, shares and GPUs of each job by the minute, and where the jobs are."""
    make, servers, policy, last = _CASES[figure]
    jobs = make()
    if figure == "fig10":  # on one GPU: the others of the server are taken
        jobs = [*[job(f"other-{n}", 1, _LONG, 0, "ResNext-50") for n in range(3)], *jobs]
    record = play(jobs, servers, policy)
    minutes = np.arange(0.05, last, 0.1)
    where = {
        one.job_id: {f"{minute:g}": nodes_at(record, one.job_id, minute) for minute in (20.5, 30.5)} for one in jobs
    }
    return {
        "minutes": minutes.tolist(),
        **{what: progress(record, minutes, what) for what in ("rate", "share", "gpus")},
        "where": where,
        "migrations": migrations(record),
    }


def _trials(figure: str, workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {"run": Trial(carry_out, (figure,))}


def _at(plain: Mapping[str, Any], what: str, name: str, minute: float) -> float:
    minutes = np.asarray(plain["minutes"])
    return float(plain[what][name][int(np.argmin(np.abs(minutes - minute)))])


def _claim(text: str, holds: bool) -> Claim:
    return Claim(text, Shape.HOLDS if holds else Shape.FAILS)


def _of_7(plain: Mapping[str, Any]) -> tuple[list[Row], list[Claim]]:
    servers: dict[str, list[str]] = {}
    for name, places in plain["where"].items():
        for node in places["30.5"]:
            servers.setdefault(node, []).append(name.partition("-")[0])
    found = sorted(" ".join(sorted(names)) for names in servers.values())
    ones = [_at(plain, "share", f"one-{n}", 30) for n in range(12)]
    rows = [
        Row(
            "jobs of one GPU on each of their servers",
            "6 and 6",
            ", ".join(str(s.count("one")) for s in found if "one" in s),
        ),
        Row("servers with jobs of several sizes", "none", str(sum(len(set(s.split())) > 1 for s in found))),
        Row("share of each job of one GPU", "4/6", ", ".join(sorted({f"{share:.3f}" for share in ones}))),
    ]
    return rows, [
        _claim("jobs of each size are on servers of their own", all(len(set(s.split())) == 1 for s in found)),
        _claim("twelve jobs of one GPU on two servers: six each", sorted(s.count("one") for s in found)[-2:] == [6, 6]),
    ]


def _of_8(plain: Mapping[str, Any]) -> tuple[list[Row], list[Claim]]:
    apart = [len(plain["where"][f"j{n}"]["20.5"]) for n in range(1, 4)]
    together = [len(plain["where"][f"j{n}"]["30.5"]) for n in range(4)]
    rates = [(_at(plain, "rate", f"j{n}", 20), _at(plain, "rate", f"j{n}", 30)) for n in range(1, 4)]
    rows = [
        Row("servers of J1, J2, J3 before the job of 8 GPUs ends", "2 each", ", ".join(map(str, apart))),
        Row("servers of J0 to J3 after it", "1 each", ", ".join(map(str, together))),
        Row(
            "rates of J1 to J3 before and after",
            "-",
            ", ".join(f"{before:.2f} and {after:.2f}" for before, after in rates),
        ),
        Row("migrations", "3", str(plain["migrations"])),
    ]
    return rows, [_claim("J1 to J3 are co-located when GPUs become free", apart == [2, 2, 2] and together == [1] * 4)]


def _of_9(plain: Mapping[str, Any]) -> tuple[list[Row], list[Claim]]:
    names = list(plain["rate"])
    shares = [_at(plain, "share", name, 30) for name in names]
    loss = 1 - sum(_at(plain, "rate", name, 30) for name in names) / 4
    rows = [
        Row("share of each of the six jobs at minute 30", "4/6", ", ".join(sorted({f"{s:.3f}" for s in shares}))),
        Row("aggregate rate lost to suspending and resuming", "< 2%", percent(loss)),
    ]
    return rows, [
        _claim("six jobs on four GPUs have 4/6 of the time each", all(abs(s - 4 / 6) < 1e-6 for s in shares)),
        _claim("less than 2% are lost", loss < 0.02),
    ]


def _of_10(plain: Mapping[str, Any]) -> tuple[list[Row], list[Claim]]:
    late = [_at(plain, "share", f"sr-{n}", 40) for n in range(2)]
    rates = [_at(plain, "rate", f"sr-{n}", 40) for n in range(2)]
    rows = [
        Row("shares of the two jobs at minute 40", "packed", ", ".join(f"{s:.2f}" for s in late)),
        Row("sum of their rates, alone 1 each", "packing gains", number(sum(rates))),
    ]
    return rows, [_claim("they take turns at first, are packed, and stay packed", late == [1.0, 1.0])]


def _of_11(plain: Mapping[str, Any]) -> tuple[list[Row], list[Claim]]:
    gpus: list[int] = []
    for value in plain["gpus"]["grower"]:
        if value and (not gpus or gpus[-1] != round(value)):
            gpus.append(round(value))
    rows = [Row("GPUs of the elastic job, in order", "1, 2, 4, 2, 1", ", ".join(map(str, gpus)))]
    return rows, [_claim("it grows from 1 to 2 to 4 GPUs and shrinks to 2 and 1", gpus[:5] == [1, 2, 4, 2, 1])]


_READ: dict[str, Callable[[Mapping[str, Any]], tuple[list[Row], list[Claim]]]] = {
    "fig7": _of_7,
    "fig8": _of_8,
    "fig9": _of_9,
    "fig10": _of_10,
    "fig11": _of_11,
}


def _evaluate(figure: str, workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    plain = results["run"].plain
    rows, claims = _READ[figure](plain)
    shown = [name for name in plain["rate"] if not name.startswith(("other", "filler"))][:6]
    minutes: Floats = np.asarray(plain["minutes"])
    total = np.sum([np.asarray(values) for values in plain["rate"].values()], axis=0)
    lines = {name: (minutes, np.asarray(plain["rate"][name])) for name in shown}
    return Outcome(
        f"{counted(_CASES[figure][1], 'server')} of 4 GPUs, policy {_CASES[figure][2]}; jobs made by hand after the "
        "paper's figure; no seed",
        rows,
        claims,
        "The paper's jobs, where it does not list them, are made so that the figure's events happen. Rates are those "
        "of the job models (docs/reference/models.md), not measured.",
        {
            f"gandiva-{figure}": partial(
                over_time,
                f"Gandiva, Figure {figure[3:]}: progress of jobs over time (simulated)",
                [Panel("rate", lines), Panel("sum of all", {"all": (minutes, total)})],
                "minutes",
            )
        },
    )


_TITLES: Sequence[tuple[str, str, str]] = (
    ("fig7", "servers by affinity", "16 GPUs in servers of one size of jobs each; those of one GPU have six jobs each"),
    ("fig8", "migration for locality", "when a job of 8 GPUs ends, jobs spread over servers move together"),
    ("fig9", "time-slicing", "six jobs on four GPUs have 4/6 of the time each; suspending costs less than 2%"),
    ("fig10", "packing", "two jobs of super-resolution are sliced, then packed, and stay packed"),
    ("fig11", "grow and shrink", "an elastic job grows from 1 to 2 to 4 GPUs, and shrinks to 2 and 1"),
)
EXPERIMENTS = tuple(
    [
        Experiment(
            name, f"Figure {name[3:]}: {title}", shows, partial(_trials, name), partial(_evaluate, name), by_hand=True
        )
        for name, title, shows in _TITLES
    ]
)
