"""The engine's durable state, in one SQLite file (write-ahead log, every commit on the disk before it is answered).

    events      all events, in order
    jobs        the state of each job after its events: the same facts, indexed
    decisions   the core's event log, one line of JSON each; the part of one start of the engine replays by itself
    meta        a few values by name, among them the id of this database (``mark``) and the spec of the last start

One engine at a time: it holds a lock on the folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf, log
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from hived.engine.holdings import Account, Accounts, Holding, Holdings, Use
from hived.engine.job import Event, JobFilter
from hived.engine.states import JobEvent, JobState
from hived.engines.submission import MOST_OF_AN_ARRAY
from hived.errors import ConflictError, InputError, InvariantError, StorageError
from hived.events.codec import from_line, from_plain, to_line, to_plain
from hived.events.journal import Opened, Reconfigured
from hived.scheduling import JobView
from hived.scheduling.exact import VirtualState
from hived.spec.compiled import ClusterSpec

from .model import Job, JobSpec

#: bytes that remain for events on a full disk, in the database and in its log: those of some hundred jobs
_RESERVE = 1 << 20
#: events of a stretch of time that are read for one picture
MOST_EVENTS = 100_000
#: jobs that one query names
_AT_A_TIME = 500
#: of the events of a picture, how many at a time
_PAGE = 10_000
_ENDED = ", ".join(f"'{state.value}'" for state in JobState if state.ended)
_THERE = f"""SELECT id FROM jobs WHERE EXISTS (SELECT 1 FROM events WHERE job = id AND seq < ?)
    AND (state NOT IN ({_ENDED}) OR EXISTS (SELECT 1 FROM events WHERE job = id AND seq >= ?))"""
_LATEST = """SELECT seq, at, kind, job, data FROM events WHERE seq IN (
    SELECT max(seq) FROM events WHERE job = ? AND seq < ? GROUP BY kind) ORDER BY seq"""
_BETWEEN = """SELECT seq, at, kind, job, data FROM events
    WHERE seq >= ? AND seq < ? AND job IS NOT NULL ORDER BY seq LIMIT ?"""
_HAS_ENDED = f"SELECT job FROM events WHERE seq >= ? AND seq < ? AND kind IN ({_ENDED}) ORDER BY seq"
_ACCOUNTS = """SELECT user, vc, use,
    sum(gpus * (min(ifnull(end, :now), :end) - max(start, :start))), count(DISTINCT job) FROM holdings
    WHERE start < :end AND (end IS NULL OR end > :start) GROUP BY user, vc, use ORDER BY user, vc, use"""
_JOBS = """SELECT user, vc, count(DISTINCT job) FROM holdings
    WHERE job IS NOT NULL AND start < :end AND (end IS NULL OR end > :start) GROUP BY user, vc"""
_USED = """SELECT user, gpus, start, ifnull(end, ?) FROM holdings
    WHERE vc = ? AND job IS NOT NULL AND (end IS NULL OR end > ?) ORDER BY start, key"""
#: kinds of events by which a job changes
_OF_LIVES = frozenset(event.value for event in JobEvent)
#: bytes that have to be free on the disk for another submission: no task could start with less
_LEAST = 1 << 16

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, job INTEGER, data TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS events_of_jobs ON events (job, seq);
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, base TEXT NOT NULL, vc TEXT NOT NULL, state TEXT NOT NULL,
    ended INTEGER NOT NULL, spec TEXT NOT NULL, status TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, id);
CREATE INDEX IF NOT EXISTS jobs_by_base ON jobs (base, id);
CREATE INDEX IF NOT EXISTS jobs_of_vcs ON jobs (vc, id);
CREATE TABLE IF NOT EXISTS decisions (seq INTEGER PRIMARY KEY, line TEXT NOT NULL) STRICT;
"""


def _first(db: sqlite3.Connection) -> None:
    """Create the tables."""
    for statement in _TABLES.split(";"):
        db.execute(statement)


