"""The tasks of this machine, from the engine's side: start, find again, stop and watch them to their end.

The state of a task is read from its folder (see :mod:`.supervisor`), never remembered, so the engine can lose nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from . import containers, supervisor
from .environment import MARK, kill_marked
from .fences import Fences
from .job_users import RunAs

#: errors for want of open files, processes or memory: the same may succeed a little later
SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
#: errors for want of space on a disk: the same succeeds once somebody has made some
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
#: variables of the engine's environment that a supervisor needs to run at all, where Python is not the system's
_KEPT = ("LD_LIBRARY_PATH",)
#: flags of opening a file for the supervisor, whatever a task may have put in its place
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
#: name of the file of another time limit
LIMIT = "limit"
#: bytes read of a small file, at most: a task is of the same user, and may have put anything in its place
_MOST = 65_536
_MOST_WORK = 1 << 23  #: of what a task is to do, its environment in it


class Liveness(Enum):
    """The state of a task's supervisor, as its folder shows it."""

    UNCLAIMED = "unclaimed"  #: no supervisor has started the task
    ALIVE = "alive"  #: its supervisor runs
    ENDED = "ended"  #: the task has ended, and its supervisor has written how
    LOST = "lost"  #: its supervisor has ended without writing how the task ended
    FOREIGN = "foreign"  #: the files are those of another submission or attempt
    ELSEWHERE = "elsewhere"  #: the files are a copy, and its supervisor runs in the folder of the original


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a task ended."""

    code: int  #: as in a shell: 128 + signal where a signal ended it, 127 where it could not be started
    signal: int | None = None
    stopped: bool = False  #: whether it was stopped while it ran
    limit: bool = False  #: whether that was for its time limit
    error: str | None = None  #: why it could not be started, how it got lost, or what it was killed for
    lost: bool = False  #: whether its end is unknown
    rebooted: bool = False  #: whether the machine was rebooted while it ran
    started: float | None = None  #: seconds since the epoch
    ended: float | None = None


#: of a task that was told to stop, and had not started
_STOPPED = Ending(128 + signal.SIGTERM, signal.SIGTERM, stopped=True)


@dataclass(frozen=True, slots=True)
class Work:
    """The program that a supervisor runs, and its limits."""

    command: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    grace_s: float
    time_limit_s: float | None
    run_as: RunAs | None = None  #: None: as the engine
    warning: tuple[int, float] | None = None  #: a signal, and so many seconds before the time limit
    fence: str | None = None  #: its control group; None: it has none
    is_kept_in: bool = False  #: whether it must not run outside of that
    most_output: int = 0  #: bytes of what it prints that are kept, the last ones; 0: all
    umask: int | None = None  #: of its processes; None: the engine's, or 022 as another user
    limit_file: str = LIMIT  #: where another time limit is looked for while it runs
    docker: Mapping[str, Any] | None = None  #: what stands between it and Docker (:mod:`.containers`); None: nothing


class Task:
    """One task of one attempt, by its folder."""

    def __init__(self, folder: Path, mark: str = "", output: Path | None = None, uid: int = -1) -> None:
        """``mark``: of its processes and its claim; or what it begins with, where the rest is not known any more.

        ``output``: file of what it prints; None: in its folder. ``uid``: whose that is; -1: the engine's.
        """
        self.folder = folder
        self.mark = mark
        self.output = output or folder / "output"
        self.uid = os.geteuid() if uid < 0 else uid

    def open_output(self) -> int:
        """Open what it prints, to be read, with no link followed at the end and no wait; ``OSError`` without any.

        Its owner may have put a link to a folder of others on the way there, so it has to be their file.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
        if self.uid == os.geteuid():
            return os.open(self.output, flags)
        with _beneath(self.output.parents[3], self.output.parts[-4:-1]) as folder:
            file = os.open(self.output.name, flags, dir_fd=folder)
        if os.fstat(file).st_uid != self.uid:
            os.close(file)
            raise PermissionError(1, "it is another user's file", str(self.output))
        return file

    def write(self, work: Work) -> None:
        """Write the task's work for the supervisor. O(size); ``OSError`` where the disk is full."""
        make_folder(self.folder, 0o050 if work.run_as is None else 0o011)
        draft = self.folder / "task.json.part"
        with os.fdopen(os.open(draft, _WRITE, 0o600), "w", encoding="ascii") as file:  # an environment holds secrets
            json.dump(asdict(work), file)
        draft.replace(self.folder / "task.json")

    def forget_work(self) -> None:
        """Delete its work, which is over, with the environment in it."""
        with contextlib.suppress(OSError):
            (self.folder / "task.json").unlink()

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start a supervisor. It exits at once if another one has claimed the task already."""
        name = self.folder / "supervisor.log"
        with os.fdopen(os.open(name, _APPEND, 0o600), "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={name: os.environ[name] for name in _KEPT if name in os.environ} | {"LC_ALL": "C.UTF-8"},
            )

    def liveness(self) -> Liveness:
        """The state of its supervisor. O(1). ``OSError`` only where this process can have no more open files."""
        try:
            claim = os.open(self.folder / "claim", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return Liveness.UNCLAIMED
        except OSError as error:
            if error.errno in SCARCE:
                raise
            return Liveness.LOST  # a claim that no supervisor made
        try:
            whose = self.whose()
            if whose is not None and not whose.startswith(self.mark):
                return Liveness.FOREIGN
            fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Liveness.ALIVE
        finally:
            os.close(claim)
        if (self.folder / "exit").exists():
            return Liveness.ENDED
        return Liveness.ELSEWHERE if self._elsewhere() else Liveness.LOST

    def whose(self) -> str | None:
        """The mark in its claim, or, for a claim of an earlier version, in its work; ``None`` where neither has one."""
        try:
            words = read_small(self.folder / "claim").split(maxsplit=2)
            if len(words) == 3:
                return words[2].strip()
            return str(json.loads(read_small(self.folder / "task.json"))["environment"][MARK])
        except OSError as error:
            if error.errno in SCARCE:
                raise
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def _elsewhere(self) -> bool:
        """Whether the supervisor that our claim names runs in another folder, which has the same claim."""
        try:
            pid, world = self._claimed()
            there = Path(f"/proc/{pid}/cwd")
            if there.samefile(self.folder):
                return False
            if there.joinpath("claim").exists():
                return read_small(there / "claim") == read_small(self.folder / "claim")
            of = supervised(pid)  # it was deleted under it
            return of is not None and of.parts[-3:] == self.folder.parts[-3:] and world == supervisor.world()
        except (OSError, ValueError):
            return False

    @property
    def pid(self) -> int:
        """Pid of its supervisor, as claimed. ``OSError``, ``ValueError`` where there is no claim."""
        return self._claimed()[0]

    def watch(self) -> int | None:
        """A pidfd of its supervisor, readable when that ends; ``None`` if it has ended. The caller closes it."""
        try:
            pid, _ = self._claimed()
            fd = os.pidfd_open(pid)
        except (OSError, ValueError):
            return None
        # whoever has the claim locked is alive; the pid in it may be of another world, or written by somebody else
        if self.liveness() is Liveness.ALIVE and self._is_in_it(pid):
            return fd
        os.close(fd)
        return None

    def _is_in_it(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cwd").samefile(self.folder)
        return False

    def stop(self, grace_s: float | None = None, first: int = signal.SIGTERM) -> bool:
        """Stop it: SIGTERM, and SIGKILL after its grace; before it has started, keep it from starting. Idempotent.

        ``grace_s``: an upper bound on its own grace; ``first``: another signal in place of SIGTERM. Returns whether its
        supervisor was told; nothing is done after its end. ``OSError`` where it has not started yet, and the file
        ``stop`` cannot be written.
        """
        problem: OSError | None = None
        try:  # first: a supervisor that claims the task after the check below will see it
            with os.fdopen(os.open(self.folder / "stop", _WRITE, 0o600), "w") as stop:
                stop.write(f"{inf if grace_s is None else grace_s} {first:d} {self.mark}")
        except OSError as error:
            problem = error
        fd = self.watch()
        if fd is not None:
            try:
                _terminate(fd)
            finally:
                os.close(fd)
        elif problem is not None:
            raise problem
        return fd is not None

    def takes_time_limits(self) -> bool:
        """Whether its supervisor looks for another time limit: one of the version before does not."""
        try:
            return "limit_file" in json.loads(read_small(self.folder / "task.json", most=_MOST_WORK))
        except FileNotFoundError:  # it has not started yet, and will with the limit of then
            return True
        except (OSError, ValueError, RecursionError, TypeError):
            return False

    def limit_time(self, limit_s: float | None) -> None:
        """Have it keep another time limit, since its start; None: none. Within a second; ``OSError`` on a full disk."""
        draft = self.folder / f"{LIMIT}.part"
        with os.fdopen(os.open(draft, _WRITE, 0o600), "w", encoding="ascii") as file:
            file.write(f"{inf if limit_s is None else limit_s} {self.mark}")
        draft.replace(self.folder / LIMIT)

    def ending(self) -> Ending:
        """How it ended, once it is neither unclaimed nor alive."""
        liveness = self.liveness()
        if liveness is Liveness.FOREIGN:
            return Ending(137, error=f"{self.folder} has the files of another job", lost=True)
        if liveness is Liveness.ELSEWHERE:
            return Ending(137, error="its folder was replaced by a copy", lost=True)
        ending = self._written()
        rebooted = self._rebooted()
        if ending is None and rebooted:
            return Ending(137, error="the machine was started anew under it", lost=True, rebooted=True)
        if ending is None:
            return Ending(137, error=f"its supervisor was killed{self._last_words()}", lost=True)
        if ending.stopped and not ending.limit and rebooted:  # a shutdown sends SIGTERM to all processes
            return replace(ending, error="the machine was shut down under it", rebooted=True)
        return ending

    def group(self) -> Path | None:
        """The control group that it was started in; None: none, or that is not known any more."""
        try:
            work = json.loads(read_small(self.folder / "task.json", most=_MOST_WORK))
            return None if work["fence"] is None else Path(work["fence"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None

    def clear(self, left: containers.Left | None) -> None:
        """End what it has left, its supervisor being gone. Blocks for two seconds at most. O(processes)."""
        self.end_containers(left)
        kill_marked(self.mark, self._adopted())

    def has_left_containers(self) -> bool:
        """Whether its supervisor could not end what it had started through Docker."""
        with contextlib.suppress(OSError):
            return read_small(self.folder / "containers").strip() == self.whose()
        return False

    def _adopted(self) -> list[tuple[int, int]]:
        """Processes that its supervisor had for children, by pid and start: as long as the machine has not rebooted."""
        try:
            if self._rebooted():
                return []
            mark, *lines = read_small(self.folder / "adopted").splitlines()
            if not mark.startswith(self.mark):
                return []
            whole = [words for line in lines if len(words := line.split()) == 2]  # of thousands one may be cut
            return [(int(pid), int(started)) for pid, started in whole]
        except (OSError, ValueError):
            return []

    def end_containers(self, left: containers.Left | None) -> None:
        """Have ended what it has started through Docker; ``left``: by whom."""
        try:
            work = json.loads(read_small(self.folder / "task.json", most=_MOST_WORK))
            docker = work.get("docker")
            run_as = None if work["run_as"] is None else RunAs(**work["run_as"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return
        if docker and left is not None:
            left.add("-".join(self.folder.parts[-3:]), docker, run_as)

    def _written(self) -> Ending | None:
        """The ending that its supervisor has written; ``None`` if there is none, or the file is not a supervisor's."""
        try:
            written = json.loads(read_small(self.folder / "exit"))
            whose = written.pop("task", "")  # "": of the version before, which does not say
            if whose and not whose.startswith(self.mark):
                return None
            ending = msgspec.convert(written, Ending)
        except (OSError, ValueError, RecursionError, AttributeError, TypeError):
            return None
        if ending.error is None:
            return ending
        return replace(ending, error=ending.error[:_MOST].encode(errors="replace").decode())

    def _rebooted(self) -> bool:
        try:
            return self._claimed()[1] != supervisor.world()
        except (OSError, ValueError):
            return False

    def never_started(self) -> Ending:
        """The ending of a task whose supervisor ended without a claim."""
        if not self.folder.exists():
            return Ending(137, error="its folder was deleted", lost=True)
        if (ending := self._written()) is not None:
            return ending  # its supervisor has written that: the task has deleted the claim
        return Ending(127, error=f"its supervisor could not start{self._last_words()}")

    def _claimed(self) -> tuple[int, str]:
        """Pid of its supervisor, and the supervisor's :func:`~.supervisor.world`."""
        pid, world, *_ = read_small(self.folder / "claim").split(maxsplit=2)
        if not 0 < int(pid) < 2**31:
            raise ValueError(f"{self.folder}: no pid: {pid}")
        return int(pid), world

    def _last_words(self) -> str:
        try:
            lines = read_small(self.folder / "supervisor.log", -4096).split("\n")
        except OSError:
            return ""
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f": {last[:200]}" if last else ""


