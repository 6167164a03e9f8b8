"""The cell map: what it shows, says and repaints."""

from __future__ import annotations

import pytest
from benchmarks.dashboard.stubs import big_cluster, held, small_cluster

from .conftest import Show

BLUE, GREEN = "#0072b2", "#009e73"


def test_each_gpu_has_the_colour_of_its_holders_vc(show: Show) -> None:
    shown = show(small_cluster())
    assert shown.colour(0) == shown.colour(1) == BLUE
    assert shown.colour(4) == GREEN
    assert shown.colour(3) == shown.colour(5), "both idle"
    assert len({shown.colour(leaf) for leaf in (0, 4, 3, 7)}) == 4


def test_the_tip_shows_node_device_job_vc_kind_since_and_binding(show: Show) -> None:
    shown = show(small_cluster())
    told = shown.hover(1)
    for words in ("resnet-1", "gpu-box, GPU 1", "socket 0", "pair 0", "vision", "guaranteed", "21 min"):
        assert words in told
    assert "pair 0 of vision's NODE.SOCKET 0" in told
    assert "opportunistic" in shown.hover(2)
    assert "Idle" in shown.hover(3)
    assert "reserved" in shown.hover(6)
    assert "bad" in shown.hover(7)


def test_arrow_keys_go_from_gpu_to_gpu_and_say_where_they_are(show: Show) -> None:
    shown = show(small_cluster())
    shown.page.keyboard.press("m")
    shown.page.keyboard.press("ArrowRight")
    shown.until_text("#spoken", "gpu-box, GPU 1")
    shown.page.keyboard.press("ArrowDown")
    shown.until_text("#spoken", "gpu-box, GPU 3")
    shown.page.keyboard.press("ArrowRight")
    shown.until_text("#spoken", "gpu-box, GPU 6")
    shown.page.keyboard.press("Home")
    shown.until_text("#spoken", "resnet-1")
    shown.page.keyboard.press("Enter")
    shown.until_text("#job h2", "resnet-1")
    shown.page.keyboard.press("Escape")
    shown.until("document.getElementById('job').hidden")


def test_every_gpu_can_be_reached_by_arrow_keys(show: Show) -> None:
    shown = show(big_cluster(racks=2, nodes=6))
    shown.page.keyboard.press("m")
    reached = shown.page.evaluate("""() => { const { map } = __hived.app; const seen = new Set(); const open = [0];
        while (open.length) { const leaf = open.pop(); if (seen.has(leaf)) continue; seen.add(leaf);
            for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
                map.focus = leaf; map.step(dx, dy, false); open.push(map.focus); } }
        return seen.size; }""")
    assert reached == 2 * 6 * 8


def test_a_click_on_a_gpu_brings_its_job_out_and_opens_it(show: Show) -> None:
    shown = show(small_cluster())
    shown.page.mouse.click(*shown.centre(0))
    shown.until_text("#job h2", "resnet-1")
    shown.until("__hived.app.map.chosen === '1'")
    assert "job=1" in shown.page.url


def test_an_update_repaints_the_changed_cells_and_no_others(show: Show) -> None:
    source = small_cluster()
    shown = show(source)
    before = shown.counters
    source.change([held("10", "late-10", "nlp", "guaranteed", [(0, 0, 5, 1)])])
    shown.until("before => __hived.counters.updates > before", before["updates"])
    after = shown.counters
    assert shown.colour(5) == GREEN
    assert after["cells"] - before["cells"] == 1
    assert after["full"] == before["full"]


def test_an_update_that_changes_nothing_repaints_nothing(show: Show) -> None:
    source = small_cluster()
    shown = show(source)
    before = shown.counters
    source.change()
    shown.until("before => __hived.counters.updates > before", before["updates"])
    assert shown.counters["cells"] == before["cells"]


def test_a_gpu_that_passes_from_job_to_job_of_one_vc_gets_the_new_name(show: Show) -> None:
    source = small_cluster()
    shown = show(source)
    before = shown.counters
    source.change([held("11", "next-11", "vision", "guaranteed", [(0, 0, 0, 2)])], gone=["1"])
    shown.until("before => __hived.counters.cells === before + 2", before["cells"])
    assert "next-11" in shown.hover(0)


@pytest.mark.parametrize("racks", [1, 8])
def test_a_large_cluster_repaints_only_what_changed_however_far_out(show: Show, racks: int) -> None:
    source = big_cluster(racks=racks, nodes=64)
    shown = show(source)
    before = shown.counters
    changed = source.churn(20)
    shown.until("before => __hived.counters.updates > before", before["updates"])
    after = shown.counters
    assert 0 < after["cells"] - before["cells"] <= changed
    assert after["full"] == before["full"]


def test_nearer_there_are_tiles_with_names_and_fit_shows_all_again(show: Show) -> None:
    shown = show(big_cluster(racks=2, nodes=256))
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


def test_dragging_moves_a_map_that_is_near_and_opens_nothing(show: Show) -> None:
    shown = show(big_cluster(racks=2, nodes=64))
    for _ in range(5):
        shown.page.click("[data-zoom=in]")
    before = shown.page.evaluate("[__hived.app.map.camera.x, __hived.app.map.camera.y]")
    x, y = shown.centre(8 * 40)
    box = shown.page.locator("#map").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    shown.page.mouse.move(x, y)
    shown.page.mouse.down()
    shown.page.mouse.move(x - 90, y - 40, steps=4)
    shown.page.mouse.up()
    after = shown.page.evaluate("[__hived.app.map.camera.x, __hived.app.map.camera.y]")
    assert after == [pytest.approx(before[0] - 90), pytest.approx(before[1] - 40)]
    assert shown.page.locator("#job").is_hidden()


def test_a_drained_gpu_in_use_shows_its_job_and_is_called_drained(show: Show) -> None:
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
    source.change(drained=[], bad=[])
    shown.until("__hived.app.cells.bad.every((one) => one === 0)")
    assert "drained" not in shown.hover(0)
