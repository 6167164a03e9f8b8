"""AntMan on hand-made timelines, from outside on random traces, and inside VCs as in private clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import event
from hypothesis import strategies as st

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.errors import InputError, PolicyError
from hived.policies import AntMan, Gandiva, Tiresias, YarnCS
from hived.scheduling import Kind, Policies
from hived.simulator.models import OWNER_LOSS, packed_rates
from hived.simulator.record import Record, Run
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.simulator.traces.model import MS

from ..strategies import given_in_tiers
from . import sharing
from .sharing import MODELS, cluster_spec, named, play

U = {model.model: model.utilization for model in MODELS}


def job(
    name: str, gpus: int, seconds: float, at: float = 0.0, model: str = "GCN", mode: str = "", tenant: str = "a"
) -> TraceJob:
    """A job of so many seconds, submitted at a second."""
    return sharing.job(name, gpus, seconds / 60, at / 60, model, mode=mode, tenant=tenant)


def owner(name: str, gpus: int, seconds: float, at: float = 0.0, model: str = "GCN") -> TraceJob:
    return job(name, gpus, seconds, at, model, "guaranteed")


def guest(name: str, gpus: int, seconds: float, at: float = 0.0, model: str = "GCN") -> TraceJob:
    return job(name, gpus, seconds, at, model, "opportunistic")


def shared(jobs: Sequence[TraceJob], gpus: int = 4, policy: AntMan | None = None) -> Record:
    """On one node of a tenant, with guests and loans."""
    return play(cluster_spec(1, gpus), jobs, policy or AntMan())


def rates(record: Record, name: str) -> list[tuple[float, Kind, Any]]:
    """When a job's kind or rate changes, in seconds, and what they are then."""
    return [(run.start / MS, run.kind, pytest.approx(run.rate)) for run in named(record, name)]


def at(record: Record, name: str, second: float) -> Run:
    (run,) = [run for run in named(record, name) if run.start <= second * MS < run.end]
    return run


def gpus_of(run: Run) -> set[tuple[str, int]]:
    return {(pod.node, leaf) for pod in run.placement.pods for leaf in pod.leaf_cells}


GUARANTEED, OPPORTUNISTIC, GUEST = Kind


def test_an_owner_beside_two_guests() -> None:
    jobs = [
        guest("g1", 1, 600, 0, "RHN"),
        guest("g2", 1, 600, 1, "DeepFM"),
        owner("own", 1, 200, 60, "GCN"),
    ]
    record = shared(jobs, 1)
    together = packed_rates([MODELS.of("RHN"), MODELS.of("DeepFM")])[0]
    assert together < 1
    own = [(60.0, GUARANTEED, 1.0), *((80.0 + 5 * n, GUARANTEED, 1 - (n + 1) / 4 * OWNER_LOSS) for n in range(4))]
    assert rates(record, "own") == own
    end = record.finish[2] / MS
    assert end == pytest.approx(260 + 200 * OWNER_LOSS, abs=0.3), "what its guests cost it"
    part = (1 - U["GCN"]) / (U["RHN"] + U["DeepFM"])
    beside = [
        (60.0, GUEST, 0.0),
        *((80.0 + 5 * n, GUEST, min(1.0, (n + 1) / 4 * part)) for n in range(4)),
        (end, OPPORTUNISTIC, together),
    ]
    assert rates(record, "g2")[:7] == [(1.0, OPPORTUNISTIC, together), *beside]
    assert rates(record, "g1")[:8] == [(0.0, OPPORTUNISTIC, 1.0), (1.0, OPPORTUNISTIC, together), *beside]
    assert record.preemptions == [0, 0, 0]


def test_each_job_of_a_packed_set_has_its_own_rate() -> None:
    jobs = [guest("light", 1, 600, 0, "ESPnet"), guest("fills", 1, 600, 0, "ResNet-50")]
    record = shared(jobs, 1, AntMan(most_utilization=100, limits=False))
    rates_of = packed_rates([MODELS.of("ESPnet"), MODELS.of("ResNet-50")])
    assert [at(record, name, 60).rate for name in ("light", "fills")] == pytest.approx(rates_of)
    slow = play(
        cluster_spec(1, 1), jobs, AntMan(most_utilization=100, limits=False), models=MODELS.scaled("wait", 0.05)
    )
    assert at(slow, "light", 60).rate > 4 * rates_of[0], "the law is that of the models"


def test_a_guest_beside_a_stable_owner() -> None:
    record = shared([job("own", 1, 600), guest("guest", 1, 60, 300, "ESPnet")], 1)
    steps = [min(1.0, (n + 1) / 4 * (1 - U["GCN"]) / U["ESPnet"]) for n in range(3)]
    assert steps[-1] == 1.0, "it needs no more than three steps"
    assert rates(record, "guest") == [(300.0 + 5 * n, GUEST, step) for n, step in enumerate(steps)]


