"""Named tasks in several processes, each result kept in a file at once, so that an interrupted list continues.

A :class:`Task` is a picklable function with arguments and an *identity*: plain data that determine the result. A
:class:`Kept` folder has one file per finished task, named by a hash of the identity and moved into place when complete:
the file of a task that was killed does not exist, and its task runs again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hived.errors import HivedError, InputError, StorageError

#: Plain data: what JSON has. Floats may be NaN or infinite.
Plain = Any


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a function in another process."""

    name: str  #: in progress and errors
    function: Callable[..., Plain]  #: of a module, so that another process finds it by name
    arguments: tuple[Any, ...]  #: picklable
    identity: Mapping[str, Plain]  #: determines the result: a kept result of the same identity is the task's

    def key(self) -> str:
        """The name of the file of the result."""
        return key_of(self.identity)


class TaskError(HivedError):
    """A task failed for an error that hived raised on purpose; the exit code is that error's."""

    exit_code = InputError.exit_code  #: of most of them

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error of a task. Not the exception, since not every exception can be pickled."""

    message: str
    exit_code: int


def key_of(identity: Mapping[str, Plain]) -> str:
    """A hash of plain data, the same for the same data in any order of keys."""
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Kept:
    """The results of finished tasks in a folder, a file ``KEY.json`` each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def result(self, task: Task) -> Plain:
        """The kept result of a task. Raises :class:`KeyError` if there is none."""
        kept = self._read(self.folder / f"{task.key()}.json")
        if kept is None:
            raise KeyError(task.name)
        return kept["result"]

    def has(self, task: Task) -> bool:
        """Whether the task has finished."""
        return self._read(self.folder / f"{task.key()}.json") is not None

    def others(self, tasks: Sequence[Task]) -> list[Mapping[str, Plain]]:
        """The identities of kept results that belong to none of ``tasks``. O(files)."""
        mine = {f"{task.key()}.json" for task in tasks}
        kept = [self._read(path) for path in sorted(self.folder.glob("*.json")) if path.name not in mine]
        return [one["identity"] for one in kept if one is not None]

    def keep(self, task: Task, result: Plain) -> None:
        """Write a result, atomically and durably."""
        text = json.dumps({"task": task.name, "identity": task.identity, "result": result}, ensure_ascii=True)
        write_whole(self.folder / f"{task.key()}.json", text.encode())

    @staticmethod
    def _read(path: Path) -> dict[str, Plain] | None:
        """A kept file; ``None`` if it does not exist, or is no file of ours (its task then runs again)."""
        try:
            found = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) and {"identity", "result"} <= found.keys() else None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that exists complete or not at all, whenever the process or the machine stops.

    Raises :class:`~hived.errors.StorageError`.
    """
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from None


@contextmanager
def kept_results(folder: Path) -> Iterator[Kept]:
    """The kept results of ``folder``, made if missing; no other process uses it until the block ends.

    Raises :class:`~hived.errors.InputError` if it cannot be made, or another process uses it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror}); choose another --out") from None
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another process writes to it now; wait, or choose another --out") from None
        except OSError:
            pass  # a file system without locks
        for draft in folder.glob(".*.json-*"):  # of processes that were killed
            draft.unlink(missing_ok=True)
        yield Kept(folder)
    finally:
        os.close(place)


def run_tasks(
    tasks: Sequence[Task], kept: Kept, processes: int | None, finished: Callable[[int, int], None] | None = None
) -> list[Plain]:
    """The results of ``tasks``, in their order; those without a kept result run, in ``processes`` processes.

    None: as many as there are cores that this process may use. Tasks start in their order. ``finished(done, total)`` is
    called first with the number of kept results, then after each task. The first task that fails ends all: a
    :class:`TaskError` with its name, or its exception with a note if that is a bug. Results of finished tasks stay
    kept. The processes end with this call, and with this process however it ends.
    """
    todo = [task for task in tasks if not kept.has(task)]
    done = len(tasks) - len(todo)
    if finished is not None:
        finished(done, len(tasks))
    if todo:
        with _pool(min(processes or len(os.sched_getaffinity(0)), len(todo))) as pool:
            with _without_interrupts():  # inherited by the processes, which start now
                running = {pool.submit(_carry_out, task, kept.folder): task for task in todo}
                # the executor watches the processes that it knew when it was last woken, which is before a submission
                # starts one: without these, the death of the last process is seen when another task ends
                for _ in range(2):
                    pool.submit(_nothing)
            for future in as_completed(running):
                _raise_failure(running[future], future)
                done += 1
                if finished is not None:
                    finished(done, len(tasks))
    return [kept.result(task) for task in tasks]


def _raise_failure(task: Task, future: Future[_Failure | None]) -> None:
    try:
        failure = future.result()
    except BrokenProcessPool:
        raise TaskError(
            "a process ended abruptly: it was killed, perhaps for want of memory; finished results are kept, "
            "the same command continues (with fewer --processes, less memory is needed)",
            HivedError.exit_code,
        ) from None
    except Exception as error:
        error.add_note(f"in the task {task.name}; results of finished tasks are kept")
        raise
    if failure is not None:
        raise TaskError(f"{task.name}: {failure.message}", failure.exit_code)


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end, in the middle of a task too, when the block or this process ends."""
    # the other end closes with this process, even if it is killed: the pipes of the executor itself do not
    lives, here = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_end_with, initargs=(lives,))
    try:
        yield pool
    except BaseException:
        here.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        here.close()
        lives.close()


def _end_with(lives: Connection) -> None:
    """End this process when the other end of ``lives`` is closed."""

    def watch() -> None:
        try:
            lives.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that start here ignore Ctrl-C, which a terminal sends to all: the first process ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _nothing() -> None:
    """A task that wakes the executor."""


def _carry_out(task: Task, folder: Path) -> _Failure | None:
    """Run a task in this process and keep its result."""
    try:
        Kept(folder).keep(task, task.function(*task.arguments))
    except HivedError as error:
        return _Failure(str(error), error.exit_code)
    return None
