"""Time: a clock that nobody sets, and how long to bear with an API server that begins too."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .api import ApiError

_log = logging.getLogger("hived.kubernetes")
_PATIENCE_S = 15.0  #: with an API server that does not answer as it should
T = TypeVar("T")


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, by a clock that nobody sets while we run: what is due stays due."""
    first = time.time() - time.monotonic()
    return lambda: first + time.monotonic()


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What is answered, by an API server that may be starting too: it is away then, or forbids everything at first."""
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return await ask()
        except ApiError as error:
            if error.status in (401, 404) or time.monotonic() >= give_up:
                raise
            _log.warning("%s (tried again for %d s)", error, max(0, round(give_up - time.monotonic())))
        await asyncio.sleep(1.0)
