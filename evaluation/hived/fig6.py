"""Figure 6: delay, fragmentation and utilization over time, on 279 and on 200 nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..drawing import Panel, over_time
from ..experiment import Claim, Experiment, Outcome, Row, Scale, number, percent, setting, shape_of, trace_label
from ..results import Result, highest
from ..simulations import Simulation, Workload
from .base import CROWDED_NODES, FULL_NODES, crowded, full

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TENANTS = ("prod-a", "prod-e")
SCHEMES = ("private", "quota", "hived")
#: a job within quota that waits longer than in private: tenant, and the share and number in the draft
_LATE = {"res-f": "14% (365)", "prod-a": "23% (315)"}


def gain(result: Result) -> float:
    """The largest difference of hourly utilization, HiveD over quota."""
    return float((result["hived"].hourly("utilization") - result["quota"].hourly("utilization")).max())


def evaluate(nodes: int, workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """Panels and their numbers."""
    result = results["all"]
    small = nodes == CROWDED_NODES
    quota, hived = result["quota"], result["hived"]
    fragmented = quota.hourly("fragmentation")
    excess = highest(result.excess("quota", "prod-a"))
    with_hived = highest(result.excess("hived", "prod-a"))
    rows = [
        Row(
            "prod-a: highest 12-hour mean excess over private, quota",
            "+8,000 min" if small else "+200 min",
            number(excess, "min"),
        ),
        Row("prod-a: the same, HiveD", "none", number(with_hived, "min")),
        Row(
            "prod-e: mean delay over private, quota",
            "below 1" if small else "-",
            number(result.to_private("quota", "prod-e")),
        ),
        Row(
            "prod-e: mean delay over private, HiveD",
            "below 1" if small else "-",
            number(result.to_private("hived", "prod-e")),
        ),
        Row(
            "mean fragmentation under quota",
            "mostly 100%" if small else "100% on day 11 to 12",
            percent(quota.mean("fragmentation")),
        ),
        Row(
            "hours with fragmentation of at least 99% under quota",
            "most" if small else "some",
            percent(float((fragmented >= 0.99).mean())),
        ),
        Row(
            "utilization by regular jobs, quota",
            "about 90%" if small else "about 70%",
            percent(quota.mean("guaranteed")),
        ),
        Row("utilization by regular jobs, HiveD", "-", percent(hived.mean("guaranteed"))),
        Row("utilization by all jobs, quota", "-", percent(quota.mean("utilization"))),
        Row("utilization by all jobs, HiveD", "-", percent(hived.mean("utilization"))),
        Row(
            "utilization by all jobs, HiveD over quota, largest in an hour",
            "+20%" if small else "+14%",
            f"{100 * gain(result):+.1f}%",
        ),
    ]
    for tenant, paper in _LATE.items():
        several = quota.count(tenant, "several")
        for arm in ("quota", "hived"):
            late = result[arm].count(tenant, "late")
            rows.append(
                Row(
                    f"{tenant}: jobs of several GPUs within quota that wait longer than in private, {arm}",
                    ("0" if arm == "hived" else paper) if small else "-",
                    f"{percent(late / several) if several else '-'} ({late:,})",
                )
            )
    late_of = {arm: sum(result[arm].count(tenant, "late") for tenant in _LATE) for arm in ("quota", "hived")}
    seen = excess > 60
    claims = [
        Claim(
            "under quota prod-a waits longer than in private, with HiveD a tenth of that at most",
            shape_of(seen, with_hived <= excess / 10),
        ),
        Claim(
            "the cluster is fragmented when prod-a waits: 99% at the worst moment",
            shape_of(seen, _at_worst(result) >= 0.99),
        ),
        Claim(
            "HiveD's utilization is above quota's by ten percentage points at some hour",
            shape_of(True, gain(result) >= 0.1),
        ),
    ]
    if small:
        shares = [result.to_private(arm, "prod-e") for arm in ("quota", "hived")]
        claims.append(Claim("prod-e always gains by sharing", shape_of(True, max(shares) < 1)))
        claims.append(
            Claim(
                "jobs of several GPUs wait longer than in private although the quota suffices; with HiveD at most a "
                "hundredth of them",
                shape_of(late_of["quota"] > 0, late_of["hived"] <= late_of["quota"] / 100),
            )
        )
    clock = workload.crowded if small else workload.clock
    return Outcome(
        setting(workload, result, nodes, f"clock x{clock:g}"),
        rows,
        claims,
        "The paper's trace is not public, and its load at each moment differs from any other's: days do not match. "
        + (
            "The paper ran the same trace on fewer nodes; the clock is chosen so that queues are as long. "
            if small
            else "At full size and the trace's own clock, queues are short. "
        )
        + "Delays with HiveD above private's come from loans: a tenant whose jobs had a head start is packed "
        "differently "
        "from then on. A job within quota is one at whose submission its tenant's guaranteed jobs and it are "
        "within it.",
        {f"fig6-{nodes}": partial(_draw, nodes, workload, result)},
    )


def _at_worst(result: Result) -> float:
    """The highest fragmentation under quota within a day of prod-a's largest excess."""
    run, excess = result["quota"], result.excess("quota", "prod-a")
    if np.isnan(excess).all():
        return 0.0
    worst = run.at[int(np.nanargmax(excess))]
    near = np.abs(run.hours - worst) <= 1
    return float(run.hourly("fragmentation")[near].max())


def _draw(nodes: int, workload: Workload, result: Result) -> Figure:
    panels = [
        Panel(
            f"{tenant}\ndelay (min)",
            {arm: (result[arm].at, result[arm].over_time(tenant)) for arm in SCHEMES},
            log=True,
        )
        for tenant in TENANTS
    ]
    names = {
        "fragmentation": "fragmented\nnodes (%)",
        "guaranteed": "GPUs of regular\njobs (%)",
        "utilization": "GPUs of all\njobs (%)",
    }
    panels += [
        Panel(label, {arm: (result[arm].hours, 100 * result[arm].hourly(what)) for arm in ("quota", "hived")}, top=102)
        for what, label in names.items()
    ]
    return over_time(f"Figure 6: {nodes} nodes, YARN-CS ({trace_label(workload)})", panels, "days")


def _simulations(make: Callable[[Workload], Simulation]) -> Callable[[Workload, Scale], Mapping[str, Simulation]]:
    return lambda workload, scale: {"all": make(workload)}


FULL_SIZE = Experiment(
    "fig6-279",
    "Figure 6a: delay, fragmentation and utilization at 279 nodes",
    "prod-a waits up to 200 minutes longer than in private about day 11, when all nodes are fragmented; regular jobs "
    "use "
    "about 70% of the GPUs; HiveD uses up to 14 percentage points more",
    _simulations(full),
    partial(evaluate, FULL_NODES),
    second=True,
)
CROWDED = Experiment(
    "fig6-200",
    "Figure 6b: the same at 200 nodes",
    "prod-a waits up to 8,000 minutes longer on days 9 to 19; fragmentation is 100% most of the time; prod-e is always "
    "better off; regular jobs use about 90%; HiveD uses up to 20 percentage points more",
    _simulations(crowded),
    partial(evaluate, CROWDED_NODES),
    second=True,
)
