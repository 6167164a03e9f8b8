"""Scenarios of the scheduler: turns, loans, promotions and preemptions."""

from __future__ import annotations

from typing import Any

import pytest

from hived import Bind, Preempt
from hived.cells import HostClass
from hived.cluster import Cluster, Request, Sharing
from hived.errors import InputError, InvariantError, PolicyError
from hived.policies import make_policy
from hived.scheduling import Displaced, JobView, Policy, Reaction
from hived.spec.compiled import ClusterSpec

from ..strategies import NODE, cluster_of, nodes_of_8, vc
from .helpers import Harness

SHARED = [Sharing.QUOTA, Sharing.HIVED]


def nodes(a: int, b: int = 0, c: int = 0, spare: int = 0) -> ClusterSpec:
    """Tenants a, b and c with the given numbers of nodes of 8 GPUs."""
    chain = nodes_of_8(a + b + c + spare)
    return cluster_of(chain, *(vc(name, (chain, NODE, n)) for name, n in zip("abc", (a, b, c), strict=True) if n))


# Turns


@pytest.mark.parametrize("scheme", Sharing)
def test_jobs_of_a_tenant_are_served_first_come_first_served(scheme: Sharing) -> None:
    sim = Harness(scheme, nodes(2), opportunistic=False)
    first, second, third, fourth = (sim.submit("a", gpus) for gpus in (8, 16, 8, 1))
    assert sim.kinds(first, second, third, fourth) == "G...", "nobody passes the second, though they would fit"
    sim.finish(first)
    assert sim.kinds(second, third, fourth) == "G.."
    sim.finish(second)
    assert sim.answer == [
        ("start", third, "G", ((0, 0xFF),)),
        ("start", fourth, "G", ((1, 0x01),)),
    ]


@pytest.mark.parametrize("scheme", Sharing)
def test_a_job_larger_than_its_tenants_cluster_never_blocks_those_behind_it(scheme: Sharing) -> None:
    sim = Harness(scheme, nodes(1, 1), opportunistic=False)
    too_large = sim.submit("a", 9)
    assert sim.kinds(too_large, sim.submit("a", 4), sim.submit("a", 4)) == ".GG"


def test_one_tenants_queue_does_not_hold_up_another() -> None:
    sim = Harness(Sharing.HIVED, nodes(1, 1), opportunistic=False)
    blocked = [sim.submit("a", 8) for _ in range(3)]
    assert sim.kinds(*blocked, sim.submit("b", 8)) == "G..G"


def test_an_end_retries_only_the_heads_of_line_that_it_can_help() -> None:
    # under a quota the heads of all tenants were once sorted and retried at every end: 331 us a job with 1,100
    names = [f"t{number}" for number in range(60)]
    chain = nodes_of_8(len(names))
    spec = cluster_of(chain, *(vc(name, (chain, NODE, 1)) for name in names))
    asked: list[str] = []

    class Counted(Cluster):
        def place(self, request: Request, *more: Any, **named: Any) -> Bind | Preempt | None:
            asked.append(request.vc)
            return super().place(request, *more, **named)

    sim = Harness(Counted(spec, Sharing.QUOTA), spec, opportunistic=False)
    running = [sim.submit(name, 8) for name in names]
    waiting = [sim.submit(name, 8) for name in names]
    asked.clear()
    sim.finish(running[7])
    assert asked == ["t7"]
    assert sim.kinds(*waiting[6:9]) == ".G."


def test_when_guaranteed_gpus_are_shared_the_first_head_in_the_order_goes_first() -> None:
    """Under a quota a head may wait for another tenant's job: all heads are retried, in order."""
    sim = Harness(Sharing.QUOTA, nodes(1, 1), opportunistic=False)
    in_b, other = sim.submit("b", 4), sim.submit("a", 4)
    in_b_too = sim.submit("b", 4)
    sim.finish(other)
    assert (sim.nodes(in_b), sim.nodes(in_b_too)) == ([0], [1])
    a_waits = sim.submit("a", 8)
    assert sim.kinds(a_waits) == ".", "eight GPUs of its own, on no one node"
    sim.finish(in_b)
    assert sim.answer == [("start", a_waits, "G", ((0, 0xFF),))]


