"""Files that a forge, a commit hook or a release reads: what they name exists. They cannot run here."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from tools.go_tools import program

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (GITHUB / "workflows").iterdir()}
#: modules of the workflows that are no part of the project
OTHERS = {"pip", "build", "cibuildwheel"}


def sessions() -> set[str]:
    """The names of the sessions of nox."""
    found = set()
    for function in ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8")).body:
        for decorator in getattr(function, "decorator_list", ()):
            named = re.search(r"name='([\w-]+)'", ast.unparse(decorator))
            found.add(named[1] if named else function.name)  # type: ignore[attr-defined]
    return found


def tiers() -> dict[str, list[str]]:
    """The sessions of the workflow of tiers, with the paths that they are run for."""
    lines = (line.split() for line in WORKFLOWS["tiers"]["env"]["TIERS"].splitlines())
    return {session: paths for session, *paths in lines}


def steps(workflow: Any) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else yaml.safe_dump(value, width=10_000)


def test_sessions_are_all_run() -> None:
    runs = "\n".join(step.get("run", "") for workflow in WORKFLOWS.values() for step in steps(workflow))
    named = set(re.findall(r"nox -s ([\w-]+)", runs)) | set(tiers()) | set(re.findall(r"sessions\+=\((\w+)\)", runs))
    assert named == sessions()


def test_extras_exist() -> None:
    """Those that are installed by the sessions and in the image."""
    extras: set[str] = set()
    for name in ("noxfile.py", "tools/lock.py"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for found in re.findall(r"\.\[([\w,-]+)\]|_tier\(session, \"([\w-]+)\"", text):
            extras |= set("".join(found).split(","))
    assert {"dev", "dev-torch", "kubernetes"} <= extras <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("name", [*WORKFLOWS, "pre-commit"])
def test_commands_exist(name: str) -> None:
    """Modules that are run, and files that are named; ``*`` is any."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    text = text_of(WORKFLOWS.get(name, hooks))
    for module in re.findall(r"python -m ([\w.]+)", text):
        path = ROOT.joinpath(*module.split("."))
        assert module in OTHERS or path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    paths = re.findall(r"(?<![\w/.$-])(?:deploy|tools|tests|docs|benchmarks|src)/[\w./*-]*\w", text)
    paths += re.findall(r"\b(?:pyproject\.toml|CHANGELOG\.md|mkdocs\.yml|README\.md|CONTRIBUTING\.md)\b", text)
    assert [path for path in paths if not any(ROOT.glob(path))] == []


def test_tiers_are_run_for_their_code() -> None:
    named = {path for paths in tiers().values() for path in paths}
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_may_do_little(name: str) -> None:
    """It reads, and what it may do more its job says; actions have versions; runs are not left behind."""
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    assert all(job["timeout-minutes"] <= 360 for job in workflow["jobs"].values())
    more = {job for job, found in workflow["jobs"].items() if "permissions" in found}
    assert more == ({"image", "publish", "site"} if name == "release" else set())
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", step.get("uses", "a/b@v1"))
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", "")  # what an event says is no code


def test_pythons_are_all_tested() -> None:
    tested = WORKFLOWS["tests"]["jobs"]["fast"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    wheels = [step["env"]["CIBW_BUILD"] for step in steps(WORKFLOWS["release"]) if "CIBW_BUILD" in step.get("env", {})]
    assert tested == named
    assert wheels == [" ".join(f"cp{version.replace('.', '')}-manylinux_*" for version in tested)]
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_forms_of_issues() -> None:
    """They have what the forge wants; a bug is told with version, spec and explanation."""
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml")}
    assert set(forms.pop("config")) == {"blank_issues_enabled", "contact_links"}
    for form in forms.values():
        assert set(form) == {"name", "description", "labels", "body"}
        fields = [one for one in form["body"] if one["type"] != "markdown"]
        assert len({one["id"] for one in fields}) == len(fields)
        assert all(one["attributes"]["label"] for one in fields)
    assert {"version", "spec", "explain"} <= {one.get("id") for one in forms["bug"]["body"]}


def test_one_address() -> None:
    """The project's; what names another repository of its own is wrong."""
    address = PROJECT["urls"]["Homepage"]
    files = ["SECURITY.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "docs/howto/deploying.md"]
    files += [str(path.relative_to(ROOT)) for path in GITHUB.rglob("*.yml")]
    found = {
        url for name in files for url in re.findall(r"https://github\.com/[\w-]+/hived\b", (ROOT / name).read_text())
    }
    assert found == {address}
    assert all(url.startswith((address, "https://hived-py.github.io/")) for url in PROJECT["urls"].values())


@pytest.mark.cluster
def test_actionlint() -> None:
    """Without the checkers of shell and Python that it would call where they happen to be."""
    command: list[str | Path] = [
        program("actionlint"),
        "-shellcheck=",
        "-pyflakes=",
        *sorted((GITHUB / "workflows").iterdir()),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("name", "hole"), [("h11", "0.15"), ("starlette", "0.49.0"), ("aiohttp", "3.13.2"), ("torch", "2.5.1")]
)
def test_floor_is_above_known_holes(name: str, hole: str) -> None:
    """The last version with a published vulnerability, also of packages that others bring along."""
    asked = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
    found = [wanted for text in asked if (wanted := Requirement(text)).name == name]
    assert found
    assert not any(wanted.specifier.contains(hole) for wanted in found)
