"""The rules of the house that a machine can hold: style, types and layers."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command: str) -> None:
    """Run a tool of this environment in the repository; its output is the failure's message."""
    tool = Path(sysconfig.get_path("scripts")) / command[0]
    result = subprocess.run([tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_linter_has_nothing_to_say() -> None:
    run("ruff", "check", "--no-cache", ".")


def test_the_formatter_would_change_nothing() -> None:
    run("ruff", "format", "--check", "--no-cache", ".")


def test_the_types_hold() -> None:
    run("mypy")


def test_arrows_run_downward_only_and_the_core_is_pure() -> None:
    run("lint-imports", "--no-cache")


def test_a_plain_install_needs_no_extra() -> None:
    code = (
        "import sys, hived.cli.app; "
        "extras = {'matplotlib', 'hypothesis', 'pytest', 'torch', 'kubernetes_asyncio', 'aiohttp', 'msgspec', "
        "'prometheus_client'} & set(sys.modules); "
        "sys.exit(', '.join(extras) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"imported at start: {result.stderr}"
