"""Virtual clusters, queue, jobs, charts, and what comes from users."""

from __future__ import annotations

import pytest
from benchmarks.dashboard.stubs import LiveStub, held, small_cluster, waits

from .conftest import Show

EVIL = "<img src=x onerror=alert(1)>"


def test_vcs(show: Show) -> None:
    """What each reserves, uses, lends and borrows; a click brings it out on the map, and another lets go."""
    shown = show(small_cluster())
    vision, speech = (shown.page.locator(".vc").nth(at).inner_text() for at in (0, 1))
    for words in ("vision", "2 / 4", "lends 1", "1 job waiting", "1 × socket of 4"):
        assert words in vision
    assert "borrows 1" in speech
    shown.page.click(".vc >> nth=0")
    shown.until("__hived.app.map.filter === 'vision'")
    assert shown.page.locator(".vc").first.get_attribute("aria-pressed") == "true"
    assert shown.page.locator(".chip").first.get_attribute("aria-pressed") == "true"
    shown.page.click(".vc >> nth=0")
    shown.until("__hived.app.map.filter === null")


def test_queue(show: Show) -> None:
    """Reasons in words; it can be filtered, and a job opens with all of its reasons, and goes on."""
    source = small_cluster()
    shown = show(source)
    first = shown.text(".waiting")
    for words in ("swin-large-7", "vision", "4 GPUs", "they are not one socket", "1 more reason"):
        assert words in first
    shown.page.keyboard.press("/")
    shown.page.keyboard.type("finetune")
    shown.until("document.querySelectorAll('.waiting').length === 1")
    assert "lm-eval-8" in shown.text(".waiting")
    shown.page.keyboard.type(" zebra")
    shown.until_text("#queue", "No waiting job has these words")
    shown.page.keyboard.press("Escape")
    shown.until("document.querySelectorAll('.waiting').length === 3")
    shown.page.click(".waiting >> nth=0")
    shown.until_text("#job .explanation", "waits for resnet-1")
    assert "queued" in shown.text("#job .tags")
    source.change([held("7", "swin-large-7", "vision", "guaranteed", [(0, 0, 0, 4)])], gone=["1", "4"], queue=[])
    shown.until_text("#job .tags", "running")


def test_nothing_is_said_before_it_is_known(show: Show) -> None:
    # "No job waits", until the first picture came with three that did
    shown = show(small_cluster(), withheld="**/v1/dashboard/stream*")
    shown.until("document.getElementById('list-waiting')?.textContent")
    for name in ("waiting", "running"):
        shown.page.click(f"#list-{name}")
        assert shown.text(f"#list-{name}") == name.capitalize()
        assert "No job" not in shown.text("#queue")
    shown.page.click("#list-waiting")
    shown.answer()
    shown.until_text("#list-waiting", "Waiting 3")
    shown.until_text("#queue", "swin-large-7")


def test_no_job_has_ended_once_that_is_known(show: Show) -> None:
    shown = show(small_cluster(), withheld="**/v1/dashboard/ended*")
    shown.until_text("#list-waiting", "Waiting 3")
    shown.page.click("#list-ended")
    assert "No job" not in shown.text("#queue")
    shown.answer()
    shown.until_text("#queue", "No job has ended yet")


def test_story_of_a_job(show: Show) -> None:
    shown = show(small_cluster(), path="#job=1")
    shown.until_text("#job .command", "python train.py")
    assert shown.page.locator("#job .timeline > span").count() == 5
    assert "preempted by speech/asr-3" in shown.text("#job .moments")
    assert "gpu-box:0,1" in shown.text("#job .stays")


def test_focus_on_an_opened_job(show: Show) -> None:
    shown = show(small_cluster())
    focused = "document.activeElement.id || document.activeElement.querySelector('.name')?.textContent"
    shown.page.locator(".waiting >> nth=1").focus()
    for close in ("Escape", "Enter"):
        shown.page.keyboard.press("Enter")
        shown.until_text("#job .explanation", "finetune-bert-5 has the other")
        assert shown.page.evaluate(focused) == "job-heading"
        if close == "Enter":
            shown.page.keyboard.press("Tab")  # to the button that closes it
        shown.page.keyboard.press(close)
        shown.until("document.getElementById('job').hidden")
        assert shown.page.evaluate(focused) == "lm-eval-8"
    shown.page.locator("#map").focus()
    shown.page.keyboard.press("ArrowRight")
    shown.page.keyboard.press("Enter")
    shown.until_text("#job .command", "python train.py")
    assert shown.page.evaluate(focused) == "job-heading"
    shown.page.keyboard.press("Escape")
    assert shown.page.evaluate(focused) == "map"


