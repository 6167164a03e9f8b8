"""Commands to a training job, and its state, from another process of the machine.

A job of several ranks is suspended at one mini-batch that all agree on, or its collectives would hang. The controller
says "after mini-batch n", n ahead of everybody, and looks again: every rank reports a mini-batch before it reads its
command, so a rank that was below n after the command was written will see it. If one was not, n is raised, for all.
Those that have come to an n that is raised go on. When all wait at n, the controller decides that they go (see
:mod:`.deciding`); of a move a second time, when all have handed their state over. A rank that has waited too long
decides that they do not. So all do, or none does, whoever dies between.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from .checkpoint import Checkpoints
from .deciding import decide
from .errors import ConflictError, NotFoundError, UnavailableError
from .folder import JobFolder, started_at, unlock
from .page import Abilities, Answer, Command, Page, Progress, Sample, State, Wanted

_AHEAD = 2  #: mini-batches between the foremost rank and the one agreed on
_TRIES = 5  #: of a move of several ranks: at some mini-batches the script is at another place
_LOOK_S = 0.002  #: between two looks at the pages
_WISHES = ("wanted", "at", "target", "workers")  #: a limit may change while another controller waits for one of these
#: what ends a suspension, or calls a move off
_GO_ON: dict[str, Any] = {"wanted": Wanted.RUN, "at": 0, "port": 0, "target": "", "suspended_until": 0.0}


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What is known of one process of a job."""

    pid: int
    progress: Progress
    answer: Answer
    sample: Sample
    command: Command
    abilities: Abilities
    now: float  #: when it was read, by ``time.monotonic``

    @property
    def not_now_s(self) -> float:
        """For how long a command has met no boundary: the script is in a phase without steps. 0: none waits."""
        waits = self.command.number != self.answer.noted and self.answer.state is State.RUNNING
        late = self.now - self.progress.at
        return late if waits and late > 2 * self.progress.seconds + 0.1 else 0.0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What is known of a job."""

    name: str
    command: str  #: by which it was started
    launching: bool  #: no process has ended a mini-batch yet
    processes: tuple[ProcessStatus, ...]  #: by rank

    def plain(self) -> dict[str, Any]:
        """It as plain data, for programs."""
        return {
            "name": self.name,
            "command": self.command,
            "launching": self.launching,
            "processes": [
                {
                    "rank": each.answer.rank,
                    "pid": each.pid,
                    "state": each.answer.state.name.lower(),
                    "state_s": round(max(each.now - each.answer.since, 0.0), 3) if each.answer.since else 0.0,
                    "tier": each.answer.tier,
                    "why": each.answer.why,
                    "note": each.answer.note,
                    "not_now_s": round(each.not_now_s, 3),
                    "device": each.answer.device,
                    "moves_by": "state" if each.abilities.named else None,
                    "mini_batches": each.progress.iterations,
                    "mini_batch_s": each.progress.seconds,
                    "device_bytes": each.sample.device_bytes,
                    "used_bytes": each.sample.used_bytes,
                    "peak_bytes": each.sample.peak_bytes,
                    "least_bytes": each.sample.least_bytes,
                    "host_bytes": each.sample.host_bytes,
                    "utilization": round(each.sample.utilization, 4),
                    "sample_age_s": round(max(each.now - each.sample.at, 0.0), 3) if each.sample.at else None,
                    "memory_limit": each.answer.memory_limit or None,
                    "share": each.answer.share,
                    "last_change_s": each.answer.seconds,
                    "last_change_bytes": each.answer.moved_bytes,
                }
                for each in self.processes
            ],
        }


class NotYetError(UnavailableError):
    """A command has not been carried out in the time given. It stays in force."""

    exit_code = 124
    code = "not_yet"


class RefusedError(ConflictError):
    """A job cannot move, grow or shrink, and goes on as it is."""


class TrainingJob:
    """Commands one job. Each call maps the pages anew: processes come and go."""

    def __init__(self, folder: JobFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock

    def status(self) -> JobStatus:
        """The state of all its processes."""
        pages = self._folder.pages()
        now = self._clock()
        found = [
            ProcessStatus(
                page.pid, page.progress(), page.answer(), page.sample(), page.command(), page.abilities(), now
            )
            for page in pages
        ]
        for page in pages:
            page.close()
        about = self._folder.about()
        return JobStatus(
            self._folder.name,
            " ".join(map(str, about.get("argv", ()))),
            not found and not self._folder.has_trained(),
            tuple(sorted(found, key=lambda each: (each.answer.rank, each.pid))),
        )

    def limit(
        self,
        memory_limit: int | None = None,
        share: float | None = None,
        memory_most: int | None = None,
        lease_s: float = 0.0,
    ) -> None:
        """Change limits, from the next mini-batch on. ``None``: as it is; a memory limit of 0: none.

        ``memory_most``: how far the memory limit may rise by itself; with a new limit and without this it may not.
        ``lease_s``: the limits that the job was started with are in force again after so long, unless this is renewed;
        0: these hold until they are changed.
        """
        changes: dict[str, Any] = {"limits_until": self._end_of(lease_s)}
        if share is not None:
            changes["share"] = share
        if memory_limit is not None:
            changes |= {"memory_limit": memory_limit, "memory_most": memory_most or 0}
        with self._dialogue(0.0) as dialogue:
            dialogue.say(**changes)

    def scale(self, workers: int, timeout_s: float) -> None:
        """Grow or shrink an elastic job to so many workers.

        :class:`RefusedError` with the reason if it cannot; :class:`NotYetError` after ``timeout_s``, for which new
        workers may take until they are ready, if it is more than they have else.
        """
        with self._dialogue(timeout_s) as dialogue:
            if not any(page.answer().elastic for page in dialogue.pages):
                raise RefusedError(f"job {self._folder.name} is not elastic: see hived_runtime.elastic")
            said = {page.pid: number for page, number in dialogue.say(workers=workers, ready_s=timeout_s).items()}
            while True:
                found = self.status().processes
                if len(found) == workers and all(each.answer.ranks == workers for each in found):
                    return
                if not found:
                    raise NotFoundError(f"the training job {self._folder.name} has ended")
                for each in found:
                    if each.answer.why and each.answer.noted >= said.get(each.pid, each.answer.noted + 1):
                        raise RefusedError(
                            f"job {self._folder.name} does not grow or shrink, and goes on: {each.answer.why}"
                        )
                dialogue.look_for_others()
                if dialogue.is_over():
                    why = next((each.answer.why for each in found if each.answer.why), "its new workers are not ready")
                    raise NotYetError(
                        f"job {self._folder.name} has {len(found)} of {workers} workers after {timeout_s:g} s: {why}"
                    )
                dialogue.pause()

    def suspend(self, timeout_s: float, lease_s: float = 0.0) -> bool:
        """Suspend all processes, at one mini-batch; with a lease, until that is over if nobody renews it.

        Renewed by another call. :class:`NotYetError` when they are not suspended after ``timeout_s``; the command stays
        in force, except that ranks that do not come to one mini-batch go on. ``True``: a job without a mini-batch is
        suspended by NVIDIA's driver, which has no lease.
        """
        if pid := self._without_pages():
            if lease_s:
                raise ConflictError(
                    f"job {self._folder.name} has ended no mini-batch: only NVIDIA's driver suspends it, without --for"
                )
            with self._folder.locked():
                Checkpoints().suspend(pid)
            return True
        wish = {"wanted": Wanted.SUSPEND, "suspended_until": self._end_of(lease_s)}
        with self._dialogue(timeout_s) as dialogue:
            if all(page.answer().state is State.SUSPENDED for page in dialogue.pages):
                dialogue.say(**wish)
                dialogue.wake()  # to look at its lease, and stop again
            elif dialogue.ranks == 1:
                dialogue.say(**wish, at=0)
            else:
                dialogue.agree(wish)
            dialogue.until(State.SUSPENDED)
        return False

    def resume(self, timeout_s: float) -> None:
        """Let all processes go on. :class:`NotYetError` when one is still suspended after ``timeout_s``."""
        if pid := self._without_pages():
            with self._folder.locked():
                Checkpoints().resume(pid)
            return
        with self._dialogue(timeout_s) as dialogue:
            dialogue.say(**_GO_ON)
            while stopped := dialogue.suspended():
                dialogue.wake()
                if dialogue.is_over():
                    raise dialogue.late("resumed", stopped[0])
                dialogue.pause()

    def migrate(self, target: str, timeout_s: float) -> None:
        """Move all processes to another device, or through a folder to another host.

        By the state that the script names; of one that names none, on GPUs of this host, by NVIDIA's driver.
        :class:`ConflictError` if they cannot: the job goes on where it is.
        """
        if pid := self._without_pages() or (0 if "/" in target else self._unnamed_on_gpus()):
            with self._folder.locked():
                about = self._folder.about()
                Checkpoints().move(pid, target, about.get("gpu", ""))
                self._folder.write_about({**about, "gpu": target})
            return
        wish = {"wanted": Wanted.MOVE, "target": target}
        with self._dialogue(timeout_s) as dialogue:
            if any(page.answer().state is State.SUSPENDED for page in dialogue.pages):
                name = self._folder.name
                raise ConflictError(f"job {name} is suspended: hived train resume {name} first")
            tries = _TRIES if dialogue.ranks > 1 else 1
            for left in reversed(range(tries)):
                try:
                    if dialogue.ranks == 1:
                        dialogue.say(**wish, at=0)
                        dialogue.until(State.MOVED)
                    else:
                        self._move_together(dialogue, wish)
                except RefusedError:
                    dialogue.say(**_GO_ON)
                    if not left or dialogue.is_over():
                        raise
                except (NotYetError, KeyboardInterrupt):
                    dialogue.say(**_GO_ON)
                    raise
                else:
                    return

    def _move_together(self, dialogue: _Dialogue, wish: dict[str, Any]) -> None:
        """Several ranks: a destination for each, warm; then at one mini-batch all hand over; then all go on there."""
        dialogue.say(**wish, at=-1, port=_free_port())
        dialogue.until(State.READY)
        at = dialogue.agree(wish)
        dialogue.until(State.HANDED)
        dialogue.decide("move", at)
        dialogue.until(State.MOVED)

    def _without_pages(self) -> int:
        """The process of a job that has ended no mini-batch; 0: it has, or it has none."""
        pages = self._folder.pages()
        for page in pages:
            page.close()
        first = self._folder.about().get("pid")
        waits = not pages and not self._folder.has_trained() and self._folder.alive()
        return first if waits and isinstance(first, int) else 0

    def _unnamed_on_gpus(self) -> int:
        """The first process of a job on GPUs that has named no state; 0: it is another."""
        found = self.status().processes
        on_gpus = found and all(
            each.answer.device.startswith("cuda")
            and each.answer.state is State.RUNNING  # a process that stands still does not answer the driver
            and not each.abilities.named
            for each in found
        )
        first = self._folder.about().get("pid")
        return first if on_gpus and isinstance(first, int) else 0

    def _dialogue(self, timeout_s: float) -> _Dialogue:
        return _Dialogue(self._folder, self._clock, timeout_s)

    def _end_of(self, lease_s: float) -> float:
        return self._clock() + lease_s if lease_s else 0.0


class _Dialogue:
    """Commands to all processes of a job, and their answers, for as long as somebody waits for these.

    The lock of the job is held from the beginning to the first wait, and while a command is written, never while this
    waits: so a job can be resumed while another command waits for its mini-batch. That one notices, and gives up.
    """

    def __init__(self, folder: JobFolder, clock: Callable[[], float], timeout_s: float) -> None:
        self._folder = folder
        self._clock = clock
        self._timeout_s = timeout_s
        self._end = clock() + timeout_s
        self._lock: int | None = None
        self._said: dict[str, Any] = {}  #: what this has said, of what one controller at a time can want
        self._numbers: dict[Page, int] = {}  #: of the commands
        self.pages: list[Page] = []

    def __enter__(self) -> Self:
        try:
            self._lock = self._folder.lock()
        except FileNotFoundError:
            raise NotFoundError(f"the training job {self._folder.name} has ended") from None
        self.pages = self._folder.pages()
        if not self.pages:
            self._unlock()
            if self._folder.has_trained():
                raise NotFoundError(f"the training job {self._folder.name} has ended, or is about to")
            raise ConflictError(
                f"job {self._folder.name} has not ended its first mini-batch: there is nothing to command yet"
            )
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._unlock()
        for page in self.pages:
            page.close()
        if kind is FileNotFoundError:  # its folder has gone, at whatever step
            raise NotFoundError(f"the training job {self._folder.name} has ended") from None

    @property
    def ranks(self) -> int:
        """How many the job has, on all hosts."""
        return max(page.answer().ranks for page in self.pages)

    def say(self, **changes: Any) -> dict[Page, int]:
        """Change the commands of all, and wake them where they wait. The numbers of the new commands."""
        if self._lock is None:
            self._lock = self._folder.lock()
        self.look_for_others()
        written = {page: page.write_command(replace(page.command(), **changes)) for page in self.pages}
        self._numbers = {page: command.number for page, command in written.items()}
        self._said |= {name: value for name, value in changes.items() if name in _WISHES}
        self._ring()
        return self._numbers

    def wake(self) -> None:
        """Continue processes that are stopped. Their command is written before: they read it when they wake."""
        for page in self.suspended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(page.pid, signal.SIGCONT)
        self._ring()

    def suspended(self) -> list[Page]:
        """Those that are suspended now."""
        return [page for page in self.pages if page.answer().state is State.SUSPENDED and _lives(page)]

    def pause(self) -> None:
        """Let others command the job for a moment."""
        self._unlock()
        time.sleep(_LOOK_S)

    def is_over(self) -> bool:
        """Whether it has taken longer than somebody wants to wait."""
        return self._clock() > self._end

    def look_for_others(self) -> None:
        """:class:`ConflictError` if another controller has given another command meanwhile."""
        commands = [page.command() for page in self.pages]
        if any(getattr(each, name) != value for each in commands for name, value in self._said.items()):
            raise ConflictError(f"job {self._folder.name} has been given another command meanwhile")

    def agree(self, wish: dict[str, Any]) -> int:
        """Bring all ranks to one mini-batch, and decide to do it there: which one."""
        if self.ranks > len(self.pages):
            raise ConflictError(
                f"job {self._folder.name} has {self.ranks} ranks, of which {len(self.pages)} train on this machine: "
                "only ranks of one machine can agree on a mini-batch"
            )
        self._folder.forget_decisions(before=min(page.progress().iterations for page in self.pages))
        at = -1
        while True:
            reached = [page.progress().iterations for page in self.pages]
            if at < 0 or max(reached) > at:  # one was there before it was told: a later one, for all
                at = max(reached) + _AHEAD
                self.say(**wish, at=at)
            elif min(reached) == at and all(page.answer().state is State.WAITING for page in self.pages):
                self.decide("go", at)
                return at
            try:
                self._look(State.WAITING)
            except (NotYetError, KeyboardInterrupt):
                self.say(**_GO_ON)
                raise

    def decide(self, kind: str, at: int) -> None:
        """Decide for all ranks; :class:`RefusedError` if one has waited too long, and decided otherwise."""
        if not decide(self._folder.decision(kind, at), True):
            raise RefusedError(f"job {self._folder.name} goes on: its ranks have not come to one mini-batch in time")
        self._ring()

    def until(self, state: State) -> None:
        """Wait until all are in a state, with the last commands noted."""
        while any(page.answer().state is not state or page.answer().noted < self._numbers[page] for page in self.pages):
            self._look(state)

    def late(self, what: str, page: Page) -> NotYetError:
        """The error that says why a process is not so far."""
        progress, answer = page.progress(), page.answer()
        since = self._clock() - progress.at
        reason = answer.why or (
            f"not now, since {since:.1f} s: no mini-batch has ended (an evaluation?)"
            if since > 2 * progress.seconds
            else "its mini-batches are long"
        )
        after = f"after {self._timeout_s:g} s"
        return NotYetError(f"job {self._folder.name} is not {what} {after}: process {page.pid}: {reason}")

    # -- parts

    def _look(self, state: State) -> None:
        """Between two looks: raise if one has ended or refuses, another commands, or patience is over."""
        if not all(map(_lives, self.pages)):
            raise NotFoundError(f"the training job {self._folder.name} has ended, or one of its processes has")
        self.look_for_others()
        for page in self.pages:
            command, answer = page.command(), page.answer()
            noted = answer.noted >= self._numbers[page]
            if command.wanted is Wanted.MOVE and noted and answer.state is State.RUNNING and answer.why:
                raise RefusedError(f"job {self._folder.name} does not move, and goes on: {answer.why}")
        if self.is_over():
            raise self.late(
                state.name.lower(),
                next((page for page in self.pages if page.answer().state is not state), self.pages[0]),
            )
        self.pause()

    def _ring(self) -> None:
        for page in self.pages:
            self._folder.ring(page.pid)

    def _unlock(self) -> None:
        if self._lock is not None:
            unlock(self._lock)
            self._lock = None


def _lives(page: Page) -> bool:
    return started_at(page.pid) == page.started


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
