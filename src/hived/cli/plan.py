"""``hived plan``: the prediction for a job without submitting it, or for manifests, read as ``kubectl`` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from hived.errors import InputError, Location, RequestError
from hived.server.schema import Place, Plan, PlannedJob
from hived.spec import Document, read_documents
from hived.words import counted

from .console import note
from .escaping import clean, clean_lines
from .formats import where_in_words
from .options import (
    Asking,
    GpusOption,
    NodesOption,
    OpportunisticOption,
    PriorityOption,
    VcOption,
    asks_engine,
    own_vc,
    resources,
)

_CODES = {"now": 0, "waits": 2, "never": 3, "unknown": 4}
_MOST = 1_000  #: maximum of objects in one plan


@asks_engine
def plan(
    ask: Asking,
    vc: VcOption = None,
    gpus: GpusOption = 1,
    nodes: NodesOption = 1,
    priority: PriorityOption = 0,
    opportunistic: OpportunisticOption = False,
    early: Annotated[bool, typer.Option("--early", help="Before its turn, where others leave GPUs idle.")] = False,
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
    """Say what would become of a job now, without submitting it; on Kubernetes also of manifests.

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
        manifests, what = read_manifests(files), ""
        if len(manifests) > _MOST:
            raise InputError(f"-f: {len(manifests):,} objects, and at most {_MOST:,} are planned at once; give fewer")
        wanted: dict[str, object] = {"manifests": [one.value for one in manifests], "namespace": namespace}
    else:
        manifests = []
        what = counted(gpus, "GPU") if nodes == 1 else f"{nodes:,} tasks of {counted(gpus, 'GPU')}"
        asked = resources(gpus, nodes, priority, opportunistic) | {"command": ["true"]}
        wanted = {}
    with ask.connect() as there:
        if not files:
            asked["vc"] = own_vc(there, vc, "; on Kubernetes manifests can say it, -f job.yaml")
            wanted = {"job": asked | ({"early": True} if early else {})}
        try:
            answer = there.post("/v1/plan", wanted)
        except RequestError as error:
            raise _placed(error, manifests) from None
        planned = there.parsed(Plan, answer)
    if not ask.printed(answer):
        for job in planned.jobs:
            _print(job, what)
        if not planned.jobs:
            note("nothing here is for HiveD: no pod that asks for GPUs names a virtual cluster")
    raise typer.Exit(max((_CODES[job.outcome] for job in planned.jobs), default=0))


def _print(job: PlannedJob, what: str) -> None:
    """What would become of a job; ``what``: it asks for, where it has no name yet."""
    name = f"{clean(job.name)} ({counted(job.gpus, 'GPU')} of {clean(job.vc)})"
    if what:
        name = f"{what} of {clean(job.vc)}"
    typer.echo(f"{name}: {_outcome(job.outcome, job.victims, job.placement)}")
    lines = clean_lines(job.text).splitlines()
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
    if field != "manifests" or not number.isdecimal() or int(number) >= len(manifests):
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
