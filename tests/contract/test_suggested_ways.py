"""Which of several ways onto suggested nodes is taken, and what is said when not all were tried."""

from __future__ import annotations

import pytest

from hived.cluster import suggested
from hived.cluster.reasons import NotSuggested

from .driver import Driver
from .specs import flat, lent, wants


def test_beside_bad_hardware_rather_than_onto_a_loan() -> None:
    driver = Driver(flat({"a": 1, "b": 2}))
    driver.bind(lent("loan", "b", 1), suggested=["n1"])
    driver.set_device("n0", 3, healthy=False)
    job = driver.bind(wants("job", "a", 3), suggested=["n0", "n1"])
    assert job.placement.pods[0].node == "n0"


def test_among_idle_nodes_the_healthy_one() -> None:
    driver = Driver(flat({"a": 1, "b": 2}))
    driver.set_device("n0", 3, healthy=False)
    job = driver.bind(wants("job", "a", 3), suggested=["n0", "n1"])
    assert job.placement.pods[0].node == "n1"


def test_a_search_that_was_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(flat({"a": 3}))
    gang = wants("gang", "a", (2, 4))
    monkeypatch.setattr(suggested, "STEPS", -1)  # with the one that each of two hosts has, one choice in all
    assert driver.wait(gang, suggested=["n0", "n1"]).reasons[0] == NotSuggested(2, searched_all=False)
    monkeypatch.undo()
    driver.bind(gang, suggested=["n0", "n1"])


def test_names_that_are_no_nodes_are_not_counted_as_suggested() -> None:
    driver = Driver(flat({"a": 3}))
    driver.bind(wants("there", "a", 4), suggested=["n0"])
    reason = driver.wait(wants("job", "a", 4), suggested=["n0", "elsewhere", "nowhere"]).reasons[0]
    assert reason == NotSuggested(1, searched_all=True)
