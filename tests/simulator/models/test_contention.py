"""The law of contention: Table 1's gains come out of copies, and nothing gains that loses with itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.simulator.models import OWNER_LOSS, JobModel, Models, guest_rates, packed_memory, packed_rate

from .values import GAINS

MODELS = Models.load()
ANY = MODELS.of("*")


def laws(least_gain: float) -> st.SearchStrategy[JobModel]:
    """Any model: utilization, and gain of packing."""
    return st.builds(
        lambda utilization, gain: replace(ANY, utilization=utilization, capacity=utilization * (1 + gain)),
        st.floats(0.01, 1),
        st.floats(least_gain, 4),
    )


LAWS, GAINING = laws(-0.5), laws(0.001)
SETS = st.lists(LAWS, min_size=1, max_size=6)
LOSING = [name for name, gain in GAINS.items() if gain < 0]


def total(models: Sequence[JobModel]) -> float:
    """The sum of the rates of a packed set."""
    return len(models) * packed_rate(models)


@pytest.mark.parametrize("name", GAINS)
def test_copies_gain_what_table_1_has(name: str) -> None:
    """A gain is printed as a whole number of percent."""
    copies = [total([MODELS.of(name)] * number) for number in range(1, 9)]
    if name in LOSING:
        assert all(100 * (sum_of_rates - 1) == pytest.approx(GAINS[name], abs=1) for sum_of_rates in copies[1:])
    else:
        assert all(more >= fewer - 1e-12 for fewer, more in pairwise(copies))
        assert 100 * (max(copies) - 1) == pytest.approx(GAINS[name], abs=1)
        # no more GPU time than there is: fewer copies have what they use
        assert all(sum_of_rates <= number for number, sum_of_rates in enumerate(copies, 1))


def test_vae_needs_six_copies_for_its_gain() -> None:
    vae = MODELS.of("VAE")
    assert [packed_rate([vae] * number) < 1 for number in range(1, 7)] == [False] * 5 + [True]


@given(SETS, LAWS)
def test_rates_of_any_set(models: list[JobModel], more: JobModel) -> None:
    """Above 0 and at most 1, whatever its order; a further job never speeds the others."""
    rate = packed_rate(models)
    assert 0 < rate <= 1
    assert packed_rate([*models, more]) <= rate + 1e-12
    assert rate == pytest.approx(packed_rate(models[::-1]))


@given(st.lists(LAWS, min_size=1, max_size=5), st.sampled_from(LOSING))
def test_a_set_with_a_loser_never_gains(models: list[JobModel], name: str) -> None:
    loser = MODELS.of(name)
    assert total([*models, loser]) <= loser.capacity / loser.utilization + 1e-12 < 1


@given(st.lists(GAINING, min_size=1, max_size=6))
def test_jobs_that_fit_run_at_full_speed(models: list[JobModel]) -> None:
    """And a set of those that gain never loses."""
    assert total(models) >= 1 - 1e-12
    demand = sum(model.utilization for model in models)
    loads = sum(model.utilization / model.capacity for model in models)
    # demand, and the mean of the capacities weighted by utilization
    assert packed_rate(models) == pytest.approx(min(1, (demand / loads) / demand))


@given(SETS, st.integers(0, 5), st.floats(1, 3), st.sampled_from(["utilization", "capacity"]))
def test_capacity_speeds_and_utilization_slows(models: list[JobModel], at: int, factor: float, quantity: str) -> None:
    at %= len(models)
    if quantity == "capacity":
        changed = replace(models[at], capacity=min(10, models[at].capacity * factor))
    else:
        changed = replace(models[at], utilization=min(1, models[at].utilization * factor))
    after = packed_rate([*models[:at], changed, *models[at + 1 :]])
    before = packed_rate(models)
    assert after >= before - 1e-12 if quantity == "capacity" else after <= before + 1e-12


@given(LAWS, st.lists(LAWS, max_size=4), st.floats(0, 1))
def test_guests_have_idle_time_only(owner: JobModel, guests: list[JobModel], limit: float) -> None:
    own, rates = guest_rates(owner, guests, limit)
    used = sum(rate * guest.utilization for rate, guest in zip(rates, guests, strict=True))
    assert used <= limit * (1 - owner.utilization) + 1e-12
    assert len(rates) == len(guests)
    assert all(0 <= rate <= 1 for rate in rates)
    assert 1 - OWNER_LOSS <= own <= 1
    assert own == 1 or (guests and used > 0)


@pytest.mark.parametrize(
    ("used", "guests", "limit", "own", "rates"),
    [
        (0.7, [0.8], 1.0, 1 - OWNER_LOSS, [0.3 / 0.8]),
        (0.7, [0.8, 0.4], 1.0, 1 - OWNER_LOSS, [0.25, 0.25]),  # 0.2 and 0.1 of the time
        (0.7, [0.4], 0.5, 1 - OWNER_LOSS / 2, [0.15 / 0.4]),
        (0.7, [0.2], 1.0, 1 - OWNER_LOSS, [1.0]),
        # an owner without working guests loses nothing
        (0.7, [], 1.0, 1.0, []),
        (0.7, [0.9], 0.0, 1.0, [0.0]),
        (1.0, [0.9], 1.0, 1.0, [0.0]),
    ],
)
def test_guests_share_idle_time(used: float, guests: list[float], limit: float, own: float, rates: list[float]) -> None:
    models = [replace(ANY, utilization=share) for share in guests]
    found, shares = guest_rates(replace(ANY, utilization=used), models, limit)
    assert found == own
    assert shares == pytest.approx(tuple(rates))


def test_an_owner_loses_what_table_2_has() -> None:
    assert pytest.approx(91.1 / 91.8) == 1 - OWNER_LOSS


def test_memories_add_up() -> None:
    assert packed_memory([MODELS.of("VAE"), MODELS.of("SR"), MODELS.of("SR")]) == 2.5
    assert packed_memory([]) == 0
