"""Commands whose options are shared by several verbs, or derived."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence


def with_options(
    verb: Callable[..., None], shared: Sequence[inspect.Parameter], first: Callable[..., object]
) -> Callable[..., None]:
    """The command of ``verb``; ``first`` makes its first argument of the ``shared`` options, which follow its own."""
    own = inspect.signature(verb, eval_str=True)

    @functools.wraps(verb)
    def command(**given: object) -> None:
        verb(first(**{one.name: given.pop(one.name) for one in shared}), **given)

    parameters = [*list(own.parameters.values())[1:], *shared]
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    return command
