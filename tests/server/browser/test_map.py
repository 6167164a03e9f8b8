"""The cell map: what it shows, says and repaints."""

from __future__ import annotations

import pytest
from benchmarks.dashboard.stubs import big_cluster, held, small_cluster

from .conftest import Show

BLUE, GREEN = "#0072b2", "#009e73"


def test_colours_and_tips(show: Show) -> None:
    """Of the holder's VC and of every kind; a click brings the job out and opens it."""
    shown = show(small_cluster())
    assert shown.colour(0) == shown.colour(1) == BLUE
    assert shown.colour(4) == GREEN
    assert shown.colour(3) == shown.colour(5), "both idle"
    assert len({shown.colour(leaf) for leaf in (0, 4, 3, 7)}) == 4
    told = shown.hover(1)
    for words in ("resnet-1", "gpu-box, GPU 1", "socket 0", "pair 0", "vision", "guaranteed", "21 min"):
        assert words in told
    assert "pair 0 of vision's NODE.SOCKET 0" in told
    for leaf, words in ((2, "opportunistic"), (3, "Idle"), (6, "reserved"), (7, "bad")):
        assert words in shown.hover(leaf)
    shown.page.mouse.click(*shown.centre(0))
    shown.until_text("#job h2", "resnet-1")
    shown.until("__hived.app.map.chosen === '1'")
    assert "job=1" in shown.page.url


def test_arrow_keys_and_what_they_say(show: Show) -> None:
    shown = show(small_cluster())
    shown.page.keyboard.press("m")
    for key, words in (("Right", "gpu-box, GPU 1"), ("Down", "gpu-box, GPU 3"), ("Right", "gpu-box, GPU 6")):
        shown.page.keyboard.press(f"Arrow{key}")
        shown.until_text("#spoken", words)
    shown.page.keyboard.press("Home")
    shown.until_text("#spoken", "resnet-1")
    shown.page.keyboard.press("Enter")
    shown.until_text("#job h2", "resnet-1")
    shown.page.keyboard.press("Escape")
    shown.until("document.getElementById('job').hidden")


def test_arrow_keys_reach_every_gpu(show: Show) -> None:
    shown = show(big_cluster(racks=2, nodes=6))
    shown.page.keyboard.press("m")
    reached = shown.page.evaluate("""() => { const { map } = __hived.app; const seen = new Set(); const open = [0];
        while (open.length) { const leaf = open.pop(); if (seen.has(leaf)) continue; seen.add(leaf);
            for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
                map.focus = leaf; map.step(dx, dy, false); open.push(map.focus); } }
        return seen.size; }""")
    assert reached == 2 * 6 * 8


def test_update_repaints_what_changed(show: Show) -> None:
    """And nothing where nothing changed; a GPU that passes from job to job of one VC gets the new name."""
    source = small_cluster()
    shown = show(source)
    for holders, gone, cells in (
        ([held("10", "late-10", "nlp", "guaranteed", [(0, 0, 5, 1)])], [], 1),
        ([], [], 0),
        ([held("11", "next-11", "vision", "guaranteed", [(0, 0, 0, 2)])], ["1"], 2),
    ):
        before = shown.counters
        source.change(holders, gone=gone)
        shown.until("before => __hived.counters.updates > before", before["updates"])
        after = shown.counters
        assert after["cells"] - before["cells"] == cells
        assert after["full"] == before["full"]
    assert shown.colour(5) == GREEN
    assert "next-11" in shown.hover(0)


def test_zoom_and_drag(show: Show) -> None:
    source = big_cluster(racks=2, nodes=256)
    shown = show(source)
    before = shown.counters
    changed = source.churn(20)
    shown.until("before => __hived.counters.updates > before", before["updates"])
    assert 0 < shown.counters["cells"] - before["cells"] <= changed, "of all, what changed is painted"
    assert shown.counters["full"] == before["full"]
    assert shown.page.evaluate("__hived.app.map.specks")
    x, y = shown.centre(8 * 30)
    shown.page.mouse.move(x, y)
    for _ in range(14):
        shown.page.mouse.wheel(0, -240)
    shown.until("!__hived.app.map.specks")
    assert shown.hover(8 * 30).count("node-0-0030") == 1, "the node under the pointer stays there"
    shown.page.keyboard.press("m")
    shown.page.keyboard.press("0")
    shown.until("__hived.app.map.specks")
    for _ in range(5):
        shown.page.click("[data-zoom=in]")
    camera = "[__hived.app.map.camera.x, __hived.app.map.camera.y]"
    first = shown.page.evaluate(camera)
    box = shown.page.locator("#map").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    shown.page.mouse.move(x, y)
    shown.page.mouse.down()
    shown.page.mouse.move(x - 90, y - 40, steps=4)
    shown.page.mouse.up()
    assert shown.page.evaluate(camera) == [pytest.approx(first[0] - 90), pytest.approx(first[1] - 40)]
    assert shown.page.locator("#job").is_hidden()


def test_drained_gpu_in_use(show: Show) -> None:
    # it was called bad, and its job was nowhere to be seen
    source = small_cluster()
    shown = show(source)
    source.change(drained=[(0, 0, 0, 1), (0, 0, 3, 1)], bad=[(0, 0, 4, 1), (0, 0, 7, 1)])
    shown.until("__hived.app.cells.bad[0] === 2 && __hived.app.cells.bad[4] === 1")
    assert shown.colour(0) == BLUE
    assert shown.colour(4) == GREEN
    assert shown.colour(3) == shown.colour(7), "nobody is there"
    for leaf, words in (
        (0, ("resnet-1", "drained: no new job")),
        (4, ("bad: no job",)),
        (3, ("Drained GPU",)),
        (7, ("Bad GPU",)),
    ):
        assert all(word in shown.hover(leaf) for word in words)
    assert "bad" not in shown.hover(0)
    # "Drained 0", and a GPU was marked as drained
    for part in ("drained", "bad"):
        assert shown.text(f".s-{part} .value") == "1"
        assert "1 in use" in shown.text(f".s-{part} .more")
    source.change(drained=[], bad=[])
    shown.until("__hived.app.cells.bad.every((one) => one === 0)")
    assert "drained" not in shown.hover(0)
