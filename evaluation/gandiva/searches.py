"""Searches of hyper-parameters as multi-jobs (Gandiva, 6.2 and 6.4): Figures 14 and 18, Tables 3 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import numpy as np

from hived.simulator.models import assign_models
from hived.simulator.multi_job import Explorer, MultiJob

from ..clusters import servers
from ..drawing import Panel, over_time
from ..experiment import Results, Scale, Trials, nothing, number
from ..simulations import MINUTE_MS, Trial, Workload, drawn, perturbed, play, power_of_two
from .base import GANDIVA
from .sharing import DAYS, MIX, SERVERS

#: every configuration has turns, however many there are
POLICIES = {"FIFO": "yarn-cs", "Gandiva": "gandiva:packs=false:most_height=1000"}
#: Table 3: position of the configuration that qualifies; minutes without and with Gandiva, on 4 and on 16 GPUs
POSITIONS = (93, 187, 280, 365)
#: GPUs and positions, and in a quick run
_SIZES = ((4, 16), POSITIONS), ((4,), POSITIONS[:1])
BASELINE = {4: (691.5, 1373.0, 2067.2, 2726.4), 16: (253.0, 492.7, 731.7, 970.0)}
GANDIVAS = {4: (125.5, 213.8, 302.4, 387.1), 16: (74.4, 103.7, 135.4, 162.6)}
#: Table 4: accuracy, position of the first configuration that has it, minutes without and with Gandiva
TABLE4 = ((0.7, 15, 134.1, 134.1), (0.8, 58, 2849.1, 543.1), (0.9, 87, 5296.7, 935.4))
#: minutes of a whole training: in Table 3 what is spent once in the row of 4 GPUs, by the line through it
RUN_MIN, TABLE4_RUN_MIN = 35.2, 134.1
CONFIGURATIONS, TARGET, WORST = 374, 0.84, 0.1
#: Figure 14 compares when so many have been evaluated under Gandiva; its axis ends at these minutes
_EVALUATED, _MINUTES = 300, 180
_ERROR, _ERRORS = 0.05, (0.0, 0.1)


def search(
    policy: str, gpus: int, configurations: int, position: int, target: float, run_min: float, seed: int, error: float
) -> dict[str, Any]:
    """Minutes until the search has ended, and configurations evaluated by the minute.

    Final accuracies are uniform below the target, but for the one at ``position`` (from 1).
    """
    random = Random(seed)
    found = [random.uniform(WORST, target) for _ in range(configurations)]
    found[position - 1] = target
    top = gpus // 2
    one = MultiJob(
        "search", "all", 1, run_min * 60, tuple(found), target, first=top, more=top, top=top, error=error,
        model="LeNet-like", seed=seed,
    )  # fmt: skip
    explorer = Explorer([one], 0, policy != POLICIES["FIFO"])
    play(servers(4, {"all": gpus // 4}), [], policy, driver=explorer)
    by_minute = np.zeros(_MINUTES + 1)
    for time, count in explorer.explored["search"]:
        by_minute[min(_MINUTES + 1, -(-time // MINUTE_MS)) :] = count
    return {"minutes": explorer.ended.get("search", 0) / MINUTE_MS, "explored": by_minute.tolist()}


def _seeds(scale: Scale, most: int = 7) -> range:
    return range(1, 1 + scale.of(most, 1))


def _searches(
    scale: Scale, arms: Sequence[tuple[int, int, float, float]], configurations: int, run_min: float
) -> Trials:
    """By GPUs, position, error, policy and seed. ``arms``: GPUs, position, target and error."""
    return {
        (gpus, position, error, name, seed): Trial(
            search, (policy, gpus, configurations, position, target, run_min, seed, error), position / 100
        )
        for name, policy in POLICIES.items()
        for gpus, position, target, error in arms
        for seed in _seeds(scale)
    }


def _found(results: Results, scale: Scale, what: str, *arm: float) -> list[list[Any]]:
    """What the search of each seed has found, under FIFO and under Gandiva. ``arm``: GPUs, position, and error."""
    return [[results[(*arm, name, seed)].plain[what] for seed in _seeds(scale)] for name in POLICIES]


def _medians(results: Results, scale: Scale, *arm: float) -> list[float]:
    """Median minutes over the seeds, FIFO and Gandiva; NaN if some search has not ended."""
    found = _found(results, scale, "minutes", *arm)
    return [float(np.median(of_seeds)) if all(of_seeds) else float("nan") for of_seeds in found]


def _sooner(base: float, ours: float) -> str:
    return f"{number(base)}, {number(ours)} ({base / ours:.2f} times)"


def _by_position(workload: Workload, scale: Scale) -> Trials:
    sizes, positions = scale.of(*_SIZES)
    arms = [(gpus, position, TARGET, _ERROR) for gpus in sizes for position in positions]
    arms += [(4, POSITIONS[-1], TARGET, error) for error in scale.of(_ERRORS, ())]
    return _searches(scale, arms, CONFIGURATIONS, RUN_MIN)


@GANDIVA.of("fig14", _by_position)
def figure_14(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """A search on 4 and on 16 GPUs, and Table 3 by simulation."""
    sizes, positions = scale.of(*_SIZES)
    found, panels = [], []
    for gpus in sizes:
        fifo, ours = (np.mean(of, axis=0) for of in _found(results, scale, "explored", gpus, positions[-1], _ERROR))
        minute = int(np.searchsorted(ours, min(_EVALUATED, ours[-1])))
        rows = [
            (position, (BASELINE[gpus][at], GANDIVAS[gpus][at]), *_medians(results, scale, gpus, position, _ERROR))
            for at, position in enumerate(positions)
        ]
        found.append({"gpus": gpus, "minute": minute, "fifo": fifo[minute], "ours": ours[minute], "found": rows})
        minutes = np.arange(_MINUTES + 1, dtype=float)
        panels.append(Panel(f"evaluated, {gpus} GPUs", {"FIFO": (minutes, fifo), "Gandiva": (minutes, ours)}))
    title = "Gandiva, Figure 14: configurations evaluated (simulated)"
    return {
        "seeds": len(_seeds(scale)),
        "sizes": found,
        "gains": [base / ours for one in found for *_, base, ours in one["found"]],
        "factors": [one["ours"] / one["fifo"] for one in found],
        "perturbed": [(error, *_medians(results, scale, 4, POSITIONS[-1], error)) for error in scale.of(_ERRORS, ())],
        "sooner": _sooner,
        "figures": {"gandiva-fig14": partial(over_time, title, panels, "minutes")},
    }


def fitted(minutes: Sequence[float], gpus: int) -> tuple[float, float]:
    """GPU minutes of a configuration, and minutes that are spent once: the least-squares line through a row."""
    slope, once = np.polyfit(POSITIONS, minutes, 1)
    return float(slope) * gpus, float(once)


def predicted(each: float, once: float, gpus: int) -> list[float]:
    """Minutes on ``gpus`` GPUs: configurations share all GPUs, the full run of the best one is exclusive."""
    return [each * position / gpus + once for position in POSITIONS]


@GANDIVA.of("table3", nothing)
def table_3(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """One row fitted, the other predicted. Both are the paper's, so that nothing here is a result of ours."""
    fits, ours = [], []
    for name, table in (("without Gandiva", BASELINE), ("with Gandiva", GANDIVAS)):
        each, once = fitted(table[4], 4)
        ours.append(predicted(each, once, 16))
        rows = list(zip(POSITIONS, table[16], ours[-1], strict=True))
        fits.append({"name": name, "each": each, "once": once, "rows": rows})
    return {"fits": fits, "gains": [base / with_it for base, with_it in zip(*ours, strict=True)]}


