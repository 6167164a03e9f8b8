"""Cell exchange (the draft of HiveD, 3.3 and 5.4), and exact safety, by simulation.

Figures 3 and 10 show, without trades, what tenants could exchange; Tables 4 and 5 and Figures 11 and 12, what they do.
Who is worse off by trades under load is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from .clusters import CROWDED_NODES, FULL_NODES, TENANTS, cluster_of
from .drawing import Panel, bars, over_time, small_panels
from .experiment import Evaluation, Results, Scale, Trials, nothing, percent
from .measures import HOUR_MS
from .results import correlation
from .simulations import Arm, Trial, Workload, demand_over_time, play, played, simulation, trace_label, trace_of
from .trading import ARMS, setting_of, spearman, trial

EXCHANGE = Evaluation("exchange", table1=True)
#: percent: utilization, increase, gain (Table 4); gain, relative fluctuation (Table 5)
PAPER_TABLE4 = {
    "res-e": (52.3, 13.5, 25.8), "prod-a": (25.3, 2.9, 11.5), "res-d": (16.1, 1.5, 9.2), "prod-e": (60.0, 5.3, 8.8),
    "res-c": (74.9, 5.2, 7.0), "res-a": (57.6, 4.0, 6.9), "prod-b": (44.8, 2.5, 5.6), "prod-c": (78.6, 2.9, 3.6),
    "res-b": (74.8, 0.9, 1.2), "res-f": (45.1, 0.4, 0.9), "prod-d": (47.0, 0.4, 0.8),
}  # fmt: skip
PAPER_TABLE5 = {
    "res-d": (57.53, 1.58), "prod-a": (38.00, 0.85), "res-c": (26.04, 0.82), "res-b": (24.06, 0.65),
    "res-e": (17.10, 0.70), "res-a": (14.87, 0.36), "prod-b": (9.69, 0.44), "prod-c": (9.61, 0.41),
    "res-f": (9.23, 0.38), "prod-d": (7.41, 0.41), "prod-e": (4.79, 0.38),
}  # fmt: skip
PAPER_FLUCTUATION = [fluctuation for _, fluctuation in PAPER_TABLE5.values()]
PAPER_SPEARMAN = spearman([gain for gain, _ in PAPER_TABLE5.values()], PAPER_FLUCTUATION)


@EXCHANGE.of("draft-fig3", nothing, second=True)
def figure_3(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """The two larger tenants whose demands go together least: one could use what the other does not."""
    trace, spec, step = trace_of(workload), cluster_of(FULL_NODES), 12 * HOUR_MS
    steps = max(3, trace.jobs[-1].submit_ms // step)
    demand = {
        tenant: demand_over_time([job for job in trace.jobs if job.tenant == tenant], step, steps) for tenant in TENANTS
    }
    gpus = {vc.name: spec.reserved(vc) for vc in spec.virtual_clusters}
    large = [tenant for tenant in TENANTS if gpus[tenant] >= 0.05 * spec.gpus and demand[tenant].max() > 0]
    of_pairs = {pair: correlation(demand[pair[0]], demand[pair[1]]) for pair in combinations(large, 2)}
    pair = min(of_pairs, key=lambda pair: (np.isnan(of_pairs[pair]), of_pairs[pair]))
    days = (np.arange(steps) + 0.5) * 12 / 24
    peaks = [float(days[int(demand[tenant].argmax())]) for tenant in pair]
    one, other = (
        {
            "tenant": tenant, "gpus": gpus[tenant], "peak": peak,
            "above": float((demand[tenant] > gpus[tenant]).mean()),
        }
        for tenant, peak in zip(pair, peaks, strict=True)
    )  # fmt: skip
    title = f"The draft's Figure 3: GPUs asked for ({trace_label(workload)})"
    panels = [Panel("GPUs asked for", {tenant: (days, demand[tenant]) for tenant in pair})]
    return {
        "one": one,
        "other": other,
        "lowest": of_pairs[pair],
        "apart": abs(peaks[0] - peaks[1]),
        "in_turn": float(((demand[pair[0]] > gpus[pair[0]]) & (demand[pair[1]] < gpus[pair[1]])).mean()),
        "figures": {"draft-fig3": partial(over_time, title, panels, "days")},
    }


def _idle(workload: Workload, scale: Scale) -> Trials:
    return {"both": simulation(workload, FULL_NODES, (Arm("quota", "quota"), Arm("hived", "hived")))}


@EXCHANGE.of("draft-fig10", _idle, second=True)
def figure_10(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Whole nodes that no guaranteed job uses for long, which tenants could exchange."""
    result = results["both"]
    late = min(20.0, result.number("days") / 3)  # day 20, as in the paper, or a third of a shorter trace
    idle, means = [], {}
    for hours, papers in ((10, ("22 to 60% after day 20", "far fewer")), (100, ("over 30%", "far fewer"))):
        for arm, paper in zip(("hived", "quota"), papers, strict=True):
            run = result[arm]
            later = run.hourly(f"idle_{hours}")[run.hours >= late]
            low, high = (later.min(), later.max()) if len(later) else (np.nan, np.nan)
            means[hours, arm] = run.mean(f"idle_{hours}")
            mean = means[hours, arm]
            idle.append({"hours": hours, "arm": arm, "paper": paper, "mean": mean, "low": low, "high": high})
    panels = [
        Panel(
            f"idle for {hours} h\nor more (%)",
            {arm: (result[arm].hours, 100 * result[arm].hourly(f"idle_{hours}")) for arm in ("quota", "hived")},
            top=102,
        )
        for hours in (10, 100)
    ]
    title = f"The draft's Figure 10: nodes idle of regular jobs, {FULL_NODES} nodes ({trace_label(workload)})"
    return {
        "late": late,
        "idle": idle,
        "gains": {hours: means[hours, "hived"] - means[hours, "quota"] for hours in (10, 100)},
        "figures": {"draft-fig10": partial(over_time, title, panels, "days")},
    }


