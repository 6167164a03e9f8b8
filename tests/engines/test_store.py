"""What must not be lost: every write is whole or is not, one engine has it, and whatever is wrong with it is said."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hived import ConflictError
from hived.access import Tokens
from hived.cli.up import _Door
from hived.engine.job import Event, JobFilter
from hived.engine.states import JobState
from hived.engines.local.engine import Keeping
from hived.engines.local.model import Job
from hived.engines.local.store import MIGRATIONS, SINCE, Store, last_start
from hived.errors import StorageError
from hived.events.codec import from_line

from .driver import SHARES, STOPPED, Driver, job, replayed, states
from .real import PATIENCE_S

#: the file as the first version has left it, with a job that a smaller spec has cut off from its devices
FIRST_VERSION = (Path(__file__).parent / "first_version.sql").read_text(encoding="utf-8")

#: the file as c3d0f6d has left it (schema 5), with a job in each state
FIFTH_VERSION = (Path(__file__).parent / "fifth_version.sql").read_text(encoding="utf-8")
#: the file as 628ac67 has left it (schema 6), with jobs that take turns, one that is limited and one suspended by hand
SIXTH_VERSION = (Path(__file__).parent / "sixth_version.sql").read_text(encoding="utf-8")
#: of the seventh, with a guest, an owner that makes room, one that is suspended by hand, and how it was reached
SEVENTH_VERSION = (Path(__file__).parent / "seventh_version.sql").read_text(encoding="utf-8")
#: its jobs, by their state and priority
TAKING_TURNS = {
    "first-1": ("running", 7), "second-2": ("running", 0), "third-3": ("suspended", 0), "limited-4": ("running", 0),
    "held-5": ("suspended", 0),
}  # fmt: skip
#: those of the fifth
IN_EACH_STATE = {
    "ok-1": "succeeded", "bad-2": "failed", "gone-3": "cancelled", "pause-4": "backoff", "run-5": "running",
    "loan-6": "stopping", "lent-7": "stopping", "own-8": "reserved", "waits-9": "queued", "mine-10": "reserved",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    made = Store(folder)
    yield made
    made.close()


def submitted(store: Store, number: int, vc: str = "vision", name: str = "train", at: float = 1.0, **more: Any) -> Job:
    """A job that has come, kept."""
    found = Job(number, job(vc, name=name, **more), at)
    event = Event(store.last_event() + 1, at, "submitted", number, {"name": found.name})
    store.keep([event], [found])
    return found


def ended(store: Store, found: Job, at: float = 2.0) -> None:
    event = Event(store.last_event() + 1, at, "cancelled", found.id, {"why": "cancelled"})
    found.apply(event)
    store.keep([event], [found])


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(folder / "hived.db")) as db:
        return db.execute(query).fetchall()


def execute(folder: Path, script: str) -> None:
    """What somebody else has done to the database."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / "hived.db")) as db:
        db.executescript(script)


def dump(file: Path) -> list[object]:
    """All that is in a database."""
    with closing(sqlite3.connect(file)) as db:
        return [db.execute("PRAGMA user_version").fetchone(), *db.iterdump()]


# -- keeping ------------------------------------------------------------------------------------------------------


def test_commit_is_on_the_disk_before_the_answer(store: Store, folder: Path) -> None:
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    submitted(store, 1)
    shutil.copytree(folder, folder.parent / "copy")  # as a kill would leave it: nothing was closed
    assert rows(folder.parent / "copy", "SELECT kind FROM events") == [("submitted",)]