def test_focus_over_changes(show: Show) -> None:
    source = small_cluster()
    shown = show(source)
    for what in (".waiting >> nth=1", ".vc >> nth=1", ".chip >> nth=1"):
        shown.page.locator(what).focus()
        shown.page.keyboard.press("t")
        assert shown.page.locator(what).evaluate("one => one === document.activeElement"), what
    shown.page.locator(".waiting >> nth=1").focus()
    source.change(queue=[job for job in source.line if job.id != "8"])
    shown.until("document.querySelectorAll('.waiting').length === 2")
    assert shown.page.locator(".waiting >> nth=1").evaluate("one => one === document.activeElement")
    source.change(queue=source.line[::-1])
    shown.until("document.querySelector('.waiting .name').textContent === 'sweep-9'")
    assert shown.page.evaluate("document.activeElement.querySelector('.name').textContent") == "sweep-9"


def test_whole_queue(show: Show) -> None:
    source = small_cluster()
    source.change(queue=[waits(f"q{number}", f"job-{number}", "vision", 1, ["full"]) for number in range(450)])
    shown = show(source)
    shown.until_text("#queue-note", "first 200 of 450")
    assert shown.page.locator(".waiting").count() == 200
    shown.page.click(".show-more")
    shown.until("document.querySelectorAll('.waiting').length === 450")
    assert shown.page.locator(".show-more").is_hidden()
    shown.until_text("#queue-note", "450 jobs")
    source.change(queue=[job for job in source.line if job.id not in ("q3", "q400")])
    shown.until("document.querySelectorAll('.waiting').length === 448")
    shown.page.fill("#queue-filter", "job-449")
    shown.until("document.querySelectorAll('.waiting').length === 1")


def test_running_and_ended_jobs(show: Show) -> None:
    source = small_cluster()
    shown = show(source)
    shown.until_text("#status", "live")
    assert shown.text("#lists").split() == ["Waiting", "3", "Running", "3", "Ended"]
    shown.page.click("#list-running")
    shown.until("document.querySelectorAll('.waiting').length === 3")
    assert shown.page.locator(".waiting .name").all_text_contents() == ["asr-4", "finetune-bert-5", "resnet-1"]
    assert "speech · 1 GPU" in shown.text(".waiting")
    source.change(gone=["4"])
    shown.until("document.querySelectorAll('.waiting').length === 2")
    shown.page.keyboard.press("ArrowRight")
    shown.until("document.querySelectorAll('.waiting').length === 1")
    assert shown.page.evaluate("document.activeElement.id") == "list-ended"
    for words in ("asr-4", "succeeded", "ago"):
        assert words in shown.text(".waiting")
    source.change(gone=["5"])
    shown.until("document.querySelectorAll('.waiting').length === 2")
    assert "finetune-bert-5" in shown.text(".waiting")


def test_one_node_is_not_fragmented(show: Show) -> None:
    source = small_cluster()
    source.change(gone=["4", "5", "6"], holders=[held("1", "all-1", "vision", "guaranteed", [(0, 0, 0, 8)])], bad=[])
    shown = show(source)
    assert "ragment" not in shown.page.locator("body").inner_text()
    assert shown.page.locator(".s-fragmentation").is_hidden(), "of one node it would be all or nothing"
    assert shown.page.locator(".chart:visible").count() == 2
    second = source.chains[0].model_copy(update={"nodes": ["gpu-box", "second-box"]})
    source.rebuild([second])
    shown.until("!document.body.classList.contains('one-node')")
    assert "nodes in guaranteed use" in shown.text(".s-fragmentation").lower()


def test_nothing_to_show(show: Show) -> None:
    """An empty cluster says how to use it; a job that is not there is said in words."""
    small = small_cluster()
    shown = show(LiveStub(small.chains, small.vcs, "an empty box"))
    shown.forgiven = (*shown.forgiven, "404")
    assert "hived submit --vc vision --gpus 2 -- python train.py" in shown.text("#queue")
    shown.page.evaluate("__hived.app.select('999')")
    shown.until_text("#job", "no job 999")


def test_name_is_no_script(show: Show) -> None:
    source, waiting = small_cluster(), EVIL.replace("x", "waits")
    source.change(
        [held("1", EVIL, "vision", "guaranteed", [(0, 0, 0, 2)], binding=EVIL)],
        queue=[waits("77", waiting, "vision", 2, [waiting])],
    )
    shown = show(source)
    shown.page.on("dialog", lambda dialog: shown.problems.append(f"a script ran: {dialog.message}"))
    assert EVIL in shown.hover(0)
    shown.page.mouse.click(*shown.centre(0))
    shown.until_text("#job h2", EVIL)
    shown.page.keyboard.press("Escape")
    shown.until("document.getElementById('job').hidden")
    assert shown.text(".waiting").count(waiting) == 2
    shown.page.click(".waiting >> nth=0")
    shown.until_text("#job h2", waiting)
    assert shown.page.locator("img").count() == 0


