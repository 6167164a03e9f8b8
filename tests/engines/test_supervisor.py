"""Real processes under real supervisors: run once, stopped when told, gone when ended, and the end written down."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hived.engines.local import supervisor
from hived.engines.local.environment import kill_marked
from hived.engines.local.tasks import Ending, Liveness, Task

from .real import PATIENCE_S, RealTask, lives, marked, until

#: prints its pid and stays, whatever it is told
STUBBORN = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.05; done"
#: saves something when it is told to stop
SAVES = "trap 'echo saved; exit 0' TERM; echo $$; while :; do sleep 0.02; done"


@pytest.fixture
def task(tmp_path: Path) -> Iterator[RealTask]:
    made = RealTask(tmp_path / "task")
    yield made
    made.close()


# -- once ---------------------------------------------------------------------------------------------------------


def test_of_several_supervisors_exactly_one_runs_the_task(task: RealTask, tmp_path: Path) -> None:
    task.ready("sh", "-c", f"echo $PPID >> {tmp_path}/runs; sleep 0.2")
    for _ in range(6):
        task.start()
    assert task.end().code == 0
    (ran,) = (tmp_path / "runs").read_text().split()
    assert (task.folder / "claim").read_text().split()[0] == ran
    left = sorted(path.name for path in task.folder.iterdir())
    assert left == ["claim", "exit", "output", "supervisor.log", "task.json"]


def test_a_task_that_has_run_is_not_run_again(task: RealTask) -> None:
    task.ready("sh", "-c", "echo ran").run()
    before = task.ending()
    assert task.run() == before
    assert task.printed == "ran\n"


# -- stopping -----------------------------------------------------------------------------------------------------


def test_a_task_stopped_before_it_has_started_never_starts(task: RealTask) -> None:
    task.ready("sh", "-c", "echo ran")
    task.stop()
    ending = task.run()
    assert (ending.code, ending.stopped, ending.error) == (143, True, None)
    assert not task.output.exists()


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.02, 0.03, 0.05])
def test_a_task_stopped_while_it_starts_ends_and_reports_it(tmp_path: Path, pause: float) -> None:
    task = RealTask(tmp_path / "task").ready("sh", "-c", "sleep 60", grace_s=0.5).start()
    try:
        task.supervisors[0].wait(pause)
    except subprocess.TimeoutExpired:
        task.stop()
    ending = task.end()
    assert ending.stopped
    assert ending.code == 143
    assert not marked(task.mark)


def test_telling_a_task_that_has_ended_changes_nothing(task: RealTask) -> None:
    before = task.ready("sh", "-c", "exit 3").run()
    task.stop()
    assert task.ending() == before
    assert (before.code, before.stopped) == (3, False)


def test_a_task_that_is_stopped_may_save_and_exit_with_0(task: RealTask) -> None:
    task.ready("sh", "-c", SAVES).started()
    task.stop()
    ending = task.end()
    assert (ending.code, ending.signal, ending.stopped) == (0, None, True)
    assert task.printed.endswith("saved\n")


def test_a_task_that_does_not_listen_is_killed_after_its_grace(task: RealTask) -> None:
    task.ready("sh", "-c", STUBBORN, grace_s=0.3).started()
    task.stop()
    ending = task.end()
    assert (ending.code, ending.signal, ending.stopped) == (137, 9, True)
    assert ending.started is not None
    assert ending.ended is not None
    assert ending.ended - ending.started >= 0.3


def test_a_task_that_has_stopped_itself_still_has_its_grace(task: RealTask) -> None:
    task.ready("sh", "-c", "trap 'echo saved; exit 0' TERM; echo here; kill -STOP $$; sleep 60", grace_s=20).started()
    task.stop()
    assert task.end().code == 0
    assert task.printed.endswith("saved\n")


def test_a_task_at_its_time_limit_is_stopped_and_says_for_what(task: RealTask) -> None:
    ending = task.ready("sh", "-c", STUBBORN, grace_s=0.1, time_limit_s=0.3).run()
    assert (ending.code, ending.stopped, ending.limit) == (137, True, True)


def test_a_task_within_its_time_limit_knows_nothing_of_it(task: RealTask) -> None:
    ending = task.ready("sh", "-c", "exit 5", time_limit_s=20).run()
    assert (ending.code, ending.stopped, ending.limit) == (5, False, False)


# -- what a task leaves behind ------------------------------------------------------------------------------------

DAEMON = """
import os, sys, time
if os.fork() == 0:
    {how}
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists(sys.argv[1]) or not os.path.getsize(sys.argv[1]):
    time.sleep(0.01)
