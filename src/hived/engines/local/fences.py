"""Control groups of tasks: whatever a task starts stays in its group, and ends with it at one word of the kernel's.

Without one, processes that a task leaves behind are found as children of its supervisor, or by their mark. Some are
beyond reach then: those of a task that forks faster than it is killed, and daemons without the mark of a task whose
supervisor was killed.

A group is a fence too, where the engine is told so: its task opens its own GPUs alone, and has no more of the machine's
memory and processors than its GPUs' share. With 2 of 8 GPUs it may use a quarter of the memory of jobs, and has a
quarter of the processors while they are all busy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from pathlib import Path

from hived.errors import InputError

from .delegation import MOUNTS, OwnGroups
from .device_fence import allow_only

#: of processes of one task, where the kernel counts them: far more than any training job has
_MOST_PROCESSES = 32_768
#: how long the end of killed processes is waited for, in seconds
_ENDS_S = 2.0
#: part of the machine's memory that is for jobs; the rest is for the system, and the engine
_FOR_JOBS = 15 / 16
#: ``cpu.weight`` for each GPU: the default of a group
_WEIGHT, _MOST_WEIGHT = 100, 10_000


class Fence(StrEnum):
    """What tasks are kept to; see :meth:`Fences.make`."""

    DEVICES = "devices"
    MEMORY = "memory"
    CPU = "cpu"


class Fences:
    """The control groups of an engine's tasks, where it may make some."""

    def __init__(
        self,
        database: str,
        asked: Collection[Fence] = (),
        mounts: Sequence[Path] = MOUNTS,
        submission_of: Callable[[int], str] = lambda _: "",
    ) -> None:
        """``database``: the engine's, and what tells it from that of a copy; its groups are in one of that name.

        ``submission_of``: the random id of the submission of a job, whose number alone comes again. Raises
        :class:`~hived.errors.InputError` where tasks cannot be fenced as is asked.
        """
        self.asked, self._mounts = frozenset(asked), mounts
        self._submission_of = submission_of
        name = f"hived-{database}"
        divided = {str(fence) for fence in self.asked - {Fence.DEVICES}}
        try:
            self._own = OwnGroups.dividing(name, divided, mounts) if divided else OwnGroups.plain(name, mounts)
        except InputError as error:
            raise InputError(f"--fence {','.join(sorted(divided))}: {error}; or leave it out (--fence none)") from None
        self.folder = None if self._own is None else self._own.path
        if Fence.DEVICES in self.asked:
            try:
                self._check_devices()
            except InputError:
                self.close()
                raise
        self._memory = _memory(self.folder) if self.folder is not None and Fence.MEMORY in self.asked else 0

    def _check_devices(self) -> None:
        way_out = "run hived up as root, where control groups of version 2 are mounted, or with --fence none"
        if self.folder is None:
            raise InputError(f"--fence devices: this process may make no control groups; {way_out}")
        trial = self.folder / "trial"
        try:
            trial.mkdir(exist_ok=True)
            allow_only(trial, ())
        except OSError as error:
            why = f"the kernel lets it attach no program to a control group ({error.strerror})"
            raise InputError(f"--fence devices: {why}; {way_out}") from None
        finally:
            with contextlib.suppress(OSError):
                trial.rmdir()

    def make(
        self, job: int, attempt: int, rank: int, minors: Collection[int] | None = None, gpus: int = 1, of: int = 1
    ) -> Path | None:
        """The group of a task, made if need be, and fenced as asked; None: there can be none, and it runs without.

        ``minors``: of the GPUs that the task may open; None: it may open any. ``gpus``: of its own, and ``of`` so many
        of the machine. One that has been made before has never less memory than then, which it may be using. Raises
        :class:`OSError` where it cannot be kept to them.
        """
        if self.folder is None:
            return None
        group = self.folder / self._name(job, attempt, rank)
        try:
            group.mkdir(exist_ok=True)
        except OSError:
            if self.asked:
                raise
            return None
        if Fence.DEVICES in self.asked and minors is not None:
            allow_only(group, minors)
        if Fence.CPU in self.asked:
            (group / "cpu.weight").write_text(str(min(_MOST_WEIGHT, _WEIGHT * gpus)))
        if Fence.MEMORY in self.asked:
            most = (group / "memory.max").read_text(encoding="ascii").strip()
            share = self.memory(gpus, of)
            if most == "max" or int(most) < share:
                (group / "memory.max").write_text(str(share))
            (group / "memory.oom.group").write_text("1")  # a job without one of its processes may wait for it for ever
            with contextlib.suppress(OSError):  # where the kernel counts it
                (group / "memory.swap.max").write_text("0")
        with contextlib.suppress(OSError):  # where processes are counted
            (group / "pids.max").write_text(str(_MOST_PROCESSES))
        return group

    def memory(self, gpus: int, of: int) -> int:
        """Bytes of memory of a task with so many GPUs of the machine's; 0: it is not divided."""
        return self._memory * gpus // of

    def close(self) -> None:
        """Remove the folder of the groups, if there are none."""
        if self._own is not None:
            self._own.close()

    def end(self, job: int, attempt: int, rank: int, was: Path | None = None) -> None:
        """Kill all that is left of a task, and remove its group.

        ``was``: its group as it was started, which is elsewhere if the engine was started in another way since.
        """
        name = self._name(job, attempt, rank)
        if self.folder is not None:
            end(self.folder / name)
        if (
            was is not None
            and was.name == name
            and ".." not in was.parts
            and any(map(was.is_relative_to, self._mounts))
        ):
            end(was)

    def _name(self, job: int, attempt: int, rank: int) -> str:
        submission = self._submission_of(job)
        return f"{job}.{attempt}.{rank}" + (f".{submission}" if submission else "")


def end(group: Path) -> None:
    """Kill all processes of a group, and remove it, with those that were made in it. Blocks for two seconds at most."""
    last = time.monotonic() + _ENDS_S
    while group.is_dir():
        with contextlib.suppress(OSError):
            (group / "cgroup.kill").write_text("1")
        try:
            for inner in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
                inner.rmdir()
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > last:
                return
            time.sleep(0.01)


def _memory(folder: Path) -> int:
    """Bytes of memory that are for jobs: of the machine, or of the smallest group that this one is in."""
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for group in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):  # not in the topmost; and "max"
            least = min(least, int((group / "memory.max").read_text(encoding="ascii")))
    return int(least * _FOR_JOBS)
