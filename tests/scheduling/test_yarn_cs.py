"""YARN-CS: first come, first served; packing; preemption by affinity."""

from __future__ import annotations

import pytest

from hived.cells import HostClass, shape_of
from hived.policies import YarnCS
from hived.scheduling import Displaced, JobView, Reaction

pack = YarnCS().rank
NODE_OF_8 = shape_of((2, 2, 2))


def host(guaranteed: int, opportunistic: int = 0) -> HostClass:
    free = NODE_OF_8.full & ~guaranteed
    return HostClass(NODE_OF_8.profile(free), NODE_OF_8.profile(free & ~opportunistic))


def better(one: HostClass, other: HostClass, gpus: int) -> bool:
    """Whether ``one`` is ranked before ``other``."""
    first, second = pack(one, gpus), pack(other, gpus)
    assert first is not None
    assert second is not None
    return first < second


EMPTY = host(0)


def test_a_host_with_too_few_gpus_outside_guaranteed_use_cannot_be_used() -> None:
    assert pack(host(0b0000_1111), 5) is None
    assert pack(host(0b0000_1111), 4) is not None
    assert pack(host(0b0000_1111, 0b1111_0000), 4) is not None, "opportunistic GPUs can be taken"


def test_a_host_without_preemption_ranks_before_a_tighter_one() -> None:
    assert better(EMPTY, host(0b0000_1111, 0b0111_0000), 2)


def test_hosts_rank_by_fewest_gpus_preempted_then_closest_then_tightest() -> None:
    assert better(host(0, 0b0000_1111), host(0, 0b0001_1111), 5)
    assert better(EMPTY, host(0b0101_0101), 2), "a whole pair, not two halves"
    assert better(host(0b0000_1111), EMPTY, 4), "the host with the fewest to spare"
    assert better(host(0b0000_0011), EMPTY, 2)


def test_closeness_is_measured_on_idle_gpus_while_they_suffice() -> None:
    """Four idle GPUs in two sockets are not close, though each socket is free with the opportunistic GPUs."""
    scattered = host(0, 0b0011_0011)
    assert better(host(0b0000_1111), scattered, 4)
    assert pack(scattered, 4) == (0, NODE_OF_8.depth, 8)
    assert pack(scattered, 5) == (1, NODE_OF_8.depth, 8)
    assert pack(host(0, 0b0011_1111), 4) == (2, 3, 8), "once some are taken, all that are not guaranteed count"


def test_jobs_are_served_in_the_order_of_submission() -> None:
    policy = YarnCS()
    earlier, later = JobView("a", 8, 5, 9), JobView("b", 1, 6, 1)
    assert policy.order(earlier) < policy.order(later)
    at_once = JobView("c", 1, 5, 10)
    assert policy.order(earlier) < policy.order(at_once) < policy.order(later)
    assert policy.name == "yarn-cs"


@pytest.mark.parametrize("reaction", Reaction)
def test_a_displaced_job_keeps_what_the_policy_is_configured_to_keep(reaction: Reaction) -> None:
    job = JobView("a", 1, 0, 0)
    policy = YarnCS()
    policy.displaced = reaction
    assert policy.react(Displaced(job, job)) is reaction
    assert YarnCS().react(Displaced(job, job)) is Reaction.SUSPEND
