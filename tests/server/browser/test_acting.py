"""What is done from the page: signing in by a link that works once, and what a role then allows."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.cli.helpers import HIVED, Engine

from .conftest import Shown

Open = Callable[[str], Shown]
#: the key that a page has, or null
KEY = "Object.entries(localStorage).find(([name]) => name.startsWith('hived-session'))?.[1] ?? null"


class Acting:
    """An engine, and what is asked of it on the machine itself; its jobs end with it."""

    def __init__(self, folder: Path, gpus: int) -> None:
        folder.mkdir(exist_ok=True)
        self.state = folder / "state"
        self.engine = Engine(folder, "--devices", str(gpus), "--vc", f"vision={gpus}", "--listen", "127.0.0.1:0")

    def __enter__(self) -> Acting:
        return self

    def __exit__(self, *_: object) -> None:
        with self.engine:
            self.run("cancel", "--all", "--yes")
            jobs = json.loads(self.run("history", "-o", "json"))["jobs"]
            self.run("wait", *[job["id"] for job in jobs], check=False)

    def run(self, verb: str, *words: str, check: bool = True) -> str:
        command = [*HIVED, verb, "--state", str(self.state), *words]
        return subprocess.run(command, check=check, capture_output=True, text=True, timeout=120).stdout

    def submit(self, *words: str) -> str:
        return str(json.loads(self.run("submit", "--vc", "vision", "-o", "json", *words))["id"])


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Acting]:
    with Acting(tmp_path, 4) as engine:
        yield engine


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open a link in a browser of its own."""
    shown: list[Shown] = []

    def open_it(link: str) -> Shown:
        context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC")
        one = Shown(context.new_page())
        shown.append(one)
        one.page.goto(link, wait_until="commit")
        one.until("window.__hived?.app && performance.getEntriesByName('hived:first-picture').length > 0")
        return one

    yield open_it
    for one in shown:
        one.page.context.close()


def press(shown: Shown, button: str, sure: bool = False) -> None:
    shown.page.locator("#job .acts").get_by_role("button", name=button, exact=True).click()
    if sure:
        shown.page.locator("#confirm .grave").click()


def test_link_works_once_and_acts(engine: Acting, open_page: Open, browser: Browser) -> None:
    """Output, cancel, submit again, hold and release; the second use of the link says why it does nothing."""
    link = engine.run("dashboard").split()[0]
    job = engine.submit("--", "sh", "-c", "echo hello there; exec sleep 600")
    waits = engine.submit("--gpus", "4", "--", "sleep", "600")
    shown = open_page(link)
    assert "sign-in" not in shown.page.url
    shown.until_text("#who", "Sign out")
    shown.page.evaluate(f"__hived.app.select({job!r})")
    shown.until_text("#job .acts", "Cancel")
    press(shown, "Output")
    shown.until_text("#log .output", "hello there")
    shown.keep("acting-output")
    shown.page.keyboard.press("Escape")
    shown.page.evaluate(f"__hived.app.select({waits!r})")
    shown.until_text("#job .acts", "Hold")
    press(shown, "Hold")
    shown.until_text("#job .tags", "held")
    press(shown, "Release")
    shown.until_text("#job .tags", "queued")
    shown.page.evaluate(f"__hived.app.select({job!r})")
    shown.until_text("#job .acts", "Cancel")
    shown.keep("acting-job")
    press(shown, "Cancel", sure=True)
    shown.until_text("#job .acts", "Submit again")
    assert json.loads(engine.run("history", "-o", "json"))["jobs"][0]["state"] == "cancelled"
    press(shown, "Submit again")
    shown.until("document.querySelector('#job h2').textContent.endsWith('-3')")
    assert shown.problems == []
    context = browser.new_context()
    other = Shown(context.new_page())  # nothing is left of the link: it may not even look
    other.page.goto(link, wait_until="commit")
    other.until_text("#trouble", "this link was used already, or is too old: hived dashboard makes another")
    context.close()


