"""Shared options of the verbs: the engine's address, the job, the number of GPUs, the format; and shell completion.

Completions come from the engine: jobs, virtual clusters, nodes. Without an engine there are none, and no error.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hived.engine.states import JobState, Phase
from hived.errors import HivedError, InputError
from hived.server.schema import Me

from . import slurm
from .client import RESTART_S, Engine, connect
from .escaping import clean
from .formats import Form, print_answer, read_length
from .shared_options import with_options

_PATIENCE_S = 1.0
_USES = ("member", "admin")  #: roles in a virtual cluster of one's own
_MOST = "100"


def _completes(
    ask: Callable[[Engine, typer.Context, str], Iterator[tuple[str, str]]],
) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """A completion function: the names that ``ask`` finds, with descriptions, that begin with the incomplete word."""

    def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        given = context.params
        with (
            contextlib.suppress(HivedError, OSError, LookupError, TypeError, AttributeError),
            connect(
                given.get("engine"),
                given.get("state"),
                given.get("token_file"),
                _PATIENCE_S,
                context=given.get("context"),
            ) as engine,
        ):
            for name, words in ask(engine, context, incomplete):
                if name.startswith(incomplete) and name.isprintable() and " " not in name:
                    found.append((name, words if words.isprintable() else ""))
        return found

    return complete


@_completes
def complete_job(engine: Engine, context: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """Names of jobs that have not ended, or their ids after a first digit."""
    active = Phase.HOLDING, Phase.WAITING
    for phases in (active,) if context.info_name in ("cancel", "wait") else (active, (Phase.ENDED,)):
        for job in engine.get("/v1/jobs", phase=phases, limit=_MOST)["jobs"]:
            yield (job["id"] if incomplete.isdigit() else job["name"], f"{job['state']}, {job['vc']}")


@_completes
def complete_vc(engine: Engine, *_: object) -> Iterator[tuple[str, str]]:
    """Names of the virtual clusters."""
    return ((vc["name"], f"{vc['reserved']} GPUs") for vc in engine.get("/v1/vcs"))


@_completes
def complete_node(engine: Engine, *_: object) -> Iterator[tuple[str, str]]:
    """Names of the nodes."""
    return ((node["name"], node["why"]) for node in engine.get("/v1/nodes")["nodes"])


def seconds(text: str) -> float:
    """A duration on the command line."""
    try:
        return read_length(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def state_option(what: str, states: Sequence[str], *names: str, show_default: str) -> Any:
    """An option that takes one of ``states``; its verb refuses other values."""
    help_ = f"{what}: {', '.join(states)}."
    return typer.Option(
        *names, "-s", metavar="STATE", help=help_, show_default=show_default, autocompletion=lambda: list(states)
    )


#: a duration, parsed to seconds
duration_option = functools.partial(typer.Option, metavar="DURATION", parser=seconds)
vc_option = functools.partial(typer.Option, "--vc", metavar="VC", autocompletion=complete_vc)
_job = functools.partial(typer.Argument, autocompletion=complete_job)

VcOption = Annotated[
    str | None,
    vc_option(help="The virtual cluster (tenant); or set HIVED_VC.", show_default="the one that you are a member of"),
]
OfVcOption = Annotated[str | None, vc_option(help="Of one virtual cluster.", show_default="all")]
OfUserOption = Annotated[
    str | None, typer.Option("--user", "-u", metavar="USER", help="Of one user.", show_default="all")
]
NumberOption = Annotated[int, typer.Option("-n", "--number", metavar="N", help="At most so many; 0: all.", min=0)]
_JOBS = (
    "(12; 12_3: index 3 of array 12), {0} (train-12), or the {0} you gave (train: the latest of them{3}); on "
    "Kubernetes {1}, or {2}, NAMESPACE/NAME."
)
_ONE, _SOME = ("name", "a group", "a pod", ""), ("names", "groups", "pods", ", or all of the array")
JobArgument = Annotated[str, _job(metavar="JOB", help="Id " + _JOBS.format(*_ONE))]
JobsArgument = Annotated[list[str], _job(metavar="JOB", help="Ids " + _JOBS.format(*_SOME))]
SomeJobsArgument = Annotated[list[str] | None, _job(metavar="[JOB]...", help="Ids " + _JOBS.format(*_SOME))]
WholeArrayOption = Annotated[bool, typer.Option("--array", help="With all of their arrays that have not ended.")]
GpusOption = Annotated[int, typer.Option("--gpus", "-g", metavar="N", help="GPUs of each task.", min=1)]
NodesOption = Annotated[
    int,
    typer.Option("--nodes", "-N", metavar="N", help="Tasks of the gang, of --gpus each; all start, or none.", min=1),
]
PriorityOption = Annotated[
    int,
    typer.Option(
        "--priority", "-p", metavar="N", help="Higher goes first, and may preempt lower in its VC.", min=0, max=1000
    ),
]
OpportunisticOption = Annotated[
    bool, typer.Option("--opportunistic", help="Use what others leave idle, and go when they want it back.")
]


def resources(gpus: int, nodes: int, priority: int, opportunistic: bool) -> dict[str, object]:
    """The resources of a submission, beside its virtual cluster."""
    if opportunistic and priority:
        raise InputError("--opportunistic and --priority: an opportunistic job has no priority; give one of them")
    return {"gpus": gpus, "tasks": nodes, "priority": -1 if opportunistic else priority}


_option = functools.partial(typer.Option, rich_help_panel="Where the engine is")
_FORM = Annotated[Form, typer.Option("-o", "--output", help="For people, or for programs as the engine says it.")]
_STATE = Annotated[
    Path | None,
    _option(
        "--state",
        metavar="DIR",
        readable=False,  # a user with access to the socket need not be able to list the folder
        help="The engine's folder; or set HIVED_STATE. Its socket is the engine's address.",
        show_default="~/.local/state/hived",
    ),
]
_ENGINE = Annotated[
    str | None,
    _option("--engine", metavar="URL", help="An engine that listens elsewhere, http://host:port; or set HIVED_ENGINE."),
]
_CONTEXT = Annotated[
    str | None,
    _option("--context", metavar="NAME", help="An engine by its name in hived context ls; or set HIVED_CONTEXT."),
]
_TOKEN = Annotated[
    Path | None, _option("--token-file", metavar="FILE", help="Holds the token for --engine; or set HIVED_TOKEN.")
]


@dataclass(frozen=True, slots=True)
class Asking:
    """The values of the options that all verbs for an engine share."""

    form: Form
    engine: str | None
    token_file: Path | None
    state: Path | None
    context: str | None
    by_status: bool = False  #: whether the verb has --status

    def connect(self) -> AbstractContextManager[Engine]:
        """The engine."""
        given = str(self.state)
        is_ours = self.by_status and given.lower() in list(JobState)
        if (is_ours or slurm.is_state(given)) and not Path(given).exists():
            if self.by_status:
                raise InputError(slurm.folder_here(given) + (f" {given.lower()}" if is_ours else ""))
            raise InputError(f"--state {given}: names the engine's folder, and no state; see the verb's --help")
        # of all verbs: who only looks loses little by it, since the first refusal is noted at once; those that change
        # something mostly look first, in scripts verbs that look are steps too, and a list of verbs has to be kept
        return connect(self.engine, self.state, self.token_file, context=self.context, restart_s=_restart_s())

    def printed(self, answer: object, *, one_of_many: bool = False) -> bool:
        """Print an answer for programs, if that format is selected; whether it is."""
        if self.form is not Form.TABLE:
            print_answer(answer, self.form, one_of_many=one_of_many)
        return self.form is not Form.TABLE


def _restart_s() -> float:
    """For how long a verb tries to reach an engine that may be on its way back."""
    if not (text := os.environ.get("HIVED_RETRY_FOR", "").strip()):
        return RESTART_S
    try:
        return read_length(text)
    except ValueError as error:
        raise InputError(f"HIVED_RETRY_FOR: {error}") from None


def asks_engine(verb: Callable[..., None]) -> Callable[..., None]:
    """The command of ``verb``, whose first parameter is an :class:`Asking`, with its options after the verb's."""
    options = _asking(engine=_ENGINE, state=_STATE, context=_CONTEXT, token_file=_TOKEN)
    by_status = "status" in inspect.signature(verb).parameters
    return with_options(verb, options, functools.partial(Asking, by_status=by_status))


def _asking(**options: Any) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter("form", kind, default=Form.TABLE, annotation=_FORM)]
    return shared + [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in options.items()]


def own_vc(there: Engine, given: str | None, more: str = "") -> str:
    """The virtual cluster of a job: the one given, or the only one that who asks may use; ``more``: of the error.

    One that names them goes before those that are for anybody.
    """
    if found := given or os.environ.get("HIVED_VC"):
        return found
    me = there.parsed(Me, there.get("/v1/me"))
    if len(me.named) == 1:
        return me.named[0]
    roles = me.roles
    own = [vc for vc, role in roles.items() if role in _USES] or [vc for vc, role in roles.items() if role != "viewer"]
    if len(own) == 1:
        return own[0]
    which = f"one of {', '.join(map(clean, own))}, or set HIVED_VC" if own else "you are a member of none"
    raise InputError(f"--vc is missing: {which}{more}")
