"""Jobs that share GPUs, as the dashboard of results shows them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hived.engine.states import JobState
from hived.policies import AntMan, Gandiva
from tests.engines.driver import job as submitted
from tests.engines.test_guests import SETTLE_S, Hosts, hosting
from tests.engines.test_taking_turns import Turns, sliced
from tests.server.results.test_sharing import MINUTE, source
from tests.server.test_live import looking_at
from tests.simulator.sharing import job

from .conftest import Shown
from .test_finished import AT

Show = Callable[..., Shown]
#: the GPUs of a job
LEAVES = """(id) => { const { cells } = __hived.app, found = [];
    cells.each(cells.holders.get(`r${id}`).parts, (leaf) => found.push(leaf));
    return found; }"""
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
    assert "takes turns" in tip
    assert "jobs on this GPU" in tip
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
    tip = rows(shown.hover(0))
    assert tip["owner"].startswith("own0 (")
    assert tip["guest"].startswith("late0 (")
    assert "at 0.75" in tip["guest"]
    shown.page.get_by_role("tab", name="Running").click()
    shown.until_text("#queue, .queue-list", "guest")
    shown.page.locator(".queue-list button", has_text="late0").click()
    shown.until_text(".stays", "at 0.75")
    shown.keep("guests")
    shown.page.get_by_role("button", name="Who has the GPUs of").click()
    shown.until("document.querySelectorAll('#timeline .w-guest.box').length >= 2")
    top = "(box) => box.getBoundingClientRect().bottom"
    guest = shown.page.locator("#timeline .box.w-guest").first
    ground = shown.page.locator("#timeline .ground").first
    assert guest.evaluate(top) <= ground.evaluate("(ground) => ground.getBoundingClientRect().top") + 1
    shown.keep("timeline-guests")


# -- a running engine -------------------------------------------------------------------------------------------------

#: the colour of a spot of a GPU's tile: parts of its width and height
SPOT = """([leaf, x, y]) => {
    const [left, top, right, bottom] = __hived.app.map.boxOf(leaf).map((at) => at * devicePixelRatio);
    const at = [left + x * (right - left), top + y * (bottom - top)];
    return [...__hived.app.map.under.getImageData(...at, 1, 1).data].join(); }"""


def rows(tip: str) -> dict[str, str]:
    """The tip of a GPU, by role; of jobs of one role the last."""
    lines = tip.splitlines()
    return dict(zip(lines[1::2], lines[2::2], strict=False))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_live_owner_and_guest(show: Show, scheme: str) -> None:
    """The tile is split, the tip has both jobs with what they may use, and the guest's panel says why."""
    driver = Hosts(hosting(("vision", 1), ("speech", 1), devices=2))
    driver.now = time.time() - 120
    owner, other = driver.submit(submitted("vision")), driver.submit(submitted("speech"))
    driver.busy[other.id] = 0.9
    driver.pass_time(SETTLE_S + 20)
    guest = driver.submit(submitted("speech", early=True))
    driver.pass_time(60)
    shown = show(looking_at(driver), scheme=scheme)
    (leaf,) = shown.page.evaluate(LEAVES, owner.key)
    alone = 1 - leaf
    split, whole = (len({shown.page.evaluate(SPOT, [at, 0.93, y / 20]) for y in range(2, 19)}) for at in (leaf, alone))
    assert split > 2, "a part of the owner, and one of the guest, hatched"
    assert whole == 1
    tip = rows(shown.hover(leaf))
    assert tip["owner"].startswith(f"{owner.name} (vision), limited to")
    assert tip["guest"].startswith(f"{guest.name} (speech), limited to 70% of the time and 1 GiB, since ")
    assert "owner" not in shown.hover(alone)
    shown.keep(f"live-guest-{scheme}")
    driver.busy[owner.id] = 1.0
    driver.pass_time(60)
    assert guest.state is JobState.SUSPENDED
    shown.until(f"__hived.app.cells.holders.get('r{guest.id}').suspended")
    assert f"{guest.name} (speech), suspended" in shown.hover(leaf)
    shown.page.get_by_role("tab", name="Running").click()
    shown.page.locator(".queue-list button", has_text=guest.name).click()
    shown.until_text("#job .explanation", "leaves no time")
    high = "[...document.querySelectorAll('#job .explanation p')].every((one) => one.scrollHeight <= one.clientHeight)"
    assert shown.page.evaluate(high), "a long explanation scrolls, and its lines do not cover each other"
    shown.keep(f"live-guest-held-{scheme}")
    shown.page.keyboard.press("g")
    shown.until("document.querySelectorAll('#timeline .w-guest.box').length >= 2")
    titles = shown.page.locator("#timeline .w-guest.box").evaluate_all("(all) => all.map((box) => box.title)")
    assert any("at most 70% of the time" in title for title in titles)
    shown.keep(f"live-timeline-guest-{scheme}")


