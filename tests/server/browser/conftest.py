"""A browser per worker, and pages in it that must stay without errors."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.dashboard.serving import Served, find_chromium, launch
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, Route, sync_playwright

from hived.server.dashboard import Source
from hived.server.results import ResultsSource
from tests.server.results.helpers import played
from tests.simulator.helpers import Row, nodes_of_8

SCREENSHOTS = Path(os.environ.get("HIVED_SCREENSHOTS", "test-output/screenshots"))
PATIENCE_S = 120.0
#: of the run that has ended
NODES = {"prod-a": 6, "res-b": 4, "speech": 3, "vision": 3}
SPAN = 10 * 86400.0


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    try:
        find_chromium()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


class Shown:
    """A dashboard on a screen."""

    def __init__(self, page: Page, server: Served | None = None) -> None:
        """``server``: that of the test, if it is not an engine's own."""
        self.page = page
        self.server = server
        self.problems: list[str] = []
        self.forgiven: tuple[str, ...] = ("willReadFrequently",)  #: said when a test reads pixels
        self.withheld: list[Route] = []  #: requests that wait for their answer
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _answered(self, answer: Response) -> None:
        if answer.status >= 400:
            self.problems.append(f"{answer.status} {answer.url}")

    def _failed(self, request: Request) -> None:
        # a question that a later one overtook is dropped on purpose
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"failed: {request.url} {request.failure}")

    def until(self, expression: str, *arguments: Any) -> Any:
        """What JavaScript says, once it is true. (Playwright's own waiting needs `eval`, which the page forbids.)"""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            found = self.page.evaluate(expression, *arguments)
            if found:
                return found
            assert time.monotonic() < give_up, f"never true: {expression}"
            time.sleep(0.02)

    def answer(self) -> None:
        """Answer what is withheld, once there is something."""
        give_up = time.monotonic() + PATIENCE_S
        while not self.withheld:
            assert time.monotonic() < give_up, "nothing was asked"
            self.page.wait_for_timeout(20)
        while self.withheld:
            self.withheld.pop().continue_()

    def until_text(self, selector: str, text: str) -> None:
        """Once the element has the text in it."""
        self.until(f"document.querySelector({json.dumps(selector)})?.textContent.includes({json.dumps(text)})")

    def text(self, selector: str) -> str:
        """Of the first such element, as people see it: after a frame, since a row has no text before it is painted."""
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        text: str = self.page.locator(selector).first.inner_text()
        return text

    @property
    def counters(self) -> dict[str, int]:
        """What the page counted so far."""
        counted: dict[str, int] = self.page.evaluate("__hived.counters")
        return counted

    def centre(self, leaf: int) -> tuple[float, float]:
        """Where a GPU is on the page."""
        script = """leaf => { const frame = document.getElementById("map").getBoundingClientRect();
            const [left, top, right, bottom] = __hived.app.map.boxOf(leaf);
            return [frame.left + (left + right) / 2, frame.top + (top + bottom) / 2]; }"""
        x, y = self.page.evaluate(script, leaf)
        return x, y

    def colour(self, leaf: int) -> str:
        """What a GPU's tile is painted with, just inside its upper edge: ``#rrggbb``."""
        script = """leaf => { const [left, top, right] = __hived.app.map.boxOf(leaf).map((at) => at * devicePixelRatio);
            const pixel = __hived.app.map.under.getImageData((left + right) / 2, top + 4, 1, 1).data;
            return "#" + [...pixel.slice(0, 3)].map((part) => part.toString(16).padStart(2, "0")).join(""); }"""
        return str(self.page.evaluate(script, leaf))

    def hover(self, leaf: int) -> str:
        """The tip's text with the pointer on a GPU."""
        self.page.mouse.move(*self.centre(leaf))
        self.until("!document.getElementById('tip').hidden")
        return self.text("#tip")

    def keep(self, name: str) -> None:
        """A screenshot, kept as output of the tests."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.mouse.move(2, 2)
        self.page.wait_for_timeout(350)  # transitions of the bars
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


Show = Callable[..., Shown]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ResultsSource:
    """A run that has ended: four tenants on sixteen nodes over ten days, at times with more work than room.

    The same jobs in private clusters, under quota, and under hived; the last one comes as the run ends.
    """
    rng = random.Random(11)
    rows: list[Row] = []
    for number in range(900):
        tenant = rng.choices(list(NODES), weights=[5, 4, 3, 2])[0]
        gpus = rng.choices([1, 2, 4, 8, 16], weights=[4, 3, 3, 4, 1])[0]
        submitted, lasts = round(rng.uniform(0, SPAN * 0.9)), round(rng.lognormvariate(9.5, 1.1))
        rows.append((f"job-{number}", tenant, submitted, lasts, gpus))
    spec = nodes_of_8(sum(NODES.values()), NODES)
    return played(tmp_path_factory.mktemp("finished"), *rows, ("last", "vision", SPAN, 60, 1), spec=spec, until_s=SPAN)


@pytest.fixture
def show(browser: Browser) -> Iterator[Show]:
    """Open the dashboard of a source; after the test the page must have had no errors and no failed requests."""
    shown: list[Shown] = []

    def open_it(
        source: Source,
        width: int = 1440,
        height: int = 900,
        scheme: str = "light",
        ratio: float = 1,
        path: str = "",
        withheld: str = "",
    ) -> Shown:
        """``withheld``: what is asked of this address waits for :meth:`Shown.answer`; so may the first picture."""
        server = Served(source)
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            device_scale_factor=ratio,
            locale="en-GB",
            timezone_id="UTC",
        )
        one = Shown(context.new_page(), server)
        shown.append(one)
        if withheld:
            one.page.route(withheld, lambda route: one.withheld.append(route))
        one.page.goto(server.url + path)
        one.until(
            "window.__hived?.app?.palette"
            if withheld
            else "window.__hived?.app && performance.getEntriesByName('hived:first-picture').length > 0"
        )
        return one

    yield open_it
    for one in shown:
        one.page.context.close()
        if one.server is not None:
            one.server.stop()
    for one in shown:
        assert [what for what in one.problems if not any(word in what for word in one.forgiven)] == []
