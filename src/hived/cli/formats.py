"""Formats for terminals and pipes: times, placements, tables.

>>> age(200), duration(200), duration(7200), ranges([0, 1, 2, 5])
('3m', '3m20s', '2h', '0-2,5')
>>> read_duration("1h30m")
5400.0
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

from hived import words
from hived.engine.states import JobState
from hived.errors import InputError
from hived.words import plural, ranges

from .console import output
from .escaping import clean, escaped

if TYPE_CHECKING:
    from hived.server.schema import Job, Place

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_LONG = re.compile(r"[0-9]{10,}")
_BYTES = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(|B|K|KB|KIB|M|MB|MIB|G|GB|GIB|T|TB|TIB)", re.IGNORECASE)
_STEPS = "BKMGT"
#: as Slurm has it: hours, minutes and seconds, and days before them
_SLURMS = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9}):([0-5]?[0-9]):([0-5]?[0-9])")
#: further forms of its time limits: minutes and seconds, days and hours, days, hours and minutes
_SLURMS_SHORT = re.compile(r"([0-9]{1,9}):([0-5][0-9])|([0-9]{1,9})-([0-9]{1,9})(?::([0-5][0-9]))?")
_DURATION = re.compile("".join(f"(?:({_NUMBER.pattern}){unit})?" for unit in _UNITS))


class Form(StrEnum):
    """The output format of a verb."""

    TABLE = "table"  #: for people
    JSON = "json"  #: for programs: the engine's answer
    YAML = "yaml"  #: the same as YAML


# -- text -------------------------------------------------------------------------------------------------------------


def json_text(value: object, indent: int | None = 2) -> str:
    """JSON that is harmless on a terminal too; ``indent`` None: on one line."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return escaped(text)


def print_answer(value: object, form: Form, *, one_of_many: bool = False) -> None:
    """Print and flush ``value`` for programs. ``one_of_many``: as a line of JSON, or a document of YAML."""
    if form is Form.YAML:
        from .yaml_form import yaml_text  # a slow import, only where it is used

        text = ("---\n" if one_of_many else "") + yaml_text(value)
    else:
        text = json_text(value, None if one_of_many else 2) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()


# -- times ------------------------------------------------------------------------------------------------------------


def age(seconds: float) -> str:
    """An age in one unit: ``3m``."""
    whole = max(0, int(seconds))
    for unit, size in _UNITS.items():
        if whole >= size:
            return f"{whole // size}{unit}"
    return "0s"


def duration(seconds: float) -> str:
    """A duration in two units at most, without blanks: ``3m20s``, ``2h``, ``1d4h``."""
    return words.duration(int(seconds)).replace(" ", "")


def read_duration(text: str) -> float:
    """Seconds of ``90s``, ``1h30m``, ``1.5h``, ``2d``, ``2:30:00`` or ``1-12:00:00``.

    Raises :class:`ValueError`, for ``90`` too.
    """
    given = text.strip().lower()
    if given == "0":
        return 0.0
    if (slurms := _SLURMS.fullmatch(given)) is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in slurms.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if _NUMBER.fullmatch(given):
        raise ValueError(f"{given!r} has no unit; write {given}s, {given}m, {given}h or {given}d")
    match = _DURATION.fullmatch(given)
    if match is None and _DURATION.fullmatch(_LONG.sub("1", given)):
        raise ValueError(f"{words.shortened(given, 40)} is too long: a number has nine digits at most")
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is no duration; write 90s, 30m, 1h30m, 2d, 2:30:00 or 1-12:00:00")
    return sum(float(number) * size for number, size in zip(match.groups(), _UNITS.values(), strict=True) if number)


def read_length(text: str) -> float:
    """Seconds of a length of time, as :func:`read_duration`, and of the short forms of Slurm's limits too.

    Not for moments: ``5:00`` would be five o'clock, and ``2026-11`` a month. Raises :class:`ValueError`.

    >>> read_length("5:00"), read_length("1-12"), read_length("0-0:30")
    (300.0, 129600.0, 1800.0)
    """
    match = _SLURMS_SHORT.fullmatch(text.strip())
    if match is None:
        return read_duration(text)
    minutes, seconds, days, hours, more = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes + more) * 60 + seconds)


def size_text(size: float) -> str:
    """Bytes for people.

    >>> size_text(0), size_text(1500), size_text(3 * 2**30)
    ('0', '1.5 KiB', '3.0 GiB')
    """
    for unit in ("", "KiB", "MiB", "GiB"):
        if size < 1024:
            break
        if unit != "GiB":
            size /= 1024
    return f"{size:.0f}" if not unit else f"{size:.1f} {unit}"


