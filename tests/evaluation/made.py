"""Results made by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.clusters import TENANTS
from evaluation.experiment import FULL, Experiment, Outcome
from evaluation.results import Result
from evaluation.simulations import Workload

WORKLOAD = Workload("by hand", "trace.csv", "0" * 64, 0, 0, 1.0, 1.5, None)
#: all is in four hours
HOURS = (1.0, 2.0, 3.0, 4.0)


def run(
    delays: Mapping[str, float] | None = None,
    over_time: Mapping[str, Sequence[float]] | None = None,
    completion: float = 100.0,
    **other: Any,
) -> dict[str, Any]:
    """One arm; a delay of a minute for whom none is given."""
    of = {tenant: (delays or {}).get(tenant, 1.0) for tenant in TENANTS}
    tenants = {
        tenant: {
            "jobs": 10,
            "delay": delay,
            "over_time": list((over_time or {}).get(tenant, [delay] * len(HOURS))),
            "worse": 0,
            "several": 100,
            "late": 0,
        }
        for tenant, delay in of.items()
    }
    shares = ("utilization", "guaranteed", "fragmentation", "idle_10", "idle_100")
    plain = {name: [0.5] * len(HOURS) for name in shares}
    plain |= {"preempted": [0] * len(HOURS), "bound": [0.5] * len(HOURS), "widths": [1.0] * len(HOURS)}
    days = [hour / 24 for hour in HOURS]
    return {
        "delay": sum(of.values()) / len(of),
        "completion": completion,
        "tenants": tenants,
        "at": days,
        "hours": days,
        "preempted_gpus": 0,
        **plain,
        **other,
    }


def result(gone: Sequence[str] = (), jobs: int = 100, gpus: int = 100, **runs: Mapping[str, Any]) -> Result:
    """A simulation's result."""
    return Result(
        {
            "jobs": jobs,
            "gpus": gpus,
            "compared": jobs,
            "never_fit": 0,
            "days": 0.2,
            "load": 0.9,
            "tenants": [tenant for tenant in TENANTS if tenant not in gone],
            "runs": runs,
        }
    )


def evaluate(experiment: Experiment, **results: Result) -> Outcome:
    """What an experiment makes of results by the names of its simulations."""
    names = experiment.simulations(WORKLOAD, FULL)
    return experiment.evaluate(WORKLOAD, FULL, dict(zip(names, results.values(), strict=True)))


def rows(outcome: Outcome) -> list[tuple[str, str, str]]:
    """What, the paper's number, ours."""
    found = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", outcome.text, re.MULTILINE)
    return [(what, paper, ours) for what, paper, ours in found]


def ours(outcome: Outcome, what: str) -> str:
    """The number of a row."""
    (found,) = [ours for name, _, ours in rows(outcome) if name == what]
    return found


def shapes(outcome: Outcome) -> list[str]:
    """The verdict on each claim."""
    return [claim.value for claim in outcome.claims]
