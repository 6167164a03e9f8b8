"""A finished run: the slider, the views, and their comparison."""

from __future__ import annotations

import pytest

from .conftest import Show
from .finished import SPAN, FinishedStub


@pytest.fixture(scope="module")
def source() -> FinishedStub:
    return FinishedStub()


def jobs_at(source: FinishedStub, view: str, at: float) -> list[str]:
    return sorted(holder.id for holder in source.picture(view, at).holders)


SHOWN = "[...__hived.app.cells.holders.values()].map(({ id }) => id).sort()"
AT = "__hived.app.at"
BUSY = SPAN * 0.4


def test_the_slider_moves_the_picture(show: Show, source: FinishedStub) -> None:
    shown = show(source)
    slider = shown.page.locator("input[type=range]")
    for share in (0.75, 0.2):
        slider.fill(str(int(2000 * share)))
        shown.until(f"{AT} === {SPAN * share}")
        assert shown.page.evaluate(SHOWN) == jobs_at(source, "hived", SPAN * share)
        day = int(SPAN * share // 86400) + 1
        assert f"day {day}," in shown.text(".replay output")


def test_sliding_repaints_only_what_differs(show: Show, source: FinishedStub) -> None:
    shown = show(source, path=f"#at={BUSY:.0f}")
    before = shown.counters
    shown.page.keyboard.press(".")
    shown.until(f"{AT} > {BUSY}")
    after = shown.counters
    assert after["full"] == before["full"]
    assert after["cells"] - before["cells"] < 128


def test_a_slider_that_moves_fast_ends_at_its_last_place(show: Show, source: FinishedStub) -> None:
    shown = show(source)
    asked: list[str] = []
    shown.page.on("request", lambda request: asked.append(request.url) if "/picture" in request.url else None)
    shown.page.evaluate("""() => { const slider = document.querySelector("input[type=range]");
        for (let at = 0; at <= 1000; at += 2) {
            slider.value = String(at);
            slider.dispatchEvent(new Event("input")); } }""")
    shown.until(f"{AT} === {SPAN * 0.5}")
    assert shown.page.evaluate(SHOWN) == jobs_at(source, "hived", SPAN * 0.5)
    assert len(asked) < 20


def test_it_opens_at_a_time_at_which_something_goes_on(show: Show, source: FinishedStub) -> None:
    shown = show(source)
    assert shown.page.evaluate(AT) == pytest.approx(0.6 * SPAN, rel=0.1)
    assert shown.page.evaluate(f"{SHOWN}.length") > 0


def test_it_plays_and_pauses(show: Show, source: FinishedStub) -> None:
    shown = show(source, path=f"#at={SPAN * 0.1:.0f}")
    shown.page.click("#title")
    shown.page.keyboard.press("Space")
    shown.until(f"{AT} > {SPAN * 0.11}")
    shown.page.keyboard.press("Space")
    assert shown.page.evaluate("__hived.app.replay.playing") is False


def test_each_view_is_a_cluster_of_its_own(show: Show, source: FinishedStub) -> None:
    shown = show(source, path=f"#at={BUSY:.0f}")
    shown.page.select_option("#view", "private")
    shown.until(f"__hived.app.cells.view.key === 'private' && {SHOWN}.length > 0")
    assert shown.page.evaluate("__hived.app.cells.chains.length") == 4
    assert shown.page.evaluate(SHOWN) == jobs_at(source, "private", BUSY)


def test_a_click_on_a_chart_goes_to_that_time(show: Show, source: FinishedStub) -> None:
    shown = show(source)
    shown.until("__hived.app.curves.curves?.at.length > 100")
    plot = shown.page.locator(".plot").first
    box = plot.bounding_box()
    assert box
    plot.click(position={"x": box["width"] - 11, "y": 30})
    shown.until(f"{AT} > {SPAN * 0.98}")


def test_the_comparison_has_tables_curves_and_a_map_per_view(show: Show, source: FinishedStub) -> None:
    shown = show(source, path=f"#at={BUSY:.0f}")
    shown.page.keyboard.press("c")
    shown.until("document.querySelectorAll('.column').length === 3")
    shown.until("__hived.app.compare.columns.every(({ cells }) => cells.known)")
    outcome = shown.text(".outcome")
    for words in ("Mean queueing delay", "private · yarn-cs", "HiveD · yarn-cs", "Fragmentation", "Preemptions"):
        assert words in outcome
    tenants = shown.text(".tenants")
    assert all(name in tenants for name in ("prod-a", "res-b", "speech", "vision"))
    assert "1.00 ×" in tenants
    assert shown.page.locator(".delays .chart").count() == 4
    for at, key in enumerate(("private", "quota", "hived")):
        ids = "at => [...__hived.app.compare.columns[at].cells.holders.values()].map(({ id }) => id).sort()"
        assert shown.page.evaluate(ids, at) == jobs_at(source, key, BUSY)


def test_the_comparisons_maps_follow_the_slider(show: Show, source: FinishedStub) -> None:
    shown = show(source, path="#page=compare")
    shown.until("__hived.app.compare.columns.length === 3")
    shown.page.locator("input[type=range]").fill("1500")
    expected = len(jobs_at(source, "quota", SPAN * 0.75))
    shown.until(f"__hived.app.compare.columns[1].cells.holders.size === {expected}")


def test_the_address_says_what_is_shown(show: Show, source: FinishedStub) -> None:
    job = jobs_at(source, "quota", SPAN * 0.3)[0]
    shown = show(source, path=f"#view=quota&at={SPAN * 0.3:.0f}&job={job}")
    shown.until_text("#job h2", f"job-{job}")
    assert shown.page.evaluate("__hived.app.view.key") == "quota"
    assert shown.page.evaluate(AT) == SPAN * 0.3
