"""What rank 0 of an elastic job does besides: reads how many workers are wanted, starts new ones, reaps the others.

A new worker is the same command, with one end of a socket. It says when it is ready (imported, its model built), and
is told then which group it is of. So it costs the others nothing until it can take part, and either end sees at once
when the other is gone. Nothing here waits, except at the job's end.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from hived_control.errors import UnavailableError
from hived_control.folder import JobFolder, unlock
from hived_control.gpus import VISIBLE, visible
from hived_control.page import Command

from ..process import TrainingProcess

JOIN = "HIVED_ELASTIC_JOIN"  #: in the environment of a new worker: the descriptor of its socket
READY_S = 60.0  #: that a new worker may take until it is ready, at least
_GAP_S = 10.0  #: of two looks at it: more does not count, the job may have been suspended
_GRACE_S = 5.0  #: between the signals to a process that is to end
#: of other launchers: a new worker is none of theirs
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR")
_LAUNCHERS_PREFIXES = ("TORCHELASTIC_", "ROLE_", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a new worker is told: the group that it is of."""

    stem: str  #: of the files by which the groups meet
    number: int  #: of the group
    rank: int
    workers: int


class _NewWorker:
    """A process that has been started and is in no group yet."""

    def __init__(self, command: list[str], folder: str, environment: dict[str, str]) -> None:
        self._socket, other = socket.socketpair()
        self._socket.setblocking(False)
        try:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**environment, JOIN: str(other.fileno())},
                stdin=subprocess.DEVNULL,
                pass_fds=(other.fileno(),),
            )
        except OSError:
            self._socket.close()
            raise
        finally:
            other.close()
        self.ready = False
        self._waited_s = 0.0
        self._looked = time.monotonic()

    def failure(self, ready_s: float) -> str:
        """Look whether it is ready: why it will never be, or nothing. ``ready_s``: how long it may take."""
        now = time.monotonic()
        self._waited_s += min(now - self._looked, _GAP_S)
        self._looked = now
        try:
            said = self._socket.recv(16)
        except BlockingIOError:
            if not self.ready and self._waited_s > ready_s:
                return f"a new worker was not ready after {ready_s:g} s"
            return ""
        except OSError:
            said = b""
        if said:
            self.ready = True
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):  # its socket is closed: it ends now
            self.process.wait(0.5)
        return f"a new worker {_end_of(self.process)} before it joined"

    def invite(self, invitation: Invitation) -> None:
        """Tell it which group to join."""
        with contextlib.suppress(OSError):  # it is gone: the group is not made, and the team goes on without it
            self._socket.sendall(json.dumps(asdict(invitation)).encode() + b"\n")
        self._socket.close()

    def dismiss(self) -> None:
        """It is not needed."""
        self._socket.close()
        self.process.terminate()


def invitation() -> Invitation:
    """In a new worker: say that it is ready, and wait for its group. Ends the process if the job needs it no more."""
    with socket.socket(fileno=int(os.environ.pop(JOIN))) as joined:
        joined.set_inheritable(False)
        with contextlib.suppress(OSError):
            joined.sendall(b"ready\n")
            with joined.makefile("rb") as lines:
                if line := lines.readline():
                    return Invitation(**json.loads(line))
    raise SystemExit("hived_runtime: the job has ended, or needs no further worker")


