"""``hived replay``: the log of an engine, start by start."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived import Bind, Member, RecordedCluster, Request
from hived.engines.local.devices import spec_for

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
    answer = hived("replay", log)
    assert answer.code == 0, answer.err
    assert answer.out == "8 lines of 2 starts of an engine: byte for byte the same\n"
    lines[6] = lines[6].replace("[0,1]", "[2,3]")
    log.write_text("\n".join(lines) + "\n")
    answer = hived("replay", log)
    assert answer.code == 2
    assert f"{log}:7: not the same" in answer.err


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), (b"", "is empty"), (b"\xff\xfe", "not UTF-8"), (b"hello\n", "not one line of JSON")],
)
def test_no_log(hived: Hived, tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "log.jsonl").write_bytes(content)
    assert words in refused(hived("replay", tmp_path / "log.jsonl"))
