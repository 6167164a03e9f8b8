"""The figures are there, of the right form, and say what they show."""

from __future__ import annotations

import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

import matplotlib as mpl

from hived.simulator import make_report
from hived.simulator.figures import pick_tenants, write_figures

from .helpers import Experiment, Row, nodes_of_8, simulated, trace_text

SPEC = nodes_of_8(3, {"a": 1, "b": 2})


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    rows: list[Row] = [(f"j{n}", "ab"[n % 2], n * 900, n * 3571 % 9001, [1, 8, 4, 2][n % 4]) for n in range(120)]
    return simulated(tmp_path_factory.mktemp("figures"), SPEC, trace_text(rows))


def drawn(experiment: Experiment, folder: Path, tenants: tuple[str, ...] = ()) -> list[Path]:
    """The figures, with their letters as text."""
    return write_figures(make_report(experiment.results), folder, tenants)


def test_both_figures_are_written_as_png_and_svg(experiment: Experiment, tmp_path: Path) -> None:
    written = drawn(experiment, tmp_path)
    names = ["queueing-delay-over-time-yarn-cs", "delay-normalised-to-private-yarn-cs"]
    assert [path.name for path in written] == [name + ending for name in names for ending in (".png", ".svg")]
    assert sorted(tmp_path.iterdir()) == sorted(written)
    for path in written:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        else:
            data = path.read_bytes()
            assert data[:8] == b"\x89PNG\r\n\x1a\n"
            width, height = struct.unpack(">II", data[16:24])
            assert width == 1440, "7.2 inches at 200 dots"
            assert height >= 600


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written into figures."""
    from matplotlib.text import Text

    said: list[str] = []
    draw = Text.draw

    def listening(self: Text, *args: object, **options: object) -> None:
        said.append(self.get_text())
        draw(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Text, "draw", listening)
    return said


def test_titles_hold_the_trace_and_the_load(experiment: Experiment, tmp_path: Path, letters: list[str]) -> None:
    drawn(experiment, tmp_path)
    load = make_report(experiment.results).load
    titles = [text for text in letters if "offered load" in text]
    assert titles
    assert all("trace trace: 120 jobs" in text and f"offered load {load:.2f}" in text for text in titles)
    assert all("3 nodes, 24 GPUs" in text and "yarn-cs" in text for text in titles)


def test_chosen_tenants_are_shown_over_time(experiment: Experiment, tmp_path: Path, letters: list[str]) -> None:
    drawn(experiment, tmp_path, ("b",))
    assert "b\ndelay (min)" in letters
    assert "a\ndelay (min)" not in letters
    assert {"Private", "Quota", "HiveD"} <= set(letters)


def test_gpus_denied_by_others_are_marked_where_there_are_some(
    experiment: Experiment, tmp_path: Path, letters: list[str]
) -> None:
    words = "area: GPUs denied to tenants by others (%)"
    alone = simulated(tmp_path / "hived", SPEC, experiment.folder / "trace.csv", schemes=["private", "hived"])
    drawn(alone, tmp_path)
    assert words not in letters
    drawn(experiment, tmp_path)
    assert words in letters


def test_tenants_that_sharing_changes_most_are_picked(experiment: Experiment) -> None:
    assert sorted(pick_tenants(make_report(experiment.results), "yarn-cs")) == ["a", "b"]


@pytest.mark.parametrize("schemes", [["private"], ["hived"], ["quota", "hived"], ["private", "hived"]])
def test_any_choice_of_schemes_gives_its_figures(tmp_path: Path, schemes: list[str]) -> None:
    rows: list[Row] = [(f"j{n}", "ab"[n % 2], n * 60, 500, 8) for n in range(10)]
    found = simulated(tmp_path / "run", SPEC, trace_text(rows), schemes=schemes)
    written = drawn(found, tmp_path)
    assert len(written) == (4 if "private" in schemes and len(schemes) > 1 else 2)


@pytest.mark.parametrize(
    "rows",
    [
        [("j", "a", 0, 5, 1)],
        [("j", "a", 0, 0, 1)],
        [("j", "a", 0, 5, 1000)],
        [("j", "a", 0, 5, 16), ("k", "b", 0, 5, 1)],
        [("j", "a", 10**9, 10**9, 8)],
    ],
    ids=["one job", "no work", "nothing fits", "one tenant is left out", "far away"],
)
def test_a_trace_with_next_to_nothing_still_gives_figures(tmp_path: Path, rows: list[Row]) -> None:
    for path in drawn(simulated(tmp_path / "run", SPEC, trace_text(rows)), tmp_path):
        assert path.stat().st_size > 1000


def test_drawing_leaves_the_settings_of_others_alone(experiment: Experiment, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    drawn(experiment, tmp_path)
    assert dict(mpl.rcParams) == before


def test_axes_are_labelled_with_plain_numbers(experiment: Experiment, tmp_path: Path, letters: list[str]) -> None:
    """They once read ``$\\mathdefault{10^{1}}$``, after dollar signs in names had been made harmless."""
    drawn(experiment, tmp_path)
    assert "1" in letters
    assert not [word for word in letters if "$" in word or "\\" in word]
