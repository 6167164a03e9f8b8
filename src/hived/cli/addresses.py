"""What processes that serve share: addresses and links that lead there, the state folder, and when they end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hived.errors import InputError

#: where the engine on Kubernetes listens unless told otherwise, as one reaches it from its own machine
SCHEDULER_URL = "http://127.0.0.1:9096"
#: all addresses of this machine, and one that a browser here can open
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def address(listen: str) -> tuple[str, int]:
    """``127.0.0.1:8080``, ``[::1]:0``, ``:8080`` (loopback). Raises :class:`InputError` for what is none."""
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or (":" in bare and bare == host):
        raise InputError(f"--listen {listen}: give host and port, for example 127.0.0.1:8080 or [::1]:8080")
    return bare or "127.0.0.1", int(port)


def link(host: str, port: int, token: str = "", scheme: str = "http") -> str:
    """What a browser on this machine opens."""
    shown = ANY.get(host, host)
    where = f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{port}/"
    return f"{where}?token={token}" if token else where


def state_folder(given: Path | None) -> Path:
    """Where an engine keeps what it has to keep, and its socket."""
    if given is not None:
        return given
    if kept := os.environ.get("HIVED_STATE"):
        return Path(kept)
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state) / "hived"
    return Path("~/.local/state/hived").expanduser()


def exit_signal(terminated: int = 143, hung_up: int = 129) -> asyncio.Future[int]:
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


def text_of(file: Path, named: str, encoding: str, else_it_is: str) -> str:
    """What ``file`` holds, which is ``named`` so in errors. Raises :class:`InputError` for what cannot be read."""
    try:
        return file.read_text(encoding=encoding).strip()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else else_it_is
        raise InputError(f"{named}: cannot be read ({words})") from None
