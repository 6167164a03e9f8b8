"""A HostIndex finds the best host without looking at them all, and finds the one that looking at all would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cells import HostClass, HostIndex, Rank, shape_of
from hived.errors import InvariantError

SHAPE = shape_of((2, 2))


def tightest(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    return (host.idle.free,) if host.idle.free >= gpus else None


def far_from_guaranteed(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    level = host.idle.level_for(gpus)
    return (host.guaranteed, level) if level else None


def anyone(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    return ()


RANKS: list[Rank] = [tightest, far_from_guaranteed, anyone]


def class_of(guaranteed: int, opportunistic: int) -> HostClass:
    free = SHAPE.full & ~guaranteed
    return HostClass(SHAPE.profile(free), SHAPE.profile(free & ~opportunistic))


@given(
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, 15), st.integers(0, 15)), max_size=25),
        )
    )
)
def test_the_best_host_is_what_looking_at_every_host_gives(case: tuple[int, list[tuple[int, int, int]]]) -> None:
    n, moves = case
    index = HostIndex(n)
    classes = [class_of(0, 0) for _ in range(n)]
    index.fill(index.bucket_of(classes[0]), range(n))
    for host, guaranteed, opportunistic in [(0, 0, 0), *moves]:
        classes[host] = class_of(guaranteed, opportunistic & ~guaranteed)
        index.move(host, index.bucket_of(classes[host]))
        index.validate()
        assert [index.class_of(h) for h in range(n)] == classes
        assert index.occupied.bit_count() == len(set(classes))
        for rank in RANKS:
            for gpus in range(1, 6):
                ranked = sorted(
                    (value, c.free, c.idle, number)
                    for number, c in enumerate(classes)
                    if (value := rank(c, gpus)) is not None
                )
                expected = [number for *_, number in ranked]
                assert index.by(rank).best(gpus) == (expected[0] if expected else -1)
                assert index.by(rank).any(gpus) == bool(expected)
                assert list(index.by(rank).in_order(gpus)) == expected


def test_the_order_does_not_depend_on_which_class_was_seen_first() -> None:
    """Two classes of one rank: the answer is the same whoever came first."""
    one, other = class_of(0b0001, 0), class_of(0b0001, 0b0010)
    answers = []
    for first, second in ((one, other), (other, one)):
        index = HostIndex(2)
        index.bucket_of(first)
        index.bucket_of(second)
        index.move(0, index.bucket_of(one))
        index.move(1, index.bucket_of(other))
        answers.append(list(index.by(anyone).in_order(1)))
    assert answers[0] == answers[1]


def test_a_class_has_one_bucket() -> None:
    index = HostIndex(3)
    assert index.bucket_of(class_of(1, 2)) == index.bucket_of(class_of(1, 2))
    assert index.bucket_of(class_of(1, 2)) == index.bucket_of(class_of(2, 1)), "the same profile: the same class"
    assert index.bucket_of(class_of(1, 2)) != index.bucket_of(class_of(1, 4))


def test_a_class_first_seen_after_a_question_is_found_by_the_next() -> None:
    index = HostIndex(2)
    index.fill(index.bucket_of(class_of(0b1111, 0)), range(2))
    assert index.by(tightest).best(1) == -1
    index.move(1, index.bucket_of(class_of(0b0111, 0)))
    assert index.by(tightest).best(1) == 1
    index.move(1, index.bucket_of(class_of(0b1111, 0)))
    assert index.by(tightest).best(1) == -1


def test_guaranteed_leaves_are_those_that_are_not_free() -> None:
    assert class_of(0b0110, 0b0001).guaranteed == 2


def test_an_index_that_disagrees_with_itself_is_found_out() -> None:
    index = HostIndex(2)
    index.fill(index.bucket_of(class_of(0, 0)), range(2))
    index.occupied = 0
    with pytest.raises(InvariantError):
        index.validate()
