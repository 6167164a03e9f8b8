"""Gandiva on hand-made timelines, from outside on random traces, and inside VCs as in private clusters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import strategies as st

from hived.cluster.sharing import Sharing
from hived.policies import Gandiva
from hived.simulator.record import Record, Run
from hived.simulator.traces import TraceJob
from hived.simulator.traces.model import MS

from ..strategies import given_in_tiers
from .sharing import MINUTE, MODELS, cluster_spec, job, named, play


def alone(jobs: Sequence[TraceJob], policy: Gandiva, nodes: int = 1, gpus: int = 4) -> Record:
    """On private nodes."""
    return play(cluster_spec(nodes, gpus), jobs, policy, Sharing.PRIVATE, early=False)


def at(record: Record, name: str, minute: float) -> list[Run]:
    return [run for run in named(record, name) if run.start <= minute * MINUTE < run.end]


def nodes_of(record: Record, name: str, minute: float) -> set[str]:
    return {pod.node for run in at(record, name, minute) for pod in run.placement.pods}


def share_of(record: Record, name: str, minute: float) -> float:
    return sum(run.share for run in at(record, name, minute))


def test_figure_9_short_jobs_join_long_ones() -> None:
    long = [job(f"long{n}", 1, 120) for n in range(4)]
    record = alone([*long, job("s0", 1, 10, 25), job("s1", 1, 10, 25)], Gandiva(packs=False))
    names = [one.job_id for one in record.jobs]
    assert [share_of(record, name, 24) for name in names[:4]] == [1.0] * 4
    assert [share_of(record, name, 26) for name in names] == pytest.approx([4 / 6] * 6)
    rate = sum(run.rate for name in names for run in at(record, name, 26))
    assert 0.98 * 4 < rate < 4, "under 2% are lost to suspending and resuming"
    # 10 minutes of work at 4/6 of the time, and what switching costs
    assert record.finish[4] == pytest.approx(40 * MINUTE, rel=0.01)
    assert [share_of(record, name, 41) for name in names[:4]] == [1.0] * 4


def test_figure_7_a_server_has_one_size() -> None:
    jobs = [
        *[job(f"one{n}", 1, 600, n / 100) for n in range(4)],
        job("two0", 2, 600, 1),
        job("two1", 2, 600, 1),
        job("four0", 4, 600, 2),
        *[job(f"one{n}", 1, 600, n) for n in range(4, 12)],
        job("four1", 4, 600, 21),
    ]
    record = alone(jobs, Gandiva(packs=False), nodes=4)
    of_node: dict[str, list[str]] = {}
    for one in jobs:
        (node,) = nodes_of(record, one.job_id, 30)
        of_node.setdefault(node, []).append(one.job_id.rstrip("0123456789"))
    assert sorted(of_node.values()) == [["four", "four"], ["one"] * 6, ["one"] * 6, ["two", "two"]]
    assert share_of(record, "one11", 30) == pytest.approx(4 / 6)
    assert share_of(record, "two1", 30) == 1.0
    assert share_of(record, "four1", 30) == 0.5


def test_figure_8_spread_jobs_move_together() -> None:
    jobs = [
        job("deepspeech", 8, 23, 0),
        *[job(f"filler{n}", 3, 600, 1) for n in range(6)],
        *[job(f"j{n}", 2, 600, 2 + n) for n in range(1, 4)],
    ]
    record = alone(jobs, Gandiva(), nodes=8)
    for n in range(1, 4):
        assert len(nodes_of(record, f"j{n}", 20)) == 2
        assert len(nodes_of(record, f"j{n}", 30)) == 1
        pauses = [run for run in named(record, f"j{n}") if run.rate == 0]
        assert [run.start for run in pauses] == [23.5 * MINUTE], "once the other server is warmed up"
        assert pauses[0].end - pauses[0].start == MODELS.of("*").migrate_s * MS
    assert nodes_of(record, "j1", 30) == nodes_of(record, "j2", 30)


def test_a_migration_holds_both_ends() -> None:
    jobs = [
        job("large", 8, 23, 0),
        *[job(f"filler{n}", 3, 600, 1) for n in range(6)],
        *[job(f"j{n}", 2, 600, 2 + n) for n in range(1, 3)],
        job("short", 2, 18.25, 5),  # ends while it is about to migrate
        *[job(f"late{n}", 2, 60, 23.2 + n / 1000) for n in range(2)],
    ]
    record = alone(jobs, Gandiva(), nodes=8)
    assert len(nodes_of(record, "j1", 23.4)) == 2, "it runs on where it was"
    assert named(record, "short")[-1].end == record.finish[9] < 23.3 * MINUTE
    assert not [run for run in named(record, "short") if run.rate == 0]
    # 8 GPUs became free: 6 are held for those that migrate, until one of these ends
    late = [named(record, f"late{n}") for n in range(2)]
    assert [runs[0].start for runs in late] == [record.jobs[n].submit_ms for n in (10, 11)]
    assert [[run.share for run in runs[:3]] for runs in late] == [[1, 0.5, 1], [0.5, 1]], "they take turns"
    assert late[1][1].start == record.finish[9]
    without = alone(jobs, Gandiva(warm_s=0), nodes=8)
    assert len(nodes_of(without, "j1", 23.1)) == 1


def test_figure_11_an_elastic_job_grows() -> None:
    jobs = [
        job("grower", 1, 300, elastic=True),
        job("short1", 1, 25),
        job("short2", 2, 45),
        job("two", 2, 60, 75),
        job("one", 1, 60, 90),
    ]
    record = alone(jobs, Gandiva())
    sizes = [(run.start / MINUTE, run.gpus) for run in named(record, "grower") if run.rate]
    pause = MODELS.of("*").migrate_s / 60
    assert sizes[:5] == [
        (0, 1), (26 + pause, 2), (46 + pause, 4), (75 + pause, 2), (90 + pause, 1)
    ]  # fmt: skip
    assert at(record, "grower", 60)[0].rate == 4
    assert record.first_start[3] == 75 * MINUTE
    assert record.first_start[4] == 90 * MINUTE


def test_a_departure_lowers_the_height() -> None:
    jobs = [
        *[job(f"a{n}", 1, 600) for n in range(4)],
        job("ends", 1, 30),
        *[job(f"b{n}", 1, 600) for n in range(3)],
        *[job(f"c{n}", 1, 600, 1) for n in range(3)],
    ]
    record = alone(jobs, Gandiva(packs=False), nodes=2)
    shares = [share_of(record, one.job_id, 40) for one in jobs if one.job_id != "ends"]
    assert sum(shares) == pytest.approx(8)
    assert min(shares) == pytest.approx(4 / 5)


def test_high_priority_is_never_suspended() -> None:
    jobs = [job("low0", 2, 60), job("low1", 2, 60), job("high", 2, 60, 10, priority=5)]
    record = alone(jobs, Gandiva(packs=False))
    assert [share_of(record, name, 20) for name in ("high", "low0", "low1")] == [1.0, 0.5, 0.5]


def test_packing_keeps_what_gains_and_fits() -> None:
    def packed(model: str, policy: Gandiva) -> Record:
        return alone([job("x", 1, 60, model=model), job("y", 1, 60, model=model)], policy, gpus=1)

    gains = packed("VAE", Gandiva())
    assert share_of(gains, "x", 30) == share_of(gains, "y", 30) == 1.0
    large = packed("VAE", Gandiva(gpu_memory_gib=1.5 * MODELS.of("VAE").memory_gib))
    assert share_of(large, "x", 30) == 0.5
    loses = packed("LSTM", Gandiva())
    whole = [run for run in named(loses, "x") if run.share == 1.0 and run.end < 100 * MINUTE]
    assert sum(run.end - run.start for run in whole) <= 3 * MINUTE, "alone at first, and one trial"
    assert share_of(loses, "x", 30) == 0.5


def test_exact_slices_have_the_same_shares() -> None:
    jobs = [job(f"j{n}", 1, 60) for n in range(6)]
    exact = alone(jobs, Gandiva(packs=False, exact=True))
    closed = alone(jobs, Gandiva(packs=False))
    for n in range(6):
        slices = [run for run in named(exact, f"j{n}") if run.end <= 60 * MINUTE]
        assert {run.share for run in slices} == {1.0}
        assert all((run.end - run.start) % MINUTE == 0 for run in slices)
        assert exact.finish[n] == pytest.approx(closed.finish[n], abs=2 * MINUTE)


def spaced(jobs: Sequence[TraceJob]) -> list[TraceJob]:
    """Gaps as times of submission."""
    times = accumulate(one.submit_ms for one in jobs)
    return [
        one._replace(job_id=f"j{number}", submit_ms=at)
        for number, (one, at) in enumerate(zip(jobs, times, strict=True))
    ]


ONE = st.builds(
    lambda gap, ms, gpus, tenant, **more: job("", gpus, ms / MINUTE, gap / MINUTE, tenant=tenant, **more),
    st.sampled_from([0, 1, 1000, 10_000, 100_000, 1_000_000]), st.integers(1, 3_000_000),
    st.sampled_from([1, 1, 1, 2, 2, 3, 4, 8]), st.sampled_from(["a", "b"]),
    model=st.sampled_from(["VAE", "LSTM", "RHN", "*"]), elastic=st.booleans(),
)  # fmt: skip
TRACES = st.lists(ONE, min_size=1, max_size=30).map(spaced)
POLICIES = st.builds(
    Gandiva, packs=st.booleans(), migrates=st.booleans(), grows=st.booleans(), most_height=st.sampled_from([1.5, 4.0]),
    patience=st.sampled_from([0.0, 600.0, float("inf")]),
)  # fmt: skip


@given_in_tiers(15, 120, TRACES, POLICIES, st.tuples(st.integers(1, 3), st.integers(1, 2)))
def test_vcs_are_as_private_clusters(jobs: list[TraceJob], policy: Gandiva, nodes: tuple[int, int]) -> None:
    spec = cluster_spec({"a": nodes[0], "b": nodes[1]})
    private, hived = (play(spec, jobs, policy, sharing, early=False) for sharing in (Sharing.PRIVATE, Sharing.HIVED))
    assert hived.first_start == private.first_start
    assert hived.finish == private.finish
    for number, one in enumerate(jobs):
        assert (private.finish[number] >= 0) is (one.gpus <= 4 * nodes[one.tenant == "b"])


@given_in_tiers(15, 120, TRACES, POLICIES, st.sampled_from(list(Sharing)))
def test_jobs_end_with_loans_and_quotas(jobs: list[TraceJob], policy: Gandiva, sharing: Sharing) -> None:
    record = play(cluster_spec({"a": 2, "b": 1}), jobs, policy, sharing)
    for number, one in enumerate(jobs):
        if one.gpus <= 4 * (1 if one.tenant == "b" else 2):
            assert record.finish[number] >= 0