def _whole_placements(db: sqlite3.Connection) -> None:
    """Restore the devices that running jobs were started on and a spec lacked; keep the last spec.

    The first version cut such devices off the placement, and kept the number of the schema in ``meta``.
    """
    running = db.execute("SELECT id, status FROM jobs WHERE state IN ('running', 'stopping')").fetchall()
    for number, text in running:
        status = json.loads(text)
        started = "SELECT data FROM events WHERE job = ? AND kind = 'started' ORDER BY seq DESC LIMIT 1"
        rows = db.execute(started, (number,)).fetchall()
        whole = json.loads(rows[0][0])["placement"] if rows else status["placement"]
        if whole["pods"] != status["placement"]["pods"]:
            status["placement"] = {**whole, "levels": []}
            db.execute("UPDATE jobs SET status = ? WHERE id = ?", (_json(status), number))
    db.execute(
        "INSERT OR IGNORE INTO meta SELECT 'spec', line FROM decisions "
        """WHERE line LIKE '{"is":"Opened"%' OR line LIKE '{"is":"Reconfigured"%' ORDER BY seq DESC LIMIT 1"""
    )
    db.execute("DELETE FROM meta WHERE name = 'schema'")


def _virtual_jobs(db: sqlite3.Connection) -> None:
    """Version 3 has the virtual jobs of VCs of exact safety."""
    db.execute("CREATE TABLE virtual (name TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT")


def _database_id(db: sqlite3.Connection) -> None:
    """Version 4 has the id of the database from the beginning, and not from the first start of an engine."""
    db.execute("INSERT OR IGNORE INTO meta VALUES ('mark', ?)", (os.urandom(6).hex(),))


def _requeued(db: sqlite3.Connection) -> None:
    """Version 5 says "requeued" of a job that is back in the queue: "preempted" was said of what was only stopped."""
    db.execute("UPDATE events SET kind = 'requeued' WHERE kind = 'preempted'")


def _suspended(db: sqlite3.Connection) -> None:
    """Version 6 has suspended jobs, of which the versions before know nothing."""


def _guests(db: sqlite3.Connection) -> None:
    """Version 7 has guests, and limits that say whether they are by hand: nothing that the versions before read."""


def _people(db: sqlite3.Connection) -> None:
    """Version 8 finds jobs by their user, and has tokens of people. Those of others run as them, from this one on."""
    db.execute("ALTER TABLE jobs ADD COLUMN user TEXT GENERATED ALWAYS AS (json_extract(spec, '$.user')) VIRTUAL")
    db.execute("CREATE INDEX jobs_of_users ON jobs (user, id)")


def _holdings(db: sqlite3.Connection) -> None:
    """Version 9 has who had GPUs, and when: of the events of all jobs so far, and of virtual clusters from now on."""
    db.execute(
        "CREATE TABLE holdings (key TEXT NOT NULL, job INTEGER, user TEXT NOT NULL, vc TEXT NOT NULL, "
        "use TEXT NOT NULL, gpus INTEGER NOT NULL, start REAL NOT NULL, end REAL, PRIMARY KEY (key, start)) STRICT"
    )
    db.execute("CREATE INDEX holdings_by_end ON holdings (end)")
    for number, spec in db.execute("SELECT id, spec FROM jobs ORDER BY id").fetchall():
        rows = db.execute("SELECT seq, at, kind, job, data FROM events WHERE job = ? ORDER BY seq", (number,))
        _write_holdings(db, holdings_of(number, json.loads(spec), map(_event, rows.fetchall())))


def holdings_of(number: int, spec: Mapping[str, Any], events: Iterable[Event]) -> list[Holding]:
    """What a job has held, by its events; of one whose events are not all those of its life, as far as they are."""
    found = Holdings(records=True)
    job: Job | None = None
    for event in events:
        job = job or Job(number, JobSpec.restored(spec), event.at)
        if event.kind in _OF_LIVES:
            with suppress(InvariantError, KeyError, ValueError, TypeError):
                job.apply(event)
            found.follow(job, event.at)
    return found.take()


