"""All verbs together: their help, the examples of help and pages, what they load, and completion."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from hived.cli.app import VERBS, Verb, app
from hived.errors import HivedError

from ...server.fakes import FakeService
from ..helpers import Completed, Hived

ROOT = Path(__file__).parents[3]
MANUAL = ROOT / "docs" / "reference" / "command-line.md"
#: the names by which programs check specs and simulate
CONTRACT = {"check": "spec check", "simulate": "sim run"}
OFFLINE = (
    "spec check", "sim run", "sim sweep", "spec from-quotas", "spec from-demand", "trace generate", "trace describe",
    "sim timeline", "sim view",
)  # fmt: skip


def verbs() -> list[str]:
    """All of them, those of nouns with the noun, and not the hidden ones."""
    return [
        f"{verb.name} {below.name}" if below is not verb else verb.name
        for verb in VERBS
        if not verb.hidden
        for below in verb.verbs or (verb,)
    ]


LIVE = [
    verb
    for verb in verbs()
    if verb not in {*OFFLINE, "up", "serve", "sim replay", "context ls", "context use", "context rm"}
]
HEAVY = {
    "kubernetes_asyncio", "msgspec", "prometheus_client", "fastapi", "uvicorn", "numpy", "matplotlib", "starlette",
    "sse_starlette", "playwright",
}  # fmt: skip


def examples(text: str) -> list[list[str]]:
    """Every ``hived ...`` among lines, as words without ``hived``; what a shell makes of the rest is left out."""
    found = []
    fenced = False
    for line in text.splitlines():
        fenced = line == "```console" or (fenced and line != "```")
        for match in re.finditer(r"(?:^ +(?:\$ )?|\$\(|&& |^id=\$\()(hived [^|>&#;]*)", " " * fenced + line):
            words = match.group(1).strip()
            if words.count("(") < words.count(")"):
                words = words.rstrip(")")
            found.append(shlex.split(re.sub(r"\$\(.*", "12", words))[1:])
    return found


def assert_understood(words: list[str]) -> None:
    """A command line that its verb takes; nothing is run."""
    group = typer.main.get_command(app)
    if words[:1] == ["--install-completion"]:
        return
    context = group.make_context("hived", list(words), resilient_parsing=False)
    command: Any = group
    rest = list(words)
    while hasattr(command, "resolve_command"):  # a group of verbs has verbs in turn
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("verb", LIVE)
def test_examples_of_the_help(hived: Hived, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    answer = hived(*verb.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    section = answer.out.partition("Examples:")[2].partition("╭")[0]
    found = examples(section)
    assert len([line for line in section.splitlines() if line.strip()]) >= 2
    assert all(line.strip() == "" or "hived" in line for line in section.splitlines()), "no example is broken into two"
    assert [words for words in found if " ".join(words).startswith(verb)]
    for words in found:
        assert_understood(words)


@pytest.mark.parametrize("verb", OFFLINE)
def test_example_of_the_help(hived: Hived, verb: str) -> None:
    answer = hived(*verb.split(), "--help")
    assert answer.code == 0
    assert f"Example: hived {verb}" in " ".join(answer.out.split())


def test_examples_of_the_pages() -> None:
    """Every verb has an example in README or a page, and each is understood."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = [words for page in pages for words in examples(page.read_text(encoding="utf-8"))]
    for words in found:
        assert_understood(words)
    shown = {" ".join(words[:count]) for words in found for count in (1, 2)}
    assert {verb for verb in verbs() if not verb.startswith("context")} <= shown
    assert {"context add", "context use", "context show"} <= shown


def test_thirty_words_at_the_top() -> None:
    assert len([verb for verb in VERBS if not verb.hidden]) <= 30
    assert {verb.name for verb in VERBS if verb.hidden} == set(CONTRACT)


