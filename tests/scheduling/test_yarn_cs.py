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