def test_guests_take_the_freest_gpus() -> None:
    jobs = [
        owner("busy", 1, 900, 0, "LSTM"),
        owner("half", 1, 900, 0, "RHN"),
        owner("calm", 1, 900, 0, "GCN"),
        owner("none", 1, 900, 0, "ResNet-50"),
        *[guest(f"guest{n}", 1, 900, 100 + n, "GCN") for n in range(4)],
    ]
    record = shared(jobs)
    where = [gpus_of(at(record, one.job_id, 200)) for one in jobs[:4]]
    assert gpus_of(at(record, "guest0", 200)) == where[2], "30% used"
    assert gpus_of(at(record, "guest1", 200)) == where[2], "60%, against 61.6%"
    assert gpus_of(at(record, "guest2", 200)) == where[1]
    assert named(record, "guest3")[0].start >= 900 * MS, "90% and more"


def test_room_is_a_mean_over_ten_seconds() -> None:
    def gap(policy: AntMan, lasts: float) -> float:
        jobs = [owner("own", 1, 900, 0, "GCN"), guest("a", 1, lasts, 100, "RHN")]
        record = simulate(Cluster(spec), policy, [*jobs, guest("b", 1, 60, 101, "GCN")], work=None)
        return (record.first_start[2] - record.finish[1]) / MS

    spec = cluster_spec(1, 1)
    both = U["GCN"] + U["RHN"]
    assert both > 0.8 > U["GCN"]
    assert gap(AntMan(), 60) == pytest.approx(10 * (both - 0.8) / U["RHN"], abs=0.002)
    assert gap(AntMan(window_s=20), 60) == pytest.approx(20 * (both - 0.8) / U["RHN"], abs=0.002)
    assert gap(AntMan(window_s=0), 60) == 0
    assert gap(AntMan(), 1) < gap(AntMan(), 60), "it was busy for less than the window"


def test_guests_need_their_least_memory() -> None:
    jobs = [job("own", 1, 900, 0, "ESPnet"), *[guest(f"g{n}", 1, 9, 1, "ESPnet") for n in range(2)]]
    models = MODELS.scaled("utilization", 0.2)

    def starts(gib: float) -> int:
        record = play(cluster_spec(1, 1), jobs, AntMan(gpu_memory_gib=gib), models=models)
        return sum(start == MS for start in record.first_start)

    assert [starts(gib) for gib in (22.5, 22.7, 26.1, 26.3)] == [0, 1, 1, 2], "19 and 3.6 each"


def test_a_guest_without_memory_stops() -> None:
    jobs = [
        *[guest(f"g{n}", 1, 100, 0, "ESPnet") for n in range(4)],
        owner("own", 1, 100, 10, "ESPnet"),
    ]
    models = MODELS.scaled("utilization", 0.1)
    record = play(cluster_spec(1, 1), jobs, AntMan(gpu_memory_gib=24), models=models)
    assert [at(record, f"g{n}", 50).rate > 0 for n in range(4)] == [True, False, False, False]
    assert [at(record, f"g{n}", 111).rate > 0 for n in range(1, 4)] == [True] * 3
    assert all(finish >= 0 for finish in record.finish)


def test_modes_decide_who_is_a_guest() -> None:
    jobs = [
        owner("own", 4, 300, 0, "GCN"),
        owner("only", 4, 300, 1, "GCN"),
        job("either", 4, 300, 2, "VAE"),
        guest("never", 4, 900, 3, "VAE"),
    ]
    record = shared(jobs)
    assert {run.kind for run in named(record, "only")} == {GUARANTEED}
    assert named(record, "only")[0].start == record.finish[0]
    assert {run.kind for run in named(record, "either")} == {GUEST}
    assert GUARANTEED not in {run.kind for run in named(record, "never")}
    assert named(record, "never")[-1].kind is OPPORTUNISTIC, "alone at last"


def test_a_guest_is_upgraded_beside_a_loan() -> None:
    jobs = [
        owner("own", 1, 100, 0, "RHN"),
        guest("loan", 1, 300, 1, "GCN"),
        job("next", 1, 300, 2, "GCN"),
    ]
    record = play(cluster_spec({"a": 1, "b": 1}, 1), jobs, AntMan())
    assert gpus_of(at(record, "next", 50)) == gpus_of(at(record, "loan", 50)) != gpus_of(at(record, "own", 50))
    upgraded = at(record, "next", 110)
    assert (upgraded.kind, upgraded.start) == (GUARANTEED, 100 * MS)
    assert gpus_of(upgraded) == gpus_of(at(record, "next", 50))
    assert at(record, "loan", 110).kind is GUEST
    assert not sum(record.preemptions)