def test_under_a_quota_the_earlier_head_gets_what_one_job_leaves() -> None:
    chain = nodes_of_8(2)
    spec = cluster_of(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)), vc("c", (chain, NODE, 1)))
    sim = Harness(Sharing.QUOTA, spec, opportunistic=False)
    first, second = sim.submit("c", 8), sim.submit("a", 1)
    b_waits, a_waits = sim.submit("b", 8), sim.submit("a", 7)
    assert sim.kinds(first, second, b_waits, a_waits) == "GG.G"
    late = sim.submit("c", 8)
    sim.finish(first)
    assert sim.kinds(b_waits, late) == "G.", "b came before c's next"


@pytest.mark.parametrize("scheme", Sharing)
def test_jobs_that_end_at_one_instant_release_their_gpus_before_any_job_is_placed(scheme: Sharing) -> None:
    sim = Harness(scheme, nodes(2), opportunistic=False)
    first, second, both = sim.submit("a", 8), sim.submit("a", 8), sim.submit("a", 16)
    behind = sim.submit("a", 8)
    sim.finish(second, first)
    assert sim.kinds(both, behind) == "G."


# Loans


@pytest.mark.parametrize("scheme", SHARED)
def test_a_job_that_does_not_fit_its_vc_starts_on_idle_gpus_of_others(scheme: Sharing) -> None:
    sim = Harness(scheme, nodes(1, 1))
    own, lent = sim.submit("a", 8), sim.submit("a", 8)
    assert sim.answer == [("start", lent, "O", ((1, 0xFF),))]
    assert sim.kinds(own, lent, sim.submit("a", 1)) == "GO."


def test_there_are_no_loans_in_private_clusters_nor_when_they_are_switched_off() -> None:
    for sim in (Harness(Sharing.PRIVATE, nodes(1, 1)), Harness(Sharing.HIVED, nodes(1, 1), opportunistic=False)):
        assert sim.kinds(sim.submit("a", 8), sim.submit("a", 1)) == "G."


def test_no_job_gets_a_loan_before_an_earlier_job_of_the_same_tenant() -> None:
    sim = Harness(Sharing.HIVED, nodes(2, 1))
    own, wide, narrow = sim.submit("a", 9), sim.submit("a", 16), sim.submit("a", 1)
    assert sim.kinds(own, wide, narrow) == "G..", "one idle node is too little for the wide one, and it is first"
    assert sim.kinds(sim.submit("b", 1)) == "G"


def test_an_outsized_job_blocks_no_other_and_gets_a_loan_when_it_fits() -> None:
    sim = Harness(Sharing.HIVED, nodes(1, 1, 1))
    in_b, too_large, in_a, another = sim.submit("b", 1), sim.submit("a", 24), sim.submit("a", 8), sim.submit("a", 8)
    assert sim.kinds(in_b, too_large, in_a, another) == "G.GO"
    never = sim.submit("a", 25)
    sim.finish(in_b, another)
    assert sim.kinds(too_large, never) == ".."
    sim.finish(in_a)
    assert sim.kinds(too_large, never) == "O.", "all three nodes are idle"
    sim.finish(too_large)
    assert sim.kinds(never) == "."


def test_idle_gpus_go_to_the_tenant_with_the_smallest_share_of_loans() -> None:
    """Weighted max-min: b reserved three times as much as a, and gets three times as many GPUs on loan."""
    sim = Harness(Sharing.HIVED, nodes(1, 3, 4))
    keeper = sim.submit("c", 32)
    own = [sim.submit("a", 8), sim.submit("b", 24)]
    waiting_a = [sim.submit("a", 8) for _ in range(4)]
    waiting_b = [sim.submit("b", 8) for _ in range(4)]
    assert sim.kinds(*own, *waiting_a, *waiting_b) == "GG........"
    sim.finish(keeper)
    assert sim.kinds(*waiting_a) == "O..."
    assert sim.kinds(*waiting_b) == "OOO."
    order = [decision.job for decision in sim.instructions]
    assert order == [waiting_a[0], waiting_b[0], waiting_b[1], waiting_b[2]], "equal shares: who came first"


def test_a_tenant_without_cells_gets_loans_last() -> None:
    chain = nodes_of_8(2)
    sim = Harness(Sharing.HIVED, cluster_of(chain, vc("none"), vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1))))
    keeper, own = sim.submit("b", 8), sim.submit("a", 8)
    poor, rich = sim.submit("none", 8), sim.submit("a", 8)
    sim.finish(keeper)
    assert sim.kinds(own, poor, rich) == "G.O"
    sim.finish(rich)
    assert sim.kinds(poor) == "O"


# Promotion


