"""Weighted max-min shares, by their definition."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from hived.cluster.fairness import shares, whole

WANTS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), min_size=1, max_size=6)


@given(st.integers(0, 60), WANTS)
def test_shares_are_max_min(total: int, tenants: list[tuple[int, int]]) -> None:
    wanted, weights = [want for want, _ in tenants], [weight for _, weight in tenants]
    found = shares(total, wanted, weights)
    assert all(0 <= share <= want for share, want in zip(found, wanted, strict=True))
    assert sum(found) == min(total, sum(wanted)), "nothing in demand is left over"
    for share, want, weight in zip(found, wanted, weights, strict=True):
        if share < want and weight:
            for other, its in zip(found, weights, strict=True):
                assert its == 0 or other / its <= share / weight, "a tenant with more per weight could yield"
                assert its or not other, "a tenant without weight gets the remainder"


@given(st.integers(0, 60), WANTS, st.integers(2, 5))
def test_only_proportions_count(total: int, tenants: list[tuple[int, int]], factor: int) -> None:
    wanted, weights = [want for want, _ in tenants], [weight for _, weight in tenants]
    assert shares(total, wanted, [factor * weight for weight in weights]) == shares(total, wanted, weights)


def test_whole_weights() -> None:
    assert whole([Fraction(1, 2), Fraction(2, 3), Fraction(3)]) == [3, 4, 18]
    assert whole([]) == []
