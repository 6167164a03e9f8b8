"""Tables 4 and 5 of the draft: what an exchange of cells brings, with quotas as they are and with balanced ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, Shape, number, percent, trace_label
from ..results import Result
from ..simulations import Workload
from ..trial import Trial
from .trading import ARMS, NODES, WINDOW_H, carry_out, column, spearman

#: percent: utilization, increase, gain (Table 4); gain, relative fluctuation (Table 5)
TABLE_4 = {
    "res-e": (52.3, 13.5, 25.8), "prod-a": (25.3, 2.9, 11.5), "res-d": (16.1, 1.5, 9.2), "prod-e": (60.0, 5.3, 8.8),
    "res-c": (74.9, 5.2, 7.0), "res-a": (57.6, 4.0, 6.9), "prod-b": (44.8, 2.5, 5.6), "prod-c": (78.6, 2.9, 3.6),
    "res-b": (74.8, 0.9, 1.2), "res-f": (45.1, 0.4, 0.9), "prod-d": (47.0, 0.4, 0.8),
}  # fmt: skip
TABLE_5 = {
    "res-d": (57.53, 1.58), "prod-a": (38.00, 0.85), "res-c": (26.04, 0.82), "res-b": (24.06, 0.65),
    "res-e": (17.10, 0.70), "res-a": (14.87, 0.36), "prod-b": (9.69, 0.44), "prod-c": (9.61, 0.41),
    "res-f": (9.23, 0.38), "prod-d": (7.41, 0.41), "prod-e": (4.79, 0.38),
}  # fmt: skip
PAPER_SPEARMAN = spearman([gain for gain, _ in TABLE_5.values()], [rf for _, rf in TABLE_5.values()])


def _arms(scale: Scale) -> tuple[str, ...]:
    return ARMS[:2] if scale is QUICK else ARMS


def _trials(by_demand: bool, workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {arm: Trial(carry_out, (workload, by_demand, arm), 200.0 + 100 * (arm != "none")) for arm in _arms(scale)}


def _row(plain: Mapping[str, Any], tenant: str) -> str:
    of = plain["tenants"][tenant]
    return f"{percent(of['utilization'])}, {percent(of['increase'])}, {percent(of['gain'])}"


def _worse(plain: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """Tenants whose jobs wait for more GPU hours more than the tenant gave away."""
    return [
        tenant
        for tenant, of in plain["tenants"].items()
        if of["gpu_delay"] - base["tenants"][tenant]["gpu_delay"] > of["given"]
    ]


def _evaluate(by_demand: bool, workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    plain = {arm: results[arm].plain for arm in _arms(scale)}
    base, ours = plain["none"], plain["balanced"]
    rows = []
    for tenant in ours["tenants"]:
        cells = ours["tenants"][tenant]["cells"]
        if by_demand:
            gain, fluctuation = TABLE_5[tenant]
            of = ours["tenants"][tenant]
            own = base["tenants"][tenant]["fluctuation"]
            text = f"{percent(of['gain'])}, {own:.2f}"
            rows.append(Row(f"{tenant}, {cells} nodes: gain, relative fluctuation", f"{gain}%, {fluctuation}", text))
        else:
            rows.append(
                Row(
                    f"{tenant}, {cells} nodes: utilization, increase by matched cells, gain",
                    ", ".join(f"{value}%" for value in TABLE_4[tenant]),
                    _row(ours, tenant),
                )
            )
    correlation = spearman(column(ours, "gain"), column(base, "fluctuation"))
    for arm in plain:
        of = plain[arm]
        hours = sum(column(of, "benefited"))
        jobs = sum(column(of, "jobs"))
        rows += [
            Row(f"{arm}: trades; GPU hours on matched cells", "-", f"{of['trades']:,}; {number(hours)}"),
            Row(f"{arm}: mean delay, minutes; preemptions", "-",
                f"{number(60 * sum(column(of, 'delay')) / jobs)}; {of['preemptions']:,}"),
        ]  # fmt: skip
        if arm != "none":
            gave = sum(t["contributed"] > 0 for t in of["tenants"].values())
            both = sum(t["contributed"] > 0 and t["benefited"] > 0 for t in of["tenants"].values())
            rows.append(Row(f"{arm}: tenants that contribute; and benefit too", "-", f"{gave}; {both} of 11"))
    rows.append(
        Row("Spearman's correlation of gain and relative fluctuation", f"{PAPER_SPEARMAN:.2f}", f"{correlation:.2f}")
    )
    worse = {arm: _worse(plain[arm], base) for arm in plain if arm != "none"}
    gains = column(ours, "gain")
    claims = [
        Claim("every tenant's matched cells add to what it uses", Shape.HOLDS if min(gains) > 0 else Shape.FAILS),
        Claim(
            "the jobs of no tenant wait for more GPU hours more than the tenant gave away",
            Shape.FAILS if any(worse.values()) else Shape.HOLDS,
        ),
    ]
    if by_demand:
        found = correlation > 0
        claims.append(Claim("who fluctuates more gains more (Spearman above 0)", Shape.HOLDS if found else Shape.FAILS))
    names = "; ".join(f"{arm}: {', '.join(of)}" for arm, of in worse.items() if of)
    return Outcome(
        f"{trace_label(workload)}, clock x{workload.clock:g}, {ours['jobs']:,} jobs; {NODES} nodes of 8 GPUs, "
        + ("nodes by each tenant's GPU time" if by_demand else "quotas of Table 1")
        + f", yarn-cs in every VC, loans as ever; trades every hour, for {WINDOW_H} hours",
        rows,
        claims,
        "Who posts what is not in the draft. Ours: a tenant without jobs in line offers nodes that were idle at the "
        f"looks of the last {WINDOW_H} hours; one with jobs in line asks for the nodes that they need beyond its own. "
        "'hindsight' offers what will be idle. Utilization and gain count guaranteed jobs, in nodes. "
        + (f"Worse off by more than what they gave: {names}. " if names else "")
        + ("Quick: a window of the trace, two arms." if scale is QUICK else ""),
    )


EXPERIMENTS = (
    Experiment(
        "table4",
        "Table 4: exchange with the default assignment",
        "every tenant gains: 0.8% to 25.8% of its utilization",
        partial(_trials, False),
        partial(_evaluate, False),
    ),
    Experiment(
        "table5",
        "Table 5: exchange with the balanced assignment",
        "4.8% to 57.5%, and who fluctuates more gains more",
        partial(_trials, True),
        partial(_evaluate, True),
    ),
)
