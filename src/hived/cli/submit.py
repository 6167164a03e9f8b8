"""``hived submit``: run a command, in the submitter's folder and environment, on GPUs of a virtual cluster."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from hived.engines.local.containers import is_of_a_gate
from hived.engines.submission import indexes_of
from hived.errors import InputError
from hived.server.schema import Job
from hived.words import counted

from .client import Engine, path_of
from .console import note
from .escaping import clean, is_text
from .formats import exit_code, read_duration, status_text
from .logs import Output, follow_job
from .options import (
    Asking,
    GpusOption,
    NodesOption,
    OpportunisticOption,
    PriorityOption,
    VcOption,
    asks_engine,
    complete_job,
    duration_option,
    own_vc,
    resources,
)

#: set by hived for each task; the submitter's values would mislead it
_OURS = frozenset(
    {
        "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE",
        "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    }
)  # fmt: skip
_SHELLS_OWN = frozenset({"_", "SHLVL", "OLDPWD", "PWD"})  #: about the shell, not about the job
_LEAST = ("PATH", "HOME", "LANG")
_LONGEST_VALUE = 131_071  #: bytes, the system's limit for one variable
_FIRST_LINE = 256  #: bytes of a script in which its interpreter is named, by Linux
_DIRECTIVES = 16_384  #: bytes of a script that are looked at
_A_MOMENT_S = 2.0  #: within which a job that fits has started


EnvOption = Annotated[
    list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="A variable more; K alone: as it is here.")
]
CwdOption = Annotated[
    Path | None, typer.Option("--cwd", "-C", metavar="DIR", help="Folder to run in.", show_default="this one")
]


@asks_engine
def submit(
    ask: Asking,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="Program and arguments, after --.")],
    vc: VcOption = None,
    gpus: GpusOption = 1,
    nodes: NodesOption = 1,
    priority: PriorityOption = 0,
    opportunistic: OpportunisticOption = False,
    early: Annotated[
        bool,
        typer.Option(
            "--early",
            help="Start on what others leave idle, if that is before its turn; at its turn it stays there, or moves.",
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The job's name; its id is added.", show_default="the program's"),
    ] = None,
    retries: Annotated[int, typer.Option(metavar="N", help="How often it is started again when it fails.", min=0)] = 0,
    time_limit: Annotated[
        float | None, duration_option(help="Longest run: 90s, 30m, 2h, or 1-12:00:00.", show_default="none")
    ] = None,
    grace: Annotated[
        float | None,
        duration_option(help="Time between SIGTERM and SIGKILL when it is stopped, with its unit.", show_default="30s"),
    ] = None,
    checkpoint_signal: Annotated[
        Literal["USR1", "USR2", "HUP", "INT"] | None,
        typer.Option(
            metavar="SIGNAL",
            help="USR1, USR2, HUP or INT: by it, it saves its state and exits where it is to start elsewhere.",
            show_default="SIGTERM",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            "--after",
            metavar="JOB[:ok|fail]",
            help="Hold it until that job has ended; well with :ok, not well with :fail. Again for more, or 12,13:ok.",
            autocompletion=complete_job,
        ),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(
            "--array",
            metavar="INDEXES",
            help="A job for each index, 1-40 or 1,5,7, in HIVED_ARRAY_INDEX; 1-40%4: at most four at a time.",
        ),
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Hold it until hived release.")] = False,
    limit_signal: Annotated[
        str | None,
        typer.Option(
            "--signal",
            metavar="SIGNAL[@TIME]",
            help="USR1@120s: that signal, so long before --time-limit ends it.",
        ),
    ] = None,
    requeue: Annotated[
        bool, typer.Option("--requeue/--no-requeue", help="Start it again where it is stopped for others.")
    ] = True,
    lazy: Annotated[
        bool, typer.Option("--lazy", help="When its own VC preempts it, it runs on as opportunistic while it can.")
    ] = False,
    share: Annotated[
        bool | None,
        typer.Option(
            "--share/--no-share",
            help="Run under the runtime of training jobs: hived train suspends, limits and shows it.",
            show_default="as its VC's policy shares GPUs",
        ),
    ] = None,
    env: EnvOption = None,
    no_env: Annotated[bool, typer.Option("--no-env", help="Send only PATH, HOME, LANG and what --env says.")] = False,
    cwd: CwdOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print its output until it ends, and exit as it did.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the id alone; with --follow: its output alone.")
    ] = False,
) -> None:
    """Run a command on GPUs of a virtual cluster, now or as soon as it fits.

    This folder and this environment go along, standard input does not. The command is run as it is, through no shell.

    \bExamples:
      hived submit --vc vision --gpus 4 -- python train.py --epochs 90
      hived submit --vc vision --gpus 8 --nodes 2 -p 10 -- ./on-both.sh
      hived submit --vc speech --opportunistic --retries 2 -- ./sweep.sh
      hived submit --vc speech --early -- ./resumes-where-it-was.sh
      hived submit --vc vision --time-limit 2h -f -- nvidia-smi
      hived submit --vc vision --array 1-40%4 -- sh -c 'python train.py --seed $HIVED_ARRAY_INDEX'
      hived submit --vc vision --after 12:ok -- python evaluate.py
      id=$(hived submit -q --vc vision -- python train.py)
    """
    submission = (
        resources(gpus, nodes, priority, opportunistic)
        | {
            "command": command,
            "cwd": folder(cwd),
            "retries": retries,
            "lazy_preemption": lazy,
            "early": early,
            "umask": None if (umask := own_umask()) == _USUAL else umask,
            "name": name,
            "time_limit_s": time_limit,
            "grace_s": grace,
            "checkpoint_signal": checkpoint_signal,
            "array": array,
            "hold": hold,
            "after": [job for text in after or () for job in _after(text)] or None,
        }
        | _signal(limit_signal, time_limit)
    )
    if early and opportunistic:
        raise InputError("--early and --opportunistic: an opportunistic job has no turn; give one of them")
    if array is not None and follow:
        raise InputError("--follow shows one job; leave it out, and wait for all of an array with hived wait ID")
    with ask.connect() as there:
        submission["vc"] = own_vc(there, vc)
        if there.local and not os.path.isdir(str(submission["cwd"])):  # noqa: PTH112  # false where it cannot be looked at
            raise InputError(f"--cwd {submission['cwd']}: no folder of that name; it is where the job would run")
        sent = environment(os.environ, env or [], no_env, str(submission["cwd"]))
        if there.local:
            _check_program(command, str(submission["cwd"]), sent.get("PATH", ""), bool(after or hold))
        submission["environment"] = sent
        # options not given are left out: an older engine would not know them
        said = {what: value for what, value in submission.items() if value is not None and value is not False}
        if share is not None:
            said["share"] = share
        if not requeue:
            said["requeue"] = False
        answer = there.post("/v1/jobs", said)
        job = there.parsed(Job, answer)
        if follow:
            raise typer.Exit(_follow(ask, there, job, answer, quiet))
        if ask.printed(answer):
            return
        if quiet:
            typer.echo(job.id)
            return
        job = _settled(there, job)
        typer.echo(status_text(job))
        if array is not None and job.process is not None and job.process.array is not None:
            many = len(indexes_of(array)[0])
            typer.echo(f"It is the first of {counted(many, 'job')}: {job.id} to {int(job.id) + many - 1}.")
        if job.state.waits:
            note(f"all that stands in its way: hived explain {clean(job.name)}")


def _check_program(command: Sequence[str], cwd: str, path: str, later: bool) -> None:
    """Refuse a script that cannot be run as it is called, and say of directives of Slurm's that nobody reads them.

    ``path``: where the job looks for programs; relative to where it runs. ``later``: it may come to be there until it
    runs.
    """
    name = command[0]
    if len(command) == 1 and name.split()[1:] and not (Path(cwd) / name).exists():
        raise InputError(f"{name!r}: no program of that name; what a shell is to read: -- sh -c {shlex.quote(name)}")
    with suppress(OSError, ValueError):  # the job finds out
        if (Path(cwd) / name).is_file():
            if "/" not in name and path and shutil.which(name, path=_places(cwd, path)) is None:
                raise InputError(f"{name}: no program of that name; the file here is ./{name}")
            if "/" in name and not os.access(Path(cwd) / name, os.X_OK):
                by = "python" if name.endswith(".py") else "bash"
                raise InputError(f"{name}: is not executable; chmod +x it, or run it by its program: -- {by} {name}")
            if "/" in name:
                _check_interpreter(Path(cwd) / name, name, later)
        elif "/" in name and (Path(cwd) / name).is_dir():
            raise InputError(f"{name}: is a folder, and no program")
        elif "/" in name and not later and not os.path.lexists(Path(cwd) / name):
            raise InputError(f"{name}: no program of that name" + ("" if name.startswith("/") else f" in {cwd}"))
        elif "/" not in name and path and not later and shutil.which(name, path=_places(cwd, path)) is None:
            raise InputError(f"{name}: no program of that name in the PATH that goes along")
        for part in command[:2]:  # the script, or what it is run by
            if (Path(cwd) / part).is_file():
                with (Path(cwd) / part).open("rb") as script:
                    lines = script.read(_DIRECTIVES).splitlines()
                if many := sum(line.startswith(b"#SBATCH") for line in lines):
                    what = f"hived does not read its {counted(many, '#SBATCH line')}"
                    note(f"{clean(part)}: {what}; give the options to hived submit (docs/howto/from-slurm.md)")


def _check_interpreter(script: Path, name: str, later: bool) -> None:
    """Refuse a script whose first line names no program here: the system would say that the script is not there."""
    with script.open("rb") as file:
        first = file.read(_FIRST_LINE)
    if first[:4] == b"\x7fELF" or not first:
        return
    if first[:2] != b"#!":
        if b"\0" not in first:
            raise InputError(
                f"{name}: has no first line like #!/bin/bash; add one, or run it by its program: -- bash {name}"
            )
        return
    words = first[2:].partition(b"\n")[0].decode(errors="replace").split()
    if first.partition(b"\n")[0].endswith(b"\r"):
        raise InputError(
            f"{name}: its lines end as on Windows, and its interpreter is not found so: sed -i 's/\\r$//' {name}"
        )
    if words and not later and words[0].startswith("/") and not os.path.lexists(words[0]):
        raise InputError(f"{name}: its first line names {words[0]}, and there is no such program")


#: the umask that a job has where none is sent
_USUAL = 0o022


def own_umask() -> int:
    """Ours, which cannot be asked for without changing it."""
    os.umask(found := os.umask(0o077))
    return found


def _places(cwd: str, path: str) -> str:
    """A PATH as the job reads it, which runs elsewhere."""
    return os.pathsep.join(str(Path(cwd) / part) for part in path.split(os.pathsep))


def folder(given: Path | None) -> str:
    """The folder that a job runs in: the one ``given``, or this one."""
    try:
        found = str((given or Path.cwd()).absolute())
    except OSError as error:
        raise InputError(f"this folder is gone ({error.strerror}); give --cwd") from None
    if not is_text(found):
        raise InputError(f"--cwd: {found!r} is not UTF-8 text, and no job can run there; rename it, or give another")
    return found


def environment(ours: Mapping[str, str], more: Iterable[str], least: bool, cwd: str) -> dict[str, str]:
    """The environment of the job."""
    if least:
        sent = {name: ours[name] for name in _LEAST if name in ours}
    else:
        sent = {name: value for name, value in ours.items() if not _is_ours(name) and name not in _SHELLS_OWN}
        sent["PWD"] = cwd
        if is_of_a_gate(sent.get("DOCKER_HOST", "")):  # of this job, and ends with it
            del sent["DOCKER_HOST"]
            sent |= {"DOCKER_HOST": own} if (own := ours.get("HIVED_DOCKER_HOST")) else {}
    left_out = [name for name, value in sent.items() if not _can_be_sent(name, value)]
    sent = {name: value for name, value in sent.items() if name not in left_out}
    left_out = [name for name in left_out if not name.startswith("BASH_FUNC_")]  # shell functions, left out silently
    if left_out:
        note(f"left out of the environment, not text or too long: {', '.join(map(clean, map(ascii, left_out)))}")
    for given in more:
        name, equals, value = given.partition("=")
        if _is_ours(name):
            raise InputError(f"--env {name}: hived sets this variable itself; leave it out")
        if not equals:
            if name not in ours:
                raise InputError(f"--env {name}: not set here; write --env {name}=VALUE")
            value = ours[name]
        if not _can_be_sent(name, value):
            raise InputError(
                f"--env {name}: no variable that can be sent; write --env NAME=VALUE, the value being text"
            )
        sent[name] = value
    return sent


def _is_ours(name: str) -> bool:
    return name in _OURS or name.startswith("HIVED_")


def _can_be_sent(name: str, value: str) -> bool:
    if not (name.isascii() and name.isidentifier()) or len(name) > 255:
        return False
    return is_text(value) and len(value.encode()) <= _LONGEST_VALUE and "\0" not in value


def _settled(there: Engine, job: Job) -> Job:
    """The job once its placement or reason of waiting is known; most often at once."""
    until = time.monotonic() + _A_MOMENT_S
    while job.state == "queued" and not job.why and time.monotonic() < until:
        time.sleep(0.05)
        job = there.parsed(Job, there.get(path_of("jobs", job.id)))
    return job


def _stdin_has_a_source() -> bool:
    """Whether our standard input is a pipe or a file, so that the user may expect it to be read."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _follow(ask: Asking, there: Engine, job: Job, answer: object, quiet: bool) -> int:
    """Print the job's output until it has ended; its exit code."""

    def say(text: str) -> None:
        if not quiet:
            note(text)

    ask.printed(answer, one_of_many=True)
    if _stdin_has_a_source():
        say("the job does not get this standard input, its own is empty; let it read a file, or: sh -c '... < FILE'")
    try:
        job = _settled(there, job)
        say(status_text(job))
        job = follow_job(there, job, Output(ask), say=say, said="; ".join(job.why))
    except KeyboardInterrupt:
        note(f"\n{clean(job.name)} goes on; to stop it: hived cancel {clean(job.name)}")
        raise
    ask.printed(job.model_dump(mode="json"), one_of_many=True)
    say(status_text(job))
    return exit_code(job)


def _after(text: str) -> list[dict[str, str]]:
    """Jobs that have to end first, ``12,13``, and how."""
    jobs, sign, when = text.rpartition(":")
    if not sign:
        return [{"job": job} for job in text.split(",")]
    if when not in ("ok", "fail", "any"):
        raise InputError(f"--after {text}: a job, and :ok or :fail after it")
    return [{"job": job, "when": when} for job in jobs.split(",")]


def _signal(text: str | None, time_limit: float | None) -> dict[str, object]:
    """A signal before the end of the time limit."""
    if text is None:
        return {}
    name, sign, before = text.partition("@")
    if time_limit is None:
        raise InputError(f"--signal {text}: comes before the time limit; give --time-limit too")
    try:
        seconds = (float(before) if before.isdecimal() else read_duration(before)) if sign else 60.0
    except ValueError as error:
        raise InputError(f"--signal {text}: {error}") from None
    if seconds >= time_limit:
        what = f"--signal {text}: {seconds:g} s before the end is no less than the time limit of {time_limit:g} s"
        raise InputError(f"{what}, so it would come at once")
    return {"limit_signal": name.upper().removeprefix("SIG"), "limit_signal_s": seconds}
