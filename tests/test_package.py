"""The names exported by ``hived``."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import hived
from hived import installed

ROOT = Path(__file__).parents[1]


def test_exported_names_are_there() -> None:
    assert [name for name in hived.__all__ if getattr(hived, name) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'Clutser'"):
        hived.Clutser  # noqa: B018


def test_import_loads_nothing() -> None:
    code = "import sys, hived; print([name for name in sys.modules if name.startswith(('hived.', 'pydantic', 'yaml'))])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_compiled_form() -> None:
    """It has what decides, and leaves what users subclass."""
    modules = runpy.run_path(str(ROOT / "tools" / "compiled_wheel.py"))["modules"]
    compiled = modules(ROOT / "src" / "hived")  # raises if it names a removed module
    assert {"cells/buddy.py", "cluster/pool.py", "scheduling/scheduler.py"} <= set(compiled)
    assert not {"cluster/cluster.py", "scheduling/policy.py", "cells/__init__.py"} & set(compiled)


def test_readmes_first_command_installs() -> None:
    """All extras of users; that of training jobs from its folder."""
    first = re.search(r"pip install -q (.+?) &&", (ROOT / "README.md").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [extra for extra in project["optional-dependencies"] if extra != "train" and not extra.startswith("dev")]
    assert first is not None
    assert first[1] == f"-e {installed.RUNTIME_FOLDER} -e '.[{','.join(extras)}]'"


def test_runtime_stands_alone(tmp_path: Path) -> None:
    """A training image installs its wheel, and has nothing of the scheduler."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / installed.RUNTIME_FOLDER, source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    built = [*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    version = {**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_HIVED_RUNTIME": "1.2.3"}
    subprocess.run(list(map(str, built)), check=True, env=version)
    (wheel,) = tmp_path.glob("hived_runtime-1.2.3-py3-none-any.whl")
    venv.create(tmp_path / "image", symlinks=True)
    python = tmp_path / "image" / "bin" / "python"
    subprocess.run([*pip, f"--python={python}", "install", "--no-index", "--no-deps", wheel], check=True)
    code = """
import importlib.util, os, hived_runtime
from hived_control.commands import TrainingJob
from hived_control.folder import JobFolder, started_at
assert importlib.util.find_spec("hived") is None
folder = JobFolder.named("train")
folder.claim({"argv": ["train.py"], "pid": os.getpid(), "started": started_at(os.getpid())})
with hived_runtime.pause_point():
    print(TrainingJob(folder).status().launching, [job.name for job in JobFolder.all()])
"""
    jobs = {"HIVED_JOBS": str(tmp_path / "jobs")}
    ran = subprocess.run([python, "-c", code], env=jobs, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout == "True ['train']\n", ran.stderr


@pytest.mark.parametrize(
    ("extra", "lacks", "arguments"),
    [
        ("figures", "matplotlib", ["simulate", "--jobs", "5"]),
        ("kubernetes", "kubernetes_asyncio", ["serve", "kubernetes", "--spec", "spec.yaml"]),
        ("train", "hived_control", ["train", "run", "--", "true"]),
        ("train", "hived_control", ["train", "status", "bert"]),
    ],
)
def test_missing_extra_is_named(extra: str, lacks: str, arguments: list[str]) -> None:
    """It comes from where hived came from."""
    # the hint named a package of this name in a registry, which belongs to another project
    code = f"import sys; sys.modules['{lacks}'] = None; sys.argv[1:] = {arguments}; from hived.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert f"{sys.executable} -m pip install -e " in ran.stderr
    assert (f"/{installed.RUNTIME_FOLDER}" if extra == "train" else f"[{extra}]") in ran.stderr
    assert not re.search(r"[ ']hived\[", ran.stderr)


@pytest.mark.parametrize(
    ("written", "command", "runtime"),
    [
        (
            '{"url": "file:///a%20b/hived", "dir_info": {"editable": true}}',
            "-e '/a b/hived[figures]'",
            "-e '/a b/hived/packages/hived-runtime'",
        ),
        (
            '{"url": "file:///src/hived", "dir_info": {}}',
            "'/src/hived[figures]'",
            "/src/hived/packages/hived-runtime",
        ),
        (
            '{"url": "file:///w/x.whl", "archive_info": {}}',
            "'hived-scheduler[figures] @ file:///w/x.whl'",
            f"'hived-runtime @ file:///w/hived_runtime-{hived.__version__}-py3-none-any.whl'",
        ),
        (
            '{"url": "https://host/hived", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "'hived-scheduler[figures] @ git+https://host/hived@abc'",
            "'hived-runtime @ git+https://host/hived@abc#subdirectory=packages/hived-runtime'",
        ),
        (None, f"'hived-scheduler[figures]=={hived.__version__}'", f"hived-runtime=={hived.__version__}"),
    ],
    ids=["editable", "folder", "file", "repository", "index"],
)
def test_extra_comes_from_where_hived_does(
    monkeypatch: pytest.MonkeyPatch, written: str | None, command: str, runtime: str
) -> None:
    """A wheel of a release was told to be a checkout."""

    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return written

    monkeypatch.setattr(installed, "distribution", lambda name: Installed())
    assert installed.command_for("figures") == f"{sys.executable} -m pip install {command}"
    assert installed.command_for("train") == f"{sys.executable} -m pip install {runtime}"


def test_no_page_names_the_distribution_of_others() -> None:
    """Commands and hints have a checkout's folder, or the name of this project's distribution."""
    files = [
        path
        for folder in ("docs", "src", "packages", "deploy", "tools", "benchmarks", ".github")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".py", ".yaml", ".yml", ".toml", ".txt", ".js") or path.name == "Dockerfile"
    ]
    named = re.compile(r"""pip install[^\n]*?[ '"]hived(?![-\w/.])|\bhived\[(?:figures|kubernetes|train|dev)""")
    found = [
        path for path in (*files, *ROOT.glob("*.md"), ROOT / "pyproject.toml") if named.search(path.read_text("utf-8"))
    ]
    assert found == []
