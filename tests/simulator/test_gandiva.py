"""Gandiva on hand-made timelines, from outside on random traces, and inside VCs as in private clusters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import Gandiva
from hived.simulator.models import Models
from hived.simulator.record import Record, Run
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.simulator.traces.model import MS
from hived.simulator.work import Work
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from .sharing_reader import check_runs

MINUTE = 60 * MS
MODELS = Models.load()
MEMORY = {model.model: model.memory_gib for model in MODELS}


def cluster_spec(nodes: int, gpus: int = 4, **vcs: int) -> ClusterSpec:
    """A cluster of equal nodes; ``vcs``: nodes of each VC, by default one with all."""
    return spec_from_dict(
        {
            "physicalCluster": {
                "cellTypes": {
                    "NODE": {"childCellType": "GPU", "childCellNumber": gpus, "isNodeLevel": True},
                    "RACK": {"childCellType": "NODE", "childCellNumber": nodes},
                },
                "physicalCells": [
                    {"cellType": "RACK", "cellChildren": [{"cellAddress": f"n{i}"} for i in range(nodes)]}
                ],
            },
            "virtualClusters": {
                vc: {"virtualCells": [{"cellType": "RACK.NODE", "cellNumber": number}]}
                for vc, number in (vcs or {"a": nodes}).items()
            },
        }
    )


def job(
    name: str,
    gpus: int,
    minutes: float,
    at: float = 0.0,
    model: str = "*",
    priority: int = 0,
    *,
    elastic: bool = False,
) -> TraceJob:
    times = round(at * MINUTE), round(minutes * MINUTE)
    return TraceJob(name, "a", *times, gpus, "pass", model=model, priority=priority, elastic=elastic)


def play(
    spec: ClusterSpec,
    jobs: Sequence[TraceJob],
    policy: Gandiva,
    sharing: Sharing = Sharing.PRIVATE,
    loans: bool = False,
) -> Record:
    """Simulate, with every index re-derived after every event, and the runs checked from outside."""
    work = Work(jobs, spec, MODELS)
    record = simulate(
        Cluster(spec, sharing=sharing), policy, jobs, loans, after_event=lambda s: s.validate(), work=work
    )
    check_runs(record, MEMORY)
    return record


def named(record: Record, name: str) -> list[Run]:
    """The runs of a job, in order of time."""
    number = next(number for number, one in enumerate(record.jobs) if one.job_id == name)
    return sorted([run for run in record.runs if run.job == number], key=lambda run: (run.start, run.placement.pods))


def at(record: Record, name: str, minute: float) -> list[Run]:
    return [run for run in named(record, name) if run.start <= minute * MINUTE < run.end]


def nodes_of(record: Record, name: str, minute: float) -> set[str]:
    return {pod.node for run in at(record, name, minute) for pod in run.placement.pods}


def share_of(record: Record, name: str, minute: float) -> float:
    return sum(run.share for run in at(record, name, minute))


def test_six_jobs_on_four_gpus_get_four_sixths_each() -> None:
    record = play(cluster_spec(1), [job(f"j{n}", 1, 60) for n in range(6)], Gandiva(packs=False))
    for n in range(6):
        assert share_of(record, f"j{n}", 30) == pytest.approx(4 / 6)


def test_figure_9_two_short_jobs_join_four_long_ones_and_leave_again() -> None:
    long = [job(f"long{n}", 1, 120) for n in range(4)]
    record = play(cluster_spec(1), [*long, job("s0", 1, 10, 25), job("s1", 1, 10, 25)], Gandiva(packs=False))
    names = [one.job_id for one in record.jobs]
    assert [share_of(record, name, 24) for name in names[:4]] == [1.0] * 4
    assert [share_of(record, name, 26) for name in names] == pytest.approx([4 / 6] * 6)
    rate = sum(run.rate for name in names for run in at(record, name, 26))
    assert 0.98 * 4 < rate < 4, "under 2% are lost to suspending and resuming"
    # 10 minutes of work at 4/6 of the time, and what switching costs
    assert record.finish[4] == pytest.approx(40 * MINUTE, rel=0.01)
    assert [share_of(record, name, 41) for name in names[:4]] == [1.0] * 4


def test_figure_7_servers_of_one_size_of_jobs() -> None:
    ones = [job(f"one{n}", 1, 600, n / 100) for n in range(4)]
    jobs = [
        *ones,
        job("two0", 2, 600, 1),
        job("two1", 2, 600, 1),
        job("four0", 4, 600, 2),
        *[job(f"one{n}", 1, 600, n) for n in range(4, 12)],
        job("four1", 4, 600, 21),
    ]
    record = play(cluster_spec(4), jobs, Gandiva(packs=False))
    of_node: dict[str, list[str]] = {}
    for one in jobs:
        (node,) = nodes_of(record, one.job_id, 30)
        of_node.setdefault(node, []).append(one.job_id.rstrip("0123456789"))
    assert sorted(of_node.values()) == [["four", "four"], ["one"] * 6, ["one"] * 6, ["two", "two"]]
    assert share_of(record, "one11", 30) == pytest.approx(4 / 6)
    assert share_of(record, "two1", 30) == 1.0
    assert share_of(record, "four1", 30) == 0.5


def test_figure_8_jobs_on_several_servers_move_together_when_gpus_become_free() -> None:
    jobs = [
        job("deepspeech", 8, 23, 0),
        *[job(f"filler{n}", 3, 600, 1) for n in range(6)],
        *[job(f"j{n}", 2, 600, 2 + n) for n in range(1, 4)],
    ]
    record = play(cluster_spec(8), jobs, Gandiva())
    for n in range(1, 4):
        assert len(nodes_of(record, f"j{n}", 20)) == 2
        assert len(nodes_of(record, f"j{n}", 30)) == 1
        pauses = [run for run in named(record, f"j{n}") if run.rate == 0]
        assert [run.start for run in pauses] == [23.5 * MINUTE], "once the other server is warmed up"
        assert pauses[0].end - pauses[0].start == MODELS.of("*").migrate_s * MS
    assert nodes_of(record, "j1", 30) == nodes_of(record, "j2", 30)


def test_both_ends_of_a_migration_are_held_while_the_destination_is_warmed_up() -> None:
    jobs = [
        job("large", 8, 23, 0),
        *[job(f"filler{n}", 3, 600, 1) for n in range(6)],
        *[job(f"j{n}", 2, 600, 2 + n) for n in range(1, 3)],
        job("short", 2, 18.25, 5),  # ends while it is about to migrate
        *[job(f"late{n}", 2, 60, 23.2 + n / 1000) for n in range(2)],
    ]
    record = play(cluster_spec(8), jobs, Gandiva())
    assert len(nodes_of(record, "j1", 23.4)) == 2, "it runs on where it was"
    assert named(record, "short")[-1].end == record.finish[9] < 23.3 * MINUTE
    assert not [run for run in named(record, "short") if run.rate == 0]
    # 8 GPUs became free: 6 are held for those that migrate, until one of these ends
    late = [named(record, f"late{n}") for n in range(2)]
    assert [runs[0].start for runs in late] == [record.jobs[n].submit_ms for n in (10, 11)]
    assert [[run.share for run in runs[:3]] for runs in late] == [[1, 0.5, 1], [0.5, 1]], "they take turns"
    assert late[1][1].start == record.finish[9]
    without = play(cluster_spec(8), jobs, Gandiva(warm_s=0))
    assert len(nodes_of(without, "j1", 23.1)) == 1


def test_figure_11_an_elastic_job_grows_into_idle_gpus_and_gives_them_up() -> None:
    jobs = [
        job("grower", 1, 300, elastic=True),
        job("short1", 1, 25),
        job("short2", 2, 45),
        job("two", 2, 60, 75),
        job("one", 1, 60, 90),
    ]
    record = play(cluster_spec(1), jobs, Gandiva())
    sizes = [(run.start / MINUTE, run.gpus) for run in named(record, "grower") if run.rate]
    pause = MODELS.of("*").migrate_s / 60
    assert sizes[:5] == [
        (0, 1), (26 + pause, 2), (46 + pause, 4), (75 + pause, 2), (90 + pause, 1)
    ]  # fmt: skip
    assert at(record, "grower", 60)[0].rate == 4
    assert record.first_start[3] == 75 * MINUTE
    assert record.first_start[4] == 90 * MINUTE


def test_a_departure_lowers_the_height_of_the_most_loaded_server() -> None:
    jobs = [
        *[job(f"a{n}", 1, 600) for n in range(4)],
        job("ends", 1, 30),
        *[job(f"b{n}", 1, 600) for n in range(3)],
        *[job(f"c{n}", 1, 600, 1) for n in range(3)],
    ]
    record = play(cluster_spec(2), jobs, Gandiva(packs=False))
    shares = [share_of(record, one.job_id, 40) for one in jobs if one.job_id != "ends"]
    assert sum(shares) == pytest.approx(8)
    assert min(shares) == pytest.approx(4 / 5)


def test_a_job_of_higher_priority_is_never_suspended_and_lower_ones_move_away() -> None:
    jobs = [
        job("low0", 2, 60), job("low1", 2, 60), job("high", 2, 60, 10, priority=5)
    ]  # fmt: skip
    record = play(cluster_spec(1), jobs, Gandiva(packs=False))
    assert share_of(record, "high", 20) == 1.0
    assert share_of(record, "low0", 20) == 0.5
    assert share_of(record, "low1", 20) == 0.5


def test_packing_keeps_what_gains_and_undoes_what_does_not() -> None:
    gains = play(cluster_spec(1, 1), [job("x", 1, 60, model="VAE"), job("y", 1, 60, model="VAE")], Gandiva())
    assert share_of(gains, "x", 30) == share_of(gains, "y", 30) == 1.0
    loses = play(cluster_spec(1, 1), [job("x", 1, 60, model="LSTM"), job("y", 1, 60, model="LSTM")], Gandiva())
    packed = [run for run in named(loses, "x") if run.share == 1.0 and run.end < 100 * MINUTE]
    assert sum(run.end - run.start for run in packed) <= 3 * MINUTE, "alone at first, and one trial"
    assert share_of(loses, "x", 30) == 0.5


def test_jobs_whose_memory_does_not_fit_together_are_not_packed() -> None:
    jobs = [job("x", 1, 60, model="VAE"), job("y", 1, 60, model="VAE")]
    record = play(cluster_spec(1, 1), jobs, Gandiva(gpu_memory_gib=1.5 * MODELS.of("VAE").memory_gib))
    assert share_of(record, "x", 30) == 0.5


def test_exact_slices_have_the_same_shares_in_the_end() -> None:
    jobs = [job(f"j{n}", 1, 60) for n in range(6)]
    exact = play(cluster_spec(1), jobs, Gandiva(packs=False, exact=True))
    closed = play(cluster_spec(1), jobs, Gandiva(packs=False))
    for n in range(6):
        slices = [run for run in named(exact, f"j{n}") if run.end <= 60 * MINUTE]
        assert {run.share for run in slices} == {1.0}
        assert all((run.end - run.start) % MINUTE == 0 for run in slices)
        assert exact.finish[n] == pytest.approx(closed.finish[n], abs=2 * MINUTE)


jobs_of_a_trace = st.lists(
    st.builds(
        TraceJob,
        job_id=st.just(""),
        tenant=st.sampled_from(["a", "b"]),
        submit_ms=st.sampled_from([0, 1, 1000, 10_000, 100_000, 1_000_000]),
        duration_ms=st.integers(1, 3_000_000),
        gpus=st.sampled_from([1, 1, 1, 2, 2, 3, 4, 8]),
        status=st.just("pass"),
        user=st.just(""),
        model=st.sampled_from(["VAE", "LSTM", "RHN", "*"]),
        priority=st.just(0),
        mode=st.just(""),
        soft=st.just(False),
        elastic=st.booleans(),
    ),
    min_size=1,
    max_size=30,
)
parameters = st.fixed_dictionaries(
    {
        "packs": st.booleans(),
        "migrates": st.booleans(),
        "grows": st.booleans(),
        "most_height": st.sampled_from([1.5, 4.0]),
        "patience": st.sampled_from([0.0, 600.0, float("inf")]),
    }
)


def _trace(jobs: Sequence[TraceJob]) -> list[TraceJob]:
    """Gaps as times of submission."""
    found, now = [], 0
    for number, one in enumerate(jobs):
        now += one.submit_ms
        found.append(one._replace(job_id=f"j{number}", submit_ms=now))
    return found


@settings(deadline=None, max_examples=60)
@given(jobs=jobs_of_a_trace, given=parameters, nodes=st.tuples(st.integers(1, 3), st.integers(1, 2)))
def test_random_traces_inside_vcs_as_in_private_clusters(
    jobs: list[TraceJob], given: dict[str, float], nodes: tuple[int, int]
) -> None:
    spec = cluster_spec(sum(nodes), a=nodes[0], b=nodes[1])
    trace = _trace(jobs)
    private = play(spec, trace, Gandiva(**given))  # type: ignore[arg-type]
    hived = play(spec, trace, Gandiva(**given), Sharing.HIVED)  # type: ignore[arg-type]
    assert hived.first_start == private.first_start
    assert hived.finish == private.finish
    for number, one in enumerate(trace):
        fits = one.gpus <= 4 * nodes[one.tenant == "b"]
        assert (private.finish[number] >= 0) is fits


@settings(deadline=None, max_examples=60)
@given(jobs=jobs_of_a_trace, given=parameters, sharing=st.sampled_from(list(Sharing)))
def test_random_traces_with_loans_and_quotas(jobs: list[TraceJob], given: dict[str, float], sharing: Sharing) -> None:
    spec = cluster_spec(3, a=2, b=1)
    trace = _trace(jobs)
    record = play(spec, trace, Gandiva(**given), sharing, loans=True)  # type: ignore[arg-type]
    for number, one in enumerate(trace):
        if one.gpus <= 4 * (1 if one.tenant == "b" else 2):
            assert record.finish[number] >= 0
