"""``hived spec``: making cluster specs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hived.cluster import check_feasible
from hived.errors import InputError
from hived.spec import parse_spec, read_quotas, spec_from_quotas

from .console import show_verbs

spec_app = typer.Typer(invoke_without_command=True, callback=show_verbs, help="Make cluster specs.")


@spec_app.command("from-quotas")
def from_quotas(
    nodes: Annotated[int, typer.Option(help="Nodes of the cluster.", min=1)],
    quotas: Annotated[Path, typer.Option(help="CSV with the columns tenant and quota_pct.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The spec to write; - for standard output.")] = Path(
        "-"
    ),
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of one node, a power of two.", min=1)] = 8,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the file.")] = False,
) -> None:
    """Turn quotas (percent of the cluster) into a spec in which every tenant reserves whole nodes.

    Nodes are shared out by largest remainder, at least one to each tenant.

    Example: hived spec from-quotas --nodes 200 --quotas tenants.csv -o spec.yaml
    """
    text = spec_from_quotas(nodes, read_quotas(quotas), gpus_per_node=gpus_per_node)
    check_feasible(parse_spec(text, str(output)))
    if str(output) == "-":
        typer.echo(text, nl=False)
        return
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{output}: exists already; give --force to overwrite it") from None
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror}); choose another -o") from None
    typer.echo(f"{output}: {nodes} nodes of {gpus_per_node} GPUs", err=True)
