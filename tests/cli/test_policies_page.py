"""The pages on policies are true: their modules and commands run, and their tables have what there is."""

from __future__ import annotations

import csv
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hived.policies import policy_names
from hived.scheduling import JobView, Policy
from hived.spec import parse_spec

from .helpers import JOBS, NODES, Hived

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join((DOCS / kind / "policies.md").read_text(encoding="utf-8") for kind in ("reference", "howto"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def column(title: str) -> set[str]:
    """The words in code in the first column of the table whose header starts so."""
    rows = PAGE.partition(f"\n| {title} |")[2].partition("\n\n")[0].splitlines()[2:]
    return {word.partition("(")[0] for row in rows for word in re.findall(r"`([^`]+)`", row.split("|")[1])}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's modules, a spec and a trace."""
    shortest, least = blocks("python")
    for name, text in {"my_policy.py": shortest, "least.py": least, "spec.yaml": NODES, "trace.csv": JOBS}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in ("my_policy", "least"):
        sys.modules.pop(name, None)


def times(results: str) -> list[tuple[str, ...]]:
    """What jobs.csv says, but for the name of the policy."""
    with Path(results, "jobs.csv").open(encoding="utf-8") as file:
        return [(row[0], *row[2:]) for row in csv.reader(file)]


def test_commands_and_modules_of_the_page(hived: Hived, folder: Path) -> None:
    commands = [line for block in blocks("console") for line in block.splitlines()]
    assert len(commands) == 5
    for command in commands:
        name, *arguments = shlex.split(command)
        assert name == "hived"
        answer = hived(*arguments, "--no-figures")
        assert answer.code == 0, answer.err
    assert times("mine") == times("theirs")
    assert times("mine") != times("least")
    assert len(blocks("python")[0].splitlines()) <= 15


def test_tables_of_the_page() -> None:
    assert column("name") == set(policy_names())
    assert column("field") == set(JobView._fields)
    answers = {name for name in vars(Policy) if not name.startswith("_")}
    assert column("answer") == answers


def test_spec_of_the_page() -> None:
    (vcs,) = blocks("yaml")
    spec = yaml.safe_load(NODES)
    spec["virtualClusters"] = yaml.safe_load(vcs)["virtualClusters"]
    assert parse_spec(yaml.safe_dump(spec), "any").virtual_clusters[0].policy == "greedy:patience=3600"
