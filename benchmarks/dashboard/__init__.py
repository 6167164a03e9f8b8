"""The dashboard at 65,536 GPUs and some 10,000 jobs, in a real browser: first picture, and what an update costs.

The cluster is the one that the dashboard's tests look at (synthetic); server and browser share the machine.
"""

from __future__ import annotations

from benchmarks.measuring import Figure

ROUNDS = 3
UPDATES = 10
JOBS_PER_UPDATE = 50


def measure() -> list[Figure]:
    """Milliseconds, the best of a few visits."""
    from playwright.sync_api import sync_playwright  # of the extra dev-browser, which the other suites do not need

    from .measured import measure_page
    from .serving import launch, served
    from .stubs import big_cluster

    source = big_cluster()
    visits = []
    with sync_playwright() as playwright, served(source) as server:
        browser = launch(playwright)
        for _ in range(ROUNDS):
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            page.goto(server.url)
            while not page.evaluate("performance.getEntriesByName('hived:first-picture').length"):
                page.wait_for_timeout(20)
            visits.append(measure_page(page, lambda: source.churn(JOBS_PER_UPDATE), UPDATES))
            page.context.close()
        browser.close()
    best = {key: min(visit[key] for visit in visits) for key in visits[0]}
    what = f"dashboard, 65,536 GPUs, {len(source.holders):,} jobs"
    return [
        Figure(f"{what}: first picture", best["first_picture_ms"], "ms", "< 2000 ms"),
        Figure(f"{what}: update, script, median", best["update_script_median_ms"], "ms"),
        Figure(f"{what}: update, script, longest", best["update_script_longest_ms"], "ms", "< 100 ms"),
        Figure(f"{what}: update, all of the main thread", best["update_thread_ms"], "ms", "< 100 ms"),
    ]
