"""Lists of tasks in several processes: results kept one by one, errors, interruptions."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hived.errors import InputError, NotFoundError, RequestError
from hived.simulator.parallel import Task, TaskError, kept_results, key_of, run_tasks

ROOT = Path(__file__).parents[2]


def double(number: float, log: str) -> float:
    """Write a line for each call, so that tests see how often it was called."""
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    return number * 2


def fail(kind: str) -> None:
    """An error of each kind."""
    if kind == "ours":
        raise NotFoundError("there is no such thing")
    if kind == "unpicklable":
        raise RequestError("gpus", "too many")
    if kind == "bug":
        raise ZeroDivisionError("a bug")
    os._exit(9)


def sleep(seconds: float) -> None:
    """Take so long."""
    time.sleep(seconds)


def doubles(log: Path, *numbers: float) -> list[Task]:
    return [Task(f"double {number}", double, (number, str(log)), {"number": number}) for number in numbers]


def test_results_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    """A kept result is not computed again, and those of other tasks are listed.

    A file that is no result counts as none; drafts of a process that was killed are removed.
    """
    log, counts = tmp_path / "log", []
    tasks = doubles(log, 3, 0.1, 2, math.inf, 1)
    broken = zip((tasks[0], tasks[1], *tasks[3:]), ("", '{"task": "double 1", "ident', "[]", "{}"), strict=True)
    with kept_results(tmp_path / "kept") as kept:
        kept.keep(doubles(log, 2)[0], 4)
        kept.keep(doubles(log, 7)[0], 14)
        for task, content in broken:
            (kept.folder / f"{task.key()}.json").write_text(content)
            (kept.folder / f".{task.key()}.json-1234").write_text("a draft")
    with kept_results(tmp_path / "kept") as kept:
        assert run_tasks(tasks, kept, 2, lambda *count: counts.append(count)) == [6, 0.2, 4, math.inf, 2]
        assert kept.others(tasks) == [{"number": 7}]
        assert kept.others([*tasks, *doubles(log, 7)]) == []
        assert counts == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
        assert run_tasks(tasks, kept, 2, lambda *count: counts.append(count)) == [6, 0.2, 4, math.inf, 2]
    assert sorted(log.read_text().split()) == ["0.1", "1", "3", "inf"]
    assert not [path for path in kept.folder.iterdir() if not path.name.endswith(".json")]
    assert counts[5:] == [(5, 5)], "all are kept"


def test_keys_have_no_order_of_names() -> None:
    assert key_of({"a": 1, "b": [2, None]}) == key_of({"b": [2, None], "a": 1}) != key_of({"a": 1, "b": [2, 0]})


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        pytest.param("ours", "the third: there is no such thing", 4, marks=pytest.mark.slow),
        pytest.param("unpicklable", "the third: gpus: too many", 2, marks=pytest.mark.slow),
        ("killed", "a process ended abruptly", 1),
    ],
)
def test_an_error_names_the_task(tmp_path: Path, kind: str, message: str, code: int) -> None:
    """Finished results stay, and the others end at once."""
    (done,) = doubles(tmp_path / "log", 1)
    third = Task("the third", fail, (kind,), {"kind": kind})
    start = time.monotonic()
    with kept_results(tmp_path / "kept") as kept:
        kept.keep(done, 2)
        with pytest.raises(TaskError, match=message) as error:
            run_tasks([done, third, Task("long", sleep, (300,), {"sleep": 300})], kept, 2)
        assert error.value.exit_code == code
        assert kept.result(done) == 2
    assert time.monotonic() - start < 200, "the long task was waited for"


def test_a_bug_keeps_its_type(tmp_path: Path) -> None:
    with kept_results(tmp_path / "kept") as kept, pytest.raises(ZeroDivisionError) as error:
        run_tasks([Task("the only", fail, ("bug",), {})], kept, 1)
    assert "the only" in error.value.__notes__[0]
    assert "in fail" in str(error.value.__cause__), "the traceback of the other process"


def test_one_process_uses_a_folder(tmp_path: Path) -> None:
    """At a time; one that cannot be made is an error."""
    with (
        kept_results(tmp_path / "kept"),
        pytest.raises(InputError, match="another process writes to it now"),
        kept_results(tmp_path / "kept"),
    ):
        pass
    with kept_results(tmp_path / "kept"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another --out"), kept_results(tmp_path / "file" / "kept"):
        pass


def test_processes_end_with_the_first_one(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from {__name__} import *
if __name__ == "__main__":
    tasks = [Task(str(n), report_and_sleep, (str(n),), {{"n": n}}) for n in range(2)]
    with kept_results(Path("kept")) as kept:
        run_tasks(tasks, kept, 2)
"""
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # where it is killed, multiprocessing removes its semaphores and says so
    first = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    pids = [int(wait_for(tmp_path / name)) for name in "01"]
    first.kill()
    first.wait()
    until = time.monotonic() + 120
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids):
        assert time.monotonic() < until, "a process has survived"
        time.sleep(0.05)


def report_and_sleep(name: str) -> None:
    """Write this process' id into a file, then take long."""
    Path(f"{name}-").write_text(json.dumps(os.getpid()))
    Path(f"{name}-").rename(name)
    time.sleep(300)


def wait_for(path: Path) -> str:
    until = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < until, f"{path.name} did not appear"
        time.sleep(0.02)
    return path.read_text()