def test_operator_drains_a_node(engine: Acting, open_page: Open) -> None:
    shown = open_page(engine.run("dashboard").split()[0])
    shown.until_text("#who", "Sign out")
    shown.page.keyboard.press("g")
    shown.until_text("#timeline .head", "Drain")
    shown.page.locator("#timeline .head .act").click()
    shown.page.locator("#confirm .grave").click()
    shown.until_text("#timeline .head", "Take jobs again")
    shown.keep("acting-drain")
    assert all(device["drained"] for device in json.loads(engine.run("devices", "-o", "json"))["nodes"][0]["devices"])
    shown.page.locator("#timeline .head .act").click()
    shown.until("document.querySelector('#timeline .head .act').textContent === 'Drain'")
    assert shown.problems == []


def test_cookie_only_looks_until_somebody_signs_in(engine: Acting, open_page: Open) -> None:
    """And again once they have signed out; the key is gone from the page then, and means nothing any more."""
    shown = open_page(engine.run("dashboard").split()[0])
    shown.until_text("#who", "Sign out")
    job = engine.submit("--", "sleep", "600")
    shown.page.evaluate(f"__hived.app.select({job!r})")
    shown.until_text("#job .acts", "Cancel")
    key = shown.page.evaluate(KEY)
    shown.forgiven = ("401",)
    shown.page.locator("#who button").click()
    shown.until("document.getElementById('who').hidden")
    shown.until_text("#trouble", "You are signed out. The command hived dashboard prints a link")
    assert shown.page.evaluate(KEY) is None
    script = """async key => (await fetch("/v1/jobs/1/cancel",
        {method: "POST", headers: {Authorization: `Bearer ${key}`}})).status"""
    assert shown.page.evaluate(script, key) == 401


def test_two_dashboards_on_one_host(tmp_path: Path, browser: Browser) -> None:
    """In one browser, each acts on its own engine; neither's key or cookie opens the other."""
    with Acting(tmp_path / "a", 2) as one, Acting(tmp_path / "b", 2) as other:
        context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC")
        pages = []
        for engine in (one, other):
            shown = Shown(context.new_page())
            shown.page.goto(engine.run("dashboard").split()[0], wait_until="commit")
            shown.until_text("#who", "Sign out")
            pages.append(shown)
        for engine, shown in zip((one, other), pages, strict=True):
            job = engine.submit("--", "sleep", "600")
            shown.page.evaluate(f"__hived.app.select({job!r})")
            shown.until_text("#job .acts", "Cancel")
            press(shown, "Cancel", sure=True)
            shown.until_text("#job .acts", "Submit again")
            assert shown.problems == []
        keys = [shown.page.evaluate(KEY) for shown in pages]
        script = "async key => (await fetch('/v1/me', {headers: {Authorization: `Bearer ${key}`}})).status"
        assert [pages[0].page.evaluate(script, key) for key in keys] == [200, 401]
        context.close()


def test_gpu_hours(engine: Acting, open_page: Open) -> None:
    """Who has had how much, by virtual cluster and user: the figures of hived usage."""
    job = engine.submit("--gpus", "2", "--", "sleep", "3")
    engine.run("wait", job)
    shown = open_page(engine.run("dashboard").split()[0])
    shown.page.click("#usage-open")
    shown.until("document.querySelectorAll('#usage tbody tr').length === 2")
    whole, own = (shown.page.locator("#usage tbody tr").nth(at).inner_text().split() for at in (0, 1))
    (row,) = json.loads(engine.run("usage", "--by", "user", "-o", "json"))
    assert whole[:2] == ["vision", "1"]
    assert own[:2] == [row["user"], "1"]
    assert float(own[2]) == pytest.approx(row["guaranteed"], abs=0.006)
    assert float(whole[-2]) > 0, "what is reserved"
    shown.page.select_option("#usage select", "86400")
    shown.until("document.querySelectorAll('#usage tbody tr').length === 2")
    shown.keep("gpu-hours")
    shown.page.keyboard.press("Escape")
    shown.until("!document.getElementById('usage').open")
