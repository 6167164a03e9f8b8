"""Measures of Gandiva's evaluation, on hand-made cases."""

from __future__ import annotations

import pytest
from evaluation.gandiva import searches
from evaluation.gandiva.base import played
from evaluation.gandiva.sharing import packed_gpus
from evaluation.simulations import made


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
