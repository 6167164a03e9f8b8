"""What a task finds in its environment."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from .model import Job
from .process_tag import MARK

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
    listed = ",".join(map(str, devices))
    port = str(job.port)
    meeting = {
        "MASTER_ADDR": MASTER,
        "MASTER_PORT": port,
        "WORLD_SIZE": tasks,
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(rank),
        "GROUP_RANK": str(rank),
        "PET_NNODES": tasks,
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": str(len(devices)),
        "PET_MASTER_ADDR": MASTER,
        "PET_MASTER_PORT": port,
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
        "HIVED_DEVICES": listed,
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