def test_live_turns(show: Show) -> None:
    """Each job that takes turns is told with its part of the time, the one that stands still too."""
    driver = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    driver.now = time.time() - 60
    jobs = [driver.submit(submitted("vision")) for _ in range(3)]
    driver.pass_time(25)
    shown = show(looking_at(driver))
    (still,) = [found for found in jobs if found.state is JobState.SUSPENDED]
    (leaf,) = shown.page.evaluate(LEAVES, still.key)
    tip = shown.hover(leaf)
    assert tip.count("takes turns") == 2
    assert tip.count("66.7% of the time") == 2
    assert f"{still.name} (vision), suspended" in tip
    shown.keep("live-turns")
    shown.page.mouse.click(*shown.centre(leaf))
    shown.until_text("#job .explanation", "it has its turn 67% of the time")


def test_live_timeline(show: Show) -> None:
    """Turns one by one, and as shares over a day; up to now, and from a job's panel."""
    driver = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    driver.now = time.time() - 600
    jobs = [driver.submit(submitted("vision")) for _ in range(3)]
    driver.pass_time(595)
    shown = show(looking_at(driver))
    page = shown.page
    page.keyboard.press("g")
    shown.until("document.querySelectorAll('#timeline .box').length >= 50")
    assert page.locator("#timeline .band").count() == 4
    assert page.get_by_label("How long").evaluate("(one) => one.selectedOptions[0].text") == "1 hour"
    page.get_by_label("How long").select_option("600")
    shown.until_text("#timeline figure", ":")
    script = """() => { const edges = (what, edge) => [...document.querySelectorAll(`#timeline ${what}`)]
        .map((one) => one.getBoundingClientRect()[edge]);
        return [Math.max(...edges(".box", "right")), edges("i.now", "left")[0], edges(".band", "right")[0]]; }"""
    last, now, end = page.evaluate(script)  # of one moment: the picture moves on
    assert last <= now + 2 < end, "nobody has a GPU after now"
    assert shown.text("#timeline .legend").split("\n") == ["alone on the GPU", "now"]
    title = str(page.locator("#timeline .box").first.get_attribute("title"))
    assert title.startswith("train-1 of vision\nalone on the GPU\nfrom ")
    shown.keep("live-timeline-turns")
    page.get_by_label("How long").select_option("86400")
    shown.until("document.querySelectorAll('#timeline .w-sliced').length >= 3")
    assert "% of the time" in str(page.locator("#timeline .box").first.get_attribute("title"))
    page.get_by_role("button", name="Earlier").click()
    shown.until("!document.querySelector('#timeline i.now')")
    page.get_by_role("button", name="Later").click()
    page.locator("#timeline .users button", has_text=jobs[1].name).click()
    shown.until_text("#job-heading", jobs[1].name)
    assert not page.locator("#timeline").evaluate("(dialog) => dialog.open")
    page.get_by_role("button", name="Who has the GPUs of node").click()
    shown.until("document.querySelector('#timeline').open && document.querySelector('#timeline i.now')")
