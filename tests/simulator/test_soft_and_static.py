"""Soft affinity and static binding in simulations: who gets them, and what they leave as it is."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.cluster import BindingKind
from hived.errors import InputError
from hived.scheduling import Kind
from hived.simulator import Results, Scenario, Sharing, run_experiment
from hived.simulator.experiment import soft_jobs
from hived.simulator.output import write_table
from hived.simulator.record import Run
from hived.simulator.tables import runs_table
from hived.simulator.traces import Trace, TraceJob
from hived.spec import parse_spec

from .helpers import nodes_of_8, trace_of
from .strategies import Case, cases


def pods(*sizes: int, vcs: str = "a") -> Trace:
    """A job of each size a millisecond after another, of a second; ``vcs``: the tenant of each, or of all."""
    tenants = vcs.ljust(len(sizes), vcs[-1])
    return Trace("t", tuple(TraceJob(f"j{n}", tenants[n], n, 1000, size, "pass") for n, size in enumerate(sizes)))


def played(vcs: dict[str, int], trace: Trace, scheme: Sharing = Sharing.PRIVATE, **options: Any) -> Results:
    spec = parse_spec(nodes_of_8(sum(vcs.values()), vcs), "nodes")
    return run_experiment(spec, trace, Scenario(schemes=[scheme], **options))


def nodes_of(run: Run) -> set[str]:
    return {pod.node for pod in run.placement.pods}


@settings(max_examples=25)
@given(cases(), st.sampled_from([0.25, 0.5, 1.0]), st.integers(0, 9))
def test_same_jobs_soft_in_every_scheme(case: Case, share: float, seed: int) -> None:
    """A soft job has exactly as many GPUs as it asks for; another of several nodes has whole nodes."""
    results = run_experiment(parse_spec(case.spec, "any"), trace_of(case.trace), Scenario(soft=share, seed=seed))
    soft = soft_jobs(results.trace.jobs, share, seed)
    for record in results.records:
        for run in record.runs:
            if run.job in soft:
                assert [len(pod.leaf_cells) for pod in run.placement.pods] == [1] * record.jobs[run.job].gpus
            else:
                assert len(nodes_of(run)) == len(run.placement.pods)


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(0, 99))
def test_a_share_is_drawn_by_seed(sizes: list[int], seed: int) -> None:
    jobs = pods(*sizes).jobs
    several = sum(job.gpus > 1 for job in jobs)
    drawn = [soft_jobs(jobs, share, seed) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert [len(of_share) for of_share in drawn] == [round(share * several) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert all(smaller <= larger for smaller, larger in pairwise(drawn))
    assert all(jobs[number].gpus > 1 for number in drawn[-1])
    assert drawn[2] == soft_jobs(jobs, 0.5, seed)


def test_shares_and_seeds() -> None:
    jobs = pods(*[2] * 100).jobs
    assert len({soft_jobs(jobs, 0.5, seed) for seed in range(5)}) == 5, "another seed draws other jobs"
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="from 0 to 1"):
            soft_jobs(jobs, share, 1)


def test_soft_runs_where_hard_waits(tmp_path: Path) -> None:
    """Two jobs of 6 leave 2 GPUs on each node: 4 GPUs are to be had, and not on one node."""
    assert played({"a": 1, "b": 1}, pods(8, 9)).never_fit == (1,)
    assert played({"a": 3}, pods(17, 17)).records[0].first_start == [0, 1000]
    assert played({"a": 3}, pods(12, 12), soft=1.0).records[0].first_start == [0, 1]
    trace = pods(6, 6, 4)
    assert played({"a": 2}, trace).records[0].first_start == [0, 1, 1000]
    soft = played({"a": 2}, trace, soft=1.0)
    assert soft.records[0].first_start == [0, 1, 2]
    write_table(runs_table(soft), tmp_path / "runs.csv")
    with (tmp_path / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = [row["placement"] for row in csv.DictReader(file)]
    assert rows[2] == "a-node-0:6,7;a-node-1:6,7", "each node once"


def test_soft_is_packed_as_near_as_it_can() -> None:
    """It takes the node that has room for all of it, the fullest first; and else as few nodes as possible."""
    (found,) = played({"a": 4}, pods(1, 4, 2, 12), soft=1.0).records
    nodes = [sorted(nodes_of(run)) for run in sorted(found.runs, key=lambda run: run.job)]
    assert nodes[0] == nodes[1] == nodes[2] == ["a-node-0"]
    assert len(nodes[3]) == 2
    assert found.first_start == [0, 1, 2, 3]


@pytest.mark.parametrize(("share", "start", "nodes"), [(0.0, 1000, 1), (1.0, 2, 2)])
def test_a_loan_of_a_soft_job_is_soft(share: float, start: int, nodes: int) -> None:
    """Each node has 3 idle GPUs, and its VC too few for its 6: a hard job waits for a node, a soft one does not."""
    (record,) = played({"a": 1, "b": 1}, pods(5, 5, 6, vcs="ba"), Sharing.HIVED, soft=share).records
    first = min((run for run in record.runs if run.job == 2), key=lambda run: run.start)
    assert (first.start, len(nodes_of(first)), first.kind) == (start, nodes, Kind.OPPORTUNISTIC)


@pytest.mark.parametrize(("binding", "lost"), [(BindingKind.DYNAMIC, 0), (BindingKind.STATIC, 8)])
def test_static_binding_preempts_where_it_lands(binding: BindingKind, lost: int) -> None:
    """The VC's first node has a loan, its second is idle: dynamic binding takes the idle one, static the first."""
    (record,) = played({"a": 2, "b": 1}, pods(8, 8, 8, vcs="bba"), Sharing.HIVED, binding=binding).records
    assert record.first_start == [0, 1, 2]
    assert record.preempted_gpus == lost