@contextlib.contextmanager
def _beneath(folder: Path, names: Sequence[str]) -> Iterator[int]:
    """A folder that others own, one below the other: no link on the way is followed, and no mount entered.

    Who owns a folder can mount a file system of their own there, of which every look may take for ever.
    """
    with contextlib.ExitStack() as opened:
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        opened.callback(os.close, at)
        mount = _mount(at)
        for name in names:
            at = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            opened.callback(os.close, at)
            if _mount(at) != mount:
                raise PermissionError(1, "something is mounted there", name)
        yield at


def _mount(fd: int) -> str:
    """Id of the mount that something is in, as the kernel says without asking it."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii").splitlines()
    return next((line for line in lines if line.startswith("mnt_id:")), "")


def supervised(pid: int) -> Path | None:
    """The folder of the task that a process is the supervisor of, as it was started; None: it is none.

    Anybody can start a program with such arguments: it has to be the engine's user's.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        process = Path(f"/proc/{pid}")
        with process.joinpath("cmdline").open("rb") as file:
            words = file.read(_MOST).split(b"\0")
        if len(words) <= 2 or not words[-3].endswith(b"/engines/local/supervisor.py"):  # the last word is empty
            return None
        with process.joinpath("status").open("rb") as file:  # whose the process's folder is does not say whose it is
            uids = file.read(_MOST).partition(b"\nUid:")[2].split()
        if int(uids[0]) == os.geteuid():
            return Path(os.fsdecode(words[-2]))
    return None


