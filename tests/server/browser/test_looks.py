"""What fits on a screen, in both themes; screenshots are kept as output of the tests."""

from __future__ import annotations

import pytest
from benchmarks.dashboard.stubs import big_cluster, small_cluster

from hived.server.dashboard import Source
from hived.server.results import ResultsSource

from .conftest import Show

#: texts that do not fit into their room, be they cut or over something else
CUT = """[...document.querySelectorAll("body *")].filter((one) => one.checkVisibility() && !one.closest(".unseen")
    && one.innerText && !["auto", "scroll"].includes(getComputedStyle(one).overflowX)
    && one.clientWidth && one.scrollWidth > one.clientWidth).map((one) => one.innerText)"""
WIDER = "document.documentElement.scrollWidth - innerWidth"
COMPARED = "__hived.app.compare.columns.length === 3 && __hived.app.compare.columns.every(({ cells }) => cells.known)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes(show: Show, finished: ResultsSource, scheme: str) -> None:
    """A small cluster and a job of it, the largest cluster, a finished run and its comparison."""
    shown = show(small_cluster(), scheme=scheme)
    shown.until("__hived.app.curves.curves")
    shown.keep(f"8-gpus-{scheme}")
    shown.page.mouse.click(*shown.centre(0))
    shown.until("document.querySelector('#job .timeline')")
    shown.keep(f"8-gpus-job-{scheme}")
    shown = show(big_cluster(), scheme=scheme)
    shown.keep(f"65536-gpus-{scheme}")
    shown.page.mouse.move(*shown.centre(8 * 1500))
    for _ in range(9):
        shown.page.mouse.wheel(0, -240)
    shown.until("!__hived.app.map.specks")
    shown.keep(f"65536-gpus-near-{scheme}")
    shown = show(finished, scheme=scheme)
    shown.until("__hived.app.curves.curves")
    shown.keep(f"finished-{scheme}")
    shown.page.keyboard.press("c")
    shown.until(COMPARED)
    shown.keep(f"comparison-{scheme}")


@pytest.mark.parametrize(("width", "height"), [(360, 740), (3440, 1440)])
def test_phone_and_ultra_wide_screen(show: Show, width: int, height: int) -> None:
    shown = show(small_cluster(), width, height, ratio=2 if width < 500 else 1)
    assert shown.page.evaluate(WIDER) <= 0, "nothing sticks out to the side"
    if width < 500:
        tops = [shown.page.locator(f".panel.{name}").bounding_box() for name in ("map", "queue", "vcs", "curves")]
        order = [box["y"] for box in tops if box]
        assert len(order) == 4
        assert order == sorted(order), "who waits comes right after the map"
    shown.keep(f"8-gpus-{width}")


@pytest.mark.parametrize("width", [360, 1024])
@pytest.mark.parametrize("page", ["live", "finished", "comparison"])
def test_no_label_is_cut(show: Show, finished: ResultsSource, page: str, width: int) -> None:
    source: Source = finished
    if page == "live":
        source = live = small_cluster()
        live.rebuild([live.chains[0].model_copy(update={"nodes": ["gpu-box", "second-box"]})])
    shown = show(source, width, 844, path="#page=compare" if page == "comparison" else "")
    shown.until(COMPARED if page == "comparison" else "__hived.app.curves.curves")
    if page != "comparison":
        assert shown.page.locator(".s-fragmentation .label").is_visible()
    assert shown.page.evaluate(CUT) == []
    assert shown.page.evaluate(WIDER) <= 0
