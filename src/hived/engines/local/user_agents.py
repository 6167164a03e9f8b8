"""Commands to training jobs of other users than the engine's: by a process for each user, which becomes that user.

Nothing that a user can put into their folder reaches the engine: it starts :mod:`hived_control.serving` as them, asks
it over pipes, and takes an answer that is late, too long or none for a job that does not answer. So one user's folder
is no reason for another user's jobs to wait.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import subprocess
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hived_control import serving
from hived_control.commands import JobStatus
from hived_control.errors import UnavailableError

#: how long an answer is waited for, beside what was asked for takes by itself, in seconds
_ANSWER_S = 5.0
#: how long it may wait for the lock of a job's folder
_LOCK_S = 10.0
#: between two starts of the process of one user, at least, in seconds
_AGAIN_S = 1.0
#: requests of one user that wait at a time: those of others have room too
_MOST_REQUESTS = 8
#: bytes of an answer
_MOST_BYTES = 1 << 20


class UserAgents:
    """The processes, by user. May be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agents: dict[int, UserAgent] = {}

    def of(self, uid: int) -> UserAgent:
        """That of a user; it is started with the first request."""
        with self._lock:
            return self._agents.setdefault(uid, UserAgent(uid))

    def keep(self, users: set[int]) -> None:
        """End those of all users but these."""
        with self._lock:
            over = [self._agents.pop(uid) for uid in self._agents.keys() - users]
        for agent in over:
            agent.end()


class UserAgent:
    """The process that commands the training jobs of one user. May be called from any thread.

    Raises errors of :mod:`hived_control.errors`: :class:`~hived_control.errors.UnavailableError` where the process does
    not answer, whatever the reason.
    """

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._is_over = False
        self._waiting: dict[int, tuple[subprocess.Popen[bytes], Future[dict[str, Any]]]] = {}

    def ask(self, do: str, folder: Path, most_s: float = 0.0, **how: Any) -> Any:
        """Have something done at the folder of a job; ``most_s``: that this takes by itself."""
        answer: Future[dict[str, Any]] = Future()
        user = self._user()  # by the directory of users, which may take long, and so before the lock
        with self._lock:
            if len(self._waiting) >= _MOST_REQUESTS:
                raise UnavailableError(f"{_MOST_REQUESTS} training jobs of user {self._uid} are being told something")
            process = self._running(*user)
            number = next(self._numbers)
            self._waiting[number] = process, answer
            request = json.dumps({"id": number, "do": do, "folder": str(folder), "how": how})
            try:
                assert process.stdin is not None
                os.write(process.stdin.fileno(), request.encode() + b"\n")  # whole or not at all: it is short
            except OSError:  # full, of one that was stopped, or nobody reads it
                process.kill()
        try:
            return serving.found_in(answer.result(most_s + _ANSWER_S))
        except TimeoutError:
            process.kill()  # its user may have stopped it, or a request waits for a pipe in a folder
            raise self._silent() from None
        except (KeyError, TypeError, ValueError):
            raise self._silent() from None
        finally:
            self._waiting.pop(number, None)

    def end(self) -> None:
        """End the process, for good."""
        self._is_over = True  # without the lock, which is held while a process is started: who ends it may not wait
        process = self._process
        if process is not None:
            process.kill()

    def _user(self) -> tuple[int, list[int]]:
        """The groups of the user."""
        try:
            user = pwd.getpwuid(self._uid)
            return user.pw_gid, os.getgrouplist(user.pw_name, user.pw_gid)
        except (KeyError, OSError) as error:
            raise UnavailableError(f"nothing can be told to jobs of user {self._uid}: {error}") from None

    def _running(self, gid: int, groups: list[int]) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        now = time.monotonic()
        if self._is_over or now - self._started < _AGAIN_S:
            raise self._silent()
        self._started = now
        try:
            process = subprocess.Popen(
                serving.command(self._uid, gid, groups),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise UnavailableError(f"nothing can be told to jobs of user {self._uid}: {error}") from None
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._process = process
        if self._is_over:  # meanwhile
            process.kill()
        threading.Thread(target=self._hear, args=(process,), name=f"agent of {self._uid}", daemon=True).start()
        return process

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        """Take its answers, until it ends or says what is none."""
        assert process.stdout is not None
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            while (line := process.stdout.readline(_MOST_BYTES)).endswith(b"\n"):
                said = json.loads(line)
                _, answer = self._waiting.get(said["id"], (process, None))
                if answer is not None and not answer.done():
                    answer.set_result(said)
        process.kill()
        process.wait()
        with self._lock:
            if self._process is process:
                self._process = None
            for asked, answer in tuple(self._waiting.values()):
                if asked is process and not answer.done():
                    answer.set_result({"error": "UnavailableError", "text": str(self._silent())})
            process.stdin.close()
            process.stdout.close()

    def _silent(self) -> UnavailableError:
        return UnavailableError(f"the process that commands training jobs of user {self._uid} does not answer")


class JobOfUser:
    """Commands one job, as :class:`hived_control.commands.TrainingJob`."""

    def __init__(self, agent: UserAgent, folder: Path) -> None:
        self._agent, self._folder = agent, folder

    def status(self) -> JobStatus:
        """The state of all its processes."""
        found = self._agent.ask("status", self._folder)
        try:
            return serving.status_of(found)
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"its control pages cannot be read: {error}") from None

    def suspend(self, timeout_s: float) -> None:
        """Suspend all processes, at one mini-batch."""
        self._agent.ask("suspend", self._folder, timeout_s + _LOCK_S, timeout_s=timeout_s)

    def resume(self, timeout_s: float) -> None:
        """Let all processes go on."""
        self._agent.ask("resume", self._folder, timeout_s + _LOCK_S, timeout_s=timeout_s)

    def limit(self, memory_limit: int | None, share: float | None, memory_most: int | None, lease_s: float) -> None:
        """Change limits, from the next mini-batch on."""
        how = {"memory_limit": memory_limit, "share": share, "memory_most": memory_most, "lease_s": lease_s}
        self._agent.ask("limit", self._folder, _LOCK_S, **how)

    def scale(self, workers: int, timeout_s: float) -> None:
        """Grow or shrink an elastic job to so many workers."""
        self._agent.ask("scale", self._folder, timeout_s + _LOCK_S, workers=workers, timeout_s=timeout_s)
