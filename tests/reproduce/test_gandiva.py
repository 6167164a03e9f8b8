"""Gandiva's evaluation, quickly: every experiment runs, and what is simulated event by event has the paper's shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.reproduce.command import reproduce
from hived.reproduce.experiment import Shape
from hived.reproduce.gandiva import EXPERIMENTS, table3
from hived.reproduce.gandiva.base import job, play
from hived.reproduce.gandiva.fig15 import packed_gpus
from hived.reproduce.papers import Paper


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gandiva")
    report = reproduce(out, paper=Paper.GANDIVA, quick=True, processes=2)
    shapes = {name: shape for name, _, shape in report.shapes()}
    assert shapes.keys() == {experiment.name for experiment in EXPERIMENTS}
    assert all(shapes[f"fig{number}"] is Shape.HOLDS for number in range(7, 12))
    return out


def test_the_report_has_all_figures(folder: Path) -> None:
    text = (folder / "index.md").read_text(encoding="utf-8")
    for number in (7, 8, 9, 10, 11, 14, 15, 17):
        assert f"](gandiva-fig{number}.png)" in text
        assert (folder / f"gandiva-fig{number}.png").stat().st_size > 5_000


def test_results_of_one_paper_are_continued_not_mixed(folder: Path) -> None:
    before = (folder / "index.md").read_bytes()
    counts: list[tuple[int, int]] = []
    reproduce(
        folder, paper=Paper.GANDIVA, quick=True, processes=1, finished=lambda done, total: counts.append((done, total))
    )
    assert (folder / "index.md").read_bytes() == before


def test_the_line_through_the_row_of_4_gpus_is_that_of_the_paper() -> None:
    each, once = table3.fitted(table3.GANDIVA[4], 4)
    assert each / 4 == pytest.approx(0.96, abs=0.01)
    assert once == pytest.approx(35, abs=1)
    assert table3.predicted(each, once, 4) == pytest.approx(table3.GANDIVA[4], rel=0.02)


def test_gpus_with_packed_jobs_are_counted_by_their_time() -> None:
    packed = play([job(f"j{n}", 1, 300, model="VAE") for n in range(5)], 1, "gandiva")
    alone = play([job(f"j{n}", 1, 300, model="LSTM") for n in range(4)], 1, "gandiva")
    assert packed_gpus(alone) == 0
    assert 0.9 < packed_gpus(packed) <= 4
