"""``hived replay`` and ``timeline``: a log carried out again, a picture; or why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived import Bind, Member, RecordedCluster, Request
from hived.engines.local.devices import spec_for
from hived.policies import Gandiva
from tests.server.results.test_sharing import source
from tests.simulator.sharing import job
from tests.simulator.test_timeline import comments

from .helpers import Hived, refused


def one_start(name: str) -> list[str]:
    """What an engine logs that starts, runs a job and ends."""
    lines: list[str] = []
    cluster = RecordedCluster(spec_for("node", 4, "GPU", (("a", 4),)), lines.append)
    decision = cluster.schedule(Request(name, "a", members=(Member(1, 2),)))
    assert isinstance(decision, Bind)
    cluster.commit(decision)
    cluster.release(name)
    return lines


def test_two_starts_one_after_the_other(hived: Hived, tmp_path: Path) -> None:
    """A line that was changed is named by its number in the file."""
    log = tmp_path / "log.jsonl"
    lines = [*one_start("first"), *one_start("second")]
    log.write_text("\n".join(lines) + "\n")
    answer = hived("sim", "replay", log)
    assert answer.code == 0, answer.err
    assert answer.out == "8 lines of 2 starts of an engine: byte for byte the same\n"
    lines[6] = lines[6].replace("[0,1]", "[2,3]")
    log.write_text("\n".join(lines) + "\n")
    answer = hived("sim", "replay", log)
    assert answer.code == 2
    assert f"{log}:7: not the same" in answer.err


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), (b"", "is empty"), (b"\xff\xfe", "not UTF-8"), (b"hello\n", "not one line of JSON")],
)
def test_no_log(hived: Hived, tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "log.jsonl").write_bytes(content)
    assert words in refused(hived("sim", "replay", tmp_path / "log.jsonl"))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of six jobs that take turns on four GPUs, under private and hived."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("timeline")
    source(folder, [job(f"j{n}", 1, 60) for n in range(6)], Gandiva(packs=False))
    return folder / "out"


def test_timeline_of_a_node(hived: Hived, out: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    answer = hived("sim", "timeline", out, "--rates", "-o", file)
    assert (answer.code, answer.out) == (0, f"{file}\n")
    assert {"n0: HiveD (gandiva)", "j0  67%", "j2  33%", "GPU 3"} <= comments(file)
    private = tmp_path / "b.svg"
    asked = ("--scheme", "private", "--policy", "gandiva", "--node", "a-node-0", "--window", "0:0.05", "-o", private)
    assert hived("sim", "timeline", out, *asked).code == 0
    assert "a-node-0: Private clusters (gandiva)" in comments(private)


def test_pixels_of_a_png(hived: Hived, out: Path, tmp_path: Path) -> None:
    assert hived("sim", "timeline", out, "-o", tmp_path / "a.png").code == 0
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
def test_wrong_timeline(
    hived: Hived, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = hived("sim", "timeline", out, *options)
    assert answer.code == 2
    assert words in " ".join(answer.err.split())
    assert "holds no results" in hived("sim", "timeline", tmp_path, "-o", tmp_path / "a.svg").err
    assert not list(tmp_path.iterdir())
