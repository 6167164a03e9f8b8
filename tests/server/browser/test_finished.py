"""A finished run: the slider, the views, and their comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.server.pictures import Comparison
from hived.server.results import ResultsSource
from tests.server.results.helpers import played
from tests.simulator.helpers import nodes_of_8

from .conftest import SPAN, Show


def jobs_at(source: ResultsSource, scheme: str, at: float) -> list[str]:
    return sorted(holder.id for holder in source.picture(f"{scheme} yarn-cs", at).holders)


SHOWN = "[...__hived.app.cells.holders.values()].map(({ id }) => id).sort()"
AT = "__hived.app.at"
BUSY = SPAN * 0.4


def test_slider(show: Show, finished: ResultsSource) -> None:
    """It moves the picture, and only what differs is painted."""
    shown = show(finished)
    slider = shown.page.locator("input[type=range]")
    for share in (0.75, 0.2):
        slider.fill(str(int(2000 * share)))
        shown.until(f"{AT} === {SPAN * share}")
        assert shown.page.evaluate(SHOWN) == jobs_at(finished, "hived", SPAN * share)
        day = int(SPAN * share // 86400) + 1
        assert f"day {day}," in shown.text(".replay output")
    before = shown.counters
    shown.page.keyboard.press(".")
    shown.until(f"{AT} > {SPAN * 0.2}")
    after = shown.counters
    assert after["full"] == before["full"]
    assert after["cells"] - before["cells"] < 128


def test_fast_slider_ends_at_its_last_place(show: Show, finished: ResultsSource) -> None:
    shown = show(finished)
    asked: list[str] = []
    shown.page.on("request", lambda request: asked.append(request.url) if "/picture" in request.url else None)
    shown.page.evaluate("""() => { const slider = document.querySelector("input[type=range]");
        for (let at = 0; at <= 1000; at += 2) {
            slider.value = String(at);
            slider.dispatchEvent(new Event("input")); } }""")
    shown.until(f"{AT} === {SPAN * 0.5}")
    assert shown.page.evaluate(SHOWN) == jobs_at(finished, "hived", SPAN * 0.5)
    assert len(asked) < 20


def test_opens_where_something_goes_on(show: Show, finished: ResultsSource) -> None:
    """A click on a chart goes to that time; labels of an axis are whole however long they are."""
    shown = show(finished)
    assert shown.page.evaluate(AT) == pytest.approx(0.6 * SPAN, rel=0.1)
    assert shown.page.evaluate(f"{SHOWN}.length") > 0
    shown.until("__hived.app.curves.curves?.at.length > 100")
    plot = shown.page.locator(".plot").first
    box = plot.bounding_box()
    assert box
    plot.click(position={"x": box["width"] - 11, "y": 30})
    shown.until(f"{AT} > {SPAN * 0.98}")
    left = """() => { const chart = __hived.app.curves.charts[2];
        chart.setData({ at: [0, 1], waiting: [0, 1234567] }, [0, 1]);
        chart.draw();
        const { width } = chart.canvas;
        const pixels = chart.canvas.getContext("2d").getImageData(0, 0, 3 * devicePixelRatio, chart.canvas.height).data;
        return [width, pixels.some((value) => value > 0)]; }"""
    width, cut = shown.page.evaluate(left)
    assert width > 100
    assert not cut, "nothing is painted at the very edge"


def test_play_and_pause(show: Show, finished: ResultsSource) -> None:
    shown = show(finished, path=f"#at={SPAN * 0.1:.0f}")
    shown.page.click("#title")
    shown.page.keyboard.press("Space")
    shown.until(f"{AT} > {SPAN * 0.11}")
    shown.page.keyboard.press("Space")
    assert shown.page.evaluate("__hived.app.replay.playing") is False


def test_comparison(show: Show, finished: ResultsSource) -> None:
    """Side by side at one moment; of the outcome, use adds up and the best is marked."""
    shown = show(finished, path=f"#at={BUSY:.0f}")
    shown.page.keyboard.press("c")
    shown.until("document.querySelectorAll('.column').length === 3")
    shown.until("__hived.app.compare.columns.every(({ cells }) => cells.known)")
    outcome = shown.text(".outcome")
    for words in ("Mean queueing delay", "Private clusters", "HiveD (yarn-cs)", "Fragmentation", "Preemptions"):
        assert words in outcome
    tenants = shown.text(".tenants")
    assert all(name in tenants for name in ("prod-a", "res-b", "speech", "vision"))
    assert "1.00 ×" in tenants
    assert shown.page.locator(".delays .chart").count() == 4
    for at, key in enumerate(("private", "quota", "hived")):
        ids = "at => [...__hived.app.compare.columns[at].cells.holders.values()].map(({ id }) => id).sort()"
        assert shown.page.evaluate(ids, at) == jobs_at(finished, key, BUSY)
    shown.page.locator("input[type=range]").fill("1500")
    expected = len(jobs_at(finished, "quota", SPAN * 0.75))
    shown.until(f"__hived.app.compare.columns[1].cells.holders.size === {expected}")
    rows = shown.page.evaluate(
        """[...document.querySelectorAll(".outcome tr")]
        .map((row) => [...row.children].map((one) => one.textContent))"""
    )
    value = {name: [float(text.rstrip("%")) for text in cells] for name, *cells in rows if "%" in cells[-1]}
    for all_, own, lent in zip(
        value["Utilization"], value["of which guaranteed"], value["of which opportunistic"], strict=True
    ):
        assert all_ == pytest.approx(own + lent, abs=1)
        assert all_ <= 100
    marked = shown.page.evaluate(
        """[...document.querySelectorAll(".outcome tbody tr")].filter((row) => row.querySelector(".best"))
        .map((row) => {
        const best = row.querySelector(".best").textContent;
        const cells = [...row.querySelectorAll("td")];
        return cells.every((one) => (one.textContent === best) === one.classList.contains("best")); })"""
    )
    assert marked
    assert all(marked)


def test_equals_are_both_best(show: Show, finished: ResultsSource, monkeypatch: pytest.MonkeyPatch) -> None:
    found = finished.comparison()
    assert found is not None
    outcomes = [
        one.model_copy(update={"overall": one.overall.model_copy(update={"to_private": ratio})})
        for one, ratio in zip(found.outcomes, (1.0, 0.112, 0.114), strict=True)
    ]
    monkeypatch.setattr(finished, "comparison", lambda: Comparison(outcomes=outcomes))
    shown = show(finished, path="#page=compare")
    shown.until("__hived.app.compare.columns.length === 3")
    row = shown.page.locator(".outcome tr", has_text="Mean over private")
    assert row.locator("td.best").all_inner_texts() == ["0.11 ×", "0.11 ×"]


def test_end_of_the_slider(show: Show, finished: ResultsSource, monkeypatch: pytest.MonkeyPatch) -> None:
    assert show(finished).page.get_by_label("Until").is_hidden(), "there is no long end"
    long = finished.layout().model_copy(update={"arrivals_end": SPAN / 16})
    monkeypatch.setattr(finished, "layout", lambda: long)
    shown = show(finished)
    slider = shown.page.locator("input[type=range]")
    slider.fill("2000")
    shown.until(f"{AT} === {SPAN / 16}")
    assert shown.page.evaluate("__hived.app.curves.charts[0].span") == [0, SPAN / 16]
    shown.page.get_by_label("Until").select_option(label="all is done, day 11")
    slider.fill("2000")
    shown.until(f"{AT} === {SPAN}")
    assert shown.page.evaluate("__hived.app.curves.charts[0].span") == [0, SPAN]
    linked = show(finished, path=f"#at={SPAN / 2:.0f}")
    assert linked.page.evaluate(AT) == SPAN / 2


def test_comparison_on_a_phone(show: Show, finished: ResultsSource) -> None:
    """Its tables show their values."""
    shown = show(finished, 390, 844, path="#page=compare")
    shown.until("__hived.app.compare.columns.length === 3")
    for page in (".outcome", ".tenants"):
        right = shown.page.evaluate(
            """page => Math.max(...[...document.querySelectorAll(`${page} td, ${page} th`)]
            .map((one) => one.getBoundingClientRect().right))""",
            page,
        )
        assert right <= 390
    assert shown.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_one_node_has_no_share_of_nodes(show: Show, tmp_path: Path) -> None:
    shown = show(played(tmp_path, ("j", "a", 0, 10, 8), spec=nodes_of_8(1, {"a": 1})), path="#page=compare")
    shown.until("__hived.app.compare.columns.length === 3")
    for words in ("Fragmentation", "Nodes in guaranteed use"):
        assert shown.page.get_by_text(words).count() > 0
        assert shown.page.get_by_text(words).locator("visible=true").count() == 0, "of one it is all or nothing"
    assert shown.page.locator(".column .chart").first.is_visible()


def test_jobs_of_the_moment(show: Show, finished: ResultsSource) -> None:
    shown = show(finished, path=f"#at={BUSY:.0f}")
    shown.page.click("#list-ended")
    over = finished.ended("hived yarn-cs", BUSY, 0, 200)
    shown.until(f"document.querySelectorAll('.waiting').length === {len(over.jobs)}")
    assert over.total > 200
    shown.until_text("#queue-note", f"first 200 of {over.total}")
    assert shown.text(".waiting .name") == over.jobs[0].name
    shown.page.click(".show-more")
    shown.until(f"document.querySelectorAll('.waiting').length === {over.total}")
    shown.page.click("#list-running")
    shown.until(f"document.querySelectorAll('.waiting').length === {len(jobs_at(finished, 'hived', BUSY))}")


def test_address_and_view(show: Show, finished: ResultsSource) -> None:
    """The address says what is shown; each view is a cluster of its own."""
    job = jobs_at(finished, "quota", SPAN * 0.3)[0]
    shown = show(finished, path=f"#view=quota%20yarn-cs&at={SPAN * 0.3:.0f}&job={job}")
    shown.until_text("#job h2", job)
    assert shown.page.evaluate("__hived.app.view.key") == "quota yarn-cs"
    assert shown.page.evaluate(AT) == SPAN * 0.3
    shown.page.select_option("#view", "private yarn-cs")
    shown.until(f"__hived.app.cells.view.key === 'private yarn-cs' && {SHOWN}.length > 0")
    assert shown.page.evaluate("__hived.app.cells.chains.length") == 4
    assert shown.page.evaluate(SHOWN) == jobs_at(finished, "private", SPAN * 0.3)
