"""The training jobs of this machine that can be commanded: a folder each, with a control page per process.

    JOBS/NAME/job.json     the command, its folder, and the process that was started
    JOBS/NAME/joined       there once a process has ended a mini-batch
    JOBS/NAME/PID.page     the control page of a process (:mod:`.page`)
    JOBS/NAME/PID.sock     its socket: a datagram there makes it look at its page at once
    JOBS/NAME/KIND-N       a decision of all ranks at mini-batch N (:mod:`.deciding`)
    JOBS/NAME/lock         held (flock) while commands are written, and while an elastic job changes

JOBS is ``HIVED_JOBS``, or ``hived/jobs`` in the user's runtime folder, or a folder of the user's in ``/tmp``. It and
all in it are the user's alone. A page whose process is gone counts for nothing, and is deleted by whoever finds it.
Nothing else is ever deleted: a folder that holds anything that is not of these stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .environment import JOBS
from .errors import ConflictError, ForbiddenError, InputError, NotFoundError, StorageError, UnavailableError
from .page import Command, Page

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
#: the files of a job, drafts included
_OURS = re.compile(r"job\.json|joined|\.job\.[0-9]+|[0-9]+\.(page|sock|draft)|(go|move)-[0-9]+|elastic-[0-9]+.*")
_DECISION = re.compile(r"(?:go|move)-([0-9]+)")
_SHORT = 90  #: bytes of a folder, so that a socket in it has an address
_MOST_ABOUT = 4 << 20  #: bytes of ``job.json`` that are read: a command has 2 MiB at most
_LOCK_S = 10.0  #: others hold the lock for some milliseconds; an elastic job while it changes


def jobs_folder() -> Path:
    """Where the jobs of this user are. Made if it is not there; :class:`ForbiddenError` if it is another user's."""
    given = os.environ.get(JOBS) or None
    if given is not None:
        folder = Path(given)
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        folder = Path(runtime, "hived", "jobs")
    else:
        folder = Path(tempfile.gettempdir(), f"hived-{os.getuid()}", "jobs")
    try:
        for part in (folder.parent, folder):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        safe = is_own(folder) and (given is not None or is_own(folder.parent))
    except OSError as error:
        raise StorageError(f"cannot make the folder of training jobs {folder}: {error.strerror}") from None
    if not safe:
        raise ForbiddenError(
            f"the folder of training jobs {folder} can be written by others: set HIVED_JOBS to a folder of your own"
        )
    return folder


def named_after(command: Sequence[str]) -> str:
    """A name for a job that nobody has named: its script's, or its program's.

    >>> named_after(["python", "-u", "runs/train net.py", "--epochs", "3"]), named_after(["./.x"])
    ('train-net', 'x')
    """
    script = next((word for word in command if word.endswith(".py")), command[0])
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).strip("._-")[:40] or "job"


