"""The same page over a cluster on Kubernetes: gangs come, borrow, are preempted and wait, and it is seen at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tests.kubernetes.pods import gang_of, node, pod
from tests.kubernetes.replica import Replica, looking_at

from .conftest import Show

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
