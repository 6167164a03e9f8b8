"""``hived groups``: affinity groups on Kubernetes."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from hived.errors import InputError
from hived.server.kubernetes.schema import GroupInfo, Groups, GroupStateName

from .client import Engine
from .console import note
from .formats import Form, clean, print_answer, print_table
from .kubernetes import group_columns, group_rows, scheduler
from .options import FormOption, NumberOption, OfVcOption, SchedulerOption, TokenOption

_STATES: tuple[str, ...] = get_args(GroupStateName)
_PAGE = 1_000


def groups(
    vc: OfVcOption = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help=f"In this state: {', '.join(_STATES)}.",
            show_default="any",
            autocompletion=lambda: list(_STATES),
        ),
    ] = None,
    number: NumberOption = 100,
    form: FormOption = Form.TABLE,
    engine: SchedulerOption = None,
    token_file: TokenOption = None,
) -> None:
    """List the affinity groups: pods that are placed all or none. Where they are, or why they are not there yet.

    PODS: there are, of those that there have to be. PRIO: opp for opportunistic. AGE: how long it is in this state.

    \bExamples:
      hived groups
      hived groups --vc vision --state waiting
      hived groups -n 0 -o json | jq '.groups[].name'
    """
    if state is not None and state not in _STATES:
        raise InputError(f"--state {state}: no state of a group; one of {', '.join(_STATES)}")
    with scheduler(engine, token_file, "hived ps") as there:
        answer = _listed(there, vc, state, number)
    if form is not Form.TABLE:
        print_answer(answer.model_dump(), form)
        return
    if not answer.groups:
        note("no groups" + (f" of {clean(vc)}" if vc else "") + (f" that are {state}" if state else ""))
        return
    print_table(group_columns(), group_rows(answer.groups))
    if len(answer.groups) < answer.total:
        note(f"{len(answer.groups):,} of {answer.total:,} groups; all of them: -n 0")


def _listed(there: Engine, vc: str | None, state: str | None, number: int) -> Groups:
    """At most ``number`` groups (0: all), page by page."""
    found: list[GroupInfo] = []
    while True:
        limit = min(_PAGE, number - len(found)) if number else _PAGE
        answer = there.get("/v1/groups", vc=vc, state=state, limit=limit, offset=len(found))
        page = there.understood(Groups, answer)
        found += page.groups
        if len(page.groups) < limit or len(found) == number:
            return Groups(groups=found, total=max(page.total, len(found)))