"""
TWICE = "os.setsid(); os.fork() and os._exit(0)"
LEFT = {
    "in its group": "pass",
    "in a group of its own": "os.setpgid(0, 0)",
    "in a session of its own": "os.setsid()",
    "as a daemon": TWICE,
    "in its supervisor's group": "os.setpgid(0, os.getsid(0))",
    "deaf": f"{TWICE}; import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]",
    "without its mark": f"""{TWICE}
    if len(sys.argv) < 3: os.execve(sys.executable, [sys.executable, "-c",
        "import os,sys,time; open(sys.argv[1],'w').write(str(os.getpid())); time.sleep(600)", sys.argv[1]], {{}})""",
}


@pytest.mark.parametrize("how", LEFT.values(), ids=LEFT.keys())
def test_what_a_task_leaves_behind_goes_with_it(task: RealTask, tmp_path: Path, how: str) -> None:
    ending = task.ready(sys.executable, "-S", "-c", DAEMON.format(how=how), str(tmp_path / "pid"), grace_s=0.2).run()
    assert (ending.code, ending.stopped) == (0, False)
    assert not lives(int((tmp_path / "pid").read_text()))


def test_many_daemons_of_one_task_all_go(task: RealTask) -> None:
    script = "n=0; while [ $n -lt 60 ]; do setsid sh -c 'trap \"\" TERM; sleep 600 & wait' & n=$((n+1)); done; echo all"
    ending = task.ready("sh", "-c", script, grace_s=0.1).run()
    assert ending.code == 0
    assert not marked(task.mark)


def test_one_that_forks_on_and_on_cannot_run_away(task: RealTask, tmp_path: Path) -> None:
    flight = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    for n in range(20000):  # bounded: it would end by itself after a while
        if os.fork():
            os._exit(0)
        if n == 100:
            open(sys.argv[1], "w").close()
    open(sys.argv[2], "w").close()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
    far, end = str(tmp_path / "far"), tmp_path / "end"
    task.ready(sys.executable, "-S", "-c", flight, far, str(end), grace_s=0.1).run()
    assert not marked(task.mark)
    assert not end.exists(), "it was not killed, but came to its own end"


# -- when the supervisor itself is killed -------------------------------------------------------------------------


def test_a_task_dies_with_its_supervisor_and_is_lost(task: RealTask) -> None:
    task.ready("sh", "-c", STUBBORN).started()
    pid = int(task.printed)
    task.supervisors[0].kill()
    ending = task.end()
    assert task.liveness() is Liveness.LOST
    until(lambda: not lives(pid))
    assert ending.lost
    assert not ending.rebooted
    assert ending.error is not None
    assert "killed" in ending.error


def test_what_a_lost_task_left_is_cleared(task: RealTask, tmp_path: Path) -> None:
    task.ready(sys.executable, "-S", "-c", DAEMON.format(how=TWICE) + "\nprint(1, flush=True); time.sleep(600)",
               str(tmp_path / "pid")).started()  # fmt: skip
    task.supervisors[0].kill()
    task.end()
    assert lives(int((tmp_path / "pid").read_text()))
    kill_marked(task.mark)
    assert not lives(int((tmp_path / "pid").read_text()))


def test_a_task_that_kills_its_supervisor_dies_too(task: RealTask) -> None:
    ending = task.ready("sh", "-c", "echo $$; kill -9 $PPID; sleep 600").run()
    assert ending.lost
    until(lambda: not lives(int(task.printed)))
    kill_marked(task.mark)  # what it had started in that moment
    assert not marked(task.mark)


def test_a_task_that_stops_its_supervisor_can_still_be_stopped(task: RealTask) -> None:
    task.ready("sh", "-c", "kill -STOP $PPID; echo here; exec sleep 600").started()
    task.stop()
    ending = task.end()
    assert (ending.code, ending.stopped) == (143, True)


def test_a_supervisor_killed_before_its_task_has_begun_starts_nothing(tmp_path: Path) -> None:
    # the child of a supervisor that was killed right after the fork: its parent is another by now
    program = f"""
import os
from hived.engines.local.supervisor import _Supervisor
one = _Supervisor(["touch", "{tmp_path}/ran"], "/", {{"PATH": os.environ["PATH"]}}, 1.0, None)
one._become_the_task(os.getpid(), 1)
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=PATIENCE_S)
    assert not (tmp_path / "ran").exists()