def read_bytes(text: str) -> int:
    """Bytes of ``8GiB`` or ``500M``; 0, no limit, of ``none``.

    >>> read_bytes("8GiB"), read_bytes("1.5k"), read_bytes("2GB"), read_bytes("none")
    (8589934592, 1536, 2000000000, 0)
    """
    given = text.strip()
    if given.lower() == "none":
        return 0
    match = _BYTES.fullmatch(given)
    if match is None:
        raise ValueError(f"{text!r} is no number of bytes; write 8GiB, 500MiB or none")
    unit = match[2].upper()
    base = 1000 if len(unit) == 2 else 1024
    return int(float(match[1]) * base ** _STEPS.index(unit[:1] or "B"))


_OF_TODAY = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")


def time_of(option: str, text: str, now: float) -> float:
    """A duration before now, or a date, or a time of one; ``today``, and a time of today."""
    text = text.removeprefix("now-")
    midnight = datetime.fromtimestamp(now).astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    if text in ("now", "today"):
        return now if text == "now" else midnight.timestamp()
    if _OF_TODAY.fullmatch(text):
        text = f"{midnight.date()}T{text}"
    try:
        return max(0.0, now - read_duration(text))
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise InputError(
            f"{option} {text}: is no time; write 30d, 12h, today, 08:00, 2026-11-01 or 2026-11-01T08:00"
        ) from None


def clock(at: float, now: float | None = None) -> str:
    """A time in the reader's zone, without today's date."""
    moment, today = _local(at), _local(time.time() if now is None else now)
    if moment is None or today is None:
        return "?"
    if moment.date() == today.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment:%b %d %H:%M:%S}" if moment.year == today.year else f"{moment:%Y-%m-%d %H:%M:%S}"


def timestamp(at: float) -> str:
    """A full time in the reader's zone: ``2026-11-21T15:04:05+01:00``."""
    moment = _local(at)
    return "?" if moment is None else moment.isoformat(timespec="seconds")


def _local(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at).astimezone() if math.isfinite(at) else None
    except (OverflowError, OSError, ValueError):
        return None


# -- jobs -------------------------------------------------------------------------------------------------------------

#: the exit code of a job whose program could not be started
NOT_STARTED = 127

STATE_STYLES = {
    JobState.RUNNING: "green",
    JobState.SUSPENDED: "blue",
    JobState.STOPPING: "magenta",
    JobState.RESERVED: "cyan",
    JobState.QUEUED: "yellow",
    JobState.BACKOFF: "yellow",
    JobState.HELD: "blue",
    JobState.SUCCEEDED: "dim",
    JobState.FAILED: "red",
    JobState.CANCELLED: "dim",
    JobState.ENDED: "dim",
}


def by_node(placement: Iterable[Place]) -> dict[str, list[int]]:
    """Devices per node, ascending; the nodes in order of the ranks."""
    nodes: dict[str, list[int]] = {}
    for task in placement:
        if task.node:
            nodes.setdefault(task.node, []).extend(task.devices)
    return {node: sorted(devices) for node, devices in nodes.items()}


def where(placement: Iterable[Place]) -> str:
    """``node-0:0-3 node-1:0-3``."""
    return " ".join(f"{node}:{ranges(devices)}" for node, devices in by_node(placement).items())


def where_in_words(placement: Iterable[Place], most: int = 4) -> str:
    """``node-0 (GPUs 0-3) and node-1 (GPUs 0-3)``, the first few of many."""
    nodes = by_node(placement)
    said = [f"{node} ({plural(len(devices), 'GPU')} {ranges(devices)})" for node, devices in list(nodes.items())[:most]]
    if len(nodes) > most:
        said.append(f"{len(nodes) - most:,} more nodes")
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def priority(value: int) -> str:
    """``opp`` for opportunistic."""
    return "opp" if value < 0 else str(value)


def runtime(job: Job, now: float) -> str:
    """The runtime of the latest attempt; ``-`` without one."""
    if job.started_at is None or job.state.waits:
        return "-"
    return duration((now if job.ended_at is None else job.ended_at) - job.started_at)


def limits_of_members(jobs: int | None, gpus: int | None, priority: int | None, grace_s: int | None = None) -> str:
    """What a member of a virtual cluster may have; "" where nothing limits it."""
    limits = (
        (jobs, "{:,} jobs that have not ended"),
        (gpus, "{:,} GPUs of guaranteed jobs"),
        (priority, "priority {:,}"),
        (grace_s, "{:,} s of grace"),
    )
    each = [words.format(most) for most, words in limits if most is not None]
    return f"at most {', '.join(each)}" if each else ""


def exit_code(job: Job) -> int:
    """The exit code of the command line for an ended job."""
    if job.state is JobState.SUCCEEDED or job.finished:
        return 0
    if job.process is not None and job.process.exit_code:
        return job.process.exit_code
    return 143 if job.state in (JobState.CANCELLED, JobState.ENDED) else 1


