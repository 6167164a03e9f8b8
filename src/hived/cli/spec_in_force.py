"""``hived spec show``, ``diff`` and ``apply``: the spec that an engine goes by, and another one in its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from hived.engine.sentences import change_text
from hived.errors import InputError
from hived.server.schema import AffectedJob, Reconfigured, Spec
from hived.spec import ClusterSpec, parse_spec
from hived.spec.changes import Change, changes
from hived.spec.loading import read_text
from hived.words import counted, path_text

from .client import Engine
from .console import messages, note
from .escaping import clean, clean_lines
from .options import Asking, asks_engine

_PATH = "/v1/spec"
_NAMED = 10  #: jobs that are named in a question; the answer has all
_DIFFERS = 1  #: exit code of diff, as diff's own

_File = Annotated[Path, typer.Argument(metavar="FILE", help="A cluster spec (YAML).")]


@asks_engine
def show(ask: Asking) -> None:
    """Print the spec in force as YAML. To apply that again changes nothing.

    On one machine it has no comments and no defaults, and --policy and --vc of hived up are in it.

    \bExamples:
      hived spec show
      hived spec show > spec.yaml && edit spec.yaml && hived spec apply spec.yaml
    """
    with ask.connect() as there:
        answer = there.get(_PATH)
        found = there.parsed(Spec, answer)
    if not ask.printed(answer):
        # a file has to have it as it is
        typer.echo(clean_lines(found.text) if sys.stdout.isatty() else found.text, nl=not found.text.endswith("\n"))


@asks_engine
def diff(ask: Asking, file: _File) -> None:
    """Say what a spec would change in the one in force. Exit code 0: nothing; 1: something.

    \bExamples:
      hived spec diff spec.yaml
      hived spec diff spec.yaml -o json | jq '.[].vc'
    """
    new = parse_spec(read_text(file), path_text(file))
    with ask.connect() as there:
        found = list(changes(_in_force(there), new))
    if not ask.printed([change._asdict() for change in found]):
        _print_changes(found)
    if found:
        raise typer.Exit(_DIFFERS)


@asks_engine
def apply(
    ask: Asking,
    file: _File,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Even if jobs lose their VC's cells by it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change, and of which jobs.")] = False,
) -> None:
    """Put a spec in the place of the one in force, under running jobs: none ends for it.

    Asks before guaranteed jobs become opportunistic by it, or lose GPUs that are kept for them; without a terminal
    --yes is needed for that. The file that the engine is started with stays as it is: write the spec there too.

    \bExamples:
      hived spec apply spec.yaml
      hived spec apply spec.yaml --dry-run
      hived spec show > before.yaml && hived spec apply spec.yaml --yes
    """
    text = read_text(file)
    new = parse_spec(text, path_text(file))
    with ask.connect() as there:
        old = there.parsed(Spec, there.get(_PATH))
        asked = {"yaml": text, "instead_of": old.loaded_at}  # what is said, and agreed to, is of this one
        answer = there.put(_PATH, asked, dry_run="true")
        foreseen = there.parsed(Reconfigured, answer)
        found = list(changes(_parsed(there, old), new))
        for warning in foreseen.warnings:
            messages().print(f"hived: {clean(warning)}", style="yellow", markup=False)
        if dry_run or not found:
            if not ask.printed(answer):
                _print(found, foreseen)
            return
        if not yes:
            _ask_for(foreseen)
        answer = there.put(_PATH, asked)
        done = there.parsed(Reconfigured, answer)
    if not ask.printed(answer):
        _print(found, done)


def _in_force(there: Engine) -> ClusterSpec:
    """The spec in force."""
    return _parsed(there, there.parsed(Spec, there.get(_PATH)))


def _parsed(there: Engine, spec: Spec) -> ClusterSpec:
    return parse_spec(spec.text, f"{clean(there.address)}, the spec in force")


def _print(found: Sequence[Change], of: Reconfigured) -> None:
    """What changes, and what becomes of jobs."""
    _print_changes(found)
    if found:
        typer.echo(f"{counted(len(of.kept), 'job')} {_does(of, len(of.kept), 'run')} on as before")
        for line in _affected(of):
            typer.echo(line)


def _print_changes(found: Sequence[Change]) -> None:
    for change in found:
        typer.echo(clean(change_text(*change)))
    if not found:
        note("the spec in force is the same")


def _affected(of: Reconfigured) -> Iterator[str]:
    """The jobs that do not go on as they were, by what they are after it."""
    yield from _listed(of, of.downgraded, "run", "on as opportunistic")
    yield from _listed(of, of.requeued, "wait", "in line again")
    yield from _listed(of, of.on_removed_devices, "keep", "devices that this spec lacks")


def _listed(of: Reconfigured, jobs: Sequence[AffectedJob], does: str, what: str, most: int = 0) -> Iterator[str]:
    """Jobs under a heading, ``most`` of them by name; 0: all."""
    if jobs:
        yield f"{counted(len(jobs), 'job')} {_does(of, len(jobs), does)} {what}:"
        yield from map(_named, jobs[: most or None])
        if 0 < most < len(jobs):
            yield f"  and {len(jobs) - most:,} more"


def _does(of: Reconfigured, many: int, verb: str) -> str:
    return f"would {verb}" if of.dry_run else f"{verb}s" if many == 1 else verb


def _named(job: AffectedJob) -> str:
    return "  " + clean(f"{job.name} ({counted(job.gpus, 'GPU')} of {job.vc}): {job.why}")


def _ask_for(foreseen: Reconfigured) -> None:
    """Ask before jobs lose what they have. Raises :class:`InputError` for a no, or without a terminal."""
    lines = list(_listed(foreseen, foreseen.downgraded, "run", "on as opportunistic", _NAMED))
    lines += _listed(foreseen, foreseen.requeued, "wait", "in line again", _NAMED)
    if not lines:
        return
    if not sys.stdin.isatty():
        raise InputError("\n".join([*lines, "  nothing was changed; --yes applies it all the same"]))
    typer.echo("\n".join(lines), err=True)
    if not typer.confirm("apply it all the same?", err=True):
        raise InputError("nothing was changed")
