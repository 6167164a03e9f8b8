"""Control groups of tasks: whatever a task starts stays in its group, and ends with it at one word of the kernel's.

Without one, processes that a task leaves behind are found as children of its supervisor, or by their mark. Some are
beyond reach then: those of a task that forks faster than it is killed, and daemons without the mark of a task whose
supervisor was killed.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Collection
from pathlib import Path

from hived.errors import InputError

from .device_fence import allow_only

#: where the hierarchy of version 2 may be mounted
_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
#: of processes of one task, where the kernel counts them: far more than any training job has
_MOST_PROCESSES = 32_768
#: how long the end of killed processes is waited for, in seconds
_ENDS_S = 2.0


class Fences:
    """The control groups of an engine's tasks, where it may make some."""

    def __init__(
        self,
        database: str,
        mounts: tuple[Path, ...] = _MOUNTS,
        submission_of: Callable[[int], str] = lambda _: "",
    ) -> None:
        """``database``: the engine's, and what tells it from that of a copy; its groups are in one of that name.

        ``submission_of``: the random id of the submission of a job, whose number alone comes again.
        """
        self.folder = _own_group(database, mounts)
        self._submission_of = submission_of

    def check_devices(self) -> None:
        """Raise :class:`~hived.errors.InputError` where tasks cannot be kept from the GPUs of others."""
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

    def make(self, job: int, attempt: int, rank: int, minors: Collection[int] | None = None) -> Path | None:
        """The group of a task, made if need be; None: there can be none, and the task runs without.

        ``minors``: of the GPUs that the task may open; None: it may open any. Raises :class:`OSError` where it cannot
        be kept from the others.
        """
        if self.folder is None:
            return None
        group = self.folder / self._name(job, attempt, rank)
        try:
            group.mkdir(exist_ok=True)
        except OSError:
            if minors is not None:
                raise
            return None
        if minors is not None:
            allow_only(group, minors)
        with contextlib.suppress(OSError):  # where processes are counted
            (group / "pids.max").write_text(str(_MOST_PROCESSES))
        return group

    def close(self) -> None:
        """Remove the folder of the groups, if there are none."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.rmdir()

    def end(self, job: int, attempt: int, rank: int) -> None:
        """Kill all that is left of a task, and remove its group."""
        if self.folder is not None:
            end(self.folder / self._name(job, attempt, rank))

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


def _own_group(database: str, mounts: tuple[Path, ...]) -> Path | None:
    """The folder of the engine's groups, made if need be; None: it may make none."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
        here = next((line.removeprefix("0::/") for line in lines if line.startswith("0::")), None)
        for mount in mounts if here is not None else ():
            if (mount / "cgroup.controllers").exists():
                group = mount / str(here) / f"hived-{database}"
                with contextlib.suppress(OSError):
                    group.mkdir(exist_ok=True)
                    if (group / "cgroup.kill").exists():
                        with contextlib.suppress(OSError):  # if the kernel lets us count processes there
                            (group / "cgroup.subtree_control").write_text("+pids")
                        return group
    return None
