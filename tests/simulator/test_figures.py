"""The figures are there, of the right form, and say what they show; the same bytes in another process."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

import matplotlib as mpl

from hived.simulator import Options, make_report, run_experiment
from hived.simulator.figures import pick_tenants, write_figures
from hived.simulator.output import write_jobs, write_runs, write_summary
from hived.spec import parse_spec

from .helpers import Experiment, Row, nodes_of_8, simulated, trace_of, trace_text

SPEC = nodes_of_8(3, {"a": 1, "b": 2})
TRACE = trace_text((f"j{n}", "ab"[n % 2], n * 900, n * 3571 % 9001, [1, 8, 4, 2][n % 4]) for n in range(120))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return simulated(tmp_path_factory.mktemp("figures"), SPEC, TRACE)


def drawn(experiment: Experiment, folder: Path, tenants: tuple[str, ...] = ()) -> list[Path]:
    """The figures, with their letters as text."""
    return write_figures(make_report(experiment.results), folder, tenants)


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


DENIED = "area: GPUs denied to tenants by others (%)"


def test_both_figures_as_png_and_svg(experiment: Experiment, tmp_path: Path, letters: list[str]) -> None:
    """Titles say the trace and the load, axes have plain numbers; settings of others are left alone."""
    before = dict(mpl.rcParams)
    written = drawn(experiment, tmp_path)
    assert dict(mpl.rcParams) == before
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
    report = make_report(experiment.results)
    titles = [text for text in letters if "offered load" in text]
    assert titles
    for words in ("trace trace: 120 jobs", f"offered load {report.load:.2f}", "3 nodes, 24 GPUs", "yarn-cs"):
        assert all(words in text for text in titles)
    assert {"Private", "Quota", "HiveD", DENIED} <= set(letters)
    assert sorted(pick_tenants(report, "yarn-cs")) == ["a", "b"], "those that sharing changes most"
    assert {"a\ndelay (min)", "b\ndelay (min)"} <= set(letters)
    # they once read $\\mathdefault{10^{1}}$, after dollar signs in names had been made harmless
    assert "1" in letters
    assert not [word for word in letters if "$" in word or "\\" in word]


def test_chosen_tenants_and_schemes(experiment: Experiment, tmp_path: Path, letters: list[str]) -> None:
    """Nothing is denied without a quota."""
    alone = simulated(tmp_path / "hived", SPEC, experiment.folder / "trace.csv", schemes=["private", "hived"])
    assert len(drawn(alone, tmp_path, ("b",))) == 4
    assert "b\ndelay (min)" in letters
    assert not {"a\ndelay (min)", "Quota", DENIED} & set(letters)


@pytest.mark.parametrize("schemes", [["private"], ["hived"], ["quota", "hived"]])
def test_figures_of_any_schemes(tmp_path: Path, schemes: list[str]) -> None:
    rows: list[Row] = [(f"j{n}", "ab"[n % 2], n * 60, 500, 8) for n in range(10)]
    found = simulated(tmp_path / "run", SPEC, trace_text(rows), schemes=schemes)
    assert len(drawn(found, tmp_path)) == 2, "nothing is compared with private"


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([("j", "a", 0, 5, 1)], id="one job"),
        pytest.param([("j", "a", 0, 0, 1)], id="no work"),
        pytest.param([("j", "a", 0, 5, 1000)], id="nothing fits"),
        pytest.param([("j", "a", 0, 5, 16), ("k", "b", 0, 5, 1)], id="one tenant is left out", marks=pytest.mark.slow),
        pytest.param([("j", "a", 10**9, 10**9, 8)], id="far away", marks=pytest.mark.slow),
    ],
)
def test_figures_of_next_to_nothing(tmp_path: Path, rows: list[Row]) -> None:
    for path in drawn(simulated(tmp_path / "run", SPEC, trace_text(rows)), tmp_path):
        assert path.stat().st_size > 1000


def write_all(folder: Path) -> None:
    """Everything that ``hived simulate`` writes."""
    folder.mkdir()
    report = make_report(run_experiment(parse_spec(SPEC, "small"), trace_of(TRACE), Options()))
    write_jobs(report.results, folder / "jobs.csv")
    write_runs(report.results, folder / "runs.csv")
    write_summary(report, folder / "summary.json")
    write_figures(report, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_other_hashes_give_the_same_bytes(tmp_path: Path) -> None:
    """In another process, which also has another time zone and locale."""
    write_all(tmp_path / "here")
    reference = contents(tmp_path / "here")
    assert {".png", ".svg", ".csv", ".json"} == {Path(name).suffix for name in reference}
    program = f"from {__name__} import write_all; from pathlib import Path; write_all(Path({str(tmp_path / 'out')!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True, capture_output=True)
    assert contents(tmp_path / "out") == reference
