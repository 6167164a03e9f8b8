"""Scenarios of the scheduler where victims end at once: turns, loans, preemptions; and YARN-CS, its policy.

What holds after any events is in test_any_events.py: first come, first served in every tenant; no job waits that fits.
"""

from __future__ import annotations

import pytest

from hived import Bind, Preempt
from hived.cells import HostClass, shape_of
from hived.cluster import Cluster, Sharing
from hived.cluster.placement_request import PlacementRequest
from hived.errors import InputError, InvariantError, PolicyError
from hived.policies import YarnCS, make_policy
from hived.scheduling import Displaced, JobView, Policy, Reaction
from hived.scheduling.checks import check_scheduler
from hived.scheduling.running import work_left

from ..strategies import NODE, cluster_of, nodes_of_8, vc
from .helpers import Harness, Watching, nodes

# -- turns --------------------------------------------------------------------------------------------------------


def test_end_retries_only_the_heads_it_can_help() -> None:
    # under a quota the heads of all tenants were once sorted and retried at every end: 331 us a job with 1,100
    names = [f"t{number}" for number in range(20)]
    chain = nodes_of_8(len(names))
    spec = cluster_of(chain, *(vc(name, (chain, NODE, 1)) for name in names))
    asked: list[str] = []

    class Counted(Cluster):
        def place(self, one: PlacementRequest, keep: bool = False) -> Bind | Preempt | None:
            asked.append(one.request.vc)
            return super().place(one, keep)

    sim = Harness(Counted(spec, Sharing.QUOTA), spec, opportunistic=False)
    running = [sim.submit(name, 8) for name in names]
    waiting = [sim.submit(name, 8) for name in names]
    asked.clear()
    sim.finish(running[7])
    assert asked == ["t7"]
    assert sim.kinds(*waiting[6:9]) == ".G."


def test_earlier_head_goes_first_under_a_quota() -> None:
    """A head may wait for another tenant's job: it gets what that job leaves before that tenant's next one."""
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
def test_all_that_end_at_once_release_before_any_start(scheme: Sharing) -> None:
    sim = Harness(scheme, nodes(2), opportunistic=False)
    first, second, both = sim.submit("a", 8), sim.submit("a", 8), sim.submit("a", 16)
    behind = sim.submit("a", 8)
    sim.finish(second, first)
    assert sim.kinds(both, behind) == "G."


# -- loans --------------------------------------------------------------------------------------------------------


def test_no_loans_in_private_clusters_or_switched_off() -> None:
    for sim in (Harness(Sharing.PRIVATE, nodes(1, 1)), Harness(Sharing.HIVED, nodes(1, 1), opportunistic=False)):
        assert sim.kinds(sim.submit("a", 8), sim.submit("a", 1)) == "G."


def test_outsized_job_gets_a_loan_when_it_fits() -> None:
    """And blocks no other; one that is larger than the cluster waits for ever."""
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


def test_loans_go_to_the_smallest_share() -> None:
    """Weighted max-min: b reserved three times as much as a, and gets three times as many GPUs on loan."""
    sim = Harness(Sharing.HIVED, nodes(1, 3, 4))
    keeper = sim.submit("c", 32)
    own = [sim.submit("a", 8), sim.submit("b", 24)]
    waiting_a = [sim.submit("a", 8) for _ in range(4)]
    waiting_b = [sim.submit("b", 8) for _ in range(4)]
    assert sim.kinds(*own, *waiting_a, *waiting_b) == "GG........"
    sim.finish(keeper)
    assert sim.kinds(*waiting_a, *waiting_b) == "O...OOO."
    order = [decision.job for decision in sim.instructions]
    assert order == [waiting_a[0], waiting_b[0], waiting_b[1], waiting_b[2]], "equal shares: who came first"


def test_tenant_without_cells_gets_loans_last() -> None:
    chain = nodes_of_8(2)
    sim = Harness(Sharing.HIVED, cluster_of(chain, vc("none"), vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1))))
    keeper, own = sim.submit("b", 8), sim.submit("a", 8)
    poor, rich = sim.submit("none", 8), sim.submit("a", 8)
    sim.finish(keeper)
    assert sim.kinds(own, poor, rich) == "G.O"
    sim.finish(rich)
    assert sim.kinds(poor) == "O"


