"""Jobs that share GPUs, as the dashboard of results shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hived.policies import AntMan, Gandiva
from tests.server.results.test_sharing import MINUTE, source
from tests.simulator.sharing import job

from .conftest import Shown
from .test_finished import AT

Show = Callable[..., Shown]
#: the names of the jobs on each GPU
ON = "[0, 1, 2, 3].map((leaf) => __hived.app.cells.runners(leaf).map(({ id }) => id))"


def test_jobs_that_take_turns(show: Show, tmp_path: Path) -> None:
    jobs = [job(f"j{n}", 1, 10 + 10 * n) for n in range(6)]
    found = source(tmp_path, jobs, Gandiva(packs=False))
    shown = show(found, path=f"#view=hived%20gandiva&at={5 * MINUTE:.0f}")
    slider = shown.page.locator("input[type=range]")
    end = found.layout().arrivals_end
    assert end is not None
    seen = set()
    for part in (0.9, 0.5, 0.95, 0.6, 1.0, 0.0, 0.3):
        slider.fill(str(round(2000 * part)))
        shown.until(f"Math.abs({AT} - {end * part}) < 1")
        picture = found.picture("hived gandiva", shown.page.evaluate(AT))
        expected = [
            sorted(h.id for h in picture.holders if any(p[2] <= leaf < p[2] + p[3] for p in h.parts))
            for leaf in range(4)
        ]
        assert [sorted(ids) for ids in shown.page.evaluate(ON)] == expected
        seen.add(len(picture.holders))
    assert {6, 4} <= seen, "jobs come and go"
    tip = shown.hover(2)
    assert "66.7% of the time, at 0.6" in tip
    assert "with" in tip
    shown.keep("shared-by-turns")


def test_timeline_of_a_node(show: Show, tmp_path: Path) -> None:
    found = source(tmp_path, [job(f"j{n}", 1, 60) for n in range(6)], Gandiva(packs=False))
    shown = show(found, path=f"#view=hived%20gandiva&at={45 * MINUTE:.0f}&job=j4")
    page = shown.page
    page.get_by_role("button", name="Who has the GPUs of").click()
    shown.until("document.querySelectorAll('#timeline .box').length >= 8")
    assert page.locator("#timeline .band").count() == 4
    heights = "[...document.querySelectorAll('#timeline .band')].map((band) => [...band.querySelectorAll('.box')]"
    heights += ".filter((box) => box.classList.contains('w-sliced'))"
    heights += ".reduce((sum, box) => sum + box.getBoundingClientRect().height, 0))"
    assert all(abs(height - 34) < 0.5 for height in page.evaluate(heights)), "turns fill a GPU's time"
    assert "% of the time, at 0." in str(page.locator("#timeline .box").first.get_attribute("title"))
    shown.keep("timeline-turns")
    page.get_by_label("How long").select_option("3600")
    shown.until_text("#timeline .ticks", "00:")
    page.get_by_role("button", name="Later").click()
    page.locator("#timeline .users button", has_text="j1").click()
    shown.until_text("#job-heading", "j1")
    assert not page.locator("#timeline").evaluate("(dialog) => dialog.open")
    page.keyboard.press("g")
    shown.until("document.querySelector('#timeline').open")
    page.keyboard.press("Escape")
    shown.until("!document.querySelector('#timeline').open")
    assert shown.text("#job-heading") == "j1", "only the dialog was closed"


def test_guest_beside_its_owner(show: Show, tmp_path: Path) -> None:
    jobs = [job(f"own{n}", 1, 60, model="GCN") for n in range(4)]
    jobs += [job(f"late{n}", 1, 20, at=5, model="ESPnet")._replace(mode="opportunistic") for n in range(2)]
    found = source(tmp_path, jobs, AntMan())
    shown = show(found, path=f"#view=hived%20antman&at={306:.0f}")
    assert shown.page.evaluate(ON) == [["own0", "late0"], ["own1", "late1"], ["own2"], ["own3"]]
    assert "late0, guest, at 0.5 of its speed alone" in shown.hover(0)
    shown.page.get_by_role("tab", name="Running").click()
    shown.until_text("#queue, .queue-list", "guest")
    shown.page.locator(".queue-list button", has_text="late0").click()
    shown.until_text(".stays", "at 0.75 of its speed alone")
    shown.keep("guests")
    shown.page.get_by_role("button", name="Who has the GPUs of").click()
    shown.until("document.querySelectorAll('#timeline .w-guest.box').length >= 2")
    top = "(box) => box.getBoundingClientRect().bottom"
    guest = shown.page.locator("#timeline .box.w-guest").first
    ground = shown.page.locator("#timeline .ground").first
    assert guest.evaluate(top) <= ground.evaluate("(ground) => ground.getBoundingClientRect().top") + 1
    shown.keep("timeline-guests")
