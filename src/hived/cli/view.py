"""``hived sim view``: the dashboard over the results of ``hived simulate``."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from hived.server.app import make_app
from hived.server.results import ResultsSource
from hived.server.serving import Server

from .addresses import ANY, address, exit_signal, link
from .console import messages, output


def view(
    results: Annotated[Path, typer.Argument(help="The folder that hived simulate wrote (its --out).")] = Path(
        "results"
    ),
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve; port 0 is any that is free.")
    ] = "127.0.0.1:0",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the link and open nothing.")] = False,
) -> None:
    """Show the results of a simulation in the browser: any moment of every scheme, and the schemes side by side.

    Runs until Ctrl-C. Whoever reaches the address may look; nothing can be changed.

    Example: hived sim view results/
    """
    where = address(listen)
    with messages().status("reading results") as status:
        source = ResultsSource(results, lambda name: status.update(f"reading {name}"))
    gc.collect()
    gc.freeze()  # millions of long-lived objects: a collection would delay a picture
    has_display = sys.platform in ("darwin", "win32") or any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY"))
    code = asyncio.run(_serve(source, where, not no_browser and has_display))
    if code:
        raise typer.Exit(code)


async def _serve(source: ResultsSource, where: tuple[str, int], browse: bool) -> int:
    """Serve until a signal stops it; the exit code: 0 after Ctrl-C, 143 when terminated."""
    stopped = exit_signal()
    server = Server()
    host = where[0]
    await server.start(make_app(None, source, token=None, hosts=() if host in ANY else (host,)), listen=where)
    try:
        page = link(host, server.port or 0)
        output().print(page, markup=False)
        sys.stdout.flush()  # a reader of our pipe waits for the line
        messages().print("Ctrl-C ends this", style="dim")
        if browse:
            with suppress(webbrowser.Error):
                await asyncio.to_thread(webbrowser.open, page)
        return await stopped
    finally:
        await server.stop()
