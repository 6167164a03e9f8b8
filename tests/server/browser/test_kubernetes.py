"""The same page over a cluster on Kubernetes: gangs come, borrow, are preempted and wait, and it is seen at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from hived.server.kubernetes.view import kubernetes_view
from tests.kubernetes.scheduler_harness import World

from .conftest import Show

T = TypeVar("T")


class Watched(World):
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

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(30)


def test_gangs_on_kubernetes_are_seen_to_borrow_to_be_preempted_and_to_say_why_they_wait(show: Show) -> None:
    world = Watched()
    own, loan = world.runs("vision", 4), world.runs("research", 4, pods=3, priority=-1)
    shown = show(kubernetes_view(world, "the cluster"))  # type: ignore[arg-type]  # as much as is read of an engine
    shown.until_text("#status", "live")
    first = "__hived.app.cells.ofJob({!r})[0].parts[0]"

    def leaf(name: str) -> int:
        """The first GPU of a gang, on the page: its chain's nodes have four each."""
        chain, node, at, _ = shown.until(first.format(name))
        assert chain == 0
        return int(node) * 4 + int(at)

    tip = shown.hover(leaf(own.name))
    assert own.name in tip
    assert "vision's RACK" in tip
    assert loan.name in shown.hover(leaf(loan.name))
    assert "12" in shown.text(".s-opportunistic")

    # its owner comes: one who borrowed has to go, and until then the owner waits and says for whom
    owner = world.then(lambda: world.come("speech", 4))
    world.then(lambda: world.come("vision", 4, pods=2))
    shown.until(f"__hived.app.cells.ofJob({loan.name!r})[0].stopping")
    shown.until_text("#queue", f"its GPUs are reserved; it starts once {loan.name} has ended")
    shown.until_text("#queue", f"VC vision has 4 of the 8 GPUs it needs: 4 of its 8 are held by {own.name}")
    shown.keep("kubernetes")
    world.then(lambda: world.end(loan))
    world.then(lambda: world.bind(owner))
    shown.until(f"__hived.app.cells.ofJob({owner.name!r})[0]?.kind === 'guaranteed'")
    shown.until(f"__hived.app.cells.ofJob({loan.name!r}).length === 0")
    assert "speech's NODE" in shown.hover(leaf(owner.name))

    # what became of the loan is remembered, and who did that
    shown.page.evaluate(f"__hived.app.select({loan.name!r})")
    shown.until_text("#job", f"preempted by {owner.name} of speech")

    # a node that is not ready is on the page
    node = world.then(lambda: next(name for name in ("a0", "a1", "a2", "a3") if name not in str(own.placement)))
    world.then(lambda: world.node(node, ready=False))
    shown.until_text("#totals .s-bad", "4")


def test_a_replica_that_stands_by_shows_nobody_and_who_comes_to_decide_shows_all(show: Show) -> None:
    world = Watched()
    own = world.runs("vision", 4)
    shown = show(kubernetes_view(world, "the cluster"))  # type: ignore[arg-type]  # as much as is read of an engine
    shown.until(f"__hived.app.cells.ofJob({own.name!r}).length === 1")
    world.then(world.stand_by)
    shown.until(f"__hived.app.cells.ofJob({own.name!r}).length === 0")
    world.then(world.lead)
    shown.until(f"__hived.app.cells.ofJob({own.name!r}).length === 1")
