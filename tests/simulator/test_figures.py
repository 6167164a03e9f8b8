"""The figures are there, of the right form, and say what they show; the same bytes in another process."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

import matplotlib as mpl
from matplotlib.text import Text

from hived.simulator import Scenario, Sharing, make_report, run_experiment
from hived.simulator.figures import pick_tenants, write_figures
from hived.simulator.output import write_summary, write_table
from hived.simulator.report import Report
from hived.simulator.tables import jobs_table, runs_table
from hived.spec import parse_spec

from .helpers import Row, nodes_of_8, trace_of, trace_text

SPEC = nodes_of_8(3, {"a": 1, "b": 2})
TRACE = trace_text((f"j{n}", "ab"[n % 2], n * 900, n * 3571 % 9001, [1, 8, 4, 2][n % 4]) for n in range(120))
NAMES = ["queueing-delay-over-time-yarn-cs", "delay-normalised-to-private-yarn-cs"]
DENIED = "area: GPUs denied to tenants by others (%)"


def report_of(trace: str = TRACE, *schemes: Sharing, tenants: tuple[str, ...] = ()) -> Report:
    return make_report(
        run_experiment(
            parse_spec(SPEC, "small"), trace_of(trace), Scenario(schemes=schemes or tuple(Sharing), tenants=tenants)
        )
    )


def write_all(folder: Path) -> Report:
    """Everything that ``hived simulate`` writes."""
    folder.mkdir()
    report = report_of()
    write_table(jobs_table(report.results), folder / "jobs.csv")
    write_table(runs_table(report.results), folder / "runs.csv")
    write_summary(report, folder / "summary.json")
    write_figures(report, folder)
    return report


@contextmanager
def letters() -> Iterator[list[str]]:
    """What is written into figures meanwhile."""
    said: list[str] = []
    draw = Text.draw

    def listening(self: Text, *args: object, **options: object) -> None:
        said.append(self.get_text())
        draw(self, *args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", listening)
        yield said


Written = tuple[Path, Report, list[str]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder, before = tmp_path_factory.mktemp("figures") / "here", dict(mpl.rcParams)
    with letters() as said:
        report = write_all(folder)
    assert dict(mpl.rcParams) == before, "settings of others are left alone"
    return folder, report, said


def test_both_figures_as_png_and_svg(written: Written) -> None:
    folder, _, _ = written
    for name in NAMES:
        assert ElementTree.parse(folder / f"{name}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
        data = (folder / f"{name}.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", data[16:24])
        assert width == 1440, "7.2 inches at 200 dots"
        assert height >= 600


def test_figures_say_what_they_show(written: Written) -> None:
    """Titles say the trace and the load; axes have plain numbers."""
    _, report, said = written
    titles = [text for text in said if "offered load" in text]
    assert titles
    for words in ("trace any: 120 jobs", f"offered load {report.load:.2f}", "3 nodes, 24 GPUs", "yarn-cs"):
        assert all(words in text for text in titles)
    assert {"Private", "Quota", "HiveD", DENIED} <= set(said)
    assert sorted(pick_tenants(report, "yarn-cs")) == ["a", "b"], "those that sharing changes most"
    assert {"a\ndelay (min)", "b\ndelay (min)"} <= set(said)
    # they once read $\\mathdefault{10^{1}}$, after dollar signs in names had been made harmless
    assert "1" in said
    assert not [word for word in said if "$" in word or "\\" in word]


def test_chosen_tenants_and_schemes(tmp_path: Path) -> None:
    """Nothing is denied without a quota."""
    with letters() as said:
        files = write_figures(report_of(TRACE, Sharing.PRIVATE, Sharing.HIVED, tenants=("b",)), tmp_path)
    assert [path.name for path in files] == [name + ending for name in NAMES for ending in (".png", ".svg")]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert "b\ndelay (min)" in said
    assert not {"a\ndelay (min)", "Quota", DENIED} & set(said)


TEN: list[Row] = [(f"j{n}", "ab"[n % 2], n * 60, 500, 8) for n in range(10)]


@pytest.mark.parametrize(
    ("rows", "schemes", "number"),
    [
        # nothing is compared with private
        pytest.param(TEN, [Sharing.QUOTA, Sharing.HIVED], 2, id="no private"),
        pytest.param(TEN, [Sharing.PRIVATE], 2, id="private", marks=pytest.mark.slow),
        # next to nothing is drawn
        pytest.param([("j", "a", 0, 0, 1)], [], 4, id="no work"),
        pytest.param([("j", "a", 0, 5, 1)], [], 4, id="one job", marks=pytest.mark.slow),
        pytest.param([("j", "a", 0, 5, 1000)], [], 2, id="nothing fits"),
        pytest.param([("j", "a", 0, 5, 16), ("k", "b", 0, 5, 1)], [], 4, id="one fits", marks=pytest.mark.slow),
        pytest.param([("j", "a", 10**9, 10**9, 8)], [], 4, id="far away", marks=pytest.mark.slow),
    ],
)
def test_figures_of_little(tmp_path: Path, rows: list[Row], schemes: list[Sharing], number: int) -> None:
    files = write_figures(report_of(trace_text(rows), *schemes), tmp_path)
    assert len(files) == number
    assert all(path.stat().st_size > 1000 for path in files)


def test_other_hashes_give_the_same_bytes(written: Written, tmp_path: Path) -> None:
    """In another process, which also has another time zone and locale."""
    program = f"from {__name__} import write_all; from pathlib import Path; write_all(Path({str(tmp_path / 'out')!r}))"
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True, capture_output=True)
    here, there = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (written[0], tmp_path / "out")
    )
    assert {".png", ".svg", ".csv", ".json"} == {Path(name).suffix for name in here}
    assert there == here
