"""Tests of what waits: a virtual clock that only :meth:`Time.advance` moves, and tests that are coroutines."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


class Time:
    """The virtual clock of one event loop."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        return self._now

    def date(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now)

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Advance the clock, and run tasks that wake meanwhile."""
        until = self._now + seconds
        await self.run_ready()
        while self._sleepers and self._sleepers[0][0] <= until:
            self._now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
                await self.run_ready()
        self._now = until

    async def run_ready(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)


def played(story: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine, in an event loop of its own; its arguments with an ``aclose`` are closed there."""

    @wraps(story)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        async def run() -> None:
            async with AsyncExitStack() as stack:
                for one in (*args, *kwargs.values()):
                    if hasattr(one, "aclose"):
                        stack.push_async_callback(one.aclose)
                await story(*args, **kwargs)

        asyncio.run(run())

    return test
