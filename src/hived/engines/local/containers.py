"""Containers that tasks start through Docker's daemon, from the engine's side; see :mod:`.docker_gate`.

Those of podman, Apptainer and runc are processes of the task, and end as such.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
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
#: how long it may take to end what is left of a task, after how long it is tried again, and up to when, in seconds
_ENDS_S = 30.0
_AGAIN_S, _MOST_AGAIN_S = 1.0, 60.0
_LONGEST_S = 7 * 86_400.0
#: variables of a task that its containers get; folders of the machine are not there
_TOLD = (
    "HIVED_JOB_ID", "HIVED_JOB_NAME", "HIVED_VC", "HIVED_ARRAY_ID", "HIVED_ARRAY_INDEX", "HIVED_RANK", "HIVED_TASKS",
    "HIVED_ATTEMPT", "HIVED_RETRIES", "HIVED_RESUMES", "HIVED_GRACE",
)  # fmt: skip
#: name of the program whose child is the first process of a container
_SHIM = "containerd-shim"


def gate(
    folder: Path,
    environment: MutableMapping[str, str],
    uid: int,
    numbers: Sequence[int],
    names: Sequence[str],
    minors: Collection[int] | None,
    memory: int,
) -> dict[str, Any] | None:
    """What the supervisor of a task starts between it and Docker; None: there is no Docker on this machine. O(GPUs).

    ``environment``: from which the socket of another task is taken. ``folder``: of the user's, for its socket.
    ``numbers``, ``names``: of the task's GPUs, as hived and as Docker name them; ``minors``: of their files, None: it
    may open any. ``memory``: its share, 0: any.
    """
    if is_of_a_gate(environment.get("DOCKER_HOST", "")):  # of the job that it was submitted in, which ends
        del environment["DOCKER_HOST"]
    host, context = environment.get("DOCKER_HOST", ""), environment.get("DOCKER_CONTEXT", "")
    if host and not host.startswith("unix:///"):
        return None
    # pathlib raises where a folder may not be passed
    there = (path for path in _DAEMONS if os.path.exists(path.format(uid=uid)))  # noqa: PTH110
    if not (host or context or any(there)):
        return None
    task = {
        "mark": environment[MARK],
        "host": host,
        "config": environment.get("DOCKER_CONFIG") or f"{environment.get('HOME', '')}/.docker",
        "context": context,
        "socket": str(folder / SOCKET),
        "gpus": dict(zip(map(str, numbers), names, strict=True)),
        "minors": None if minors is None else sorted(minors),
        "memory": memory,
        "variables": {name: environment[name] for name in _TOLD if name in environment},
    }
    return {"program": docker_gate.__file__, "task": task}


def is_of_a_gate(host: str) -> bool:
    """Whether a DOCKER_HOST is the socket of a task."""
    return host.endswith(f"/{SOCKET}") or host.startswith(docker_gate.SHORT)


class Left:
    """Containers that may be left of tasks that have ended, in a folder: ended as soon as their daemon answers.

    Each is a file, which an engine finds that was started since. In a thread, since a daemon may not answer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._lock, self._closed, self._changed = threading.Lock(), threading.Event(), threading.Event()

    def open(self) -> None:
        """Begin with those of the engines before."""
        if self._all():
            self._begin()

    def add(self, name: str, docker: Mapping[str, Any], run_as: RunAs | None) -> None:
        """End those of a task, by what its supervisor was told of Docker."""
        with suppress(OSError):  # on a full disk: who is at work on a GPU is seen there
            self._folder.mkdir(mode=0o700, exist_ok=True)
            draft = self._folder / f".{name}"
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump({"task": docker["task"], "run_as": None if run_as is None else asdict(run_as)}, file)
            draft.replace(self._folder / name)
        self._begin()

    def close(self) -> None:
        """Leave the rest to the next engine."""
        self._closed.set()
        self._changed.set()

    def _begin(self) -> None:
        with self._lock:
            self._changed.set()
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, daemon=True, name="containers that are left")
                self._thread.start()

    def _run(self) -> None:
        tries = Counter[str]()
        while not self._closed.is_set():
            with self._lock:
                self._changed.clear()
                left = self._all()
                if not left:
                    self._thread = None
                    return
            # who was tried least: daemons that do not answer, of whosoever, keep no other waiting for more than a try
            file = min(left, key=lambda one: tries[one.name])
            if tries[file.name] and self._changed.wait(min(_AGAIN_S * 2 ** min(tries[file.name], 10), _MOST_AGAIN_S)):
                continue
            tries[file.name] += 1
            if _is_ended(file):
                file.unlink(missing_ok=True)

    def _all(self) -> list[Path]:
        with suppress(OSError):
            return sorted(path for path in self._folder.iterdir() if not path.name.startswith("."))
        return []


def _is_ended(file: Path) -> bool:
    """Whether what a file is about is over: by another try, or because it has been tried for long."""
    try:
        known = json.loads(file.read_bytes())
        task = {**known["task"], "socket": "", "grace_s": 0.0, "run_as": known["run_as"]}
        if time.time() - file.stat().st_mtime > _LONGEST_S:
            return True
    except (OSError, ValueError, LookupError, TypeError):
        return True
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", docker_gate.__file__],
            input=json.dumps(task).encode() + b"\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_ENDS_S,
            check=False,
            cwd="/",
            env={"LC_ALL": "C.UTF-8"},
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


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