def test_unreadable_to_other_users(folder: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(folder)
        submitted(store, 1)
        assert folder.stat().st_mode & 0o777 == 0o700
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        names = ("engine.lock", "hived.db", "hived.db-shm", "hived.db-wal")
        assert modes == dict.fromkeys(names, 0o600)
        store.close()
    finally:
        os.umask(before)


def test_kept_for_the_next_time(store: Store, folder: Path) -> None:
    first, second = submitted(store, 1), submitted(store, 2, at=1.5)
    ended(store, first)
    store.keep([], [], ["line 1", "line 2"], {"drained": "[]"})
    store.close()
    again = Store(folder)
    assert [found.id for found in again.active()] == [second.id]
    assert again.active()[0].status() == second.status()
    assert again.active()[0].spec == second.spec
    assert again.last_event() == 3
    assert again.next_job() == 3
    assert list(again.decisions()) == ["line 1", "line 2"]
    assert again.value("drained") == "[]"
    assert again.value("no such") is None
    assert again.counts() == {**dict.fromkeys((s.value for s in JobState), 0), "queued": 1, "cancelled": 1}
    again.close()


def test_write_is_whole_or_is_not(store: Store) -> None:
    submitted(store, 1)
    taken = Event(1, 2.0, "queued", 1, {})  # a number that there is
    no_json = Event(3, 2.0, "odd", None, {"what": object()})
    for wrong, error in ((taken, StorageError), (no_json, TypeError)):
        with pytest.raises(error):
            store.keep([Event(2, 2.0, "queued", 1, {}), wrong], [], ["a line"], {"name": "value"})
    assert store.last_event() == 1
    assert list(store.decisions()) == []
    assert store.value("name") is None
    submitted(store, 2)  # and it goes on


# -- one engine at a time -----------------------------------------------------------------------------------------


def test_second_engine_is_refused_with_the_pid(folder: Path) -> None:
    """And is not once the first was killed."""
    folder.mkdir(parents=True)
    (folder / "engine.lock").write_text("9" * 15)  # whatever was there before
    program = "import sys; from pathlib import Path; from hived.engines.local.store import Store;" \
        "Store(Path(sys.argv[1])); print(1, flush=True); sys.stdin.read()"  # fmt: skip
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with pytest.raises(ConflictError, match=rf"\(pid {first.pid}\)"):
            Store(folder)
        first.kill()
        first.wait(PATIENCE_S)
        Store(folder).close()


# -- what is in the way -------------------------------------------------------------------------------------------


def one_storage_error(folder: Path, *words: str) -> str:
    with pytest.raises(StorageError) as found:
        Store(folder)
    text = str(found.value)
    assert str(folder) in text
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return text


def test_folder_that_cannot_be_used_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one_storage_error(tmp_path / "file", "File exists")
    one_storage_error(tmp_path / "file" / "below", "Not a directory")
    one_storage_error(Path("/proc/hived"), "No such file or directory")
    folder.mkdir(parents=True)
    for name in ("engine.lock", "hived.db"):
        (folder / name).mkdir()
        one_storage_error(folder, "Is a directory")
        (folder / name).rmdir()
    Store(folder).close()  # and the refused ones hold no lock


def test_full_disk_is_found_at_the_start(folder: Path) -> None:
    program = "import sys, pathlib, hived.engines.local.store as s; s.Store(pathlib.Path(sys.argv[1]))"

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, preexec_fn=full, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stderr.strip().splitlines()[-1].startswith("hived.errors.StorageError"), done.stderr
    Store(folder).close()  # with space again, all is well


def test_full_disk_keeps_what_there_is(store: Store) -> None:
    submitted(store, 1)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match=r"full.*free some space"):  # noqa: PT012
        for number in range(2, 1000):
            submitted(store, number, name="x" * 4000)
    kept = store.last_event()
    assert [found.id for found in store.active()] == list(range(1, kept + 1))
    store._db.execute("PRAGMA max_page_count = 100000")
    submitted(store, kept + 1)


