"""How long the page takes, by its own marks and by the browser's account of its main thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import Page

PATIENCE_S = 120.0


def measure_page(page: Page, change: Callable[[], object], updates: int) -> dict[str, float]:
    """Milliseconds: from navigation to the first picture on screen, and per update.

    ``update_script_*`` are the median and the longest time of the handler (parse, apply, paint); ``update_thread_ms``
    is all that the main thread did per update, on average: scripts, style, layout, painting.
    """
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def busy() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    page.wait_for_timeout(500)  # what the first picture left to do
    start = busy()
    page.wait_for_timeout(1000)
    idle = busy() - start
    done = page.evaluate("__hived.counters.updates")
    began = time.monotonic()
    start = busy()
    for _ in range(updates):
        change()
        done += 1
        while page.evaluate("__hived.counters.updates") < done:
            assert time.monotonic() - began < PATIENCE_S, "an update never arrived"
            page.wait_for_timeout(10)
    page.wait_for_timeout(100)
    took = time.monotonic() - began
    thread = (busy() - start - idle * took) / updates
    scripts = sorted(page.evaluate("performance.getEntriesByName('hived:update').map(({ duration }) => duration)"))
    first = page.evaluate("performance.getEntriesByName('hived:first-picture')[0].duration")
    return {
        "first_picture_ms": round(first, 1),
        "update_script_median_ms": round(scripts[len(scripts) // 2], 1),
        "update_script_longest_ms": round(scripts[-1], 1),
        "update_thread_ms": round(1000 * thread, 1),
    }
