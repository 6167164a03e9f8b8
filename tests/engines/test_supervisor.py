"""Real processes under real supervisors: run once, stopped when told, gone when ended, and the end written down."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hived.engines.local import supervisor
from hived.engines.local.environment import kill_marked
from hived.engines.local.tasks import Liveness, Task

from .real import PATIENCE_S, RealTask, lives, marked, until

#: prints its pid and stays, whatever it is told
STUBBORN = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.05; done"


# -- once ---------------------------------------------------------------------------------------------------------


def test_one_of_several_supervisors_runs_the_task(task: RealTask, tmp_path: Path) -> None:
    task.shell(f"echo $PPID >> {tmp_path}/runs; sleep 0.2")
    for _ in range(6):
        task.start()
    assert task.end().code == 0
    (ran,) = (tmp_path / "runs").read_text().split()
    assert (task.folder / "claim").read_text().split()[0] == ran
    left = sorted(path.name for path in task.folder.iterdir())
    assert left == ["claim", "exit", "output", "supervisor.log", "task.json"]


def test_task_that_has_run_is_not_run_again(task: RealTask) -> None:
    before = task.shell("echo ran; exit 3").run()
    assert task.run() == before
    task.stop()
    assert task.ending() == before
    assert (before.code, before.stopped, task.printed) == (3, False, "ran\n")


def test_output_is_not_written_through_a_link(task: RealTask, tmp_path: Path) -> None:
    """Another job of the same user has put one there: what it leads to may be any file of that user."""
    other = tmp_path / "other"
    other.write_text("mine\n")
    task.shell("echo written")
    task.output.symlink_to(other)
    error = task.run().error
    assert error is not None
    assert error.startswith("output: ")
    assert other.read_text() == "mine\n"


@pytest.mark.parametrize("name", ["task.json.part", "supervisor.log"])
def test_nothing_is_written_through_a_link(task: RealTask, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    other.write_text("mine\n")
    task.folder.mkdir(parents=True, exist_ok=True)
    (task.folder / name).symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"):
        task.shell("echo written").start()
    assert other.read_text() == "mine\n"


# -- stopping -----------------------------------------------------------------------------------------------------


def test_task_stopped_before_it_starts_never_starts(task: RealTask) -> None:
    task.shell("echo ran")
    task.stop()
    ending = task.run()
    assert (ending.code, ending.stopped, ending.error) == (143, True, None)
    assert not task.output.read_bytes()


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.02, 0.03, 0.05])
def test_task_stopped_while_it_starts(task: RealTask, pause: float) -> None:
    task.shell("sleep 60", grace_s=0.5).start()
    with pytest.raises(subprocess.TimeoutExpired):
        task.supervisors[0].wait(pause)
    task.stop()
    ending = task.end()
    assert (ending.code, ending.stopped) == (143, True)
    assert not marked(task.mark)


def test_a_task_that_gets_its_group_while_it_is_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has none when the group is signalled, and is in it when the children are looked at."""
    script = "import os, time; input(); os.setpgid(0, 0); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        killpg = os.killpg

        def first(_group: int, _number: int) -> None:
            monkeypatch.setattr(os, "killpg", killpg)
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"\n")
            child.stdin.flush()
            assert child.stdout.readline() == b"\n"
            raise ProcessLookupError

        monkeypatch.setattr(os, "killpg", first)
        monkeypatch.setattr(supervisor, "_children", lambda: [child.pid])
        one = object.__new__(supervisor._Supervisor)
        one._main, one._status, one._gate = child.pid, None, -1
        try:
            one._signal_all(signal.SIGTERM)
            assert child.wait(PATIENCE_S) == -signal.SIGTERM
        finally:
            child.kill()


#: a line of shell, its grace, and how it ends when it is stopped: its code and signal
STOPPED = {
    "it saves first": ("trap 'echo saved; exit 6' TERM; echo here; while :; do sleep 0.02; done", 20, 6, None),
    "it has stopped itself": ("trap 'exit 6' TERM; echo here; kill -STOP $$; sleep 60", 20, 6, None),
    "it is deaf": (STUBBORN, 0.3, 137, 9),
    "its descendants are deaf": (
        "trap '' TERM; setsid sh -c 'setsid sh -c \"echo deep; sleep 600\" & sleep 600' & sleep 600", 0.1, 137, 9
    ),
    "it has frozen its supervisor": ("kill -STOP $PPID; echo here; exec sleep 600", 20, 143, 15),
}  # fmt: skip


