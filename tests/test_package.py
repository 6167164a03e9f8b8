"""The names exported by ``hived``."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hived

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
    """All extras of users, but torch: gigabytes, which come with the training scripts that ``hived run`` starts."""
    first = re.search(r"pip install -q -e (\S+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [extra for extra in project["optional-dependencies"] if extra != "torch" and not extra.startswith("dev")]
    assert first is not None
    assert first[1] == f"'.[{','.join(extras)}]'"


@pytest.mark.parametrize(
    ("extra", "lacks", "arguments"),
    [
        ("figures", "matplotlib", ["simulate", "--jobs", "5"]),
        ("research", "polars", ["simulate", "--jobs", "5", "--no-figures", "--filter", "gpus > 1"]),
        ("research", "polars", ["simulate", "--jobs", "5", "--no-figures", "--parquet"]),
        ("kubernetes", "kubernetes_asyncio", ["serve", "kubernetes", "--spec", "spec.yaml"]),
    ],
)
def test_missing_extra_is_named(extra: str, lacks: str, arguments: list[str]) -> None:
    """It comes from where hived came from."""
    # the hint named a package of this name in a registry, which belongs to another project
    code = f"import sys; sys.modules['{lacks}'] = None; sys.argv[1:] = {arguments}; from hived.cli import main; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert f"{sys.executable} -m pip install -e " in ran.stderr
    assert f"[{extra}]" in ran.stderr
    assert not re.search(r"[ ']hived\[", ran.stderr)
