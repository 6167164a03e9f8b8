"""Validation of plain data against the model; one error lists all violations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hived.errors import SpecError

from .document import Document, KeyPath, did_you_mean, located, shown
from .model import IGNORED_KEYS, Spec, keys_allowed

#: errors of form listed in one message at most
MAX_LISTED = 10

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}


def check_form(document: Document) -> tuple[Spec, tuple[tuple[str, int], ...]]:
    """The document as a :class:`Spec`, and the keys that were ignored with their lines.

    Raises :class:`SpecError` with one line per error of form, in the order of the file; at most ``MAX_LISTED``.
    """
    ignored: list[tuple[str, int]] = []
    data = _without_ignored(document, document.data, (), ignored)
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        raise spec_error(document, violations(error, keys_allowed)) from None
    return spec, tuple(sorted(ignored, key=lambda key: key[1]))


def _without_ignored(document: Document, data: object, path: KeyPath, ignored: list[tuple[str, int]]) -> object:
    if path not in IGNORED_KEYS or not isinstance(data, dict):
        return data
    kept = {}
    for key, value in data.items():
        if key in IGNORED_KEYS[path]:
            ignored.append((".".join((*map(str, path), key)), document.line_of((*path, key))))
        else:
            kept[key] = _without_ignored(document, value, (*path, key), ignored)
    return kept


def violations(error: ValidationError, allowed: Callable[[KeyPath], Sequence[str]]) -> list[tuple[KeyPath, str]]:
    """What is wrong, by key path. ``allowed``: the keys of the mapping at a path."""
    found = []
    for detail in error.errors(include_url=False, include_context=True):
        # pydantic marks an error in a key itself, rather than in its value, by one more step
        path: KeyPath = tuple(step for step in detail["loc"] if step != "[key]")
        found.append((path, _message(detail, path, allowed)))
    return found


def spec_error(document: Document, wrong: Sequence[tuple[KeyPath, str]]) -> SpecError:
    """One error that lists what is wrong, in the order of the file; at most ``MAX_LISTED``."""
    found = sorted(
        [(document.where(path), located(path, message)) for path, message in wrong], key=lambda pair: pair[0].line
    )
    where, first = found[0]
    lines = [first, *(f"{place}: {message}" for place, message in found[1:MAX_LISTED])]
    if len(found) > MAX_LISTED:
        lines.append(f"... and {len(found) - MAX_LISTED} more")
    return SpecError("\n".join(lines), where)


def _message(detail: ErrorDetails, path: KeyPath, allowed: Callable[[KeyPath], Sequence[str]]) -> str:
    kind, value = detail["type"], detail["input"]
    match kind:
        case "extra_forbidden":
            word, known = str(path[-1]), allowed(path[:-1])
            hint = did_you_mean(word, (*known, *IGNORED_KEYS.get(path[:-1], ())))
            return f"unknown key `{shown(word)}`{hint}; allowed here: {', '.join(known)}"
        case "missing":
            return f"missing key `{path[-1]}`"
        case "greater_than":
            return f"must be above {detail['ctx']['gt']:g}, not {value}"
        case "greater_than_equal":
            return f"must be at least {detail['ctx']['ge']:g}, not {value}"
        case "less_than_equal":
            return f"must be at most {detail['ctx']['le']:,}, not {value:,}"
        case "literal_error" | "enum":
            expected = detail["ctx"]["expected"]
            hint = did_you_mean(value, re.findall("'(.*?)'", expected)) if isinstance(value, str) else ""
            return f"expected {expected}, not {_described(value)}{hint}"
        case "too_short":
            return "is empty: at least one entry is needed"
        case "invalid_key":
            return f"a key must be text, not {_described(path[-1])}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, not {_described(value)}{_quotes_hint(kind, value)}"
    return detail["msg"]


def _described(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the truth value {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text `{shown(value)}`"
        case dict():
            return "a mapping"
        case list():
            return "a list"
    return f"a {type(value).__name__}"


def _quotes_hint(kind: str, value: object) -> str:
    if kind == "int_type" and isinstance(value, str) and value.isdecimal() and len(value) <= 18:
        return f" (write {int(value)} without quotes)"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return " (put it in quotes)"
    if kind == "bool_type" and isinstance(value, str) and value.lower() in ("true", "false"):
        return f" (write {value.lower()} without quotes)"
    return ""
