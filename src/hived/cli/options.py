"""Options that verbs share: which job, which virtual cluster, how many GPUs; and what the shell may complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hived.errors import InputError

from .completion import complete_job, complete_node, complete_vc
from .formats import read_duration


def seconds(text: str) -> float:
    """A duration on the command line."""
    try:
        return read_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def state_folder(given: Path | None) -> Path:
    """Where an engine keeps what it has to keep, and its socket."""
    if given is not None:
        return given
    if kept := os.environ.get("HIVED_STATE"):
        return Path(kept)
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state) / "hived"
    return Path("~/.local/state/hived").expanduser()


VcOption = Annotated[
    str, typer.Option("--vc", metavar="VC", help="The virtual cluster (tenant).", autocompletion=complete_vc)
]
OfVcOption = Annotated[
    str | None,
    typer.Option("--vc", metavar="VC", help="Of one virtual cluster.", show_default="all", autocompletion=complete_vc),
]
NumberOption = Annotated[int, typer.Option("-n", "--number", metavar="N", help="At most so many; 0: all.", min=0)]
NodeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[NODE]",
        help="Name of a node; on Kubernetes there has to be one.",
        show_default="all",
        autocompletion=complete_node,
    ),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Id (12), name (train-12), or the name you gave (train: the latest of them).",
        autocompletion=complete_job,
    ),
]
JobOrGroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB|GROUP|POD",
        help="A job, as in hived ps; on Kubernetes a group, as in hived groups, or a pod, NAMESPACE/NAME.",
        autocompletion=complete_job,
    ),
]
JobsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB",
        help="Ids (12), names (train-12), or the names you gave (train: the latest of them).",
        autocompletion=complete_job,
    ),
]
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
EarlyOption = Annotated[
    bool,
    typer.Option(
        "--early",
        help="Start on what others leave idle, if that is before its turn; at its turn it stays there, or moves.",
    ),
]


def wish(vc: str, gpus: int, nodes: int, priority: int, opportunistic: bool) -> dict[str, object]:
    """The part of a submission that says which GPUs."""
    if opportunistic and priority:
        raise InputError("--opportunistic and --priority: an opportunistic job has no priority; give one of them")
    return {"vc": vc, "gpus": gpus, "tasks": nodes, "priority": -1 if opportunistic else priority}
