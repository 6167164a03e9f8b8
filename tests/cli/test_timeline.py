"""``hived timeline``: a picture of a folder of results, or one line that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.policies import Gandiva
from tests.server.results.test_sharing import source
from tests.simulator.sharing import job
from tests.simulator.test_timeline import comments

from .helpers import Hived

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of six jobs that take turns on four GPUs, under private and hived."""
    folder = tmp_path_factory.mktemp("timeline")
    source(folder, [job(f"j{n}", 1, 60) for n in range(6)], Gandiva(packs=False))
    return folder / "out"


def test_timeline_of_a_node(hived: Hived, out: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    answer = hived("timeline", out, "--rates", "-o", file)
    assert (answer.code, answer.out) == (0, f"{file}\n")
    assert {"n0: HiveD (gandiva)", "j0  67%", "j2  33%", "GPU 3"} <= comments(file)
    private = tmp_path / "b.svg"
    asked = ("--scheme", "private", "--policy", "gandiva", "--node", "a-node-0", "--window", "0:0.05", "-o", private)
    assert hived("timeline", out, *asked).code == 0
    assert "a-node-0: Private clusters (gandiva)" in comments(private)


def test_pixels_of_a_png(hived: Hived, out: Path, tmp_path: Path) -> None:
    assert hived("timeline", out, "-o", tmp_path / "a.png").code == 0
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes((tmp_path / "a.png").read_bytes()[16:20]) == 1800


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-o", "a.pdf"), "a.pdf: a timeline is written as .svg or .png"),
        (("-o", "none/a.svg"), "there is no folder none"),
        (("--scheme", "quota"), "quota: not in these results, which have private gandiva, hived gandiva"),
        (("--policy", "srtf"), "srtf: not in these results"),
        (("--node", "n9"), "node n9: no such node in HiveD (gandiva); there is n0"),
        (("--window", "x"), "give two days, DAY:DAY"),
        (("--window", "3:2"), "the earlier one first"),
        (("--window", "3:4"), "window 3:4: no job is on n0 then"),
    ],
)
def test_wrong_input(
    hived: Hived, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = hived("timeline", out, *options)
    assert answer.code == 2
    assert words in " ".join(answer.err.split())
    assert "holds no results" in hived("timeline", tmp_path, "-o", tmp_path / "a.svg").err
    assert not list(tmp_path.iterdir())