@pytest.mark.parametrize(("script", "grace_s", "code", "by"), STOPPED.values(), ids=STOPPED)
def test_stopped_task_ends(task: RealTask, script: str, grace_s: float, code: int, by: int | None) -> None:
    task.shell(script, grace_s=grace_s).started()
    told = time.time()
    task.stop()
    ending = task.end()
    assert (ending.code, ending.signal, ending.stopped, ending.lost) == (code, by, True, False)
    assert not marked(task.mark)
    if by == signal.SIGKILL:
        assert ending.ended is not None
        assert ending.ended - told >= grace_s - 0.01  # by another clock


def test_another_time_limit_is_kept(task: RealTask) -> None:
    """A longer one that was written before the first one is over, and a shorter one; those of other tasks are not."""
    task.shell("sleep 0.3; echo done", time_limit_s=0.1).limit_time(None)
    ending = task.run()
    assert (ending.code, ending.limit, task.printed) == (0, False, "done\n")


@pytest.mark.parametrize("words", ["", "0.01", "soon {}", "0.01 {}.of-another", "-1 {}", "nan {}"])
def test_what_is_no_time_limit_of_a_task(task: RealTask, words: str) -> None:
    task.shell("sleep 0.2", time_limit_s=3600.0)
    (task.folder / "limit").write_text(words.format(task.mark))
    ending = task.run()
    assert (ending.code, ending.limit) == (0, False)


def test_a_shorter_time_limit_is_kept(task: RealTask) -> None:
    task.shell("echo here; exec sleep 600", time_limit_s=3600.0).started()
    task.limit_time(0.01)
    ending = task.end()
    assert (ending.code, ending.limit, ending.stopped) == (143, True, True)


def test_task_stopped_again_has_the_shorter_grace(task: RealTask) -> None:
    task.shell(STUBBORN, grace_s=3600.0).started()
    task.stop(3600.0)
    task.stop()  # no word of another
    assert task.liveness() is Liveness.ALIVE
    task.stop(0.0)
    ending = task.end()
    assert (ending.signal, ending.stopped) == (9, True)


@pytest.mark.parametrize("word", ["", "soon", "nan", "99999", "\0" * 100])
def test_senseless_word_leaves_the_task_its_own_grace(task: RealTask, word: str) -> None:
    task.shell(STUBBORN, grace_s=0.1).started()
    (task.folder / "stop").write_text(word)
    task.supervisors[0].terminate()
    ending = task.end()
    assert (ending.signal, ending.stopped) == (9, True)


def test_word_for_another_task_stops_nobody(task: RealTask) -> None:
    """Numbers of jobs come again, in another database."""
    task.folder.mkdir()
    (task.folder / "stop").write_text("5.0 15 database/another.1.0")
    task.shell("echo here; exit 3").started()
    assert task.end().code == 3
    assert json.loads((task.folder / "exit").read_text())["task"] == task.mark


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_supervisor_that_is_to_go_stops_its_task(task: RealTask, number: signal.Signals) -> None:
    task.shell("trap 'exit 5' TERM; echo here; while :; do sleep 0.02; done").started()
    task.supervisors[0].send_signal(number)
    ending = task.end()
    assert (ending.code, ending.stopped, ending.lost) == (5, True, False)


