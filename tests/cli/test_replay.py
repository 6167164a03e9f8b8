"""``hived replay``: the log of an engine, start by start."""

from __future__ import annotations

from pathlib import Path

from hived import Bind, Member, RecordedCluster, Request
from hived.engines.local.devices import spec_for

from .helpers import Hived


def one_start(name: str) -> list[str]:
    """What an engine logs that starts, runs a job and ends."""
    lines: list[str] = []
    cluster = RecordedCluster(spec_for("node", 4, "GPU", (("a", 4),)), lines.append)
    decision = cluster.schedule(Request(name, "a", members=(Member(1, 2),)))
    assert isinstance(decision, Bind)
    cluster.commit(decision)
    cluster.release(name)
    return lines


def test_the_logs_of_two_starts_replay_one_after_the_other(hived: Hived, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join([*one_start("first"), *one_start("second")]) + "\n")
    answer = hived("replay", log)
    assert answer.code == 0, answer.err
    assert answer.out == "8 lines of 2 starts of an engine: byte for byte the same\n"


def test_a_line_that_was_changed_is_named_by_its_number_in_the_file(hived: Hived, tmp_path: Path) -> None:
    lines = [*one_start("first"), *one_start("second")]
    lines[6] = lines[6].replace("[0,1]", "[2,3]")
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines) + "\n")
    answer = hived("replay", log)
    assert answer.code == 2
    assert f"{log}:7: not the same" in answer.err


def test_what_is_no_log_is_refused(hived: Hived, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert "cannot be read" in hived("replay", log).err
    log.write_text("")
    assert "is empty" in hived("replay", log).err
    log.write_bytes(b"\xff\xfe")
    assert "not UTF-8" in hived("replay", log).err
    log.write_text("hello\n")
    answer = hived("replay", log)
    assert answer.code == 2
    assert "not one line of JSON" in answer.err
