"""The dashboard by axe-core: names, landmarks, headings and contrast, in every state that a visitor reaches."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from benchmarks.dashboard.stubs import small_cluster

from hived.server.results import ResultsSource

from .conftest import Show, Shown

AXE = Axe()
#: all rules, and one of those that axe-core leaves out by default: what is seen is in the name (WCAG 2.5.3)
OPTIONS = {"rules": {"label-content-name-mismatch": {"enabled": True}}, "resultTypes": ["violations"]}


def check(shown: Shown) -> None:
    """Nothing is wrong with the page as it stands, once all that moves has arrived."""
    shown.until("document.getAnimations().every((one) => one.playState !== 'running')")
    found = AXE.run(shown.page, options=OPTIONS).response["violations"]
    assert [(one["id"], one["help"], [node["html"] for node in one["nodes"][:3]]) for one in found] == []


@pytest.mark.smoke
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_live_cluster(show: Show, scheme: str) -> None:
    """With its banner; a waiting job, a running one, the shortcuts."""
    source = small_cluster()
    source.synthetic = True
    shown = show(source, scheme=scheme)
    shown.until("!document.getElementById('banner').hidden")
    check(shown)
    for job in ("7", "1"):
        shown.page.evaluate("job => __hived.app.select(job)", job)
        shown.until("!document.getElementById('job').hidden")
        check(shown)
    shown.page.keyboard.press("?")
    shown.until("document.getElementById('help').open")
    check(shown)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_finished_run(show: Show, finished: ResultsSource, scheme: str) -> None:
    """Any moment of it, the schemes side by side, and the timeline of a node."""
    shown = show(finished, scheme=scheme)
    check(shown)
    shown.page.click("#tab-compare")
    shown.until("document.querySelector('#compare table') !== null")
    check(shown)
    shown.page.click("#tab-cluster")
    shown.page.keyboard.press("g")
    shown.until("document.getElementById('timeline').open")
    check(shown)


def test_small_screen(show: Show) -> None:
    check(show(small_cluster(), width=390, height=844))
