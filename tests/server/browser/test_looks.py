"""Screenshots, kept as output of the tests, and how long the largest cluster takes (measured and told, not judged)."""

from __future__ import annotations

import json

import pytest
from benchmarks.dashboard.measured import measure_page
from benchmarks.dashboard.stubs import big_cluster, small_cluster

from hived.server.dashboard import Source
from hived.server.results import ResultsSource

from .conftest import SCREENSHOTS, Show

#: texts that do not fit into their room, be they cut or over something else
CUT = """[...document.querySelectorAll("body *")].filter((one) => one.checkVisibility() && !one.closest(".unseen")
    && one.innerText && !["auto", "scroll"].includes(getComputedStyle(one).overflowX)
    && one.clientWidth && one.scrollWidth > one.clientWidth).map((one) => one.innerText)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_8_gpus(show: Show, scheme: str) -> None:
    shown = show(small_cluster(), scheme=scheme)
    shown.until("__hived.app.curves.curves")
    shown.keep(f"8-gpus-{scheme}")
    shown.page.mouse.click(*shown.centre(0))
    shown.until("document.querySelector('#job .timeline')")
    shown.keep(f"8-gpus-job-{scheme}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_65536_gpus(show: Show, scheme: str) -> None:
    source = big_cluster()
    shown = show(source, scheme=scheme)
    measured = measure_page(shown.page, lambda: source.churn(50), updates=8)
    shown.keep(f"65536-gpus-{scheme}")
    found = {"gpus": source.gpus, "holders": len(source.holders), **measured}
    (SCREENSHOTS / f"65536-gpus-{scheme}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"65,536 GPUs, {len(source.holders)} jobs: {found}")
    shown.page.mouse.move(*shown.centre(8 * 1500))
    for _ in range(9):
        shown.page.mouse.wheel(0, -240)
    shown.until("!__hived.app.map.specks")
    shown.keep(f"65536-gpus-near-{scheme}")


@pytest.mark.parametrize(("width", "height"), [(360, 740), (3440, 1440)])
def test_a_phone_and_an_ultra_wide_screen(show: Show, width: int, height: int) -> None:
    shown = show(small_cluster(), width, height, ratio=2 if width < 500 else 1)
    overflow = shown.page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0, "nothing sticks out to the side"
    if width < 500:
        tops = [shown.page.locator(f".panel.{name}").bounding_box() for name in ("map", "queue", "vcs", "curves")]
        order = [box["y"] for box in tops if box]
        assert len(order) == 4
        assert order == sorted(order), "who waits comes right after the map"
    shown.keep(f"8-gpus-{width}")


@pytest.mark.parametrize("width", [360, 1024])
@pytest.mark.parametrize("page", ["live", "finished", "comparison"])
def test_no_label_is_cut_on_a_narrow_screen(show: Show, finished: ResultsSource, page: str, width: int) -> None:
    source: Source = finished
    if page == "live":
        source = live = small_cluster()
        live.rebuild([live.chains[0].model_copy(update={"nodes": ["gpu-box", "second-box"]})])
    shown = show(source, width, 844, path="#page=compare" if page == "comparison" else "")
    if page == "comparison":
        shown.until(
            "__hived.app.compare.columns.length === 3 && __hived.app.compare.columns.every(({ cells }) => cells.known)"
        )
    else:
        shown.until("__hived.app.curves.curves")
        assert shown.page.locator(".s-fragmentation .label").is_visible()
    assert shown.page.evaluate(CUT) == []
    assert shown.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_finished_run_and_its_comparison(show: Show, finished: ResultsSource, scheme: str) -> None:
    shown = show(finished, scheme=scheme)
    shown.until("__hived.app.curves.curves")
    shown.keep(f"finished-{scheme}")
    shown.page.keyboard.press("c")
    shown.until(
        "__hived.app.compare.columns.length === 3 && __hived.app.compare.columns.every(({ cells }) => cells.known)"
    )
    shown.keep(f"comparison-{scheme}")