def is_own(folder: Path) -> bool:
    """Whether a folder is the user's, and no other can write there. ``OSError`` if it is not there."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o022


def started_at(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; ``None`` if there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


class JobFolder:
    """The folder of one job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @classmethod
    def named(cls, name: str) -> JobFolder:
        """The folder for a name, whether it exists or not; :class:`InputError` if no job can be called so."""
        if not _NAME.fullmatch(name):
            raise InputError(
                f"a job cannot be named {name!r}: letters, digits, '.', '_' and '-', at most 63, no sign first"
            )
        return cls(jobs_folder() / name)

    @classmethod
    def found(cls, name: str) -> JobFolder:
        """The folder of a job that runs; :class:`NotFoundError` if there is none, with the names of those that do."""
        folder = cls.named(name)
        if not folder.alive():
            names = [job.name for job in cls.all()]
            raise NotFoundError(
                f"no training job {name!r} on this machine: "
                + (f"there are {', '.join(names)}" if names else "none runs under hived train run or hived_runtime")
            )
        return folder

    @classmethod
    def all(cls) -> list[JobFolder]:
        """The jobs that run, by name. Folders of jobs that are gone are deleted on the way."""
        found = []
        for path in sorted(jobs_folder().iterdir()):
            job = cls(path)
            if path.is_dir() and _NAME.fullmatch(path.name):
                if job.alive():
                    found.append(job)
                else:
                    job.delete_if_dead()
        return found

    def claim(self, about: dict[str, Any]) -> None:
        """Make the folder for a new job; :class:`ConflictError` if a job of that name runs."""
        while True:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
            if self.path.is_file():
                raise InputError(f"{self.path} is a file: choose another --name")
            with contextlib.suppress(FileNotFoundError), self.locked():  # else it has been deleted meanwhile
                if self.alive():
                    raise ConflictError(
                        f"a training job {self.name!r} runs already on this machine: choose another --name"
                    )
                if others := self._clear():
                    raise InputError(f"{self.path} holds {others[0]}, of no training job: choose another --name")
                self.write_about(about)
                return

    def _clear(self) -> list[str]:
        """Delete the files of a job that is gone, but for the lock. The names of others, which stay.

        So does the page of a process that is joining just now: it does not wait for the lock.
        """
        others = []
        for file in self.path.iterdir():
            if _OURS.fullmatch(file.name) and (file.is_symlink() or not file.is_dir()) and not _is_of_living(file):
                file.unlink(missing_ok=True)
            elif file.name != "lock":
                others.append(file.name)
        return others

    def write_about(self, about: dict[str, Any]) -> None:
        """Write ``job.json``."""
        draft = self.path / f".job.{os.getpid()}"
        draft.write_text(json.dumps(about))
        draft.chmod(0o600)
        draft.rename(self.path / "job.json")

    def about(self) -> dict[str, Any]:
        """What is known of the job: ``job.json``; empty if it cannot be read."""
        try:
            with (self.path / "job.json").open(encoding="utf-8") as file:
                read = json.loads(file.read(_MOST_ABOUT))
        except (OSError, ValueError):
            return {}
        return read if isinstance(read, dict) else {}

    def join(self, pid: int, command: Command) -> Page:
        """Make the page of a process of the job, with its first command; the process publishes it."""
        while True:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700, parents=True)
            with contextlib.suppress(FileNotFoundError):  # somebody has deleted it, as one in which no process lives
                page = Page.create(self.path / f"{pid}.page", pid, started_at(pid) or 0, command)
                break
        (self.path / "joined").touch()
        return page

    def leave(self, pid: int) -> None:
        """Delete the page of a process that ends; with the last one the folder."""
        for ending in ("draft", "page", "sock"):
            (self.path / f"{pid}.{ending}").unlink(missing_ok=True)
        self.delete_if_dead(besides=pid)

    def has_trained(self) -> bool:
        """Whether a process of the job has ended a mini-batch, be it still there or not."""
        return (self.path / "joined").exists()

    def pages(self) -> list[Page]:
        """The pages of the processes that live, in the order of their start. Pages of others are deleted."""
        found = []
        for file in self._files("*.page"):
            try:
                page = Page.open(file)
            except (OSError, ValueError):
                continue
            if started_at(page.pid) == page.started:
                found.append(page)
            else:
                page.close()
                for ending in (".page", ".sock"):
                    file.with_suffix(ending).unlink(missing_ok=True)
        return sorted(found, key=lambda page: (page.started, page.pid))

    def _files(self, pattern: str) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):  # it is deleted just now
            return list(self.path.glob(pattern))
        return []

    def alive(self, besides: int = 0) -> bool:
        """Whether a process of the job lives, joined or not yet; ``besides``: another one than this pid."""
        if any(map(_is_of_living, self._files("*.draft"))):
            return True
        pages = self.pages()
        for page in pages:
            page.close()
        first = self.about().get("pid")
        started = self.about().get("started")
        return any(page.pid != besides for page in pages) or (
            isinstance(first, int) and first != besides and started is not None and started_at(first) == started
        )

    def delete_if_dead(self, besides: int = 0) -> None:
        """Delete the folder if no process of the job lives, or none besides this pid."""
        about = self.about()
        if "started" not in about and (about or not self.has_trained()):
            return  # no job of ours has ever been there
        with contextlib.suppress(OSError, UnavailableError), self.locked(timeout_s=0.0):
            if not self.alive(besides) and not self._clear():
                (self.path / "lock").unlink()
                self.path.rmdir()

    @contextlib.contextmanager
    def locked(self, timeout_s: float = _LOCK_S) -> Iterator[None]:
        """Keep others from writing commands; :class:`UnavailableError` if one does so for longer than ``timeout_s``.

        ``FileNotFoundError`` if the folder is gone.
        """
        descriptor = self.lock(timeout_s)
        try:
            yield
        finally:
            unlock(descriptor)

    def lock(self, timeout_s: float = _LOCK_S) -> int:
        """Take the lock: a descriptor, for :func:`unlock`. Errors as of :meth:`locked`."""
        file = self.path / "lock"
        until = time.monotonic() + timeout_s
        while True:
            descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), file.stat()):  # else it was deleted while this waited
                    return descriptor
            except BlockingIOError:
                if time.monotonic() >= until:
                    os.close(descriptor)
                    raise UnavailableError(f"another command for job {self.name} is being carried out") from None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            time.sleep(0.002)

    # -- decisions of all ranks

    def decision(self, kind: str, at: int) -> Path:
        """The decision of all ranks at a mini-batch: ``go``, ``move``. See :mod:`.deciding`."""
        return self.path / f"{kind}-{at}"

    def forget_decisions(self, before: int) -> None:
        """Delete those at mini-batches that all ranks have passed."""
        for file in self.path.iterdir():
            match = _DECISION.fullmatch(file.name)
            if match and int(match[1]) < before:
                file.unlink(missing_ok=True)

    def listen(self, pid: int) -> socket.socket:
        """The socket of a process, by which it is woken."""
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with self._short() as folder:
            (self.path / f"{pid}.sock").unlink(missing_ok=True)
            bell.bind(f"{folder}/{pid}.sock")
        return bell

    def ring(self, pid: int) -> None:
        """Make a process look at its page now, if it listens."""
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell,
            self._short() as at,
        ):
            bell.setblocking(False)
            bell.sendto(b"!", f"{at}/{pid}.sock")

    @contextlib.contextmanager
    def _short(self) -> Iterator[str]:
        """A path of the folder that is short enough for the address of a socket: at most 107 bytes."""
        if len(os.fsencode(self.path)) < _SHORT:  # a process that has become another user may not use the way below
            yield str(self.path)
            return
        descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)


def _is_of_living(file: Path) -> bool:
    """Whether a file is the page of a process that lives, seen or not yet."""
    return file.suffix in (".page", ".draft") and file.stem.isdecimal() and started_at(int(file.stem)) is not None


def unlock(descriptor: int) -> None:
    """Give a lock back."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor too
    os.close(descriptor)
