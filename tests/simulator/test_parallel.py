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


def test_results_come_in_the_order_of_the_tasks_however_many_processes(tmp_path: Path) -> None:
    tasks = doubles(tmp_path / "log", 3, 0.1, 2, math.inf, 1)
    for processes in (1, 3):
        with kept_results(tmp_path / str(processes)) as kept:
            assert run_tasks(tasks, kept, processes) == [6, 0.2, 4, math.inf, 2]


def test_a_kept_result_is_not_computed_again(tmp_path: Path) -> None:
    log, counts = tmp_path / "log", []
    with kept_results(tmp_path / "kept") as kept:
        run_tasks(doubles(log, 1, 2), kept, 1)
    with kept_results(tmp_path / "kept") as kept:
        assert run_tasks(doubles(log, 4, 2, 1), kept, 2, lambda *count: counts.append(count)) == [8, 4, 2]
    assert log.read_text() == "1\n2\n4\n"
    assert counts == [(2, 3), (3, 3)]


def test_a_file_that_is_no_result_counts_as_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (task,) = doubles(log, 1)
    for content in ("", '{"task": "double 1", "ident', "[]", "{}"):
        with kept_results(tmp_path / "kept") as kept:
            (kept.folder / f"{task.key()}.json").write_text(content)
            (kept.folder / f".{task.key()}.json-1234").write_text("a draft")
        with kept_results(tmp_path / "kept") as kept:
            assert run_tasks([task], kept, 1) == [2]
            assert [path.name for path in kept.folder.iterdir()] == [f"{task.key()}.json"]
    assert log.read_text() == "1\n" * 4


def test_results_of_other_tasks_are_listed(tmp_path: Path) -> None:
    with kept_results(tmp_path / "kept") as kept:
        tasks = doubles(tmp_path / "log", 1, 2, 3)
        run_tasks(tasks, kept, 1)
        assert kept.others(tasks) == []
        assert kept.others(tasks[:2]) == [{"number": 3}]


def test_a_key_does_not_depend_on_the_order_of_names() -> None:
    assert key_of({"a": 1, "b": [2, None]}) == key_of({"b": [2, None], "a": 1}) != key_of({"a": 1, "b": [2, 0]})


@pytest.mark.parametrize(
    ("kind", "message", "code"),
    [
        ("ours", "the third: there is no such thing", 4),
        ("unpicklable", "the third: gpus: too many", 2),
        ("killed", "a process ended abruptly", 1),
    ],
)
def test_an_error_names_the_task_and_finished_results_stay(tmp_path: Path, kind: str, message: str, code: int) -> None:
    done = doubles(tmp_path / "log", 1, 2)
    with kept_results(tmp_path / "kept") as kept:
        run_tasks(done, kept, 1)
    tasks = [*done, Task("the third", fail, (kind,), {"kind": kind}), Task("long", sleep, (300,), {"sleep": 300})]
    start = time.monotonic()
    with kept_results(tmp_path / "kept") as kept:
        with pytest.raises(TaskError, match=message) as error:
            run_tasks(tasks, kept, 2)
        assert error.value.exit_code == code
        assert [kept.result(task) for task in done] == [2, 4]
    assert time.monotonic() - start < 200, "the long task was waited for"


def test_a_bug_keeps_its_type_and_has_the_tasks_name(tmp_path: Path) -> None:
    with kept_results(tmp_path / "kept") as kept, pytest.raises(ZeroDivisionError) as error:
        run_tasks([Task("the only", fail, ("bug",), {})], kept, 1)
    assert "the only" in error.value.__notes__[0]
    assert "in fail" in str(error.value.__cause__), "the traceback of the other process"


def test_one_process_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    with (
        kept_results(tmp_path / "kept"),
        pytest.raises(InputError, match="another process writes to it now"),
        kept_results(tmp_path / "kept"),
    ):
        pass
    with kept_results(tmp_path / "kept"):
        pass


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another --out"), kept_results(tmp_path / "file" / "kept"):
        pass


def test_processes_end_with_the_first_one_even_if_it_is_killed(tmp_path: Path) -> None:
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
