"""Whose a state folder is, and whose the files of jobs in it are: settled before an engine takes them over.

Two things that look like ours are not. Numbers of jobs and attempts come again: an emptied or restored database gives
them to other jobs than those whose files are there. And a copy of a folder names the jobs of the original, which run.
So every database, submission and attempt has an id of its own (:meth:`.Job.mark`), and a folder knows where it is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from hived.errors import ConflictError, StorageError
from hived.words import counted

from .environment import MARK, environments
from .model import Job
from .store import Store, database_at
from .supervisor import world
from .tasks import Liveness, Task, claimed_by, read_small, supervisors

#: where systemd and D-Bus keep the id of the machine; a container may have neither
_MACHINE = ("/etc/machine-id", "/var/lib/dbus/machine-id")
#: prefix of the folders in ``jobs`` to which unknown files are moved
_ASIDE = "set-aside-"
#: the file in ``jobs`` that tells it from another folder in its place
_LABEL = ".label"
#: the file in ``jobs`` with the number of the last event
_NEWEST = ".newest"
#: folders and processes named in a message, at most
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Home:
    """Where a state folder is: a copy is elsewhere, or is another inode."""

    path: str
    device: int
    inode: int
    machine: str  #: "": not known
    boot: str

    @classmethod
    def of(cls, folder: Path) -> Home:
        """Of this folder, on this machine, now."""
        status = folder.stat()
        return cls(str(folder.resolve()), status.st_dev, status.st_ino, _machine(), world().partition(":")[0])

    def is_now(self, now: Home, database: str) -> bool:
        """Whether ``now``, with the database of this id, is the same folder, perhaps moved.

        Within one boot of a machine, device and inode say it. Numbers of devices may change with a boot, and what was
        restored at its place meanwhile has another inode; but no process is left that could belong to another folder.
        """
        if self.machine and now.machine and self.machine != now.machine:
            return False
        if self.boot == now.boot:
            return (self.device, self.inode) == (now.device, now.inode)
        return self.path == now.path or (self.inode == now.inode and not self.is_there(database))

    def is_there(self, database: str) -> bool:
        """Whether the folder with the database of this id may still be at its path, and not one of another engine."""
        path = Path(self.path)
        return path.exists() and database_at(path) in (None, database)


def _machine() -> str:
    for name in _MACHINE:
        with suppress(OSError):
            return Path(name).read_text(encoding="ascii").strip()
    return ""


def take_over(store: Store, adopt_copy: bool = False, set_aside: bool = False) -> list[str]:
    """Settle whose the folder and its jobs are, before an engine starts on it; what was done, in words.

    ``adopt_copy``: a copy takes over the jobs of an original that is gone; ``set_aside``: files of jobs that the
    database does not know are moved away. Raises :class:`ConflictError` where it would take one of them. O(jobs).
    """
    done: list[str] = []
    try:
        text = store.value("home")
        before = None if text is None else Home(**json.loads(text))
        now = Home.of(store.folder)
        active = store.active()
        is_copy = not (before is None or before.is_now(now, store.database))
        if not is_copy and (pids := _without_folder(store, active)):
            raise ConflictError(_replaced(store.folder / "jobs", pids))
        if active and (is_copy or _elsewhere(store, active)):
            if not adopt_copy:
                raise ConflictError(_copied(store, before, now, active))
            _check_original_is_gone(store, before, now, active)
            done.append(f"{store.folder} is the folder of its {counted(len(active), 'job')} from now on")
        if unknown := _unknown(store, active, is_copy or _labelled(store.folder / "jobs") != store.value("jobs")):
            if not set_aside:
                raise ConflictError(_not_known(store, unknown))
            done.append(_move_aside(store.folder / "jobs", unknown))
        if (older := _older(store)) is not None:
            if not set_aside:
                raise ConflictError(older)
            done.append(f"{store.folder} goes on with an older database, from its event {store.last_event():,}")
        if before != now:
            store.keep((), (), values={"home": json.dumps(asdict(now))})
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(f"{store.folder}: whose jobs these are cannot be found out ({error})") from None
    return done


def jobs_folder(folder: Path) -> Path:
    """The folder of all files of jobs in a state folder, made if need be. Raises :class:`StorageError`."""
    jobs = folder / "jobs"
    try:
        jobs.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:  # something else has that name, or a link there leads nowhere: a disk is not mounted
        raise StorageError(f"{jobs}: is no folder; remove it, or mount what it leads to") from None
    except OSError as error:
        raise StorageError(f"{jobs}: cannot be made ({error.strerror})") from None
    return jobs


def label(jobs: Path, known: str | None) -> tuple[bool, str | None]:
    """Whether the files of jobs are in another folder than the one with the label ``known``; and its label now.

    Inodes of folders that were deleted come again. None: there is none, in the version before or on a full disk.
    """
    if known is not None and _labelled(jobs) == known:
        return False, known
    made = os.urandom(8).hex()
    try:
        path = jobs / _LABEL
        path.unlink(missing_ok=True)
        path.write_text(made, encoding="ascii")
    except OSError:
        return known is not None, None
    return known is not None, made


def _labelled(jobs: Path) -> str | None:
    with suppress(OSError):
        return read_small(jobs / _LABEL)
    return None


def newest_file(folder: Path) -> Path:
    """The file that says which event of a state folder was the last; see :meth:`.Store.mark_newest`."""
    return jobs_folder(folder) / _NEWEST


def next_number(folder: Path) -> int:
    """The lowest number above those of all jobs with files in a state folder, set aside or not."""
    jobs = folder / "jobs"
    aside = [path for path in jobs.glob(f"{_ASIDE}*") if path.is_dir()]
    return max((int(path.name) for place in (jobs, *aside) for path in _numbered(place)), default=0) + 1


def _tasks(store: Store, jobs: Sequence[Job]) -> Iterator[Task]:
    """The tasks of the jobs that hold GPUs."""
    database = store.database
    for job in jobs:
        for rank in range(job.spec.tasks) if job.state.holds else ():
            folder = store.folder / "jobs" / str(job.id) / str(job.attempt) / str(rank)
            yield Task(folder, job.mark(database, rank))


# -- tasks that run without their folders ----------------------------------------------------------------------------


def _without_folder(store: Store, active: Sequence[Job]) -> list[int]:
    """Pids of supervisors whose tasks are ours and run, in folders that are not there any more. O(processes).

    A task that has deleted its own claim or folder, in a ``jobs`` that is the one of before, is not one of them.
    """
    known = store.value("jobs")
    gone = {Liveness.LOST, Liveness.ELSEWHERE}
    if known is None or _labelled(store.folder / "jobs") != known:
        gone.add(Liveness.UNCLAIMED)
    folders, marks = dict[Path, Path](), dict[str, Path]()
    for task in _tasks(store, active):
        if (liveness := task.liveness()) in gone:
            folders[task.folder.resolve()] = task.folder
            if liveness is not Liveness.ELSEWHERE:  # the original of a copy has the same marks
                marks[task.mark] = task.folder
    found = []
    for pid, of in supervisors() if folders else ():
        mark = claimed_by(pid)  # in the place of its folder may be that of another engine
        folder = folders.get(of.resolve()) if mark is None else marks.get(mark)
        if folder is not None and not _is_in(pid, folder):
            found.append(pid)
    return sorted(found)


def _is_in(pid: int, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").samefile(folder)
    except OSError:  # of another user, or the folder is not there
        return False


def _replaced(jobs: Path, pids: Sequence[int]) -> str:
    return (
        f"{jobs} was deleted, replaced or unmounted while tasks ran: pid {_some(pids)} still run, and their files are "
        "not there; nothing was done to them. Put the folder back (mount it), or end them first: "
        f"kill {' '.join(map(str, pids))}"
    )


# -- copies of a folder -----------------------------------------------------------------------------------------------


def _copied(store: Store, before: Home | None, now: Home, active: Sequence[Job]) -> str:
    of = "another folder" if before is None or before.path == now.path else before.path
    out = "start hived up there, or, once that folder and its processes are gone for good, "
    if before is not None and before.machine and now.machine and before.machine != now.machine:
        of += f" on another machine ({before.machine})"
    elif before is not None and database_at(Path(before.path)) not in (None, store.database):
        of, out = f"the folder that was {before.path}, where another engine has its own now", ""
    running = sum(job.state.holds for job in active)
    return (
        f"{store.folder} is a copy of {of}: its jobs ({len(active):,}, {running:,} of them running) were submitted "
        f"there, and nothing was done to them; {out}hived up --adopt-copy takes the jobs over here"
    )


def _check_original_is_gone(store: Store, before: Home | None, now: Home, active: Sequence[Job]) -> None:
    """Raise :class:`ConflictError` while the original is there, or processes of its jobs are."""
    if before is not None and before.machine == now.machine and before.path != now.path:
        original = Path(before.path)
        if before.is_there(store.database) and before.is_now(Home.of(original), store.database):
            raise ConflictError(
                f"{store.folder} is a copy, and its original is still there: {original}; start hived up there, or "
                "delete it first"
            )
    marks = {task.mark for task in _tasks(store, active) if task.liveness() is not Liveness.ALIVE}
    if pids := sorted({pid for pid, mark in _marked() if mark in marks} | _elsewhere(store, active)):
        raise ConflictError(
            f"{store.folder} is a copy, and tasks of its jobs that were started from the original still run: pid "
            f"{_some(pids)}; end them first (kill), or start hived up there"
        )


def _elsewhere(store: Store, active: Sequence[Job]) -> set[int]:
    """Pids of supervisors that run in the folder of which this one is a copy."""
    return {task.pid for task in _tasks(store, active) if task.liveness() is Liveness.ELSEWHERE}


def _marked() -> Iterator[tuple[int, str]]:
    """Pid and mark of all processes of tasks that we may see."""
    name = f"{MARK}=".encode()
    for pid, variables in environments():
        for variable in variables:
            if variable.startswith(name):
                yield pid, variable.removeprefix(name).decode(errors="replace")


# -- files of jobs that the database does not know --------------------------------------------------------------------


def _unknown(store: Store, active: Sequence[Job], thorough: bool) -> list[Path]:
    """Folders of jobs, or of attempts of them, that are not of this database.

    ``thorough``: those of jobs that have ended are looked at too, since the database may be another one.
    """
    jobs, known, database = store.folder / "jobs", store.numbers(), store.database
    found = [path for path in _numbered(jobs) if int(path.name) not in known]
    if thorough:
        submissions, here = store.submissions(), {job.id for job in active}
        for path in _numbered(jobs):
            number = int(path.name)
            if number in known and number not in here:
                mine = f"{database}/{submissions[number] or number}."
                latest = _numbered(path)[-1:]
                marks = [Task(rank).whose() for attempt in latest for rank in _numbered(attempt)[:1]]
                found += [path for mark in marks if mark is not None and not mark.startswith(mine)]
    for job in active:
        own = jobs / str(job.id)
        for attempt in _numbered(own):
            whose = [(rank, Task(rank).whose()) for rank in _numbered(attempt)]
            if any(mark is not None and not mark.startswith(job.mark(database)) for _, mark in whose):
                found.append(own)
                break
            if int(attempt.name) > job.attempt or (
                int(attempt.name) == job.attempt
                and any(mark not in (None, job.mark(database, int(rank.name))) for rank, mark in whose)
            ):
                found.append(attempt)
    return found


def _numbered(folder: Path) -> list[Path]:
    """The folders in it whose names are numbers, by number; none if it is not there."""
    if not folder.is_dir():
        return []
    return sorted(
        (path for path in folder.iterdir() if path.name.isascii() and path.name.isdigit() and path.is_dir()),
        key=lambda path: int(path.name),
    )


def _not_known(store: Store, unknown: Sequence[Path]) -> str:
    names = [str(path.relative_to(store.folder)) for path in unknown]
    return (
        f"{store.folder}: hived.db has {counted(len(store.numbers()), 'job')} and knows nothing of {_some(names)}"
        f"{_still_run(unknown)}: was it emptied, or restored from a backup? Put the database of these jobs back, or "
        "let hived up --set-aside-jobs move their files aside"
    )


def _older(store: Store) -> str | None:
    """Why a database is not the newest one of its files; None: it is, as far as they say."""
    try:
        database, last = read_small(store.folder / "jobs" / _NEWEST).split()
        newest = int(last)
    except (OSError, ValueError):  # of a version that noted nothing
        return None
    has = store.last_event()
    if database != store.database or newest <= has:
        return None
    return (
        f"{store.folder}: hived.db is older than the files of its jobs: its last event is number {has:,}, and "
        f"{newest:,} were stored; what was submitted, cancelled and drained since is not in it. Put the newer database "
        "back, or let hived up --set-aside-jobs go on with this one"
    )


def _move_aside(jobs: Path, unknown: Sequence[Path]) -> str:
    aside = jobs / f"{_ASIDE}{time.strftime('%Y%m%d-%H%M%S')}"
    said = f"{counted(len(unknown), 'folder')} of unknown jobs moved to {aside}{_still_run(unknown)}"
    aside.mkdir(mode=0o700)
    for path in unknown:
        to = aside / path.relative_to(jobs)
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
    return said


def _still_run(folders: Sequence[Path]) -> str:
    claims = [path for folder in folders for depth in ("*/claim", "*/*/claim") for path in folder.glob(depth)]
    tasks = [Task(path.parent) for path in claims]
    pids = [task.pid for task in tasks if task.liveness() is Liveness.ALIVE]
    return f", of which pid {_some(pids)} still run and are left alone" if pids else ""


def _some(things: Sequence[object]) -> str:
    more = f" and {len(things) - _NAMED:,} more" if len(things) > _NAMED else ""
    return ", ".join(map(str, things[:_NAMED])) + more
