"""The ``hived`` command: its verbs, and the handling of errors.

A verb's module is imported when the verb is called, so that no verb pays for the imports of another.

Exit codes: 0 done; 1 spec diff: it differs; 2 the input is wrong or does not fit; 3 it never fits; 4 no such thing; 5 a
policy fails; 69 no engine answers, or it is not ready; 70 a bug of ours; 73 the state cannot be written; 77 not
permitted; 124 out of time; 130 interrupted; 143 terminated. ``submit --follow`` and ``wait`` exit with the job's code.
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
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from hived import __version__
from hived.errors import HivedError, InputError

from . import slurm
from .console import messages, show_verbs
from .escaping import clean_lines


@dataclass(frozen=True, slots=True)
class Verb:
    """The location of a verb, and its line in ``hived --help``; or a noun, with the verbs below it."""

    panel: str
    name: str
    line: str
    module: str = ""  #: in this package
    function: str = ""  #: the name, unless given
    settings: Mapping[str, object] = field(default_factory=dict)
    verbs: tuple[Verb, ...] = ()  #: of a noun
    hidden: bool = False

    def listed(self) -> TyperCommand:
        """The verb's entry in the overview."""
        return TyperCommand(
            name=self.name, help=self.line, short_help=self.line, rich_help_panel=self.panel, hidden=self.hidden
        )

    def loaded(self) -> Any:
        """The command: imported, or a group whose verbs are imported when they are called."""
        if self.verbs:
            return _group(self.verbs, self.name, help=self.line, callback=show_verbs)
        found = getattr(import_module(f".{self.module}", __package__), self.function or self.name)
        one = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        one.command(self.name, context_settings=dict(self.settings))(found)
        return typer.main.get_command(one)


_JOBS, _CLUSTER = "Jobs", "The engine and its cluster"
_NOUNS = "More of"
_WITH_A_COMMAND = {"allow_interspersed_args": False}  #: all words after the first belong to the job
_SIMULATE = "A trace under the sharing schemes: tables and figures"
_CHECK = "Whether the virtual clusters of a spec fit, or why not"


def _noun(name: str, line: str, *verbs: tuple[str, str, str, str]) -> Verb:
    """A noun with its verbs: name, line, module and function of each."""
    runs = ("run", "search") if name == "train" else ()
    below = tuple(
        Verb("Verbs", verb, of, module, function, _WITH_A_COMMAND if verb in runs else {})
        for verb, of, module, function in verbs
    )
    return Verb(_NOUNS, name, line, verbs=below)


