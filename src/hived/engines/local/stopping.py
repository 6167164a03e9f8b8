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

    Raises :class:`~hived.errors.NotFoundError` where none has the folder, :class:`~hived.errors.ConflictError` where
    systemd has it, :class:`~hived.errors.ForbiddenError`, and :class:`~hived.errors.UnavailableError` where it has not
    ended in time.
    """
    nobody = NotFoundError(f"no engine has {folder}: nothing was stopped; of another folder: --state")
    try:
        lock = os.open(folder / "engine.lock", os.O_RDONLY)
    except PermissionError:
        raise ForbiddenError(f"{folder} is another user's: its engine is stopped by who started it, or root") from None
    except OSError:
        raise nobody from None
    try:
        if _is_free(lock):
            raise nobody
        pid = int(os.pread(lock, 20, 0) or 0)
        process = os.pidfd_open(pid)
        try:
            if service := _service_of(pid):
                raise ConflictError(f"the engine of {folder} is a service, which would start it again: {service}")
            if _is_free(lock):  # it has ended in between: the process may be another's
                raise nobody
            signal.pidfd_send_signal(process, signal.SIGINT)  # by which it ends with 0: no service starts it again
            if not select.select([process], [], [], patience_s)[0]:
                raise UnavailableError(f"the engine (pid {pid}) has not ended after {patience_s:g} s; it is told so")
        finally:
            os.close(process)
    except PermissionError:
        raise ForbiddenError(f"the engine of {folder} is another user's: who started it stops it, or root") from None
    except (ProcessLookupError, ValueError, OverflowError):
        raise UnavailableError(
            f"an engine has {folder}, and is no process that is known here: it is stopped where it was started"
        ) from None
    finally:
        os.close(lock)
    return pid


def _is_free(lock: int) -> bool:
    """Whether no engine has the lock."""
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
