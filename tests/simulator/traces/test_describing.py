"""The numbers of a trace."""

from __future__ import annotations

import json

import pytest

from hived.errors import InputError
from hived.simulator.traces import Trace, describe, size_class

from .helpers import job

HOUR = 3_600_000
DAY = 24 * HOUR


def test_one_job() -> None:
    """It loads the cluster with its own GPUs; if it takes no time, with nothing; no job at all is refused."""
    found = describe(Trace("t", (job(duration_ms=2 * HOUR, gpus=8),)))
    assert (found.days, found.window_days) == (0, 2 / 24)
    assert (found.total.gpu_hours, found.total.offered_load_gpus, found.busiest_week.offered_load_gpus) == (16, 8, 8)
    found = describe(Trace("t", (job(duration_ms=0),)))
    assert (found.total.offered_load_gpus, found.busiest_week.offered_load_gpus) == (0, 0)
    with pytest.raises(InputError, match="a trace without jobs cannot be described"):
        describe(Trace("t", ()))


def test_numbers_by_tenant_add_up() -> None:
    jobs = (
        job("a", 0, DAY, 4, "small"),
        job("b", DAY, 2 * DAY, 12, "large"),
        job("c", 4 * DAY, DAY, 1, "small", "killed_or_failed"),
    )
    found = describe(Trace("t", jobs, synthetic=True, dropped=(("why", 2),)))
    assert (found.name, found.synthetic, found.dropped, found.days) == ("t", True, (("why", 2),), 4)
    large, small = found.tenants
    assert (large.tenant, large.jobs, large.jobs_by_size) == ("large", 1, (0, 0, 0, 0, 1))
    assert (small.tenant, small.jobs, small.jobs_by_size) == ("small", 2, (1, 0, 1, 0, 0))
    assert (large.gpu_hours, small.gpu_hours, found.total.gpu_hours) == (576, 120, 696)
    assert (large.offered_load_gpus, small.offered_load_gpus) == (6, 1.25)
    assert (small.passed, found.total.passed, found.total.largest_gpus) == (1, 2, 12)


def test_medians_are_durations_that_occur() -> None:
    jobs = tuple(job(str(number), number, number * 1000) for number in range(1, 101))
    found = describe(Trace("t", jobs)).total
    assert (found.mean_duration_s, found.median_duration_s, found.p95_duration_s) == (50.5, 50, 95)


def test_the_busiest_week_asks_for_most() -> None:
    """A last week that is cut short is averaged over its days."""
    jobs = (job("a", DAY, HOUR), job("b", 9 * DAY, 7 * HOUR, 24), job("c", 10 * DAY, HOUR), job("d", 30 * DAY, HOUR))
    week = describe(Trace("t", jobs)).busiest_week
    assert (week.week, week.jobs, week.gpu_hours, week.offered_load_gpus) == (1, 2, 169, 169 / 168)
    short = (job("a", 0, HOUR), job("b", 8 * DAY, HOUR, 48))
    assert describe(Trace("t", short)).busiest_week.offered_load_gpus == 2


def test_the_json_form_is_plain_and_whole() -> None:
    found = describe(Trace("t", (job(),), dropped=(("why", 2),)))
    back = json.loads(json.dumps(found.to_json()))
    assert back["tenants"][0]["jobs_by_size"] == [1, 0, 0, 0, 0]
    assert back["size_classes"] == ["1", "2", "4", "8", "16+"]
    assert back["dropped"] == [["why", 2]]
    assert back["busiest_week"]["week"] == 0


def test_classes_of_sizes() -> None:
    assert [size_class(gpus) for gpus in (1, 2, 3, 4, 5, 8, 9, 16, 1000)] == [0, 1, 2, 2, 3, 3, 4, 4, 4]
