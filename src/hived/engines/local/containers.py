"""Containers that tasks start through Docker's daemon, from the engine's side; see :mod:`.docker_gate`.

Those of podman, Apptainer and runc are processes of the task, and end as such.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import docker_gate
from .environment import MARK
from .job_users import RunAs

#: name of the socket of a task
SOCKET = "hived-docker.sock"
_DAEMONS = ("/var/run/docker.sock", "/run/user/{uid}/docker.sock")
#: how long the containers of a task are waited for whose supervisor was killed, in seconds
_ENDS_S = 5.0
#: name of the program whose child is the first process of a container
_SHIM = "containerd-shim"


def gate(
    folder: Path,
    environment: Mapping[str, str],
    uid: int,
    numbers: Sequence[int],
    names: Sequence[str],
    minors: Collection[int] | None,
    memory: int,
) -> dict[str, Any] | None:
    """What the supervisor of a task starts between it and Docker; None: there is no Docker on this machine. O(GPUs).

    ``folder``: of the user's, for its socket. ``numbers``, ``names``: of the task's GPUs, as hived and as Docker name
    them; ``minors``: of their files, None: it may open any. ``memory``: its share, 0: any.
    """
    host = environment.get("DOCKER_HOST", "")
    if host.endswith(f"/{SOCKET}") or host.startswith(docker_gate.SHORT):  # of the job that it was submitted in
        host = ""
    if host and not host.startswith("unix:///"):
        return None
    if not host and not any(Path(path.format(uid=uid)).exists() for path in _DAEMONS):
        return None
    task = {
        "mark": environment[MARK],
        "host": host,
        "home": environment.get("HOME", ""),
        "socket": str(folder / SOCKET),
        "gpus": dict(zip(map(str, numbers), names, strict=True)),
        "minors": None if minors is None else sorted(minors),
        "memory": memory,
    }
    return {"program": docker_gate.__file__, "task": task}


def end(docker: Mapping[str, Any], run_as: RunAs | None) -> None:
    """End the containers of a task whose supervisor was killed, as its user. Blocks for some seconds at most."""
    task = {**docker["task"], "socket": "", "grace_s": 0.0, "run_as": None if run_as is None else asdict(run_as)}
    with suppress(OSError, subprocess.SubprocessError):  # whoever is at work on a GPU is seen there
        subprocess.run(
            [sys.executable, "-I", "-S", docker_gate.__file__],
            input=json.dumps(task).encode() + b"\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_ENDS_S,
            check=False,
            cwd="/",
            env={"LC_ALL": "C.UTF-8"},
        )


def is_of_a_task(pid: int, parent: int, owner_of: Callable[[str], int | None]) -> bool:
    """Whether a process is the first of a container that a task has started.

    ``owner_of``: the user of the running task with a mark. What a container says of itself is believed where it was
    started by a daemon of root's, or of that user's.
    """
    with suppress(OSError):
        shim = Path(f"/proc/{parent}")
        if shim.joinpath("comm").read_text(errors="replace").startswith(_SHIM):
            name = f"{MARK}=".encode()
            for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if variable.startswith(name):
                    owner = owner_of(variable.removeprefix(name).decode(errors="replace"))
                    return owner is not None and shim.stat().st_uid in (0, owner)
    return False
