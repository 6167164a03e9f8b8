"""The flags of a scenario, derived from its parameters; a file of parameters, which flags override."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from hived.errors import InputError
from hived.simulator.scenario import FIELDS, ParameterError, Scenario, kind_of
from hived.simulator.sweep import AXES, axis, load_axes
from hived.spec.document import located

from .shared_options import with_options

_PANEL, _LISTED = "The scenario", "The scenario: a list by commas is a run each"
_FILE = Annotated[
    Path | None,
    typer.Option(
        "--scenario",
        metavar="FILE",
        help="Parameters as a YAML file (docs/howto/simulate.md). The flags below override it.",
        rich_help_panel=_PANEL,
    ),
]


def takes_scenario(verb: Callable[..., None]) -> Callable[..., None]:
    """The command of ``verb``, whose first parameter is a :class:`Scenario`."""

    def made(scenario: Path | None, **flags: Any) -> Scenario:
        loaded = Scenario() if scenario is None else Scenario.load(scenario)
        with naming_flags():
            return loaded.replace(**{name: _value(name, given) for name, given in _given(flags)})

    return with_options(verb, _parameters({name: _option(name) for name in FIELDS}), made)


def takes_axes(verb: Callable[..., None]) -> Callable[..., None]:
    """The command of ``verb``, whose first parameter has the values of each parameter of a sweep but the seed."""
    names = [name for name in AXES if name != "seed"]

    def made(scenario: Path | None, **flags: Any) -> dict[str, list[Any]]:
        axes = {} if scenario is None else load_axes(scenario)
        return axes | {name: _values(name, given) for name, given in _given(flags)}

    return with_options(verb, _parameters({name: _option(name, listed=True) for name in names}), made)


def flag_of(name: str) -> str:
    """The flag of a parameter."""
    return f"--{FIELDS[name].name or name.replace('_', '-')}"


def _parameters(options: Mapping[str, Any]) -> list[Parameter]:
    named = {"scenario": _FILE, **options}
    return [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=one) for name, one in named.items()]


def _option(name: str, *, listed: bool = False) -> Any:
    """The option of a parameter: None where it is not given. ``listed``: a list of values by commas."""
    flag, field, kind = FIELDS[name], Scenario.model_fields[name], kind_of(name)
    words = [one.value for one in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    listed = listed and not flag.commas
    settings: dict[str, Any] = {
        "help": " ".join([str(field.description), *_bounds(field)]),
        "show_default": flag.default or _text(field.default),
        "rich_help_panel": _LISTED if listed and kind is not bool and len(axis(name, ["a", "b"])) > 1 else _PANEL,
    }
    if kind is bool:
        return Annotated[bool | None, typer.Option(f"{flag_of(name)}/--no-{flag_of(name)[2:]}", **settings)]
    metavar = flag.metavar or "|".join(words) or {int: "N", float: "X"}.get(kind, "NAME")
    settings["metavar"] = f"{metavar},..." if listed else metavar
    if words:
        settings["autocompletion"] = lambda: words
    value: Any = Path if flag.path and not listed else str
    if flag.several and not listed:
        value = list[value]
        settings["help"] += " Again for more."
    return Annotated[value | None, typer.Option(flag_of(name), **settings)]


def _bounds(field: FieldInfo) -> list[str]:
    """The bounds of a number, in a sentence."""
    words = {"gt": "above", "ge": "at least", "le": "at most"}
    bounds = [
        (word, getattr(one, name)) for one in field.metadata for name, word in words.items() if hasattr(one, name)
    ]
    sentence = ", ".join(f"{word} {bound:,.12g}" for word, bound in bounds)
    return [f"{sentence.capitalize()}."] if bounds else []


def _text(default: Any) -> Any:
    """A default in the help; False: none is shown."""
    if default is None or default == () or isinstance(default, bool):
        return False
    return str(default.value if isinstance(default, Enum) else default)


def _given(flags: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in flags.items() if value not in (None, [])]


def _value(name: str, given: Any) -> Any:
    """The value of a word on the command line; of a word for a number that is none, the word."""
    if kind_of(name) not in (int, float):
        return given
    for kind in (int, float):
        try:
            return kind(given)
        except ValueError:
            pass
    return given


def _values(name: str, given: Any) -> list[Any]:
    """The values of a list by commas, checked."""
    if not isinstance(given, str) or FIELDS[name].commas:
        return [given]
    values = axis(name, [_value(name, word) for word in words_of(flag_of(name), given)])
    with naming_flags():
        for value in values:
            Scenario(**{name: value})
    return values


@contextmanager
def naming_flags() -> Iterator[None]:
    """Errors of parameters name their flags."""
    try:
        yield
    except ParameterError as error:
        messages = [f"{flag_of(str(path[0]))}: {located(path[1:], message)}" for path, message in error.wrong]
        raise InputError("; ".join(messages)) from None


def words_of(flag: str, text: str) -> list[str]:
    """The words of a list by commas."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InputError(f"{flag} {text}: a value is empty; give values by commas, such as 1,2")
    return words
