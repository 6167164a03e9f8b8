"""The life of a process that serves: until a signal tells it to end, or something in it cannot go on."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from typing import Any


def told_to_end(terminated: int = 143, hung_up: int = 129) -> asyncio.Future[int]:
    """Done once a signal says so, with the exit code: 0 for Ctrl-C, these for the others."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what clients do wrong is answered, not logged
    loop = asyncio.get_running_loop()
    told: asyncio.Future[int] = loop.create_future()

    def tell(code: int) -> None:
        if not told.done():
            told.set_result(code)

    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, terminated), (signal.SIGHUP, hung_up)):
        loop.add_signal_handler(number, tell, code)
    return told


async def until(told: asyncio.Future[int], failed: asyncio.Future[Any], helpers: Sequence[asyncio.Task[None]]) -> None:
    """Return when ``told`` or ``failed`` is done. A helper does not end by itself: what it raises is raised here."""
    await asyncio.wait({told, failed, *helpers}, return_when=asyncio.FIRST_COMPLETED)
    for helper in helpers:
        if helper.done():
            helper.result()
