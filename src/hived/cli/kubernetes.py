"""What the verbs for Kubernetes share: finding the engine there, and groups in a table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.table import Table
from rich.text import Text

from hived.server.kubernetes.schema import GroupInfo, VcSummary
from hived.server.schema import EngineKind

from .addresses import SCHEDULER_URL
from .client import Engine, connect
from .console import output
from .formats import Cell, Column, age, clean, priority, where

_START = "reach that of the cluster with kubectl port-forward, or say with --engine where it is"
_STYLES = {"placed": "green", "reserved": "cyan", "waiting": "yellow", "preempted": "magenta"}
_GROUP_COLUMNS = (
    Column("GPUS", right=True),
    Column("PODS", right=True),
    Column("PRIO", right=True),
    Column("STATE"),
    Column("AGE", right=True),
    Column("WHERE/WHY", cut=True),
)
VC_COLUMNS = (
    Column("VC"),
    Column("RESERVED", right=True),
    Column("USED", right=True),
    Column("BORROWED", right=True),
    Column("WAITING", right=True),
)


@contextmanager
def scheduler(url: str | None, token_file: Path | None, on_one_machine: str) -> Iterator[Engine]:
    """The engine on Kubernetes; that of one machine is refused, and ``on_one_machine`` named as the verb for it."""
    instead: dict[EngineKind, str] = {"local": on_one_machine}
    with connect(url, None, token_file, default=SCHEDULER_URL, instead=instead, start=_START) as there:
        yield there


def vc_rows(vcs: Iterable[VcSummary]) -> Iterator[tuple[str | Cell, ...]]:
    """What :data:`VC_COLUMNS` say of virtual clusters."""
    for vc in vcs:
        waiting = Cell(f"{vc.waiting:,}", "yellow" if vc.waiting else "")
        yield vc.name, f"{vc.reserved:,}", f"{vc.used:,}", f"{vc.borrowed:,}", waiting


def group_columns(name: str = "NAME", *, vc: bool = True) -> tuple[Column, ...]:
    """The heads of :func:`group_rows`."""
    return (Column(name), *((Column("VC"),) if vc else ()), *_GROUP_COLUMNS)


def group_rows(groups: Iterable[GroupInfo], *, vc: bool = True) -> Iterator[tuple[str | Cell, ...]]:
    """Groups, one a line."""
    now = time.time()
    for group in groups:
        yield (
            group.name,
            *((group.vc,) if vc else ()),
            f"{group.gpus:,}",
            f"{len(group.pods):,}/{group.size:,}",
            priority(group.priority),
            Cell(group.state, _STYLES[group.state]),
            age(now - group.since),
            _where_or_why(group),
        )


def _where_or_why(group: GroupInfo) -> str:
    place = where(pod for pod in group.pods if pod.node)
    if group.kind == "opportunistic" and group.priority >= 0:
        place += " (GPUs that others leave idle)"  # it was preempted lazily, or its turn is yet to come
    if group.state == "placed" and place:
        return place
    return " ".join(filter(None, (place, "; ".join(group.why)))) or "-"


def print_facts(facts: Sequence[tuple[str, str | Text]]) -> None:
    """A name and what there is to say of it, a line each; on a terminal long ones go on below themselves."""
    console = output()
    if console.is_terminal:
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, said in facts:
            table.add_row(Text(name, "dim"), said if isinstance(said, Text) else Text(said))
        console.print(table)
        return
    width = max(len(name) for name, _ in facts)
    for name, said in facts:
        console.print(f"{name:<{width}}  {said}".rstrip(), markup=False, soft_wrap=True)


def styled(text: str, style: str) -> Text:
    """Somebody else's words, harmless."""
    return Text(clean(text), style)