class Recruiter:
    """Rank 0's side of growing and shrinking. ``look`` is asked at every mini-batch: one word is read if all is quiet.

    While a change is under way it keeps the lock of the job's folder, so that no controller suspends a part of the
    workers: one that comes in between waits, one that was first is waited for.
    """

    def __init__(self, running: TrainingProcess, job: JobFolder, most: int, device: torch.device) -> None:
        self._running = running
        self._job = job
        self._most = most  #: workers: the samples of a global batch
        self._device = device
        self._command_line = [sys.executable, *sys.orig_argv[1:]]
        self._folder = str(Path.cwd())
        self._word = b""
        self._wish = Command()
        self._dropped: Command | None = None  #: the wish that could not be carried out
        self._new: list[_NewWorker] = []
        self._joining: dict[int, subprocess.Popen[bytes]] = {}  #: by rank: invited to a group that is being made
        self._workers: dict[int, subprocess.Popen[bytes]] = {}  #: by rank: of the team
        self._left: list[subprocess.Popen[bytes]] = []  #: that have been of the team, until they are reaped
        self._dismissed: list[subprocess.Popen[bytes]] = []  #: that have not, until they are reaped
        self._lock: int | None = None
        self.stem = str(job.path / f"elastic-{os.getpid()}")

    # -- the wish

    def look(self, workers: int) -> int:
        """The number of workers that the team is to change to after this mini-batch; 0: none.

        When it is not 0 the lock is kept, until :meth:`settled`.
        """
        self._left = [each for each in self._left if each.poll() is None]
        self._dismissed = [each for each in self._dismissed if each.poll() is None]
        if self._running.pending():  # a report of ours would be lost when the process takes note of the command
            return 0
        wanted = self._wanted()
        if wanted in (0, workers) or self._is_dropped():
            self._dismiss(0)
            return 0
        if wanted > workers and not self._recruited(wanted, workers):
            return 0
        if not self._locked():
            return 0
        if wanted < workers:
            self._dismiss(0)
        return wanted

    def _wanted(self) -> int:
        bell = self._running.command_word()
        if bell != self._word:
            self._word = bell
            self._wish = self._running.command()
        return self._wish.workers

    def _is_dropped(self) -> bool:
        dropped, wish = self._dropped, self._wish
        if dropped is None or dropped.number == wish.number:
            return dropped is not None
        # the same in all but its number: somebody wishes it again. Else it is a command of another kind
        if (wish.workers, wish.ready_s) != (dropped.workers, dropped.ready_s) or replace(
            wish, number=dropped.number
        ) == dropped:
            self._dropped = None
            return False
        self._dropped = wish
        return True

    def drop(self, workers: int, why: str) -> None:
        """Go on with ``workers``, and report why the wish for others is not carried out, until it is wished again."""
        self._dropped = self._wish
        self._dismiss(0)
        for each in self._joining.values():
            each.kill()
        self._dismissed += self._joining.values()
        self._joining.clear()
        self._running.report_ranks(0, workers, why)

    # -- new workers

    def _recruited(self, wanted: int, workers: int) -> bool:
        """Whether all that are missing are ready. Those that are not there are started, those too many dismissed."""
        if wanted > self._most:
            self.drop(workers, f"{wanted} workers for a global batch of {self._most} samples: at most one for each")
            return False
        self._dismiss(wanted - workers)
        try:
            while len(self._new) < wanted - workers:
                environment = self._environment(workers + len(self._new))
                self._new.append(_NewWorker(self._command_line, self._folder, environment))
        except OSError as error:
            self.drop(workers, f"a new worker cannot be started: {error}")
            return False
        ready_s = max(READY_S, self._wish.ready_s)
        failures = [failure for each in self._new if (failure := each.failure(ready_s))]
        if failures:
            self.drop(workers, failures[0])
        return not failures and all(each.ready for each in self._new)

    def _environment(self, rank: int) -> dict[str, str]:
        """As this process's, and a GPU of its own for as long as there are such."""
        found = {
            name: value
            for name, value in os.environ.items()
            if name not in _LAUNCHERS and not name.startswith(_LAUNCHERS_PREFIXES)
        }
        devices = self._devices()
        if devices:
            found[VISIBLE] = devices[((self._device.index or 0) + rank) % len(devices)]
        return found

    def _devices(self) -> list[str]:
        """The GPUs that this process sees, if it trains on one."""
        if self._device.type != "cuda":
            return []
        numbers = [str(number) for number in range(torch.cuda.device_count())]
        return (visible(os.environ) or numbers)[: len(numbers)]

    def invite(self, number: int, workers: int, target: int) -> None:
        """Tell the new workers to join the ``number``-th group."""
        for rank, each in enumerate(self._new, workers):
            each.invite(Invitation(self.stem, number, rank, target))
            self._joining[rank] = each.process
        self._new.clear()

    def _dismiss(self, besides: int) -> None:
        for each in self._new[besides:]:
            each.dismiss()
            self._dismissed.append(each.process)
        del self._new[besides:]

    # -- the lock

    def _locked(self) -> bool:
        """Keep controllers out; ``False`` if one is commanding, or has, and this process has not yet obeyed."""
        try:
            self._lock = self._job.lock(timeout_s=0.0)
        except (OSError, UnavailableError):
            return False
        if self._running.pending():
            self._unlock()
            return False
        return True

    def _unlock(self) -> None:
        if self._lock is not None:
            unlock(self._lock)
            self._lock = None

    def settled(self, workers: int) -> None:
        """The team has ``workers`` now, or again: let controllers in, when the pages of all workers say so.

        Limits that were set while the job trains are told to new workers too.
        """
        new = {each.pid for each in self._joining.values()}
        self._workers |= self._joining
        self._joining.clear()
        self._left += [self._workers.pop(rank) for rank in list(self._workers) if rank >= workers]
        wish = self._wish
        limits = {name: getattr(wish, name) for name in ("memory_limit", "memory_most", "share", "limits_until")}
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            pages = self._job.pages()
            settled = [page.answer().ranks for page in pages] == [workers] * workers
            for page in pages:
                if settled and page.pid in new:
                    page.write_command(replace(page.command(), **limits))
                    self._job.ring(page.pid)
                page.close()
            if settled:
                break
            time.sleep(0.001)
        self._unlock()

    # -- the end

    def lost(self) -> str:
        """Which worker of the team has ended, if one has."""
        return next(
            (f"worker {each.pid} {_end_of(each)}" for each in self._workers.values() if each.poll() is not None), ""
        )

    def end(self, orderly: bool) -> None:
        """Wait for all workers; those that have not joined, and all if the script has failed, are ended."""
        self._dismiss(0)
        self._unlock()
        joined = [*self._workers.values(), *self._left]
        _end(self._dismissed if orderly else [*self._dismissed, *self._joining.values(), *joined])
        for each in joined:
            each.wait()


def _end_of(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    return "has ended" if code is None else f"ended with exit code {code}" if code >= 0 else f"died of signal {-code}"


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Give processes a while to end by themselves (their group is gone), then end them."""
    deadline = time.monotonic() + _GRACE_S
    for each in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            each.wait(max(deadline - time.monotonic(), 0.0))
    for each in processes:
        each.terminate()
    deadline = time.monotonic() + _GRACE_S
    for each in processes:
        try:
            each.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()
