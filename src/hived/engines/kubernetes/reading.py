"""YAML that anybody may have written into an annotation: read, or refused; it never takes the reader down.

The parser of libyaml recurses in C, so a few thousand brackets end the process; aliases make text of a kilobyte stand
for gigabytes; and PyYAML raises whatever it trips over. So structure is looked at first, as events, in one loop.
"""

from __future__ import annotations

from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 20  #: levels of lists and keys; what is read here needs seven
_LARGEST = 200_000  #: values, with aliases written out
#: characters: more than all annotations of an object may have
_LONGEST = 262_144


def read_yaml(text: str) -> Any:
    """The value that ``text`` stands for. Raises :class:`ValueError`, in words, for what is none. O(text)."""
    if len(text) > _LONGEST:
        raise ValueError(f"{len(text):,} characters; at most {_LONGEST:,}")
    try:
        _check(text)
        return yaml.load(text, Loader=_Loader)  # a safe one
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{line}no YAML: {getattr(error, 'problem', None) or error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, UnicodeError) as error:
        # what PyYAML trips over in values such as `!!int ''`
        raise ValueError(f"no YAML that can be read: {error}") from None


def _check(text: str) -> None:
    """Refuse what is too deep, or too large with its aliases written out. O(text)."""
    written: dict[str, tuple[int, int]] = {}  # values and levels of what each anchor names
    open_: list[list[Any]] = [[None, 0, 0]]  # anchor, values and levels of what is not closed yet
    for event in yaml.parse(text, Loader=_Loader):
        values, levels = 1, 0
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append([event.anchor, 1, 1])
            values, levels = 0, 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, levels = open_.pop()
            if anchor is not None:
                written[anchor] = values, levels
            levels += 1
        elif isinstance(event, yaml.AliasEvent):
            values, levels = written.get(str(event.anchor), (_LARGEST, 0))  # one inside itself is endless
            levels += 1
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor is not None:
                written[event.anchor] = 1, 0
        else:
            continue
        outer = open_[-1]
        outer[1], outer[2] = outer[1] + values, max(outer[2], levels)
        if len(open_) + levels > _DEEPEST + 2 or outer[1] > _LARGEST:
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            raise ValueError(f"line {line}: too many lists and keys inside each other")


def word(value: object) -> str:
    """A value as it was given, cut where it is long."""
    try:
        text = "nothing" if value is None else repr(value)
    except ValueError:  # of a number with thousands of digits
        text = "a number far too large"
    return text if len(text) <= 60 else f"{text[:57]}..."
