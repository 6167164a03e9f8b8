"""HiveD's evaluation (OSDI'20), and a figure of its draft."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from hived import simulate
from hived.simulator.intervals import estimate

from .clusters import CROWDED_NODES, FULL_NODES, cluster_with
from .drawing import Panel, bars, over_time, scatter
from .experiment import Evaluation, Results, Scale, Trials, nothing, number
from .measures import Floats
from .results import Result, correlation, highest, over
from .simulations import Arm, Trial, Workload, arms, made, simulation, trace_label

HIVED = Evaluation("hived", table1=True, timed=True)
TENANT = "prod-a"


def full(workload: Workload) -> Trial:
    """The paper's cluster under all schemes."""
    return simulation(workload, FULL_NODES, arms())


def crowded(workload: Workload, **more: Any) -> Trial:
    """The paper's smaller cluster under all schemes."""
    return simulation(workload, CROWDED_NODES, arms(), **more)


def by_load(workload: Workload, scale: Scale) -> Trials:
    """The paper's cluster at faster clocks, by clock: HiveD, with static binding, and with cells of all levels.

    The paper does not give the load of its trace, and what binding and levels save depends on it.
    """
    arms_of = (Arm("hived", "hived"), Arm("static", "hived", binding="static"), Arm("levels", "hived", levels="all"))
    clocks = [workload.clock * speed for speed in scale.speeds]
    return {f"clock x{clock:.6g}": simulation(workload, FULL_NODES, arms_of, clock) for clock in clocks}


def faster(workload: Workload, scale: Scale, results: Results) -> list[tuple[str, Result]]:
    """The results of :func:`by_load`, with their loads in words."""
    clocks = [workload.clock * speed for speed in scale.speeds]
    found = [(clock, results[f"clock x{clock:.6g}"]) for clock in clocks]
    return [(f"load {result.number('load'):.2f} (clock x{clock:.3g})", result) for clock, result in found]


