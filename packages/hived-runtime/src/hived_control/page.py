"""The control page of a training process: what it is told and what it reports, in one mapped file.

    command    what the process is to do. Written by whoever holds the lock of the job's folder
    progress   mini-batches and their time. Written by the training thread at every mini-batch
    answer     state, tier, reason, what the process has taken note of. Written by the training thread
    sample     bytes and utilization, at most once a second. Written by the monitor thread

Every record has one writer and two slots, which take turns, each with a number and a checksum. So neither a reader nor
a writer waits, a read is never torn, and of a writer that is killed midway the record before remains. A command says
what is wanted, not what to do next: it may be written twice, and a process that comes later obeys it too.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, get_type_hints

_MAGIC = b"HIVEDPG2"  #: and the version of the layout
_SIZE = 8192
_TEXT = 480  #: bytes of a reason, at most
_NUMBER = struct.Struct("<Q")
_CRC = struct.Struct("<I")


class Wanted(IntEnum):
    """The state that a process is to be in."""

    RUN = 0
    SUSPEND = 1
    MOVE = 2  #: to another device or host: a new process takes over


class State(IntEnum):
    """The state that a process is in."""

    STARTING = 0  #: no mini-batch has ended yet
    RUNNING = 1
    WAITING = 2  #: at the agreed mini-batch, for other ranks
    SUSPENDED = 3
    MOVING = 4  #: it trains, while a destination warms up
    READY = 5  #: it trains, and the destination is warm
    HANDED = 6  #: the destination has the state, and waits to go on
    MOVED = 7  #: the job goes on in another process


@dataclass(frozen=True, slots=True)
class Command:
    """What a process is to do. Limits hold from the next boundary on."""

    number: int = 0  #: counts the commands to the process
    wanted: Wanted = Wanted.RUN
    at: int = 0  #: the mini-batch after which to suspend or move, agreed by all ranks; 0: the next one; -1: prepare
    memory_limit: int = 0  #: device bytes; 0: none
    memory_most: int = 0  #: up to which the limit may rise at a boundary, by what had no room; 0: it stays
    share: float = 1.0  #: of the device's time, in (0, 1]
    limits_until: float = 0.0  #: when the limits of the start replace these, by ``time.monotonic``; 0: never
    suspended_until: float = 0.0  #: when a suspended process goes on by itself, by the same clock; 0: never
    workers: int = 0  #: of an elastic job; 0: as they are
    ready_s: float = 0.0  #: that new workers may take until they are ready, if it is more than they have by themselves
    port: int = 0  #: of a move of several ranks: where the destinations meet
    target: str = ""  #: of a move: a device, or a folder that another host sees


@dataclass(frozen=True, slots=True)
class Progress:
    """Mini-batches and their time."""

    iterations: int = 0
    seconds: float = 0.0  #: of a mini-batch, smoothed over about ten
    at: float = 0.0  #: the last boundary, by ``time.monotonic``


@dataclass(frozen=True, slots=True)
class Answer:
    """What the process makes of its command."""

    noted: int = 0  #: number of the last command that was read
    state: State = State.STARTING
    since: float = 0.0  #: of the state, by ``time.monotonic``
    rank: int = 0
    ranks: int = 1
    elastic: bool = False  #: it grows and shrinks
    memory_limit: int = 0  #: in force, device bytes; 0: none
    share: float = 1.0  #: in force, of the device's time
    seconds: float = 0.0  #: that the last change took: suspend, resume, move
    moved_bytes: int = 0  #: that it copied
    tier: str = ""  #: how memory is released: pager, framework, stop
    device: str = ""
    why: str = ""  #: a command is not carried out
    note: str = ""  #: a limit is not kept in full, or a lower tier is in force than wanted


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes and utilization of one process."""

    at: float = 0.0  #: by ``time.monotonic``
    device_bytes: int = 0  #: held now, cache included
    used_bytes: int = 0  #: of these, in tensors
    peak_bytes: int = 0  #: most in tensors, since the start or since the script has reset PyTorch's peak
    least_bytes: int = 0  #: in tensors at the last boundary that was looked at: the minimum of the memory cycle
    host_bytes: int = 0  #: device tensors that stand in host memory
    utilization: float = 0.0  #: part of the time since the sample before that the script was in a mini-batch


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the script has told of itself. Of a page of an earlier version: nothing."""

    named: bool = False  #: it has named its state, and so moves


T = TypeVar("T", Command, Progress, Answer, Sample, Abilities)


class _Records(Generic[T]):
    """Two slots for records of one kind, at one place of the page."""

    def __init__(self, kind: type[T], place: int) -> None:
        self._kind: type[T] = kind
        types = get_type_hints(kind)
        self._makers = [types[field.name] for field in fields(kind)]
        formats = {int: "q", float: "d", bool: "?", str: f"{_TEXT}s"}
        code = "".join(formats.get(maker, "q") for maker in self._makers)
        self._body = struct.Struct(f"<Q{code}")
        self._slot = self._body.size + _CRC.size
        self._texts = [index for index, maker in enumerate(self._makers) if maker is str]
        self.place = place
        self.end = place + 2 * self._slot

    def write(self, page: mmap.mmap, count: int, record: T) -> None:
        """Write the ``count``-th record, over the one before the last."""
        self.write_values(page, count, [getattr(record, field.name) for field in fields(record)])

    def write_values(self, page: mmap.mmap, count: int, values: Sequence[Any]) -> None:
        """Write the values of a record, in the order of its fields."""
        if self._texts:
            values = [_encoded(value) if isinstance(value, str) else value for value in values]
        body = self._body.pack(count, *values)
        start = self.place + (count & 1) * self._slot
        page[start : start + self._slot] = body + _CRC.pack(zlib.crc32(body))

    def read(self, page: mmap.mmap) -> tuple[int, T]:
        """The newest whole record and its number; number 0 and the defaults if there is none."""
        newest, found = 0, None
        for start in (self.place, self.place + self._slot):
            slot = page[start : start + self._slot]
            body = slot[: -_CRC.size]
            count: int = _NUMBER.unpack_from(body)[0]
            if count > newest and zlib.crc32(body) == _CRC.unpack(slot[-_CRC.size :])[0]:
                newest, found = count, body
        if found is None:
            return 0, self._kind()
        _, *values = self._body.unpack(found)
        return newest, self._kind(*map(_made, self._makers, values))


def _made(maker: type, value: Any) -> Any:
    """A value of a record, which a job may have written as it likes: a number is one, and a text can be shown."""
    if maker is str:
        text = value.rstrip(b"\0").decode(errors="replace")
        return text if text.isprintable() else "".join(sign if sign.isprintable() else " " for sign in text)
    if maker is float and not math.isfinite(value):
        return 0.0
    return maker(value)


def _encoded(text: str) -> bytes:
    return text.encode()[:_TEXT].decode(errors="ignore").encode()  # not cut within a character


_HEAD = struct.Struct("<8sqq")  #: magic, pid, and when the process was started, in ticks since boot
_COMMAND_WORD = _HEAD.size  #: number of the last command: the one word that the process reads at every boundary
_COMMAND = _Records(Command, 64)
_PROGRESS = _Records(Progress, _COMMAND.end)
_ANSWER = _Records(Answer, _PROGRESS.end)
_SAMPLE = _Records(Sample, _ANSWER.end)
_ABILITIES = _Records(Abilities, _SAMPLE.end)


class Page:
    """One control page, mapped. Every call is a copy within memory: some microseconds, no system call."""

    def __init__(self, file: Path, memory: mmap.mmap) -> None:
        self.file = file
        self._memory = memory
        magic, pid, started = _HEAD.unpack_from(memory)
        self.pid: int = pid
        self.started: int = started  #: the process, in ticks since boot: a pid is given again
        if magic != _MAGIC:
            raise ValueError(f"{file} is no control page of this version of hived")
        self._counts = {records: records.read(memory)[0] for records in (_PROGRESS, _ANSWER, _SAMPLE, _ABILITIES)}

    @classmethod
    def create(cls, file: Path, pid: int, started: int, command: Command) -> Self:
        """Make the page of a process, with its first command. Nobody else sees it before :meth:`publish`."""
        draft = file.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _SIZE)  # a hole that has no room later would be a SIGBUS
            memory = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        _HEAD.pack_into(memory, 0, _MAGIC, pid, started)
        page = cls(file, memory)
        page.write_command(command)
        return page

    def publish(self) -> None:
        """Let controllers see a page that was made. By then it says all that they may want to know."""
        self.file.with_suffix(".draft").rename(self.file)

    @classmethod
    def open(cls, file: Path) -> Self:
        """Map a page that exists; ``OSError`` or ``ValueError`` if it does not, or is none."""
        with file.open("r+b") as opened:
            return cls(file, mmap.mmap(opened.fileno(), _SIZE))

    def close(self) -> None:
        """Unmap the page."""
        self._memory.close()

    # -- for the controller

    def command(self) -> Command:
        """The command in force."""
        return _COMMAND.read(self._memory)[1]

    def write_command(self, command: Command) -> Command:
        """Give a command its number, and write it. By whoever holds the lock of the job's folder."""
        number = _COMMAND.read(self._memory)[0] + 1
        command = replace(command, number=number)
        _COMMAND.write(self._memory, number, command)
        _NUMBER.pack_into(self._memory, _COMMAND_WORD, number)
        return command

    def progress(self) -> Progress:
        """Mini-batches so far."""
        return _PROGRESS.read(self._memory)[1]

    def answer(self) -> Answer:
        """What the process makes of its command."""
        return _ANSWER.read(self._memory)[1]

    def sample(self) -> Sample:
        """The last sample of bytes and utilization."""
        return _SAMPLE.read(self._memory)[1]

    def abilities(self) -> Abilities:
        """What the script has told of itself."""
        return _ABILITIES.read(self._memory)[1]

    # -- for the process

    def command_word(self) -> bytes:
        """A word that changes with every command."""
        return self._memory[_COMMAND_WORD : _COMMAND_WORD + 8]

    def report_progress(self, iterations: int, seconds: float, at: float) -> None:
        """Write :class:`Progress`."""
        self._report(_PROGRESS, (iterations, seconds, at))

    def report_answer(self, answer: Answer) -> None:
        """Write :class:`Answer`."""
        self._report(_ANSWER, astuple(answer))

    def report_sample(self, sample: Sample) -> None:
        """Write :class:`Sample`."""
        self._report(_SAMPLE, astuple(sample))

    def report_abilities(self, abilities: Abilities) -> None:
        """Write :class:`Abilities`."""
        self._report(_ABILITIES, astuple(abilities))

    def _report(self, records: _Records[Any], values: Sequence[Any]) -> None:
        count = self._counts[records] + 1
        self._counts[records] = count
        records.write_values(self._memory, count, values)
