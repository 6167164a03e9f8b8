"""Every policy, those here and those made up: without loans as in private, second for second; with loans, safe."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from hived.cluster import BindingKind, Cluster
from hived.scheduling import JobView, Kind, Policy, Scheduler
from hived.scheduling.checks import check_scheduler
from hived.simulator import Preempted, Results, Scenario, Sharing, run_experiment
from hived.simulator.simulation import simulate
from hived.simulator.traces import Trace, TraceJob
from hived.spec import parse_spec

from ..policies import LeastAttained
from ..strategies import given_in_tiers, tiers
from .helpers import nodes_of_8, spec_text
from .strategies import Case, policies, prioritised

BINDINGS, SHARES, SEEDS = st.sampled_from(BindingKind), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 5)
PREEMPTED = st.sampled_from(Preempted)


def played(spec: str, trace: Trace, scenario: Scenario) -> Results:
    """An experiment with every index re-derived after every event."""
    return run_experiment(parse_spec(spec, "any"), trace, scenario, after_event=check_scheduler)


def history(results: Results) -> list[tuple[object, ...]]:
    """What becomes of every job: each start, each stop, each preemption."""
    return [
        (r.first_start, r.finish, r.preemptions, sorted((run.job, run.start, run.end) for run in r.runs))
        for r in results.records
    ]


@given_in_tiers(
    40, 600, prioritised(), policies(), st.lists(policies(), max_size=2), PREEMPTED, BINDINGS, SHARES, SEEDS
)
def test_hived_runs_jobs_as_private(
    given: tuple[Case, Trace],
    policy: str | Policy,
    own: Sequence[str | Policy],
    preempted: Preempted,
    binding: BindingKind,
    soft: float,
    seed: int,
) -> None:
    """Without loans: preemptions included, with different policies of the tenants at once, soft affinity or not."""
    assume(not {"gandiva", "antman"} <= {name for name in (policy, *own) if isinstance(name, str)})  # turns or guests
    case, trace = given
    tenants = sorted({job.tenant for job in trace.jobs})
    scenario = Scenario(
        schemes=(Sharing.PRIVATE, Sharing.HIVED),
        policy=[policy, dict(zip(tenants, own, strict=False))],
        opportunistic=False,
        preempted=preempted,
        binding=binding,
        soft=soft,
        seed=seed,
    )
    private, hived = history(played(case.spec, trace, scenario))
    assert hived == private


@given_in_tiers(25, 300, prioritised(max_jobs=25), policies(), st.sampled_from(Sharing), PREEMPTED, BINDINGS, SHARES)
def test_with_loans_jobs_end(
    given: tuple[Case, Trace],
    policy: str | Policy,
    scheme: Sharing,
    preempted: Preempted,
    binding: BindingKind,
    soft: float,
) -> None:
    """Every index is right after every event, and every job ends that fits its private cluster."""
    case, trace = given
    scenario = Scenario(schemes=[scheme], policy=policy, preempted=preempted, binding=binding, soft=soft)
    results = played(case.spec, trace, scenario)
    (record,) = results.records
    late = [number for number, end in enumerate(record.finish) if end < 0]
    assert set(late) <= set(results.never_fit)


def jobs_of(*rows: tuple[int, int, int, str]) -> list[TraceJob]:
    """Submission, duration, GPUs and tenant of each."""
    return [TraceJob(f"job-{n}", vc, at, ms, gpus, "pass") for n, (at, ms, gpus, vc) in enumerate(rows)]


@pytest.mark.parametrize("sharing", Sharing)
def test_no_more_are_suspended_than_needed(sharing: Sharing) -> None:
    """Two jobs of four GPUs and a later one of two, which needs half of what either has: the last in order goes."""
    cluster = Cluster(parse_spec(nodes_of_8(2, {"a": 1, "b": 1}), "two"), sharing)
    jobs = jobs_of((0, 100, 4, "a"), (1, 100, 4, "a"), (10, 5, 2, "a"))
    record = simulate(cluster, LeastAttained((0.030,)), jobs, False, after_event=check_scheduler)
    # at 10 ms both have attained more than 30; the later one is behind, gives way for 5 ms, and goes on
    assert record.first_start == [0, 1, 10]
    assert record.finish == [100, 106, 15]
    assert record.preemptions == [0, 1, 0]


class SecondLosesItsPlace(LeastAttained):
    """First come, first served, but the second job is last once it has run; the order is never reviewed."""

    def __init__(self) -> None:
        super().__init__(())

    def order(self, job: JobView) -> tuple[float, ...]:
        return int(job.sequence == 1 and job.attained > 0), job.sequence


def test_a_lost_place_leaves_the_turn() -> None:
    """The head of the line loses its place with its loan: it wanted more than its VC has free; the next one fits."""
    cluster = Cluster(parse_spec(nodes_of_8(5, {"v": 2, "w": 3}), "five"))
    jobs = jobs_of((0, 500, 8, "v"), (1, 400, 16, "v"), (2, 400, 8, "v"), (50, 100, 16, "w"))
    record = simulate(cluster, SecondLosesItsPlace(), jobs, True, after_event=check_scheduler)
    kinds = {(run.job, run.kind) for run in record.runs}
    assert (1, Kind.OPPORTUNISTIC) in kinds, "it has lost a loan"
    assert all(run.start == 50 for run in record.runs if (run.job, run.kind) == (2, Kind.GUARANTEED))
    assert (2, Kind.GUARANTEED) in kinds


class Explaining(Scheduler):
    """The scheduler as an engine has it, which says why jobs wait."""

    def __init__(self, *arguments: Any, explains: bool, **others: Any) -> None:
        super().__init__(*arguments, **others)


@given_in_tiers(
    25, 300, prioritised(), policies(("gandiva", "antman")), st.sampled_from(Sharing), SHARES, st.booleans()
)
def test_what_is_simulated_is_what_runs(
    given: tuple[Case, Trace], policy: str | Policy, scheme: Sharing, soft: float, loans: bool
) -> None:
    """An engine records reasons and a simulation does not: they decide the same."""
    case, trace = given
    scenario = Scenario(schemes=[scheme], policy=policy, soft=soft, opportunistic=loans)
    simulated = played(case.spec, trace, scenario)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hived.simulator.simulation.Scheduler", Explaining)
        live = played(case.spec, trace, scenario)
    assert history(simulated) == history(live)


def dense(seed: int) -> tuple[str, Trace, Scenario]:
    """Small nodes, many jobs within minutes; a policy of its own for each tenant, modes, and some priorities."""
    rng = Random(seed)
    vcs = {name: rng.randint(1, 2) for name in "abc"[: rng.randint(2, 3)]}
    size, jobs, at = rng.choice((2, 3, 4, 8)), list[TraceJob](), 0
    for number in range(rng.randint(4, 22)):
        at += rng.choice((0, 0, 1, 1, 2, 5, 20)) * 1000
        gpus = rng.choice((1, 1, min(2, size), size, size, 2 * size))
        lasts = rng.choice((1, 3, 7, 17, 21, 40, 90, 300)) * 1000
        mode = rng.choice(("",) * 7 + ("guaranteed",) * 2 + ("opportunistic",))
        job = TraceJob(f"job-{number}", rng.choice(list(vcs)), at, lasts, gpus, "pass", f"u{number % 3}")
        jobs.append(job._replace(priority=rng.choice((0, 0, 0, 0, 5)), mode=mode))
    nodes = sum(vcs.values()) + rng.choice((0, 0, 1))
    cells = [{"cellType": "NODE", "cellAddress": f"n[0-{nodes - 1}]"}]
    spec = spec_text({"NODE": ("GPU", size)}, cells, {vc: {"NODE": number} for vc, number in vcs.items()})
    names = (
        "yarn-cs", "fifo", "greedy:patience=20", "greedy", "sjf", "srtf", "tiresias:limits=48/144", "tiresias",
        "fair:half_life=60",
    )  # fmt: skip
    own = {vc: rng.choice(names) for vc in vcs}
    scheme, loans = rng.choice((Sharing.HIVED, Sharing.HIVED, Sharing.QUOTA, Sharing.PRIVATE)), rng.random() < 0.8
    scenario = Scenario(schemes=[scheme], policy=own, opportunistic=loans, soft=rng.choice((0.0, 0.5)))
    return spec, Trace("dense", tuple(jobs)), scenario


@tiers(150, 3000)
def test_dense_traces_run_as_they_are_simulated(examples: int) -> None:
    """The same comparison where jobs meet all the time, and a missed look shows."""
    for seed in range(examples):
        spec, trace, scenario = dense(seed)
        simulated = played(spec, trace, scenario)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("hived.simulator.simulation.Scheduler", Explaining)
            assert history(simulated) == history(played(spec, trace, scenario)), seed
