"""The measures of simulations, as experiments read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .measures import Floats


@dataclass(frozen=True)
class Run:
    """One arm of a simulation. Times in minutes."""

    plain: Mapping[str, Any]

    def delay(self, tenant: str | None = None) -> float:
        """Mean queueing delay of a tenant, or of all jobs."""
        return float(self._of(tenant)["delay"])

    def completion(self) -> float:
        """Mean completion time of all jobs."""
        return float(self.plain["completion"])

    def count(self, tenant: str, what: str) -> int:
        """Jobs of a tenant: ``jobs``, ``worse`` than in private, of ``several`` GPUs, ``late`` though within quota."""
        return int(self._of(tenant)[what])

    def over_time(self, tenant: str) -> Floats:
        """Mean delay of the jobs submitted in 12 hours, at :attr:`at`; NaN where there are none."""
        return np.asarray(self._of(tenant)["over_time"], dtype=np.float64)

    def hourly(self, what: str) -> Floats:
        """A mean share of each hour, in :attr:`hours`."""
        return np.asarray(self.plain[what], dtype=np.float64)

    def mean(self, what: str) -> float:
        """The mean of :meth:`hourly` over the time in which jobs are submitted."""
        return float(np.average(self.hourly(what), weights=self.hourly("widths")))

    @property
    def at(self) -> Floats:
        """Days of the moving means."""
        return self.hourly("at")

    @property
    def hours(self) -> Floats:
        """Days of the hourly means."""
        return self.hourly("hours")

    @property
    def preempted_gpus(self) -> int:
        """GPUs taken from opportunistic jobs."""
        return int(self.plain["preempted_gpus"])

    def _of(self, tenant: str | None) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.plain if tenant is None else self.plain["tenants"][tenant]
        return found


@dataclass(frozen=True)
class Result:
    """All arms of a simulation."""

    plain: Mapping[str, Any]

    def __getitem__(self, arm: str) -> Run:
        return Run(self.plain["runs"][arm])

    @property
    def tenants(self) -> list[str]:
        """Those of Table 1 that have jobs here."""
        names = self.plain["tenants"]
        first = next(iter(self.plain["runs"].values()))
        return [name for name in names if first["tenants"][name]["jobs"]]

    def number(self, what: str) -> float:
        """``jobs``, ``gpus``, ``compared``, ``never_fit``, ``days`` or ``load``."""
        return float(self.plain[what])

    def to_private(self, arm: str, tenant: str | None = None) -> float:
        """Mean delay over that in the private cluster; NaN where both are 0, infinite where only the latter is."""
        return over(self[arm].delay(tenant), self["private"].delay(tenant))

    def excess(self, arm: str, tenant: str) -> Floats:
        """How much longer than in private its jobs of 12 hours wait, over time."""
        return self[arm].over_time(tenant) - self["private"].over_time(tenant)


def over(value: float, base: float) -> float:
    """A ratio, defined where the base is 0 too."""
    if base:
        return value / base
    return math.inf if value else math.nan


def highest(values: Floats) -> float:
    """The largest of the values that are defined, NaN without any."""
    found = values[~np.isnan(values)]
    return float(found.max()) if len(found) else math.nan


def correlation(x: Floats, y: Floats) -> float:
    """Pearson's; NaN where one does not vary."""
    known = ~(np.isnan(x) | np.isnan(y))
    if known.sum() < 3 or not x[known].std() or not y[known].std():
        return float("nan")
    return float(np.corrcoef(x[known], y[known])[0, 1])
