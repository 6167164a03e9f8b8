"""The spec that an engine goes by: shown, compared, and another one in its place."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from hived.server.schema import AffectedJob, Reconfigured
from hived.spec import parse_spec

from ...server.fakes import SPEC, FakeService, Running
from ..helpers import Engine, Hived, refused
from .shell import Terminal

OTHER = SPEC.replace("speech:", "research:").replace("vision:\n", "vision:\n    members: [ann]\n")
CHANGES = ["vision: members ann (was none)", "research is new", "speech is no more"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A spec with other virtual clusters."""
    path = tmp_path / "other.yaml"
    path.write_text(OTHER, encoding="utf-8")
    return path


def loses(many: int = 1, requeued: int = 0) -> Reconfigured:
    """A new spec that takes the cells of so many jobs."""

    def jobs(name: str, count: int, why: str) -> list[AffectedJob]:
        return [AffectedJob(name=f"{name}-{n}", vc="speech", gpus=2, why=why) for n in range(count)]

    return Reconfigured(
        dry_run=False,
        kept=["a-1", "b-2"],
        downgraded=jobs("train", many, "speech \x1b[2J is no more"),
        on_removed_devices=[],
        requeued=jobs("next", requeued, "GPUs that were kept for it are kept no more"),
        warnings=["this machine has no user \x1b[2Jann"],
    )


def test_show_and_apply_again(hived: Hived, engine: FakeService, tmp_path: Path) -> None:
    """What is shown, put back, changes nothing, and nothing is asked of the engine."""
    shown = hived("spec", "show")
    assert (shown.code, shown.err) == (0, "")
    assert parse_spec(shown.out, "shown") == parse_spec(SPEC, "shown")
    told = json.loads(hived("spec", "show", "-o", "json").out)
    assert (told["text"], told["source"]) == (shown.out, "a test")
    path = tmp_path / "f.yaml"
    path.write_text(shown.out, encoding="utf-8")
    answer = hived("spec", "diff", path)
    assert (answer.code, answer.out, answer.err) == (0, "", "the spec in force is the same\n")
    engine.reconfigured = loses()
    answer = hived("spec", "apply", path)
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.endswith("the spec in force is the same\n")
    assert engine.applied == []


def test_diff(hived: Hived, engine: FakeService, file: Path) -> None:
    """It exits as diff does."""
    answer = hived("spec", "diff", file)
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.splitlines() == CHANGES
    answer = hived("spec", "diff", file, "-o", "json")
    assert answer.code == 1
    assert json.loads(answer.out) == [
        {"vc": "vision", "key": "members", "was": [], "has": ["ann"]},
        {"vc": "research", "key": "new", "was": None, "has": None},
        {"vc": "speech", "key": "gone", "was": None, "has": None},
    ]
    assert hived("spec", "diff", file, "-o", "yaml").code == 1
    assert engine.applied == []


def test_apply_without_loss_asks_nothing(hived: Hived, engine: FakeService, file: Path) -> None:
    answer = hived("spec", "apply", file)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [*CHANGES, "0 jobs run on as before"]
    assert engine.applied == [OTHER]
    engine.spec_text = SPEC
    told = json.loads(hived("spec", "apply", file, "-o", "json").out)
    assert (told["dry_run"], told["kept"]) == (False, [])


def test_apply_asks_before_jobs_lose_something(hived: Hived, engine: FakeService, file: Path) -> None:
    engine.reconfigured = loses(12, 1)
    answer = hived("spec", "apply", file)
    assert (answer.code, answer.out) == (2, "")
    warning, *lines = answer.err.splitlines()
    assert warning == r"hived: this machine has no user \x1b[2Jann"
    assert lines[0] == "hived: 12 jobs would run on as opportunistic:"
    assert lines[1] == r"  train-0 (2 GPUs of speech): speech \x1b[2J is no more"
    assert lines[-4:] == [
        "  and 2 more",
        "1 job would wait in line again:",
        "  next-0 (2 GPUs of speech): GPUs that were kept for it are kept no more",
        "  nothing was changed; --yes applies it all the same",
    ]
    assert engine.applied == []
    answer = hived("spec", "apply", file, "--yes")
    assert (answer.code, engine.applied) == (0, [OTHER])
    assert answer.err == "hived: this machine has no user \\x1b[2Jann\n"
    lines = answer.out.splitlines()
    assert lines[: len(CHANGES) + 2] == [*CHANGES, "2 jobs run on as before", "12 jobs run on as opportunistic:"]
    assert lines[-2] == "1 job waits in line again:"
    assert sum("train-" in line for line in lines) == 12


