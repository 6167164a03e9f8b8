"""The page over a real engine: what a new user of ``hived up --demo`` sees, token link and all."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from benchmarks.dashboard.serving import Served
from benchmarks.dashboard.stubs import small_cluster
from playwright.sync_api import Browser

from tests.cli.test_up import hived

from .conftest import Shown


def test_the_demo_shows_placements_preemptions_and_reasons_for_waiting(browser: Browser, tmp_path: Path) -> None:
    engine = hived("up", "--demo", folder=tmp_path)
    assert engine.stdout is not None
    try:
        link = next(filter(None, (re.search(r"http://\S+token=\S+", line) for line in engine.stdout))).group()
        context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC")
        shown = Shown(context.new_page(), Served(small_cluster()))
        shown.server.stop()  # the engine's own server is looked at
        shown.page.goto(link, wait_until="commit")  # what has to be there is waited for below
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
    finally:
        engine.send_signal(signal.SIGINT)
        engine.communicate(timeout=180)
    assert engine.returncode == 0
