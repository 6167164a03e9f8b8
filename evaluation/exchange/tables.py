"""Tables 4 and 5 of the draft: what an exchange of cells brings, with quotas as they are and with balanced ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, number, percent, shape_of
from ..results import Result
from ..simulations import Workload
from ..trial import Trial
from . import worse
from .trading import ARMS, WINDOW_H, by_gain, column, setting_of, spearman, trial

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
PAPER_SPEARMAN = spearman([gain for gain, _ in PAPER_TABLE5.values()], [rf for _, rf in PAPER_TABLE5.values()])


def _arms(scale: Scale) -> tuple[str, ...]:
    return ARMS[:2] if scale is QUICK else ARMS


def _trials(by_demand: bool, workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {arm: trial(workload, by_demand, arm) for arm in _arms(scale)}


def _row(plain: Mapping[str, Any], tenant: str) -> str:
    of = plain["tenants"][tenant]
    return f"{percent(of['utilization'])}, {percent(of['increase'])}, {percent(of['gain'])}"


def _evaluate(by_demand: bool, workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    plain = {arm: results[arm].plain for arm in _arms(scale)}
    base, ours = plain["none"], plain["balanced"]
    rows = []
    for tenant in by_gain(ours):
        cells = ours["tenants"][tenant]["cells"]
        if by_demand:
            gain, fluctuation = PAPER_TABLE5[tenant]
            of = ours["tenants"][tenant]
            own = base["tenants"][tenant]["fluctuation"]
            text = f"{percent(of['gain'])}, {own:.2f}"
            rows.append(Row(f"{tenant}, {cells} nodes: gain, relative fluctuation", f"{gain}%, {fluctuation}", text))
        else:
            rows.append(
                Row(
                    f"{tenant}, {cells} nodes: utilization, increase by matched cells, gain",
                    ", ".join(f"{value}%" for value in PAPER_TABLE4[tenant]),
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
            rows += worse.rows_of(arm, of, base)
    rows.append(
        Row("Spearman's correlation of gain and relative fluctuation", f"{PAPER_SPEARMAN:.2f}", f"{correlation:.2f}")
    )
    found, who = worse.claim(plain)
    gains = column(ours, "gain")
    claims = [
        Claim("every tenant's matched cells add to what it uses", shape_of(True, min(gains) > 0)),
        found,
    ]
    if by_demand:
        claims.append(Claim("who fluctuates more gains more (Spearman above 0)", shape_of(True, correlation > 0)))
    return Outcome(
        setting_of(workload, by_demand, ours),
        rows,
        claims,
        "Who posts what is not in the draft. Ours: a tenant without jobs in line offers nodes that were idle at the "
        f"looks of the last {WINDOW_H} hours; one with jobs in line asks for the nodes that they need beyond its own. "
        "'hindsight' offers what will be idle. Utilization and gain count guaranteed jobs, in nodes. "
        + worse.MEANING
        + who
        + ("Quick: a window of the trace, two arms." if scale is QUICK else ""),
    )


TABLE4 = Experiment(
    "table4",
    "Table 4: exchange with the default assignment",
    "every tenant gains: 0.8% to 25.8% of its utilization",
    partial(_trials, False),
    partial(_evaluate, False),
)
TABLE5 = Experiment(
    "table5",
    "Table 5: exchange with the balanced assignment",
    "4.8% to 57.5%, and who fluctuates more gains more",
    partial(_trials, True),
    partial(_evaluate, True),
)
