"""``hived shell``: a shell, or another program, on GPUs of a virtual cluster and on this terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Annotated

import typer

from hived.engines.local import terminal
from hived.errors import ConflictError, HivedError, InputError, NotFoundError
from hived.server.schema import Job

from .client import Engine, Retrying, path_of
from .console import note
from .escaping import clean
from .formats import exit_code, status_text
from .options import (
    Asking,
    GpusOption,
    OpportunisticOption,
    PriorityOption,
    VcOption,
    asks_engine,
    duration_option,
    own_vc,
    resources,
)
from .submit import CwdOption, EnvOption, environment, folder, own_umask

#: seconds between two looks at a job that has not started
_LOOKS_S = 0.5
#: after so long it is said why it waits
_PATIENCE_S = 1.0
#: bytes that are read of what is typed, at a time
_TYPED = 4_096
#: for so long a job may take to end after its program has
_ENDS_S = 10.0


@asks_engine
def shell(
    ask: Asking,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]", help="Another program, after --.", show_default="$SHELL")
    ] = None,
    vc: VcOption = None,
    gpus: GpusOption = 1,
    priority: PriorityOption = 0,
    opportunistic: OpportunisticOption = False,
    time_limit: Annotated[
        float | None, duration_option(help="Longest run: 90s, 30m, 2h, or 1-12:00:00.", show_default="none")
    ] = None,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The job's name; its id is added.")] = "shell",
    cwd: CwdOption = None,
    env: EnvOption = None,
) -> None:
    """Open a shell on GPUs, on this terminal, as soon as they are free. It is a job: exit ends it, and gives them back.

    So does a terminal that is closed. Where others need its GPUs, what runs in it is told to end, and has its grace
    (30 s) for that; it does not start again.

    \bExamples:
      hived shell --vc vision --gpus 2
      hived shell --vc vision --time-limit 2h -- ipython
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("hived shell needs a terminal; hived submit --follow runs a program without one")
    program = command or [os.environ.get("SHELL") or "/bin/sh"]
    with ask.connect() as there, _listening() as (listening, path):
        if not there.local:
            raise InputError("hived shell works on the machine of the engine: log in there, and leave --engine out")
        own = folder(cwd)
        submission = resources(gpus, 1, priority, opportunistic) | {
            "vc": own_vc(there, vc),
            "command": [sys.executable, "-I", "-S", terminal.__file__, f"{os.getuid()}:{path}", *program],
            "name": name,
            "cwd": own,
            "environment": environment(os.environ, env or (), False, own),
            "share": False,
            "requeue": False,
            "umask": own_umask(),
        }
        submission |= {} if time_limit is None else {"time_limit_s": time_limit}
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        job = there.parsed(Job, there.post("/v1/jobs", submission))
        over: int | _Over = _Over.GIVEN_UP
        try:
            signal.signal(signal.SIGHUP, _hung_up)
            with _started(there, job, listening) as other:
                over = _shown(other, lambda: there.parsed(Job, there.get(path_of("jobs", job.id))))
        finally:
            job = _let_go(there, job, over)
    if isinstance(over, _Over):
        note(f"hived: {clean(job.name)} was stopped: {clean('; '.join(job.why) or job.state)}")
        over = exit_code(job) or 128 + signal.SIGTERM
    raise typer.Exit(over)


class _Over(Enum):
    """How it ends where its program does not."""

    GIVEN_UP = auto()  #: by who started it, or their terminal is gone
    STOPPED = auto()  #: by the engine: for others, or for its time limit


@contextlib.contextmanager
def _listening() -> Iterator[tuple[socket.socket, str]]:
    """A socket of which nobody else can pass the folder."""
    with tempfile.TemporaryDirectory(prefix="hived-shell-") as made, socket.socket(socket.AF_UNIX) as listening:
        path = str(Path(made) / "s")
        listening.bind(path)
        listening.listen(1)
        yield listening, path


