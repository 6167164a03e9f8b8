"""Shared by the serving processes: addresses, links, the state folder, and termination by signals."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hived.errors import InputError

#: default address of the engine on Kubernetes, as seen from its own machine
SCHEDULER_URL = "http://127.0.0.1:9096"
#: the wildcard addresses, and the loopback address that a browser here can open
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


#: the folder of an engine for all users of a machine
OF_THE_MACHINE = Path("/var/lib/hived")


def address(listen: str) -> tuple[str, int]:
    """``127.0.0.1:8080``, ``[::1]:0``, ``:8080`` (loopback). Raises :class:`InputError` for anything else."""
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or (":" in bare and bare == host):
        raise InputError(f"--listen {listen}: give host and port, for example 127.0.0.1:8080 or [::1]:8080")
    return bare or "127.0.0.1", int(port)


def link(host: str, port: int, token: str = "", scheme: str = "http") -> str:
    """The URL for a browser on this machine."""
    shown = ANY.get(host, host)
    where = f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{port}/"
    return f"{where}?token={token}" if token else where


def state_folder(given: Path | None) -> Path:
    """The folder of an engine's durable state and of its socket."""
    if given is not None:
        return given
    if kept := os.environ.get("HIVED_STATE"):
        return Path(kept)
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state) / "hived"
    return Path("~/.local/state/hived").expanduser()


def has_socket(folder: Path) -> bool:
    """Whether an engine may be reached in a folder, as far as this user may look."""
    return os.path.exists(folder / "hived.sock")  # noqa: PTH110  # pathlib raises where a folder may not be passed


def engine_folder(given: Path | None) -> Path:
    """The folder in which a client finds the engine: of the machine, where this user has none and nothing was said.

    Also of one that is down, for a user who has never had one: to start another is no help.
    """
    own = state_folder(given)
    nothing_said = given is None and not os.environ.get("HIVED_STATE")
    if nothing_said and not has_socket(own):
        # as above, without pathlib
        is_down = os.path.isdir(OF_THE_MACHINE) and not os.path.exists(own)  # noqa: PTH110, PTH112
        if has_socket(OF_THE_MACHINE) or is_down:
            return OF_THE_MACHINE
    return own


def exit_signal(terminated: int = 143, hung_up: int = 129) -> asyncio.Future[int]:
    """A future that a signal completes with the exit code: 0 for Ctrl-C, these for the others."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # clients' errors are answered, not logged
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not stopped.done():
            stopped.set_result(code)

    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, terminated), (signal.SIGHUP, hung_up)):
        loop.add_signal_handler(number, stop, code)
    return stopped


async def until(stop: asyncio.Future[int], failed: asyncio.Future[Any], helpers: Sequence[asyncio.Task[None]]) -> None:
    """Return when ``stop`` or ``failed`` is done. Helpers never end by themselves: their errors are raised here."""
    await asyncio.wait({stop, failed, *helpers}, return_when=asyncio.FIRST_COMPLETED)
    for helper in helpers:
        if helper.done():
            helper.result()


def text_of(file: Path, named: str, encoding: str, else_it_is: str) -> str:
    """The text of ``file``, called ``named`` in errors. Raises :class:`InputError` if it cannot be read."""
    try:
        return file.read_text(encoding=encoding).strip()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else else_it_is
        raise InputError(f"{named}: cannot be read ({words})") from None
