"""The scheduler's answers, one story at a time: turns, loans, promotions and preemptions."""

from __future__ import annotations

from typing import Any

import pytest

from hived import Bind, Preempt
from hived.cells import HostClass
from hived.cluster import Cluster, Request, Sharing
from hived.errors import InvariantError
from hived.scheduling import Displaced, JobView, Reaction, YarnCS
from hived.spec.compiled import ClusterSpec

from ..strategies import NODE, cluster_of, nodes_of_8, vc
from .helpers import Desk

SHARED = [Sharing.QUOTA, Sharing.HIVED]


def nodes(a: int, b: int = 0, c: int = 0, spare: int = 0) -> ClusterSpec:
    """Tenants a, b and c with so many nodes of 8 GPUs each."""
    chain = nodes_of_8(a + b + c + spare)
    return cluster_of(chain, *(vc(name, (chain, NODE, n)) for name, n in zip("abc", (a, b, c), strict=True) if n))


# Turns


@pytest.mark.parametrize("scheme", Sharing)
def test_jobs_of_a_tenant_are_served_first_come_first_served(scheme: Sharing) -> None:
    desk = Desk(scheme, nodes(2), opportunistic=False)
    first, second, third, fourth = (desk.submit("a", gpus) for gpus in (8, 16, 8, 1))
    assert desk.kinds(first, second, third, fourth) == "G...", "nobody passes the second, though they would fit"
    desk.finish(first)
    assert desk.kinds(second, third, fourth) == "G.."
    desk.finish(second)
    assert desk.told == [
        ("start", third, "G", ((0, 0xFF),)),
        ("start", fourth, "G", ((1, 0x01),)),
    ]


@pytest.mark.parametrize("scheme", Sharing)
def test_a_job_larger_than_its_tenants_cluster_never_blocks_those_behind_it(scheme: Sharing) -> None:
    desk = Desk(scheme, nodes(1, 1), opportunistic=False)
    too_large = desk.submit("a", 9)
    assert desk.kinds(too_large, desk.submit("a", 4), desk.submit("a", 4)) == ".GG"


def test_one_tenants_queue_does_not_hold_up_another() -> None:
    desk = Desk(Sharing.HIVED, nodes(1, 1), opportunistic=False)
    blocked = [desk.submit("a", 8) for _ in range(3)]
    assert desk.kinds(*blocked, desk.submit("b", 8)) == "G..G"


def test_an_end_asks_only_for_heads_that_it_can_help() -> None:
    # under a quota every tenant's head was asked for at every end, and all of them sorted: 331 us a job with 1,100
    names = [f"t{number}" for number in range(60)]
    chain = nodes_of_8(len(names))
    spec = cluster_of(chain, *(vc(name, (chain, NODE, 1)) for name in names))
    asked: list[str] = []

    class Counted(Cluster):
        def place(self, request: Request, *more: Any, **named: Any) -> Bind | Preempt | None:
            asked.append(request.vc)
            return super().place(request, *more, **named)

    desk = Desk(Counted(spec, Sharing.QUOTA), spec, opportunistic=False)
    running = [desk.submit(name, 8) for name in names]
    waiting = [desk.submit(name, 8) for name in names]
    asked.clear()
    desk.finish(running[7])
    assert asked == ["t7"]
    assert desk.kinds(*waiting[6:9]) == ".G."


def test_when_guaranteed_gpus_are_shared_the_first_head_in_the_order_goes_first() -> None:
    """Under a quota another tenant's job may be what a head waits for: all heads are retried, in order."""
    desk = Desk(Sharing.QUOTA, nodes(1, 1), opportunistic=False)
    in_b, other = desk.submit("b", 4), desk.submit("a", 4)
    in_b_too = desk.submit("b", 4)
    desk.finish(other)
    assert (desk.nodes(in_b), desk.nodes(in_b_too)) == ([0], [1])
    a_waits = desk.submit("a", 8)
    assert desk.kinds(a_waits) == ".", "eight GPUs of its own, on no one node"
    desk.finish(in_b)
    assert desk.told == [("start", a_waits, "G", ((0, 0xFF),))]