def test_dry_run_changes_nothing(hived: Hived, engine: FakeService, file: Path) -> None:
    engine.reconfigured = loses()
    answer = hived("spec", "apply", file, "--dry-run")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        *CHANGES,
        "2 jobs would run on as before",
        "1 job would run on as opportunistic:",
        r"  train-0 (2 GPUs of speech): speech \x1b[2J is no more",
    ]
    told = yaml.safe_load(hived("spec", "apply", file, "--dry-run", "-o", "yaml").out)
    assert (told["dry_run"], [job["name"] for job in told["downgraded"]]) == (True, ["train-0"])
    assert engine.applied == []


@pytest.mark.parametrize(("key", "code", "applied"), [("y\r", 0, [OTHER]), ("n\r", 2, [])])
def test_question_on_a_terminal(
    running: Running, engine: FakeService, file: Path, key: str, code: int, applied: list[str]
) -> None:
    engine.reconfigured = loses()
    with Terminal(["spec", "apply", file]) as terminal:
        terminal.until("apply it all the same? [y/N]")
        assert "train-0 (2 GPUs of speech)" in terminal.seen
        terminal.press(key)
        assert terminal.code() == code
    assert engine.applied == applied
    assert ("nothing was changed" in terminal.seen) is (not applied)


def test_wrong_file_is_named(hived: Hived, engine: FakeService, file: Path) -> None:
    """Before the engine is asked."""
    engine.fails = AssertionError("asked")
    file.write_text(OTHER.replace("childCellType", "childCelType", 1), encoding="utf-8")
    for verb in ("diff", "apply"):
        answer = hived("spec", verb, file)
        assert (answer.code, answer.out) == (2, "")
        assert re.search(rf"{re.escape(str(file))}:\d+", answer.err), answer.err
        assert "childCelType" in answer.err
        assert "cannot read the spec" in refused(hived("spec", verb, file.with_name("gone.yaml")))


def test_spec_of_a_real_engine(hived: Hived, tmp_path: Path) -> None:
    """Put in its place and back, under a job that stays; who did it is said."""
    state = ("--state", tmp_path / "state")
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    with Engine(tmp_path, "--devices", "8", "--vc", "a=4", "--vc", "b=4", "--policy", "a=fair", "-q"):
        shown = hived("spec", "show", *state)
        before.write_text(shown.out, encoding="utf-8")
        assert "policy: fair" in shown.out
        assert hived("spec", "check", before).code == 0
        assert hived("spec", "diff", before, *state).code == 0
        after.write_text(re.sub(r"^  b:", "  c:", shown.out, flags=re.MULTILINE), encoding="utf-8")
        hived("submit", *state, "--vc", "b", "--gpus", 4, "--", "sleep", "300")
        answer = hived("spec", "apply", after, "--dry-run", *state)
        assert answer.code == 0, answer.err
        assert "sleep-1 (4 GPUs of b): virtual cluster b is no more" in answer.out
        assert hived("spec", "apply", after, *state).code == 2
        assert hived("spec", "diff", after, *state).code == 1
        assert hived("spec", "apply", after, *state, "--yes").code == 0
        assert hived("spec", "diff", after, *state).code == 0
        assert "the spec that " in (said := hived("context", "show", *state).out)
        assert " applied, loaded " in said
        assert "\nkept    files of a job: for ever (--keep); of what a task prints: all (--most-output)\n" in said
        assert "\njobs    run as " in said
        job = json.loads(hived("ps", *state, "-o", "json").out)["jobs"][0]
        assert (job["state"], job["kind"]) == ("running", "opportunistic")
        answer = hived("spec", "apply", before, *state)
        assert (answer.code, "c is no more" in answer.out) == (0, True)
        job = json.loads(hived("ps", *state, "-o", "json").out)["jobs"][0]
        assert job["state"] == "running"
        hived("cancel", *state, 1)
        hived("wait", *state, 1)
    with Engine(tmp_path, "-q"):  # as at the last start
        assert hived("spec", "diff", before, *state).code == 0
