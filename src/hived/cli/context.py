"""``hived context``: engines by name, the one that verbs speak to, and what answers there."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from hived.errors import HivedError, InputError, UnavailableError
from hived.server.schema import Engine, Settings, Spec
from hived.words import counted, duration

from .client import url_of
from .console import note
from .contexts import Context, Contexts, read_contexts, write_contexts
from .escaping import clean
from .formats import Fact, age, columns, print_facts, print_table, size_text, styled
from .options import Asking, asks_engine

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_COLUMNS = columns("CURRENT NAME ENGINE TOKEN-FILE")


def _names() -> list[str]:
    """For completion: none where the file is broken, which is no place to say so."""
    with suppress(HivedError):
        return sorted(read_contexts().contexts)
    return []


_Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a context.", autocompletion=_names)]


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called: letters, digits and . _ -")],
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="URL", help="An engine that listens, http://host:port.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", readable=False, help="The folder of an engine of this machine."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", metavar="FILE", help="Holds its token.")] = None,
) -> None:
    """Add an engine by name, or change it. The first one becomes the current one.

    \bExamples:
      hived context add lab --engine http://lab-3:8080 --token-file ~/lab.token
      hived context add mine --state /srv/hived
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r}: a context is called by letters, digits and . _ -, 63 at most")
    if (engine is None) is (state is None):
        raise InputError("give where the engine is: either --engine URL or --state DIR")
    if state is not None and token_file is not None:
        raise InputError("--token-file goes with --engine; a folder's socket needs no token")
    known = read_contexts()
    known.contexts[name] = Context(
        engine=None if engine is None else url_of(engine),
        state=None if state is None else str(state.absolute()),
        token_file=None if token_file is None else str(token_file.absolute()),
    )
    known.current = known.current or name
    write_contexts(known)
    typer.echo(f"{name} is added" + (", and is the current one" if known.current == name else ""))


def use(name: _Name) -> None:
    """Make a context the current one, to which verbs speak that say nothing else."""
    known = read_contexts()
    known.named(name)
    known.current = name
    write_contexts(known)
    typer.echo(f"{name} is the current one")


def remove(name: _Name) -> None:
    """Remove a context; its engine goes on."""
    known = read_contexts()
    known.named(name)
    del known.contexts[name]
    if known.current == name:
        known.current = None
    write_contexts(known)
    typer.echo(f"{name} is removed")


def ls() -> None:
    """List the contexts."""
    known = read_contexts()
    if known.contexts:
        print_table(_COLUMNS, _rows(known))
    else:
        note("no contexts; hived context add NAME --engine URL. Without one it is the engine of your own folder")


@asks_engine
def show(ask: Asking) -> None:
    """Show what answers, and the spec in force. Exit code 0: it is ready; 69: it is not, or nobody answers.

    \bExamples:
      hived context show
      hived context show --engine http://hived.example:9096
      hived context show -o json | jq .spec.problem
    """
    with ask.connect() as there:
        engine, spec = there.get("/v1/engine"), there.get("/v1/spec")
        found, of = there.parsed(Engine, engine), there.parsed(Spec, spec)
    if not ask.printed({"address": there.address, "engine": engine, "spec": spec}):
        facts: list[Fact] = [("engine", _engine(found, there.address))]
        size = f"{counted(of.nodes, 'node')}, {counted(of.gpus, 'GPU')}, {counted(len(of.vcs), 'virtual cluster')}"
        facts.append(("spec", f"{clean(of.source)}, loaded {age(time.time() - of.loaded_at)} ago: {size}"))
        if of.problem:
            facts.append(("", styled(f"a later one was refused: {of.problem}", "red")))
        if found.settings is not None:
            facts += _settings(found.settings)
        print_facts(facts)
    if not found.ready:
        raise typer.Exit(UnavailableError.exit_code)


def _settings(of: Settings) -> list[Fact]:
    """How an engine of one machine was started."""
    fenced = f"; fences: {', '.join(map(clean, of.fences))}" if of.fences else "; no fences (--fence)"
    files = "for ever" if of.files_s is None else f"{duration(of.files_s)} after its end"
    prints = "all" if of.output_bytes is None else f"the last {size_text(of.output_bytes)}"
    return [
        ("jobs", clean(of.jobs) + fenced),
        ("kept", f"files of a job: {files} (--keep); of what a task prints: {prints} (--most-output)"),
    ]


def _engine(found: Engine, address: str) -> Text:
    role = "simulated devices" if found.simulated else "this machine"
    if (replica := found.replica) is not None:
        who = clean(replica.holder or replica.identity)
        role = f"decides as {who}" if replica.leader else f"stands by; {clean(replica.holder) or 'nobody'} decides"
    ready = ("ready", "green") if found.ready else ("not ready", "bold red")
    up = age(time.time() - found.started_at)
    return Text.assemble(ready, f", {role}", (f"; hived {clean(found.version)} on {clean(address)}, up {up}", "dim"))


def _rows(known: Contexts) -> Iterator[tuple[str | Text, ...]]:
    for name, context in sorted(known.contexts.items()):
        where = context.engine or context.state or ""
        yield "*" if name == known.current else "", name, clean(where), clean(context.token_file or "-")
