"""``hived dashboard``: a link with which a browser acts as who asks for it."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from typing import Annotated

import typer

from hived.errors import ConflictError
from hived.server.schema import SignInLink

from .console import note
from .formats import timestamp
from .options import Asking, asks_engine


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
        with suppress(webbrowser.Error):
            webbrowser.open(link)