@pytest.mark.parametrize("scheme", SHARED)
def test_a_job_on_a_loan_becomes_guaranteed_in_place_when_its_turn_comes(scheme: Sharing) -> None:
    sim = Harness(scheme, nodes(1, 1))
    own, lent, behind = sim.submit("a", 8), sim.submit("a", 4), sim.submit("a", 4)
    assert sim.kinds(own, lent, behind) == "GOO"
    sim.finish(own)
    assert sim.answer == [("promote", lent), ("promote", behind)]


def test_a_job_on_a_loan_keeps_its_place_in_the_order() -> None:
    sim = Harness(Sharing.HIVED, nodes(1, 1))
    own, lent = sim.submit("a", 8), sim.submit("a", 8)
    behind = sim.submit("a", 8)
    assert sim.kinds(own, lent, behind) == "GO."
    sim.finish(own)
    assert sim.kinds(lent, behind) == "GO", "its turn came before that of the job that ran nowhere"
    assert sim.nodes(lent) == [1]


def test_a_job_on_a_loan_moves_when_its_turn_comes_and_its_vc_is_bound_elsewhere() -> None:
    sim = Harness(Sharing.HIVED, nodes(1, 1))
    half, other_half = sim.submit("a", 4), sim.submit("a", 4)
    lent = sim.submit("a", 4)
    assert (sim.nodes(half), sim.nodes(lent)) == ([0], [1])
    sim.finish(other_half)
    assert sim.answer == [("move", lent, True), ("start", lent, "G", ((0, 0b1111_0000),))]
    assert sim.kinds(half, lent) == "GG"


def test_when_the_head_of_line_ends_on_its_loan_the_next_job_has_its_turn() -> None:
    sim = Harness(Sharing.HIVED, nodes(2, 1))
    own, wide = sim.submit("a", 1), sim.submit("b", 8)
    sim.finish(wide)
    first = sim.submit("a", 9)
    assert sim.kinds(own, first) == "GO"
    small = sim.submit("a", 4)
    assert sim.kinds(small) == "O"
    sim.finish(first)
    assert sim.kinds(own, small) == "GG"


# Preemption


def test_a_guaranteed_job_takes_its_gpus_back_at_once() -> None:
    sim = Harness(Sharing.HIVED, nodes(1, 1))
    own, lent = sim.submit("a", 8), sim.submit("a", 8)
    assert sim.kinds(own, lent) == "GO"
    taker = sim.submit("b", 8)
    assert sim.answer == [
        ("stop", lent, taker, True),
        ("start", taker, "G", ((1, 0xFF),)),
    ]


def test_the_victim_is_selected_by_affinity_and_not_by_age() -> None:
    """An 8-GPU job gets the node with one small opportunistic job, though the large one elsewhere is younger."""
    sim = Harness(Sharing.HIVED, nodes(1, 2))
    own = sim.submit("a", 8)
    old_small = sim.submit("a", 2)
    young_large = sim.submit("a", 8)
    assert [sim.nodes(job) for job in (own, old_small, young_large)] == [[0], [1], [2]]
    taker = sim.submit("b", 8)
    assert sim.kinds(old_small, young_large) == ".O"
    assert sim.nodes(taker) == [1]


def test_a_preempted_job_returns_to_its_place_and_gets_the_next_loan() -> None:
    sim = Harness(Sharing.HIVED, nodes(1, 1))
    own, victim = sim.submit("a", 8), sim.submit("a", 8)
    behind = sim.submit("a", 8)
    taker = sim.submit("b", 8)
    assert sim.kinds(own, victim, behind, taker) == "G..G"
    sim.finish(taker)
    assert sim.kinds(victim, behind) == "O."
    sim.finish(own)
    assert sim.answer == [("promote", victim), ("start", behind, "O", ((0, 0xFF),))]


def test_a_victim_that_was_first_in_line_still_has_the_next_turn() -> None:
    sim = Harness(Sharing.HIVED, nodes(1, 1))
    own, victim = sim.submit("a", 8), sim.submit("a", 8)
    sim.submit("b", 8)
    behind = sim.submit("a", 1)
    sim.finish(own)
    assert sim.kinds(victim, behind) == "G."


