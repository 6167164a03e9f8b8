"""The ``hived`` command: its verbs, and the handling of errors.

A verb's module is imported when the verb is called, so that no verb pays for the imports of another.

Exit codes: 0 done; 2 the input is wrong or does not fit; 3 it never fits; 4 no such thing; 5 a policy fails; 69 no
engine answers, or it is not ready; 70 a bug of ours; 73 the state cannot be written; 77 not permitted; 124 out of time;
130 interrupted; 143 terminated. ``submit --follow`` and ``wait`` exit with the job's exit code.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hived import __version__
from hived.errors import HivedError

from .console import messages, show_verbs
from .escaping import clean_lines


@dataclass(frozen=True, slots=True)
class Verb:
    """The location of a verb, and its line in ``hived --help``."""

    panel: str
    name: str
    line: str
    module: str  #: in this package
    function: str = ""  #: the name, unless given; or a :class:`typer.Typer`, a group of verbs
    settings: Mapping[str, object] = field(default_factory=dict)

    def listed(self) -> TyperCommand:
        """The verb's entry in the overview."""
        return TyperCommand(name=self.name, help=self.line, short_help=self.line, rich_help_panel=self.panel)

    def loaded(self) -> Any:
        """The imported command."""
        found = getattr(import_module(f".{self.module}", __package__), self.function or self.name)
        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        if isinstance(found, typer.Typer):
            one.add_typer(found, name=self.name)
            group: Any = typer.main.get_command(one)
            return group.commands[self.name]
        one.command(self.name, context_settings=dict(self.settings))(found)
        return typer.main.get_command(one)


_JOBS, _MACHINE = "Jobs", "The engine and its machine"
_TRADES = "Trades of cells"
_TRAINING = "Training jobs of PyTorch on this machine"
_KUBERNETES, _STUDY = "The cluster on Kubernetes", "Specs, traces and simulation"
_WITH_A_COMMAND = {"allow_interspersed_args": False}  #: all words after the first belong to the job

VERBS = (
    Verb(_MACHINE, "up", "Run jobs of several tenants on this machine", "up"),
    Verb(_MACHINE, "drain", "Keep new jobs off devices or nodes, or let them come again", "machine"),
    Verb(_MACHINE, "events", "What happened, and what happens now", "machine"),
    Verb(_MACHINE, "top", "The cluster, live, on the whole screen", "top"),
    Verb(_JOBS, "submit", "Run a command on GPUs of a virtual cluster", "submit", settings=_WITH_A_COMMAND),
    Verb(_JOBS, "ps", "Jobs that run and wait", "jobs"),
    Verb(_JOBS, "logs", "What a job prints", "jobs"),
    Verb(_JOBS, "explain", "Why a job or group waits, where it runs, how it ended", "jobs"),
    Verb(_JOBS, "plan", "What would become of a job or manifests, without submitting", "plan"),
    Verb(_JOBS, "wait", "Wait until jobs have ended", "jobs"),
    Verb(_JOBS, "cancel", "Withdraw or stop jobs", "jobs"),
    Verb(_TRAINING, "run", "Run a training script that obeys the verbs below", "training", settings=_WITH_A_COMMAND),
    Verb(_TRAINING, "suspend", "Free its device, and stop it, at the end of a mini-batch", "training"),
    Verb(_TRAINING, "resume", "Let it go on where it was", "training"),
    Verb(_TRAINING, "limit", "Change its device memory and its share of the device's time", "training"),
    Verb(_TRAINING, "migrate", "Move it to another device, or to another host", "training"),
    Verb(_TRAINING, "scale", "Grow or shrink it, if it is elastic", "training"),
    Verb(_TRADES, "offer", "Give cells of a virtual cluster away for a while", "exchange"),
    Verb(_TRADES, "request", "Ask for cells of others for a while", "exchange"),
    Verb(_TRADES, "withdraw", "Withdraw an offer or a request", "exchange"),
    Verb(_TRADES, "trades", "Offers, requests, trades, and who has given how much", "exchange"),
    Verb(_KUBERNETES, "serve", "Decide for a Kubernetes cluster", "serve", "serve_app"),
    Verb(_KUBERNETES, "status", "Who decides, the spec, nodes, GPUs; or a training job", "kubernetes"),
    Verb(_KUBERNETES, "vc", "Virtual clusters: their cells, who runs and waits in them", "kubernetes", "vc_app"),
    Verb(_KUBERNETES, "groups", "Affinity groups: where they are, or why they wait", "kubernetes"),
    # -- a verb that works on files goes here
    Verb(_STUDY, "simulate", "A trace under the sharing schemes: tables and figures", "simulate"),
    Verb(_STUDY, "sweep", "Many simulations in parallel: one Parquet file, means with confidence intervals", "sweep"),
    Verb(_STUDY, "view", "The dashboard over the results of a simulation", "view"),
    Verb(_STUDY, "timeline", "Who runs on the GPUs of a node, and when: a picture", "timeline"),
    Verb(_STUDY, "replay", "An exported event log carried out again, byte for byte", "spec"),
    Verb(_STUDY, "check", "Whether the virtual clusters of a spec fit, or why not", "spec"),
    Verb(_STUDY, "spec", "Make cluster specs", "make_spec", "spec_app"),
    Verb(_STUDY, "trace", "Make and describe traces", "simulate", "trace_app"),
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
            raise BrokenPipeError from None  # without its errno, by which typer would treat it as a failure

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that ``args`` begin with, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None or command is None else self._verbs[name].loaded(), rest


#: typer's error for invalid options; typer exports only this subclass of it
_UsageError: Any = typer.BadParameter.__bases__[0]

_EPILOG = (
    "Exit codes: 0 done; 2 wrong input, infeasible, or would wait; 3 never fits; 4 no such job, group or node; "
    "5 a policy fails; 69 no engine answers, or it is not ready; 70 a bug; 73 cannot be written; 77 not permitted; "
    "124 out of time; "
    "130 interrupted; 143 terminated. submit --follow and wait: the job's own."
)

app = typer.Typer(
    cls=Verbs,
    invoke_without_command=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Share a GPU cluster so that each tenant has what a private one would give it (HiveD, Gandiva, AntMan).",
    epilog=_EPILOG,
)


def _version(asked: bool) -> None:
    if asked:
        from hived.installed import form

        typer.echo(f"hived {__version__} ({form()})")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    show_verbs(context)


def main(command: Callable[..., Any] = app) -> None:
    """Run the command line, or another ``command``; every :class:`HivedError` becomes one line and its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that partial files are cleaned up
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that this terminal's encoding lacks must not end a command
            stream.reconfigure(errors="backslashreplace")
    try:
        code = command(standalone_mode=False)
        sys.stdout.flush()
    except HivedError as error:
        _complain(str(error))
        code = error.exit_code
    except _UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "hived"
        _complain(f"{' '.join(error.format_message().split())} (see {path} --help)")
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # the reader of our output has left: print nothing, and flush nothing at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception:  # not one of our errors: a bug, with its traceback
        traceback.print_exc()
        _complain("this is a bug of hived; please report it with the input")
        code = 70
    sys.exit(code)


def _complain(message: str) -> None:
    messages().print(f"hived: {clean_lines(message)}", markup=False)
