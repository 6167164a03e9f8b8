"""What the shell completes with the engine's help: jobs, virtual clusters, nodes. No engine, no completion, no word."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

from hived.errors import HivedError

if TYPE_CHECKING:
    from .client import Engine

_PATIENCE_S = 1.0
_MOST = "100"


def complete_job(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names of jobs that have not ended; where the first letters are digits, their ids."""

    def ask(engine: Engine) -> Iterator[tuple[str, str]]:
        active = ("running", "stopping", "reserved", "queued", "backoff")
        ended = () if context.info_name in ("cancel", "wait") else ("succeeded", "failed", "cancelled")
        for states in (active, ended):
            if states:
                for job in engine.get("/v1/jobs", state=states, limit=_MOST)["jobs"]:
                    yield (str(job["id"]) if incomplete.isdigit() else job["name"], f"{job['state']}, {job['vc']}")

    return _completed(context, incomplete, ask)


def complete_vc(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names of the virtual clusters."""
    return _completed(context, incomplete, lambda engine: ((vc, "") for vc in engine.get("/v1/about")["vcs"]))


def complete_node(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Names of the nodes."""

    def ask(engine: Engine) -> Iterator[tuple[str, str]]:
        nodes = dict.fromkeys(device["node"] for device in engine.get("/v1/devices"))
        return ((node, "") for node in nodes)

    return _completed(context, incomplete, ask)


def _completed(
    context: typer.Context, incomplete: str, ask: Callable[[Engine], Iterator[tuple[str, str]]]
) -> list[tuple[str, str]]:
    from .client import connect  # not before somebody asks: it takes a while

    found: list[tuple[str, str]] = []
    given = context.params
    with (
        contextlib.suppress(HivedError, OSError, KeyError, TypeError, AttributeError),
        connect(given.get("engine"), given.get("state"), given.get("token_file"), _PATIENCE_S) as engine,
    ):
        for name, words in ask(engine):
            if name.startswith(incomplete) and name.isprintable() and " " not in name:
                found.append((name, words if words.isprintable() else ""))
    return found
