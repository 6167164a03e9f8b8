"""Runs one task and writes how it ended, whatever happens to the engine. Executed as a script: ``FOLDER``.

A small process per task, in a session of its own, so that the engine can be killed or upgraded, and no task notices. It
needs nothing but the standard library and a few files of FOLDER:

    task.json   what to run, written by the engine before
    claim       the task is running, or has run: a link that can be made only once, to a file that stays locked (flock)
                while this process lives, and holds its pid, the world it is of and the task's mark. On the disk before
                the task starts
    stop        written by the engine before it signals: a task that has not started yet will not start. It holds a
                grace, which may be shorter, the signal that comes first and the task's mark
    limit       another time limit since the start of the task, in seconds, and its mark: replaced by the engine
    exit        how the task ended, and its mark. Its space on the disk is allocated before the claim, so a full disk
                cannot lose it
    output      what the task prints
    containers  the task's mark, where containers of it may be left, which the engine ends
    adopted     the task's mark, and pid and start of the processes that it has left to us, as daemons are: they may be
                in no group of ours, without its mark, and whoever finds us killed ends them

Two supervisors for one FOLDER cannot both run it: ``link`` succeeds for one of them. So the engine may start another
whenever it is in doubt. SIGTERM stops the task: SIGTERM to its process group, SIGKILL to all processes left after the
grace; a signal to save its state, or before its time limit, goes to those that handle it. Descendants that leave the
group are found too: they become children of this process (PR_SET_CHILD_SUBREAPER), which ends last. If this process is
killed itself, the kernel kills the task (PR_SET_PDEATHSIG).

A task of another user becomes that user in its own process; this one stays the engine's. So a malicious task harms its
user alone; where it runs as the engine's user, nothing contains it: it could as well kill the engine.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
# no other imports: each would slow down the start of every task

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
_ROOM = 4096  #: bytes allocated on the disk for ``exit``: six for every byte of the error, and the other fields
_ERROR = 512  #: bytes of an error message, at most
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FILES = 1024  #: that a task of another user may open, until it raises that itself
NO_SPACE = 75  #: exit code where the disk has no room for the claim, and nothing was started
#: grace of the processes that a task leaves behind, in seconds
_LEFTOVERS_S = 2.0
#: how long Docker's program is waited for: at the start of a task, and for its containers to end, in seconds
_GATE_OPENS_S, _GATE_ENDS_S = 2.0, 5.0
_DEEPEST = 100  #: generations of processes among which one is looked for that handles a signal
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish")
_WATCHED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def world() -> str:
    """Identity of this boot of the machine, and of the container, if it is one: processes do not outlive it."""
    # not pathlib, here and below: its import would slow down the start of every task
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}:{_started(1)}"


def _room() -> int:
    """Allocate the file ``exit`` under a draft name; ``OSError`` where the disk is full."""
    draft = f".exit.{os.getpid()}"
    room = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    left = _ROOM
    try:
        while left:  # an almost full disk takes a part first, and fails then
            left -= os.write(room, b" " * left)
        os.fsync(room)
    except OSError:
        os.unlink(draft)
        raise
    return room


def _make_output() -> None:
    """Make the file of the output, while a full disk only means to try again; the task finds what else is wrong."""
    try:
        os.close(os.open("output", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600))
    except OSError as error:
        if error.errno in _FULL:
            raise


def _claim(mark: str) -> int | None:
    """The locked claim, or ``None`` if another supervisor has it."""
    draft = f".claim.{os.getpid()}"
    lock = os.open(draft, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, f"{os.getpid()} {world()} {mark}\n".encode(errors="replace"))
        os.fsync(lock)
        os.link(draft, "claim")
        _sync_folder()  # after a power cut the task must not look as if never started
    except FileExistsError:
        return None
    finally:
        os.unlink(draft)
    return lock


def _sync_folder() -> None:
    folder = os.open(".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _Supervisor:
    def __init__(
        self,
        command: list[str],
        cwd: str,
        environment: dict[str, str],
        grace_s: float,
        time_limit_s: float | None,
        run_as: dict[str, Any] | None = None,
        warning: list[float] | None = None,
        fence: str | None = None,
        is_kept_in: bool = False,
        most_output: int = 0,
        umask: int | None = None,
        limit_file: str = "limit",
        docker: dict[str, Any] | None = None,
    ) -> None:
        self._docker = docker
        self._adopted: list[int] = []  #: as written last
        self._is_gated = False  #: whether the task uses Docker through a program of its own
        self._gate = -1  #: pid of what stands between the task and Docker, while it runs
        self._gate_input = -1  #: once it is closed, that ends, and the containers of the task before it
        self._umask = umask
        self._limit_file = limit_file
        self._most_output, self._output = most_output, -1
        self._reader, self._problem = -1, b""
        self._fence, self._is_kept_in = fence, is_kept_in
        self._warning = warning
        self._run_as = run_as
        self._command, self._cwd, self._environment = command, cwd, environment
        self._mark = environment.get("HIVED_TASK", "")  # environment.MARK
        self._grace, self._limit = grace_s, time_limit_s
        self._libc = ctypes.CDLL(None)
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._main = -1
        #: status of the task's main process, once it has ended
        self._status: int | None = None
        self._stopped = False  #: whether it was stopped while it ran
        self._limited = False  #: whether that was for its time limit
        self._stopped_at = 0.0
        self._told_to_save: list[int] = []  #: processes (pidfds) that have been told by a signal to save their state
        self._saves = False  #: whether it has been told to save its state, and not to end
        self._kill_at: float | None = None

    def run(self, room: int) -> None:
        """Start the task, watch it to its end, and write how it ended."""
        started = time.time()
        error = None
        code, by_signal = 128 + signal.SIGTERM, None
        if self._told() is not None:
            self._stopped = True
        else:
            if self._docker is not None:
                self._open_gate(self._docker)
            error = self._start()
            if error is None:
                self._watch()
                error = self._problem.decode(errors="replace") or None
            if self._docker is not None:
                self._end_containers(self._docker)
            if self._fence is not None:
                killed = self._status is not None and os.WIFSIGNALED(self._status)
                if error is None and killed and os.WTERMSIG(self._status or 0) == signal.SIGKILL and not self._stopped:
                    error = _out_of_memory(self._fence)
                _end_group(self._fence)
            code, by_signal = _shell_code(self._status)
        ending = {
            "code": code,
            "signal": by_signal,
            "stopped": self._stopped,
            "limit": self._limited,
            "error": error,
            "task": self._mark,
            "started": started,
            "ended": time.time(),
        }
        os.pwrite(room, json.dumps(ending)[: _ROOM - 1].ljust(_ROOM - 1).encode() + b"\n", 0)
        os.fsync(room)
        os.rename(f".exit.{os.getpid()}", "exit")
        _sync_folder()

    def _open_gate(self, docker: dict[str, Any]) -> None:
        """Have the task use Docker through a program of its own (see ``docker_gate``), where it may use it at all."""
        try:
            reader, writer = os.pipe()
        except OSError:
            return
        try:
            if self._start_gate(docker, writer):
                os.close(writer)
                writer = -1
                if select.select([reader], [], [], _GATE_OPENS_S)[0]:
                    address = os.read(reader, 4096).decode(errors="surrogateescape").strip()
                    if address:
                        own = self._environment.get("DOCKER_HOST", "")
                        self._environment["HIVED_DOCKER_HOST"] = own  # of what is submitted in it
                        self._environment["DOCKER_HOST"], self._is_gated = address, True
                else:
                    print(f"docker_gate did not open within {_GATE_OPENS_S:g} s", file=sys.stderr)
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)

    def _start_gate(self, docker: dict[str, Any], output: int = -1) -> bool:
        """Start the program, which says its address; without ``output`` it is to end the containers alone."""
        task = {**docker["task"], "run_as": self._run_as} | ({} if output >= 0 else {"socket": ""})
        reader = writer = -1
        try:
            reader, writer = os.pipe()
            self._gate = os.fork()
        except OSError:
            if reader >= 0:
                os.close(reader)
                os.close(writer)
            return False
        if self._gate == 0:
            try:
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(reader, 0)
                os.dup2(output if output >= 0 else nothing, 1)
                os.dup2(nothing, 2)
                os.chdir("/")
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                os.execve(sys.executable, [sys.executable, "-I", "-S", docker["program"]], {"LC_ALL": "C.UTF-8"})
            finally:
                os._exit(127)
        os.close(reader)
        self._gate_input = writer
        try:
            os.write(writer, json.dumps(task).encode() + b"\n")  # a pipe has more room than that
        except OSError:  # it has ended already
            return False
        return True

    def _end_containers(self, docker: dict[str, Any]) -> None:
        """Have what the task has started through Docker ended; what does not within seconds is left to the engine."""
        self._reap()
        if self._gate < 0 and not self._is_gated:
            return
        last = time.monotonic() + _GATE_ENDS_S
        status: int | None = signal.SIGKILL  # as one that the task has ended
        if self._gate >= 0:
            status = self._wait_for_gate(last)
        if status is not None and os.WIFSIGNALED(status) and self._start_gate(docker):
            status = self._wait_for_gate(last)
        if status == 0:
            return
        try:
            with open("containers", "w", encoding="ascii", opener=_open_own) as file:
                file.write(self._mark)
        except OSError:  # who may use its GPUs is seen there
            return

    def _leftovers_s(self) -> float:
        """Grace of what the task has left behind, in seconds: not beyond that of the task, if it was stopped."""
        left = min(self._grace, _LEFTOVERS_S)
        return left if self._kill_at is None else max(0.0, min(left, self._kill_at - time.monotonic()))

    def _wait_for_gate(self, last: float) -> int | None:
        """How the program has ended, as ``waitpid`` has it, after its input has; ``None``: not yet, and it goes on."""
        try:
            os.write(self._gate_input, str(self._leftovers_s()).encode())
            os.close(self._gate_input)
        except OSError:  # it has ended
            os.close(self._gate_input)
        gate, self._gate = self._gate, -1
        while time.monotonic() < last:
            pid, status = os.waitpid(gate, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.005)
        return None

    def _start(self) -> str | None:
        """Fork; what becomes of the program is heard later. Returns the error message, or ``None``."""
        own = os.getpid()
        reader, writer = os.pipe()
        try:
            self._main = os.fork()
        except OSError as error:
            return f"{self._command[0]}: {error.strerror}"
        if self._main == 0:
            try:
                self._become_the_task(own, writer)
            finally:
                os._exit(127)
        os.close(writer)
        os.set_blocking(reader, False)
        self._reader = reader
        return None

    def _hear(self) -> None:
        """Hear of the task whether it has become its program: it may be kept from that, and is stopped then too."""
        try:
            while self._reader >= 0:
                if part := os.read(self._reader, 4096):
                    self._problem += part
                    continue
                os.close(self._reader)
                self._reader = -1
                if self._most_output and not self._problem:
                    self._hold_output(f"/proc/{self._main}/fd/1", 0)
        except BlockingIOError:
            return

    def _hold_output(self, name: str, how: int = os.O_NOFOLLOW) -> None:
        """Open the file that the task prints into: by what it has open, since its user may have put a link there.

        One that has ended already has nothing open: then by its name, in whose place may be another file of its user.
        The task may have put anything else there by now, which it need not be allowed to open: a file is opened for
        writing only if it is its user's own.
        """
        own = os.geteuid() if self._run_as is None else self._run_as["uid"]
        try:
            there = os.open(name, os.O_PATH | how)
        except OSError:  # it has ended, or closed it
            return
        try:
            status = os.fstat(there)
            if stat.S_ISREG(status.st_mode) and status.st_uid == own:
                self._output = os.open(f"/proc/self/fd/{there}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        finally:
            os.close(there)

    def _cut_output(self) -> None:
        """Give back the space of what the task has printed first, where it is more than it may be.

        It goes on at the same place: the file has a hole at its beginning, and offsets stay what they are.
        """
        if self._output < 0:
            return
        status = os.fstat(self._output)
        beyond = status.st_blocks * 512 - self._most_output
        if beyond > 0:
            end = max(0, status.st_size - self._most_output // 2)  # not again at once
            end -= end % (status.st_blksize or 1)  # what is cut of a block would be read as zeros
            self._libc.fallocate(self._output, _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(end))

    def _become_the_task(self, supervisor: int, writer: int) -> None:
        try:
            os.setpgid(0, 0)
            if self._fence is not None:
                _enter(self._fence, self._is_kept_in)
            if self._run_as is not None:
                _become(**self._run_as)  # before the next line, of which a change of the user is the end
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:  # killed before the prctl: the task would have no supervisor
                return
            nothing = os.open(os.devnull, os.O_RDONLY)
            # another job of the same user may have put a link there
            name = "output" if self._run_as is None else self._run_as["output"]
            output = _open_output(name)
            if self._run_as is None or self._run_as.get("mode", 0o700) & 0o040:
                os.fchmod(output, 0o640)  # for the group that may enter the folder, if there is one
            os.dup2(nothing, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if self._umask is not None:
                os.umask(self._umask)
            os.chdir(self._cwd)
            # ignored signals stay ignored over an exec: those of Python (SIGPIPE), or of the engine's parent (nohup)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execvpe(self._command[0], self._command, self._environment)
        except OSError as error:
            own = ["output"] if self._run_as is None else [*self._run_as["folders"], self._run_as["output"]]
            known = (self._cwd, *own, f"{self._fence}/cgroup.procs")
            where = error.filename if error.filename in known else self._command[0]
            _complain(writer, f"{where}: {error.strerror}")
        except Exception as error:  # arguments that exec cannot pass on
            _complain(writer, f"{error}")

    def _watch(self) -> None:
        """Return once the task and all processes that it has started have ended."""
        started = time.monotonic()
        limit_at = None if self._limit is None else started + self._limit
        warn_at = None if limit_at is None or self._warning is None else limit_at - self._warning[1]
        while True:
            alive = self._reap()
            if not alive:
                self._hear()
                if self._most_output and self._output < 0 and not self._problem:
                    self._hold_output("output" if self._run_as is None else self._run_as["output"])
                self._cut_output()
                return
            now = time.monotonic()
            self._hear()
            self._note_adopted()
            self._cut_output()
            if (other := self._other_limit()) != self._limit:
                self._limit = other
                limit_at = None if other is None else started + other
                warn_at = None if limit_at is None or self._warning is None else limit_at - self._warning[1]
            if self._saves and self._status is None and self._have_saved():  # the others know nothing of it yet
                self._saves = False
                self._signal_all(signal.SIGTERM)
            if self._status is not None and (self._kill_at is None or self._saves):  # stop what it leaves behind
                if not self._saves or os.WIFEXITED(self._status):  # else others of it may save their state
                    soon = now + min(self._grace, _LEFTOVERS_S)
                    self._kill_at = soon if self._kill_at is None else min(self._kill_at, soon)
                self._saves = False
                self._signal_all(signal.SIGTERM)
            if warn_at is not None and now >= warn_at:
                warn_at = None
                if self._status is None and not self._stopped and self._warning is not None:
                    self._tell(int(self._warning[0]))
            if limit_at is not None and now >= limit_at and self._status is None and not self._stopped:
                self._limited = True
                self._stop(now)
            if self._kill_at is not None and now >= self._kill_at:
                self._kill_all()
                self._kill_at = now + 0.05  # once more: a process may have been between fork and setpgid
            waits = [at - now for at in (warn_at, limit_at, self._kill_at) if at is not None and at > now]
            if self._most_output and self._reader >= 0:
                waits.append(0.01)  # what it prints is found while it runs, which may not be long
            # check once a second at least: a debugger or a freezer may have swallowed the signal
            info = signal.sigtimedwait(_WATCHED, max(0.0, min([*waits, 1.0])))
            if info is None or info.si_signo == signal.SIGCHLD:
                continue
            if self._stopped and self._kill_at is not None:  # signalled again: the grace may be shorter now
                if self._saves and self._first_signal() == signal.SIGTERM:
                    self._saves = False
                    self._signal_all(signal.SIGTERM)
                self._kill_at = min(self._kill_at, self._stopped_at + self._grace_left())
            elif not self._stopped:
                self._reap()  # the task may have ended by itself just before
                if self._status is None:
                    self._stop(time.monotonic())

    def _stop(self, now: float) -> None:
        self._stopped = True
        number = self._first_signal()
        self._saves = number != signal.SIGTERM and self._status is None and self._tell(number)
        if not self._saves:
            self._signal_all(signal.SIGTERM)
        self._signal_all(signal.SIGCONT)  # a process stopped by SIGSTOP has its grace too
        self._stopped_at = now
        self._kill_at = now + self._grace_left()

    def _tell(self, number: int) -> bool:
        """Send a signal to the program, or where that has no handler for it (a script around it), to those below.

        What a process that handles it has started is not told: it may not know the signal, or know it only because it
        is a copy of the one that is. Returns whether anybody is: who has no handler would be ended by it.
        """
        try:
            return self._tell_those_below(number)
        except Exception:  # what is read is of the user's processes: none of them ends their supervisor
            return False

    def _tell_those_below(self, number: int) -> bool:
        own = os.geteuid() if self._run_as is None else self._run_as["uid"]
        told = False
        for pid in _handlers(self._main, number, own):
            try:
                process = os.pidfd_open(pid)
            except OSError:  # ended in between
                continue
            try:
                if _Process(pid).handles(number, own):  # it is still the one that was found, or as good as that
                    signal.pidfd_send_signal(process, number)
                    self._told_to_save.append(os.dup(process))
                    told = True
            except OSError:
                continue
            finally:
                os.close(process)
        return told

    def _have_saved(self) -> bool:
        """Whether all have ended that were told to save their state."""
        for process in tuple(self._told_to_save):
            if select.select([process], [], [], 0)[0]:
                self._told_to_save.remove(process)
                os.close(process)
        return not self._told_to_save

    def _note_adopted(self) -> None:
        """Write which processes the task has left to us, where they are others than before."""
        now = [pid for pid in _children() if pid not in (self._main, self._gate)]
        if now == self._adopted:
            return
        lines = [f"{pid} {started}\n" for pid in now if (started := _started(pid))]
        try:
            with open(".adopted", "w", encoding="ascii", opener=_open_own) as file:
                file.write(f"{self._mark}\n" + "".join(lines))
            os.rename(".adopted", "adopted")
        except OSError:  # on a full disk those of before are known
            return
        self._adopted = now

    def _other_limit(self) -> float | None:
        """The time limit that the engine has written since the start of the task, if it has; ``None``: there is none.

        One that is for another task, by the mark in it, and one that cannot be read change nothing.
        """
        try:
            file = os.open(self._limit_file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return self._limit
        try:
            seconds, mark = os.read(file, 512).decode().split()
            limit = float(seconds)
        except (OSError, ValueError):
            return self._limit
        finally:
            os.close(file)
        if not self._mark.startswith(mark) or not limit > 0:
            return self._limit
        return limit if limit < float("inf") else None

    def _grace_left(self) -> float:
        """The task's own grace, or the one that the engine has written to ``stop``, if that is shorter."""
        told = self._told()
        return self._grace if told is None else told[0]

    def _first_signal(self) -> int:
        told = self._told()
        return int(signal.SIGTERM) if told is None else told[1]

    def _told(self) -> tuple[float, int] | None:
        """What the engine has written to ``stop``: the grace, and the signal that comes first; ``None``: nothing.

        Nothing that is for another task, either, by the mark in it.
        """
        try:
            stop = os.open("stop", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError:  # something else has that name: it is to stop
            return self._grace, signal.SIGTERM
        try:
            words = os.read(stop, 512).split()
            if len(words) > 2 and not self._mark.startswith(words[2].decode(errors="replace")):
                return None
            grace = min(self._grace, float(words[0])) if words else self._grace
            return grace, int(words[1]) if len(words) > 1 else signal.SIGTERM
        except (OSError, ValueError):
            return self._grace, signal.SIGTERM
        finally:
            os.close(stop)

    def _reap(self) -> bool:
        """Reap ended children. Returns whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return self._gate < 0 or any(child != self._gate for child in _children())
            if pid == self._main:
                self._status = status
            elif pid == self._gate:
                self._gate = -1
                os.close(self._gate_input)

    def _kill_all(self) -> None:
        """SIGKILL to all that the task has started."""
        if self._fence is not None:
            try:
                with open(f"{self._fence}/cgroup.kill", "w", encoding="ascii") as kill:
                    kill.write("1")  # at once: no process can fork faster
            except OSError:
                pass  # the signals below find most of them
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        """Signal the task's process group while it surely exists, and the groups of our children outside it.

        Children that have not been waited for keep their pid, so no other process can be hit. A descendant further
        down becomes our child when its parent has ended, and is signalled the next time. Whole groups are signalled,
        since a process that keeps forking cannot escape a signal to its group.
        """
        done = {os.getpgrp()}
        # it has no group of its own yet, perhaps, and joins it before the look below
        if self._status is None and _signal_group(self._main, number):
            done.add(self._main)
        for pid in _children():
            if pid == self._gate:
                continue
            try:
                group = os.getpgid(pid)
                if group == os.getpgrp():
                    os.kill(pid, number)
                elif group not in done:
                    done.add(group)
                    _signal_group(group, number)
            except (ProcessLookupError, PermissionError):
                continue  # ended in between, or of another user by now: the next round shows


def _become(uid: int, gid: int, groups: list[int], folders: list[str], output: str, mode: int = 0o700) -> None:
    """Become another user for good, with the limits and the umask of a login; make what is theirs, as they."""
    # where they are needed alone, since they slow down the start; the second, which exec uses, while it can be read
    import resource
    import warnings  # noqa: F401

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))  # the engine has raised its own
    _leave_keyring()
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise OSError(errno.EPERM, "it cannot become its user")
    os.umask(0o022)
    for folder in folders:
        try:
            os.mkdir(folder, mode)
        except FileExistsError:
            continue


def _open_output(name: str) -> int:
    """Open what a task prints into; another attempt of it may have put a pipe there, which would wait for a reader."""
    output = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(output).st_mode):
        raise OSError(errno.EEXIST, "no file", name)
    os.set_blocking(output, True)
    return output


def _leave_keyring() -> None:
    """Have a session keyring of one's own: who inherits that of the engine may use its keys."""
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, None)  # keyctl(KEYCTL_JOIN_SESSION_KEYRING, anonymous)