def test_a_long_wait_makes_opportunistic() -> None:
    jobs = [job("own", 1, 100, 0, "GCN"), job("next", 1, 200, 1, "GCN"), job("last", 1, 10, 150, "GCN")]
    spec = cluster_spec(1, 1)

    def starts(wait_s: float) -> list[tuple[float, Kind]]:
        record = play(spec, jobs, AntMan(wait_s=wait_s))
        return [(named(record, one.job_id)[0].start / MS, named(record, one.job_id)[0].kind) for one in jobs[1:]]

    assert starts(0) == [(1.0, GUEST), (150.0, GUEST)]
    # those that got turns have waited 0 s and 99 s: the mean that counts the latest by a tenth is 9.9 s
    assert starts(9.8) == [(10.8, GUEST), (150.0, GUEST)]
    assert starts(10) == [(11.0, GUEST), (160.0, GUEST)]
    start, kind = starts(500)[0]
    assert (start, kind) == (100.0, GUARANTEED)
    only = [jobs[0], jobs[1]._replace(mode="opportunistic")]
    assert named(play(spec, only, AntMan(wait_s=500)), "next")[0].start == MS, "it never waits for a turn"


def test_a_guest_is_upgraded_in_place() -> None:
    jobs = [job("own", 2, 300, 0), job("guest", 2, 600, 1, "VAE"), owner("later", 2, 300, 2, "GCN")]
    record = shared(jobs, 2)
    runs = named(record, "guest")
    upgraded = next(run for run in runs if run.kind is GUARANTEED)
    assert upgraded.start == record.finish[0]
    assert {frozenset(gpus_of(run)) for run in runs} == {frozenset(gpus_of(runs[0]))}
    assert named(record, "later")[0].start >= record.finish[1]
    assert sum(record.preemptions) == 0


@pytest.mark.parametrize("moves", [True, False])
def test_a_guest_moves_or_leaves_its_turn(moves: bool) -> None:
    jobs = [
        job("long", 1, 900, 0),
        job("short", 1, 300, 0, "RHN"),
        job("guest", 1, 600, 1, "VAE"),
        owner("later", 1, 100, 2, "GCN"),
    ]
    record = shared(jobs, 2, AntMan(moves=moves))
    assert gpus_of(named(record, "guest")[0]) == gpus_of(named(record, "long")[0])
    end = record.finish[1] / MS
    assert at(record, "guest", end + 1).kind is (GUARANTEED if moves else GUEST)
    assert (named(record, "later")[0].start == record.finish[1]) is not moves


def test_gpus_reserved_for_a_gang_are_lent() -> None:
    jobs = [
        owner("own", 2, 300, 0, "GCN"),
        owner("gang", 4, 300, 1, "GCN"),
        owner("small", 2, 300, 2, "GCN"),
        guest("guest", 2, 600, 3, "GCN"),
    ]
    record = shared(jobs)
    assert named(record, "gang")[0].start == record.finish[0]
    assert named(record, "small")[0].start == record.finish[1], "two GPUs were free all the time"
    assert named(record, "guest")[0].start == 3 * MS
    assert [run.kind for run in named(record, "guest")][:2] == [OPPORTUNISTIC, GUEST]


def test_a_tenant_without_guests() -> None:
    jobs = [guest("g", 4, 900, 0, "VAE"), guest("h", 4, 900, 0, "VAE")]
    jobs += [job("own", 4, 100, 10, tenant="b")]
    spec = cluster_spec({"a": 1, "b": 1}, guests={"a": "own"})
    record = play(spec, jobs, AntMan())
    assert sum(record.preemptions) == 1
    assert at(record, "own", 50).rate == 1
    assert all(finish >= 0 for finish in record.finish)
    assert not {*gpus_of(at(record, "own", 50))} & {*gpus_of(at(record, "g", 50)), *gpus_of(at(record, "h", 50))}
    # where no tenant has any, jobs start early on loans
    jobs = [guest("g", 4, 900, 0, "VAE"), job("own", 4, 100, 10)]
    record = play(cluster_spec(1, guests="none"), jobs, AntMan())
    assert [run.kind for run in named(record, "g")] == [OPPORTUNISTIC] * 2
    assert record.preemptions == [1, 0]


def test_jobs_of_other_policies_are_owners() -> None:
    spec = cluster_spec({"a": 1, "b": 1})
    jobs = [job("own", 4, 300, 0, tenant="b"), job("mine", 4, 300, 0), job("guest", 4, 300, 5, "VAE")]
    record = play(spec, jobs, Policies(YarnCS(), {"a": AntMan()}))
    assert {run.kind for run in named(record, "guest")[:1]} == {GUEST}
    assert not sum(record.preemptions)


