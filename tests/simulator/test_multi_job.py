"""Multi-jobs: configurations submitted, evaluated, promoted and ended while a simulation runs (Gandiva, 6.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import strategies as st

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import policies_of
from hived.scheduling.checks import check_scheduler
from hived.simulator.multi_job import Explorer, MultiJob
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.simulator.traces.model import MS
from hived.simulator.work import Work

from ..strategies import given_in_tiers
from .sharing import MODELS, cluster_spec
from .sharing_reader import check_runs

SLICING = "gandiva:packs=false:migrates=false:most_height=1000"
#: of 1,000 s, evaluated every 30 s, with exact estimates
SEARCH = MultiJob("search", "a", 1, 1000, (0.5, 0.2, 0.9, 0.6, 0.7), 0.9, first=5, error=0.0, model="LeNet-like")


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
    search = replace(SEARCH, accuracies=(0.5,) * 6 + (0.9,), first=6, more=1, top=1)
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
    search = MultiJob(
        "search", "a", random.choice((1, 1, 2)) if gpus > 1 else 1, random.uniform(100, 2000), accuracies,
        max(accuracies), start_s=random.choice((0, 50)), first=random.randint(1, 4), more=random.randint(1, 3),
        top=top, least=random.choice((0.0, 0.3)), error=random.choice((0.0, 0.1)),
        model=random.choice(("LeNet-like", "VGG-like", "VAE")), seed=seed,
    )  # fmt: skip
    record, explorer = explore(search, policy, gpus=gpus)
    for job, end in enumerate(record.finish):
        if end >= 0:
            assert done(record, job) == pytest.approx(search.run_s, abs=1)
            assert accuracies[job] < search.target or end == explorer.ended["search"]
    ended = [job for job, start in enumerate(record.first_start) if start >= 0 and record.finish[job] < 0]
    assert all(done(record, job) <= search.run_s + 1 for job in ended)
    assert "search" in explorer.ended or search.error or max(accuracies) < search.least
