"""Tables 4 and 5 of the draft: what an exchange of cells brings, with quotas as they are and with balanced ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, Shape, number, percent
from ..results import Result
from ..simulations import Workload
from ..trial import Trial
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

    def __str__(self) -> str:
        return f"{self.tenant} {round(self.longer):+,} of {round(self.given):,}"


def changes(plain: Mapping[str, Any], base: Mapping[str, Any]) -> list[Change]:
    """One for each tenant, by decreasing excess. ``base``: the result without trades."""
    found = [
        Change(tenant, of["gpu_delay"] - base["tenants"][tenant]["gpu_delay"], of["given"])
        for tenant, of in plain["tenants"].items()
    ]
    return sorted(found, key=lambda change: (-change.excess, change.tenant))


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
    changed = {arm: changes(plain[arm], base) for arm in plain if arm != "none"}
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
            most, longest = changed[arm][0], max(changed[arm], key=lambda change: change.longer)
            rows += [
                Row(f"{arm}: tenants that contribute; and benefit too", "-", f"{gave}; {both} of 11"),
                Row(f"{arm}: delay of all jobs in GPU hours, without trades and with", "-",
                    f"{number(sum(column(base, 'gpu_delay')))}, {number(sum(column(of, 'gpu_delay')))}"),
                Row(f"{arm}: GPU hours that jobs wait longer than without trades, of those given away", "-",
                    "; ".join(map(str, changed[arm]))),
                Row(f"{arm}: the largest excess of the former over the latter; the largest of the former", "-",
                    f"{most.tenant} {round(most.excess):+,}; {longest.tenant} {round(longest.longer):+,}"),
            ]  # fmt: skip
    rows.append(
        Row("Spearman's correlation of gain and relative fluctuation", f"{PAPER_SPEARMAN:.2f}", f"{correlation:.2f}")
    )
    worse = {arm: [change for change in of_arm if change.excess > 0] for arm, of_arm in changed.items()}
    gains = column(ours, "gain")
    claims = [
        Claim("every tenant's matched cells add to what it uses", Shape.HOLDS if min(gains) > 0 else Shape.FAILS),
        Claim(
            "no tenant's jobs wait longer, in GPU hours, by more than the GPU hours that it gave away",
            Shape.FAILS if any(worse.values()) else Shape.HOLDS,
        ),
    ]
    if by_demand:
        found = correlation > 0
        claims.append(Claim("who fluctuates more gains more (Spearman above 0)", Shape.HOLDS if found else Shape.FAILS))
    names = "; ".join(
        f"{arm}: " + ", ".join(f"{change.tenant} by {change.excess:,.0f} GPU hours" for change in of_arm)
        for arm, of_arm in worse.items()
        if of_arm
    )
    return Outcome(
        setting_of(workload, by_demand, ours),
        rows,
        claims,
        "Who posts what is not in the draft. Ours: a tenant without jobs in line offers nodes that were idle at the "
        f"looks of the last {WINDOW_H} hours; one with jobs in line asks for the nodes that they need beyond its own. "
        "'hindsight' offers what will be idle. Utilization and gain count guaranteed jobs, in nodes. "
        "A job's delay counts once for each of its GPUs, and a backlog lasts for as long as its VC is busy, so that a "
        "GPU hour that is given away may cost many in line; those given away count up to the last submission. "
        + (f"Worse off by more than what they gave: {names}. " if names else "")
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
