"""What a task finds in its environment; and its mark there, which all that it starts inherits.

What a task leaves behind is found by that mark.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .model import Job

#: of the engine's own environment: what a program needs to run at all
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH")

#: where the tasks of a gang meet: all of them are on this machine
MASTER = "127.0.0.1"


def task_environment(
    job: Job, rank: int, folder: Path, mark: str, visible: str, own: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Of task ``rank``: some of the engine's, what the submitter gave, and what hived says.

    ``CUDA_VISIBLE_DEVICES`` is ``visible``, the devices as CUDA has them. A gang gets what ``torch.distributed`` reads
    (``MASTER_ADDR``, ``MASTER_PORT``, ``RANK``, ``WORLD_SIZE``, ...) and what ``torchrun`` does (``PET_*``), one task
    being one node of it: so both ``python train.py`` and ``torchrun train.py`` find each other. ``HIVED_JOB_DIR``
    outlives a preemption.
    """
    assert job.placement is not None
    node, devices = job.placement.pods[rank]
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
        **{name: own[name] for name in _KEPT if name in own},
        **dict(job.spec.environment),
        **(meeting if job.spec.tasks > 1 else {}),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": visible,
        "HIVED_JOB_ID": str(job.id),
        "HIVED_JOB_NAME": job.name,
        "HIVED_JOB_DIR": str(folder),
        "HIVED_VC": job.spec.vc,
        "HIVED_PRIORITY": str(job.spec.priority),
        "HIVED_GUARANTEED": "1" if job.guaranteed else "0",
        "HIVED_NODE": node,
        "HIVED_DEVICES": ",".join(map(str, devices)),
        "HIVED_RANK": str(rank),
        "HIVED_TASKS": tasks,
        "HIVED_ATTEMPT": str(job.attempt),
        "HIVED_RESUMES": str(job.resumes),
        "HIVED_RETRIES": str(job.retries),
        MARK: mark,
    }


def free_port() -> int:
    """A port that nobody uses now, for a gang to meet at."""
    with socket.socket() as probe:
        probe.bind((MASTER, 0))
        return int(probe.getsockname()[1])


# -- the mark ---------------------------------------------------------------------------------------------------------

#: in the environment of every task
MARK = "HIVED_TASK"
#: how long what is killed may take to be gone, in seconds
_CLEARING_S = 2.0
#: how often, and after how many seconds, an environment is read again that may be about to be there
_TRIES, _AGAIN_S = 50, 0.002
#: in the flags of a process: it is a thread of the kernel (``PF_KTHREAD``)
_OF_THE_KERNEL = 0x0020_0000


def environments() -> Iterator[tuple[int, list[bytes]]]:
    """Pid and environment, as ``NAME=value``, of every process whose environment we may read. O(processes)."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(process.name), _environment(process)


def kill_marked(mark: str) -> None:
    """Kill whoever has this mark. They are gone when this returns, unless the kernel takes its time. O(processes)."""
    wanted = f"{MARK}={mark}".encode()
    last = time.monotonic() + _CLEARING_S
    while (killed := _kill(wanted)) and time.monotonic() < last:  # who has forked meanwhile is found then
        _wait_for(killed, last)


def _environment(process: Path) -> list[bytes]:
    """In the middle of ``execve(2)`` a process shows none: whoever could have one is given the time to be done."""
    for _ in range(_TRIES):
        if (found := (process / "environ").read_bytes()) or _has_none(process):
            break
        time.sleep(_AGAIN_S)
    return found.split(b"\0")


def _has_none(process: Path) -> bool:
    """Whether it is no program: dead, or the kernel's."""
    state, *numbers = (process / "stat").read_bytes().rpartition(b")")[2].split()
    return state in b"ZX" or bool(int(numbers[5]) & _OF_THE_KERNEL)


def _kill(wanted: bytes) -> list[int]:
    """Pidfds of those who have ``wanted`` in their environment, and were killed for it. To be closed."""
    found = []
    for pid, environment in environments():
        if wanted not in environment:
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as to_close:
            fd = os.pidfd_open(pid)
            to_close.callback(os.close, fd)
            # asked again now that the pid cannot become somebody else's
            if wanted in _environment(Path(f"/proc/{pid}")):
                found.append(fd)
                to_close.pop_all()
                signal.pidfd_send_signal(fd, signal.SIGKILL)
    return found


def _wait_for(pidfds: list[int], last: float) -> None:
    """Until all of them are gone, or it is ``last``; closes them."""
    for fd in pidfds:
        gone = select.poll()
        gone.register(fd, select.POLLIN)
        gone.poll(max(0.0, last - time.monotonic()) * 1000)
        os.close(fd)
