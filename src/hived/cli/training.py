"""``hived train run``, ``suspend``, ``resume``, ``limit``, ``migrate``, ``scale``: training jobs of this machine."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.text import Text

from hived.errors import HivedError, InputError, NotFoundError
from hived.installed import command_for
from hived.server.schema import Training, TrainingProcess

from .client import Engine, NoAnswerError, path_of
from .escaping import clean
from .formats import columns, duration, print_table, read_bytes, size_text
from .options import Asking, asks_engine, duration_option

try:
    from hived_control.commands import TrainingJob
    from hived_control.environment import JOB, LAUNCH, MEMORY, MOVE, PAGER, SHARE
    from hived_control.errors import ConflictError, TrainingError
    from hived_control.folder import JobFolder, is_own, named_after, started_at
except ModuleNotFoundError as error:
    raise InputError(f"{error.name} is not installed: {command_for('train')}") from None

_Given = ParamSpec("_Given")

_PATIENCE_S = 60.0
_LONGEST_NAME = 63  #: of what hived train run has started
_PROCESSES = columns(
    "RANK PID STATE MINI-BATCHES EACH DEVICE HELD USED PEAK LEAST HOST BUSY SHARE LIMIT TIER",
    right="RANK PID MINI-BATCHES EACH HELD USED PEAK LEAST HOST BUSY SHARE LIMIT",
)


def read_share(text: str) -> float:
    """A part of ``40%`` or ``0.4``: more than 0, at most 1.

    >>> read_share("40%"), read_share("1")
    (0.4, 1.0)
    """
    given = text.strip()
    try:
        share = float(given[:-1]) / 100 if given.endswith("%") else float(given)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is no share of a device's time; write 40%, more than 0% and at most 100%")
    return share


def _checked(read: Any) -> Any:
    def parsed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


_Job = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Its name, as hived train run says; else the engine's: id or name."),
]
_Timeout = Annotated[
    float | None,
    duration_option("--timeout", help="Wait so long for a mini-batch to end: 90s, 30m.", show_default="60s"),
]
_Memory = Annotated[
    int | None,
    typer.Option("--memory", metavar="BYTES", parser=_checked(read_bytes), help="Device memory, 6GiB; none: no limit."),
]
_Share = Annotated[
    float | None,
    typer.Option("--share", metavar="PERCENT", parser=_checked(read_share), help="Of the device's time, 30%."),
]


def _training(verb: Callable[_Given, None]) -> Callable[_Given, None]:
    """A verb whose errors have the exit codes of the command line."""

    @wraps(verb)
    def carried_out(*given: _Given.args, **named: _Given.kwargs) -> None:
        try:
            verb(*given, **named)
        except TrainingError as error:
            failure = HivedError(str(error))
            failure.exit_code = error.exit_code
            raise failure from None

    return carried_out


@_training
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Program and arguments, after --.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The job's name.", show_default="the script's")
    ] = None,
    memory_limit: Annotated[
        int | None,
        typer.Option(
            "--memory-limit", metavar="BYTES", parser=_checked(read_bytes), help="Device memory at first, 8GiB."
        ),
    ] = None,
    share: _Share = None,
    pager: Annotated[
        bool,
        typer.Option(
            "--pager", help="Device memory by the pager, which has not met a GPU yet; else by the framework alone."
        ),
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FOLDER", help="Take over the job that is moved here by train migrate --to FOLDER."
        ),
    ] = None,
) -> None:
    """Run a training script of PyTorch, unchanged, so that it can be suspended, limited and moved.

    The command replaces this process: its signals, output and exit code are its own. A program that uses no PyTorch
    runs as it would alone.

    \bExamples:
      hived train run -- python train.py --epochs 90
      hived train run --name bert --memory-limit 8GiB --share 40% -- python train.py
      hived train run -- torchrun --nproc-per-node 3 train.py
      hived train run --from /shared/moves/train
    """
    if source is not None:
        command, name = _moved_here(source, command, name)
    if not command:
        raise InputError("hived train run: no command; give it after --, as in hived train run -- python train.py")
    program = shutil.which(command[0])
    if program is None:
        raise InputError(f"{command[0]}: no such program; it is looked for in PATH, as a shell does")
    job = _claimed(name, command)
    environment = dict(os.environ)
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = str(LAUNCH) + (os.pathsep + before if before else "")
    environment[JOB] = job.name
    if environment.get("PYTHONHASHSEED", "random") == "random":  # a process that takes the job over needs the same
        environment["PYTHONHASHSEED"] = str(secrets.randbelow(1 << 32))
    for variable, value in ((MEMORY, memory_limit), (SHARE, share)):
        if value is not None:
            environment[variable] = str(value)
    environment.pop(MOVE, None)
    if source is not None:
        environment[MOVE] = str(source.absolute())
    if pager:
        environment[PAGER] = "cuda"
    print(f"hived: training job {job.name}", file=sys.stderr, flush=True)
    try:
        os.execve(program, command, environment)
    except OSError as error:
        job.delete_if_dead(besides=os.getpid())
        raise InputError(f"{command[0]}: cannot be run: {error.strerror}") from None


@_training
@asks_engine
def suspend(
    ask: Asking,
    job: _Job,
    timeout: _Timeout = None,
    lease: Annotated[
        float | None, duration_option("--for", help="Resume by itself after so long: 10m.", show_default="never")
    ] = None,
) -> None:
    """Suspend a job at the end of a mini-batch: its device memory is free, and it uses no CPU time.

    A job of the engine keeps its GPUs. Exit code 124: it has not come to the end of a mini-batch in time; it will be
    suspended at the next, unless it is resumed.

    \bExamples:
      hived train suspend train
      hived train suspend train-12 --timeout 5m
    """
    patience = _PATIENCE_S if timeout is None else timeout
    there = _here(job)
    if there is None:
        found = _told(ask, job, "suspend", patience, {"timeout_s": patience, "lease_s": lease or 0.0})
        first = None if found is None else found.processes[0]
        name = job if found is None else found.name
    elif there.suspend(patience, lease or 0.0):
        typer.echo(f"{clean(job)}: suspended (by the driver)")
        return
    else:
        plain = there.status().plain()
        first, name = TrainingProcess.model_validate(plain["processes"][0]), job
        if ask.printed(plain):
            return
    if first is not None:
        moved = f"{size_text(first.last_change_bytes)} moved" if first.last_change_bytes else "no memory moved"
        took = f"{first.tier}; {moved} in {first.last_change_s * 1000:.0f} ms"
        typer.echo(f"{clean(name)}: suspended ({took})" + _because(first.note))


@_training
@asks_engine
def resume(ask: Asking, job: _Job, timeout: _Timeout = None) -> None:
    """Let a suspended job go on where it was.

    \bExamples:
      hived train resume train
      hived train resume train-12 --timeout 5m
    """
    patience, waits = _PATIENCE_S if timeout is None else timeout, False
    there = _here(job)
    if there is None:
        found = _told(ask, job, "resume", patience, {"timeout_s": patience})
        if found is None:
            return
        job, waits = found.name, any(each.state == "suspended" for each in found.processes)
    else:
        there.resume(patience)
        if ask.printed(there.status().plain()):
            return
    typer.echo(f"{clean(job)}: {'goes on at its turn' if waits else 'runs'}")


@_training
@asks_engine
def limit(
    ask: Asking,
    job: _Job,
    memory: _Memory = None,
    share: _Share = None,
    up_to: Annotated[
        int | None,
        typer.Option(
            "--up-to",
            metavar="BYTES",
            parser=_checked(read_bytes),
            help="The memory limit may rise so far by itself, by what had no room.",
            show_default="it stays",
        ),
    ] = None,
    lease: Annotated[
        float | None,
        duration_option("--for", help="After so long those of its start hold again: 10m.", show_default="never"),
    ] = None,
) -> None:
    """Change a job's limits while it runs, from its next mini-batch on.

    \bExamples:
      hived train limit train --memory 6GiB --share 30%
      hived train limit train-12 --memory 6GiB --up-to 8GiB
      hived train limit train --share 10% --for 10m
      hived train limit train --memory none --share 100%
    """
    if up_to is not None and not memory:
        raise InputError("hived train limit: --up-to needs --memory, the limit that it starts from")
    if up_to is not None and memory and up_to < memory:
        raise InputError(f"hived train limit: --up-to {size_text(up_to)} is below --memory {size_text(memory)}")
    if memory is None and share is None:
        raise InputError("hived train limit: nothing to change; give --memory, --share or both")
    there = _here(job)
    if there is None:
        wish = {"memory": memory, "share": share, "memory_most": up_to, "lease_s": lease or 0.0}
        found = _told(ask, job, "limit", 0.0, {name: value for name, value in wish.items() if value is not None})
        if found is None:
            return
        job = found.name
    else:
        there.limit(memory, share, up_to, lease or 0.0)
        if ask.printed(there.status().plain()):
            return
    typer.echo(f"{clean(job)}: limits change at the end of its mini-batch (hived train status {clean(job)})")


@_training
def migrate(
    job: _Job,
    to: Annotated[
        str,
        typer.Option("--to", metavar="DEVICE|FOLDER", help="cuda:1, a GPU's UUID, cpu; or a folder, ./moves/train."),
    ],
    timeout: _Timeout = None,
) -> None:
    """Move a job to another device of this machine; or, by a folder that both see, to another host.

    A new process runs the script to its first mini-batch while the job trains on; then it takes the state over, and the
    job goes on there. For another host: hived train run --from FOLDER there. If it cannot move, it goes on where it is.

    \bExamples:
      hived train migrate train --to cuda:1
      hived train migrate train --to /shared/moves/train --timeout 30m
    """
    there = _there(job)
    there.migrate(str(Path(to).absolute()) if "/" in to else to, _PATIENCE_S * 5 if timeout is None else timeout)
    typer.echo(f"{clean(job)}: moved to {clean(to)}")


@_training
@asks_engine
def scale(
    ask: Asking,
    job: _Job,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Workers that it is to have.")],
    timeout: _Timeout = None,
) -> None:
    """Grow or shrink a job that declares itself elastic (hived_runtime.elastic); its global batch stays the same.

    New workers have --timeout, and a minute at least, to import and build what they need.

    \bExamples:
      hived train scale train --workers 3
      hived train scale train --workers 1 --timeout 2m
    """
    patience = _PATIENCE_S if timeout is None else timeout
    there = _here(job)
    if there is None:
        found = _told(ask, job, "scale", patience, {"workers": workers, "timeout_s": patience})
        if found is None:
            return
        job = found.name
    else:
        there.scale(workers, patience)
        if ask.printed(there.status().plain()):
            return
    typer.echo(f"{clean(job)}: {workers} {'worker' if workers == 1 else 'workers'}")


# -- status -----------------------------------------------------------------------------------------------------------


@_training
@asks_engine
def status(ask: Asking, job: _Job) -> None:
    """Show a training job: its processes, what they were told, and what they answered.

    \bExamples:
      hived train status bert
      hived train status train-12 -o json | jq .processes
    """
    there = _here(job)
    if there is None:
        with _reaching(job, ask) as engine:
            plain = engine.get(path_of("training", job))
            found = engine.parsed(Training, plain)
    else:
        plain = there.status().plain()
        found = Training.model_validate(plain)
    if ask.printed(plain):
        return
    typer.echo(f"{clean(found.name)}: {clean(found.command)}")
    if found.launching:
        typer.echo("no mini-batch has ended yet: it starts, or it does not train with PyTorch's optimizers")
        return
    print_table(_PROCESSES, map(_row, found.processes))
    named = found.processes and all(each.moves_by for each in found.processes)
    typer.echo("it moves: its script names its state" if named else "it does not move: its script names no state")
    for each in found.processes:
        if each.not_now_s:
            typer.echo(
                f"process {each.pid}: not now, since {each.not_now_s:.1f} s: no mini-batch has ended (an evaluation?)"
            )
        for text in filter(None, (each.why, each.note)):
            typer.echo(f"process {each.pid}: {clean(text)}")


def _row(each: TrainingProcess) -> tuple[str | Text, ...]:
    return (
        str(each.rank),
        str(each.pid),
        each.state if each.state == "running" else f"{each.state} {duration(each.state_s) if each.state_s else ''}",
        str(each.mini_batches),
        f"{each.mini_batch_s * 1000:.1f} ms",
        each.device,
        size_text(each.device_bytes),
        size_text(each.used_bytes),
        size_text(each.peak_bytes),
        size_text(each.least_bytes),
        size_text(each.host_bytes),
        f"{each.utilization:.0%}",
        f"{each.share:.0%}",
        size_text(each.memory_limit) if each.memory_limit else "none",
        each.tier,
    )


# -- parts ------------------------------------------------------------------------------------------------------------


def _here(name: str) -> TrainingJob | None:
    """The job of this name that :func:`run` has started on this machine; None: there is none."""
    if len(name) > _LONGEST_NAME:
        return None  # a job of an engine may be called so, with its number
    folder = JobFolder.named(name)
    return TrainingJob(folder) if folder.alive() else None


def _there(name: str) -> TrainingJob:
    return TrainingJob(JobFolder.found(name))


def _told(ask: Asking, job: str, verb: str, patience: float, how: dict[str, object]) -> Training | None:
    """Tell a job of the engine what to do, and how it goes afterwards; None: that is printed for programs already."""
    with _reaching(job, ask) as engine:
        answer = engine.post(path_of("jobs", job, f"/{verb}"), how, patience)
        if ask.printed(answer):
            return None
        return engine.parsed(Training, engine.get(path_of("training", answer["id"])))


@contextmanager
def _reaching(job: str, ask: Asking) -> Iterator[Engine]:
    """The engine that a job may be of. Raises :class:`NotFoundError` where none answers."""
    try:
        with ask.connect() as engine:
            yield engine
    except NoAnswerError as error:
        names = [each.name for each in JobFolder.all()]
        here = f"there are {', '.join(names)}" if names else "none runs under hived train run"
        raise NotFoundError(f"no training job {clean(job)!r} on this machine: {here}; and {error}") from None


def _moved_here(folder: Path, command: list[str] | None, name: str | None) -> tuple[list[str], str]:
    """Command and name of the job that moves through a folder; its working folder becomes this process's."""
    try:
        if not is_own(folder):  # what is in it is run
            raise InputError(f"{folder} can be written by others: it is to be a folder of your own, with mode 0700")
        about = json.loads((folder / "job.json").read_text())
        argv, there, was = [str(word) for word in about["argv"]], str(about["cwd"]), str(about["name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"hived train run --from {folder}: no job moves through it ({error}); "
            f"hived train migrate JOB --to {folder} comes first"
        ) from None
    if not command:
        try:
            os.chdir(there)
        except OSError as error:
            raise InputError(f"{there}, the job's folder, is not here ({error.strerror}); give the command") from None
    return command or argv, name or was


def _because(why: str) -> str:
    return f"; {clean(why)}" if why else ""


def _claimed(name: str | None, command: list[str]) -> JobFolder:
    """The folder of a new job; without a name that of its script, with a number where that runs already."""
    about = {"argv": command, "cwd": str(Path.cwd()), "pid": os.getpid(), "started": started_at(os.getpid())}
    stem = name or named_after(command)
    number = 1
    while True:
        job = JobFolder.named(stem if number == 1 else f"{stem}-{number}")
        try:
            job.claim(about)
        except ConflictError:
            if name is not None:
                raise
            number += 1
        else:
            return job
