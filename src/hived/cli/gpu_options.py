"""What a job asks for: the options that ``submit`` and ``plan`` share, and where its tasks would be in words."""

from __future__ import annotations

from typing import Annotated

import typer

from hived.errors import InputError
from hived.server.schema import Job
from hived.words import counted

from .formats import clean, where_in_words

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


def asked(gpus: int, nodes: int) -> str:
    """``4 GPUs``, ``2 tasks of 8 GPUs``."""
    return counted(gpus, "GPU") if nodes == 1 else f"{nodes:,} tasks of {counted(gpus, 'GPU')}"


def standing(job: Job) -> str:
    """Where a job runs, or why it waits: a sentence."""
    name, reason = clean(job.name), "" if job.reason == job.state else clean(job.reason)
    place = clean(where_in_words(job.placement))
    match job.state:
        case "running":
            lent = ", on GPUs that others leave idle" if job.kind == "opportunistic" else ""
            return f"{name} runs on {place}{lent}."
        case "reserved":
            return f"{name} gets {place}" + (f": {reason}" if reason else " as soon as those who are there have gone.")
        case "queued" | "backoff":
            return f"{name} waits" + (f": {reason}" if reason else " for its turn.")
        case "stopping":
            return f"{name} is being stopped" + (f": {reason}" if reason else ".")
    code = f" (exit code {job.exit_code})" if job.exit_code and not reason else ""
    return {"succeeded": f"{name} has succeeded", "failed": f"{name} has failed{code}"}.get(
        job.state, f"{name} was cancelled"
    ) + (f": {reason}" if reason else ".")