def test_signals_wait_once_it_has_the_claim(task: RealTask, monkeypatch: pytest.MonkeyPatch) -> None:
    # told in between, it died of it, and the task was lost
    task.ready("true")
    monkeypatch.chdir(task.folder)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    blocked: set[int] = set()
    monkeypatch.setattr(supervisor, "_claim", lambda _: blocked.update(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    try:
        supervisor.main(str(task.folder))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert blocked >= {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


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


#: leaves somebody behind who does not listen, and says so once the task itself is gone
LEAVES = "trap '' TERM; (while kill -0 $$ 2>/dev/null; do sleep 0.01; done; echo alone; exec sleep 600) & exit 3"


def test_task_outlived_by_leftovers_was_not_stopped(task: RealTask) -> None:
    task.shell(LEAVES, grace_s=1.0).start()
    until(lambda: (task.output.exists() and "alone" in task.printed) or task.supervisors[0].poll() is not None)
    task.stop()
    ending = task.end()
    assert (ending.code, ending.stopped) == (3, False)


@pytest.mark.slow
def test_time_limit_is_not_that_of_leftovers(task: RealTask) -> None:
    ending = task.shell(LEAVES, time_limit_s=1.0).run()
    assert (ending.code, ending.stopped, ending.limit) == (3, False, False)


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


@pytest.mark.parametrize("kills", [False, True], ids=["by somebody", "by its task"])
def test_task_dies_with_its_supervisor(task: RealTask, kills: bool) -> None:
    task.shell("echo $$; kill -9 $PPID; sleep 600" if kills else STUBBORN).started()
    if not kills:
        task.supervisors[0].kill()
    ending = task.end()
    assert task.liveness() is Liveness.LOST
    until(lambda: not lives(int(task.printed)))
    assert (ending.lost, ending.rebooted) == (True, False)
    assert ending.error is not None
    assert "killed" in ending.error
    kill_marked(task.mark)  # what it had started in that moment
    assert not marked(task.mark)


def test_supervisor_killed_after_the_fork(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("command", "cwd", "why"),
    [
        (("no-such-program",), "/", "no-such-program: No such file or directory"),
        (("FOLDER/none",), "/", "none: No such file or directory"),
        (("FOLDER/plain",), "/", "plain: Permission denied"),
        (("FOLDER",), "/", "Permission denied"),
        (("true",), "FOLDER/nowhere", "nowhere: No such file or directory"),
        (("true",), "FOLDER/plain", "plain: Not a directory"),
        (("true", "a\0b"), "/", "null byte"),
        (("true", "x" * 200_000), "/", "Argument list too long"),
        (("true", "\ud800"), "/", "surrogates not allowed"),
        (("",), "/", "argv first element cannot be empty"),
        (("true",), "FOLDER/\udcff\udcfe", "No such file or directory"),
        # its error, as ASCII JSON, was longer than the room for it: the file was cut, and the task was reported lost
        *((("true",), "/" + "/".join([letter * 50] * 9), letter) for letter in ("я", "深", "\x01", "🚀")),
    ],
    ids=range(15),
)
def test_program_that_cannot_be_started_says_why(
    task: RealTask, tmp_path: Path, command: tuple[str, ...], cwd: str, why: str
) -> None:
    (tmp_path / "plain").write_text("no program")
    folder = str(tmp_path)
    ending = task.ready(*(word.replace("FOLDER", folder) for word in command), cwd=cwd.replace("FOLDER", folder)).run()
    assert task.liveness() is Liveness.ENDED
    assert (ending.code, ending.lost) == (127, False)
    assert ending.error is not None
    assert why in ending.error


def test_program_is_looked_for_in_its_path_and_folder(task: RealTask, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\npwd\n")
    program.chmod(0o700)
    assert task.ready("mine", environment={"PATH": f"{tmp_path}:/bin:/usr/bin"}).run().code == 0
    second = RealTask(tmp_path / "second")
    assert second.ready("./mine", cwd=str(tmp_path)).run().code == 0
    assert (task.printed, second.printed) == ("/\n", f"{tmp_path}\n")


def test_no_more_processes_can_be_had(task: RealTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    task.ready("true")
    monkeypatch.chdir(task.folder)
    monkeypatch.setattr(os, "fork", full)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    supervisor._Supervisor(["true"], "/", {}, 1.0, None).run(supervisor._room())
    ending = task.ending()
    assert (ending.code, ending.error) == (127, "true: Resource temporarily unavailable")


# -- what a task is given -----------------------------------------------------------------------------------------


def test_bytes_that_are_no_utf_8_arrive_as_they_are(task: RealTask) -> None:
    script = "import os,sys; sys.stdout.buffer.write(os.environb[b'ODD'] + b' ' + os.fsencode(sys.argv[1]))"
    task.ready(sys.executable, "-c", script, "\udcfe", environment={"ODD": "a\udcff b=\n"}).run()
    assert task.output.read_bytes() == b"a\xff b=\n \xfe"


def test_three_files_are_open_and_nothing_is_read(task: RealTask, tmp_path: Path) -> None:
    with (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        task.shell("ls /proc/$$/fd; readlink /proc/$$/fd/0; cat").run()
    assert task.printed.split() == ["0", "1", "2", "/dev/null"]


def test_no_ignored_or_blocked_signal_is_inherited(task: RealTask) -> None:
    # `nohup hived up &`, say: SIGHUP, and from some shells SIGINT and SIGQUIT, are ignored by all that comes of it
    task.shell("grep -E '^Sig(Blk|Ign)' /proc/self/status; exit 4")
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


def test_task_leads_its_group_and_not_the_session(task: RealTask) -> None:
    """The supervisor leads the session: signals of a terminal do not reach jobs."""
    script = "import os; print(os.getpid() == os.getpgrp(), os.getsid(0) == os.getppid())"
    task.ready(sys.executable, "-c", script).run()
    assert task.printed.split() == ["True", "True"]


def test_supervisor_sees_no_secrets_of_the_engine(task: RealTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVED_TOKEN", "secret")
    pid = task.shell("echo here; exec sleep 600").started().supervisors[0].pid
    own = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert {line.partition(b"=")[0] for line in own if line} <= {b"LC_ALL", b"LD_LIBRARY_PATH"}


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_files_are_unreadable_to_other_users(task: RealTask, mask: int) -> None:
    before = os.umask(mask)
    try:
        task.shell("echo secret").run()
        task.stop()
    finally:
        os.umask(before)
    assert task.folder.stat().st_mode & 0o777 == 0o750
    modes = {path.name: path.stat().st_mode & 0o777 for path in task.folder.iterdir()}
    names = ("claim", "exit", "output", "stop", "supervisor.log", "task.json")
    assert modes == dict.fromkeys(names, 0o600) | {
        "output": 0o640
    }  # the group is that of jobs/, which lets it in or not


# -- how it ended -------------------------------------------------------------------------------------------------


#: a line of shell, and how it ends: its code and signal
ENDED = {
    "code": ("exit 255", 255, None),
    "SIGKILL": ("kill -9 $$", 137, 9),
    "SIGTERM": ("kill -TERM $$", 143, 15),
    "SIGSEGV": ("ulimit -c 0; kill -SEGV $$", 139, 11),
    "SIGPIPE": ("kill -PIPE $$", 141, 13),
    "overruled": ("echo '{\"code\": 0}' > exit; exit 9", 9, None),
}


@pytest.mark.parametrize(("script", "code", "by"), ENDED.values(), ids=ENDED)
def test_exit_code_is_that_of_a_shell(task: RealTask, script: str, code: int, by: int | None) -> None:
    ending = task.shell(script, cwd=str(task.folder), time_limit_s=60.0).run()
    assert (ending.code, ending.signal, ending.stopped, ending.limit, ending.lost) == (code, by, False, False, False)


def test_time_limit_stops_a_task(task: RealTask) -> None:
    ending = task.shell("exec sleep 600", time_limit_s=0.3).run()
    assert (ending.code, ending.stopped, ending.limit) == (143, True, True)


def test_output_is_kept_whole_however_much_it_is(task: RealTask) -> None:
    task.shell("head -c 20000000 /dev/zero; echo error >&2; echo end").run()
    assert task.output.stat().st_size == 20_000_000 + len("error\nend\n")


def with_files_of_at_most(size: int, task: Task) -> int:
    """Run its supervisor where no file can grow beyond ``size``: the nearest to a full disk that needs no root."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    with (task.folder / "supervisor.log").open("ab") as log:
        command = [sys.executable, "-IS", supervisor.__file__, str(task.folder)]
        return subprocess.run(command, preexec_fn=limited, stderr=log, timeout=PATIENCE_S).returncode


def test_task_that_fills_the_disk_is_seen_to_its_end(task: RealTask) -> None:
    task.shell("ulimit -c 0; exec head -c 1000000 /dev/zero")
    assert with_files_of_at_most(supervisor._ROOM, task) == 0
    ending = task.ending()
    assert (ending.code, ending.signal, ending.lost) == (128 + signal.SIGXFSZ, signal.SIGXFSZ, False)


def test_task_does_not_begin_without_room_for_its_end(task: RealTask, tmp_path: Path) -> None:
    task.ready("touch", str(tmp_path / "ran"))
    assert with_files_of_at_most(supervisor._ROOM // 2, task) != 0
    assert task.liveness() is Liveness.UNCLAIMED
    assert not (tmp_path / "ran").exists()
    assert "could not start" in str(task.never_started().error)


@pytest.mark.parametrize("pages", [0, 1])
def test_full_disk_is_told_apart(small_disk: Path, pages: int) -> None:
    """The engine tries again: nothing was started, and nothing is left of the trial. One page is enough for a part."""
    task = RealTask(small_disk / "task")
    task.ready("true")
    with (small_disk / "all").open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        file.truncate(file.tell() - pages * 4096)
    before = sorted(task.folder.iterdir())
    assert task.spawn().wait() == supervisor.NO_SPACE
    made = ("supervisor.log", "output")
    assert [path for path in sorted(task.folder.iterdir()) if path.name not in made] == before
    (small_disk / "all").unlink()
    assert task.spawn().wait() == 0
    assert task.ending().code == 0


def test_restarted_container_is_another_world() -> None:
    started = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    assert supervisor.world().partition(":")[2] == started
