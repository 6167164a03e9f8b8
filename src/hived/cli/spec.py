"""``hived spec check`` and ``sim replay``: a spec as a tree, and whether its VCs fit; an event log again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from pydantic.alias_generators import to_camel
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from hived.cells import LevelSafety
from hived.cluster import Shortage, initial_safety, shortages
from hived.cluster.cluster import Cluster
from hived.engines.local.job_users import unknown_accounts
from hived.errors import InputError, PolicyError
from hived.events.replay import ReplayError
from hived.events.replay import replay as carry_out
from hived.policies import DEFAULT, by_vc, make_policy
from hived.scheduling import Policies
from hived.scheduling.exact import check_together
from hived.spec import ChainSpec, ClusterSpec, load_spec
from hived.spec.compiled import EXACT, NO_GUESTS, OPPORTUNISTIC_GRACE_SECONDS, AccessSpec
from hived.words import counted

from .console import messages, output
from .formats import Form, limits_of_members, print_answer


def check(
    spec: Annotated[Path, typer.Argument(help="The cluster spec (YAML).")],
    form: Annotated[Form, typer.Option("-o", "--output", help="For people, or for programs.")] = Form.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """Show a cluster spec and say whether its virtual clusters fit, or why not.

    Users and groups that this machine does not have are named: the spec may be for another one. Exit code 0: feasible;
    2: infeasible or wrong; 5: a policy of your own cannot be loaded, or policies cannot be as the spec has them.

    Example: hived spec check spec.yaml
    """
    if as_json and form is Form.YAML:
        raise InputError("--json and -o yaml: give one of them")
    cluster = load_spec(spec)
    _check_policies(cluster)
    rows = initial_safety(cluster)
    short = shortages(cluster, rows)
    for unknown in unknown_accounts(cluster):
        messages().print(f"hived: {unknown}", style="yellow", markup=False)
    if as_json or form is not Form.TABLE:
        print_answer(_to_json(cluster, rows, short), Form.JSON if as_json else form)
    else:
        _print(cluster, rows, short)
    if short:
        raise typer.Exit(2)


def _check_policies(cluster: ClusterSpec) -> None:
    """Raise :class:`InputError` for a policy that no engine of this installation could go by."""
    for name, vc in {vc.policy: vc for vc in reversed(cluster.virtual_clusters) if vc.policy}.items():
        try:
            make_policy(name)
        except PolicyError as error:
            raise PolicyError(error.policy, f"{error.what}; it is that of {vc.name} in {cluster.source}") from error
        except InputError as error:
            raise InputError(f"{cluster.source}: {vc.name}: {error}") from None
    check_together(Policies(make_policy(DEFAULT), by_vc(cluster)), cluster)


def _print(cluster: ClusterSpec, rows: tuple[LevelSafety, ...], short: tuple[Shortage, ...]) -> None:
    console = output()
    for tree in (_physical_tree(cluster), _virtual_tree(cluster)):
        console.print(tree)
        console.print()
    table = Table(title="Cells reserved and to be had", title_justify="left", box=None)
    for heading in ("chain", "level", "cell type"):
        table.add_column(heading, overflow="fold")
    for heading in ("reserved", "pinned", "free", "by splitting", "to spare"):
        table.add_column(heading, justify="right")
    for row in rows:
        obtainable = max(0, row.obtainable)  # a shortage of a level is shown there, not at every level below
        spare = row.free + obtainable - (row.reserved - row.allocated)
        margin = f"[red]{spare}[/red]" if spare < 0 else str(spare)
        numbers = (row.reserved, row.allocated, row.free, obtainable)
        table.add_row(escape(row.chain), str(row.level), escape(row.cell_type), *map(str, numbers), margin)
    console.print(table)
    for key, line in cluster.ignored:
        console.print(f"\nignored: {key} (line {line}) means nothing here", style="dim", markup=False)
    console.print()
    if short:
        console.print(f"infeasible: {cluster.source}", style="bold red", markup=False)
        for shortage in short:
            console.print(f"  {shortage}", markup=False, soft_wrap=True)
    else:
        console.print(f"feasible: {cluster.source}", style="bold green", markup=False)


def _physical_tree(cluster: ClusterSpec) -> Tree:
    tree = Tree(f"[bold]physical cluster[/bold]: {counted(cluster.gpus, 'GPU')}")
    for chain in cluster.chains:
        branch = tree.add(
            f"[bold]{escape(chain.name)}[/bold] x {chain.top_cells:,}: "
            f"{counted(chain.gpus, 'GPU')} of type {escape(chain.leaf_type)}"
        )
        for number in range(len(chain.levels), 0, -1):
            level = chain.levels[number - 1]
            if number == 1:
                branch.add(f"level 1 {escape(level.cell_type)}")
                continue
            child = chain.levels[number - 2].cell_type
            words = f"level {number} {level.cell_type}: {level.fanout} x {child}, {counted(level.gpus, 'GPU')}"
            words = escape(words)
            branch = branch.add(words + (_nodes(chain) if number == chain.node_level else ""))
    return tree


def _nodes(chain: ChainSpec) -> str:
    names = chain.node_names
    shown = ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, ... {names[-1]}"
    return f" [dim](node: {escape(shown)})[/dim]"


def _virtual_tree(cluster: ClusterSpec) -> Tree:
    operators = f", operators: {', '.join(cluster.operators)}" if cluster.operators else ""
    tree = Tree(f"[bold]virtual clusters[/bold]: {len(cluster.virtual_clusters)}{escape(operators)}")
    for vc in cluster.virtual_clusters:
        words = f"[bold]{escape(vc.name)}[/bold]: {counted(cluster.reserved(vc), 'GPU')}"
        if vc.opportunistic_weight is not None:
            words += f", opportunistic weight {vc.opportunistic_weight:.15g}"
        elif not cluster.reserved(vc):
            words += ", so its loans give way to those of all others (opportunisticWeight)"
        if vc.guests != NO_GUESTS:
            words += f", guests of {'its own' if vc.guests == 'own' else 'all VCs'} beside its jobs"
        if vc.policy:
            words += f", policy {escape(vc.policy)}"
        if vc.safety == EXACT:
            words += ", exact safety"
        if vc.opportunistic_grace_seconds != OPPORTUNISTIC_GRACE_SECONDS:
            words += f", loans have at most {vc.opportunistic_grace_seconds:,} s of grace"
        branch = tree.add(words)
        for cells in vc.cells:
            branch.add(escape(f"{cells.number:,} x {cluster.chain(cells.chain).path_to(cells.level)}"))
        for pin in vc.pinned:
            words = f"pinned {pin.pinned_cell_id}: {cluster.chain(pin.chain).path_to(pin.level)} no. {pin.index}"
            branch.add(escape(words))
        for line in _access_lines(vc.access):
            branch.add(escape(line))
    return tree


def _access_lines(access: AccessSpec | None) -> Iterator[str]:
    """Who may use a virtual cluster, and how much, where the spec says it."""
    if access is None:
        return
    if access.members:
        yield f"members: {', '.join(access.members)}"
    if access.admins:
        yield f"admins: {', '.join(access.admins)}"
    if limits := limits_of_members(access.max_jobs, access.max_gpus, access.max_priority, access.max_grace_seconds):
        yield f"a member: {limits}"
    if access.file_group:
        yield f"files: read by the group {access.file_group} too"


def _access_json(access: AccessSpec | None) -> dict[str, object]:
    """The same by the keys of the spec."""
    if access is None:
        return {}
    found = {to_camel(name): value for name, value in asdict(access).items()}
    return {key: value for key, value in found.items() if value not in (None, (), "")}


def _to_json(cluster: ClusterSpec, rows: tuple[LevelSafety, ...], short: tuple[Shortage, ...]) -> dict[str, object]:
    return {
        "source": cluster.source,
        "feasible": not short,
        "gpus": cluster.gpus,
        "chains": [
            {
                "name": chain.name,
                "leaf_type": chain.leaf_type,
                "gpus": chain.gpus,
                "nodes": chain.cells_at(chain.node_level),
                "levels": [
                    {"level": n, "cell_type": level.cell_type, "gpus": level.gpus, "node": n == chain.node_level}
                    for n, level in enumerate(chain.levels, 1)
                ],
            }
            for chain in cluster.chains
        ],
        "virtual_clusters": [
            {
                "name": vc.name,
                "gpus": cluster.reserved(vc),
                **({} if vc.opportunistic_weight is None else {"opportunisticWeight": vc.opportunistic_weight}),
                "opportunisticGraceSeconds": vc.opportunistic_grace_seconds,
                "guests": vc.guests,
                **({"policy": vc.policy} if vc.policy else {}),
                **({"safety": vc.safety} if vc.safety == EXACT else {}),
                **_access_json(vc.access),
                "cells": [
                    {"cell_type": cluster.chain(c.chain).path_to(c.level), "level": c.level, "number": c.number}
                    for c in vc.cells
                ],
                "pinned_cells": [
                    {"id": p.pinned_cell_id, "cell_type": cluster.chain(p.chain).path_to(p.level), "index": p.index}
                    for p in vc.pinned
                ],
            }
            for vc in cluster.virtual_clusters
        ],
        "safety": [
            {"pinned" if name == "allocated" else name: said for name, said in asdict(row).items()}
            | {"margin": row.margin}
            for row in rows
        ],
        "shortages": [
            {name: said for name, said in asdict(s).items() if name != "missing_top_cells"}
            | {"by": dict(s.by), "reserve_fewer": s.need - s.supply, "or_add_top_cells": s.missing_top_cells}
            for s in short
        ],
        **({"operators": cluster.operators} if cluster.operators else {}),
        "ignored": [{"key": key, "line": line} for key, line in cluster.ignored],
    }


#: the beginning of the first line of an engine's log
_OPENS = '{"is":"Opened",'


def replay(
    log: Annotated[
        Path,
        typer.Argument(help="What hived events --export or hived serve --event-log wrote; - for standard input."),
    ],
) -> None:
    """Carry an event log out again, and compare every decision byte for byte.

    Every start of an engine opens a log of its own; they are replayed one after the other. Exit code 0: all the same.

    \b
    Examples:
      hived events --export decisions.jsonl && hived sim replay decisions.jsonl
      hived events --export - | hived sim replay -
    """
    starts = line = 0

    def numbered() -> Iterator[str]:
        nonlocal line
        for line, text in enumerate(_log_lines(log), 1):  # noqa: B007  # the number is for the messages below
            yield text

    def start_of(text: str) -> int:
        nonlocal starts
        starts += text.startswith(_OPENS)
        return starts

    with messages().status("replaying") as status:
        for _, start in groupby(numbered(), start_of):
            try:
                carry_out(start, Cluster)
            except ReplayError as error:  # its line numbers count from the start of the engine
                raise InputError(f"{log}:{line}: not the same: {error.what}\n  {error}") from None
            status.update(f"replaying: {counted(line, 'line')}")
    if not line:
        raise InputError(f"{log}: is empty; export a log with: hived events --export FILE")
    typer.echo(f"{counted(line, 'line')} of {counted(starts, 'start')} of an engine: byte for byte the same")


def _log_lines(log: Path) -> Iterator[str]:
    if str(log) == "-":
        yield from sys.stdin
        return
    try:
        with log.open(encoding="utf-8") as file:
            yield from file
    except OSError as error:
        raise InputError(f"{log}: cannot be read ({error.strerror}); give what hived events --export wrote") from None
    except UnicodeDecodeError:
        raise InputError(f"{log}: is no event log (not UTF-8); give what hived events --export wrote") from None