def _has_begun(pid: int) -> bool:
    """Whether a supervisor has begun its task: it has children."""
    with contextlib.suppress(OSError):
        return bool(Path(f"/proc/{pid}/task/{pid}/children").read_bytes())
    return False


def supervisors() -> Iterator[tuple[int, Path]]:
    """Pid of each supervisor that has begun its task, and the folder of that as it was started. O(processes).

    Those of a container that has the same paths are not ours.
    """
    own = Path("/proc/self/ns/pid").stat()
    for process in Path("/proc").iterdir():
        folder = supervised(int(process.name)) if process.name.isdigit() else None
        if folder is not None and _has_begun(int(process.name)):
            with contextlib.suppress(OSError):
                if os.path.samestat(process.joinpath("ns/pid").stat(), own):
                    yield int(process.name), folder


def claimed_by(pid: int) -> str | None:
    """The mark of the task that a supervisor has claimed, wherever its folder is by now; None: the claim is gone."""
    return Task(Path(f"/proc/{pid}/cwd")).whose()


def _supervisor_of(task: Task) -> int | None:
    """A pidfd of the supervisor of a task, which has begun; the caller closes it. O(processes).

    It is known by its claim, since folders are moved, and others come in their place; without one by its folder.
    """
    resolved = task.folder.resolve()
    for pid, of in supervisors():
        with contextlib.suppress(OSError):
            mark = claimed_by(pid)
            if (of.resolve() == resolved) if mark is None else (task.mark and mark.startswith(task.mark)):
                return os.pidfd_open(pid)
    return None


