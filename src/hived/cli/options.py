"""Options that verbs share: which job, which virtual cluster; and what the shell may complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

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
