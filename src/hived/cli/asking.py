"""What verbs that ask an engine share: the options that say where it is and what to print, and printing an answer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hived.server.schema import EngineKind

from .addresses import SCHEDULER_URL
from .client import NOTHING, Engine, connect
from .formats import Form, print_answer

_option = functools.partial(typer.Option, rich_help_panel="Where the engine is")
_REACH = "reach that of the cluster with kubectl port-forward, or say with --engine where it is"
_FORM = Annotated[Form, typer.Option("-o", "--output", help="For people, or for programs as the engine says it.")]
_STATE = Annotated[
    Path | None,
    _option(
        "--state",
        metavar="DIR",
        readable=False,  # who is let in to the socket need not be able to list the folder
        help="The engine's folder; or set HIVED_STATE. Its socket is the engine's address.",
        show_default="~/.local/state/hived",
    ),
]
_ENGINE = Annotated[
    str | None,
    _option("--engine", metavar="URL", help="An engine that listens elsewhere, http://host:port; or set HIVED_ENGINE."),
]
_SCHEDULER = Annotated[
    str | None,
    _option(
        "--engine",
        metavar="URL",
        help="Where hived serve kubernetes listens; or set HIVED_ENGINE.",
        show_default=SCHEDULER_URL,
    ),
]
_TOKEN = Annotated[
    Path | None, _option("--token-file", metavar="FILE", help="Holds the token for --engine; or set HIVED_TOKEN.")
]


@dataclass(frozen=True, slots=True)
class Asking:
    """What was given for the options that all verbs for an engine have."""

    form: Form
    engine: str | None
    token_file: Path | None
    state: Path | None = None

    def connect(self, instead: Mapping[EngineKind, str] = NOTHING) -> AbstractContextManager[Engine]:
        """The engine; ``instead``: see :func:`~.client.connect`."""
        return connect(self.engine, self.state, self.token_file, instead=instead)

    def scheduler(self, on_one_machine: str) -> AbstractContextManager[Engine]:
        """The engine on Kubernetes; that of one machine is refused, and ``on_one_machine`` named as the verb for it."""
        instead: Mapping[EngineKind, str] = {"local": on_one_machine}
        return connect(self.engine, None, self.token_file, default=SCHEDULER_URL, instead=instead, start=_REACH)

    def printed(self, answer: object, *, one_of_many: bool = False) -> bool:
        """Print an answer for programs, if that is asked for; whether it was."""
        if self.form is not Form.TABLE:
            print_answer(answer, self.form, one_of_many=one_of_many)
        return self.form is not Form.TABLE


def asks_engine(verb: Callable[..., None]) -> Callable[..., None]:
    """``verb``, which takes an :class:`Asking` first, as a command that has the options for it after its own."""
    return _with_options(verb, engine=_ENGINE, state=_STATE, token_file=_TOKEN)


def asks_scheduler(verb: Callable[..., None]) -> Callable[..., None]:
    """The same for a verb that only the engine on Kubernetes has."""
    return _with_options(verb, engine=_SCHEDULER, token_file=_TOKEN)


def _with_options(verb: Callable[..., None], **options: Any) -> Callable[..., None]:
    own = inspect.signature(verb, eval_str=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter("form", kind, default=Form.TABLE, annotation=_FORM)]
    shared += [inspect.Parameter(name, kind, default=None, annotation=option) for name, option in options.items()]

    @functools.wraps(verb)
    def command(**given: Any) -> None:
        verb(Asking(**{one.name: given.pop(one.name) for one in shared}), **given)

    parameters = [*list(own.parameters.values())[1:], *shared]
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    return command