def make_folder(folder: Path, more: int = 0o050) -> None:
    """Make a folder of a job, and those above it, for the group of ``jobs`` to read: who is let in there, decides.

    ``more``: the permission beside its owner's; 0o011: others pass it, to what is theirs.
    """
    if not folder.is_dir():
        make_folder(folder.parent, more)
        folder.mkdir(exist_ok=True, mode=0o700 | more)
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | more)  # whatever the umask; a setgid bit stays


def _terminate(supervisor: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(supervisor, signal.SIGTERM)
        signal.pidfd_send_signal(supervisor, signal.SIGCONT)  # it may have been frozen: the task may have stopped it


def read_small(path: Path, start: int = 0, most: int = _MOST) -> str:
    """Read a small file, from ``start`` (below 0: from its end) on. ``OSError``, also if it is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path}: no file")
        return os.pread(fd, most, start if start >= 0 else max(0, status.st_size + start)).decode(errors="replace")
    finally:
        os.close(fd)


#: job, attempt, rank
Key = tuple[int, int, int]


#: supervisors of engines of this process that were closed: they run on, and only this process can reap them
_running_on: list[subprocess.Popen[bytes]] = []


@atexit.register
def _leave_them() -> None:
    """They outlive this process, and are reaped by another one: none was forgotten."""
    for child in _running_on:
        if child.poll() is None:
            child.returncode = 0


class Watching:
    """Watches the supervisors of the engine's tasks for their end. One event loop; O(1) per task."""

    def __init__(
        self, ended: Callable[[Key, Ending], None], fences: Fences, left: containers.Left | None = None
    ) -> None:
        """``ended`` is called once per task; ``left``: ends containers."""
        self._ended, self._fences, self._left = ended, fences, left
        #: why tasks have not been started yet, though it is time; each is tried again by the next :meth:`ensure`
        self.held_up: dict[Key, str] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: dict[Key, int] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        # tasks that were to stop before their supervisor had begun
        self._to_stop: set[Key] = set()
        # supervisors that could not be watched at once, to be reaped
        self._loose: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        """Begin, in the running loop."""
        self._loop = asyncio.get_running_loop()
        _running_on[:] = [child for child in _running_on if child.poll() is None]

    def close(self) -> None:
        """Stop watching; the next engine finds the tasks. Idempotent."""
        for fd in self._watched.values():
            if self._loop is not None:
                self._loop.remove_reader(fd)
            os.close(fd)
        self._watched.clear()
        self._loop = None
        _running_on.extend((*self._children.values(), *self._loose))
        self._children.clear()
        self._loose.clear()

    def watches(self, key: Key) -> bool:
        """Whether a task runs as far as is known."""
        return key in self._watched

    def ensure(self, key: Key, task: Task, work: Callable[[], Work], inherited: bool, replaced: bool) -> None:
        """Start or watch a task, or report its end. Idempotent.

        ``inherited``: it was started by an earlier engine, and its folder may have been deleted since; ``replaced``:
        all folders of that engine were.
        """
        if key in self._watched or self._loop is None:
            return
        with contextlib.suppress(OSError):  # for want of open files: the next check tries again
            if task.liveness() is not Liveness.UNCLAIMED:
                self._look(key, task)
            elif inherited and key not in self.held_up and (fd := _supervisor_of(task)) is not None:
                self._watch(key, task, fd)  # it has deleted its claim, or all of its folder
            else:
                self._start(key, task, work, inherited and key not in self.held_up, replaced)

    def _start(self, key: Key, task: Task, work: Callable[[], Work], inherited: bool, replaced: bool) -> None:
        try:
            if inherited:
                task.clear(self._left)
                if replaced:  # as after a reboot: nothing runs any more, and nothing says how it ended
                    self._report(key, Ending(137, error="its files are gone", lost=True, rebooted=True))
                    return
            task.write(work())
            child = task.spawn()
        except OSError as error:
            what = f"{error.filename or task.folder}: {error.strerror}"
            if error.errno in SCARCE or error.errno in NO_SPACE:
                self.held_up[key] = what
            else:
                self._report(key, Ending(127, error=what))
            return
        self.held_up.pop(key, None)
        try:
            fd = os.pidfd_open(child.pid)
        except OSError:  # the next check finds it
            self._loose.append(child)
            return
        self._children[fd] = child
        self._watch(key, task, fd)

    def _report(self, key: Key, ending: Ending, task: Task | None = None) -> None:
        if not ending.lost and task is not None and task.has_left_containers():
            task.end_containers(self._left)
        if ending.lost:  # nobody else has ended what its supervisor watched
            self._fences.end(*key, None if task is None else task.group())
        self.held_up.pop(key, None)
        self._to_stop.discard(key)
        self._ended(key, ending)

    def stop(self, key: Key, task: Task, grace_s: float, first: int = signal.SIGTERM) -> None:
        """Stop a task; see :meth:`Task.stop`. Idempotent, except that a repeated call may shorten its grace."""
        try:
            told = task.stop(grace_s, first)
        except OSError:  # its folder was deleted
            told = False
        fd = self._watched.get(key)
        if not told and fd is not None:  # its claim is gone: signal its supervisor directly, once that has begun
            child = self._children.get(fd)
            if child is None or _has_begun(child.pid) or not task.folder.exists():
                _terminate(fd)
            else:
                self._to_stop.add(key)
        with contextlib.suppress(OSError):
            if key in self.held_up and fd is None and task.liveness() is Liveness.UNCLAIMED:  # nothing runs
                self._report(key, _STOPPED)

    def _watch(self, key: Key, task: Task, fd: int) -> None:
        assert self._loop is not None
        self.held_up.pop(key, None)
        self._watched[key] = fd
        self._loop.add_reader(fd, self._supervisor_ended, key, task, fd)

    def _supervisor_ended(self, key: Key, task: Task, fd: int) -> None:
        assert self._loop is not None
        self._loop.remove_reader(fd)
        os.close(fd)
        del self._watched[key]
        child = self._children.pop(fd, None)
        if child is not None and child.wait() == supervisor.NO_SPACE:  # reaped: it has ended
            self.held_up[key] = f"{task.folder}: {os.strerror(errno.ENOSPC)}"
            if key in self._to_stop:
                self._report(key, _STOPPED)
            return
        # on an error the next check tries again
        with contextlib.suppress(OSError):
            self._look(key, task)

    def _look(self, key: Key, task: Task) -> None:
        """Find out the state of a task whose supervisor has ended or is not known: watch it, or report its end."""
        self._loose = [loose for loose in self._loose if loose.poll() is None]
        liveness = task.liveness()
        if liveness is Liveness.ALIVE:  # another supervisor has claimed it, started by an earlier engine
            if (fd := task.watch()) is not None:
                self._watch(key, task, fd)
                return
            liveness = task.liveness()
            if liveness is Liveness.ALIVE:  # and it is not to be found: it has its GPUs until it ends
                return
        if liveness in (Liveness.UNCLAIMED, Liveness.LOST):
            if (fd := _supervisor_of(task)) is not None:  # it has another claim by now than its supervisor's
                self._watch(key, task, fd)
                return
            task.clear(self._left)
        self._report(key, task.never_started() if liveness is Liveness.UNCLAIMED else task.ending(), task)


def delete_folder(folder: Path) -> None:
    """Delete a folder with all that is in it, however deep; no link is followed. What cannot be deleted stays."""
    silent = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # a program, since Python's own function fails where folders are nested deep
        subprocess.run(
            ["rm", "-rf", "--", str(folder)],
            stdin=silent, stdout=silent, stderr=silent, env={"PATH": "/usr/bin:/bin"}, check=False,
        )  # fmt: skip