def test_under_a_quota_the_earlier_head_gets_what_one_job_leaves() -> None:
    chain = nodes_of_8(2)
    spec = cluster_of(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)), vc("c", (chain, NODE, 1)))
    desk = Desk(Sharing.QUOTA, spec, opportunistic=False)
    first, second = desk.submit("c", 8), desk.submit("a", 1)
    b_waits, a_waits = desk.submit("b", 8), desk.submit("a", 7)
    assert desk.kinds(first, second, b_waits, a_waits) == "GG.G"
    late = desk.submit("c", 8)
    desk.finish(first)
    assert desk.kinds(b_waits, late) == "G.", "b came before c's next"


@pytest.mark.parametrize("scheme", Sharing)
def test_jobs_that_end_at_one_instant_give_their_gpus_back_before_anybody_gets_any(scheme: Sharing) -> None:
    desk = Desk(scheme, nodes(2), opportunistic=False)
    first, second, both = desk.submit("a", 8), desk.submit("a", 8), desk.submit("a", 16)
    behind = desk.submit("a", 8)
    desk.finish(second, first)
    assert desk.kinds(both, behind) == "G."


# Loans


@pytest.mark.parametrize("scheme", SHARED)
def test_who_does_not_fit_borrows_what_others_leave_idle(scheme: Sharing) -> None:
    desk = Desk(scheme, nodes(1, 1))
    own, borrower = desk.submit("a", 8), desk.submit("a", 8)
    assert desk.told == [("start", borrower, "O", ((1, 0xFF),))]
    assert desk.kinds(own, borrower, desk.submit("a", 1)) == "GO."


def test_nothing_is_borrowed_in_private_clusters_nor_when_it_is_switched_off() -> None:
    for desk in (Desk(Sharing.PRIVATE, nodes(1, 1)), Desk(Sharing.HIVED, nodes(1, 1), opportunistic=False)):
        assert desk.kinds(desk.submit("a", 8), desk.submit("a", 1)) == "G."


def test_nobody_borrows_past_an_earlier_job_of_the_same_tenant() -> None:
    desk = Desk(Sharing.HIVED, nodes(2, 1))
    own, wide, narrow = desk.submit("a", 9), desk.submit("a", 16), desk.submit("a", 1)
    assert desk.kinds(own, wide, narrow) == "G..", "one idle node is too little for the wide one, and it is first"
    assert desk.kinds(desk.submit("b", 1)) == "G"


def test_a_job_that_can_only_borrow_holds_nobody_back_and_borrows_when_it_fits() -> None:
    desk = Desk(Sharing.HIVED, nodes(1, 1, 1))
    in_b, too_large, in_a, another = desk.submit("b", 1), desk.submit("a", 24), desk.submit("a", 8), desk.submit("a", 8)
    assert desk.kinds(in_b, too_large, in_a, another) == "G.GO"
    never = desk.submit("a", 25)
    desk.finish(in_b, another)
    assert desk.kinds(too_large, never) == ".."
    desk.finish(in_a)
    assert desk.kinds(too_large, never) == "O.", "all three nodes are idle"
    desk.finish(too_large)
    assert desk.kinds(never) == "."


def test_idle_gpus_go_to_the_tenant_with_the_smallest_share_of_loans() -> None:
    """Weighted max-min: b reserved three times as much as a, and may borrow three times as much."""
    desk = Desk(Sharing.HIVED, nodes(1, 3, 4))
    keeper = desk.submit("c", 32)
    own = [desk.submit("a", 8), desk.submit("b", 24)]
    waiting_a = [desk.submit("a", 8) for _ in range(4)]
    waiting_b = [desk.submit("b", 8) for _ in range(4)]
    assert desk.kinds(*own, *waiting_a, *waiting_b) == "GG........"
    desk.finish(keeper)
    assert desk.kinds(*waiting_a) == "O..."
    assert desk.kinds(*waiting_b) == "OOO."
    order = [decision.job for decision in desk.said]
    assert order == [waiting_a[0], waiting_b[0], waiting_b[1], waiting_b[2]], "equal shares: who came first"


def test_a_tenant_without_cells_borrows_last() -> None:
    chain = nodes_of_8(2)
    desk = Desk(Sharing.HIVED, cluster_of(chain, vc("none"), vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1))))
    keeper, own = desk.submit("b", 8), desk.submit("a", 8)
    poor, rich = desk.submit("none", 8), desk.submit("a", 8)
    desk.finish(keeper)
    assert desk.kinds(own, poor, rich) == "G.O"
    desk.finish(rich)
    assert desk.kinds(poor) == "O"


# Promotion


