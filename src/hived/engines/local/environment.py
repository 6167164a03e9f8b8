"""The environment variables of a task, and its mark among them.

All processes that a task starts inherit the mark: processes that it leaves behind are found by it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from .model import Job

#: variables of the engine's environment that a program needs to run at all
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH")

#: rendezvous address of the tasks of a gang: all of them are on this machine
MASTER = "127.0.0.1"


def task_environment(
    job: Job, rank: int, state: Path, folder: Path, mark: str, visible: str, own: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment of task ``rank``: some variables of the engine, those of the submitter, and those of hived.

    ``CUDA_VISIBLE_DEVICES`` is ``visible``, the devices as CUDA names them. A gang gets the variables that
    ``torch.distributed`` reads (``MASTER_ADDR``, ``MASTER_PORT``, ``RANK``, ``WORLD_SIZE``, ...) and those of
    ``torchrun`` (``PET_*``), where one task is one node: so the tasks find each other under both ``python train.py``
    and ``torchrun train.py``. ``HIVED_JOB_DIR`` outlives a preemption. Python does not buffer its output, unless the
    submitter says so.
    """
    assert job.placement is not None
    node, devices = job.placement.pods[rank]
    array = job.spec.array_id
    tasks = str(job.spec.tasks)
    meeting = {
        **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), MASTER),
        **dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), str(job.port)),
        **dict.fromkeys(("WORLD_SIZE", "PET_NNODES"), tasks),
        **dict.fromkeys(("RANK", "NODE_RANK", "GROUP_RANK", "PET_NODE_RANK"), str(rank)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "PET_NPROC_PER_NODE": str(len(devices)),
    }
    return {
        "PYTHONUNBUFFERED": "1",  # output is a file, and Python would keep the last 8 KiB of it until the end
        **{name: own[name] for name in _KEPT if name in own},
        **job.spec.environment,
        **(meeting if job.spec.tasks > 1 else {}),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": visible,
        "HIVED_STATE": str(state),  # so that hived in it finds its engine
        "HIVED_JOB_ID": str(job.id),
        "HIVED_JOB_NAME": job.name,
        "HIVED_JOB_DIR": str(folder),
        "HIVED_VC": job.spec.vc,
        "HIVED_PRIORITY": str(job.spec.priority),
        "HIVED_GUARANTEED": "1" if job.guaranteed else "0",
        "HIVED_NODE": node,
        "HIVED_DEVICES": ",".join(map(str, devices)),
        **({"HIVED_ARRAY_ID": str(job.spec.array_id), "HIVED_ARRAY_INDEX": str(job.spec.array_index)} if array else {}),
        "HIVED_RANK": str(rank),
        "HIVED_TASKS": tasks,
        "HIVED_ATTEMPT": str(job.attempt),
        "HIVED_GRACE": f"{job.spec.grace_s:g}",
        "HIVED_RESUMES": str(job.resumes),
        "HIVED_RETRIES": str(job.retries),
        MARK: mark,
    }


def free_port() -> int:
    """A port that is free now, for the rendezvous of a gang."""
    with socket.socket() as probe:
        probe.bind((MASTER, 0))
        return int(probe.getsockname()[1])


# -- the mark ---------------------------------------------------------------------------------------------------------

#: the variable with the HIVED_JOB_DIR of the job that one was submitted again of
PREVIOUS = "HIVED_PREVIOUS_JOB_DIR"
#: the variable in the environment of every task that holds its mark
MARK = "HIVED_TASK"
#: how long to wait for killed processes to end, in seconds
_CLEARING_S = 2.0
#: for how long in all, and at what interval in seconds, environments are read again that may be about to appear
_APPEAR_S, _AGAIN_S = 0.1, 0.002
#: bytes read of an environment: a process may say that it has any number
_LONGEST = 8 << 20
#: process flag of a kernel thread (``PF_KTHREAD``)
_OF_THE_KERNEL = 0x0020_0000
#: place of the start of a process, in ticks since the boot
_STARTED = 19