MIXED = ["VAE", "GCN", "RHN", "ESPnet", "ResNet-50", "DeepSpeech", "*"]
ONE = st.builds(
    job, st.just("job"), st.sampled_from([1, 1, 1, 2, 2, 4]), st.integers(1, 400), st.integers(0, 300),
    st.sampled_from(MIXED), st.sampled_from(["", "", "guaranteed", "opportunistic"]), st.sampled_from(["a", "b"]),
)  # fmt: skip
TRACES = st.lists(ONE, min_size=1, max_size=16).map(
    lambda jobs: [
        one._replace(job_id=f"j{number}") for number, one in enumerate(sorted(jobs, key=lambda one: one.submit_ms))
    ]
)


@given_in_tiers(
    20,
    200,
    TRACES,
    st.sampled_from(list(Sharing)),
    st.fixed_dictionaries({"a": st.sampled_from(["own", "all", "none"]), "b": st.sampled_from(["own", "all"])}),
    st.builds(AntMan, moves=st.booleans(), gpu_memory_gib=st.sampled_from([24.0, 32.0]), patience=st.just(0.0)),
)
def test_any_trace_shares_as_antman_allows(
    jobs: list[TraceJob], scheme: Sharing, guests: dict[str, str], policy: AntMan
) -> None:
    record = play(cluster_spec({"a": 1, "b": 2}, guests=guests), jobs, policy, scheme)
    assert all(finish >= 0 for finish in record.finish)
    event(f"{scheme.value}: guests {any(run.kind is GUEST for run in record.runs)}")


@given_in_tiers(10, 100, TRACES)
def test_vcs_are_as_private_clusters(jobs: list[TraceJob]) -> None:
    """Without loans and guests."""
    spec = cluster_spec({"a": 1, "b": 2}, guests="none")
    trace = [one._replace(mode="guaranteed") for one in jobs]
    finishes = [play(spec, trace, AntMan(), scheme, early=False).finish for scheme in (Sharing.HIVED, Sharing.PRIVATE)]
    assert finishes[0] == finishes[1]


@given_in_tiers(10, 100, TRACES)
def test_guests_delay_no_guaranteed_job(jobs: list[TraceJob]) -> None:
    """Guests take no cells: while owners lose no speed to them, guaranteed jobs start and end as without guests."""
    without = [one for one in jobs if one.mode == "guaranteed"]
    beside = [one._replace(mode=one.mode or "opportunistic") for one in jobs]
    spec = cluster_spec({"a": 1, "b": 2})
    policy = AntMan(settle_s=1e9)
    record = play(spec, beside, policy)
    bare = play(spec, without, policy, early=False)
    begins = [start for start, one in zip(record.first_start, beside, strict=True) if one.mode == "guaranteed"]
    ends = [end for end, one in zip(record.finish, beside, strict=True) if one.mode == "guaranteed"]
    assert (begins, ends) == (bare.first_start, bare.finish)


def test_senseless_parameters_refused() -> None:
    for wrong in {"steps": 2.5}, {"steps": 0}, {"most_utilization": 1.5}, {"settle_s": -1}, {"gpu_memory_gib": "x"}:
        with pytest.raises(InputError, match="guests: "):
            AntMan(**wrong)
    spec, jobs = cluster_spec({"a": 1, "b": 1}), [job("one", 1, 1)]
    with pytest.raises(PolicyError, match="cannot share GPUs in one cluster with those of gandiva"):
        play(spec, jobs, Policies(Gandiva(), {"a": AntMan()}))
    tiresias = Tiresias()
    tiresias.gpu_sharing = AntMan().gpu_sharing
    with pytest.raises(PolicyError, match="without preempts"):
        play(spec, jobs, tiresias)


@pytest.mark.parametrize(("model", "rate"), [("DeepFM", 1.0), ("RHN", (1 - U["RHN"]) / U["RHN"])])
def test_a_gang_is_as_fast_as_its_slowest(model: str, rate: float) -> None:
    run = at(shared([owner("own", 1, 900, 0, "RHN"), guest("gang", 2, 900, 10, model)], 2), "gang", 100)
    assert run.kind is GUEST, "beside an owner on one of its GPUs"
    assert run.rate == pytest.approx(rate)


def test_an_owner_takes_idle_gpus_first() -> None:
    record = shared([guest("guest", 1, 300, 0, "RHN"), owner("own", 1, 300, 10, "RHN")], 2)
    assert gpus_of(at(record, "own", 20)) != gpus_of(at(record, "guest", 20))
