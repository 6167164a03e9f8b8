"""Measures of Gandiva's evaluation, on hand-made cases."""

from __future__ import annotations

import pytest
from evaluation.gandiva import searches
from evaluation.gandiva.base import played
from evaluation.gandiva.sharing import MIXES, by_load, packed_gpus
from evaluation.simulations import UNCHANGED, Workload, made

from hived.simulator.multi_job import Curve


def test_the_line_of_4_gpus_is_the_papers() -> None:
    each, once = searches.fitted(searches.GANDIVAS[4], 4)
    assert each / 4 == pytest.approx(0.96, abs=0.01)
    assert once == pytest.approx(35, abs=1)
    assert searches.predicted(each, once, 4) == pytest.approx(searches.GANDIVAS[4], rel=0.02)


def test_packed_gpus_are_counted_by_time() -> None:
    packed = played([made(f"j{n}", 1, 300, model="VAE") for n in range(5)], 1, "gandiva")
    alone = played([made(f"j{n}", 1, 300, model="LSTM") for n in range(4)], 1, "gandiva")
    assert packed_gpus(alone) == 0
    assert 0.9 < packed_gpus(packed) <= 4


def test_the_speed_of_curves_is_that_of_the_first_position() -> None:
    """134.1 minutes are five evaluations of 894 minutes of training; it is submitted with the second eight."""
    assert searches.TABLE4[0][2] / searches.TABLE4_RUN_MIN == pytest.approx(5 * searches.EVERY)
    curve = Curve(0.75, searches.SLOW)
    assert curve.at(3 * searches.EVERY) < 0.7 <= curve.at(4 * searches.EVERY)


def test_searches_of_table_4_end_where_it_is_found() -> None:
    """Without turns three rounds of 16 trainings come before the second position, and five before the third."""
    run = searches.TABLE4_RUN_MIN
    first, second, third = searches.accuracies(searches.POLICIES["FIFO"], 1, *searches.USUAL)["minutes"]
    assert 0 < first < 0.3 * run
    assert 3 * run < second < 4 * run + 0.03 * run
    assert 5 * run < third < 6 * run + 0.03 * run
    stopping = searches.accuracies(searches.POLICIES["FIFO"], 1, *searches.CHANGED[-1])["minutes"]
    assert stopping[0] == first
    assert stopping[2] < 0.9 * third, "those that promise too little are ended there too"


def test_table_5_has_the_models_of_its_mix() -> None:
    """Once all its jobs were unknown ones, since only those without a model are given one."""
    workload = Workload("synthetic", None, None, 3_000, 10, 1.0, 1.5, None)
    mixed, unknown = (by_load(workload, "yarn-cs", 0.6, 2.0, mix, *UNCHANGED) for mix in MIXES.values())
    jobs = mixed["jobs"]
    assert mixed["families"]["nlp"] / jobs == pytest.approx(0.6, abs=0.1)
    assert mixed["families"]["cv"] / jobs == pytest.approx(0.1, abs=0.06)
    assert unknown["families"] == {"other": jobs}
