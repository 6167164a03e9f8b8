"""``hived plan``: the prediction for a job without submitting it, or for manifests, read as ``kubectl`` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from hived.errors import InputError, Location, RequestError
from hived.server.kubernetes.schema import PlanAnswer, PlannedGroup
from hived.server.schema import Plan
from hived.spec import Document, read_documents
from hived.words import counted

from .client import Engine
from .console import note
from .escaping import clean, clean_lines
from .formats import Place, where_in_words
from .options import (
    Asking,
    GpusOption,
    NodesOption,
    OpportunisticOption,
    PriorityOption,
    asks_engine,
    resources,
    vc_option,
)

_CODES = {"now": 0, "waits": 2, "never": 3, "unknown": 4}
_MOST = 1_000  #: maximum of objects in one plan


@asks_engine
def plan(
    ask: Asking,
    vc: Annotated[str | None, vc_option(help="The virtual cluster (tenant); with -f the manifests say it.")] = None,
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

    Exit code 0: all of it would start now; 2: it, or some of it, would wait; 3: it never fits; 4: it cannot be
    foreseen (a kind of object that is not read). Of several, the highest. Taints, selectors, CPU and memory are
    kube-scheduler's, and are not foreseen.

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
        with ask.scheduler("hived plan --vc VC --gpus N") as there:
            code = _plan_manifests(ask, there, manifests, namespace)
    else:
        if vc is None:
            raise InputError("--vc is missing: whose job would it be? On Kubernetes give manifests, -f job.yaml")
        with ask.connect() as there:
            if there.kind == "kubernetes":
                raise there.wrong("there give manifests: hived plan -f job.yaml")
            what = counted(gpus, "GPU") if nodes == 1 else f"{nodes:,} tasks of {counted(gpus, 'GPU')}"
            code = _plan_job(ask, there, vc, what, resources(vc, gpus, nodes, priority, opportunistic))
    raise typer.Exit(code)


def _plan_job(ask: Asking, there: Engine, vc: str, what: str, wanted: dict[str, object]) -> int:
    answer = there.post("/v1/plan", wanted | {"command": ["true"]})
    planned = there.parsed(Plan, answer)
    if not ask.printed(answer):
        typer.echo(f"{what} of {clean(vc)}: {_outcome(planned.outcome, planned.victims, planned.placement)}")
        if planned.text:
            typer.echo(clean_lines(planned.text.rstrip("\n")))
    return _CODES[planned.outcome]


def _plan_manifests(ask: Asking, there: Engine, manifests: Sequence[Manifest], namespace: str) -> int:
    if len(manifests) > _MOST:
        raise InputError(f"-f: {len(manifests):,} objects, and at most {_MOST:,} are planned at once; give fewer")
    if there.kind == "local":  # it has a plan of another form
        raise there.wrong("manifests (-f) are for Kubernetes; here use: hived plan --vc VC --gpus N")
    try:
        answer = there.post("/v1/plan", {"objects": [one.value for one in manifests], "namespace": namespace})
    except RequestError as error:
        raise _placed(error, manifests) from None
    planned = there.parsed(PlanAnswer, answer)
    if not ask.printed(answer):
        for group in planned.groups:
            _print(group)
        if not planned.groups:
            note("nothing here is for HiveD: no pod that asks for GPUs names a virtual cluster")
    return max((_CODES[group.outcome] for group in planned.groups), default=0)


def _print(group: PlannedGroup) -> None:
    name = f"{clean(group.group)} ({counted(group.gpus, 'GPU')} of {clean(group.vc)})"
    typer.echo(f"{name}: {_outcome(group.outcome, group.victims, group.placement)}")
    lines = clean_lines(group.text).splitlines()
    if lines and lines[0].endswith(":"):
        del lines[0]  # this heading repeats the line above
    for line in lines:
        typer.echo(f"  {line}")


def _outcome(outcome: str, victims: Sequence[str], placement: Sequence[Place]) -> str:
    if outcome != "now":
        return {"waits": "would wait", "never": "never fits", "unknown": "cannot be foreseen"}[outcome]
    place = clean(where_in_words(placement))
    first = f", once {', '.join(map(clean, victims))} {'has' if len(victims) == 1 else 'have'} gone" if victims else ""
    return f"now{first}" + (f", on {place}" if place else "")


def _placed(error: RequestError, manifests: Sequence[Manifest]) -> InputError:
    """The same error, with the file and line of its object."""
    field, _, number = error.field.partition(".")
    if field != "objects" or not number.isdecimal() or int(number) >= len(manifests):
        return error
    return InputError(f"{manifests[int(number)].where}: {error.message}")


class Manifest(NamedTuple):
    """An object, and its file and line."""

    where: Location
    value: dict[str, object]


def read_manifests(files: Iterable[str]) -> list[Manifest]:
    """The objects in these files; ``-`` is standard input.

    Raises :class:`~hived.errors.InputError` for unreadable files and non-manifests, with file and line. O(length).
    """
    found: list[Manifest] = []
    for file in files:
        text, source = _text(file)
        objects = [one for document in read_documents(text, source) for one in _objects(document)]
        if not objects:
            raise InputError(f"{source}: there is no object in it; give the manifest of a pod or of a job")
        found += objects
    return found


def _text(file: str) -> tuple[str, str]:
    source = "standard input" if file == "-" else file
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"-f {source}: cannot be read ({error.strerror})") from None
    try:
        return raw.decode("utf-8-sig"), source
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{Location(source, line)}: not a UTF-8 text; save the manifest as UTF-8") from None


def _objects(document: Document) -> Iterator[Manifest]:
    """The object of a document, or those in its list."""
    data = document.data
    items = data.get("items") if isinstance(data, dict) and str(data.get("kind", "")).endswith("List") else None
    if isinstance(items, list):
        for number, item in enumerate(items):
            yield _manifest(item, document.where(("items", number)))
    else:
        yield _manifest(data, document.where(()))


def _manifest(value: object, where: Location) -> Manifest:
    if not isinstance(value, dict):
        raise InputError(f"{where}: a manifest has keys (apiVersion, kind, metadata, spec), and this has none")
    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str):
            raise InputError(f"{where}: a manifest says its {key}, and this does not")
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        raise InputError(f"{where}: it has a number or a text that JSON cannot hold") from None
    return Manifest(where, value)
