"""Round-robin on one server: the cycle of slices, and the shares that are read off it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.scheduling.slicing.rotation import Rotation, rotation

gangs = st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.integers(0, 2)), min_size=1, max_size=9)


def test_six_jobs_of_one_gpu_have_four_sixths_of_the_time_each_on_four() -> None:
    cycle = rotation(4, (1,) * 6)
    assert cycle.shares == pytest.approx([4 / 6] * 6)
    assert len(cycle.slices) == 3


def test_the_slices_of_six_jobs_on_four_gpus() -> None:
    who = [[gang for gang, _ in one] for one in rotation(4, (1,) * 6).slices]
    assert who == [[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5]]


def test_a_job_that_runs_on_keeps_its_gpu() -> None:
    slices = rotation(4, (1,) * 6).slices
    assert dict(slices[0])[0] == dict(slices[1])[0]


def test_where_all_fit_nobody_is_suspended() -> None:
    cycle = rotation(4, (2, 1, 1))
    assert cycle.shares == (1.0, 1.0, 1.0)
    assert cycle.resumes == (0.0, 0.0, 0.0)


def test_weights_divide_the_time() -> None:
    shares = rotation(2, (2, 2), (3, 1)).shares
    assert shares == pytest.approx([0.75, 0.25])


def test_a_lower_priority_has_what_higher_ones_leave() -> None:
    assert rotation(4, (2, 2, 2, 2), (), (1, 0, 0, 0)).shares == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    assert rotation(4, (4, 4), (), (1, 0)).shares == (1.0, 0.0)


def test_a_gang_that_needs_all_gpus_has_its_rounds_like_small_ones() -> None:
    assert rotation(4, (4, 1, 1, 2)).shares == pytest.approx([0.5] * 4)


def test_a_gang_larger_than_the_server_never_runs() -> None:
    assert rotation(2, (4, 1)).shares == (0.0, 1.0)


@given(gpus=st.integers(1, 8), of=gangs)
def test_gpus_are_never_shared_at_one_time_and_turns_add_up(gpus: int, of: list[tuple[int, int, int]]) -> None:
    sizes, weights, priorities = (tuple(column) for column in zip(*of, strict=True))
    cycle = rotation(gpus, sizes, weights, priorities)
    for one in cycle.slices:
        used = [position for _, positions in one for position in positions]
        assert len(used) == len(set(used))
        assert set(used) <= set(range(gpus))
        assert all(len(positions) == sizes[gang] for gang, positions in one)
        left = gpus - len(used)
        idle = set(range(len(sizes))) - {gang for gang, _ in one}
        assert all(sizes[gang] > left for gang in idle), "no GPU is idle that a job could have"
    for gang, turns in enumerate(cycle.turns):
        assert sum(share for _, share in turns) == pytest.approx(cycle.shares[gang])
    _check_priorities(cycle, sizes, priorities)


def _check_priorities(cycle: Rotation, sizes: tuple[int, ...], priorities: tuple[int, ...]) -> None:
    """A higher priority is never suspended for a lower one of its size."""
    for one in cycle.slices:
        runs = {gang for gang, _ in one}
        for gang in runs:
            for other in set(range(len(sizes))) - runs:
                assert not (sizes[other] <= sizes[gang] and priorities[other] > priorities[gang])


@given(gpus=st.integers(1, 8), number=st.integers(1, 40), size=st.sampled_from([1, 2, 4]))
def test_equal_jobs_have_equal_shares(gpus: int, number: int, size: int) -> None:
    places = gpus // size
    shares = rotation(gpus, (size,) * number).shares
    assert shares == pytest.approx([min(1.0, places / number)] * number)
