"""The stream: what happens arrives, a lost server comes back, a changed cluster is drawn anew."""

from __future__ import annotations

import pytest
from benchmarks.dashboard.stubs import held, small_cluster, waits

from .conftest import Show


@pytest.mark.smoke
def test_changes_without_a_reload(show: Show) -> None:
    """All of them, in the readers' zone; and ages tick."""
    source = small_cluster()
    shown = show(source)
    shown.until_text("#status", "live")
    source.change(
        [held("12", "arrived-12", "nlp", "guaranteed", [(0, 0, 5, 1)])],
        queue=[waits("13", "new-13", "nlp", 2, ["full"])],
    )
    shown.until_text("#queue", "new-13")
    assert "2 / 2" in shown.page.locator(".vc").nth(2).inner_text()
    assert "4" in shown.text(".s-guaranteed")
    assert "arrived-12" in shown.hover(5)
    for number in range(6):  # between two updates
        source.change(queue=[waits(f"q{number}", f"burst-{number}", "nlp", 1, ["full"])])
    shown.until_text("#queue", "burst-5")
    waited = shown.text(".waiting .wait")
    shown.until(f"document.querySelector('.waiting .wait').textContent !== {waited!r}")


def test_dropped_stream_comes_back(show: Show) -> None:
    source = small_cluster()
    shown = show(source)
    shown.forgiven = (*shown.forgiven, "ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY", "ERR_NETWORK")
    shown.until_text("#status", "live")
    assert shown.server is not None
    shown.server.stop()
    shown.until_text("#status", "reconnecting")
    assert "resnet-1" in shown.hover(0), "the last that was known stays on screen"
    source.change([held("14", "meanwhile-14", "nlp", "guaranteed", [(0, 0, 5, 1)])], gone=["1"])
    shown.server.start()
    shown.until_text("#status", "live")
    shown.until("__hived.app.cells.ofJob('14').length === 1")
    assert "meanwhile-14" in shown.hover(5)
    assert "Idle" in shown.hover(0)


def test_changed_cluster_is_drawn_anew(show: Show) -> None:
    source = small_cluster()
    shown = show(source)
    source.rebuild([source.chains[0].model_copy(update={"nodes": ["gpu-box", "second-box"]})])
    shown.until("__hived.app.cells.leaves === 16 && __hived.app.cells.known")
    source.change([held("15", "there-15", "nlp", "guaranteed", [(0, 1, 0, 8)])])
    shown.until("__hived.app.cells.ofJob('15').length === 1")
    assert "second-box, GPU 3" in shown.hover(11)