def _write_holdings(db: sqlite3.Connection, holdings: Iterable[Holding]) -> None:
    """Write them in order: one that has ended replaces itself, and of no time is replaced by the next."""
    rows = [(of.key, *of) for of in holdings]
    db.executemany("INSERT OR REPLACE INTO holdings VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


#: migrations from each version to the next; a file's version is the number of them done (``user_version``)
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    _first,
    _whole_placements,
    _virtual_jobs,
    _database_id,
    _requeued,
    _suspended,
    _guests,
    _people,
    _holdings,
)
#: the version that came with a state of jobs, of those that were not there from the first; tests tie it to the states
SINCE = {JobState.SUSPENDED: 6, JobState.HELD: 9}


class Store:
    """The file ``hived.db`` of a folder. Every write is all or nothing; a failed one is a :class:`StorageError`."""

    def __init__(self, folder: Path) -> None:
        """Open or create it. Raises :class:`ConflictError` where another engine has it, :class:`StorageError`."""
        self.folder = folder
        with _failing(folder), ExitStack() as undone:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / "engine.lock", os.O_CREAT | os.O_RDWR, 0o600)
            undone.callback(os.close, self._lock)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.pread(self._lock, 20, 0).decode(errors="replace").strip() or "unknown"
                message = f"{folder}: another engine (pid {pid}) has this folder; stop it (hived up --stop), or give "
                message += "another --state"
                raise ConflictError(message) from None
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)
            _check_log_has_its_database(folder)
            # never closed before the database is: that would release its locks
            self._file = os.open(folder / "hived.db", os.O_CREAT | os.O_RDWR, 0o600)
            undone.callback(os.close, self._file)
            try:  # another folder may lead to it by a link
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                at = (folder / "hived.db").resolve()
                raise ConflictError(f"{folder}: another engine has {at}; give its own folder as --state") from None
            self._newest, self._marked_as = -1, ""  # see :meth:`mark_newest`
            self._db = sqlite3.connect(folder / "hived.db", isolation_level=None)
            undone.callback(self._db.close)
            (folder / "hived.db").chmod(0o600)
            self._files = self._found()
            version = self._version()
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                self._migrate(version)
                # so that a full disk is found now, and not at the first job
                self._db.execute("INSERT OR REPLACE INTO meta VALUES ('opened', ?)", (str(os.getpid()),))
            self._db.execute(f"PRAGMA wal_autocheckpoint = {_RESERVE // 4096}")
            with suppress(StorageError):  # an almost full disk: the engine goes on while it can
                self._allocate()
            undone.pop_all()

    def _version(self) -> int:
        """The version of the tables. Refuses a file of a newer version or another program, unchanged."""
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if not tables:
            return 0
        if "meta" not in tables:
            raise StorageError(f"{self.folder}: hived.db is not of hived; give another --state")
        version = int(self._rows("PRAGMA user_version")[0][0]) or int(self.value("schema") or 0)
        if not 1 <= version <= len(MIGRATIONS):
            raise StorageError(
                f"{self.folder}: written by a newer version of hived (schema {version}, this one knows "
                f"{len(MIGRATIONS)}); start that version, or give another --state"
            )
        return version

    def _migrate(self, version: int) -> None:
        """Bring the tables to the present version, in the open transaction."""
        try:
            for migrate in MIGRATIONS[version:]:
                migrate(self._db)
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged(self.folder, f"it cannot be brought to this version: {error!r}") from None
        self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def _found(self) -> list[tuple[int, int]]:
        """Device and inode of the files under their names."""
        found = [(self.folder / name).stat() for name in ("hived.db", "engine.lock")]
        return [(status.st_dev, status.st_ino) for status in found]

    def close(self) -> None:
        """Close the file, and release the lock for another engine."""
        if self._lock >= 0:
            self._db.close()
            if self._newest >= 0:
                os.close(self._newest)
            os.close(self._file)
            os.close(self._lock)
            self._lock = -1

    # -- writing --------------------------------------------------------------------------------------------------

    def keep(
        self,
        events: Sequence[Event],
        jobs: Iterable[Job],
        decisions: Iterable[str] = (),
        values: Mapping[str, str] = MappingProxyType({}),
        virtual: Sequence[tuple[str, VirtualState | None]] = (),
        holdings: Iterable[Holding] = (),
    ) -> None:
        """Store events, changed jobs, lines of the core's log, and values by name: all on disk when this returns.

        ``virtual``: virtual jobs by name (exact safety); None: it is no more. ``holdings``: those that ended and began.
        """
        with self._transaction():
            self._db.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?)",
                [(event.seq, event.at, event.kind, event.job, _json(event.data)) for event in events],
            )
            changed, moved = list[Job](), list[Job]()
            for job in jobs:
                (moved if job.stored_spec is job.spec else changed).append(job)
            self._db.executemany(
                "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "state = excluded.state, ended = excluded.ended, spec = excluded.spec, status = excluded.status",
                [_row(job) for job in changed],
            )
            self._db.executemany(
                "UPDATE jobs SET state = ?, ended = ?, status = ? WHERE id = ?",
                [(job.state.value, int(job.state.ended), _json(job.status()), job.id) for job in moved],
            )
            self._db.executemany("INSERT INTO decisions (line) VALUES (?)", [(line,) for line in decisions])
            self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())
            _write_holdings(self._db, holdings)
            if virtual:
                self._db.executemany("DELETE FROM virtual WHERE name = ?", [(name,) for name, _ in virtual])
                rows = [(name, _json([to_plain(of) for of in _plain(state)])) for name, state in virtual if state]
                self._db.executemany("INSERT INTO virtual VALUES (?, ?)", rows)
        for job in changed:
            job.stored_spec = job.spec
        if events:
            self._note_newest(events[-1].seq)

    def mark_newest(self, path: Path) -> None:
        """From now on note in this file the number of the last event: a database that is taken back is older than it.

        It is written after each commit, and need not be on the disk: what it says is never more than what was stored.
        """
        with suppress(OSError):  # a full disk: it is not noted
            self._newest = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._marked_as = self.database
            self._note_newest(self.last_event())

    def _note_newest(self, event: int) -> None:
        if self._newest >= 0:
            with suppress(OSError):
                os.pwrite(self._newest, f"{self._marked_as} {event:020}\n".encode(), 0)

    def reserve(self) -> None:
        """Refuse what would take the space left for :meth:`keep` on a full disk, where what gives space back is kept.

        Amortized O(1). Raises :class:`StorageError`.
        """
        with _failing(self.folder):
            disk = os.statvfs(self.folder)
            free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
            if disk.f_blocks and free * disk.f_frsize < _LEAST:  # without blocks: in memory, and not limited
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        free, size = self._rows("PRAGMA freelist_count")[0][0], self._rows("PRAGMA page_size")[0][0]
        if free * size < _RESERVE:
            self._allocate()

    def _allocate(self) -> None:
        """Allocate blocks on the disk: free pages of the database, and a log that is written again from its start."""
        (pages,), (size,) = self._rows("PRAGMA page_count")[0], self._rows("PRAGMA page_size")[0]
        with _failing(self.folder):  # first: pages in the log that have no blocks here would keep it from its start
            os.posix_fallocate(self._file, 0, pages * size + 3 * _RESERVE)
        with self._transaction():
            self._db.execute("INSERT INTO meta VALUES ('reserve', hex(zeroblob(?)))", (_RESERVE,))  # twice as long
        with self._transaction():  # not in one: pages that are free at the end of a transaction are not written
            self._db.execute("DELETE FROM meta WHERE name = 'reserve'")
        self._rows("PRAGMA wal_checkpoint(RESTART)")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:  # SQLite would go on writing to a deleted file
            there = self._found() == self._files
        except OSError:
            there = False
        if not there:
            raise StorageError(f"{self.folder}: was moved or deleted while the engine ran; put it back, or start anew")
        with _failing(self.folder):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    # -- reading --------------------------------------------------------------------------------------------------

    def value(self, name: str) -> str | None:
        """The value last stored under a name."""
        rows = self._rows("SELECT value FROM meta WHERE name = ?", (name,))
        return rows[0][0] if rows else None

    @property
    def database(self) -> str:
        """The random id of this database."""
        return self.value("mark") or ""

    def numbers(self) -> set[int]:
        """The numbers of all jobs."""
        return {number for (number,) in self._rows("SELECT id FROM jobs")}

    def last_event(self) -> int:
        """Number of the latest event; 0 for none."""
        return int(self._rows("SELECT coalesce(max(seq), 0) FROM events")[0][0])

    def next_job(self) -> int:
        """The number of the next job."""
        return int(self._rows("SELECT coalesce(max(id), 0) + 1 FROM jobs")[0][0])

    def active(self) -> list[Job]:
        """All jobs that have not ended, by number."""
        return self._jobs("WHERE ended = 0 ORDER BY id")

    def job(self, ref: str) -> Job | None:
        """A job by number, by full name, or the latest submitted under a name."""
        number = int(ref) if ref.isascii() and ref.isdigit() and len(ref) < 18 else -1
        ways = {"id = ?": number, "name = ?": ref, "base = ? ORDER BY id DESC LIMIT 1": ref}
        return next((found for way, value in ways.items() for found in self._jobs(f"WHERE {way}", (value,))), None)

    def latest(self, name: str, user: str, before: int = 1 << 62) -> int | None:
        """The job of a user that is called so in full, or the latest that they submitted under a name; None: none.

        Of those with ids below ``before``.
        """
        # whether there is such a name at all first, which an id is not: what follows is O(jobs of the user)
        is_known = "EXISTS (SELECT 1 FROM jobs WHERE base = ?1)"
        for query in ("name = ?1 AND user = ?2", f"{is_known} AND base = ?1 AND user = ?2"):
            found = f"SELECT id FROM jobs WHERE {query} AND id < ?3 ORDER BY id DESC LIMIT 1"
            if rows := self._rows(found, (name, user, before)):
                return int(rows[0][0])
        return None

    def jobs(self, chosen: JobFilter, limit: int, before: int | None, offset: int = 0) -> tuple[list[Job], int]:
        """Jobs as they are chosen, the latest first, without the first ``offset``; and how many there are in all.

        Only those with ids below ``before``. O(jobs in these states), or O(those that ended in the time asked for).
        """
        where, values = ["1 = 1"], []  # type: list[str], list[object]
        if chosen.states:
            where.append(f"state IN ({', '.join('?' * len(chosen.states))})")
            values += chosen.states
        if chosen.array is not None:  # they were submitted one after another
            where.append("id >= ? AND id < ? AND json_extract(spec, '$.array_id') = ?")
            values += [chosen.array, chosen.array + MOST_OF_AN_ARRAY, chosen.array]
        if chosen.name is not None:
            where.append("instr(name, ?)")
            values.append(chosen.name)
        if chosen.ended_since is not None or chosen.ended_before is not None:
            where.append(f"id IN ({_HAS_ENDED}) AND state IN ({_ENDED})")
            since, until = chosen.ended_since, chosen.ended_before
            values.append(0 if since is None else _number_at(self._db, since))
            values.append(1 << 62 if until is None else _number_at(self._db, until))
        for name, value in (("vc", chosen.vc), ("user", chosen.user)):
            if value is not None:
                where.append(f"{name} = ?")
                values.append(value)
        total = self._rows(f"SELECT count(*) FROM jobs WHERE {' AND '.join(where)}", values)[0][0]
        if before is not None:
            where.append("id < ?")
            values.append(before)
        which = f"WHERE {' AND '.join(where)} ORDER BY id DESC LIMIT ? OFFSET ?"
        return self._jobs(which, [*values, limit, offset]), int(total)

    def submitted(self, vc: str) -> int:
        """How many jobs of a VC were submitted: what the next one has as ``sequence``. O(log jobs)."""
        last = self._jobs("WHERE vc = ? ORDER BY id DESC LIMIT 1", [vc])
        return last[0].entry.view.sequence + 1 if last else 0

    def events(self, after: int, limit: int, job: int | None) -> list[Event]:
        """The first ``limit`` events after number ``after``; below 0: the latest ones. In order."""
        where, values = "seq > ?", [max(after, 0)]
        if job is not None:
            where, values = f"{where} AND job = ?", [*values, job]
        order = "DESC" if after < 0 else "ASC"
        query = f"SELECT seq, at, kind, job, data FROM events WHERE {where} ORDER BY seq {order} LIMIT ?"
        rows = self._rows(query, [*values, limit])
        if after < 0:
            rows.reverse()
        return list(map(_event, rows))

    def histories(self, start: float, end: float) -> dict[int, list[Event]]:
        """By job that was there between two times, in seconds since the epoch, its events then.

        Of earlier events it has the last of each kind, as of ``start``: they say what the job was doing. Where the
        clock was set back, a time stands for one of the moments that had it. For any thread: it has a connection of its
        own, and blocks no writer. Raises :class:`~hived.errors.InputError` for more than :data:`MOST_EVENTS`.

        O(log events + jobs in the store + events of the jobs of that time up to ``end``); of these, what is earlier
        is not decoded.
        """
        with _failing(self.folder), closing(self._reader()) as db:
            first, last = _number_at(db, start), _number_at(db, end)
            if last - first > MOST_EVENTS:
                raise InputError(f"{last - first:,} events are too many for one picture; choose a shorter time")
            found: dict[int, list[Event]] = {}
            for (job,) in db.execute(_THERE, (first, first)).fetchall():
                rows = db.execute(_LATEST, (job, first)).fetchall()
                found[job] = [replace(event, at=min(event.at, start)) for event in map(_event, rows)]
            while rows := db.execute(_BETWEEN, (first, last, _PAGE)).fetchall():
                for event in map(_event, rows):
                    found.setdefault(event.job, []).append(event)
                first = rows[-1][0] + 1
            return found

    def ended_before(self, at: float, first: int = 0) -> tuple[list[int], int]:
        """Jobs that had ended before a time, by events from number ``first`` on; and what ``first`` is the next time.

        For any thread, as :meth:`histories`. O(log events + those between).
        """
        with _failing(self.folder), closing(self._reader()) as db:
            last = max(first, _number_at(db, at))
            return [job for (job,) in db.execute(_HAS_ENDED, (first, last))], last

    def vcs_of(self, jobs: Sequence[int]) -> dict[int, str]:
        """The virtual clusters of jobs. For any thread, as :meth:`histories`. O(jobs)."""
        found: dict[int, str] = {}
        with _failing(self.folder), closing(self._reader()) as db:
            for first in range(0, len(jobs), _AT_A_TIME):
                some = jobs[first : first + _AT_A_TIME]
                marks = ",".join("?" * len(some))
                found |= dict(db.execute(f"SELECT id, vc FROM jobs WHERE id IN ({marks})", some))
        return found

    def stops_of(self, jobs: Sequence[int]) -> dict[int, str]:
        """Why jobs were told to stop last, of those that were. O(their events)."""
        found: dict[int, str] = {}
        for number in jobs:
            query = "SELECT ifnull(json_extract(data, '$.why'), '') FROM events WHERE job = ? AND kind = ? ORDER BY seq"
            for (why,) in self._rows(query + " DESC LIMIT 1", (number, str(JobEvent.STOPPING))):
                found[number] = why
        return found

    def submissions(self) -> dict[int, str]:
        """The random ids of all submissions, by job; "" of a version that had none. O(jobs)."""
        return dict(self._rows("SELECT id, ifnull(json_extract(spec, '$.submission'), '') FROM jobs"))

    def open_holdings(self) -> list[Holding]:
        """Who has GPUs, and virtual clusters that reserve some, as it was stored last."""
        rows = self._rows("SELECT job, user, vc, use, gpus, start, end FROM holdings WHERE end IS NULL ORDER BY key")
        return [Holding(job, user, vc, Use(use), gpus, start, end) for job, user, vc, use, gpus, start, end in rows]

    def decayed_use(self, vc: str, half_life: float, at: float) -> dict[str, float]:
        """GPU seconds of each user of a virtual cluster, of which half count for each half-life before a time.

        O(holdings of the last 32 half-lives).
        """
        found: dict[str, float] = {}
        for user, gpus, start, end in self._rows(_USED, (at, vc, at - 32 * half_life)):
            start, end = min(start, at), min(end, at)  # a clock may have been set back
            counts = end - start
            if half_life < inf:
                to_end, to_start = (2.0 ** ((moment - at) / half_life) for moment in (end, start))
                counts = (to_end - to_start) * half_life / log(2.0)
            found[user] = found.get(user, 0.0) + gpus * counts
        return found

    def gpu_seconds(self, start: float, end: float, now: float) -> Accounts:
        """GPU seconds between two times, by user, virtual cluster and use; until ``now`` where it goes on.

        For any thread, as :meth:`histories`. O(log holdings + those of that time and after).
        """
        with _failing(self.folder), closing(self._reader()) as db:
            values = {"start": start, "end": min(end, now), "now": now}
            of = [Account(user, vc, Use(use), *sums) for user, vc, use, *sums in db.execute(_ACCOUNTS, values)]
            return Accounts(of, {(user, vc): jobs for user, vc, jobs in db.execute(_JOBS, values)})

    def _reader(self) -> sqlite3.Connection:
        """Another connection, which reads alone."""
        return sqlite3.connect(f"{(self.folder / 'hived.db').absolute().as_uri()}?mode=ro", uri=True)

    def virtual(self) -> list[VirtualState]:
        """The virtual jobs that were stored. Raises :class:`StorageError`."""
        found = []
        try:
            for (text,) in self._rows("SELECT state FROM virtual ORDER BY name"):
                name, request, view, *others = map(from_plain, json.loads(text))
                found.append(VirtualState(name, request, JobView(*view), *others))
        except (ValueError, TypeError) as error:
            raise _damaged(self.folder, f"a virtual job: {error!r}") from None
        return found

    def decisions(self) -> Iterator[str]:
        """The core's event log, oldest first; read a thousand lines at a time, so that writers are not blocked."""
        query = "SELECT seq, line FROM decisions WHERE seq > ? ORDER BY seq LIMIT 1000"
        last = 0
        while rows := self._rows(query, (last,)):
            yield from (line for _, line in rows)
            last = rows[-1][0]

    def counts(self) -> dict[str, int]:
        """Jobs per state."""
        found = dict(self._rows("SELECT state, count(*) FROM jobs GROUP BY state"))
        return {state.value: found.get(state.value, 0) for state in JobState}

    def _jobs(self, which: str, values: Sequence[object] = ()) -> list[Job]:
        rows = self._rows(f"SELECT id, spec, status FROM jobs {which}", values)
        try:
            found = [Job.restored(number, json.loads(spec), json.loads(status)) for number, spec, status in rows]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged(self.folder, f"a job: {error!r}") from None
        for job in found:
            job.stored_spec = job.spec
        return found

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """The rows of a query; text that is no Unicode matches no name."""
        plain = [value.encode(errors="replace").decode() if isinstance(value, str) else value for value in values]
        with _failing(self.folder):
            return self._db.execute(query, plain).fetchall()


