"""Searches of hyper-parameters as multi-jobs (Gandiva, 6.2 and 6.4): Figures 14 and 18, Tables 3 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

import numpy as np

from hived.simulator.models import assign_models
from hived.simulator.multi_job import Curve, Explorer, MultiJob, draw_slow

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
#: minutes of a whole training, by the rows without Gandiva. Table 3: GPU minutes of a configuration, by the line
#: through the row of 4 GPUs. Table 4: three rounds of 16 come before the second position, five before the third, so
#: that a training takes 884 to 905 minutes; the first position takes 0.15 of one, five evaluations
RUN_MIN, TABLE4_RUN_MIN = 29.9, 894.0
CONFIGURATIONS, TARGET, WORST, EVERY = 374, 0.84, 0.1, 0.03
#: one that has the accuracy that is looked for is better by up to this in the end. Ours
_BETTER = 0.05
#: the middle of how slow learning curves are: one that ends halfway between the first two accuracies of Table 4, and is
#: submitted with the second eight, takes as long as the first position
SLOW = 0.045
#: the error of first estimates, how slow curves are, and whether FIFO too ends those that promise too little; others
USUAL = (0.05, SLOW, False)
CHANGED = ((0.0, SLOW, False), (0.1, SLOW, False), (0.05, SLOW / 2, False), (0.05, SLOW * 2, False), (0.05, SLOW, True))
#: Figure 14 compares when so many have been evaluated under Gandiva; its axis ends at these minutes
_EVALUATED, _MINUTES = 300, 180


def _curves(finals: Sequence[float], slow: float, random: Random) -> tuple[Curve, ...]:
    return tuple([Curve(final, draw_slow(random, slow)) for final in finals])


def _least(policy: str, stops: bool) -> float:
    """What a configuration has to promise."""
    return 0.3 if stops or policy != POLICIES["FIFO"] else -inf


def _explore(
    policy: str, gpus: int, finals: Sequence[float], target: float, run_min: float, seed: int,
    error: float, slow: float, stops: bool, random: Random,
) -> Explorer:  # fmt: skip
    top = gpus // 2
    one = MultiJob(
        "search", "all", 1, run_min * 60, _curves(finals, slow, random), target, first=top, more=top, every=EVERY,
        top=top, least=_least(policy, stops), error=error, model="LeNet-like", seed=seed,
    )  # fmt: skip
    explorer = Explorer([one], 0, policy != POLICIES["FIFO"])
    play(servers(4, {"all": gpus // 4}), [], policy, driver=explorer)
    return explorer


def search(policy: str, seed: int, gpus: int, position: int, error: float, slow: float, stops: bool) -> dict[str, Any]:
    """Minutes until the search has ended, and configurations evaluated by the minute.

    Final accuracies are uniform below the target, but for the one at ``position`` (from 1).
    """
    random = Random(seed)
    finals = [random.uniform(WORST, TARGET) for _ in range(CONFIGURATIONS)]
    finals[position - 1] = random.uniform(TARGET, TARGET + _BETTER)
    explorer = _explore(policy, gpus, finals, TARGET, RUN_MIN, seed, error, slow, stops, random)
    by_minute = np.zeros(_MINUTES + 1)
    for time, count in explorer.explored["search"]:
        by_minute[min(_MINUTES + 1, -(-time // MINUTE_MS)) :] = count
    return {"minutes": explorer.ended.get("search", 0) / MINUTE_MS, "explored": by_minute.tolist()}


def accuracies(policy: str, seed: int, error: float, slow: float, stops: bool) -> dict[str, Any]:
    """Minutes until a search on 16 GPUs has found each accuracy of Table 4 (0: it has not), all by one search.

    The first configuration that has one of them is at its position: those before it are uniform below it.
    """
    random = Random(seed)
    last = TABLE4[-1][0]
    highest = [accuracy for accuracy, *_ in TABLE4[1:]] + [last + _BETTER]
    finals: list[float] = []
    for (accuracy, position, *_), above in zip(TABLE4, highest, strict=True):
        finals += [random.uniform(WORST, accuracy) for _ in range(position - 1 - len(finals))]
        finals.append(random.uniform(accuracy, above))
    finals += [random.uniform(WORST, last) for _ in range(100 - len(finals))]
    explorer = _explore(policy, 16, finals, last, TABLE4_RUN_MIN, seed, error, slow, stops, random)
    best = explorer.best["search"]
    found = [next((time for time, accuracy in best if accuracy >= one), 0) for one, *_ in TABLE4]
    return {"minutes": [time / MINUTE_MS for time in found]}


def _seeds(scale: Scale, most: int = 7) -> range:
    return range(1, 1 + scale.of(most, 1))


def _found(results: Results, scale: Scale, what: str, *arm: float) -> list[list[Any]]:
    """What the search of each seed has found, under FIFO and under Gandiva. ``arm``: all but policy and seed."""
    return [[results[(*arm, name, seed)].plain[what] for seed in _seeds(scale)] for name in POLICIES]


def _median(minutes: Sequence[float]) -> float:
    """NaN if some search has not ended."""
    return float(np.median(minutes)) if all(minutes) else float("nan")


def _medians(results: Results, scale: Scale, *arm: float) -> list[float]:
    """Median minutes over the seeds, FIFO and Gandiva."""
    return [_median(of_seeds) for of_seeds in _found(results, scale, "minutes", *arm)]


def _sooner(base: float, ours: float) -> str:
    return f"{number(base)}, {number(ours)} ({base / ours:.2f} times)"


def _near(ours: float, paper: float) -> bool:
    """Within a quarter."""
    return 0.75 <= ours / paper <= 1.25


def _changed(error: float, slow: float, stops: bool) -> str:
    """What differs from the usual setting, for a row."""
    words = [f"error {error:g}"] * (error != USUAL[0]) + [f"`slow` {slow:g}"] * (slow != USUAL[1])
    return "".join(f", {one}" for one in [*words, *["FIFO ends what promises less than 30%"] * stops])


def _by_position(workload: Workload, scale: Scale) -> Trials:
    """By GPUs and position, what is changed, policy and seed."""
    sizes, positions = scale.of(*_SIZES)
    arms = [(gpus, position, *USUAL) for gpus in sizes for position in positions]
    arms += [(4, POSITIONS[-1], *change) for change in scale.of(CHANGED, ())]
    return {
        (*arm, name, seed): Trial(search, (policy, seed, *arm), arm[1] / 20)
        for name, policy in POLICIES.items()
        for arm in arms
        for seed in _seeds(scale)
    }


@GANDIVA.of("fig14", _by_position)
def figure_14(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """A search on 4 and on 16 GPUs, and Table 3 by simulation."""
    sizes, positions = scale.of(*_SIZES)
    found, panels = [], []
    for gpus in sizes:
        fifo, ours = (np.mean(of, axis=0) for of in _found(results, scale, "explored", gpus, positions[-1], *USUAL))
        minute = int(np.searchsorted(ours, min(_EVALUATED, ours[-1])))
        rows = [
            (position, (BASELINE[gpus][at], GANDIVAS[gpus][at]), *_medians(results, scale, gpus, position, *USUAL))
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
        "near": all(_near(ours, paper[1]) for one in found for _, paper, _, ours in one["found"]),
        "factors": [one["ours"] / one["fifo"] for one in found],
        "perturbed": [
            (*change, *_medians(results, scale, 4, POSITIONS[-1], *change)) for change in scale.of(CHANGED, ())
        ],
        "slow": SLOW,
        "sooner": _sooner,
        "changed": _changed,
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
    """By what is changed, policy and seed."""
    return {
        (*change, name, seed): Trial(accuracies, (policy, seed, *change))
        for name, policy in POLICIES.items()
        for change in (USUAL, *scale.of(CHANGED, ()))
        for seed in _seeds(scale, 21)
    }


@GANDIVA.of("table4", _by_accuracy)
def table_4(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """A search on 16 GPUs, by the accuracy that it looks for."""
    settings: list[dict[str, Any]] = []
    for change in (USUAL, *scale.of(CHANGED, ())):
        of = {
            name: np.asarray([results[*change, name, seed].plain["minutes"] for seed in _seeds(scale, 21)])
            for name in POLICIES
        }
        rows = [
            {
                "target": target, "position": position, "paper": paper,
                "minutes": [_median(minutes[:, at].tolist()) for minutes in of.values()],
                "most": [float(one) for minutes in of.values() for one in np.percentile(minutes[:, at], (5, 95))],
            }
            for at, (target, position, *paper) in enumerate(TABLE4)
        ]  # fmt: skip
        settings.append({"change": change, "rows": rows})
    gains = [base / ours for base, ours in (row["minutes"] for row in settings[0]["rows"])]
    near = all(_near(row["minutes"][1], row["paper"][1]) for row in settings[0]["rows"])
    return {
        "seeds": len(_seeds(scale, 21)),
        "settings": settings,
        "gains": gains,
        "near": near,
        "sooner": _sooner,
        "changed": _changed,
    }


# -- Figure 18 ---------------------------------------------------------------------------------------------------------

SEARCHES = ("search-1", "search-2")
#: GPUs of a search, its configurations, and the minute of its start; what it looks for, which one of them has. Ours:
#: minutes of a whole training, 100,000 mini-batches of 0.6 s
GPUS, CHOICES, START, LOOKED_FOR, RUN, LOAD, SEEDS = 8, 40, 5607.0, 0.85, 1000.0, 0.8, 5
#: policy, and what the paper says
ARMS = {
    "FIFO": ("yarn-cs", "13.6 and 12.9 times as long"),
    "slicing": ("gandiva:packs=false:migrates=false:most_height=1000", "7 times"),
    "slicing and migration": ("gandiva:packs=false:most_height=1000", "1,216 and 1,111"),
}
#: sharing, load of the others, what the speed between servers is multiplied with (2: a VGG-like model loses nothing),
#: whether the one that qualifies is the last in line, minutes of a whole training, and how slow curves are
_Setting = tuple[str, float, float, bool, float, float]
_USUAL: _Setting = ("quota", LOAD, 1.0, False, RUN, SLOW)
_NO_LOSS: _Setting = ("quota", LOAD, 2.0, False, RUN, SLOW)
_BUSIER: _Setting = ("quota", 1.1, 1.0, False, RUN, SLOW)
_SETTINGS: tuple[_Setting, ...] = (
    _USUAL,
    _NO_LOSS,
    ("quota", LOAD, 1.0, True, RUN, SLOW),
    _BUSIER,
    ("quota", 1.1, 2.0, False, RUN, SLOW),
    ("hived", LOAD, 1.0, False, RUN, SLOW),
    ("quota", LOAD, 1.0, False, 2 * RUN, SLOW),
    *[("quota", LOAD, 1.0, False, RUN, slow) for slow in (SLOW / 2, SLOW * 2)],
)


def busy_search(
    workload: Workload,
    policy: str,
    days: float,
    seed: int,
    sharing: str,
    load: float,
    across: float,
    last: bool,
    run_min: float,
    slow: float,
) -> dict[str, Any]:
    """Minutes from the start of two searches in a busy cluster to the end of each; 0: not ended."""
    others = [
        one._replace(tenant="others", gpus=power_of_two(one.gpus), soft=True)
        for one in drawn(workload, load * (SERVERS * 4 - 2 * GPUS), days, seed)
    ]
    jobs = assign_models(others, MIX, seed)
    start = START / DAYS * days
    searches = []
    for at, name in enumerate(SEARCHES):
        random = Random(100 * seed + at)
        finals = [random.uniform(WORST, LOOKED_FOR) for _ in range(CHOICES)]
        finals[-1 if last else random.randrange(CHOICES)] = random.uniform(LOOKED_FOR, LOOKED_FOR + _BETTER)
        searches.append(MultiJob(
            name, name, 2, run_min * 60, _curves(finals, slow, random), LOOKED_FOR, start * 60, first=CHOICES,
            every=EVERY, top=2, least=_least(policy, False), model="VGG-like", seed=seed, soft=True,
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
        (setting, arm, seed): Trial(busy_search, (workload, policy, days, seed, *setting), 20.0)
        for setting in scale.of(_SETTINGS, _SETTINGS[:1])
        for arm, (policy, _) in ARMS.items()
        for seed in _seeds(scale, SEEDS)
    }


@GANDIVA.of("fig18", _busy_searches)
def figure_18(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Two multi-jobs in a busy cluster, and what migration adds to time-slicing."""
    minutes: dict[tuple[_Setting, str], list[float]] = {}
    for (setting, arm, _), result in results.items():
        minutes.setdefault((setting, arm), []).extend(result.plain[one] for one in SEARCHES)
    arms = [
        {
            "name": name, "setting": _setting(*setting), "paper": ARMS[name][1],
            "minutes": of, "median": float(np.median(of)),
        }
        for (setting, name), of in minutes.items()
    ]  # fmt: skip

    def added(setting: _Setting) -> float:
        """How much sooner it is with migration."""
        slicing, both = (minutes.get((setting, name), [1.0]) for name in list(ARMS)[1:])
        return float(np.median(slicing) / np.median(both))

    return {
        "arms": arms,
        "sooner": min(added(_USUAL), added(_BUSIER)) > 1,
        "locality": added(_USUAL) > 1.05 * added(_NO_LOSS),
        "seeds": len(_seeds(scale, SEEDS)),
    }


def _setting(sharing: str, load: float, across: float, last: bool, run: float, slow: float) -> str:
    """A setting, for a row."""
    words = ["HiveD's virtual clusters" if sharing == "hived" else "quota"]
    words += [f"load {load:g}"] * (load != LOAD) + ["no loss between servers"] * (across != 1)
    words += ["it comes last"] * last + [f"a training of {run:,g} minutes"] * (run != RUN)
    return ", ".join([*words, *[f"`slow` {slow:g}"] * (slow != SLOW)])
