"""``hived token``: tokens of people, for an engine that is reached over a network."""

from __future__ import annotations

from typing import Annotated

import typer

from hived.server.schema import MadeToken, Token

from .client import path_of
from .console import note
from .escaping import clean
from .formats import columns, print_table, timestamp
from .options import Asking, asks_engine, duration_option, vc_option

#: those that are more than to look
_ROLES = {"member": "a member of", "admin": "an admin of", "operator": "an operator of"}
_TokenArgument = Annotated[str, typer.Argument(metavar="TOKEN", help="Id of a token, by hived token ls.")]


@asks_engine
def create(
    ask: Asking,
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose it is: a name as the spec has it.")],
    vc: Annotated[
        list[str] | None, vc_option(help="Limit it to this virtual cluster; again for more.", show_default="all")
    ] = None,
    expires: Annotated[
        float | None, duration_option(help="For so long, 12h or 30d.", show_default="until it is revoked")
    ] = None,
) -> None:
    """Give somebody a token of their own, with which they use the engine as themselves. It is shown this once.

    It gives no role: the spec says who is a member of what. They put it into a file, and that into a context:
    hived context add NAME --engine URL --token-file FILE. On the machine itself nobody needs one.

    \bExamples:
      hived token create ann --vc vision --expires 30d
      umask 077; hived token create ann > ann.token
    """  # fmt: skip
    with ask.connect() as there:
        body = {"user": user, "vcs": vc or None, "lasts_s": expires}
        answer = there.post("/v1/tokens", {name: value for name, value in body.items() if value is not None})
    if ask.printed(answer):
        return
    made = there.parsed(MadeToken, answer)
    typer.echo(made.text)
    until = "" if made.token.expires_at is None else f", until {timestamp(made.token.expires_at)}"
    note(f"token {made.token.id} of {clean(made.token.user)}{until}; nobody can show it again")
    roles = [f"{_ROLES[role]} {clean(vc)}" for vc, role in made.roles.items() if role in _ROLES]
    name = clean(made.token.user)
    nobody = "by no token does anybody act as root; STATE/token is the engine's own" if name == "root" else ""
    where = f"of {' and '.join(map(clean, vc))} they are no member" if vc else "no virtual cluster has them as a member"
    looks = f"{name} only looks: {nobody or where}"
    note(f"{name} is {', '.join(roles)}" if roles else looks)


@asks_engine
def list_tokens(ask: Asking) -> None:
    """List the tokens in force, and the browsers that are signed in: for operators all, for anybody else their own.

    The tokens themselves nobody can show.

    \bExamples:
      hived token ls
      hived token ls -o json | jq '.[].user'
    """  # fmt: skip
    with ask.connect() as there:
        answer = there.get("/v1/tokens")
    if ask.printed(answer):
        return
    tokens = there.each(Token, answer)
    if not tokens:
        note("no tokens; make one: hived token create USER")
        return
    rows = [
        (
            token.id,
            token.user,
            ", ".join(token.vcs) if token.vcs is not None else "all",
            timestamp(token.created_at),
            "never" if token.expires_at is None else timestamp(token.expires_at),
            token.by or "-",
        )
        for token in tokens
    ]
    print_table(columns("ID USER VCS CREATED EXPIRES BY", cut="VCS"), rows)


@asks_engine
def revoke(ask: Asking, token: _TokenArgument) -> None:
    """End a token: it opens nothing from now on, nor does a dashboard that was opened with it. Or sign a browser out.

    \bExamples:
      hived token revoke 3f9a1c02
      hived token ls -o json | jq -r '.[] | select(.user == "ann").id' | xargs -n 1 hived token revoke
    """  # fmt: skip
    with ask.connect() as there:
        answer = there.post(path_of("tokens", token, "/revoke"))
    if not ask.printed(answer):
        gone = there.parsed(Token, answer)
        typer.echo(f"token {clean(gone.id)} of {clean(gone.user)} is revoked")
