"""Which verbs there are. Each is loaded when it is called, so that none waits for what another needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class Verb:
    """Where one verb is, and its line in ``hived --help``."""

    panel: str
    name: str
    line: str
    module: str  #: in this package
    function: str = ""  #: the name, unless given; or a :class:`typer.Typer`, a group of verbs
    settings: Mapping[str, object] = field(default_factory=dict)

    def listed(self) -> TyperCommand:
        """What the overview shows of it."""
        return TyperCommand(name=self.name, help=self.line, short_help=self.line, rich_help_panel=self.panel)

    def loaded(self) -> Any:
        """The command itself."""
        found = getattr(import_module(f".{self.module}", __package__), self.function or self.name)
        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        if isinstance(found, typer.Typer):
            one.add_typer(found, name=self.name)
            group: Any = typer.main.get_command(one)
            return group.commands[self.name]
        one.command(self.name, context_settings=dict(self.settings))(found)
        return typer.main.get_command(one)


_JOBS, _MACHINE = "Jobs", "The engine and its machine"
_KUBERNETES, _STUDY = "The cluster on Kubernetes", "Specs, traces and simulation"
_WITH_A_COMMAND = {"allow_interspersed_args": False}  #: what follows the first word belongs to the job

VERBS = (
    Verb(_MACHINE, "up", "Run jobs of several tenants on this machine", "up"),
    Verb(_MACHINE, "drain", "Keep new jobs off devices or nodes, or let them come again", "drain"),
    Verb(_MACHINE, "events", "What happened, and what happens now", "events"),
    Verb(_MACHINE, "top", "The cluster, live, on the whole screen", "top"),
    Verb(_JOBS, "submit", "Run a command on GPUs of a virtual cluster", "submit", settings=_WITH_A_COMMAND),
    Verb(_JOBS, "ps", "Jobs that run and wait", "jobs"),
    Verb(_JOBS, "logs", "What a job prints", "logs"),
    Verb(_JOBS, "explain", "Why a job or group waits, where it runs, how it ended", "jobs"),
    Verb(_JOBS, "plan", "What would become of a job or manifests, without submitting", "plan"),
    Verb(_JOBS, "wait", "Wait until jobs have ended", "jobs"),
    Verb(_JOBS, "cancel", "Withdraw or stop jobs", "jobs"),
    Verb(_KUBERNETES, "serve", "Decide for a Kubernetes cluster", "serve", "serve_app"),
    Verb(_KUBERNETES, "status", "Who decides, the spec, nodes, GPUs, virtual clusters", "kubernetes"),
    Verb(_KUBERNETES, "vc", "Virtual clusters: their cells, who runs and waits in them", "kubernetes", "vc_app"),
    Verb(_KUBERNETES, "groups", "Affinity groups: where they are, or why they wait", "kubernetes"),
    # -- a verb that works on files goes here
    Verb(_STUDY, "simulate", "A trace under the sharing schemes: tables and figures", "simulate"),
    Verb(_STUDY, "view", "The dashboard over the results of a simulation", "view"),
    Verb(_STUDY, "replay", "An exported event log carried out again, byte for byte", "replay"),
    Verb(_STUDY, "check", "Whether the virtual clusters of a spec fit, or why not", "spec"),
    Verb(_STUDY, "spec", "Make cluster specs", "spec", "spec_app"),
    Verb(_STUDY, "trace", "Make and describe traces", "trace", "trace_app"),
)


class Verbs(TyperGroup):
    """The group of :data:`VERBS`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._verbs = {verb.name: verb for verb in VERBS}
        self.commands = {verb.name: verb.listed() for verb in VERBS}

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise BrokenPipeError from None  # without its number, by which typer would take it for a failure

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that ``args`` begin with, now really loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None or command is None else self._verbs[name].loaded(), rest
