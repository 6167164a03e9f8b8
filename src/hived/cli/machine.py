"""``hived events``, ``drain`` and ``node``: what happens, nodes and their GPUs, and keeping new jobs off them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Annotated

import typer
from rich.text import Text

from hived.errors import InputError, NotFoundError, StorageError
from hived.server.schema import Device, Drained, Event, Events, Job, Node, Nodes, Spec
from hived.words import counted, ranges

from .client import Engine, Retrying, path_of
from .console import note, output, patience
from .escaping import clean
from .formats import clock, columns, print_table, timestamp
from .options import Asking, asks_engine, complete_job, complete_node

_PAGE = 100
_SHOWN = 20  #: events, where no number was asked for


@asks_engine
def events(
    ask: Asking,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens.")] = False,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Of one job.", show_default="all", autocompletion=complete_job),
    ] = None,
    number: Annotated[
        int | None, typer.Option("-n", "--number", metavar="N", help="The last N; 0: all.", min=0, show_default="20")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="With --follow: only what happens from now on.")] = False,
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
      hived events -f --new
      hived events -f -o json | jq .text
      hived events --export decisions.jsonl
    """  # fmt: skip
    if new and (not follow or number is not None):
        raise InputError("--new is of what happens from now on: give --follow with it, and no -n")
    with ask.connect() as there:
        if export is not None:
            if follow or job is not None:
                raise InputError("--export is of all that happened until now; leave --follow and --job away")
            _export(there, export, force)
            return
        ref = None if job is None else there.parsed(Job, there.get(path_of("jobs", job))).id
        if new:
            _follow(ask, there, ref, _events(there, ref, -1, 1).last)
            return
        first = _latest(there, ref, _SHOWN if number is None else number)
        if not follow and ask.printed(first.model_dump(mode="json")):
            return
        for event in first.events:
            _show(ask, event)
        if follow:
            _follow(ask, there, ref, first.last)
        elif not first.events:
            note("nothing happened yet")


def _latest(there: Engine, ref: str | None, number: int) -> Events:
    """The last ``number`` events; 0: all."""
    answer = _events(there, ref, -1, min(number, _PAGE) or _PAGE)
    if 0 < number <= _PAGE:
        return answer
    # more than a page: read from an earlier number, since numbers have no gaps; for one job, from the first event
    kept: list[Event] = []
    after = 0 if ref is not None or not number else max(0, answer.last - number)
    while after < answer.last:
        page = _events(there, ref, after, _PAGE)
        if not page.events:
            break
        kept += page.events
        after = page.events[-1].seq
    return Events(events=kept[-number:], last=max(after, answer.last))


def _events(there: Engine, ref: str | None, after: int, limit: int) -> Events:
    return there.parsed(Events, there.get("/v1/events", after=after, limit=limit, job=ref))


def _show(ask: Asking, event: Event) -> None:
    if ask.printed(event.model_dump(mode="json"), one_of_many=True):
        return
    job = "-" if event.job is None else clean(event.job)
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
        if name == "event" and (event := there.parsed(Event, value)).seq > after:
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


NODE_COLUMNS = columns("NODE GPUS STATE JOBS", cut="STATE")
_NODES = 500  #: in a page
_MOST_DEVICES = 1024  #: of one range
_NAMED = 10  #: jobs in a sentence


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
        list[str] | None,
        typer.Option("--device", "-d", metavar="N", help="Number of a device, or several: 0,4-5.", show_default="all"),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="Whoever runs there is preempted and queued again; else it may end.")
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why, for whoever looks.", show_default="none")
    ] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let jobs come again.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first, where all devices are meant.")] = False,
) -> None:
    """Keep new jobs off a device, a node, or all of the machine; jobs that run there may end.

    On Kubernetes: cordon a node. Whoever runs there runs on.

    \bExamples:
      hived drain node-0 --device 3 --reason "fan, ticket 811"
      hived drain --now
      hived drain --undo
      hived drain gpu-17 --engine http://127.0.0.1:9096
    """
    numbers = list(_numbers(device or ()))
    wanted = {"node": node, "undo": undo, "now": now} | ({"reason": reason} if reason else {})
    found: list[Node] = []
    with ask.connect() as there:
        if not (numbers or undo or yes):
            is_all = there.parsed(Spec, there.get("/v1/spec")).nodes == 1 or node is None
            if is_all and sys.stdin.isatty():
                _ask(now)
            elif node is None:
                raise InputError("all devices are meant, and nothing is drained: --yes drains them, or name a node")
        if len(numbers) > 1:  # all of them or none
            here = {
                one.device
                for of in there.parsed(Nodes, there.get("/v1/nodes", node=node, limit=_NODES)).nodes
                if node in (None, of.name)
                for one in of.devices
            }
            if unknown := [number for number in numbers if number not in here]:
                where = f" on node {clean(node)!r}" if node else ""
                raise NotFoundError(f"no device {unknown[0]}{where}, and nothing was changed; hived devices shows them")
        for one in numbers or (None,):
            answer = there.post("/v1/drain", wanted | {"device": one})
            if not ask.printed(answer, one_of_many=len(numbers) > 1):
                found += there.parsed(Drained, answer).nodes
    if not found:
        return
    drained = Drained(nodes=found, undone=undo)
    typer.echo(_sentence(drained))
    print_table(NODE_COLUMNS, node_rows(drained.nodes))