# -- programs that cannot be started ------------------------------------------------------------------------------


def unstartable(folder: Path) -> list[tuple[tuple[str, ...], str, str]]:
    """Command, folder to run in, what has to be said."""
    plain = folder / "plain"
    plain.write_text("no program")
    return [
        (("no-such-program",), "/", "no-such-program: No such file or directory"),
        ((str(folder / "none"),), "/", "none: No such file or directory"),
        ((str(plain),), "/", "plain: Permission denied"),
        ((str(folder),), "/", "Permission denied"),
        (("true",), str(folder / "nowhere"), "nowhere: No such file or directory"),
        (("true",), str(plain), "plain: Not a directory"),
        (("true", "a\0b"), "/", "null byte"),
        (("true", "x" * 200_000), "/", "Argument list too long"),
        (("true", "\ud800"), "/", "surrogates not allowed"),
        (("",), "/", "argv first element cannot be empty"),
        (("true",), str(folder / "\udcff\udcfe"), "No such file or directory"),
    ]


@pytest.mark.parametrize("case", range(11))
def test_a_program_that_cannot_be_started_says_why(task: RealTask, tmp_path: Path, case: int) -> None:
    command, cwd, why = unstartable(tmp_path)[case]
    ending = task.ready(*command, cwd=cwd).run()
    assert task.liveness() is Liveness.ENDED
    assert ending.code == 127
    assert not ending.lost
    assert ending.error is not None
    assert why in ending.error


@pytest.mark.parametrize("letter", ["я", "深", "\x01", "🚀"])
def test_a_long_foreign_name_that_cannot_be_started_is_not_taken_for_lost(task: RealTask, letter: str) -> None:
    # its error, as ASCII JSON, was longer than the room for it: the file was cut, and the task was reported lost
    ending = task.ready("true", cwd="/" + "/".join([letter * 50] * 9)).run()
    assert ending.code == 127
    assert not ending.lost
    assert ending.error is not None
    assert letter in ending.error


def test_a_program_is_looked_for_where_its_own_path_says(task: RealTask, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o700)
    assert task.ready("mine", environment={"PATH": f"{tmp_path}:/bin:/usr/bin"}).run().code == 0
    assert task.printed == "found\n"


def test_a_relative_program_is_that_of_its_folder(task: RealTask, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "run.sh").chmod(0o700)
    task.ready("./run.sh", cwd=str(tmp_path)).run()
    assert task.printed == f"{tmp_path}\n"


# -- what a task is given -----------------------------------------------------------------------------------------


def test_bytes_that_are_no_utf_8_arrive_as_they_are(task: RealTask) -> None:
    script = "import os,sys; sys.stdout.buffer.write(os.environb[b'ODD'] + b' ' + os.fsencode(sys.argv[1]))"
    task.ready(sys.executable, "-c", script, "\udcfe", environment={"ODD": "a\udcff b=\n"}).run()
    assert task.output.read_bytes() == b"a\xff b=\n \xfe"


