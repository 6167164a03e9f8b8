"""The page over an engine: what happens arrives, a lost one comes back; over a real one, and one on Kubernetes."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from benchmarks.dashboard.stubs import held, small_cluster, waits
from playwright.sync_api import Browser

from tests.cli.helpers import Engine
from tests.kubernetes.pods import gang_of, node, pod
from tests.kubernetes.replica import Replica, looking_at

from .conftest import Show, Shown


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


@pytest.mark.smoke
def test_demo_is_live(browser: Browser, tmp_path: Path) -> None:
    """Placements, preemptions and reasons for waiting are shown as they happen, and the page has no errors."""
    with Engine(tmp_path, "--demo", state=False) as engine:
        link, told = None, ""
        while link is None:
            told += engine.line()
            link = re.search(r"(http://\S+)\n[^\n]*token=\.\.\. as it is in (\S+/token)\n", told)
        context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-GB", timezone_id="UTC")
        shown = Shown(context.new_page())
        token = Path(link[2]).read_text(encoding="ascii")
        shown.page.goto(f"{link[1]}?token={token}", wait_until="commit")  # what has to be there is waited for below
        assert "token" not in shown.page.url
        shown.until("window.__hived?.app && performance.getEntriesByName('hived:first-picture').length > 0")
        shown.until_text("#status", "live")
        where = "__hived.app.cells.ofJob('4').find((holder) => holder.kind === 'guaranteed')?.parts[0][2]"
        tip = shown.hover(shown.until(where))  # resnet-4, once the loan on its GPUs has gone; of one node
        assert "resnet-4" in tip
        assert "vision's SOCKET" in tip
        shown.until_text("#queue", "VC vision has 2 of the 4 GPUs it needs")
        shown.keep("real-demo")
        shown.page.evaluate("__hived.app.select('3')")
        shown.until("document.body.textContent.includes('preempted by resnet-4 of vision')")
        shown.keep("real-demo-story")
        assert shown.problems == []
        context.close()
        assert engine.stop(signal.SIGINT)[0] == 0


T = TypeVar("T")


class Watched(Replica):
    """One that a server looks at from its own thread, where all that happens then has to happen."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def changed(self, seq: int) -> None:
        self._loop = asyncio.get_running_loop()
        await super().changed(seq)

    def then(self, happens: Callable[[], T]) -> T:
        """What happens while somebody looks."""
        assert self._loop is not None

        async def there() -> T:
            return happens()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(120)


def test_gangs_borrow_wait_and_preempt(show: Show) -> None:
    replica = Watched()
    world = replica.world
    own, loan = pod("own", 4, "vision"), gang_of("loan", 3, 4, "research", priority="-1")
    world.run(own, *loan)
    shown = show(looking_at(replica))
    shown.until_text("#status", "live")
    first = "__hived.app.cells.ofJob({!r})[0].parts[0]"

    def leaf(name: str) -> int:
        """The first GPU of a gang, on the page: its chain's nodes have four each."""
        chain, node, at, _ = shown.until(first.format(name))
        assert chain == 0
        return int(node) * 4 + int(at)

    tip = shown.hover(leaf("t/own"))
    assert "t/own" in tip
    assert "vision's RACK" in tip
    assert "t/loan" in shown.hover(leaf("t/loan"))
    assert "12" in shown.text(".s-opportunistic")

    # its owner comes: one who borrowed has to go, and until then the owner waits and says for whom
    replica.then(lambda: world.create(pod("owner", 4, "speech"), *gang_of("next", 2, 4, "vision")))
    replica.then(lambda: [world.question(name) for name in ("owner", "next-0")])
    shown.until("__hived.app.cells.ofJob('t/loan')[0].stopping")
    shown.until_text("#queue", "its GPUs are reserved; it starts once t/loan has ended")
    shown.until_text("#queue", "VC vision has 4 of the 8 GPUs it needs: 4 of its 8 are held by t/own")
    shown.keep("kubernetes")
    replica.then(lambda: world.gone(*loan))
    replica.then(lambda: world.ask("owner"))
    shown.until("__hived.app.cells.ofJob('t/owner')[0]?.kind === 'guaranteed'")
    shown.until("__hived.app.cells.ofJob('t/loan').length === 0")
    assert "speech's NODE" in shown.hover(leaf("t/owner"))

    # what became of the loan is remembered, and who did that
    shown.page.evaluate("__hived.app.select('t/loan')")
    shown.until_text("#job", "preempted by t/owner of speech")

    # a node that is not ready is on the page
    idle = sorted({"a0", "a1", "a2", "a3"}.difference(world.places("own"), world.places("owner")))
    replica.then(lambda: world.set_node(node(idle[0], ready=False)))
    shown.until_text("#totals .s-bad", "4")


def test_replica_that_stands_by(show: Show) -> None:
    replica = Watched()
    replica.world.run(pod("own", 4, "vision"))
    shown = show(looking_at(replica))
    shown.until("__hived.app.cells.ofJob('t/own').length === 1")
    replica.then(replica.stand_by)
    shown.until("__hived.app.cells.ofJob('t/own').length === 0")
    replica.then(replica.lead)
    shown.until("__hived.app.cells.ofJob('t/own').length === 1")
