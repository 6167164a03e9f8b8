"""Processes on GPUs that are no job's: somebody else is at work there, and the GPU is nobody's while that lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

from .containers import is_of_a_task
from .environment import parent_of
from .job_users import name_of
from .tasks import supervised

#: of the first namespace of processes, by Linux: NVML counts in it
_FIRST_NAMESPACE = 0xEFFFFFFC
#: programs of the driver, which compute for jobs; as the kernel cuts their names
_OF_THE_DRIVER = ("nvidia-cuda-mps", "nv-hostengine", "nvidia-persiste")
#: processes named in a reason
_NAMED = 2


def can_be_told() -> bool:
    """Whether the numbers of processes that NVML says are those that we see: not in most containers."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    return False


def is_of_a_job(pid: int, folder: Path, owner_of: Callable[[str], int | None] = lambda _: None) -> bool:
    """Whether a process is of a job in this state folder, or has ended: its supervisor has started it. O(depth).

    Not by its mark: what it says of itself is its user's word. But Docker's daemon says it of containers;
    ``owner_of``: the uid of the running task with a mark. Jobs of another engine are none of these.
    """
    while pid > 1:
        if (task := supervised(pid)) is not None:
            with contextlib.suppress(OSError):  # it may have been moved since the task was started
                task = Path(f"/proc/{pid}/cwd").readlink()
            return folder.resolve() in task.parents or folder in task.parents
        try:
            parent = parent_of(pid)
        except (OSError, ValueError, IndexError):
            return True
        if is_of_a_task(pid, parent, owner_of):
            return True
        pid = parent
    return False


def strangers(pids: Iterable[int], is_ours: Callable[[int], bool]) -> str | None:
    """Who is at work, as a reason for which a GPU takes no jobs; None: nobody but jobs. O(processes)."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            process = Path(f"/proc/{pid}")
            program = process.joinpath("comm").read_text(errors="replace").strip()
            uid = process.stat().st_uid
            if not _is_of_the_driver(process, program, uid) and not is_ours(pid):
                found.append(f"{program} (pid {pid}) of {name_of(uid)}")
    if not found:
        return None
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    what = "processes use" if len(found) > 1 else "a process uses"
    return f"{what} it that hived did not start: {', '.join(sorted(found)[:_NAMED])}{more}"


def _is_of_the_driver(process: Path, program: str, uid: int) -> bool:
    """Whether it is a program of the driver: what a process of another user than root says it is called is no proof."""
    if program not in _OF_THE_DRIVER or uid == 0:
        return program in _OF_THE_DRIVER
    with contextlib.suppress(OSError):
        file = process / "exe"
        return file.readlink().name.startswith(program) and file.stat().st_uid == 0
    return False
