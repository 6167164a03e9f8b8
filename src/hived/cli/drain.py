"""``hived drain``: keeping new jobs off devices."""

from __future__ import annotations

from typing import Annotated

import typer

from hived.server.schema import Device

from .client import connect
from .console import counted
from .formats import Cell, Column, Form, clean, gpu_list, print_json, print_table
from .options import EngineOption, FormOption, NodeOption, StateOption, TokenOption

_COLUMNS = (Column("NODE"), Column("GPUS"), Column("STATE"), Column("JOBS"))


def drain(
    node: NodeOption = None,
    device: Annotated[
        int | None, typer.Option("--device", "-d", metavar="N", help="Number of a device.", min=0, show_default="all")
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Whoever runs there is preempted and queued again; else it may end.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let jobs come again.")] = False,
    form: FormOption = Form.TABLE,
    engine: EngineOption = None,
    state: StateOption = None,
    token_file: TokenOption = None,
) -> None:
    """Keep new jobs off a device, a node, or all of the machine; jobs that run there may end.

    \bExamples:
      hived drain --node node-0 --device 3
      hived drain --now
      hived drain --undo
    """
    with connect(engine, state, token_file) as there:
        answer = there.post("/v1/drain", {"node": node, "device": device, "undo": undo, "now": now})
        devices = there.each(Device, answer)
    if form is Form.JSON:
        print_json(answer)
        return
    what = counted(len(devices), "GPU")
    jobs = sorted({one.job for one in devices if one.job is not None})
    if undo:
        typer.echo(f"{what}: jobs may come again")
    else:
        left = f"; {counted(len(jobs), 'job')} still there: {', '.join(map(str, jobs[:10]))}" if jobs else ""
        typer.echo(f"{what}: no new jobs{left}{', ...' if len(jobs) > 10 else ''}")
    groups: dict[tuple[str, str, str], list[Device]] = {}
    for one in devices:
        groups.setdefault((one.node, _state(one), "" if one.job is None else str(one.job)), []).append(one)
    print_table(
        _COLUMNS,
        (
            (name, gpu_list(one.device for one in group), Cell(words, "" if words == "free" else "yellow"), job or "-")
            for (name, words, job), group in groups.items()
        ),
    )


def _state(device: Device) -> str:
    words: list[str] = [device.state]
    if device.drained:
        words.append("drained")
    if not device.healthy:
        words.append(f"bad: {clean(device.why_bad)}" if device.why_bad else "bad")
    return ", ".join(words)
