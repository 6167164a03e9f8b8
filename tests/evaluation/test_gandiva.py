"""Measures of Gandiva's evaluation, on hand-made cases."""

from __future__ import annotations

import pytest
from evaluation.gandiva import table3
from evaluation.gandiva.base import job, play
from evaluation.gandiva.fig15 import packed_gpus


def test_the_line_of_4_gpus_is_the_papers() -> None:
    each, once = table3.fitted(table3.GANDIVA[4], 4)
    assert each / 4 == pytest.approx(0.96, abs=0.01)
    assert once == pytest.approx(35, abs=1)
    assert table3.predicted(each, once, 4) == pytest.approx(table3.GANDIVA[4], rel=0.02)


def test_packed_gpus_are_counted_by_time() -> None:
    packed = play([job(f"j{n}", 1, 300, model="VAE") for n in range(5)], 1, "gandiva")
    alone = play([job(f"j{n}", 1, 300, model="LSTM") for n in range(4)], 1, "gandiva")
    assert packed_gpus(alone) == 0
    assert 0.9 < packed_gpus(packed) <= 4
