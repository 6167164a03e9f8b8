"""``hived drain``: keeping new jobs off devices, and new pods off nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from hived.engines.kubernetes.pods.labels import BAD_DEVICES
from hived.errors import InputError
from hived.server.kubernetes.schema import Drained
from hived.server.schema import Device
from hived.words import counted, ranges

from .asking import Asking, asks_engine
from .client import Engine
from .formats import Cell, clean, columns, print_table
from .options import NodeArgument

_COLUMNS = columns("NODE GPUS STATE JOBS")
_NAMED = 10  #: jobs or groups in a sentence


@asks_engine
def drain(
    ask: Asking,
    node: NodeArgument = None,
    device: Annotated[
        int | None, typer.Option("--device", "-d", metavar="N", help="Number of a device.", min=0, show_default="all")
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Whoever runs there is preempted and queued again; else it may end.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let jobs come again.")] = False,
) -> None:
    """Keep new jobs off a device, a node, or all of the machine; jobs that run there may end.

    On Kubernetes: cordon a node. Whoever runs there runs on.

    \bExamples:
      hived drain node-0 --device 3
      hived drain --now
      hived drain --undo
      hived drain gpu-17 --engine http://127.0.0.1:9096
    """
    with ask.connect() as there:
        if there.kind == "kubernetes":
            _refuse_parts_of_nodes(there, node, device, now)
            answer = there.post("/v1/drain", {"node": node, "undo": undo})
            told = there.understood(Drained, answer)
            if not ask.printed(answer):
                what = f"{clean(told.node)} ({counted(told.gpus, 'GPU')})"
                typer.echo(_sentence(what, "pod", not told.drained, "group", told.groups))
        else:
            answer = there.post("/v1/drain", {"node": node, "device": device, "undo": undo, "now": now})
            devices = there.each(Device, answer)
            if not ask.printed(answer):
                jobs = sorted({one.job for one in devices if one.job is not None})
                typer.echo(_sentence(counted(len(devices), "GPU"), "job", undo, "job", [*map(str, jobs)]))
                print_table(_COLUMNS, _rows(devices))


def _refuse_parts_of_nodes(there: Engine, node: str | None, device: int | None, now: bool) -> None:
    """On Kubernetes a node is cordoned, and nothing else."""
    if node is None:
        raise there.wrong("there say which node: hived drain NODE")
    if device is not None:
        raise InputError(
            f"--device {device}: on Kubernetes nodes are drained whole; to keep single devices from jobs: "
            f"kubectl annotate node {node} {BAD_DEVICES}={device}"
        )
    if now:
        raise InputError(f"--now: on Kubernetes who runs there runs on; to send pods away: kubectl drain {node}")


def _sentence(what: str, kept: str, undone: bool, word: str, names: list[str]) -> str:
    """What was drained of new ones of this kind, and who is still there: this many of such a word, the first named."""
    if undone:
        return f"{what}: {kept}s may come again"
    shown = ", ".join(map(clean, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
    still = f"; {counted(len(names), word)} still there: {shown}" if names else ""
    return f"{what}: no new {kept}s{still}"


def _rows(devices: list[Device]) -> Iterator[tuple[str | Cell, ...]]:
    """Devices of a node that are in one state, with one job, in one row."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for one in devices:
        groups.setdefault((one.node, _state(one), "-" if one.job is None else str(one.job)), []).append(one.device)
    for (node, words, job), group in groups.items():
        yield node, ranges(sorted(group)), Cell(words, "" if words == "free" else "yellow"), job


def _state(device: Device) -> str:
    words: list[str] = [device.state]
    if device.drained:
        words.append("drained")
    if not device.healthy:
        words.append(f"bad: {clean(device.why_bad)}" if device.why_bad else "bad")
    return ", ".join(words)
