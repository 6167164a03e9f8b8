"""A clock that stands still until it is told to go on, and sleeps that are measured by it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta


class Time:
    """Of one event loop."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        """Seconds."""
        return self._now

    def date(self) -> datetime:
        """The same, for people."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now)

    async def sleep(self, seconds: float) -> None:
        """Until the clock has gone on so far."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let so much time pass; whoever wakes meanwhile does what there is to do."""
        until = self._now + seconds
        await self.run_ready()
        while self._sleepers and self._sleepers[0][0] <= until:
            self._now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
                await self.run_ready()
        self._now = until

    async def run_ready(self) -> None:
        """Until nobody has anything to do at this moment."""
        for _ in range(12):
            await asyncio.sleep(0)