def test_a_task_has_three_files_open_and_reads_nothing(task: RealTask, tmp_path: Path) -> None:
    with (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        task.ready("sh", "-c", "ls /proc/$$/fd; readlink /proc/$$/fd/0; cat").run()
    assert task.printed.split() == ["0", "1", "2", "/dev/null"]


def test_a_task_inherits_no_ignored_or_blocked_signal(task: RealTask) -> None:
    # `nohup hived up &`, say: SIGHUP, and from some shells SIGINT and SIGQUIT, are ignored by all that comes of it
    task.ready("sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status; exit 4")
    program = f"""
import os, signal
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGALRM])
os.execv({sys.executable!r}, ["python", "-IS", {supervisor.__file__!r}, {str(task.folder)!r}])
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
    assert task.ending().code == 4  # with SIGCHLD ignored nobody could have said
    for line in task.printed.splitlines():
        assert int(line.split()[1], 16) == 0, line


def test_a_task_is_the_leader_of_its_group_and_not_of_the_session(task: RealTask) -> None:
    script = "import os; print(os.getpid() == os.getpgrp(), os.getsid(0) == os.getppid())"
    task.ready(sys.executable, "-c", script).run()
    assert task.printed.split() == ["True", "True"]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_files_of_a_task_are_unreadable_to_other_users(task: RealTask, mask: int) -> None:
    before = os.umask(mask)
    try:
        task.ready("sh", "-c", "echo secret").run()
        task.stop()
    finally:
        os.umask(before)
    assert task.folder.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in task.folder.iterdir()}
    names = ("claim", "exit", "output", "stop", "supervisor.log", "task.json")
    assert modes == dict.fromkeys(names, 0o600)


# -- how it ended -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code", "by"),
    [
        ("exit 0", 0, None),
        ("exit 3", 3, None),
        ("exit 255", 255, None),
        ("kill -9 $$", 137, 9),
        ("kill -TERM $$", 143, 15),
        ("kill -SEGV $$", 139, 11),
        ("kill -PIPE $$", 141, 13),
    ],
)
def test_a_task_ends_with_the_exit_code_of_a_shell(task: RealTask, script: str, code: int, by: int | None) -> None:
    ending = task.ready("sh", "-c", f"ulimit -c 0; {script}").run()
    assert (ending.code, ending.signal, ending.stopped, ending.lost) == (code, by, False, False)


def test_output_is_kept_whole_however_much_it_is(task: RealTask) -> None:
    task.ready("sh", "-c", "head -c 20000000 /dev/zero; echo error >&2; echo end").run()
    assert task.output.stat().st_size == 20_000_000 + len("error\nend\n")


def with_files_of_at_most(size: int, task: Task) -> int:
    """Run its supervisor where no file can grow beyond ``size``: the nearest to a full disk that needs no root."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    with (task.folder / "supervisor.log").open("ab") as log:
        command = [sys.executable, "-IS", supervisor.__file__, str(task.folder)]
        return subprocess.run(command, preexec_fn=limited, stderr=log, timeout=PATIENCE_S).returncode


def test_a_task_that_fills_the_disk_is_seen_to_its_end(task: RealTask) -> None:
    task.ready("sh", "-c", "ulimit -c 0; exec head -c 1000000 /dev/zero")
    assert with_files_of_at_most(supervisor._ROOM, task) == 0
    ending = task.ending()
    assert (ending.code, ending.signal, ending.lost) == (128 + signal.SIGXFSZ, signal.SIGXFSZ, False)


def test_where_there_is_no_room_for_its_end_a_task_does_not_begin(task: RealTask, tmp_path: Path) -> None:
    task.ready("touch", str(tmp_path / "ran"))
    assert with_files_of_at_most(supervisor._ROOM // 2, task) != 0
    assert task.liveness() is Liveness.UNCLAIMED
    assert not (tmp_path / "ran").exists()
    words = task.never_started().error
    assert words is not None
    assert "could not start" in words


def test_a_task_that_writes_its_own_end_is_overruled(task: RealTask) -> None:
    lie = json.dumps({"code": 0})
    ending = task.ready("sh", "-c", f"echo '{lie}' > {task.folder}/exit; exit 9").run()
    assert ending.code == 9


def test_a_task_that_deletes_its_own_folder_is_known_to_be_gone(task: RealTask) -> None:
    task.ready("sh", "-c", f"rm -rf {task.folder}").start()
    task.supervisors[0].wait(PATIENCE_S)
    assert task.liveness() is Liveness.UNCLAIMED
    assert task.never_started() == Ending(137, error="its folder was deleted", lost=True)


def test_a_machine_that_can_have_no_more_processes_says_so(task: RealTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    task.ready("true")
    monkeypatch.chdir(task.folder)
    monkeypatch.setattr(os, "fork", full)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    supervisor._Supervisor(["true"], "/", {}, 1.0, None).run(supervisor._room())
    ending = task.ending()
    assert (ending.code, ending.error) == (127, "true: Resource temporarily unavailable")


def test_a_task_that_is_stopped_again_has_the_shorter_grace(task: RealTask) -> None:
    task.ready("sh", "-c", STUBBORN, grace_s=3600.0).started()
    task.stop(3600.0)
    task.stop()  # no word of another
    assert task.liveness() is Liveness.ALIVE
    task.stop(0.0)
    ending = task.end()
    assert (ending.signal, ending.stopped) == (9, True)


@pytest.mark.parametrize("word", ["", "soon", "nan", "99999", "\0" * 100])
def test_a_word_that_makes_no_sense_leaves_the_task_its_own_time(task: RealTask, word: str) -> None:
    task.ready("sh", "-c", STUBBORN, grace_s=0.1).started()
    (task.folder / "stop").write_text(word)
    for child in task.supervisors:
        child.terminate()
    ending = task.end()
    assert (ending.signal, ending.stopped) == (9, True)
