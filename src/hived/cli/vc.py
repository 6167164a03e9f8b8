"""``hived vc``: virtual clusters on Kubernetes."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from hived.server.kubernetes.schema import VcDetail, VcSummary
from hived.server.pictures import Reserved
from hived.words import counted

from .client import group_path
from .completion import complete_vc
from .console import note, show_verbs
from .formats import Form, clean, print_answer, print_table
from .kubernetes import VC_COLUMNS, group_columns, group_rows, print_facts, scheduler, styled, vc_rows
from .options import FormOption, SchedulerOption, TokenOption

_MOST = 100  #: groups of each list that the engine tells

vc_app = typer.Typer(invoke_without_command=True, callback=show_verbs, help="Virtual clusters (tenants) on Kubernetes.")


@vc_app.command("ls")
def list_vcs(
    form: FormOption = Form.TABLE,
    engine: SchedulerOption = None,
    token_file: TokenOption = None,
) -> None:
    """List the virtual clusters, in GPUs: reserved, used of that, borrowed from others. WAITING: groups.

    \bExamples:
      hived vc ls
      hived vc ls -o json | jq '.[].name'
    """
    with scheduler(engine, token_file, "hived top") as there:
        answer = there.get("/v1/vcs")
        vcs = there.each(VcSummary, answer)
    if form is not Form.TABLE:
        print_answer(answer, form)
    elif vcs:
        print_table(VC_COLUMNS, vc_rows(vcs))
    else:
        note("the spec has no virtual clusters")


@vc_app.command("show")
def show_vc(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Of a virtual cluster.",
            show_default=False,
            autocompletion=complete_vc,
        ),
    ],
    form: FormOption = Form.TABLE,
    engine: SchedulerOption = None,
    token_file: TokenOption = None,
) -> None:
    """Show one virtual cluster: its cells, the groups that run, and those that wait in the order of their turns.

    \bExamples:
      hived vc show vision
      hived vc show vision -o yaml
    """
    with scheduler(engine, token_file, "hived top") as there:
        answer = there.get(group_path("vcs", name))
        told = there.understood(VcDetail, answer)
    if form is not Form.TABLE:
        print_answer(answer, form)
    else:
        _print(told)


def _print(told: VcDetail) -> None:
    summary = told.summary
    used = f"{summary.used:,} of {counted(summary.reserved, 'reserved GPU')}, {summary.borrowed:,} borrowed"
    facts: list[tuple[str, str | Text]] = [("VC", Text(clean(summary.name), "bold")), ("in use", used)]
    facts += [("cells" if n == 0 else "", _cells(cells)) for n, cells in enumerate(told.cells)]
    facts += [("doomed" if n == 0 else "", styled(words, "red")) for n, words in enumerate(told.doomed)]
    print_facts(facts)
    for head, groups in (("RUNNING", told.running), ("WAITING", told.waiting)):
        if groups:
            typer.echo()
            print_table(group_columns(head, vc=False), group_rows(groups, vc=False))
        if len(groups) == _MOST:
            note(f"the first {_MOST}; all of them: hived groups --vc {clean(summary.name)} -n 0")
    if not told.running and not told.waiting:
        note("no groups")


def _cells(cells: Reserved) -> str:
    what = f"{cells.number:,} x {clean(cells.cell_type)} of {counted(cells.gpus, 'GPU')}"
    return f"{what}, pinned: {clean(cells.pinned)}" if cells.pinned is not None else what
