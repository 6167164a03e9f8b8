"""All verbs together: help and its examples, what they load, completion, and docs/reference/command-line.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from hived.cli.app import VERBS, app
from hived.errors import HivedError

from ..helpers import Hived
from .fake import Engine
from .shell import HIVED

LIVE = (
    "submit",
    "ps",
    "top",
    "logs",
    "explain",
    "cancel",
    "events",
    "plan",
    "drain",
    "wait",
    "offer",
    "request",
    "withdraw",
    "trades",
)
TRAINING = ("run", "suspend", "resume", "limit", "migrate", "scale")
KUBERNETES = ("status", "vc", "groups")
MANUAL = Path(__file__).parents[3] / "docs" / "reference" / "command-line.md"
HEAVY = {
    "kubernetes_asyncio",
    "msgspec",
    "prometheus_client",
    "fastapi",
    "uvicorn",
    "numpy",
    "matplotlib",
    "starlette",
    "sse_starlette",
    "playwright",
}


def examples(text: str) -> list[list[str]]:
    """Every ``hived ...`` among lines, as words without ``hived``; what a shell makes of the rest is left out."""
    found = []
    for line in text.splitlines():
        for match in re.finditer(r"(?:^ +|\$\(|&& |^id=\$\()(hived [^|>&#]*)", line):
            words = match.group(1).strip()
            if words.count("(") < words.count(")"):
                words = words.rstrip(")")
            found.append(shlex.split(re.sub(r"\$\(.*", "12", words))[1:])
    return found


def assert_understood(words: list[str]) -> None:
    """A command line that its verb takes; nothing is run."""
    group = typer.main.get_command(app)
    context = group.make_context("hived", list(words), resilient_parsing=False)
    if words[:1] == ["--install-completion"]:
        return
    command: Any = group
    rest = list(words)
    while hasattr(command, "resolve_command"):  # a group of verbs has verbs in turn
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("verb", [*LIVE, *TRAINING, "status", "vc ls", "vc show", "groups"])
def test_help_has_examples_that_are_right(hived: Hived, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_manual_has_every_verb_and_its_examples_are_right() -> None:
    text = MANUAL.read_text(encoding="utf-8")
    found = examples(text.partition("## Jobs")[2].partition("## Exit codes")[0])
    others = {"up", "view", "timeline", "replay", "simulate", "sweep", "reproduce", "spec", "check"}
    assert {words[0] for words in found} == {*LIVE, *TRAINING, *KUBERNETES, *others}
    for words in found:
        assert_understood(words)


def test_an_example_that_is_wrong_would_be_found() -> None:
    assert examples("    id=$(hived submit -q --vc v -- x)\n    a && hived ps -n 3 | head\n") == [
        ["submit", "-q", "--vc", "v", "--", "x"], ["ps", "-n", "3"],
    ]  # fmt: skip
    with pytest.raises(typer.BadParameter.__bases__[0]):
        assert_understood(["ps", "--no-such-option"])


def test_exit_codes_are_told_in_the_help_and_in_the_manual(hived: Hived) -> None:
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


def test_the_overview_shows_every_verb_and_loads_none(hived: Hived) -> None:
    said = hived("--help").out
    for verb in VERBS:
        assert re.search(rf"│ {verb.name} +{re.escape(verb.line[:40])}", said), verb.name
        assert verb.loaded().name == verb.name


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["submit", "--help"],
        ["submit", "--vc", "a", "--", "x"],
        ["ps"],
        ["top"],
        ["logs", "x"],
        ["explain", "x"],
        ["plan", "--vc", "a"],
        ["drain"],
        ["status", "--engine", "http://127.0.0.1:1"],
        ["groups", "--engine", "http://127.0.0.1:1"],
    ],
    ids=" ".join,
)
def test_what_a_verb_does_not_need_is_not_loaded(nobody: Path, arguments: list[str]) -> None:
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print('loaded', *sorted({HEAVY!r} & set(sys.modules))))\n"
        "from hived.cli import main\nmain()"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode in (0, 69)
    assert result.stdout.splitlines()[-1] == "loaded"


# -- completion -------------------------------------------------------------------------------------------------------


def completed(line: str, shell: str = "bash") -> list[str]:
    """What the shell is offered at the end of ``line``."""
    words = line.split(" ")
    environment = {**os.environ, "_HIVED_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        environment |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code = (
        "import sys; sys.argv[0] = 'hived'\n"
        "from hived.cli import main, options\n"
        "options._PATIENCE_S = 60.0  # on a busy machine the engine's answer takes longer than a user waits for it\n"
        "main()"
    )
    result = subprocess.run(
        [*HIVED[:1], "-c", code], env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert result.stderr == ""
    return result.stdout.split()


def test_the_shell_completes_verbs_and_options(nobody: Path) -> None:
    assert completed("hived ca") == ["cancel"]
    assert completed("hived submit --oppor") == ["--opportunistic"]
    assert completed("hived ps --status run") == ["running"]


def test_the_shell_completes_jobs_vcs_and_nodes(engine: Engine) -> None:
    engine.end(engine.add(name="early"))
    engine.add(name="train")
    engine.add(name="sweep")
    assert completed("hived logs ") == ["sweep-3", "train-2", "early-1"]
    assert completed("hived cancel ") == ["sweep-3", "train-2"], "what has ended cannot be cancelled"
    assert completed("hived explain tr") == ["train-2"]
    assert completed("hived explain 3") == ["3"]
    assert completed("hived submit --vc s") == ["speech"]
    assert completed("hived drain ") == ["node-0", "node-1"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_too(engine: Engine, shell: str) -> None:
    engine.add(name="train")
    assert any("train-1" in word for word in completed("hived logs ", shell))


def test_without_an_engine_nothing_is_completed_and_nothing_said(nobody: Path) -> None:
    assert completed("hived logs ") == []
    assert completed("hived submit --vc ") == []


def test_a_name_that_a_shell_would_misread_is_not_offered(engine: Engine) -> None:
    engine.vcs = ["$(reboot)\n", "two words", "plain"]
    assert completed("hived submit --vc ") == ["plain"]