@dataclass(frozen=True, slots=True)
class Change:
    """What a tenant's jobs wait longer than without trades, and what the tenant gave away. In GPU hours."""

    tenant: str
    longer: float  #: each job's delay times its GPUs, summed; below 0: less
    given: float  #: of its own cells, used by the takers or not

    @property
    def excess(self) -> float:
        """What the tenant is worse off by, beyond what it gave; not above 0: it is not."""
        return self.longer - self.given


def changes(base: Mapping[str, Any], plain: Mapping[str, Any]) -> list[Change]:
    """One for each tenant, by decreasing excess. ``base``: the result without trades."""
    found = [
        Change(tenant, of["gpu_delay"] - base["tenants"][tenant]["gpu_delay"], of["given"])
        for tenant, of in plain["tenants"].items()
    ]
    return sorted(found, key=lambda change: (-change.excess, change.tenant))


def worse_off(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Results by arm, and of each arm the tenants that are worse off by more than they gave."""
    found = {
        arm: [change for change in changes(arms["none"], plain) if change.excess > 0]
        for arm, plain in arms.items()
        if arm != "none"
    }
    worse = {arm: of for arm, of in found.items() if of}
    return {"arms": arms, "worse": worse, "changes": partial(changes, arms["none"])}


def by_gain(plain: Mapping[str, Any]) -> list[str]:
    """The tenants by decreasing gain; ties in the order of Table 1."""
    return sorted(plain["tenants"], key=lambda tenant: -plain["tenants"][tenant]["gain"])


def table(by_demand: bool, workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """What an exchange of cells brings, with quotas as they are (Table 4) and with balanced ones (Table 5)."""
    arms = {arm: results[arm].plain for arm in scale.of(ARMS, ARMS[:2])}
    base, ours = (arms[arm]["tenants"].values() for arm in ("none", "balanced"))
    return {
        "where": setting_of(workload, by_demand, arms["balanced"]),
        "by_demand": by_demand,
        "order": by_gain(arms["balanced"]),
        "least": min(of["gain"] for of in ours),
        "correlation": spearman([of["gain"] for of in ours], [of["fluctuation"] for of in base]),
        "table4": PAPER_TABLE4,
        "table5": PAPER_TABLE5,
        "paper": PAPER_SPEARMAN,
        **worse_off(arms),
    }


for _name, _by_demand in (("table4", False), ("table5", True)):

    def _trials(workload: Workload, scale: Scale, by_demand: bool = _by_demand) -> Trials:
        return {arm: trial(workload, by_demand, arm) for arm in scale.of(ARMS, ARMS[:2])}

    EXCHANGE.add(_name, _trials, partial(table, _by_demand))


def balance(of: Mapping[str, Any]) -> float:
    """Of a tenant: -1 if it contributes alone by exchange, 0 if it benefits from as much, 1 if it benefits alone."""
    return float((of["benefited"] - of["contributed"]) / (of["benefited"] + of["contributed"]))


def chosen(tenants: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Three tenants and what each shows: the one nearest to balance, and the farthest from it on either side.

    Of those with more than 1% of the GPU time of all: fewer where fewer exchange. Ties go to more GPU time.
    """
    exchanged = {name: of["contributed"] + of["benefited"] for name, of in tenants.items()}
    least = 0.01 * sum(exchanged.values())
    names = sorted((name for name in tenants if exchanged[name] > least), key=lambda name: -exchanged[name])
    found = {}
    rules = (
        ("benefits most", lambda name: -balance(tenants[name])),
        ("contributes most", lambda name: balance(tenants[name])),
        ("most balanced", lambda name: abs(balance(tenants[name]))),
    )
    for what, key in rules:
        if names:
            found[min(names, key=key)] = what
            names.remove(min(names, key=key))
    return dict(reversed(found.items()))


@EXCHANGE.of("draft-fig11", lambda workload, _: {"balanced": trial(workload, False, "balanced")})
def figure_11(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """GPU time that tenants contribute and benefit from, by exchange and by low-priority jobs; the figure of three."""
    plain = results["balanced"].plain
    tenants: Mapping[str, Mapping[str, Any]] = plain["tenants"]
    three = chosen(tenants)
    of_three = [balance(tenants[tenant]) for tenant in three]
    sides = {
        "contributed": "contributed, exchange", "benefited": "benefited, exchange",
        "lent": "contributed, low-priority", "borrowed": "benefited, low-priority",
    }  # fmt: skip
    figure = partial(
        bars,
        f"The draft's Figure 11: GPU time given and taken ({trace_label(workload)})",
        [f"{tenant}\n{what}" for tenant, what in three.items()],
        {label: [tenants[tenant][side] for tenant in three] for side, label in sides.items()},
        "GPU hours",
        None,
        False,
    )
    return {
        "where": setting_of(workload, False, plain),
        "three": three,
        "tenants": {tenant: tenants[tenant] for tenant in dict.fromkeys((*three, *tenants))},
        "full": len(three) == 3,
        "nearest": min(map(abs, of_three), default=1.0),
        "low": min(of_three, default=0.0),
        "high": max(of_three, default=0.0),
        "figures": {"draft-fig11": figure} if three else {},
    }


def _fluctuations(workload: Workload, scale: Scale) -> Trials:
    return {arm: trial(workload, True, arm) for arm in ("none", "balanced")}


@EXCHANGE.of("draft-fig12", _fluctuations)
def figure_12(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """How the use of GPUs fluctuates, without trades, of the four tenants that gain most and least with them."""
    of, traded = results["none"].plain["tenants"], results["balanced"].plain
    order = by_gain(traded)
    ends = order[:4], order[-4:]
    shown, panels = [], {}
    for tenant in (*ends[0], *ends[1]):
        usage = np.asarray(of[tenant]["usage"]) / max(1, of[tenant]["gpus"])
        shown.append({"tenant": tenant, **of[tenant], "mean": float(usage.mean()), "highest": float(usage.max())})
        label = f"{tenant}: gain {percent(traded['tenants'][tenant]['gain'])}"
        panels[label] = np.arange(len(usage)) / 24, usage
    first, last = (float(np.mean([of[tenant]["fluctuation"] for tenant in end])) for end in ends)
    title = f"The draft's Figure 12: GPUs in use over VC size ({trace_label(workload)})"
    return {
        "where": setting_of(workload, True, traded),
        "shown": shown,
        "first": first,
        "last": last,
        "paper": [np.mean(PAPER_FLUCTUATION[:4]), np.mean(PAPER_FLUCTUATION[-4:])],
        "figures": {"draft-fig12": partial(small_panels, title, panels, 4, "days", "usage / VC size")},
    }


def _crowded(workload: Workload, scale: Scale) -> Trials:
    return {arm: trial(workload, False, arm, CROWDED_NODES) for arm in ("none", "balanced")}


@EXCHANGE.of("worse", _crowded)
def worse(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Whether a tenant is worse off by trades than what it gave away accounts for, at a load at which jobs wait."""
    arms = {arm: results[arm].plain for arm in ("none", "balanced")}
    return {"where": setting_of(workload, False, arms["balanced"], CROWDED_NODES), **worse_off(arms)}


_POLICIES = ("yarn-cs", "srtf", "tiresias")
_KINDS = ("private", "work-conserving", "exact")


def ends(workload: Workload, nodes: int, policy: str) -> dict[str, Any]:
    """Play the trace in private clusters, and in virtual ones of both kinds of safety: which jobs end later."""
    trace, spec = played(workload, nodes), cluster_of(nodes)
    records = {
        kind: play(
            spec, trace.jobs, policy, "private" if kind == "private" else "hived", opportunistic=kind != "private",
            safety=None if kind == "private" else kind,
        )
        for kind in _KINDS
    }  # fmt: skip
    alone = np.asarray(records["private"].finish)
    compared = alone >= 0
    of_tenant = np.asarray([job.tenant for job in trace.jobs], dtype=object)
    result: dict[str, Any] = {"jobs": int(compared.sum())}
    for kind, record in records.items():
        finish = np.asarray(record.finish)
        late = compared & ((finish < 0) | (finish > alone))
        waits = {
            tenant: [record.queue(int(job)) / 60_000 for job in np.flatnonzero(compared & (of_tenant == tenant))]
            for tenant in TENANTS
        }
        result[kind] = {
            "late": int(late.sum()),
            "minutes": float((finish - alone)[late].sum() / 60_000),
            "sooner": int((compared & (finish >= 0) & (finish < alone)).sum()),
            "delay": sum(map(sum, waits.values())) / max(1, sum(map(len, waits.values()))),
            "tenants": {tenant: sum(of) / max(1, len(of)) for tenant, of in waits.items()},
            "preemptions": sum(record.preemptions),
        }
    return result


def _ends(workload: Workload, scale: Scale) -> Trials:
    """By nodes and policy."""
    settings = [(nodes, policy) for nodes in (FULL_NODES, CROWDED_NODES) for policy in _POLICIES]
    return {one: Trial(ends, (workload, *one), 150.0) for one in scale.of(settings, [(CROWDED_NODES, _POLICIES[0])])}


@EXCHANGE.of("safety", _ends)
def safety(workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    """Exact and work-conserving safety against private clusters: which jobs end later, and what it costs."""
    settings = []
    for (nodes, policy), result in results.items():
        kinds = [result.plain[kind] for kind in _KINDS]
        known = {"nodes": nodes, "clock": workload.clock_on(nodes), "policy": policy}
        settings.append({**known, "jobs": result.plain["jobs"], "of": kinds})
    return {
        "settings": settings,
        "late": sum(one["of"][2]["late"] for one in settings),
        "worse": sum(
            one["of"][2]["tenants"][tenant] > one["of"][0]["tenants"][tenant] for one in settings for tenant in TENANTS
        ),
    }