VERBS = (
    Verb(_JOBS, "submit", "Run a command on GPUs of a virtual cluster", "submit", settings=_WITH_A_COMMAND),
    Verb(_JOBS, "shell", "A shell on GPUs, on this terminal", "shell", settings=_WITH_A_COMMAND),
    Verb(_JOBS, "ps", "Jobs that run and wait", "job_lists"),
    Verb(_JOBS, "logs", "What a job prints", "logs"),
    Verb(_JOBS, "explain", "Why a job waits, where it runs, how it ended", "jobs"),
    Verb(_JOBS, "plan", "What would become of a job or manifests, without submitting", "plan"),
    Verb(_JOBS, "wait", "Wait until jobs have ended", "jobs"),
    Verb(_JOBS, "cancel", "Withdraw or stop jobs", "jobs"),
    Verb(_JOBS, "hold", "Keep waiting jobs out of line", "jobs"),
    Verb(_JOBS, "release", "Let held jobs go into line again", "jobs"),
    Verb(_JOBS, "requeue", "Queue jobs again that run, or have ended", "jobs"),
    Verb(_JOBS, "edit", "Another size of a job that waits, or time limit of any", "jobs", "edit"),
    Verb(_JOBS, "priority", "Another priority of a job that waits or takes turns", "jobs", "priority_"),
    Verb(_JOBS, "history", "Jobs that have ended: how, when, after how long", "job_lists"),
    Verb(_CLUSTER, "up", "Run jobs of several tenants on this machine", "up"),
    Verb(
        _CLUSTER,
        "serve",
        "Decide for a Kubernetes cluster",
        verbs=(Verb("Verbs", "kubernetes", "Answer kube-scheduler: who gets which GPUs, who waits and why", "serve"),),
    ),
    Verb(_CLUSTER, "top", "The cluster, live, on the whole screen", "top"),
    Verb(_CLUSTER, "dashboard", "A link with which a browser acts as you, once", "dashboard"),
    Verb(_CLUSTER, "devices", "GPUs: which jobs have them, which take no jobs, and why", "machine", "list_nodes"),
    Verb(_CLUSTER, "usage", "GPU hours by user and virtual cluster", "usage"),
    Verb(_CLUSTER, "events", "What happened, and what happens now", "machine"),
    Verb(_CLUSTER, "drain", "Keep new jobs off devices or nodes, or let them come again", "machine"),
    _noun(
        "vc",
        "Virtual clusters: what they have reserved, what runs and waits in them",
        ("ls", "All of them, the GPUs of the cluster, and what the spec promises", "vc", "list_vcs"),
        ("show", "One: its cells, and its jobs in the order of their turns", "vc", "show_vc"),
    ),
    _noun(
        "trade",
        "Cells that virtual clusters trade",
        ("ls", "Offers, requests, trades, and who has given how much", "trade", "list_trades"),
        ("offer", "Give cells of a virtual cluster away for a while", "trade", "offer"),
        ("request", "Ask for cells of others for a while", "trade", "request"),
        ("withdraw", "Withdraw an offer or a request", "trade", "withdraw"),
    ),
    _noun(
        "token",
        "Tokens of people, for an engine that is reached over the network",
        ("create", "Give somebody a token of their own", "tokens", "create"),
        ("ls", "Those in force: whose, until when, and who made them", "tokens", "list_tokens"),
        ("revoke", "End a token at once", "tokens", "revoke"),
    ),
    _noun(
        "spec",
        "Cluster specs: check and make them, and the one in force",
        ("check", _CHECK, "spec", "check"),
        ("show", "The one in force, as YAML", "spec_in_force", "show"),
        ("diff", "What a file would change in the one in force", "spec_in_force", "diff"),
        ("apply", "Put a file in its place, under running jobs", "spec_in_force", "apply"),
        ("from-quotas", "Of percentages of the cluster", "make_spec", "from_quotas"),
        ("from-demand", "Of what the jobs of a trace need", "make_spec", "from_demand"),
    ),
    _noun(
        "trace",
        "Traces of jobs: make and describe them",
        ("generate", "A synthetic one, as the paper's", "simulate", "generate"),
        ("describe", "What is in one", "simulate", "describe_trace"),
    ),
    _noun(
        "sim",
        "Simulations: run them, and look at their results",
        ("run", _SIMULATE, "simulate", "simulate"),
        ("sweep", "Many in parallel: one Parquet file, means with confidence intervals", "sweep", "sweep"),
        ("view", "The dashboard over the results", "view", "view"),
        ("timeline", "Who runs on the GPUs of a node, and when: a picture", "timeline", "timeline"),
        ("replay", "An exported event log carried out again, byte for byte", "spec", "replay"),
    ),
    _noun(
        "train",
        "Training jobs of PyTorch that obey while they run",
        ("run", "Run a training script that obeys the verbs below", "training", "run"),
        ("status", "What it does, its memory, its mini-batches", "training", "status"),
        ("suspend", "Free its device, and stop it, at the end of a mini-batch", "training", "suspend"),
        ("resume", "Let it go on where it was", "training", "resume"),
        ("limit", "Change its device memory and its share of the device's time", "training", "limit"),
        ("migrate", "Move it to another device, or to another host", "training", "migrate"),
        ("scale", "Grow or shrink it, if it is elastic", "training", "scale"),
        ("search", "Try configurations as jobs, the most promising first", "search", "search"),
    ),
    _noun(
        "context",
        "Engines by name, and which one the verbs speak to",
        ("ls", "All of them", "context", "ls"),
        ("show", "What answers, and the spec in force", "context", "show"),
        ("add", "Add an engine by name, or change it", "context", "add"),
        ("use", "Make one the current one", "context", "use"),
        ("rm", "Remove one", "context", "remove"),
    ),
    # -- a verb that works on files goes here
    # the names by which programs check specs and simulate: a contract
    Verb(_NOUNS, "check", _CHECK, "spec", hidden=True),
    Verb(_NOUNS, "simulate", _SIMULATE, "simulate", hidden=True),
)


class Verbs(TyperGroup):
    """A group of verbs, each imported when it is called."""

    verbs: ClassVar[tuple[Verb, ...]] = VERBS

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._verbs = {verb.name: verb for verb in self.verbs}
        self.commands = {verb.name: verb.listed() for verb in self.verbs}

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise BrokenPipeError from None  # without its errno, by which typer would treat it as a failure

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that ``args`` begin with, imported."""
        if args and args[0] not in self._verbs and (here := slurm.PROGRAMS.get(args[0])) is not None:
            raise InputError(f"{args[0]} is Slurm's; here it is hived {here} (docs/howto/from-slurm.md)")
        if args and args[0] not in self._verbs and (here := slurm.ELSEWHERE.get(args[0])) is not None:
            raise InputError(f"there is no verb {args[0]}; here it is hived {here}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None or command is None else self._verbs[name].loaded(), rest


def _group(verbs: tuple[Verb, ...], name: str, **settings: Any) -> Any:
    """The command of a noun."""
    own = type("Noun", (Verbs,), {"verbs": verbs})
    below = typer.Typer(
        cls=own, invoke_without_command=True, add_completion=False, pretty_exceptions_enable=False,
        rich_markup_mode="rich", **settings,
    )  # fmt: skip
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    one.add_typer(below, name=name)
    group: Any = typer.main.get_command(one)
    return group.commands[name]


#: typer's error for invalid options; typer exports only this subclass of it
_UsageError: Any = typer.BadParameter.__bases__[0]

_EPILOG = (
    "Exit codes: 0 done; 1 spec diff: it differs; 2 wrong input, infeasible, or would wait; 3 never fits; "
    "4 no such job, node or context; "
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
        code = command(standalone_mode=False, prog_name="hived" if command is app else None)
        sys.stdout.flush()
    except HivedError as error:
        _complain(str(error))
        code = error.exit_code
    except _UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "hived"
        said = " ".join(error.format_message().split())
        verb = path.rpartition(" ")[2]
        text = slurm.option_here(str(getattr(error, "option_name", "")), verb) or said + slurm.value_here(said)
        if said.startswith("Missing option '--vc'") and any(word.startswith("--vc") for word in sys.argv):
            text += " (it is there, behind the program: options come before it)"
        _complain(f"{text} (see {path} --help)")
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