@pytest.mark.parametrize("scheme", SHARED)
def test_a_borrower_becomes_guaranteed_in_place_when_its_turn_comes(scheme: Sharing) -> None:
    desk = Desk(scheme, nodes(1, 1))
    own, borrower, behind = desk.submit("a", 8), desk.submit("a", 4), desk.submit("a", 4)
    assert desk.kinds(own, borrower, behind) == "GOO"
    desk.finish(own)
    assert desk.told == [("promote", borrower), ("promote", behind)]


def test_a_borrower_keeps_its_place_in_the_order() -> None:
    desk = Desk(Sharing.HIVED, nodes(1, 1))
    own, borrower = desk.submit("a", 8), desk.submit("a", 8)
    behind = desk.submit("a", 8)
    assert desk.kinds(own, borrower, behind) == "GO."
    desk.finish(own)
    assert desk.kinds(borrower, behind) == "GO", "its turn came before that of the job that ran nowhere"
    assert desk.nodes(borrower) == [1]


def test_a_borrower_moves_when_its_turn_comes_and_its_vc_stands_elsewhere() -> None:
    desk = Desk(Sharing.HIVED, nodes(1, 1))
    half, other_half = desk.submit("a", 4), desk.submit("a", 4)
    borrower = desk.submit("a", 4)
    assert (desk.nodes(half), desk.nodes(borrower)) == ([0], [1])
    desk.finish(other_half)
    assert desk.told == [("move", borrower, True), ("start", borrower, "G", ((0, 0b1111_0000),))]
    assert desk.kinds(half, borrower) == "GG"


def test_when_a_borrower_ends_that_was_first_in_line_the_next_has_its_turn() -> None:
    desk = Desk(Sharing.HIVED, nodes(2, 1))
    own, wide = desk.submit("a", 1), desk.submit("b", 8)
    desk.finish(wide)
    first = desk.submit("a", 9)
    assert desk.kinds(own, first) == "GO"
    small = desk.submit("a", 4)
    assert desk.kinds(small) == "O"
    desk.finish(first)
    assert desk.kinds(own, small) == "GG"


# Preemption


def test_a_guaranteed_job_takes_its_gpus_back_at_once() -> None:
    desk = Desk(Sharing.HIVED, nodes(1, 1))
    own, borrower = desk.submit("a", 8), desk.submit("a", 8)
    assert desk.kinds(own, borrower) == "GO"
    taker = desk.submit("b", 8)
    assert desk.told == [
        ("stop", borrower, taker, True),
        ("start", taker, "G", ((1, 0xFF),)),
    ]


def test_the_victim_is_who_stands_where_the_affinity_is_and_not_who_came_last() -> None:
    """An 8-GPU job needs one node: the node with one small lodger, though the large one elsewhere is younger."""
    desk = Desk(Sharing.HIVED, nodes(1, 2))
    own = desk.submit("a", 8)
    old_small = desk.submit("a", 2)
    young_large = desk.submit("a", 8)
    assert [desk.nodes(job) for job in (own, old_small, young_large)] == [[0], [1], [2]]
    taker = desk.submit("b", 8)
    assert desk.kinds(old_small, young_large) == ".O"
    assert desk.nodes(taker) == [1]


def test_a_preempted_job_returns_to_its_place_and_is_the_first_to_borrow_again() -> None:
    desk = Desk(Sharing.HIVED, nodes(1, 1))
    own, victim = desk.submit("a", 8), desk.submit("a", 8)
    behind = desk.submit("a", 8)
    taker = desk.submit("b", 8)
    assert desk.kinds(own, victim, behind, taker) == "G..G"
    desk.finish(taker)
    assert desk.kinds(victim, behind) == "O."
    desk.finish(own)
    assert desk.told == [("promote", victim), ("start", behind, "O", ((0, 0xFF),))]


def test_a_victim_that_was_first_in_line_still_has_the_next_turn() -> None:
    desk = Desk(Sharing.HIVED, nodes(1, 1))
    own, victim = desk.submit("a", 8), desk.submit("a", 8)
    desk.submit("b", 8)
    behind = desk.submit("a", 1)
    desk.finish(own)
    assert desk.kinds(victim, behind) == "G."


def test_what_a_preemption_leaves_over_is_lent_again_at_once() -> None:
    chain = nodes_of_8(4)
    cells = {"a": 1, "b": 2, "c": 1}
    desk = Desk(Sharing.HIVED, cluster_of(chain, *(vc(name, (chain, NODE, number)) for name, number in cells.items())))
    own_a, own_c = desk.submit("a", 8), desk.submit("c", 8)
    wide, waits = desk.submit("a", 16), desk.submit("c", 8)
    assert desk.kinds(own_a, own_c, wide, waits) == "GGO."
    taker = desk.submit("b", 1)
    assert desk.kinds(wide, waits, taker) == ".OG", "b needs one of the two nodes; the other is idle now"


