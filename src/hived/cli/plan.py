"""``hived plan``: what would become of a job, without submitting it."""

from __future__ import annotations

import typer

from hived.server.schema import Plan

from .client import connect
from .formats import Form, clean, clean_lines, print_json, where_in_words
from .options import EngineOption, FormOption, StateOption, TokenOption, VcOption
from .wish import GpusOption, NodesOption, OpportunisticOption, PriorityOption, asked, wish

_CODES = {"now": 0, "waits": 2, "never": 3}


def plan(
    vc: VcOption,
    gpus: GpusOption = 1,
    nodes: NodesOption = 1,
    priority: PriorityOption = 0,
    opportunistic: OpportunisticOption = False,
    form: FormOption = Form.TABLE,
    engine: EngineOption = None,
    state: StateOption = None,
    token_file: TokenOption = None,
) -> None:
    """Say what would become of a job now, without submitting it.

    Exit code 0: it would start now; 2: it would wait; 3: it never fits.

    \bExamples:
      hived plan --vc vision --gpus 4
      hived plan --vc vision --gpus 8 --nodes 2 --priority 10
      hived plan --vc vision --gpus 4 && hived submit --vc vision --gpus 4 -- python train.py
    """
    with connect(engine, state, token_file) as there:
        answer = there.post("/v1/plan", wish(vc, gpus, nodes, priority, opportunistic) | {"command": ["true"]})
        told = there.understood(Plan, answer)
    if form is Form.JSON:
        print_json(answer)
    else:
        what = f"{asked(gpus, nodes)} of {clean(vc)}"
        if told.outcome == "now":
            place = clean(where_in_words(told.placement))
            first = f", once {', '.join(map(clean, told.victims))} has gone" if told.victims else ""
            typer.echo(f"{what}: now{first}" + (f", on {place}" if place else ""))
        else:
            typer.echo(f"{what}: " + ("would wait" if told.outcome == "waits" else "never fits"))
        if told.text:
            typer.echo(clean_lines(told.text.rstrip("\n")))
    raise typer.Exit(_CODES[told.outcome])