def _enter(fence: str, has_to: bool) -> None:
    """Have this process, and all that it will start, in a control group; without one, if that is gone.

    ``has_to``: raise the :class:`OSError` then.
    """
    try:
        with open(f"{fence}/cgroup.procs", "w", encoding="ascii") as group:
            group.write("0")
    except OSError:
        if has_to:
            raise


def _out_of_memory(fence: str) -> str | None:
    """What is said of a task that was killed because its control group had no more memory."""
    try:
        with open(f"{fence}/memory.events", encoding="ascii") as file:
            kills = dict(line.split() for line in file).get("oom_kill", "0")
        with open(f"{fence}/memory.max", encoding="ascii") as file:
            most = file.read().strip()
    except OSError:  # memory is not divided
        return None
    if kills == "0":
        return None
    share = "the machine had" if most == "max" else f"its share, {int(most) / (1 << 30):,.2f} GiB"
    return f"needed more memory than {share}"


def _end_group(fence: str) -> None:
    """Kill what is left in the control group of the task, and remove it: the engine does it again, if this fails."""
    try:
        with open(f"{fence}/cgroup.kill", "w", encoding="ascii") as kill:
            kill.write("1")
        os.rmdir(fence)
    except OSError:
        return


def _signal_group(group: int, number: int) -> bool:
    """Signal a group; whether there is one that may be."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False  # as above
    return True


def _complain(writer: int, text: str) -> None:
    os.write(writer, text.encode(errors="replace")[:_ERROR])


def _children(of: int | None = None) -> list[int]:
    """Pids of a process's children; of ours, including orphaned descendants of the task."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{of}/task") if of is not None else [str(os.getpid())]:
            with open(f"/proc/{of or 'self'}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:  # it has ended
        pass
    return found


def _started(pid: int) -> str:
    """When a process was started, in ticks since the boot; "": there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def _open_own(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


class _Process:
    """What the kernel says of a process. ``OSError`` if there is none."""

    def __init__(self, pid: int) -> None:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            self._known = dict(line.split(":", 1) for line in file if ":" in line)

    def handles(self, number: int, uid: int) -> bool:
        """Whether it is the user's, and a signal does not end it: it has a handler, or waits for the signal."""
        waits = int(self._known["SigCgt"], 16) | int(self._known["SigBlk"], 16)
        return int(self._known["Uid"].split()[1]) == uid and bool(waits >> (number - 1) & 1)

    @property
    def is_shell(self) -> bool:
        return self._known["Name"].strip() in _SHELLS


def _handlers(pid: int, number: int, uid: int, depth: int = 0) -> list[int]:
    """The uppermost processes, of one and all below it, that handle a signal. O(processes)."""
    if depth > _DEEPEST:
        return []
    try:
        process = _Process(pid)
    except OSError:
        return []
    handles = process.handles(number, uid)
    # a shell handles SIGINT while it waits for a program, to do then as that does
    if handles and not (number == signal.SIGINT and process.is_shell):
        return [pid]
    below = [found for child in _children(pid) for found in _handlers(child, number, uid, depth + 1)]
    return below or ([pid] if handles else [])


def _shell_code(status: int | None) -> tuple[int, int | None]:
    """Exit code as in a shell, and the signal that ended the process."""
    if status is None:
        return 127, None
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def main(folder: str) -> None:
    """Run the task of ``folder``, unless another supervisor runs it or has run it."""
    os.chdir(folder)
    with open("task.json", encoding="utf-8") as file:
        task = json.load(file)
    try:
        room = _room()
        if task.get("run_as") is None:
            _make_output()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # before the claim: from then on the engine may signal us
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, the status of the task would be lost
        lock = _claim(task["environment"].get("HIVED_TASK", ""))  # environment.MARK
    except OSError as error:
        if error.errno not in _FULL or os.path.exists("claim"):
            raise
        if os.path.exists(f".exit.{os.getpid()}"):
            os.unlink(f".exit.{os.getpid()}")
        sys.exit(NO_SPACE)
    if lock is None:
        os.unlink(f".exit.{os.getpid()}")
        return
    _Supervisor(**task).run(room)
    os.close(lock)  # after everything else: an engine that finds it unlocked reads how the task ended


if __name__ == "__main__":
    main(sys.argv[1])