class Watching:
    """YARN-CS that remembers what it was asked about displaced jobs."""

    name = "watching"

    def __init__(self, reaction: Reaction) -> None:
        self.reaction = reaction
        self.asked: list[tuple[str, str]] = []

    def order(self, job: JobView) -> tuple[int, ...]:
        return YarnCS().order(job)

    def rank(self, host: HostClass, gpus: int) -> tuple[int, ...] | None:
        return YarnCS().rank(host, gpus)

    def react(self, event: Displaced) -> Reaction:
        self.asked.append((event.victim.job, event.by.job))
        return self.reaction


@pytest.mark.parametrize(("reaction", "keeps"), [(Reaction.SUSPEND, True), (Reaction.RESTART, False)])
def test_the_policy_says_whether_a_displaced_job_keeps_its_work(reaction: Reaction, keeps: bool) -> None:
    policy = Watching(reaction)
    desk = Desk(Sharing.HIVED, nodes(1, 1), policy)
    desk.submit("a", 4)
    leaves, borrower = desk.submit("a", 4), desk.submit("a", 4)
    desk.finish(leaves)
    assert desk.told == [("move", borrower, keeps), ("start", borrower, "G", ((0, 0b1111_0000),))]
    victim = desk.submit("a", 2)
    taker = desk.submit("b", 8)
    assert desk.told[0] == ("stop", victim, taker, keeps)
    assert policy.asked == [
        (f"job-{borrower}", f"job-{borrower}"),
        (f"job-{victim}", f"job-{taker}"),
    ]


# Policies of one's own


class SmallestFirst:
    """Serves the smallest job first."""

    name = "smallest-first"

    def order(self, job: JobView) -> tuple[int, ...]:
        return (job.gpus,)

    def rank(self, host: HostClass, gpus: int) -> tuple[int, ...] | None:
        return YarnCS().rank(host, gpus)

    def react(self, event: Displaced) -> Reaction:
        return Reaction.SUSPEND


def test_a_policy_may_order_the_queue_as_it_likes() -> None:
    desk = Desk(Sharing.PRIVATE, nodes(1), SmallestFirst())
    engine = desk.engine
    answers = [engine.submit(n, "a", JobView(f"job-{n}", gpus, n, n)) for n, gpus in enumerate((8, 6, 4, 2))]
    assert [len(answer) for answer in answers] == [1, 0, 0, 0]
    started = [decision.job for decision in engine.finish([0])]
    assert started == [3, 2], "two and four; six would be eight too many"
    assert [d.job for d in engine.submit(9, "a", JobView("job-9", 1, 9, 9))] == [9], "it is smaller than who waits"
    desk.scheduler.validate()


class NeverPlaces(SmallestFirst):
    """A policy that refuses every guaranteed job."""

    def rank(self, host: HostClass, gpus: int) -> tuple[int, ...] | None:
        return None


def test_a_job_that_the_policy_does_not_place_waits_or_borrows() -> None:
    alone, shared = (Desk(scheme, nodes(1), NeverPlaces()) for scheme in (Sharing.PRIVATE, Sharing.HIVED))
    alone.submit("a", 1)
    assert alone.told == []
    job = shared.submit("a", 1)
    assert shared.told == [("start", job, "O", ((0, 1),))]


# Misuse


def test_a_number_used_twice_and_the_end_of_a_job_that_does_not_run_are_bugs_of_the_caller() -> None:
    desk = Desk(Sharing.PRIVATE, nodes(1))
    running, waiting = desk.submit("a", 8), desk.submit("a", 8)
    with pytest.raises(InvariantError, match="twice"):
        desk.engine.submit(running, "a", JobView("again", 1, 2, 2))
    with pytest.raises(InvariantError, match="does not run"):
        desk.engine.finish([waiting])


def test_a_job_that_has_ended_keeps_no_cluster_of_an_old_spec_in_memory() -> None:
    desk = Desk(Sharing.HIVED, nodes(1))
    job = desk.submit("a", 8)
    entry = desk.scheduler.jobs[job]
    assert entry.demand is not None
    desk.finish(job)
    assert entry.demand is entry.loan_demand is None