@pytest.mark.parametrize("name", CONTRACT)
def test_contract_is_the_same_verb(name: str) -> None:
    by_name = {verb.name: verb for verb in VERBS}
    noun, verb = CONTRACT[name].split()
    same = next(below for below in by_name[noun].verbs if below.name == verb)
    hidden = by_name[name]
    assert (hidden.module, hidden.function or hidden.name) == (same.module, same.function)


def test_exit_codes_are_documented(hived: Hived) -> None:
    said = " ".join(hived("--help").out.split())
    table = MANUAL.read_text(encoding="utf-8").partition("## Exit codes")[2]
    kinds: list[type[HivedError]] = [HivedError]
    codes = {124, 130, 143}
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind is not HivedError:
            codes.add(kind.exit_code)
    for code in codes:
        assert re.search(rf"\b{code} \w", said), code
        assert f"| {code} |" in table, code


@pytest.mark.parametrize("width", [80, 120])
def test_overview_has_every_verb(hived: Hived, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    said = hived("--help").out
    assert all(len(line) <= width for line in said.splitlines())
    for verb in VERBS:
        assert bool(re.search(rf"│ {verb.name} +{re.escape(verb.line[:40])}", said)) is not verb.hidden, verb.name
        assert verb.loaded().name == verb.name
        for below in verb.verbs:
            assert below.loaded().name == below.name


@pytest.mark.parametrize("noun", [verb for verb in VERBS if verb.verbs], ids=lambda verb: verb.name)
def test_noun_alone_shows_its_verbs(hived: Hived, noun: Verb) -> None:
    answer = hived(noun.name)
    assert answer.code == 0
    for below in noun.verbs:
        assert re.search(rf"│ {below.name} +{re.escape(below.line[:40])}", answer.out), below.name


def test_version_and_form(hived: Hived) -> None:
    assert hived("--version").out in [
        f"hived {version('hived-scheduler')} ({form})\n" for form in ("compiled", "plain Python")
    ]


def test_verbs_load_what_they_need(nobody: Path) -> None:
    """None of these verbs, one after another in a process, loads what a server or a simulation needs."""
    verbs = [
        "--help", "--version", "submit --help", "submit --vc a -- x", "ps", "top", "logs x", "explain x",
        "plan --vc a", "drain", "context show --engine http://127.0.0.1:1", "vc ls --engine http://127.0.0.1:1",
        "devices", "trade ls", "context ls",
    ]  # fmt: skip
    code = f"""
import sys
from importlib.metadata import version
from hived.cli import main
for verb in {verbs!r}:
    sys.argv = ["hived", *verb.split()]
    try:
        main()
    except SystemExit as stop:
        assert stop.code in (0, None, 69), verb
    assert not {HEAVY!r} & set(sys.modules), verb
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# -- completion -------------------------------------------------------------------------------------------------------


def test_verbs_and_options_are_completed(completed: Completed, nobody: Path) -> None:
    """And without an engine nothing else, without a word."""
    assert completed("hived ca") == ["cancel"]
    assert completed("hived submit --oppor") == ["--opportunistic"]
    assert completed("hived ps --status run") == ["running"]
    assert completed("hived logs ") == []
    assert completed("hived submit --vc ") == []


def test_jobs_vcs_and_nodes_are_completed(completed: Completed, engine: FakeService) -> None:
    engine.end(engine.add(name="early"))
    engine.add(name="train")
    engine.add(name="sweep")
    assert completed("hived logs ") == ["sweep-3", "train-2", "early-1"]
    assert completed("hived cancel ") == ["sweep-3", "train-2"], "what has ended cannot be cancelled"
    assert completed("hived explain tr") == ["train-2"]
    assert completed("hived explain 3") == ["3"]
    assert completed("hived submit --vc s") == ["speech"]
    assert completed("hived drain ") == ["node-0", "node-1"]
    for shell in ("zsh", "fish"):
        assert any("train-2" in word for word in completed("hived logs ", shell))
    engine.names_of_vcs = ["$(reboot)\n", "two words", "plain"]
    assert completed("hived submit --vc ") == ["plain"], "a shell would misread the others"
