"""``hived events`` and ``drain``: the events of an engine, and keeping new jobs off its devices or nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Annotated

import typer
from rich.text import Text

from hived.engines.kubernetes.pods.keys import BAD_DEVICES
from hived.errors import InputError, StorageError
from hived.server.kubernetes.schema import Drained
from hived.server.schema import Device, Events, Job, JobEvent
from hived.words import counted, ranges

from .client import Engine, Retrying, job_path
from .console import note, output, patience
from .escaping import clean
from .formats import clock, columns, print_table, timestamp
from .options import Asking, asks_engine, complete_job, complete_node

_PAGE = 100


@asks_engine
def events(
    ask: Asking,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens.")] = False,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Of one job.", show_default="all", autocompletion=complete_job),
    ] = None,
    number: Annotated[int, typer.Option("-n", "--number", metavar="N", help="The last N; 0: none.", min=0)] = 20,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write the core's decision log there; - for standard output."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --export.")] = False,
) -> None:
    """Show what happened, in words; with --follow what happens, through restarts of the engine.

    With --export it is the core's decision log instead, from the first: lines of JSON that replay byte for byte.

    \bExamples:
      hived events
      hived events -f --job train-12
      hived events -f -o json | jq .text
      hived events --export decisions.jsonl
    """  # fmt: skip
    with ask.connect({"kubernetes": "kubectl get events"}) as there:
        if export is not None:
            if follow or job is not None:
                raise InputError("--export is of all that happened until now; leave --follow and --job away")
            _export(there, export, force)
            return
        ref = None if job is None else str(there.parsed(Job, there.get(job_path(job))).id)
        first = _latest(there, ref, number)
        if not follow and ask.printed(first.model_dump(mode="json")):
            return
        for event in first.events:
            _show(ask, event)
        if follow:
            _follow(ask, there, ref, first.last)
        elif not first.events and number:
            note("nothing happened yet")


def _latest(there: Engine, ref: str | None, number: int) -> Events:
    """The last ``number`` events."""
    answer = _events(there, ref, -1, max(1, min(number, _PAGE)))
    if number == 0:
        return Events(events=[], last=answer.last)
    if number <= _PAGE:
        return answer
    # more than a page: read from an earlier number, since numbers have no gaps; for one job, from the first event
    kept: list[JobEvent] = []
    after = 0 if ref is not None else max(0, answer.last - number)
    while after < answer.last:
        page = _events(there, ref, after, _PAGE)
        if not page.events:
            break
        kept += page.events
        after = page.events[-1].seq
    return Events(events=kept[-number:], last=max(after, answer.last))


def _events(there: Engine, ref: str | None, after: int, limit: int) -> Events:
    return there.parsed(Events, there.get("/v1/events", after=after, limit=limit, job=ref))


def _show(ask: Asking, event: JobEvent) -> None:
    if ask.printed(event.model_dump(mode="json"), one_of_many=True):
        return
    job = "-" if event.job is None else str(event.job)
    kind, text = clean(event.kind), clean(event.text)
    console = output()
    if console.is_terminal:
        line = Text.assemble((clock(event.at), "dim"), f"  {job:>5}  ", (f"{kind:<12}", "cyan"), f"  {text}")
        console.print(line, soft_wrap=True)
    else:
        sys.stdout.write(f"{timestamp(event.at)}  {job:>5}  {kind:<12}  {text}\n")
        sys.stdout.flush()


def _follow(ask: Asking, there: Engine, ref: str | None, after: int) -> None:
    stream = Retrying().stream(lambda: there.stream("/v1/events/stream", after=after, job=ref))
    for name, value in stream:
        if name == "event" and (event := there.parsed(JobEvent, value)).seq > after:
            _show(ask, event)
            after = event.seq


def _export(there: Engine, file: Path, force: bool) -> None:
    """Write all lines, or no file: an existing file is complete."""
    if str(file) == "-":
        sys.stdout.flush()
        for bits in there.raw("/v1/decisions"):
            sys.stdout.buffer.write(bits)
        sys.stdout.buffer.flush()
        return
    if file.exists() and not force:
        raise InputError(f"{file}: exists already; give --force to overwrite it")
    lines, draft = 0, file.parent / f".{file.name}.{token_hex(8)}.part"
    try:
        with draft.open("xb") as out:
            try:
                with patience("reading the decision log"):
                    for bits in there.raw("/v1/decisions"):
                        out.write(bits)
                        lines += bits.count(b"\n")
                out.flush()
                os.fsync(out.fileno())
                draft.replace(file)
            finally:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"{file}: cannot be written ({error.strerror}); choose another --export") from None
    note(f"{file}: {lines:,} lines")


_COLUMNS = columns("NODE GPUS STATE JOBS")
_NAMED = 10  #: jobs or groups in a sentence


@asks_engine
def drain(
    ask: Asking,
    node: Annotated[
        str | None,
        typer.Argument(
            metavar="[NODE]",
            help="Name of a node; on Kubernetes there has to be one.",
            show_default="all",
            autocompletion=complete_node,
        ),
    ] = None,
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
            drained = there.parsed(Drained, answer)
            if not ask.printed(answer):
                what = f"{clean(drained.node)} ({counted(drained.gpus, 'GPU')})"
                typer.echo(_sentence(what, "pod", not drained.drained, "group", drained.groups))
        else:
            answer = there.post("/v1/drain", {"node": node, "device": device, "undo": undo, "now": now})
            devices = there.each(Device, answer)
            if not ask.printed(answer):
                jobs = sorted({one.job for one in devices if one.job is not None})
                typer.echo(_sentence(counted(len(devices), "GPU"), "job", undo, "job", [*map(str, jobs)]))
                print_table(_COLUMNS, _rows(devices))


def _refuse_parts_of_nodes(there: Engine, node: str | None, device: int | None, now: bool) -> None:
    """On Kubernetes only whole nodes can be drained, by a cordon."""
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
    """The result of a drain: ``what``, drained of new ``kept``, and the remaining ``names``, each a ``word``."""
    if undone:
        return f"{what}: {kept}s may come again"
    shown = ", ".join(map(clean, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
    still = f"; {counted(len(names), word)} still there: {shown}" if names else ""
    return f"{what}: no new {kept}s{still}"


def _rows(devices: list[Device]) -> Iterator[tuple[str | Text, ...]]:
    """A row for the devices of a node with the same state and job."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for one in devices:
        groups.setdefault((one.node, _state(one), "-" if one.job is None else str(one.job)), []).append(one.device)
    for (node, words, job), group in groups.items():
        yield node, ranges(sorted(group)), Text(words, "" if words == "free" else "yellow"), job


def _state(device: Device) -> str:
    words: list[str] = [device.state]
    if device.drained:
        words.append("drained")
    if not device.healthy:
        words.append(f"bad: {clean(device.why_bad)}" if device.why_bad else "bad")
    return ", ".join(words)
