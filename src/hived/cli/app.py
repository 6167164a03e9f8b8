"""The ``hived`` command: its verbs, and what becomes of errors.

Exit codes: 0 done; 2 what was given is wrong or does not fit; 70 a bug of ours; 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hived import __version__
from hived.errors import HivedError

from .check import check
from .console import messages
from .simulate import simulate
from .spec import spec_app
from .trace import trace_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Share a GPU cluster so that no tenant is worse off than on a private one (HiveD, Gandiva, AntMan).",
    epilog="Start with: hived simulate    Exit codes: 0 done, 2 wrong or infeasible input, 70 a bug, 130 interrupted.",
)
app.command()(check)
app.command()(simulate)
app.add_typer(spec_app, name="spec")
app.add_typer(trace_app, name="trace")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hived {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; every error that was raised on purpose becomes one line and its exit code."""
    try:
        app()
    except HivedError as error:
        messages().print(f"hived: {error}", markup=False)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has left
        sys.stderr.close()
        sys.exit(0)
