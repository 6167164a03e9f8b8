"""``hived dashboard``: a link with which a browser acts as who asks for it."""

from __future__ import annotations

import html
import os
import tempfile
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from hived.errors import ConflictError
from hived.server.schema import SignInLink

from .console import note
from .formats import timestamp
from .options import Asking, asks_engine

#: within which a browser has read a file
_READS_S = 5.0


@asks_engine
def dashboard(
    ask: Asking, opens: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser too.")] = False
) -> None:
    """Print a link to the dashboard that works once, within five minutes: the browser acts as you from then on.

    There you cancel, hold, queue and submit again what is yours to, read output, and as an operator drain nodes, until
    you sign out, or for twelve hours. Over SSH, forward the port first: ssh -L 8080:localhost:8080 gpu1.

    \bExamples:
      hived dashboard
      hived dashboard --open
    """  # fmt: skip
    with ask.connect() as there:
        answer = there.post("/v1/sign-in-links")
        if ask.printed(answer):
            return
        made = there.parsed(SignInLink, answer)
        base = made.address if there.local else f"{there.address}/"
    if base is None:
        raise ConflictError("this engine serves no dashboard; stop hived up and start it with --listen 127.0.0.1:8080")
    link = f"{base}#sign-in={made.code}"
    typer.echo(link)
    note(f"it works once, until {timestamp(made.until)}")
    if opens:
        _open(link)


def _open(link: str) -> None:
    """Open a link in a browser by way of a file of one's own: everybody can read the arguments of a process."""
    number, path = tempfile.mkstemp(prefix="hived-", suffix=".html")
    try:
        with os.fdopen(number, "w", encoding="utf-8") as page:
            page.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(link)}">')
        with suppress(webbrowser.Error):
            webbrowser.open(f"file://{path}")
        time.sleep(_READS_S)
    finally:
        Path(path).unlink(missing_ok=True)
