"""What a process has besides its Python objects, and what a move would lose: threads, other processes, open files."""

from __future__ import annotations

import contextlib
import multiprocessing.resource_tracker
import os
import stat
import threading
from pathlib import Path

from hived_control.folder import started_at
from hived_control.stopping import descendants

from . import loaders
from .kinds import MoveError

#: modules whose threads hold nothing of the script's
_KNOWN_THREADS = ("hived_control", "hived_runtime", "torch", "tqdm")
_COMPILER = b"torch/_inductor/compile_worker"  #: processes that only translate
#: files that stand for memory: shared tensors, the state of a move
_MEMORY = ("/dev/shm/", "/memfd:")


def check(job: Path, destination: int = 0) -> None:
    """Raise :class:`MoveError` if this process has anything that a new one would not have. O(processes and files).

    ``job``: the job's folder, whose files are ours. ``destination``: pid of a process that is ours too.
    """
    for thread in threading.enumerate():
        module = getattr(getattr(thread, "_target", None), "__module__", None) or type(thread).__module__
        # of queues: they feed loader workers, or another process, which is found below
        is_known = str(module).partition(".")[0] in _KNOWN_THREADS or module == "multiprocessing.queues"
        if thread is not threading.current_thread() and not is_known:
            raise MoveError(f"the thread {thread.name!r} of {module}, which may hold work of the script")
    known = loaders.worker_pids() | {_tracker()}
    for pid in descendants(os.getpid(), besides=destination):
        if pid not in known and started_at(pid) is not None and not _compiles(pid):
            raise MoveError(f"the process {pid}, which the script has started: {_command(pid)}")
    for name in written_by(os.getpid(), job).values():
        raise MoveError(f"the file {name!r}, which the script has open for writing")


def written_by(pid: int, job: Path) -> dict[tuple[int, int], str]:
    """The regular files that a process has open for writing, by device and inode.

    Without its standard streams, and what is in the folder ``job``: control pages are mapped there.
    """
    found, streams = {}, set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                flags = int(Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().split("flags:")[1].split()[0], 8)
                about, name = entry.stat(), str(entry.readlink())
                key = (about.st_dev, about.st_ino)
                if int(entry.name) <= 2:
                    streams.add(key)
                elif flags & (os.O_WRONLY | os.O_RDWR) and stat.S_ISREG(about.st_mode):
                    found[key] = name
    ours = (*_MEMORY, f"{job}/")
    return {key: name for key, name in found.items() if key not in streams and not name.startswith(ours)}


def _tracker() -> int:
    """The process of ``multiprocessing`` that cleans up, if there is one."""
    return int(getattr(multiprocessing.resource_tracker._resource_tracker, "_pid", None) or 0)


def _compiles(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _COMPILER in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:60].strip()
    return ""
