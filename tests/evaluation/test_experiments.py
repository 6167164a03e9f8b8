"""The tables and verdicts of experiments, from results made by hand."""

from __future__ import annotations

import pytest
from evaluation.clusters import TENANTS
from evaluation.experiment import FULL
from evaluation.hived import HIVED, example
from evaluation.results import Result

from .made import WORKLOAD, evaluate, ours, result, rows, run, shapes

HOLDS, FAILS, NOT_SEEN = "holds", "does not hold", "not seen on this trace"


def three(quota: float, hived: float, tenant: str = "prod-a") -> Result:
    """A tenant whose delay in private is a minute; the others have 0.5 minutes under quota and hived."""
    others = dict.fromkeys(["res-f", "prod-a", "prod-d"], 0.5)
    return result(private=run(), quota=run({**others, tenant: quota}), hived=run({**others, tenant: hived}))


def test_equal_simulations_are_one_task() -> None:
    """And every experiment has a name of its own."""
    names = [experiment.name for experiment in HIVED.experiments]
    assert len(set(names)) == len(names)
    keys = [
        experiment.simulations(WORKLOAD, FULL)[name].task("").key()
        for experiment, name in ((HIVED["fig6-200"], "all"), (HIVED["fig7"], "all tenants"), (HIVED["fig9"], "0"))
    ]
    assert len(set(keys)) == 1


@pytest.mark.parametrize(("private", "quota", "verdict"), [(0, 9000, HOLDS), (5000, 9000, FAILS), (0, 20, NOT_SEEN)])
def test_a_wait_of_private_is_no_anomaly(private: float, quota: float, verdict: str) -> None:
    found = result(
        private=run(over_time={"prod-a": [0, private, 0, 0]}), quota=run(over_time={"prod-a": [0, quota, 0, 0]})
    )
    outcome = evaluate(HIVED["fig1"], crowded=found, full=found)
    assert shapes(outcome) == [verdict]
    assert ours(outcome, "200 nodes: the same 12 hours in its private cluster").startswith(f"{private:,}")


def test_figure_7_names_who_waits_longer() -> None:
    outcome = evaluate(HIVED["fig7"], a=three(7.2, 0.1), b=three(1.7, 0.9, "res-f"), c=three(0.9, 0.8))
    assert ours(outcome, "all tenants: tenants above 1 under quota") == "prod-a 7.20"
    assert ours(outcome, "all tenants: tenants above 1 with HiveD") == "none"
    assert ours(outcome, "largest reduction") == "99%, prod-a"
    assert set(shapes(outcome)[:-1]) == {HOLDS}


def test_where_nobody_waits_nothing_shows() -> None:
    idle = run(dict.fromkeys(TENANTS, 0.0))
    none = result(private=idle, quota=idle, hived=idle)
    outcome = evaluate(HIVED["fig7"], a=none, b=none, c=none)
    assert ours(outcome, "largest reduction") == "-"
    assert ours(outcome, "change of the mean delay of all jobs, HiveD over quota") == "-"
    outcome = evaluate(HIVED["fig8"], a=none, b=none, c=none, d=none)
    assert ours(outcome, "res-f: delay of res-f over private, quota") == "-"
    assert shapes(outcome) == [NOT_SEEN] * 3


def test_figure_7_fails_above_1() -> None:
    outcome = evaluate(HIVED["fig7"], a=three(7.2, 1.1), b=three(0.9, 0.9, "res-f"), c=three(0.9, 0.8))
    assert shapes(outcome)[:4] == [FAILS, HOLDS, HOLDS, NOT_SEEN]
    assert outcome.shape == FAILS


@pytest.mark.parametrize(
    ("quota", "hived", "verdicts"),
    [
        ((132, 4.3, 1.9, 0.9), (0.9, 0.9, 0.9, 0.8), [HOLDS, HOLDS, HOLDS]),
        ((132, 4.3, 4.3, 0.9), (0.9, 0.9, 0.9, 0.8), [FAILS, HOLDS, HOLDS]),
        ((132, 4.3, 1.9, 0.9), (1.0, 0.9, 0.9, 0.8), [HOLDS, FAILS, HOLDS]),
        ((0.9, 0.8, 0.7, 0.6), (0.5, 0.5, 0.5, 0.6), [NOT_SEEN, HOLDS, FAILS]),
    ],
)
def test_figure_8_needs_a_strict_fall(quota: tuple[float, ...], hived: tuple[float, ...], verdicts: list[str]) -> None:
    cases = {str(at): three(*pair, "res-f") for at, pair in enumerate(zip(quota, hived, strict=True))}
    assert shapes(evaluate(HIVED["fig8"], **cases)) == verdicts


@pytest.mark.parametrize(
    ("dynamic", "static", "verdict"), [(45, 100, HOLDS), (10, 100, FAILS), (90, 100, FAILS), (0, 0, NOT_SEEN)]
)
def test_figure_10_compares_preempted_gpus(dynamic: int, static: int, verdict: str) -> None:
    found = result(
        hived=run(preempted_gpus=dynamic, preempted=[1, 2, 3, 4], bound=[0.1, 0.2, 0.3, 0.4]),
        static=run(preempted_gpus=static, preempted=[4, 4, 4, 4]),
    )
    faster = [result(hived=run(preempted_gpus=number), static=run(preempted_gpus=200)) for number in (100, 120, 180)]
    outcome = evaluate(HIVED["fig10"], a=found, b=found, **dict(zip("cde", faster, strict=True)))
    assert shapes(outcome) == [verdict, HOLDS]
    by_load = [found.split()[0] for what, _, found in rows(outcome) if "clock x1.25" in what or "clock x2" in what]
    assert by_load == ["0.50", "0.90"]
    assert ours(outcome, "correlation of bound cells and preempted GPUs by 12 hours, dynamic") == "1.00"


@pytest.mark.parametrize(("levels", "verdict"), [([0.3] * 4, HOLDS), ([0.3, 0.3, 0.3, 0.5], FAILS)])
def test_figure_11_counts_hours(levels: list[float], verdict: str) -> None:
    found = result(hived=run(), levels=run(fragmentation=levels))
    faster = result(hived=run(), levels=run(fragmentation=[0.1, 0.2, 0.5, 0.6]))
    outcome = evaluate(HIVED["fig11"], a=found, b=found, c=found, d=faster)
    assert shapes(outcome)[0] == verdict
    (at_most,) = [found for what, _, found in rows(outcome) if "clock x2" in what]
    assert at_most == "50.0%, mean gap 15.0%"
    assert ours(outcome, "hours in which levels 1 to 4 fragment less") == f"{100 * levels.count(0.3) / 4:.1f}%"


def test_the_anomaly_by_hand() -> None:
    waits = example()
    assert waits["private"] == waits["hived"] == 0
    assert waits["quota"] > 0