@HIVED.of("fig1", lambda workload, _: {"crowded": crowded(workload), "full": full(workload)}, second=True)
def figure_1(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """One tenant's delay over ten days, under quota and in its private cluster."""
    clusters, figures = [], {}
    for name, nodes in (("crowded", CROWDED_NODES), ("full", FULL_NODES)):
        result, at = results[name], results[name]["quota"].at
        first = worst_days(result)
        quota, private = (
            np.where((at >= first) & (at <= first + 10), result[arm].over_time(TENANT), np.nan)
            for arm in ("quota", "private")
        )
        peak = highest(quota)
        beside = float(private[int(np.nanargmax(quota))]) if not np.isnan(peak) else np.nan
        excess = highest(quota - private)
        clusters.append({"nodes": nodes, "first": first, "peak": peak, "beside": beside, "excess": excess})
        title = f"Figure 1: delay of {TENANT}, {nodes} nodes, 12-hour mean ({trace_label(workload)})"
        panel = Panel("delay (min)", {"private": (at, private), "quota": (at, quota)})
        figures[f"fig1-{nodes}"] = partial(over_time, title, [panel])
    return {"clusters": clusters, "figures": figures}


def worst_days(result: Result) -> float:
    """The first of the ten days with the largest mean excess of quota over private."""
    at, excess = result["quota"].at, np.nan_to_num(result.excess("quota", TENANT))
    sums = np.append(0, np.cumsum(excess))
    last = np.searchsorted(at, at + 10, side="right")
    means = (sums[last] - sums[np.arange(len(at))])[at <= max(0.0, float(at[-1]) - 10)]
    return float(at[int(np.argmax(means))]) if len(means) else 0.0


#: name, the paper's change of completion times, models of the jobs (as in its Table 3; Gandiva packs and migrates by
#: them), and arms
_POLICIES: dict[str, tuple[str, str, str, tuple[Arm, ...]]] = {
    "yarn-cs": ("YARN-CS", "+3% at most", "", arms("yarn-cs")),
    "gandiva": ("Gandiva", "-12%", "nlp=6,speech=3,cv=1", arms("gandiva")),
    "tiresias": (
        "Tiresias", "between -12% and +3%", "",
        (*arms("tiresias"), Arm("no quota", "private", "tiresias", quotas=False)),
    ),
}  # fmt: skip
#: policy and arm of the shared clusters, and what the paper says
_COLUMNS = {
    ("yarn-cs", "quota"): "+1,000 min",
    ("yarn-cs", "hived"): "never above 0",
    ("gandiva", "quota"): "up to +400 min (draft: 700)",
    ("gandiva", "hived"): "never above 0",
    ("tiresias", "quota"): "> +330 min",
    ("tiresias", "no quota"): "+1,300 min (draft)",
    ("tiresias", "hived"): "never above 0",
}


def small(workload: Workload, scale: Scale) -> Trials:
    """12 nodes, as in the testbed: windows of ten days, with each job at random, one for each seed."""
    return {
        f"{policy} {seed}": simulation(workload, 12, of_policy, days=10, share=96 / 2232, seed=seed, mix=mix)
        for seed in range(1, scale.samples + 1)
        for policy, (_, _, mix, of_policy) in _POLICIES.items()
    }


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, 5 and 95%; NaN without any."""
    known = [value for value in values if not np.isnan(value)]
    if not known:
        return np.nan, np.nan, np.nan
    low, median, high = np.percentile(known, [5, 50, 95]).tolist()
    return median, low, high


@HIVED.of("fig5", small)
def figure_5(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Medians over the samples."""
    samples = {policy: [results[f"{policy} {seed}"] for seed in range(1, scale.samples + 1)] for policy in _POLICIES}
    columns: dict[tuple[str, str], dict[str, Any]] = {}
    policies = []
    for (policy, arm), paper in _COLUMNS.items():
        excess = [highest(one.excess(arm, TENANT)) for one in samples[policy]]
        label = f"{_POLICIES[policy][0]}, {'HiveD' if arm == 'hived' else arm}"
        worse = sum(value > 1 for value in excess)
        columns[policy, arm] = {
            "label": label, "arm": arm, "paper": paper, "excess": middle(excess), "worse": worse,
            "worst": max([value for value in excess if not np.isnan(value)], default=np.nan),
        }  # fmt: skip
    for policy, (name, paper, *_) in _POLICIES.items():
        longer = [100 * (over(one["hived"].completion(), one["quota"].completion()) - 1) for one in samples[policy]]
        bad, good = (columns[policy, arm]["worse"] for arm in ("quota", "hived"))
        policies.append({"name": name, "paper": paper, "completion": middle(longer), "bad": bad, "good": good})
    of = list(columns.values())
    jobs = [one["quota"].count(TENANT, "jobs") for one in results.values()]
    return {
        "columns": of,
        "policies": policies,
        "spread": lambda values: f"{number(values[0])} ({number(values[1])} to {number(values[2])})",
        "load": np.mean([one.number("load") for one in results.values()]),
        "jobs": jobs,
        "median": np.median(jobs),
        "never": [one.number("never_fit") for one in results.values()],
        "figures": {
            "fig5-12-nodes": partial(
                bars,
                f"Figure 5a on 12 nodes: highest excess delay of {TENANT} over private, {scale.samples} samples\n"
                f"{trace_label(workload)}; lines: 5 to 95% of the samples",
                [one["label"].replace(", ", "\n") for one in of],
                {"median": [one["excess"][0] for one in of], "worst sample": [one["worst"] for one in of]},
                "excess delay (min)",
                line=0.0,
                log=False,
                spread={"median": [one["excess"][1:] for one in of]},
            )
        },
    }


def large(workload: Workload, scale: Scale) -> Trials:
    """200 nodes with the whole trace, a simulation per policy."""
    return {
        policy: simulation(workload, CROWDED_NODES, of_policy, workload.clock, mix=mix)
        for policy, (_, _, mix, of_policy) in _POLICIES.items()
    }


@HIVED.of("fig5-200", large)
def figure_5_large(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Excess of prod-a over time, and completion times."""
    policies, panels = [], []
    for policy, (name, paper, *_) in _POLICIES.items():
        result = results[policy]
        excess = {arm: result.excess(arm, TENANT) for of, arm in _COLUMNS if of == policy}
        policies.append({
            "policy": policy, "name": name, "paper": paper,
            "highest": {arm: highest(values) for arm, values in excess.items()},
            "above": {arm: [t for t in result.tenants if result.to_private(arm, t) > 1] for arm in excess},
            "ratio": over(result["hived"].completion(), result["quota"].completion()),
        })  # fmt: skip
        lines = {arm: (result[arm].at, values) for arm, values in excess.items()}
        panels.append(Panel(f"{name}\nexcess (min)", lines, log=True, bottom=None))
    title = (
        f"Figure 5a on {CROWDED_NODES} nodes: excess delay of {TENANT} over private, 12-hour mean "
        f"({trace_label(workload)})"
    )
    return {"policies": policies, "figures": {"fig5-200-nodes": partial(over_time, title, panels)}}


def figure_6(nodes: int, workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Delay, fragmentation and utilization over time, on 279 and on 200 nodes."""
    result = results["all"]
    quota, hived = result["quota"], result["hived"]
    small = nodes == CROWDED_NODES
    panels = [
        Panel(
            f"{tenant}\ndelay (min)",
            {arm: (result[arm].at, result[arm].over_time(tenant)) for arm in ("private", "quota", "hived")},
            log=True,
        )
        for tenant in ("prod-a", "prod-e")
    ]
    names = {
        "fragmentation": "fragmented\nnodes (%)", "guaranteed": "GPUs of regular\njobs (%)",
        "utilization": "GPUs of all\njobs (%)",
    }  # fmt: skip
    panels += [
        Panel(label, {arm: (result[arm].hours, 100 * result[arm].hourly(what)) for arm in ("quota", "hived")}, top=102)
        for what, label in names.items()
    ]
    title = f"Figure 6: {nodes} nodes, YARN-CS ({trace_label(workload)})"
    return {
        "nodes": nodes,
        "small": small,
        "clock": workload.clock_on(nodes),
        "quota": quota,
        "hived": hived,
        "excess": highest(result.excess("quota", TENANT)),
        "with_hived": highest(result.excess("hived", TENANT)),
        "at_worst": at_worst(result),
        "gain": float((hived.hourly("utilization") - quota.hourly("utilization")).max()),
        "to_private": {arm: result.to_private(arm, "prod-e") for arm in ("quota", "hived")},
        "late": {
            arm: sum(result[arm].count(tenant, "late") for tenant in ("res-f", "prod-a")) for arm in ("quota", "hived")
        },
        "figures": {f"fig6-{nodes}": partial(over_time, title, panels, "days")},
    }


def at_worst(result: Result) -> float:
    """The highest fragmentation under quota within a day of prod-a's largest excess."""
    run, excess = result["quota"], result.excess("quota", TENANT)
    if np.isnan(excess).all():
        return 0.0
    near = np.abs(run.hours - run.at[int(np.nanargmax(excess))]) <= 1
    return float(run.hourly("fragmentation")[near].max())


HIVED.add("fig6-279", lambda workload, _: {"all": full(workload)}, partial(figure_6, FULL_NODES), second=True)
HIVED.add("fig6-200", lambda workload, _: {"all": crowded(workload)}, partial(figure_6, CROWDED_NODES), second=True)

#: tenants that have left with their GPUs and jobs, who waits longer than in private under quota, and the paper's words
_CASES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "all tenants": ((), "prod-a", "prod-a, nearly 7"),
    "without prod-a": (("prod-a",), "res-f", "res-f, over 1.7"),
    "without prod-a and res-f": (("prod-a", "res-f"), "", "none"),
}


@HIVED.of(
    "fig7",
    lambda workload, _: {case: crowded(workload, gone=gone) for case, (gone, *_) in _CASES.items()},
    second=True,
)
def figure_7(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Every tenant's delay over that in its private cluster, and without the tenants that suffer most."""

    def ratios(result: Result, arm: str) -> dict[str, float]:
        """A tenant that waits in neither is left out."""
        found = {tenant: result.to_private(arm, tenant) for tenant in result.tenants}
        return {tenant: ratio for tenant, ratio in found.items() if not np.isnan(ratio)}

    cases, figures = [], {}
    for at, (case, result) in enumerate(results.items()):
        quota, hived = ratios(result, "quota"), ratios(result, "hived")
        cases.append({
            "case": case, "who": _CASES[case][1], "paper": _CASES[case][2], "quota": quota, "hived": hived,
            "above": {tenant: ratio for tenant, ratio in quota.items() if ratio > 1},
            "above_hived": {tenant: ratio for tenant, ratio in hived.items() if ratio > 1},
            "highest": dict([max(hived.items(), key=lambda pair: pair[1])]) if hived else {},
        })  # fmt: skip
        title = f"Figure 7, {case}: mean delay over that in the private cluster, {CROWDED_NODES} nodes\n"
        values = {arm: [result.to_private(arm, tenant) for tenant in result.tenants] for arm in ("quota", "hived")}
        figures[f"fig7-{at}"] = partial(
            bars, title + trace_label(workload), result.tenants, values, "delay / private's"
        )
    both = results["all tenants"]
    of_all = {t: over(both["hived"].delay(t), both["quota"].delay(t)) for t in both.tenants}
    return {
        "cases": cases,
        "named": lambda found: (
            ", ".join(f"{t} {number(r)}" for t, r in sorted(found.items(), key=lambda p: -p[1])) or "none"
        ),
        "lower": sum(ratio < 1 for ratio in of_all.values()),
        "tenants": len(of_all),
        # NaN: nobody waits in either
        "best": min(of_all.items(), key=lambda pair: (pair[1] != pair[1], pair[1])),
        "mean": over(both["hived"].delay(), both["quota"].delay()) - 1,
        "figures": figures,
    }


_LARGE = ("res-f", "prod-e", "prod-d", "prod-c")


@HIVED.of(
    "fig8",
    lambda workload, _: {str(at): crowded(workload, reshaped=_LARGE[:at], seed=1) for at in range(1, 5)},
    second=True,
)
def figure_8(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """How the fragmentation of the workload decides what quota costs a tenant of 8-GPU jobs."""
    paper = [132.0, 4.3, 1.9, 0.9]
    quota, hived = ([of.to_private(arm, "res-f") for of in results.values()] for arm in ("quota", "hived"))
    shares = [of.number("jobs") / of.number("gpus") for of in results.values()]
    steps = [
        {
            "who": " + ".join(_LARGE[: at + 1]),
            "share": share,
            "paper": paper[at],
            "quota": quota[at],
            "hived": hived[at],
        }
        for at, share in enumerate(shares)
    ]
    title = (
        f"Figure 8: delay of res-f over private by workload fragmentation (jobs/GPUs), {CROWDED_NODES} nodes\n"
        f"{trace_label(workload)}"
    )
    groups = [f"{share:.3f}\n{'+ ' if at else ''}{_LARGE[at]}" for at, share in enumerate(shares)]
    drawn = {"paper": paper, "quota": quota, "hived": hived}
    return {
        "steps": steps,
        "quota": quota,
        "hived": hived,
        "seen": not any(np.isnan([*quota, *hived])),  # nobody waits in either
        "falls": all(before > after for before, after in pairwise(quota)),
        "below": all(h < q for h, q in zip(hived, quota, strict=True)),
        "late": sum(result["hived"].count("res-f", "worse") for result in results.values()),
        "figures": {"fig8": partial(bars, title, groups, drawn, "delay / private's")},
    }


_SOFT = (0.25, 0.5, 0.75)


def soft(workload: Workload, scale: Scale) -> Trials:
    """Each share with each seed, and without."""
    return {"0": crowded(workload)} | {
        f"{share:g} {seed}": crowded(workload, soft=share, seed=seed)
        for share in _SOFT
        for seed in range(1, scale.soft_seeds + 1)
    }


@HIVED.of("fig9", soft)
def figure_9(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Jobs that accept any GPUs, and their completion times (end of section 5.1): means over the seeds."""
    runs = {0.0: [results["0"]]}
    runs |= {share: [results[f"{share:g} {seed}"] for seed in range(1, scale.soft_seeds + 1)] for share in _SOFT}
    ratios: dict[str, list[float]] = {"quota": [], "hived": []}
    shares = []
    for share, of in runs.items():
        words = {}
        for arm, means in ratios.items():
            values = [result.to_private(arm, TENANT) for result in of]
            means.append(sum(values) / len(values))
            found = estimate(values)
            words[arm] = number(found.mean) + ("" if found.half is None else f" ± {number(found.half)}")
        delays = {arm: sum(one[arm].delay(TENANT) for one in of) / len(of) for arm in ("private", "quota", "hived")}
        shares.append({
            "share": share, "paper": {0.0: "nearly 7", 0.5: "1.3"}.get(share, "-"), "ratios": words, "delays": delays,
            "completion": sum(one["hived"].completion() for one in of) / len(of),
            "worse": sum(over(one["hived"].completion(), one["quota"].completion()) - 1 for one in of) / len(of),
        })  # fmt: skip
    title = (
        f"Figure 9: delay of {TENANT} over private by share of soft jobs, {CROWDED_NODES} nodes, mean of "
        f"{scale.soft_seeds} seed(s)\n{trace_label(workload)}"
    )
    groups = ["hard", *(f"{share:.0%} soft" for share in _SOFT)]
    return {
        "shares": shares,
        "quota": ratios["quota"],
        "best": all(h < min(q, 1) for h, q in zip(ratios["hived"], ratios["quota"], strict=True)),
        "figures": {"fig9": partial(bars, title, groups, ratios, "delay / private's")},
    }


def binding(workload: Workload, scale: Scale) -> Trials:
    """Both bindings in one; at faster clocks and on the smaller cluster too, to see what the load does."""
    both = (Arm("hived", "hived"), Arm("static", "hived", binding="static"))
    return {
        "all": simulation(workload, FULL_NODES, both),
        "crowded": simulation(workload, CROWDED_NODES, both),
        **by_load(workload, scale),
    }


def saved(result: Result) -> float:
    """GPUs that dynamic binding preempts over those of static binding; NaN where the latter preempts none."""
    few, many = result["hived"].preempted_gpus, result["static"].preempted_gpus
    return few / many if many else float("nan")


@HIVED.of("fig10", binding, second=True)
def figure_10(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Dynamic against static binding of virtual cells: preempted GPUs."""
    result, trace = results["all"], trace_label(workload)
    dynamic, static = result["hived"], result["static"]
    taken, without, bound = dynamic.hourly("preempted"), static.hourly("preempted"), dynamic.hourly("bound")
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(without > 0, taken / without, np.nan)
    more = faster(workload, scale, results)
    curve = [result, *(found for _, found in more)]
    load = results["crowded"].number("load")
    smaller = f"{CROWDED_NODES} nodes, load {load:.2f} (clock x{workload.crowded:g})"
    days = np.arange(len(bound)) / 2 + 0.25
    loads = np.asarray([found.number("load") for found in curve]), np.asarray([saved(found) for found in curve])
    return {
        "saved": saved,
        "dynamic": dynamic.preempted_gpus,
        "static": static.preempted_gpus,
        "pearson": correlation(bound, taken),
        "relative": correlation(bound, relative),
        "faster": [*more, (smaller, results["crowded"])],
        "figures": {
            "fig10": partial(
                over_time,
                f"Figure 10: GPUs preempted and cells bound by 12 hours, {FULL_NODES} nodes ({trace})",
                [
                    Panel("preempted\nGPUs", {"dynamic": (days, taken), "static": (days, without)}),
                    Panel("bound cells (%)", {"dynamic": (days, 100 * bound)}, top=102),
                ],
                "days",
            ),
            "fig10-load": partial(
                over_time,
                f"Figure 10: GPUs preempted by the load, {FULL_NODES} nodes ({trace})",
                [Panel("dynamic\nover static", {"dynamic": loads})],
                "offered load",
            ),
            "fig10-correlation": partial(
                scatter,
                f"Figure 10: preemption by bound cells ({trace})",
                {"dynamic": (100 * bound, taken), "static": (100 * bound, without)},
                "bound cells under dynamic binding (%)",
                "preempted GPUs in 12 hours",
            ),
        },
    }


def levels(workload: Workload, scale: Scale) -> Trials:
    """Both specs in one; at faster clocks too, to see what the load does."""
    both = (Arm("hived", "hived"), Arm("levels", "hived", levels="all"))
    return {"all": simulation(workload, FULL_NODES, both), **by_load(workload, scale)}


@HIVED.of("fig11", levels, second=True)
def figure_11(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Cells of all levels against whole nodes: fragmentation over time."""

    def gaps(result: Result) -> tuple[Floats, Floats]:
        """By hour, how much less cells of levels 1 to 4 fragment; and the same where nodes fragment at all."""
        nodes = result["hived"].hourly("fragmentation")
        gap = nodes - result["levels"].hourly("fragmentation")
        return gap, gap[nodes > 0]

    def share(hours: Floats) -> float:
        return float((hours > 0).mean()) if len(hours) else float("nan")

    nodes, levels = results["all"]["hived"], results["all"]["levels"]
    gap, busy = gaps(results["all"])
    of = [(where, *gaps(found)) for where, found in faster(workload, scale, results)]
    both = {"nodes": nodes, "levels": levels}
    fragmented = {name: (nodes.hours, 100 * run.hourly("fragmentation")) for name, run in both.items()}
    panels = [
        Panel("fragmented\nnodes (%)", fragmented, top=102),
        Panel("gap (percentage\npoints)", {"gap": (nodes.hours, 100 * gap)}, bottom=None),
    ]
    title = f"Figure 11: fragmentation by the levels of the cells, {FULL_NODES} nodes ({trace_label(workload)})"
    return {
        "nodes": nodes,
        "levels": levels,
        "gap": gap,
        "seen": len(busy) > 0,
        "less": share(busy),
        "more": share(-busy),
        "faster": [(where, share(hours), values.mean()) for where, values, hours in of],
        "figures": {"fig11": partial(over_time, title, panels, "days")},
    }


def example() -> dict[str, float]:
    """The minutes that b1 waits under each scheme, among two tenants' jobs on two nodes of 4 GPUs."""
    jobs = [
        *(made(f"a{number}", 1, 10 if number % 2 == 0 else 1000, tenant="a") for number in range(1, 5)),
        made("a5", 2, 1000, 20, tenant="a"),
        made("b1", 4, 100, 30, tenant="b"),
    ]
    types = {
        "SWITCH": {"childCellType": "GPU", "childCellNumber": 2},
        "NODE": {"childCellType": "SWITCH", "childCellNumber": 2, "isNodeLevel": True},
    }
    cells = [{"cellType": "NODE", "cellAddress": "node-[1-2]"}]
    spec = cluster_with({"cellTypes": types, "physicalCells": cells}, {tenant: {"NODE": 1} for tenant in "ab"})
    study = simulate(spec, jobs)
    return {one.scheme: one.queue(len(jobs) - 1) / 60_000 for one in study.results.records}


HIVED.add("draft-fig2", nothing, lambda *_: {"waits": example()}, by_hand=True)
