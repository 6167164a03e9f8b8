"""Options that verbs share: where the engine is, what to print, which job, and what the shell may complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from .addresses import SCHEDULER_URL
from .completion import complete_job, complete_node, complete_vc
from .formats import Form, read_duration

_PANEL = "Where the engine is"


def seconds(text: str) -> float:
    """A duration on the command line."""
    try:
        return read_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def state_folder(given: Path | None = None) -> Path:
    """Where an engine keeps what it has to keep, and its socket."""
    if given is not None:
        return given
    if kept := os.environ.get("HIVED_STATE"):
        return Path(kept)
    if state := os.environ.get("XDG_STATE_HOME"):
        return Path(state) / "hived"
    return Path("~/.local/state/hived").expanduser()


StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        readable=False,  # who is let in to the socket need not be able to list the folder
        help="The engine's folder; or set HIVED_STATE. Its socket is the engine's address.",
        show_default="~/.local/state/hived",
        rich_help_panel=_PANEL,
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="URL",
        help="An engine that listens elsewhere, http://host:port; or set HIVED_ENGINE.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Holds the token for --engine; or set HIVED_TOKEN.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="URL",
        help="Where hived serve kubernetes listens; or set HIVED_ENGINE.",
        show_default=SCHEDULER_URL,
        rich_help_panel=_PANEL,
    ),
]
FormOption = Annotated[Form, typer.Option("-o", "--output", help="For people, or for programs as the engine says it.")]
VcOption = Annotated[
    str,
    typer.Option(
        "--vc", metavar="VC", help="The virtual cluster (tenant).", show_default=False, autocompletion=complete_vc
    ),
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
        show_default=False,
        autocompletion=complete_job,
    ),
]
JobOrGroupArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB|GROUP|POD",
        help="A job, as in hived ps; on Kubernetes a group, as in hived groups, or a pod, NAMESPACE/NAME.",
        show_default=False,
        autocompletion=complete_job,
    ),
]
JobsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB",
        help="Ids (12), names (train-12), or the names you gave (train: the latest of them).",
        show_default=False,
        autocompletion=complete_job,
    ),
]