def environments() -> Iterator[tuple[int, list[bytes]]]:
    """Pid and environment, as ``NAME=value``, of every process whose environment we may read. O(processes)."""
    unread = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if (found := _read(process / "environ")) or _has_none(process):
                    yield int(process.name), found.split(b"\0")
                else:
                    unread.append(process)
    last = time.monotonic() + _APPEAR_S  # together: somebody may have any number of processes without one
    while unread:
        for process in list(unread):
            try:
                variables = _environment(process, 0.0)
            except OSError:
                unread.remove(process)
                continue
            if variables != [b""] or time.monotonic() > last:
                unread.remove(process)
                yield int(process.name), variables
        time.sleep(_AGAIN_S if unread else 0.0)


def kill_marked(mark: str, adopted: Collection[tuple[int, int]] = ()) -> None:
    """Kill all processes with this mark, and wait for their end, up to two seconds. O(processes).

    And those ``adopted``, by pid and start, and all that these and those have started, which may not have the mark.
    """
    wanted = f"{MARK}={mark}".encode()
    last = time.monotonic() + _CLEARING_S
    while (killed := _kill(wanted, adopted=adopted)) and time.monotonic() < last:  # it may have forked meanwhile
        _wait_for(killed, last)


def wake_marked(mark: str) -> None:
    """Continue all processes with this mark that are stopped. O(processes)."""
    for fd in _kill(f"{MARK}={mark}".encode(), signal.SIGCONT):
        os.close(fd)


def _environment(process: Path, last: float) -> list[bytes]:
    """Read the environment of a process. In the middle of ``execve(2)`` it looks empty, and is read again till then."""
    while not (found := _read(process / "environ")) and not _has_none(process) and time.monotonic() < last:
        time.sleep(_AGAIN_S)
    return found.split(b"\0")


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LONGEST)


def _has_none(process: Path) -> bool:
    """Whether a process has no environment: a zombie, or a kernel thread."""
    state, *numbers = _status(int(process.name))
    return state in b"ZX" or bool(int(numbers[5]) & _OF_THE_KERNEL)


def _kill(wanted: bytes, number: int = signal.SIGKILL, adopted: Collection[tuple[int, int]] | None = None) -> list[int]:
    """Signal the processes that have ``wanted`` in their environment. Returns their pidfds, which the caller closes.

    ``adopted``: and these, by pid and start, and all below all of them; None: none of them.
    """
    found: dict[int, int] = {}
    for pid, started in adopted or ():
        with contextlib.suppress(OSError, ValueError, IndexError), contextlib.ExitStack() as to_close:
            fd = os.pidfd_open(pid)
            to_close.callback(os.close, fd)
            if int(_status(pid)[_STARTED]) == started and _status(pid)[0] not in b"ZX":
                found[pid] = fd
                to_close.pop_all()
    for pid, environment in environments():
        if wanted not in environment or pid in found:
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as to_close:
            fd = os.pidfd_open(pid)
            to_close.callback(os.close, fd)
            # checked again, now that the pid cannot be reused
            if wanted in _environment(Path(f"/proc/{pid}"), time.monotonic() + _APPEAR_S):
                found[pid] = fd
                to_close.pop_all()
    if found and adopted is not None:  # before any is killed, and its children are another's
        _add_children(found)
    for fd in found.values():
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(fd, number)
    return list(found.values())


def _add_children(found: dict[int, int]) -> None:
    """Add all processes below these, by pid, with a pidfd each, which the caller closes. O(processes)."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                children.setdefault(parent_of(int(process.name)), []).append(int(process.name))
    level = list(found)
    while level:
        below = [(parent, pid) for parent in level for pid in children.get(parent, ()) if pid not in found]
        level = []
        for parent, pid in below:
            with contextlib.suppress(OSError, ValueError, IndexError), contextlib.ExitStack() as to_close:
                fd = os.pidfd_open(pid)
                to_close.callback(os.close, fd)
                if parent_of(pid) == parent:  # as above
                    found[pid] = fd
                    level.append(pid)
                    to_close.pop_all()


def parent_of(pid: int) -> int:
    """Pid of its parent. ``OSError``, ``ValueError``, ``IndexError`` where there is no such process."""
    return int(_status(pid)[1])


def _status(pid: int) -> list[bytes]:
    """What the kernel says of a process, from its state on (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _wait_for(pidfds: list[int], last: float) -> None:
    """Wait until all of them have ended, or until time ``last``; close them."""
    for fd in pidfds:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(max(0.0, last - time.monotonic()) * 1000)
        os.close(fd)
