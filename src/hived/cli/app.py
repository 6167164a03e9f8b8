"""The ``hived`` command: its verbs, and what becomes of errors.

Exit codes: 0 done; 2 what was given is wrong or does not fit; 3 it never fits; 4 no such thing; 69 no engine answers,
or it is not ready; 70 a bug of ours; 73 what has to be kept cannot be written; 77 not permitted; 124 out of time;
130 interrupted; 143 terminated. ``submit --follow`` and ``wait`` exit as the job did.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from typing import Annotated, Any

import typer

from hived import __version__
from hived.errors import HivedError

from .console import messages, show_verbs
from .formats import clean_lines
from .verbs import Verbs

#: what typer raises for options that cannot be understood; it exports only this child of it
_UsageError: Any = typer.BadParameter.__bases__[0]

_EPILOG = (
    "Exit codes: 0 done; 2 wrong input, infeasible, or would wait; 3 never fits; 4 no such job, group or node; "
    "69 no engine answers, or it is not ready; 70 a bug; 73 cannot be written; 77 not permitted; 124 out of time; "
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


def main() -> None:
    """Run the command line; every error that was raised on purpose becomes one line and its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half-written is cleaned up
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that this terminal's encoding lacks must not end a command
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except HivedError as error:
        _complain(str(error))
        code = error.exit_code
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "hived"
        _complain(f"{' '.join(error.format_message().split())} (see {command} --help)")
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # the reader of our output has left: say nothing, and let nothing be flushed into the void
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception:  # not raised on purpose: a bug, loud, with all that helps to mend it
        traceback.print_exc()
        _complain("this is a bug of hived; please report it with the input")
        code = 70
    sys.exit(code)


def _complain(message: str) -> None:
    messages().print(f"hived: {clean_lines(message)}", markup=False)
