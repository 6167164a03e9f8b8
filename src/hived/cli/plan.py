"""``hived plan``: what would become of a job, without submitting it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from hived.errors import InputError, RequestError
from hived.server.kubernetes.schema import PlanAnswer, PlannedGroup
from hived.server.schema import Plan
from hived.words import counted

from .addresses import SCHEDULER_URL
from .asking import Asking, asks_engine
from .client import Engine
from .completion import complete_vc
from .console import note
from .formats import Place, clean, clean_lines, where_in_words
from .manifests import Manifest, read_manifests
from .options import GpusOption, NodesOption, OpportunisticOption, PriorityOption, wish

_CODES = {"now": 0, "waits": 2, "never": 3}
_MOST = 1_000  #: objects that are planned at once


@asks_engine
def plan(
    ask: Asking,
    vc: Annotated[
        str | None,
        typer.Option(
            "--vc",
            metavar="VC",
            help="The virtual cluster (tenant); with -f the manifests say it.",
            autocompletion=complete_vc,
        ),
    ] = None,
    gpus: GpusOption = 1,
    nodes: NodesOption = 1,
    priority: PriorityOption = 0,
    opportunistic: OpportunisticOption = False,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--filename", "-f", metavar="FILE", help="On Kubernetes: manifests, - for standard input; again for more."
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NS", help="With -f: of manifests that name none.")
    ] = "default",
) -> None:
    """Say what would become of a job now, without submitting it; on Kubernetes, of manifests.

    Exit code 0: it would start now; 2: it would wait; 3: it never fits. Of several, the worst.

    \bExamples:
      hived plan --vc vision --gpus 4
      hived plan --vc vision --gpus 8 --nodes 2 --priority 10
      hived plan --vc vision --gpus 4 && hived submit --vc vision --gpus 4 -- python train.py
      hived plan -f job.yaml --engine http://127.0.0.1:9096 && kubectl apply -f job.yaml
    """
    if files:
        if vc is not None or (gpus, nodes, priority, opportunistic) != (1, 1, 0, False):
            raise InputError("-f and --vc, --gpus, ...: the manifests say all of that; give one or the other")
        manifests = read_manifests(files)
        with ask.connect() as there:
            code = _plan_manifests(ask, there, manifests, namespace)
    else:
        if vc is None:
            raise InputError("--vc is missing: whose job would it be? On Kubernetes give manifests, -f job.yaml")
        with ask.connect() as there:
            if there.kind == "kubernetes":
                raise there.wrong("there give manifests: hived plan -f job.yaml")
            code = _plan_job(ask, there, vc, _asked(gpus, nodes), wish(vc, gpus, nodes, priority, opportunistic))
    raise typer.Exit(code)


def _asked(gpus: int, nodes: int) -> str:
    """``4 GPUs``, ``2 tasks of 8 GPUs``."""
    return counted(gpus, "GPU") if nodes == 1 else f"{nodes:,} tasks of {counted(gpus, 'GPU')}"


def _plan_job(ask: Asking, there: Engine, vc: str, what: str, wanted: dict[str, object]) -> int:
    answer = there.post("/v1/plan", wanted | {"command": ["true"]})
    told = there.understood(Plan, answer)
    if not ask.printed(answer):
        typer.echo(f"{what} of {clean(vc)}: {_outcome(told.outcome, told.victims, told.placement)}")
        if told.text:
            typer.echo(clean_lines(told.text.rstrip("\n")))
    return _CODES[told.outcome]


def _plan_manifests(ask: Asking, there: Engine, manifests: Sequence[Manifest], namespace: str) -> int:
    if len(manifests) > _MOST:
        raise InputError(f"-f: {len(manifests):,} objects, and at most {_MOST:,} are planned at once; give fewer")
    if there.kind == "local":
        raise there.wrong(
            "manifests (-f) are for Kubernetes: say with --engine or HIVED_ENGINE where that listens "
            f"({SCHEDULER_URL}), or here what a job would ask for: hived plan --vc VC --gpus N"
        )
    try:
        answer = there.post("/v1/plan", {"objects": [one.value for one in manifests], "namespace": namespace})
    except RequestError as error:
        raise _placed(error, manifests) from None
    told = there.understood(PlanAnswer, answer)
    if not ask.printed(answer):
        for group in told.groups:
            _print(group)
        if not told.groups:
            note("nothing here is for HiveD: no pod names a virtual cluster")
    return max((_CODES[group.outcome] for group in told.groups), default=0)


def _print(group: PlannedGroup) -> None:
    who = f"{clean(group.group)} ({counted(group.gpus, 'GPU')} of {clean(group.vc)})"
    typer.echo(f"{who}: {_outcome(group.outcome, group.victims, group.placement)}")
    lines = clean_lines(group.text).splitlines()
    if lines and lines[0].endswith(":"):
        del lines[0]  # what this head says has been said
    for line in lines:
        typer.echo(f"  {line}")


def _outcome(outcome: str, victims: Sequence[str], placement: Sequence[Place]) -> str:
    if outcome != "now":
        return "would wait" if outcome == "waits" else "never fits"
    place = clean(where_in_words(placement))
    first = f", once {', '.join(map(clean, victims))} {'has' if len(victims) == 1 else 'have'} gone" if victims else ""
    return f"now{first}" + (f", on {place}" if place else "")


def _placed(error: RequestError, manifests: Sequence[Manifest]) -> InputError:
    """The same error, with the file and line of the object that it is about."""
    field, _, number = error.field.partition(".")
    if field != "objects" or not number.isdecimal() or int(number) >= len(manifests):
        return error
    return InputError(f"{manifests[int(number)].where}: {error.message}")