# -- promotion and preemption -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reaction", "keeps"), [(Reaction.SUSPEND, True), (Reaction.RESTART, False)])
def test_displaced_job_keeps_work_as_the_policy_says(reaction: Reaction, keeps: bool) -> None:
    """It moves where its VC is bound elsewhere at its turn, and is stopped for a guaranteed job of another tenant."""
    policy = Watching(reaction)
    sim = Harness(Sharing.HIVED, nodes(1, 1), policy)
    sim.submit("a", 4)
    leaves, lent = sim.submit("a", 4), sim.submit("a", 4)
    sim.finish(leaves)
    assert sim.answer == [("move", lent, keeps), ("start", lent, "G", ((0, 0b1111_0000),))]
    victim = sim.submit("a", 2)
    taker = sim.submit("b", 8)
    assert sim.answer == [("stop", victim, taker, keeps), ("start", taker, "G", ((1, 0xFF),))]
    assert policy.saw == [(f"job-{lent}", f"job-{lent}"), (f"job-{victim}", f"job-{taker}")]


def test_victim_is_selected_by_affinity_and_not_by_age() -> None:
    """An 8-GPU job gets the node with one small opportunistic job, though the large one elsewhere is younger."""
    sim = Harness(Sharing.HIVED, nodes(1, 2))
    own, old_small, young_large = sim.submit("a", 8), sim.submit("a", 2), sim.submit("a", 8)
    assert [sim.nodes(job) for job in (own, old_small, young_large)] == [[0], [1], [2]]
    taker = sim.submit("b", 8)
    assert (sim.kinds(old_small, young_large), sim.nodes(taker)) == (".O", [1])


# -- policies of one's own ----------------------------------------------------------------------------------------


class SmallestFirst(Policy):
    """Serves the smallest job first."""

    name = "smallest-first"

    def order(self, job: JobView) -> tuple[float, ...]:
        return (job.gpus,)


def test_policy_orders_the_queue_as_it_likes() -> None:
    sim = Harness(Sharing.PRIVATE, nodes(1), SmallestFirst())
    engine = sim.engine
    answers = [engine.submit(n, "a", JobView(f"job-{n}", gpus, n, n)) for n, gpus in enumerate((8, 6, 4, 2))]
    assert [len(answer) for answer in answers] == [1, 0, 0, 0]
    started = [decision.job for decision in engine.finish([0])]
    assert started == [3, 2], "two and four; six would be eight too many"
    assert [d.job for d in engine.submit(9, "a", JobView("job-9", 1, 9, 9))] == [9], "it is smaller than those waiting"
    check_scheduler(sim.scheduler)


class NeverPlaces(SmallestFirst):
    """A policy that refuses every guaranteed job."""

    def rank(self, host: HostClass, gpus: int) -> tuple[float, ...] | None:
        return None


