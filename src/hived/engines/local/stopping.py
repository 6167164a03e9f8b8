"""End the engine of a state folder from outside, as Ctrl-C does in its terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
from pathlib import Path

from hived.errors import ConflictError, ForbiddenError, NotFoundError, UnavailableError


def stop_engine(folder: Path, patience_s: float) -> int:
    """Have the engine of a folder end, and wait until it has; its pid. Jobs run on.

    The number in its lock is believed only of a process that has the lock open: it may be of another container, or
    anybody's word. Raises :class:`~hived.errors.NotFoundError` where none has the folder,
    :class:`~hived.errors.ConflictError` where systemd has it, :class:`~hived.errors.ForbiddenError`, and
    :class:`~hived.errors.UnavailableError` where it has not ended in time.
    """
    nobody = NotFoundError(f"no engine has {folder}: nothing was stopped; of another folder: --state")
    others = ForbiddenError(f"the engine of {folder} is another user's: who started it stops it, or root")
    try:
        lock = os.open(folder / "engine.lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        raise others from None
    except OSError:
        raise nobody from None
    try:
        words = os.pread(lock, 20, 0).split()
        pid = int(words[0]) if words and words[0].isdigit() and len(words[0]) < 10 else 0
        with contextlib.ExitStack() as opened:
            process = -1
            if pid > 1:
                with contextlib.suppress(ProcessLookupError):
                    process = os.pidfd_open(pid)
                    opened.callback(os.close, process)
            if process < 0 or not _has_open(pid, lock):
                raise (
                    nobody
                    if _is_free(lock)
                    else UnavailableError(
                        f"an engine has {folder}, and is no process that is known here: stop it where it was started"
                    )
                )
            if service := _service_of(pid):
                raise ConflictError(f"the engine of {folder} is a service, which would start it again: {service}")
            signal.pidfd_send_signal(process, signal.SIGINT)  # by which it ends with 0: no service starts it again
            if not select.select([process], [], [], patience_s)[0]:
                raise UnavailableError(f"the engine (pid {pid}) has not ended after {patience_s:g} s; it is told so")
    except PermissionError:
        raise others from None
    except ProcessLookupError:
        raise nobody from None
    finally:
        os.close(lock)
    return pid


def _has_open(pid: int, lock: int) -> bool:
    """Whether a process of the owner of a lock has it open. Raises :class:`PermissionError` for one of others."""
    wanted = os.fstat(lock)
    process = Path(f"/proc/{pid}")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if process.stat().st_uid != wanted.st_uid:
            return False
        for name in os.listdir(process / "fd"):  # noqa: PTH208
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat((process / "fd" / name).stat(), wanted):
                    return True
    return False


def _is_free(lock: int) -> bool:
    """Whether nobody has the lock."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_UN)
        return True
    return False


def _service_of(pid: int) -> str:
    """The command that stops the service of systemd that a process is; "": it is none."""
    try:
        group = Path(f"/proc/{pid}/cgroup").read_text().strip().rpartition(":")[2]
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        started_by = Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:
        return ""
    name = group.rpartition("/")[2]
    if started_by != "systemd" or not name.endswith(".service"):
        return ""
    return f"systemctl {'--user ' if '/user@' in group else ''}stop {name}"
