"""What every policy runs, moment by moment, against a reader that knows its documented rule alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from hived.cluster import Cluster
from hived.policies import make_policy
from hived.scheduling.checks import check_scheduler
from hived.simulator import Scenario, Sharing, run_experiment
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import Trace, TraceJob, generate_table1
from hived.spec import parse_spec

from ..strategies import given_in_tiers
from .helpers import nodes_of_8
from .policy_reader import check, check_loans

POLICIES = ("yarn-cs", "fifo", "sjf", "srtf", "greedy:patience=4", "greedy", "tiresias:limits=5/20", "tiresias")
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 20)
SHARING = (Sharing.QUOTA, Sharing.HIVED)


def runs(jobs: Sequence[TraceJob], nodes: dict[str, int], policies: dict[str, str]) -> Sequence[Record]:
    """The records of each tenant's policy, private and under hived."""
    spec = parse_spec(nodes_of_8(sum(nodes.values()), nodes), "any")
    schemes = (Sharing.PRIVATE, Sharing.HIVED)
    scenario = Scenario(schemes=schemes, opportunistic=False, policy=policies)
    return run_experiment(spec, Trace("any", tuple(jobs)), scenario).records


@st.composite
def traces(draw: st.DrawFn, least: int = 1, sizes: Sequence[int] = SIZES, shortest: int = 0) -> list[TraceJob]:
    """Many jobs in little time; several at an instant, of no work, of several priorities."""
    lengths, levels = st.integers(shortest, 25), st.sampled_from([0, 0, 7])
    row = st.tuples(st.sampled_from("ab"), st.integers(0, 12), lengths, st.sampled_from(sizes), levels)
    rows = sorted(draw(st.lists(row, min_size=least, max_size=45)), key=lambda row: row[1])
    unit = draw(st.sampled_from([1000, 1000, 333]))
    return [
        TraceJob(f"j{n}", tenant, submit * unit, length * unit, gpus, "pass", priority=priority)
        for n, (tenant, submit, length, gpus, priority) in enumerate(rows)
    ]


@given_in_tiers(60, 500, traces(), st.integers(1, 3), st.sampled_from(POLICIES), st.sampled_from(POLICIES))
def test_the_rule_decides_at_every_moment(jobs: list[TraceJob], nodes: int, first: str, second: str) -> None:
    """Of each tenant its own."""
    own = {"a": first, "b": second}
    for record in runs(jobs, {"a": nodes, "b": 2}, own):
        check(record, {"a": nodes, "b": 2}, own)


@given_in_tiers(10, 120, traces(20, [1], 1))
def test_loans_come_in_the_order_of_the_rule(jobs: list[TraceJob]) -> None:
    """Two tenants that crowd a node each with jobs of one GPU, under every policy."""
    spec = parse_spec(nodes_of_8(2, {"a": 1, "b": 1}), "any")
    for policy in POLICIES:
        for record in run_experiment(spec, Trace("any", tuple(jobs)), Scenario(schemes=SHARING, policy=policy)).records:
            check_loans(record, {"a": 8, "b": 8}, {"a": policy, "b": policy})


@given_in_tiers(25, 200, traces(), st.sampled_from(POLICIES), st.sampled_from(SHARING))
def test_nothing_is_idle_that_could_be_lent(jobs: list[TraceJob], policy: str, sharing: Sharing) -> None:
    """As the scheduler's own check says at every moment."""
    cluster = Cluster(parse_spec(nodes_of_8(3, {"a": 2, "b": 1}), "any"), sharing)
    simulate(cluster, make_policy(policy), jobs, after_event=check_scheduler)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_rule_decides_on_table_1(policy: str, seed: int) -> None:
    """Two tenants of the generated trace, on a few nodes each."""
    trace = generate_table1(jobs=300, days=2, seed=seed).jobs
    tenants = [tenant for tenant, _ in Counter(job.tenant for job in trace).most_common(2)]
    jobs = [
        job._replace(gpus=min(job.gpus, 16), duration_ms=min(job.duration_ms, 20_000_000), priority=number % 9 // 8)
        for number, job in enumerate(trace)
        if job.tenant in tenants
    ]
    nodes = dict.fromkeys(tenants, 2)
    for record in runs(jobs, nodes, dict.fromkeys(tenants, policy)):
        assert check(record, nodes, dict.fromkeys(tenants, policy)) > 300


@pytest.mark.parametrize(
    ("policy", "other"),
    [("fifo", "sjf"), ("sjf", "srtf"), ("srtf", "sjf"), ("fifo", "greedy"), ("greedy", "greedy:patience=4"),
     ("srtf", "tiresias:limits=5/20"), ("tiresias:limits=5/21", "tiresias:limits=5/20")],
)  # fmt: skip
def test_another_policy_is_noticed(policy: str, other: str) -> None:
    rows = [(n * 2 % 31, 1 + n * 7 % 23, SIZES[n * 3 % 5]) for n in range(60)]
    jobs = [
        TraceJob(f"j{n}", "a", submit * 1000, length * 1000, gpus, "pass")
        for n, (submit, length, gpus) in enumerate(sorted(rows, key=lambda row: row[0]))
    ]
    record = runs(jobs, {"a": 2}, {"a": policy})[0]
    with pytest.raises(AssertionError, match="waits"):
        check(record, {"a": 2}, {"a": other})