def _by_accuracy(workload: Workload, scale: Scale) -> Trials:
    arms = [(16, position, target, _ERROR) for target, position, *_ in TABLE4]
    return _searches(scale, arms, 100, TABLE4_RUN_MIN)


@GANDIVA.of("table4", _by_accuracy)
def table_4(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """A search on 16 GPUs, by the accuracy that it looks for."""
    found: list[dict[str, Any]] = []
    for target, position, *paper in TABLE4:
        base, ours = _medians(results, scale, 16, position, _ERROR)
        found.append({"target": target, "position": position, "paper": paper, "base": base, "ours": ours})
    gains = [one["base"] / one["ours"] for one in found]
    return {"seeds": len(_seeds(scale)), "found": found, "gains": gains, "sooner": _sooner}


# -- Figure 18 ---------------------------------------------------------------------------------------------------------

SEARCHES = ("search-1", "search-2")
#: GPUs of a search; 100,000 mini-batches of 0.6 s
GPUS, CHOICES, RUN, START, LOAD, SEEDS = 8, 40, 1000.0, 5607.0, 0.8, 5
#: policy, and what the paper says
ARMS = {
    "FIFO": ("yarn-cs", "13.6 and 12.9 times as long"),
    "slicing": ("gandiva:packs=false:migrates=false:most_height=1000", "7 times"),
    "slicing and migration": ("gandiva:packs=false:most_height=1000", "1,216 and 1,111"),
}
#: sharing, what the speed between servers is multiplied with (2: a VGG-like model loses nothing), whether the best
#: configuration is the last in line
_SETTINGS = (("quota", 1.0, False), ("quota", 1.0, True), ("quota", 2.0, False), ("hived", 1.0, False))


def busy_search(
    workload: Workload, policy: str, sharing: str, days: float, seed: int, across: float, last: bool
) -> dict[str, Any]:
    """Minutes from the start of two searches in a busy cluster to the end of each; 0: not ended."""
    others = [
        one._replace(tenant="others", gpus=power_of_two(one.gpus), soft=True)
        for one in drawn(workload, LOAD * (SERVERS * 4 - 2 * GPUS), days, seed)
    ]
    jobs = assign_models(others, MIX, seed)
    start = START / DAYS * days
    searches = []
    for at, name in enumerate(SEARCHES):
        random = Random(100 * seed + at)
        found = [random.uniform(0.1, 0.9) for _ in range(CHOICES)]
        if last:
            found.append(found.pop(found.index(max(found))))
        searches.append(MultiJob(
            name, name, 2, RUN * 60, tuple(found), max(found), start * 60, first=CHOICES, top=2, model="VGG-like",
            seed=seed, soft=True,
        ))  # fmt: skip
    explorer = Explorer(searches, len(jobs), policy != "yarn-cs")
    shares = {"others": SERVERS - 2 * GPUS // 4, **dict.fromkeys(SEARCHES, GPUS // 4)}
    models = perturbed("across_nodes", across)
    play(servers(4, shares), jobs, policy, sharing, models=models, driver=explorer)
    return {name: (explorer.ended.get(name, 0) - start * MINUTE_MS) / MINUTE_MS for name in SEARCHES}


def _busy_searches(workload: Workload, scale: Scale) -> Trials:
    """By setting, arm and seed."""
    days = scale.of(DAYS, 1.0)
    return {
        ((sharing, across, last), arm, seed): Trial(
            busy_search, (workload, policy, sharing, days, seed, across, last), 20.0
        )
        for sharing, across, last in scale.of(_SETTINGS, _SETTINGS[:1])
        for arm, (policy, _) in ARMS.items()
        for seed in _seeds(scale, SEEDS)
    }


@GANDIVA.of("fig18", _busy_searches)
def figure_18(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Two multi-jobs in a busy cluster, and what migration adds to time-slicing."""
    minutes: dict[tuple[tuple[str, float, bool], str], list[float]] = {}
    for (setting, arm, _), result in results.items():
        minutes.setdefault((setting, arm), []).extend(result.plain[one] for one in SEARCHES)
    arms = [
        {
            "name": name, "sharing": sharing, "across": across, "last": last, "paper": ARMS[name][1],
            "minutes": of, "median": float(np.median(of)),
        }
        for ((sharing, across, last), name), of in minutes.items()
    ]  # fmt: skip
    return {"arms": arms, "seeds": len(_seeds(scale, SEEDS))}