def status_text(job: Job) -> str:
    """A job's placement, or the reason of its waiting, as a sentence."""
    name, reason = clean(job.name), clean("; ".join(why for why in job.why if why != job.state))
    place = clean(where_in_words(job.tasks))
    exit_code = None if job.process is None else job.process.exit_code
    code = f" (exit code {exit_code})" if exit_code and not reason else ""
    lent = ", on GPUs that others leave idle" if job.kind == "opportunistic" else ""
    lent = f" as a guest beside {clean(job.beside[0])}" if job.kind == "guest" and job.beside else lent
    said, otherwise = {
        JobState.RUNNING: (f"runs on {place}{lent}", ""),
        JobState.RESERVED: (f"gets {place}", " as soon as those who are there have gone"),
        JobState.QUEUED: ("waits", " for its turn"),
        JobState.BACKOFF: ("waits", " for its turn"),
        JobState.HELD: ("is held", ""),
        JobState.SUSPENDED: (f"is suspended on {place}", ""),
        JobState.STOPPING: ("is being stopped", ""),
        JobState.SUCCEEDED: ("has succeeded", ""),
        JobState.FAILED: (f"has failed{code}", ""),
        JobState.CANCELLED: ("was cancelled", ""),
        JobState.ENDED: ("has ended", ""),
    }[job.state]
    return f"{name} {said}: {reason}" if reason and job.state is not JobState.RUNNING else f"{name} {said}{otherwise}."


# -- tables -----------------------------------------------------------------------------------------------------------


def columns(names: str, *, right: str = "", cut: str = "") -> tuple[Column, ...]:
    """Columns by their names, separated by blanks; ``right``: right-aligned ones, ``cut``: ones that may be cut.

    A column that may be cut shrinks on a narrow terminal: rich narrows columns that may wrap, and these texts do not.
    """
    return tuple(
        Column(
            name,
            justify="right" if name in right.split() else "left",
            no_wrap=name not in cut.split(),
            overflow="ellipsis",
        )
        for name in names.split()
    )


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print rows: on a terminal in colours and fitted to its width; in a pipe plain, uncut, and aligned."""
    console = output()
    if console.is_terminal:
        console.print(rich_table(columns, rows))
        return
    lines = [[str(column.header) for column in columns]]
    lines += [[clean(cell) if isinstance(cell, str) else cell.plain for cell in row] for row in rows]
    widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            text.rjust(width) if column.justify == "right" else text.ljust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def rich_table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> RenderableType:
    """The same as a part of a larger layout. Coloured text is escaped already."""
    cells = [
        [Text(clean(cell), overflow="ellipsis", no_wrap=True) if isinstance(cell, str) else cell for cell in row]
        for row in rows
    ]
    return _Fitted(columns, cells)


#: columns that a narrow terminal does without, the first one first
_DISPENSABLE = ("SUBMITTED", "AGE", "PRIO", "STARTED", "CODE", "VC", "USER")
#: to which names, and columns that may be cut, shrink before that
_LEAST_NAME, _LEAST_CUT = 14, 24
_GAP = 2


class _Fitted:
    """A table that is readable at any width: names shrink, then columns are left out, and no others are cut."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
        self._columns, self._rows = columns, rows

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        headers = [str(column.header) for column in self._columns]
        widths = [max(len(header), *(row[at].cell_len for row in self._rows), 0) for at, header in enumerate(headers)]
        least = [
            min(width, _LEAST_NAME if header == "NAME" else width if column.no_wrap else _LEAST_CUT)
            for header, width, column in zip(headers, widths, self._columns, strict=True)
        ]
        kept = list(range(len(headers)))

        def spare() -> int:
            return options.max_width - sum(least[at] for at in kept) - _GAP * (len(kept) - 1)

        for name in _DISPENSABLE:
            if spare() < 0 and name in headers:
                kept.remove(headers.index(name))
        if "NAME" in headers:
            at = headers.index("NAME")
            cut = sum(widths[other] - least[other] for other in kept if not self._columns[other].no_wrap)
            room = max(0, spare())
            least[at] = min(widths[at], least[at] + room - min(cut, room // 2))
        shown = []
        for at in kept:
            column = self._columns[at].copy()  # a column object keeps the cells of its table
            if column.no_wrap:
                column.min_width = column.max_width = least[at]
            shown.append(column)
        table = Table(*shown, box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        for row in self._rows:
            table.add_row(*(row[at] for at in kept))
        yield table


#: a name, and what is said of it
Fact: TypeAlias = "tuple[str, str | Text]"


def print_facts(facts: Sequence[Fact]) -> None:
    """Print names with their values, a line each; on a terminal long values wrap below themselves."""
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
    """Untrusted text, escaped."""
    return Text(clean(text), style)
