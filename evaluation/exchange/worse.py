"""Whether a tenant is worse off by trades than what it gave away accounts for, also at a load at which jobs wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, Shape, number
from ..results import Result
from ..simulations import Workload
from ..trial import Trial
from .trading import column, setting_of, trial

#: what the numbers are, for the reader of a report
MEANING = (
    "A job's delay counts once for each of its GPUs, and a backlog lasts for as long as its VC is busy, so that a GPU "
    "hour that is given away may cost many in line; those given away count up to the last submission. "
)


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


def rows_of(arm: str, plain: Mapping[str, Any], base: Mapping[str, Any]) -> list[Row]:
    """The numbers behind :func:`claim`, of one arm."""
    found = changes(plain, base)
    longest = max(found, key=lambda change: change.longer)
    return [
        Row(f"{arm}: delay of all jobs in GPU hours, without trades and with", "-",
            f"{number(sum(column(base, 'gpu_delay')))}, {number(sum(column(plain, 'gpu_delay')))}"),
        Row(f"{arm}: GPU hours that jobs wait longer than without trades, of those given away", "-",
            "; ".join(map(str, found))),
        Row(f"{arm}: the largest excess of the former over the latter; the largest of the former", "-",
            f"{found[0].tenant} {round(found[0].excess):+,}; {longest.tenant} {round(longest.longer):+,}"),
    ]  # fmt: skip


def claim(arms: Mapping[str, Mapping[str, Any]]) -> tuple[Claim, str]:
    """Whether nobody is worse off by more than it gave, and a sentence that names those who are.

    ``arms``: results by arm; ``none`` is that without trades.
    """
    worse = {
        arm: [change for change in changes(plain, arms["none"]) if change.excess > 0]
        for arm, plain in arms.items()
        if arm != "none"
    }
    names = "; ".join(
        f"{arm}: " + ", ".join(f"{change.tenant} by {round(change.excess):,} GPU hours" for change in of_arm)
        for arm, of_arm in worse.items()
        if of_arm
    )
    return (
        Claim(
            "no tenant's jobs wait longer, in GPU hours, by more than the GPU hours that it gave away",
            Shape.FAILS if names else Shape.HOLDS,
        ),
        f"Worse off by more than what they gave: {names}. " if names else "",
    )


def _trials(workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {arm: trial(workload, False, arm, crowded=True) for arm in ("none", "balanced")}


def _evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    arms = {arm: results[arm].plain for arm in ("none", "balanced")}
    base, plain = arms["none"], arms["balanced"]
    found, worse = claim(arms)
    loans = [
        Row(
            f"{change.tenant}: GPU hours of loans on others' cells, without trades and with; on matched cells",
            "-",
            f"{number(base['tenants'][change.tenant]['borrowed'])}, "
            f"{number(plain['tenants'][change.tenant]['borrowed'])}; "
            f"{number(plain['tenants'][change.tenant]['benefited'])}",
        )
        for change in changes(plain, base)
    ]
    return Outcome(
        setting_of(workload, False, plain, crowded=True),
        [*rows_of("balanced", plain, base), *loans],
        [found],
        "Ours: where jobs hardly wait, as at 279 nodes, the same claim of Tables 4 and 5 says little. "
        f"{MEANING}{worse}Loans are not guaranteed: a tenant may lose those that it had on cells that others trade "
        "now, although it gave nothing." + (" Quick: a window." if scale is QUICK else ""),
    )


EXPERIMENT = Experiment(
    "worse",
    "Who is worse off by trades at a higher load",
    "nothing of this",
    _trials,
    _evaluate,
)