def database_at(folder: Path) -> str | None:
    """The id of the database of a state folder that may be another engine's, of which nothing is touched.

    None: there is none, it cannot be read, or its id is in its log alone.
    """
    uri = (
        f"file:{quote(str(folder.absolute() / 'hived.db'))}?mode=ro&immutable=1"  # no locks, no log, no files beside it
    )
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as db:
        for (mark,) in db.execute("SELECT value FROM meta WHERE name = 'mark'"):
            return str(mark)
    return None


def _check_log_has_its_database(folder: Path) -> None:
    """Raise :class:`StorageError` where a new database would be made beside the log of another, which would be lost."""
    database, log_ = folder / "hived.db", folder / "hived.db-wal"
    if log_.exists() and log_.stat().st_size and not (database.exists() and database.stat().st_size):
        there = "is empty" if database.exists() else "is not there"
        raise StorageError(
            f"{folder}: hived.db {there}, and hived.db-wal has what was stored in it last; put hived.db back beside "
            "it, or, if it is gone for good, move hived.db-wal away"
        )


def _event(row: tuple[int, float, str, int | None, str]) -> Event:
    seq, at, kind, job, data = row
    return Event(seq, at, kind, job, json.loads(data))


def _number_at(db: sqlite3.Connection, at: float) -> int:
    """Number of the first event that is not before a time, one after the last where all are. O(log events)."""

    def is_before(seq: int) -> bool:
        (when,) = db.execute("SELECT at FROM events WHERE seq >= ? ORDER BY seq LIMIT 1", (seq,)).fetchone()
        return bool(when < at)

    (high,) = db.execute("SELECT coalesce(max(seq), 0) + 1 FROM events").fetchone()
    low, step = max(1, high - 1), 1
    while low > 1 and not is_before(low):  # from the end on: a clock that was wrong long ago does not matter
        step *= 2
        low, high = max(1, low - step), low
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if is_before(middle) else (low, middle)
    return int(low)


