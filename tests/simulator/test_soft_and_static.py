"""Soft affinity and static binding in simulations: who gets them, and what they leave as it is."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cluster import BindingKind
from hived.errors import InputError
from hived.policies import policy_names
from hived.scheduling import Kind, Scheduler
from hived.simulator import Options, Results, Sharing, run_experiment
from hived.simulator.experiment import soft_jobs
from hived.simulator.output import write_runs
from hived.simulator.traces import Trace, TraceJob
from hived.spec import parse_spec

from .helpers import nodes_of_8
from .strategies import Case, cases


def trace_of(text: str) -> Trace:
    rows = csv.DictReader(StringIO(text))
    jobs = [
        TraceJob(
            row["job_id"],
            row["tenant"],
            round(float(row["submit_s"]) * 1000),
            round(float(row["duration_s"]) * 1000),
            int(row["gpus"]),
            "pass",
        )
        for row in rows
    ]
    return Trace("any", tuple(sorted(jobs, key=lambda job: job.submit_ms)))


def played(case: Case, options: Options, validate: bool = False) -> Results:
    after = Scheduler.validate if validate else None
    return run_experiment(parse_spec(case.spec, "any"), trace_of(case.trace), options, after_event=after)


def times(results: Results) -> dict[str, tuple[list[int], list[int]]]:
    return {record.scheme: (record.first_start, record.finish) for record in results.records}


def pods(sizes: Sequence[int]) -> Trace:
    return Trace("t", tuple(TraceJob(f"j{n}", "a", n, 1000, size, "pass") for n, size in enumerate(sizes)))


BINDINGS, SHARES = st.sampled_from(BindingKind), st.sampled_from([0.0, 0.5, 1.0])


@given(cases(), BINDINGS, SHARES, st.integers(0, 5), st.sampled_from(policy_names()))
def test_without_lending_every_job_starts_under_hived_when_it_starts_in_private(
    case: Case, binding: BindingKind, soft: float, seed: int, policy: str
) -> None:
    """And ends and is preempted when it is in private, whatever the policy."""
    both = (Sharing.PRIVATE, Sharing.HIVED)
    options = Options(both, (policy,), opportunistic=False, binding=binding, soft=soft, seed=seed)
    results = played(case, options)
    private, hived = results.records
    assert times(results)["hived"] == times(results)["private"]
    assert hived.preemptions == private.preemptions
    runs = [sorted((run.job, run.start, run.end) for run in record.runs) for record in results.records]
    assert runs[0] == runs[1]


@given(cases(max_jobs=25), st.sampled_from(Sharing), BINDINGS, SHARES)
def test_every_index_is_right_after_every_event(case: Case, scheme: Sharing, binding: BindingKind, soft: float) -> None:
    played(case, Options((scheme,), binding=binding, soft=soft), validate=True)


@given(cases(), st.sampled_from([0.25, 0.5, 1.0]), st.integers(0, 9))
def test_the_same_jobs_are_soft_under_every_scheme(case: Case, share: float, seed: int) -> None:
    """A soft job has exactly as many GPUs as it asks for; another of several nodes has whole nodes."""
    results = played(case, Options(soft=share, seed=seed))
    soft = soft_jobs(results.trace.jobs, share, seed)
    for record in results.records:
        for run in record.runs:
            job = record.jobs[run.job]
            if run.job in soft:
                assert [len(pod.leaf_cells) for pod in run.placement.pods] == [1] * job.gpus
            else:
                assert len({pod.node for pod in run.placement.pods}) == len(run.placement.pods)


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(0, 99))
def test_a_share_of_the_multi_gpu_jobs_is_drawn_by_seed(sizes: list[int], seed: int) -> None:
    jobs = pods(sizes).jobs
    several = sum(job.gpus > 1 for job in jobs)
    drawn = [soft_jobs(jobs, share, seed) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert [len(of_share) for of_share in drawn] == [round(share * several) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert all(smaller <= larger for smaller, larger in pairwise(drawn))
    assert all(jobs[number].gpus > 1 for number in drawn[-1])
    assert drawn[2] == soft_jobs(jobs, 0.5, seed)


def test_another_seed_draws_other_jobs() -> None:
    jobs = pods([2] * 100).jobs
    assert len({soft_jobs(jobs, 0.5, seed) for seed in range(5)}) == 5


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_from_0_to_1(share: float) -> None:
    with pytest.raises(InputError, match="from 0 to 1"):
        soft_jobs(pods([2]).jobs, share, 1)


TWO = nodes_of_8(2, {"a": 2})


def test_a_soft_job_runs_where_a_hard_one_waits(tmp_path: Path) -> None:
    """Two jobs of 6 leave 2 GPUs on each node: 4 GPUs are to be had, and not on one node."""
    trace = pods([6, 6, 4])
    hard = run_experiment(parse_spec(TWO, "two"), trace, Options((Sharing.PRIVATE,)))
    assert hard.records[0].first_start == [0, 1, 1000]
    soft = run_experiment(parse_spec(TWO, "two"), trace, Options((Sharing.PRIVATE,), soft=1.0))
    assert soft.records[0].first_start == [0, 1, 2]
    write_runs(soft, tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = [row["placement"] for row in csv.DictReader(file)]
    assert rows[2] == "a-node-0:6,7;a-node-1:6,7", "each node once"


def test_a_soft_job_is_packed_as_near_as_it_can_be() -> None:
    """It takes the node that has room for all of it, the fullest first; and else as few nodes as possible."""
    spec = parse_spec(nodes_of_8(4, {"a": 4}), "four")
    found = run_experiment(spec, pods([1, 4, 2, 12]), Options((Sharing.PRIVATE,), soft=1.0)).records[0]
    nodes = [sorted({pod.node for pod in run.placement.pods}) for run in sorted(found.runs, key=lambda run: run.job)]
    assert nodes[0] == nodes[1] == nodes[2] == ["a-node-0"]
    assert len(nodes[3]) == 2
    assert found.first_start == [0, 1, 2, 3]


def test_a_soft_job_fits_where_a_hard_one_never_does() -> None:
    spec, trace = parse_spec(nodes_of_8(2, {"a": 1, "b": 1}), "two"), pods([8, 9])
    assert run_experiment(spec, trace, Options((Sharing.PRIVATE,))).never_fit == (1,)
    third = parse_spec(nodes_of_8(3, {"a": 3}), "three")
    trace = pods([17, 17])
    assert run_experiment(third, trace, Options((Sharing.PRIVATE,))).records[0].first_start == [0, 1000]
    assert run_experiment(third, pods([12, 12]), Options((Sharing.PRIVATE,), soft=1.0)).records[0].first_start == [0, 1]


def test_a_loan_of_a_soft_job_is_soft() -> None:
    """Each node has 3 idle GPUs, and its VC too few for its 6: a hard job waits for a node, a soft one does not."""
    spec = parse_spec(nodes_of_8(2, {"a": 1, "b": 1}), "two")
    asked = [("b", 5), ("a", 5), ("a", 6)]
    jobs = tuple(TraceJob(f"j{n}", vc, n, 1000, size, "pass") for n, (vc, size) in enumerate(asked))
    for share, start, nodes in ((0.0, 1000, 1), (1.0, 2, 2)):
        record = run_experiment(spec, Trace("t", jobs), Options((Sharing.HIVED,), soft=share)).records[0]
        first = min((run for run in record.runs if run.job == 2), key=lambda run: run.start)
        assert (first.start, len({pod.node for pod in first.placement.pods})) == (start, nodes)
        assert first.kind is Kind.OPPORTUNISTIC


def test_static_binding_preempts_what_stands_where_the_vc_lands() -> None:
    """The VC's first node has a loan, its second is idle: dynamic binding takes the idle one, static the first."""
    spec = parse_spec(nodes_of_8(3, {"a": 2, "b": 1}), "three")
    asked = [("b", 8, 0), ("b", 8, 1), ("a", 8, 2)]
    jobs = tuple(TraceJob(f"j{n}", vc, at, 1000, size, "pass") for n, (vc, size, at) in enumerate(asked))
    lost = {}
    for binding in BindingKind:
        record = run_experiment(spec, Trace("t", jobs), Options((Sharing.HIVED,), binding=binding)).records[0]
        lost[binding] = record.preempted_gpus
        assert record.first_start == [0, 1, 2]
    assert lost == {BindingKind.DYNAMIC: 0, BindingKind.STATIC: 8}


def test_without_lending_the_binding_changes_no_start() -> None:
    spec = parse_spec(nodes_of_8(3, {"a": 2, "b": 1}), "three")
    jobs = tuple(
        TraceJob(f"j{n}", vc, 10 * n, 700, size, "pass") for n, (vc, size) in enumerate(product("ab", (1, 8, 3, 8, 16)))
    )
    jobs = tuple(job._replace(submit_ms=10 * n) for n, job in enumerate(jobs))
    found = [
        run_experiment(spec, Trace("t", jobs), Options((Sharing.HIVED,), opportunistic=False, binding=binding))
        for binding in BindingKind
    ]
    assert times(found[0]) == times(found[1])
