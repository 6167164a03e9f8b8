"""The page over a real engine: what a new user of ``hived up --demo`` sees, token link and all."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.cli.helpers import Engine

from .conftest import Shown


@pytest.mark.smoke
def test_demo_is_live(browser: Browser, tmp_path: Path) -> None:
    """Placements, preemptions and reasons for waiting are shown as they happen, and the page has no errors."""
    with Engine(tmp_path, "--demo", state=False) as engine:
        link = None
        while link is None:
            link = re.search(r"http://\S+token=\S+", engine.line())
        context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC")
        shown = Shown(context.new_page())
        shown.page.goto(link.group(), wait_until="commit")  # what has to be there is waited for below
        assert "token" not in shown.page.url
        shown.until("window.__hived?.app && performance.getEntriesByName('hived:first-picture').length > 0")
        shown.until_text("#status", "live")
        where = "__hived.app.cells.ofJob('4').find((holder) => holder.kind === 'guaranteed')?.parts[0][2]"
        tip = shown.hover(shown.until(where))  # resnet-4, once the loan on its GPUs has gone; of one node
        assert "resnet-4" in tip
        assert "vision's SOCKET" in tip
        shown.until_text("#queue", "VC vision has 2 of the 4 GPUs it needs")
        shown.keep("real-demo")
        shown.page.evaluate("__hived.app.select('3')")
        shown.until("document.body.textContent.includes('preempted by resnet-4 of vision')")
        shown.keep("real-demo-story")
        assert shown.problems == []
        context.close()
        assert engine.stop(signal.SIGINT)[0] == 0
