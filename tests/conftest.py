"""Setup of all tests: hypothesis draws the same examples on every run, and never fails by the clock; Ctrl-C works."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# a shell ignores SIGINT for what it starts with `&`, and programs inherit that: those under test must not
signal.signal(signal.SIGINT, signal.default_int_handler)
# the tests import hived_runtime, and are no training job
os.environ["HIVED_RUNTIME"] = "off"

settings.register_profile(
    "hived",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=60,
    stateful_step_count=30,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("hived")


ROOT = Path(__file__).parents[1]
#: folders that are of one tier as a whole
TIERS = {
    "tests/kubernetes/real": "cluster",
    "tests/libraries": "libraries",
    "tests/runtime": "torch",
    "tests/server/browser": "browser",
}
#: packages that a tier imports
NEEDS = {"browser": "playwright", "libraries": "lightning", "torch": "torch"}
#: in these a process starts something once that all its tests share: a control plane, what drives a browser
ONE_PROCESS = {"cluster", "browser", "smoke"}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """One process for files that are named, and for tiers that start a server once; else one a processor."""
    named = any(".py" in arg for arg in config.args)
    return 0 if named or config.option.markexpr in ONE_PROCESS else None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A tier whose packages are not installed is not collected."""
    tier = TIERS.get(str(collection_path.relative_to(ROOT)), "") if collection_path.is_relative_to(ROOT) else ""
    return True if tier in NEEDS and find_spec(NEEDS[tier]) is None else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders give their tier, but to a test of a release, which is of that tier alone; the longest file goes first.

    No test is left out: xdist runs one of those with the same id, as schemathesis' have.
    """
    items.sort(key=lambda item: not item.nodeid.startswith("tests/test_house.py"))
    for item in items:
        for folder, tier in TIERS.items():
            if item.nodeid.startswith(folder + "/") and item.get_closest_marker("release") is None:
                item.add_marker(tier)
        if not item.nodeid.endswith(item.name):  # from pytest 9.2 on, until schemathesis learns of it
            assert item.parent is not None
            item._id = item.parent.id.child(item.name)
    twice = [nodeid for nodeid, number in Counter(item.nodeid for item in items).items() if number > 1]
    if twice:
        raise pytest.UsageError(f"several tests have one id, and xdist would run one of them: {twice[:3]}")


@pytest.fixture(autouse=True)
def no_engine_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that the tests run on may have one in the folder where clients look for it."""
    monkeypatch.setattr("hived.cli.addresses.OF_THE_MACHINE", Path("/nowhere/hived"))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may pass, as /var/lib; those of pytest are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="hived-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
