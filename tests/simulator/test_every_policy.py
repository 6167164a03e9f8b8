"""Every policy, those here and those made up: without loans as in private, second for second; with loans, safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.policies import policy_names
from hived.scheduling import Policy, Scheduler
from hived.simulator import Options, Preempted, Results, Sharing, run_experiment
from hived.simulator.traces import Trace
from hived.spec import parse_spec

from .helpers import nodes_of_8
from .made_up import made_up_policies
from .strategies import Case, cases
from .test_soft_and_static import trace_of


def policies() -> st.SearchStrategy[str | Policy]:
    """Those by name, with limits that small traces reach, and any."""
    named = [*policy_names(), "tiresias:limits=3/11/40", "greedy:patience=4"]
    return st.one_of(st.sampled_from(named), made_up_policies())


@st.composite
def prioritised(draw: st.DrawFn, max_jobs: int = 30) -> tuple[Case, Trace]:
    """A cluster and a trace with several priorities."""
    case = draw(cases(max_jobs))
    trace = trace_of(case.trace)
    levels = draw(st.lists(st.sampled_from([0, 0, 0, 5, 1000]), min_size=len(trace.jobs), max_size=len(trace.jobs)))
    jobs = tuple(job._replace(priority=level) for job, level in zip(trace.jobs, levels, strict=True))
    return case, replace(trace, jobs=jobs)


def played(case: Case, trace: Trace, options: Options) -> Results:
    return run_experiment(parse_spec(case.spec, "any"), trace, options, after_event=Scheduler.validate)


def history(results: Results) -> list[tuple[object, ...]]:
    """What becomes of every job: each start, each stop, each preemption."""
    return [
        (r.first_start, r.finish, r.preemptions, sorted((run.job, run.start, run.end) for run in r.runs))
        for r in results.records
    ]


@settings(max_examples=150)
@given(prioritised(), policies(), st.lists(policies(), max_size=2), st.sampled_from(Preempted))
def test_without_loans_every_policy_runs_every_job_under_hived_as_in_private(
    given: tuple[Case, Trace], policy: str | Policy, own: Sequence[str | Policy], preempted: Preempted
) -> None:
    """Preemptions included, and with different policies of the tenants at once."""
    case, trace = given
    tenants = sorted({job.tenant for job in trace.jobs})
    options = Options(
        (Sharing.PRIVATE, Sharing.HIVED),
        (policy,),
        opportunistic=False,
        preempted=preempted,
        tenant_policies=tuple(zip(tenants, own, strict=False)),
    )
    private, hived = history(played(case, trace, options))
    assert hived == private


@settings(max_examples=60)
@given(prioritised(max_jobs=20), policies(), st.sampled_from(Sharing))
def test_with_loans_every_index_is_right_after_every_event(
    given: tuple[Case, Trace], policy: str | Policy, scheme: Sharing
) -> None:
    case, trace = given
    played(case, trace, Options((scheme,), (policy,)))


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_here_is_simulated(name: str) -> None:
    """By name, under every scheme, with and without loans; every job ends."""
    trace = trace_of("job_id,tenant,submit_s,duration_s,gpus,status\n" + "".join(
        f"j{n},{'ab'[n % 2]},{n * 3},{n * 37 % 101},{(1, 8, 2, 4, 16)[n % 5]},pass\n" for n in range(60)
    ))  # fmt: skip
    spec = nodes_of_8(4, {"a": 2, "b": 2})
    for lends in (False, True):
        for record in played(Case(spec, ""), trace, Options(tuple(Sharing), (name,), lends)).records:
            assert min(record.finish) >= 0