@pytest.mark.parametrize(("blocks", "free", "full"), [(0, 0, False), (1 << 20, 1, True), (1 << 20, 1 << 10, False)])
def test_space_for_a_submission(
    store: Store, monkeypatch: pytest.MonkeyPatch, blocks: int, free: int, full: bool
) -> None:
    """A file system in memory may have no limit, and says that it has no blocks."""
    disk = os.statvfs(store.folder)
    told = os.statvfs_result((4096, 4096, blocks, free, free, *disk[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: told)
    with pytest.raises(StorageError, match="free some space") if full else nullcontext():
        store.reserve()


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """No file of the folder can grow; what there is of them can be written again."""
    most = max(file.stat().st_size for file in folder.glob("hived.db*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("disk", ["the database is full", "no file can grow"])
def test_full_disk_leaves_room_for_ends(store: Store, folder: Path, disk: str) -> None:
    """What gives space back is kept, hundreds of times; what takes more is refused before it takes that room."""
    for number in range(1, 200):
        store.reserve()
        submitted(store, number, name="x" * 3000)
    store.close()
    again = Store(folder)
    with ExitStack() as stack:
        stack.callback(again.close)
        if disk == "the database is full":
            again._db.execute(f"PRAGMA max_page_count = {again._db.execute('PRAGMA page_count').fetchone()[0]}")
        else:
            stack.enter_context(full_disk(folder))
        number = 200
        with pytest.raises(StorageError):  # noqa: PT012
            while number < 2000:
                again.reserve()
                submitted(again, number, name="x" * 3000)
                number += 1
        for found in again.active():
            ended(again, found)
        assert again.active() == []
    assert number < 2000


def test_folder_of_the_first_version_goes_on(folder: Path) -> None:
    execute(folder, FIRST_VERSION)
    first = rows(folder, "SELECT max(seq) FROM events")[0][0]
    execute(folder, "INSERT INTO events SELECT max(seq) + 1, 0.0, 'preempted', 4, '{}' FROM events")
    for _ in range(2):
        with closing(Store(folder)) as store:
            jobs = store.active()
            assert [found.name for found in jobs] == ["sleep-1", "sleep-2", "sleep-3", "sleep-4"]
            assert [pod.leaf_cells for found in jobs if found.placement for pod in found.placement.pods] == [
                (0, 1, 2, 3), (4, 5), (6, 7),
            ]  # fmt: skip
            last = last_start(store)
            assert last is not None
            assert [chain.gpus for chain in last.spec.chains] == [4]
            assert last.simulated is None
            assert [found.entry.view.sequence for found in jobs] == [1, 2, 3, 4]
            assert store.submitted(jobs[-1].vc) == 5
            assert store.submitted("nobody") == 0
    assert rows(folder, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    assert rows(folder, "SELECT value FROM meta WHERE name = 'schema'") == []
    # what that version called preempted
    assert rows(folder, f"SELECT kind FROM events WHERE seq > {first} AND job = 4") == [("requeued",)]


def test_jobs_of_the_version_before_go_on(folder: Path) -> None:
    """In the states that they had, in the store and under a new job scheduler."""
    execute(folder, FIFTH_VERSION)
    assert {state.value for state in JobState} - {"ended", *SINCE} == set(IN_EACH_STATE.values()), "of pods alone"
    assert all(5 < version <= len(MIGRATIONS) for version in SINCE.values()), "a former version has to refuse them"
    written = rows(folder, "SELECT id, status FROM jobs ORDER BY id")
    with closing(Store(folder)) as store:
        jobs, _ = store.jobs(JobFilter(), 100, None)
        assert {found.name: found.state.value for found in reversed(jobs)} == IN_EACH_STATE
        now = [(found.id, json.loads(json.dumps(found.status()))) for found in reversed(jobs)]
        assert now == [(number, json.loads(str(status))) for number, status in written]
        specs = {found.id: found.spec for found in jobs}
        told_events = store.events(0, 1000, None)
        told = replayed(told_events, specs)
        assert {found.id: found.status() for found in jobs} == {n: found.status() for n, found in told.items()}
        last, active = last_start(store), store.active()
        assert last is not None
        assert last.shares == SHARES
        assert [from_line(line).spec for line in store.decisions()] == [last.spec]  # type: ignore[union-attr]
    engine = Driver(last.spec)
    engine.now, engine.events, engine.jobs = 1005.0, list(told_events), {found.id: found for found in active}
    running = [found for found in active if found.state.holds]
    engine.alive = {(found.id, found.attempt, rank) for found in running for rank in range(found.spec.tasks)}
    taken = engine.restart(*active)
    assert {found.name: found.state.value for found in taken} == {one.name: IN_EACH_STATE[one.name] for one in active}
    assert [found.placement for found in taken] == [found.placement for found in active]


def test_sixth_version_is_taken_over(folder: Path) -> None:
    """Limits are by hand there, all of them; jobs go on as they were, under a policy with guests too."""
    execute(folder, SIXTH_VERSION)
    with closing(Store(folder)) as store:
        active, told = store.active(), store.events(0, 1000, None)
        assert {f.name: (f.state.value, f.priority) for f in active} == TAKING_TURNS
        specs = {found.id: found.spec for found in active}
        assert {n: found.status() for n, found in replayed(told, specs).items()} == {f.id: f.status() for f in active}
        last = last_start(store)
        assert last is not None
    limits = next(found.limits for found in active if found.name == "limited-4")
    assert limits is not None
    assert (limits.share, limits.by_hand) == (0.5, True)
    guests = [replace(vc, policy="antman", guests="all") for vc in last.spec.virtual_clusters]
    for spec in last.spec, replace(last.spec, virtual_clusters=tuple(guests)):
        engine = Driver(last.spec, shares=True)
        engine.now, engine.events, engine.jobs = 1040.0, list(told), {found.id: found for found in active}
        engine.alive = {(found.id, found.attempt, 0) for found in active}
        engine.check = lambda: None  # type: ignore[method-assign]  # of jobs that share nothing
        taken = engine.restart(*active, spec=spec)
        assert {found.name: found.priority for found in taken} == {name: of[1] for name, of in TAKING_TURNS.items()}
        by_name = {found.name: found for found in taken}
        assert by_name["limited-4"].limits == limits
        assert by_name["held-5"].by_hand
        stays = [found.state.value for found in taken if found.state is not JobState.STOPPING]
        assert len(stays) >= 4, "the third may have no GPUs of its own where nobody takes turns"


def test_seventh_version_is_taken_over(folder: Path) -> None:
    """Jobs go on as they were, as the engine's user; whose they are, and who has had GPUs, is found of all of them."""
    execute(folder, SEVENTH_VERSION)
    with closing(Store(folder)) as store:
        active, told = store.active(), store.events(0, 1000, None)
        assert {found.name: (found.state.value, found.guest) for found in active} == {
            "host-2": ("stopping", False), "owner-3": ("running", False), "held-4": ("suspended", False),
            "guest-5": ("running", True), "waits-6": ("reserved", False),
        }  # fmt: skip
        specs = {found.id: found.spec for found in store.jobs(JobFilter(), 100, None)[0]}
        again = replayed(told, specs)
        assert {found.id: found.status() for found in active} == {
            found.id: again[found.id].status() for found in active
        }
        assert {(spec.user, spec.uid, spec.is_limited, spec.waits_for) for spec in specs.values()} == {
            ("ann", -1, False, ())
        }
        assert store.jobs(JobFilter(user="ann"), 100, None)[1] == 6
        assert (store.latest("owner", "ann"), store.latest("owner", "bob")) == (3, None)
        assert {holding.key for holding in store.open_holdings()} == {"2", "3", "4", "5"}
        assert Tokens.restored(json.loads(store.value("tokens") or "[]")).plain() == []
        door, last = _Door(**json.loads(store.value("door") or "{}")), last_start(store)
        assert (door.listen, door.group, door.jobs_run_as, door.keeping()) == ("127.0.0.1:8400", "gpu", None, Keeping())
        assert last is not None
    guest = next(found for found in active if found.name == "guest-5")
    assert (guest.beside, guest.limits and guest.limits.by_hand) == (("host-2",), False)
    engine = Driver(last.spec, shares=True)
    engine.now, engine.events, engine.jobs = 1063.0, list(told), {found.id: found for found in active}
    engine.alive = {(found.id, found.attempt, 0) for found in active if found.attempt}
    engine.stopped = {(2, 1)}
    engine.check = lambda: None  # type: ignore[method-assign]  # of jobs that share nothing
    taken = {found.name: found for found in engine.restart(*active)}
    assert states(*taken.values()) == "stopping running suspended running reserved"
    assert taken["held-4"].by_hand
    assert taken["guest-5"].guest
    engine.end(taken["host-2"], STOPPED)
    assert taken["host-2"].state.value == "queued"


#: what is in the place of the database, and what is said of it
REFUSED: dict[str, tuple[str | bytes, list[str]]] = {
    # it was refused only after it had been written to, or for the wrong reason
    "newer": (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT; CREATE TABLE jobs (other TEXT) STRICT;"
        f"PRAGMA user_version = {len(MIGRATIONS) + 1}",
        ["newer version of hived", str(len(MIGRATIONS) + 1)],
    ),
    "damaged": (
        f"{FIRST_VERSION}; UPDATE jobs SET status = 'rubbish' WHERE id = 2",
        ["damaged", "cannot be brought to this version"],
    ),
    "of something else": ("CREATE TABLE songs (name TEXT)", ["not of hived"]),
    "no database": (b"rubbish" * 1000, ["damaged", "not a database"]),
}


@pytest.mark.parametrize(("content", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_database_is_left_as_it_is(folder: Path, content: str | bytes, words: list[str]) -> None:
    file = folder / "hived.db"
    if isinstance(content, str):
        execute(folder, content)
        before = dump(file)
        one_storage_error(folder, *words)
        assert dump(file) == before
    else:
        folder.mkdir(parents=True)
        file.write_bytes(content)
        assert "free some space" not in one_storage_error(folder, *words)
        assert file.read_bytes() == content


def test_damaged_page_is_one_clear_error(folder: Path) -> None:
    store = Store(folder)
    for number in range(1, 60):
        submitted(store, number, name="n" * 400)
    store.close()
    size = (folder / "hived.db").stat().st_size
    with (folder / "hived.db").open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * (size - 4096 * 2))
    reading: list[Callable[[Store], object]] = [
        Store.active,
        Store.next_job,
        Store.last_event,
        Store.counts,
        lambda made: made.job("1"),
        lambda made: made.jobs(JobFilter(), 10, None),
        lambda made: made.events(0, 10, None),
        lambda made: list(made.decisions()),
        lambda made: made.value("mark"),
    ]
    told = []
    for read in reading:
        try:
            with closing(Store(folder)) as made:
                read(made)
        except StorageError as error:
            told.append(str(error))
    assert len(told) >= 4
    assert all("damaged" in text for text in told)


def test_damaged_row_is_one_clear_error(store: Store, folder: Path) -> None:
    submitted(store, 1)
    for status in ("", "[]", "{}", '{"state": "odd"}'):
        store._db.execute("UPDATE jobs SET status = ?", (status,))
        with pytest.raises(StorageError, match="damaged"):
            store.active()
        with pytest.raises(StorageError, match="damaged"):
            store.job("1")


def replaced(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.mkdir()
    (folder / "hived.db").touch()


GOES_AWAY: dict[str, Callable[[Path], object]] = {
    "moved": lambda folder: folder.rename(folder.parent / "elsewhere"),
    "deleted": shutil.rmtree,
    "replaced": replaced,
    "unlinked": lambda folder: (folder / "hived.db").unlink(),
    "without its lock": lambda folder: (folder / "engine.lock").unlink(),  # another could take the folder over
}


@pytest.mark.parametrize("how", GOES_AWAY.values(), ids=GOES_AWAY)
def test_folder_that_goes_away_is_noticed(store: Store, folder: Path, how: Callable[[Path], object]) -> None:
    # SQLite writes on to a file that has no name any more: every job of that time would have been lost
    submitted(store, 1)
    how(folder)
    with pytest.raises(StorageError, match="moved or deleted"):
        submitted(store, 2)


# -- looking up ---------------------------------------------------------------------------------------------------


def test_job_is_found_by_number_and_names(store: Store) -> None:
    for number, name in enumerate(("train", "train", "eval", "train-1", "2"), 1):
        submitted(store, number, name=name)

    def found(ref: str) -> int | None:
        one = store.job(ref)
        return None if one is None else one.id

    assert found("1") == 1
    assert found("train-2") == 2
    assert found("train") == 2, "the latest of that name"
    assert found("train-1") == 1, "a full name before a name asked for"
    assert found("train-1-4") == 4
    assert found("2") == 2, "a number before a name"
    assert found("2-5") == 5
    for ref in ("", "0", "6", "-1", "²", "9" * 40, "tra%", "train'", "\0", "\ud800", "01x"):
        assert found(ref) is None, ref


def test_jobs_come_page_by_page(store: Store) -> None:
    for number in range(1, 8):
        found = submitted(store, number, vc="speech" if number % 2 else "vision")
        if number > 5:
            ended(store, found)
    page, total = store.jobs(JobFilter(), 3, None)
    assert ([found.id for found in page], total) == ([7, 6, 5], 7)
    page, total = store.jobs(JobFilter(), 3, 5)
    assert ([found.id for found in page], total) == ([4, 3, 2], 7)
    page, total = store.jobs(JobFilter(("queued",), "speech"), 10, None)
    assert ([found.id for found in page], total) == ([5, 3, 1], 3)
    page, total = store.jobs(JobFilter(("queued", "cancelled"), "vision"), 10, None)
    assert ([found.id for found in page], total) == ([6, 4, 2], 3)
    assert store.jobs(JobFilter(("failed",)), 10, None) == ([], 0)


def test_jobs_that_are_chosen(store: Store) -> None:
    """By their ends, names and arrays: what others answer is not read for it."""
    jobs = [submitted(store, number, array_id=3 if 2 < number < 6 else 0) for number in range(1, 8)]
    for at, number in ((10.0, 1), (20.0, 4), (30.0, 2)):
        ended(store, jobs[number - 1], at)

    def found(**chosen: Any) -> list[int]:
        jobs, total = store.jobs(JobFilter(**chosen), 100, None)
        assert total == len(jobs)
        return [job.id for job in jobs]

    assert (found(array=3), found(array=4), found(array=3, ended_since=0.0)) == ([5, 4, 3], [], [4])
    assert (found(name="in-4"), found(name="IN-4"), found(name="%")) == ([4], [], [])
    assert (found(ended_since=20.0), found(ended_before=20.0), found(ended_since=31.0)) == ([4, 2], [1], [])
    assert found(ended_since=5.0, ended_before=25.0, vc="vision") == [4, 1]
    assert found(ended_since=5.0, states=("queued",)) == []


def test_events_after_a_number_or_the_latest(store: Store) -> None:
    first, second = submitted(store, 1), submitted(store, 2)
    ended(store, first)
    ended(store, second)
    assert [event.seq for event in store.events(0, 3, None)] == [1, 2, 3]
    assert [event.seq for event in store.events(3, 3, None)] == [4]
    assert [event.seq for event in store.events(-1, 3, None)] == [2, 3, 4]
    assert [event.seq for event in store.events(0, 10, 1)] == [1, 3]
    assert [event.seq for event in store.events(-1, 1, 1)] == [3]
    assert store.events(4, 10, None) == []
    assert store.events(0, 1, 2)[0] == Event(2, 1.0, "submitted", 2, {"name": "train-2"})


def test_decisions_are_read_while_more_come(store: Store) -> None:
    store.keep([], [], [f"line {n}" for n in range(2500)])
    reading = store.decisions()
    assert next(reading) == "line 0"
    store.keep([], [], ["the last line"])
    assert list(reading)[-1] == "the last line"


def test_any_text_is_kept(store: Store) -> None:
    odd = "\x00\x1b[31m\ud800 я 深 🚀 '; DROP TABLE jobs; --"
    found = Job(1, job("vision", name="n", environment={"A": odd}), 1.0)
    store.keep([Event(1, 1.0, "submitted", 1, {"why": odd})], [found])
    assert store.events(0, 1, None)[0].data == {"why": odd}
    kept = store.job("1")
    assert kept is not None
    assert kept.spec.environment == {"A": odd}
    assert json.loads(json.dumps(kept.status())) == json.loads(json.dumps(found.status()))
