"""What the shell completes with the engine's help: jobs, virtual clusters, nodes. No engine, no completion, no word."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

from hived.errors import HivedError

from .addresses import SCHEDULER_URL
from .formats import ACTIVE, ENDED

if TYPE_CHECKING:
    from .client import Engine

_PATIENCE_S = 1.0
_MOST = "100"
_ON_KUBERNETES = ("groups", "show")  #: verbs with a virtual cluster to be completed


def complete_job(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names of jobs that have not ended; where the first letters are digits, their ids. On Kubernetes: of groups."""

    def ask(engine: Engine) -> Iterator[tuple[str, str]]:
        if engine.kind == "kubernetes":
            for group in engine.get("/v1/groups", limit=_MOST)["groups"]:
                yield group["name"], f"{group['state']}, {group['vc']}"
            return
        for states in (ACTIVE,) if context.info_name in ("cancel", "wait") else (ACTIVE, ENDED):
            for job in engine.get("/v1/jobs", state=states, limit=_MOST)["jobs"]:
                yield (str(job["id"]) if incomplete.isdigit() else job["name"], f"{job['state']}, {job['vc']}")

    return _completed(context, incomplete, ask)


def complete_vc(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names of the virtual clusters; verbs that only Kubernetes has look for its engine where it is by default."""
    return _completed(context, incomplete, _vcs, SCHEDULER_URL if context.info_name in _ON_KUBERNETES else None)


def _vcs(engine: Engine) -> Iterator[tuple[str, str]]:
    if engine.kind == "kubernetes":
        return ((vc["name"], f"{vc['reserved']} GPUs") for vc in engine.get("/v1/vcs"))
    return ((vc, "") for vc in engine.get("/v1/about")["vcs"])


def complete_node(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names of the nodes."""

    def ask(engine: Engine) -> Iterator[tuple[str, str]]:
        if engine.kind == "kubernetes":
            chains = engine.get("/v1/dashboard/layout")["views"][0]["chains"]
            return ((node, "") for chain in chains for node in chain["nodes"])
        nodes = dict.fromkeys(device["node"] for device in engine.get("/v1/devices"))
        return ((node, "") for node in nodes)

    return _completed(context, incomplete, ask)


def _completed(
    context: typer.Context,
    incomplete: str,
    ask: Callable[[Engine], Iterator[tuple[str, str]]],
    default: str | None = None,
) -> list[tuple[str, str]]:
    from .client import connect  # not before somebody asks: it takes a while

    found: list[tuple[str, str]] = []
    given = context.params
    with (
        contextlib.suppress(HivedError, OSError, LookupError, TypeError, AttributeError),
        connect(
            given.get("engine"), given.get("state"), given.get("token_file"), _PATIENCE_S, default=default
        ) as engine,
    ):
        for name, words in ask(engine):
            if name.startswith(incomplete) and name.isprintable() and " " not in name:
                found.append((name, words if words.isprintable() else ""))
    return found
