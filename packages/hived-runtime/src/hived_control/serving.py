"""Commands to the training jobs of one user, on behalf of a controller with more rights: a process that becomes them.

Who owns a folder may have anything there: a link, a pipe, a page that shrinks while it is mapped, the pid of somebody
else's process. So root touches none of it. This process does, with the rights of the user and no others; what it meets
there harms the user's own jobs alone. It is executed with UID GID GROUP,GROUP,... and takes requests from its standard
input, a JSON object a line:

    {"id": 1, "do": "suspend", "folder": "/…/17.1", "how": {"timeout_s": 5.0}}

and answers each with ``{"id": 1, "found": …}``, or ``{"id": 1, "error": "NotYetError", "text": "…"}``, in the order in
which they are done. It ends with its standard input, which is the controller's.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import Any, get_type_hints

from . import commands, errors
from .commands import JobStatus, ProcessStatus, TrainingJob
from .folder import JobFolder

_FILES, _MEMORY = 1024, 512 << 20  #: that it may open, and bytes that it may use
_STACK = 512 << 10  #: bytes of a thread's stack
#: what may be asked for
_DONE: dict[str, Callable[..., Any]] = {
    "status": TrainingJob.status,
    "suspend": TrainingJob.suspend,
    "resume": TrainingJob.resume,
    "limit": TrainingJob.limit,
    "scale": TrainingJob.scale,
}
#: errors that are told by their names
_ERRORS: dict[str, type[errors.TrainingError]] = {
    kind.__name__: kind
    for kind in (
        commands.NotYetError,
        commands.RefusedError,
        errors.NotFoundError,
        errors.ConflictError,
        errors.InputError,
        errors.UnavailableError,
    )
}


def become(uid: int, gid: int, groups: list[int]) -> None:
    """Become a user for good, with little of the machine. ``OSError`` where it cannot."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o077)
    _leave_keyring()
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)  # from here on the kernel lets no process of the user look into this one


def _leave_keyring() -> None:
    """Have a session keyring of one's own: who inherits that of the controller may use its keys."""
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, None)  # keyctl(KEYCTL_JOIN_SESSION_KEYRING, anonymous)


def serve(requests: Iterable[str], write: Callable[[str], object]) -> None:
    """Answer requests, each in a thread of its own, until there are no more. O(1) beside what is asked for."""
    lock = threading.Lock()

    def answer(asked: dict[str, Any]) -> None:
        said = json.dumps({"id": asked["id"], **_answer(asked)})
        with lock:
            write(said + "\n")

    threading.stack_size(_STACK)
    for line in requests:
        asked = json.loads(line)
        try:
            threading.Thread(target=answer, args=(asked,), daemon=True).start()
        except RuntimeError:  # its user has all the threads that they may
            answer(asked)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        job = TrainingJob(JobFolder(Path(asked["folder"])))
        found = _DONE[asked["do"]](job, **asked["how"])
        return {"found": asdict(found) if isinstance(found, JobStatus) else found}
    except errors.TrainingError as error:
        kind = next((name for name, kind in _ERRORS.items() if type(error) is kind), "UnavailableError")
        return {"error": kind, "text": str(error)}
    except Exception as error:
        return {"error": "UnavailableError", "text": f"its control pages cannot be used: {error}"}


# -- for the controller ------------------------------------------------------------------------------------------------


def command(uid: int, gid: int, groups: Iterable[int]) -> list[str]:
    """The command by which a controller starts it, from this installation and nothing else."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from hived_control.serving import main; main(sys.argv[2:])"
    here = str(Path(__file__).parents[1])
    return [sys.executable, "-I", "-S", "-c", code, here, str(uid), str(gid), ",".join(map(str, groups))]


def found_in(answer: dict[str, Any]) -> Any:
    """What an answer holds; raises the error that it holds instead. ``ValueError``, ``TypeError``: it is none."""
    if "error" in answer:
        raise _ERRORS.get(answer["error"], errors.UnavailableError)(str(answer["text"]))
    return answer["found"]


def status_of(plain: dict[str, Any]) -> JobStatus:
    """The status of a job that is told as plain data. ``ValueError``, ``TypeError``: it is none."""
    hints = get_type_hints(ProcessStatus)
    processes = tuple(
        ProcessStatus(**{name: _as(kind, each[name]) for name, kind in hints.items()}) for each in plain["processes"]
    )
    return JobStatus(str(plain["name"]), str(plain["command"]), bool(plain["launching"]), processes)


def _as(kind: Any, value: Any) -> Any:
    if kind in (int, float, bool, str):
        if not isinstance(value, (int, float) if kind is float else kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return kind(value)
    if issubclass(kind, IntEnum):
        return kind(value)
    return kind(**{name: _as(part, value[name]) for name, part in get_type_hints(kind).items()})


def main(arguments: list[str]) -> None:
    """Become the user, and serve until the controller is gone, whatever a request still waits for."""
    uid, gid, groups = arguments
    become(int(uid), int(gid), [int(group) for group in groups.split(",") if group])

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        serve(sys.stdin, write)
    finally:
        os._exit(0)
