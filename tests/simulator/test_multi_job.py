"""Multi-jobs: configurations submitted, evaluated, promoted and ended while a simulation runs (Gandiva, 6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.errors import ModelError
from hived.policies import policies_of
from hived.scheduling.checks import check_scheduler
from hived.simulator.multi_job import Curve, Explorer, MultiJob, draw_slow
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.simulator.traces.model import MS
from hived.simulator.work import Work

from ..strategies import given_in_tiers
from .sharing import MODELS, cluster_spec
from .sharing_reader import check_runs

SLICING = "gandiva:packs=false:migrates=false:most_height=1000"


def lines(*finals: float) -> tuple[Curve, ...]:
    """Curves whose accuracy rises evenly, so that each is at its highest at its end alone."""
    return tuple([Curve(final, inf, 0.0) for final in finals])


#: of 1,000 s, evaluated every 30 s, with exact estimates; the one that it looks for has it at its end
SEARCH = MultiJob("search", "a", 1, 1000, lines(0.5, 0.2, 0.9, 0.6, 0.7), 0.9, first=5, error=0.0, model="LeNet-like")


def explore(
    search: MultiJob | Sequence[MultiJob], policy: str = SLICING, jobs: Sequence[TraceJob] = (), gpus: int = 2
) -> tuple[Record, Explorer]:
    """On one server, with every index re-derived after every event; what shares GPUs is checked from outside."""
    searches = [search] if isinstance(search, MultiJob) else search
    spec = cluster_spec(1, gpus, "none")
    policies = policies_of(spec, policy)
    explorer = Explorer(searches, len(jobs), policy != "yarn-cs")
    cluster = Cluster(spec, sharing=Sharing.PRIVATE, rank=policies.rank, ranks=policies.ranks)
    work = Work([*jobs, *explorer.jobs], spec, MODELS)
    record = simulate(cluster, policies, jobs, False, after_event=check_scheduler, work=work, driver=explorer)
    check_runs(record, {model.model: model.memory_gib for model in MODELS})
    return record, explorer


def done(record: Record, job: int, until_s: float = 1e9) -> float:
    """Seconds of work that a job has done by then."""
    return sum(run.rate * max(0, min(run.end, until_s * MS) - run.start) for run in record.runs if run.job == job) / MS


def test_a_search_second_by_second() -> None:
    record, explorer = explore(SEARCH)
    starts = [start / MS for start in record.first_start]
    assert starts == [0] * 5, "all begin at once and take turns"
    assert record.finish[1] == -1
    assert done(record, 1) == pytest.approx(30, abs=0.5), "it promises less than 30%"
    assert record.finish[2] == explorer.ended["search"], "the best of them"
    assert explorer.ended["search"] / MS < 1000 + 5 * 30 + 60, "as if it had run alone, but for the first evaluations"
    assert [record.finish[job] for job in (0, 3, 4)] == [-1, -1, -1], "ended with the search"
    assert done(record, 4) > done(record, 3) > done(record, 0) - 1, "the second best has the other GPU"
    assert [count for _, count in explorer.explored["search"]] == [1, 2, 3, 4, 5]


def test_the_best_has_a_gpu_for_itself() -> None:
    record, explorer = explore(replace(SEARCH, top=1))
    late = [run for run in record.runs if run.start >= max(time for time, _ in explorer.explored["search"])]
    assert {run.share for run in late if run.job == 2} == {1.0}
    assert 0 < max(run.share for run in late if run.job != 2) < 1, "the rest take turns"


def test_new_configurations_come_first() -> None:
    search = replace(SEARCH, curves=lines(*[0.5] * 6, 0.9), first=6, more=1, top=1)
    record, explorer = explore(search)
    came = record.jobs[6].submit_ms
    assert came == 30 * MS
    first = next(time for time, count in explorer.explored["search"] if count == 7)
    assert done(record, 6, first / MS) == pytest.approx(30, abs=0.5)
    assert first - came < 90 * MS, "at once, though seven share two GPUs"


def test_fifo_explores_by_the_number_of_gpus() -> None:
    record, explorer = explore(SEARCH, "yarn-cs")
    assert record.first_start[:4] == [0, 0, 30 * MS, 1000 * MS]
    assert explorer.ended["search"] == 1030 * MS
    assert [time // MS for time, _ in explorer.explored["search"]] == [30, 30, 60]


def test_a_search_without_an_answer() -> None:
    record, explorer = explore(replace(SEARCH, target=0.95))
    assert explorer.ended == {}
    assert [end >= 0 for end in record.finish] == [True, False, True, True, True]
    assert all(done(record, job) == pytest.approx(1000, abs=1) for job in (0, 2, 3, 4))


def test_searches_and_jobs_share_a_server() -> None:
    jobs = [TraceJob(f"job{n}", "a", n * 100 * MS, 500 * MS, 1, "pass", model="LSTM") for n in range(4)]
    searches = [SEARCH, replace(SEARCH, name="other", start_s=200, seed=2)]
    record, explorer = explore(searches, "gandiva:most_height=1000", jobs, gpus=4)
    assert explorer.ended.keys() == {"search", "other"}
    assert all(end >= 0 for end in record.finish[:4])
    assert record.jobs[len(jobs) + 5].submit_ms == 200 * MS


def test_a_search_ends_at_the_evaluation_that_finds_its_target() -> None:
    """Not with that training: on two GPUs without turns the third configuration starts when the first one ends."""
    search = replace(SEARCH, curves=(Curve(0.5), Curve(0.6), Curve(0.95, 0.2)), first=3, target=0.8, least=-inf)
    record, explorer = explore(search, "yarn-cs")
    evaluations = next(times for times in range(1, 34) if search.curves[2].at(times * 0.03) >= 0.8)
    assert 5 < evaluations < 20
    assert explorer.ended["search"] / MS == pytest.approx(1000 + 1000 * 0.03 * evaluations, abs=0.01)
    assert record.finish == [1000 * MS, 1000 * MS, -1], "it is ended as well"
    assert done(record, 2) == pytest.approx(30 * evaluations, abs=0.01)
    found = explorer.best["search"]
    assert all(a < b for (_, a), (_, b) in pairwise(found))
    assert found[-1] == (explorer.ended["search"], search.curves[2].at(0.03 * evaluations))
    assert found[-1][1] >= 0.8 > found[-2][1]


def test_configurations_that_reach_it_at_one_moment() -> None:
    search = replace(SEARCH, curves=(Curve(0.9, 0.2), Curve(0.9, 0.2)), target=0.8)
    record, explorer = explore(search)
    assert done(record, 0) == done(record, 1)
    assert len(explorer.best["search"]) == explorer.ended["search"] // (30 * MS)


CURVES = st.builds(
    lambda first, more, slow: Curve(min(1.0, first + more), slow, first),
    st.floats(0, 0.5), st.floats(0, 0.5), st.one_of(st.floats(0.01, 10), st.just(inf)),
)  # fmt: skip


@given(CURVES, st.floats(0, 1), st.floats(0, 1))
def test_curves_rise_to_their_ends(curve: Curve, one: float, other: float) -> None:
    assert curve.at(0) == curve.first
    assert curve.at(1) == curve.final
    low, high = sorted((curve.at(min(one, other)), curve.at(max(one, other))))
    assert curve.at(min(one, other)) == low <= high <= curve.final + 1e-12
    straight = curve.first + (curve.final - curve.first) * one
    assert curve.at(one) >= straight - 1e-9, "it saturates"


def test_a_curve_by_hand() -> None:
    curve = Curve(0.9, 0.1, 0.1)
    assert [round(curve.at(done), 3) for done in (0, 0.1, 0.2, 0.5, 1)] == [0.1, 0.606, 0.792, 0.895, 0.9]
    for wrong in {"final": 1.1}, {"final": 0.05}, {"final": 0.5, "slow": 0}:
        with pytest.raises(ModelError, match=r"^learning curve from 0\.1 to "):
            Curve(**wrong)


def test_how_slow_curves_are_is_drawn() -> None:
    found = sorted(draw_slow(Random(seed), 0.1) for seed in range(1001))
    assert 0.05 <= found[0] < 0.051
    assert 0.199 < found[-1] <= 0.2
    assert found[500] == pytest.approx(0.1, rel=0.1), "by its logarithm"


@given_in_tiers(
    10,
    80,
    st.integers(0, 10_000),
    st.sampled_from([SLICING, "gandiva:most_height=1000", "gandiva", "yarn-cs"]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
)
def test_any_search_conserves_work_and_ends(seed: int, policy: str, gpus: int, top: int) -> None:
    random = Random(seed)
    accuracies = tuple(random.random() for _ in range(random.randint(1, 12)))
    slow = random.choice((inf, draw_slow(random)))
    search = MultiJob(
        "search", "a", random.choice((1, 1, 2)) if gpus > 1 else 1, random.uniform(100, 2000),
        tuple(Curve(final, slow, 0.0) for final in accuracies), max(accuracies),
        start_s=random.choice((0, 50)), first=random.randint(1, 4), more=random.randint(1, 3),
        top=top, least=random.choice((0.0, 0.3)), error=random.choice((0.0, 0.1)),
        model=random.choice(("LeNet-like", "VGG-like", "VAE")), seed=seed,
    )  # fmt: skip
    record, explorer = explore(search, policy, gpus=gpus)
    for job, end in enumerate(record.finish):
        if end >= 0:
            assert done(record, job) == pytest.approx(search.run_s, abs=1)
            assert accuracies[job] < search.target or end == explorer.ended["search"]
    found = explorer.best["search"]
    assert all(time < explorer.ended["search"] for time, accuracy in found if accuracy < search.target)
    ended = [job for job, start in enumerate(record.first_start) if start >= 0 and record.finish[job] < 0]
    assert all(done(record, job) <= search.run_s + 1 for job in ended)
    assert "search" in explorer.ended or search.error or max(accuracies) < search.least