def _hung_up(*_: object) -> None:
    """Its terminal is gone: leave, through what is still to be done."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise typer.Exit(128 + signal.SIGHUP)


def _started(there: Engine, job: Job, listening: socket.socket) -> socket.socket:
    """The connection of the job, once it runs. Raises :class:`ConflictError` where it does not come to that."""
    said, since, retry = "", time.monotonic(), Retrying()
    while True:
        if select.select([listening], [], [], _LOOKS_S)[0]:
            found = listening.accept()[0]
            note(status_text(there.parsed(Job, retry(lambda: there.get(path_of("jobs", job.id))))))
            return found
        now = there.parsed(Job, retry(lambda: there.get(path_of("jobs", job.id))))
        why = "; ".join(now.why)
        if now.state.ended:
            raise ConflictError(f"{clean(now.name)} {clean(now.state)}: {clean(why)}; hived logs {clean(now.id)}")
        if now.state.waits and why and why != said and time.monotonic() - since > _PATIENCE_S:
            said = why
            note(f"{clean(now.name)} waits: {clean(why)}; Ctrl-C gives it up")


def _shown(other: socket.socket, look: Callable[[], Job]) -> int | _Over:
    """Show the other terminal here until its program has ended; its exit code. ``look``: at its job as it is now."""
    here = sys.stdin.fileno()
    before = termios.tcgetattr(here)
    resized, tells = socket.socketpair()
    tells.setblocking(False)

    def resize(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):  # it is told already
            tells.send(b"w")

    handlers = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, resize),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # then nothing can be read here
    }
    messages, typed, is_told = terminal.Messages(), _size(here), False
    try:
        tty.setraw(here)
        while True:
            reads = [other, resized, *([sys.stdin] if len(typed) < terminal.MOST else [])]
            ready, writable, _ = select.select(reads, [other] if typed else [], [])
            if writable:
                try:
                    typed = typed[other.send(typed, socket.MSG_DONTWAIT) :]
                except OSError:  # it has ended: what it has printed and how it ended is still to be read
                    typed = b""
            if resized in ready:
                resized.recv(terminal.MOST)
                typed += _size(here)
            if sys.stdin in ready:
                more = os.read(here, _TYPED)
                if not more:
                    return _Over.GIVEN_UP
                typed += terminal.framed(b"d", more)
            if other in ready:
                data = other.recv(terminal.MOST)
                if not data:
                    return _Over.STOPPED
                for kind, part in messages.of(data):
                    if kind == b"d":
                        _written(part)
                    elif kind == b"t":
                        is_told = True
                        if (left := int(part or b"0")) <= 0:
                            return _Over.STOPPED
                        _written(_warning(look, left))
                    elif kind == b"x":
                        return _Over.STOPPED if is_told else part[0]
    except (OSError, ValueError):
        return _Over.GIVEN_UP
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        resized.close()
        tells.close()
        with contextlib.suppress(termios.error):  # it is gone
            termios.tcsetattr(here, termios.TCSADRAIN, before)


def _warning(look: Callable[[], Job], left: int) -> bytes:
    """What is shown on a terminal that has so many seconds left."""
    why = ""
    with contextlib.suppress(HivedError):
        why = f": {clean('; '.join(reasons))}" if (reasons := look().why) else ""
    return f"\r\nhived: this ends in {left} s{why}\r\n".encode()


def _size(here: int) -> bytes:
    """A message about the size of a terminal."""
    rows, columns, _x, _y = struct.unpack("HHHH", fcntl.ioctl(here, termios.TIOCGWINSZ, bytes(8)))
    return terminal.framed(b"w", struct.pack("HH", rows, columns))


def _written(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _let_go(there: Engine, job: Job, over: int | _Over) -> Job:
    """See that the job goes, which would start again without its terminal; as it was before that.

    One whose program has ended, or that was stopped, may be about to end by itself, and then it says why.
    """
    path, until, retry = path_of("jobs", job.id), time.monotonic() + _ENDS_S, Retrying()
    while True:
        now = there.parsed(Job, retry(lambda: there.get(path)))
        if now.state.ended:
            return now
        if now.state.holds:
            job = now  # once it waits again, that says why it waits
        if over is _Over.GIVEN_UP or not now.state.holds or time.monotonic() > until:
            break
        time.sleep(0.02)
    with contextlib.suppress(ConflictError, NotFoundError):  # it has ended
        retry(lambda: there.post(path_of("jobs", job.id, "/cancel")))
    return job