def test_job_that_the_policy_does_not_place() -> None:
    """It waits, or gets a loan."""
    alone, shared = (Harness(scheme, nodes(1), NeverPlaces()) for scheme in (Sharing.PRIVATE, Sharing.HIVED))
    alone.submit("a", 1)
    assert alone.answer == []
    job = shared.submit("a", 1)
    assert shared.answer == [("start", job, "O", ((0, 1),))]


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("tiresias:limits=nan", InputError, "must be above 0 and ascend"),
        ("builtins:dict", PolicyError, "is no hived.scheduling.Policy"),
    ],
)
def test_what_is_no_policy_is_refused(name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make_policy(name)


# -- misuse -------------------------------------------------------------------------------------------------------


def test_misuse_is_a_bug_of_the_caller() -> None:
    """A number used twice; the end of a job that does not run."""
    sim = Harness(Sharing.PRIVATE, nodes(1))
    running, waiting = sim.submit("a", 8), sim.submit("a", 8)
    with pytest.raises(InvariantError, match="twice"):
        sim.engine.submit(running, "a", JobView("again", 1, 2, 2))
    with pytest.raises(InvariantError, match="does not run"):
        sim.engine.finish([waiting])


def test_ended_job_keeps_no_cluster_in_memory() -> None:
    sim = Harness(Sharing.HIVED, nodes(1))
    job = sim.submit("a", 8)
    entry = sim.scheduler.jobs[job]
    assert entry.demand is not None
    sim.finish(job)
    assert entry.demand is entry.loan_demand is None


# -- YARN-CS: first come, first served; packing; preemption by affinity -----------------------------------------------

pack = YarnCS().rank
NODE_OF_8 = shape_of((2, 2, 2))


def host(guaranteed: int, opportunistic: int = 0) -> HostClass:
    free = NODE_OF_8.full & ~guaranteed
    return HostClass(NODE_OF_8.profile(free), NODE_OF_8.profile(free & ~opportunistic))


EMPTY = host(0)
#: four idle GPUs in two sockets are not close, though each socket is free with the opportunistic GPUs
SCATTERED = host(0, 0b0011_0011)


@pytest.mark.parametrize(
    ("better", "worse", "gpus"),
    [
        (EMPTY, host(0b0000_1111, 0b0111_0000), 2),
        (host(0, 0b0000_1111), host(0, 0b0001_1111), 5),
        (EMPTY, host(0b0101_0101), 2),
        (host(0b0000_1111), EMPTY, 4),
        (host(0b0000_0011), EMPTY, 2),
        (host(0b0000_1111), SCATTERED, 4),
    ],
    ids=["nothing preempted", "fewest preempted", "a pair, not halves", "fewest to spare", "tight pair", "close idle"],
)
def test_rank(better: HostClass, worse: HostClass, gpus: int) -> None:
    """By fewest GPUs preempted, then closest, then tightest."""
    first, second = pack(better, gpus), pack(worse, gpus)
    assert first is not None
    assert second is not None
    assert first < second


def test_closeness_is_of_idle_gpus_if_they_suffice() -> None:
    assert pack(SCATTERED, 4) == (0, NODE_OF_8.depth, 8)
    assert pack(SCATTERED, 5) == (1, NODE_OF_8.depth, 8)
    assert pack(host(0, 0b0011_1111), 4) == (2, 3, 8), "once some are taken, all that are not guaranteed count"


def test_host_with_too_few_gpus_has_no_rank() -> None:
    assert pack(host(0b0000_1111), 5) is None
    assert pack(host(0b0000_1111), 4) is not None
    assert pack(host(0b0000_1111, 0b1111_0000), 4) is not None, "opportunistic GPUs can be taken"


def test_order_is_that_of_submission() -> None:
    policy = YarnCS()
    earlier, later = JobView("a", 8, 5, 9), JobView("b", 1, 6, 1)
    at_once = JobView("c", 1, 5, 10)
    assert policy.order(earlier) < policy.order(at_once) < policy.order(later)
    assert policy.name == "yarn-cs"


@pytest.mark.parametrize("reaction", Reaction)
def test_displaced_job_keeps_what_is_configured(reaction: Reaction) -> None:
    job = JobView("a", 1, 0, 0)
    policy = YarnCS()
    policy.displaced = reaction
    assert policy.react(Displaced(job, job)) is reaction
    assert YarnCS().react(Displaced(job, job)) is Reaction.SUSPEND


def test_equal_work_left_is_equal() -> None:
    """Of what differs in how long it has run: seconds alone are rounded, and would decide between equal jobs."""
    assert 6.993 - 0.999 != 6.66 - 0.666
    assert work_left(6.993, 999, 1000) == work_left(6.66, 666, 1000) == 5.994


def test_fifo_takes_the_first_host() -> None:
    """However much is free on it: the other one is fuller, and would be taken to pack."""
    harness = Harness(Sharing.PRIVATE, nodes(2), make_policy("fifo"))
    first = harness.submit("a", 6)
    harness.submit("a", 1)
    harness.submit("a", 6)
    harness.finish(first)
    assert harness.nodes(harness.submit("a", 1)) == [0]
