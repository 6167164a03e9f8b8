"""Setup of all tests: hypothesis draws the same examples on every run, and never fails by the clock; Ctrl-C works.

Tests on a real control plane go to one of the workers, whichever, so that only one is started; those in a browser too,
since what drives it leaves no room for other event loops in its process.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# a shell ignores SIGINT for what it starts with `&`, and programs inherit that: those under test must not
signal.signal(signal.SIGINT, signal.default_int_handler)
# the tests import hived.runtime, and are no training job
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
#: folders that are of one tier as a whole; the first two are given to one worker each
TIERS = {"tests/kubernetes/real": "cluster", "tests/server/browser": "browser", "tests/runtime": "torch"}
#: packages that a tier imports
NEEDS = {"browser": "playwright", "torch": "torch"}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A tier whose packages are not installed is not collected."""
    tier = TIERS.get(str(collection_path.relative_to(ROOT)), "") if collection_path.is_relative_to(ROOT) else ""
    return True if tier in NEEDS and find_spec(NEEDS[tier]) is None else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders give their tier, but to a test of a release, which is of that tier alone.

    No test is left out: xdist runs one of those with the same id, as schemathesis' have.
    """
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


TOGETHER = ("tests/kubernetes/real/", "tests/server/browser/")


# xdist's own marks for this (--dist=loadgroup) do nothing from pytest 9.2 on, until xdist learns of it
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests are given out one by one, as ever, but those of some folders together."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # it has none

    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = lambda nodeid: next((name for name in TOGETHER if nodeid.startswith(name)), nodeid)
    return scheduling