def _numbers(texts: Iterable[str]) -> Iterator[int]:
    """The devices that are named. Raises :class:`InputError`."""
    for part in [part for text in texts for part in text.split(",")]:
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or len(first + last) > 12 or int(last) < int(first):
            raise InputError(f"--device: {part!r} is no number of a device; write 3, 0,4 or 0-3")
        if int(last) - int(first) >= _MOST_DEVICES:
            raise InputError(f"--device: {part} are more than {_MOST_DEVICES:,} devices")
        yield from range(int(first), int(last) + 1)


def _ask(now: bool) -> None:
    what = "stop all jobs, to start again later" if now else "jobs that run may end"
    if not typer.confirm(f"keep new jobs off all devices ({what})?", err=True):
        raise InputError("nothing is drained; hived devices shows what is")


def _sentence(drained: Drained) -> str:
    """The result of a drain, and the jobs that are still there, or the devices that stay drained."""
    what = counted(sum(len(node.devices) for node in drained.nodes), "GPU")
    if drained.undone:
        stay = [(node.name, one) for node in drained.nodes for one in node.devices if one.drained]
        what = counted(sum(len(node.devices) for node in drained.nodes) - len(stay), "GPU")
        lines = [f"{what}: jobs may come again"]
        for name, one in stay:
            why = f" {clean(one.why)}" if one.why else ""
            way = f"hived drain {clean(name)} -d {one.device} --undo"
            lines.append(f"GPU {one.device} of {clean(name)} stays drained{why}: {way}")
        return "\n".join(lines)
    names = list(dict.fromkeys(job for node in drained.nodes for one in node.devices for job in one.jobs))
    shown = ", ".join(map(clean, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
    still = f"; {counted(len(names), 'job')} still there: {shown}" if names else ""
    return f"{what}: no new jobs{still}"


@asks_engine
def list_nodes(
    ask: Asking,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NODE]", help="One node.", show_default="all", autocompletion=complete_node),
    ] = None,
    bad: Annotated[bool, typer.Option("--bad", help="Those alone that take no jobs, or not on all GPUs.")] = False,
) -> None:
    """List the nodes and their GPUs: which jobs have them, which take no jobs, and why.

    \bExamples:
      hived devices
      hived devices --bad
      hived devices gpu-17 -o json
    """
    with ask.connect() as there:
        found = _nodes(there, name)
    if bad:
        found = found.model_copy(update={"nodes": [_bad_part(node) for node in found.nodes if _is_bad(node)]})
    if ask.printed(found.model_dump(mode="json")):
        return
    if found.nodes:
        print_table(NODE_COLUMNS, node_rows(found.nodes))
    of_them = f"{found.bad:,} of them with GPUs that take no jobs" if found.bad else "all GPUs take jobs"
    words = [f"{counted(found.total, 'node')}, {of_them}"]
    if found.unmanaged:
        words.append(f"{counted(found.unmanaged, 'more node')} in Kubernetes that the spec does not have")
    for line in (*words, *found.foreign_pods):
        note(clean(line))


def _nodes(there: Engine, name: str | None) -> Nodes:
    """All nodes, page by page, or one."""
    nodes: list[Node] = []
    while True:
        page = there.parsed(Nodes, there.get("/v1/nodes", node=name, offset=len(nodes), limit=_NODES))
        nodes += page.nodes
        if len(page.nodes) < _NODES:
            return page.model_copy(update={"nodes": nodes})


def _is_bad(node: Node) -> bool:
    return bool(node.why) or any(one.drained or not one.healthy for one in node.devices)


def _bad_part(node: Node) -> Node:
    """With those of its devices that take no jobs."""
    bad = [one for one in node.devices if node.why or one.drained or not one.healthy]
    return node.model_copy(update={"devices": bad})


def node_rows(nodes: Iterable[Node]) -> Iterator[tuple[str | Text, ...]]:
    """A row for the devices of a node with the same state and jobs."""
    for node in nodes:
        alike: dict[tuple[str, str], list[int]] = {}
        for one in node.devices:
            jobs = ", ".join(map(clean, one.jobs)) or "-"
            alike.setdefault((_state(node, one), jobs), []).append(one.device)
        for (words, jobs), devices in alike.items():
            yield node.name, ranges(sorted(devices)), Text(words, "" if words in ("free", "used") else "yellow"), jobs


def _state(node: Node, device: Device) -> str:
    words: list[str] = [device.state]
    why = node.why or device.why
    if device.drained:
        words.append("drained" + (f" {clean(why)}" if why and device.healthy and not node.why else ""))
        why = "" if device.healthy and not node.why else why
    if why:
        words.append(("" if device.healthy and not node.why else "bad: ") + clean(why))
    elif not device.healthy:
        words.append("bad")
    return ", ".join(words)