def test_values_of_a_chart(show: Show) -> None:
    shown = show(small_cluster())
    shown.until("__hived.app.curves.curves?.at.length > 100")
    plot = shown.page.locator(".plot").first
    plot.hover(position={"x": 120, "y": 40})
    shown.until("document.querySelector('.chart .moment').textContent.length > 0")
    plot.focus()
    read = shown.text(".chart .moment")
    for _ in range(3):
        shown.page.keyboard.press("ArrowLeft")
    shown.until(f"document.querySelector('.chart .moment').textContent !== {read!r}")


def test_theme_is_remembered(show: Show) -> None:
    shown = show(small_cluster(), scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = shown.page.evaluate(background)
    shown.page.keyboard.press("t")
    light = shown.page.evaluate(background)
    assert dark != light
    shown.page.reload()
    shown.until("window.__hived?.app.cells?.known")
    assert shown.page.evaluate(background) == light


def test_help_and_banner(show: Show) -> None:
    """Shortcuts are listed under a question mark; simulated devices are said to be."""
    shown = show(small_cluster())
    assert "Simulated devices" in shown.text("#banner")
    shown.page.keyboard.press("?")
    assert "from GPU to GPU" in shown.text("#help")
    shown.page.keyboard.press("Escape")
    shown.until("!document.getElementById('help').open")
    real = small_cluster()
    real.synthetic = False
    real.rebuild(real.chains)
    assert show(real).page.locator("#banner").is_hidden()


def test_controls_have_names(show: Show) -> None:
    shown = show(small_cluster())
    nameless = shown.page.evaluate("""() => [...document.querySelectorAll("button, select, input, [tabindex]")]
        .filter((one) => one.checkVisibility() && !(one.getAttribute("aria-label") || one.labels?.length
            || one.textContent.trim() || one.getAttribute("aria-labelledby"))).map((one) => one.outerHTML)""")
    assert nameless == []
    reached = set()
    for _ in range(40):
        shown.page.keyboard.press("Tab")
        reached.add(shown.page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"theme", "help-open", "map", "queue-filter", "vc", "waiting", "chip", "plot"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_palette(show: Show, scheme: str) -> None:
    """Words have the contrast that WCAG asks for, and what is drawn has the colours of the page."""
    shown = show(small_cluster(), scheme=scheme)
    weak = shown.page.evaluate(
        """async theme => { const { Palette, ratio } = await import("/static/js/palette.js");
        const palette = new Palette(theme, Array.from({ length: 24 }, (_, number) => `vc-${number}`));
        const pairs = palette.vcs.flatMap((vc) => [[vc.text, vc.solid], [palette.ink, vc.pale]]);
        for (const ground of ["panel", "group", "deep", "idle"]) pairs.push([palette.soft, palette[ground]]);
        return pairs.filter(([words, ground]) => ratio(words, ground) < 4.5); }""",
        scheme,
    )
    assert weak == []
    differ = shown.page.evaluate(
        """async theme => { const { Palette } = await import("/static/js/palette.js");
        const probe = document.body.appendChild(document.createElement("i"));
        const seen = (colour) => { probe.style.color = colour; return getComputedStyle(probe).color; };
        const page = getComputedStyle(document.documentElement);
        const colours = Object.entries(new Palette(theme, [])).filter(([, colour]) => /^(#|rgb)/.test(colour));
        return colours.map(([name, colour]) => {
            const own = "--" + name.replace(/[A-Z]/g, (letter) => "-" + letter.toLowerCase());
            return [own, page.getPropertyValue(own) ? seen(`var(${own})`) : "not on the page", seen(colour)];
        }).filter(([, shown, drawn]) => shown !== drawn); }""",
        scheme,
    )
    assert differ == []


def test_colours_for_all_colour_vision(show: Show) -> None:
    shown = show(small_cluster())
    looks = shown.page.evaluate(
        """async () => { const { Palette, parts } = await import("/static/js/palette.js");
        return new Palette("light", Array.from({ length: 24 }, (_, number) => `vc-${number}`)).vcs
            .map(({ solid, mark }) => [...parts(solid), mark]); }"""
    )
    for view in COLOUR_VISION.values():
        for at, (*first, mark) in enumerate(looks):
            for *second, other in looks[:at]:
                if mark == other:
                    a, b = (seen(view, colour) for colour in (first, second))
                    assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 30


#: what is seen of linear red, green and blue (Viénot, Brettel and Mollon 1999)
COLOUR_VISION = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red cones": ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1)),
    "no green cones": ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1)),
}


def seen(view: tuple[tuple[float, ...], ...], colour: list[float]) -> list[float]:
    """A colour (0 to 255) as somebody sees it."""
    linear = [(part / 255) ** 2.2 for part in colour]
    mixed = [sum(weight * part for weight, part in zip(row, linear, strict=True)) for row in view]
    return [255 * max(0.0, part) ** (1 / 2.2) for part in mixed]
