"""Round-robin on one server: the cycle of slices, and the shares that are read off it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hived.scheduling.slicing.rotation import rotation

gangs = st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=9)


def test_six_jobs_on_four_gpus() -> None:
    cycle = rotation(4, (1,) * 6)
    assert [[gang for gang, _ in one] for one in cycle.slices] == [[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5]]
    assert dict(cycle.slices[0])[0] == dict(cycle.slices[1])[0], "a job that runs on keeps its GPU"
    assert cycle.shares == pytest.approx([4 / 6] * 6)


def test_nobody_is_suspended_where_all_fit() -> None:
    cycle = rotation(4, (2, 1, 1))
    assert cycle.shares == (1.0, 1.0, 1.0)
    assert cycle.resumes == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("gpus", "sizes", "weights", "priorities", "shares"),
    [
        (2, (2, 2), (3, 1), (), [0.75, 0.25]),
        (4, (2, 2, 2, 2), (), (1, 0, 0, 0), [1, 1 / 3, 1 / 3, 1 / 3]),
        (4, (4, 4), (), (1, 0), [1.0, 0.0]),
        (4, (4, 1, 1, 2), (), (), [0.5] * 4),
        (2, (4, 1), (), (), [0.0, 1.0]),
    ],
    ids=["weights", "what priority leaves", "priority leaves nothing", "a gang has its rounds", "too large"],
)
def test_shares(
    gpus: int, sizes: tuple[int, ...], weights: tuple[int, ...], priorities: tuple[int, ...], shares: list[float]
) -> None:
    assert rotation(gpus, sizes, weights, priorities).shares == pytest.approx(shares)


@example(gpus=3, of=[(1, 1, 0), (1, 1, 0), (2, 1, 0)])  # no aligned pair is free
@settings(max_examples=30)
@given(gpus=st.integers(1, 8), of=gangs)
def test_no_gpu_is_shared_or_idle_at_one_time(gpus: int, of: list[tuple[int, int, int]]) -> None:
    """Turns add up, and a higher priority is never suspended for a lower one of its size."""
    sizes, weights, priorities = (tuple(column) for column in zip(*of, strict=True))
    cycle = rotation(gpus, sizes, weights, priorities)
    for one in cycle.slices:
        used = [position for _, positions in one for position in positions]
        assert len(used) == len(set(used))
        assert set(used) <= set(range(gpus))
        assert all(len(positions) == sizes[gang] for gang, positions in one)
        left = gpus - len(used)
        runs = {gang for gang, _ in one}
        for other in set(range(len(sizes))) - runs:
            assert sizes[other] > left, "no GPU is idle that a job could have"
            assert not [gang for gang in runs if sizes[other] <= sizes[gang] and priorities[other] > priorities[gang]]
    for gang, turns in enumerate(cycle.turns):
        assert sum(share for _, share in turns) == pytest.approx(cycle.shares[gang])


@settings(max_examples=30)
@given(gpus=st.integers(1, 8), number=st.integers(1, 40), size=st.sampled_from([1, 2, 4]))
def test_equal_jobs_have_equal_shares(gpus: int, number: int, size: int) -> None:
    places = gpus // size
    shares = rotation(gpus, (size,) * number).shares
    assert shares == pytest.approx([min(1.0, places / number)] * number)