def test_gpus_left_over_by_a_preemption_are_lent_again_at_once() -> None:
    chain = nodes_of_8(4)
    cells = {"a": 1, "b": 2, "c": 1}
    sim = Harness(Sharing.HIVED, cluster_of(chain, *(vc(name, (chain, NODE, n)) for name, n in cells.items())))
    own_a, own_c = sim.submit("a", 8), sim.submit("c", 8)
    wide, waits = sim.submit("a", 16), sim.submit("c", 8)
    assert sim.kinds(own_a, own_c, wide, waits) == "GGO."
    taker = sim.submit("b", 1)
    assert sim.kinds(wide, waits, taker) == ".OG", "b needs one of the two nodes; the other is idle now"


class Watching(Policy):
    """YARN-CS that records the displaced jobs."""

    name = "watching"

    def __init__(self, reaction: Reaction) -> None:
        self.reaction = reaction
        self.saw: list[tuple[str, str]] = []

    def react(self, event: Displaced) -> Reaction:
        self.saw.append((event.victim.job, event.by.job))
        return self.reaction


@pytest.mark.parametrize(("reaction", "keeps"), [(Reaction.SUSPEND, True), (Reaction.RESTART, False)])
def test_the_policy_decides_whether_a_displaced_job_keeps_its_work(reaction: Reaction, keeps: bool) -> None:
    policy = Watching(reaction)
    sim = Harness(Sharing.HIVED, nodes(1, 1), policy)
    sim.submit("a", 4)
    leaves, lent = sim.submit("a", 4), sim.submit("a", 4)
    sim.finish(leaves)
    assert sim.answer == [("move", lent, keeps), ("start", lent, "G", ((0, 0b1111_0000),))]
    victim = sim.submit("a", 2)
    taker = sim.submit("b", 8)
    assert sim.answer[0] == ("stop", victim, taker, keeps)
    assert policy.saw == [
        (f"job-{lent}", f"job-{lent}"),
        (f"job-{victim}", f"job-{taker}"),
    ]


# Policies of one's own


class SmallestFirst(Policy):
    """Serves the smallest job first."""

    name = "smallest-first"

    def order(self, job: JobView) -> tuple[float, ...]:
        return (job.gpus,)


def test_a_policy_may_order_the_queue_as_it_likes() -> None:
    sim = Harness(Sharing.PRIVATE, nodes(1), SmallestFirst())
    engine = sim.engine
    answers = [engine.submit(n, "a", JobView(f"job-{n}", gpus, n, n)) for n, gpus in enumerate((8, 6, 4, 2))]
    assert [len(answer) for answer in answers] == [1, 0, 0, 0]
    started = [decision.job for decision in engine.finish([0])]
    assert started == [3, 2], "two and four; six would be eight too many"
    assert [d.job for d in engine.submit(9, "a", JobView("job-9", 1, 9, 9))] == [9], "it is smaller than who waits"
    sim.scheduler.validate()


class NeverPlaces(SmallestFirst):
    """A policy that refuses every guaranteed job."""

    def rank(self, host: HostClass, gpus: int) -> tuple[float, ...] | None:
        return None


def test_a_job_that_the_policy_does_not_place_waits_or_gets_a_loan() -> None:
    alone, shared = (Harness(scheme, nodes(1), NeverPlaces()) for scheme in (Sharing.PRIVATE, Sharing.HIVED))
    alone.submit("a", 1)
    assert alone.answer == []
    job = shared.submit("a", 1)
    assert shared.answer == [("start", job, "O", ((0, 1),))]


# Misuse


def test_a_number_used_twice_and_the_end_of_a_job_that_does_not_run_are_bugs_of_the_caller() -> None:
    sim = Harness(Sharing.PRIVATE, nodes(1))
    running, waiting = sim.submit("a", 8), sim.submit("a", 8)
    with pytest.raises(InvariantError, match="twice"):
        sim.engine.submit(running, "a", JobView("again", 1, 2, 2))
    with pytest.raises(InvariantError, match="does not run"):
        sim.engine.finish([waiting])


def test_a_job_that_has_ended_keeps_no_cluster_of_an_old_spec_in_memory() -> None:
    sim = Harness(Sharing.HIVED, nodes(1))
    job = sim.submit("a", 8)
    entry = sim.scheduler.jobs[job]
    assert entry.demand is not None
    sim.finish(job)
    assert entry.demand is entry.loan_demand is None


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("tiresias:limits=nan", InputError, "must be above 0 and ascend"),
        ("builtins:dict", PolicyError, "is no hived.scheduling.Policy"),
    ],
)
def test_what_is_no_policy_is_refused_in_a_sentence(name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make_policy(name)
