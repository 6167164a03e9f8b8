"""A Space finds the best host without looking at them all, and finds the one that looking at all would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cells import HostClass, Rank, Space, shape_of
from hived.errors import InvariantError

SHAPE = shape_of((2, 2))


def tightest(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    return (host.idle.free,) if host.idle.free >= gpus else None


def far_from_guaranteed(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    level = host.idle.level_for(gpus)
    return (host.guaranteed, level) if level else None


def equally(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    return ()


RANKS: list[Rank] = [tightest, far_from_guaranteed, equally]


def space_of(n: int) -> Space:
    """So many hosts, all idle."""
    return Space([SHAPE] * n, [], SHAPE.depth, [SHAPE.full] * n)


def masks(guaranteed: int, opportunistic: int) -> tuple[int, int]:
    """Free and idle leaves of a host with these in use."""
    free = SHAPE.full & ~guaranteed
    return free, free & ~opportunistic


def class_of(guaranteed: int, opportunistic: int) -> HostClass:
    free, idle = masks(guaranteed, opportunistic)
    return HostClass(SHAPE.profile(free), SHAPE.profile(idle))


@given(
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, 15), st.integers(0, 15)), max_size=25),
        )
    )
)
def test_the_best_host_is_what_looking_at_every_host_gives(case: tuple[int, list[tuple[int, int, int]]]) -> None:
    n, changes = case
    space = space_of(n)
    classes = [class_of(0, 0) for _ in range(n)]
    for host, guaranteed, opportunistic in [(0, 0, 0), *changes]:
        classes[host] = class_of(guaranteed, opportunistic & ~guaranteed)
        space.set(host, *masks(guaranteed, opportunistic))
        space.validate()
        assert [space.class_of(h) for h in range(n)] == classes
        assert space.occupied.bit_count() == len(set(classes))
        for rank in RANKS:
            for gpus in range(1, 6):
                ranked = sorted(
                    (value, c.free, c.idle, number)
                    for number, c in enumerate(classes)
                    if c.free.free >= gpus and (value := rank(c, gpus)) is not None
                )
                expected = [number for *_, number in ranked]
                best = space.best_hosts(rank, gpus)
                assert (-1 if best is None else best.first()) == (expected[0] if expected else -1)
                assert list(space.in_order(rank, gpus)) == expected


def test_the_order_does_not_depend_on_which_class_was_seen_first() -> None:
    """Two classes of one rank: the answer does not depend on which came first."""
    one, other = masks(0b0001, 0), masks(0b0001, 0b0010)
    answers = []
    for seen in ((one, other), (other, one)):
        space = space_of(2)
        for mask in seen:
            space.set(0, *mask)
        space.set(0, *one)
        space.set(1, *other)
        answers.append(list(space.in_order(equally, 1)))
    assert answers[0] == answers[1]


def test_masks_of_one_profile_are_one_class() -> None:
    space = space_of(3)
    for host, in_use in enumerate(((1, 2), (2, 1), (1, 4))):
        space.set(host, *masks(*in_use))
    assert space.class_of(0) == space.class_of(1) != space.class_of(2)
    assert space.occupied.bit_count() == 2


def test_a_class_first_seen_after_a_question_is_found_by_the_next() -> None:
    space = space_of(2)
    for host in (0, 1):
        space.set(host, *masks(0b1111, 0))
    assert space.best_hosts(tightest, 1) is None
    space.set(1, *masks(0b0111, 0))
    assert list(space.best_hosts(tightest, 1) or ()) == [1]
    space.set(1, *masks(0b1111, 0))
    assert space.best_hosts(tightest, 1) is None


def test_guaranteed_leaves_are_those_that_are_not_free() -> None:
    assert class_of(0b0110, 0b0001).guaranteed == 2


def test_a_space_that_disagrees_with_itself_is_found_out() -> None:
    space = space_of(2)
    space.occupied = 0
    with pytest.raises(InvariantError):
        space.validate()