def _row(job: Job) -> tuple[object, ...]:
    base = job.name.rpartition("-")[0]
    status, spec = _json(job.status()), _json(job.spec.stored())
    return job.id, job.name, base, job.spec.vc, job.state.value, int(job.state.ended), spec, status


def _plain(state: VirtualState) -> list[Any]:
    return [tuple(part) if isinstance(part, JobView) else part for part in state]


def _json(plain: Any) -> str:
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True)


@contextmanager
def _failing(folder: Path) -> Iterator[None]:
    """Turn errors of the files of a folder into :class:`StorageError`."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        what = getattr(error, "strerror", None) or str(error)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise _damaged(folder, what) from None
        full = getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "full" in what
        way_out = "free some space, or give another --state" if full else "give another --state"
        raise StorageError(f"{folder}: cannot be written ({what}); {way_out}") from None


def _damaged(folder: Path, what: str) -> StorageError:
    return StorageError(f"{folder}: hived.db is damaged ({what}); give another --state, and keep this one")


#: name and GPUs of each virtual cluster, as in ``hived up --vc``
Shares = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class LastStart:
    """The configuration of the last engine on the state folder."""

    spec: ClusterSpec
    #: whether its devices were simulated; None: not known, for a folder of an earlier version
    simulated: bool | None = None
    #: the shares that the spec was made of; None: a spec was given
    shares: Shares | None = None

    def values(self) -> dict[str, str]:
        """As values of :meth:`Store.keep`."""
        more = {"simulated": self.simulated, "shares": self.shares}
        return {"spec": to_line(Opened(self.spec)), "start": json.dumps(more)}


def last_start(store: Store) -> LastStart | None:
    """The last start in the store; ``None`` before the first. Raises :class:`StorageError`."""
    line = store.value("spec")
    if line is None:
        return None
    try:
        event = from_line(line)
        more = json.loads(store.value("start") or "{}")
        assert isinstance(event, Opened | Reconfigured)
        shares = more.get("shares")
        return LastStart(
            event.spec,
            more.get("simulated"),
            None if shares is None else tuple((str(name), int(gpus)) for name, gpus in shares),
        )
    except (InputError, ValueError, TypeError, AttributeError, AssertionError) as error:
        raise _damaged(store.folder, f"the last spec: {error}") from None


def same(one: ClusterSpec, other: ClusterSpec) -> bool:
    """Whether two specs are equal, apart from their source."""
    return to_line(Opened(replace(one, source="", ignored=()))) == to_line(
        Opened(replace(other, source="", ignored=()))
    )


def new_names(before: ClusterSpec, spec: ClusterSpec) -> dict[str, str]:
    """The present name of the node, by its former one: this machine is one node, whatever its specs call it."""
    was, now = before.node_names, spec.node_names
    return {was[0]: now[0]} if len(was) == len(now) == 1 and was != now else {}


def renamed(spec: ClusterSpec, names: Mapping[str, str]) -> ClusterSpec:
    """A spec with its nodes renamed; ``names``: new names by old ones."""
    called = [tuple(names.get(name, name) for name in chain.node_names) for chain in spec.chains]
    chains = zip(spec.chains, called, strict=True)
    return replace(spec, chains=tuple(replace(chain, node_names=nodes) for chain, nodes in chains))
