"""YAML that anybody may have written into an annotation: read, or refused; it never takes the reader down.

The parser of libyaml recurses in C, so a few thousand brackets end the process; aliases make text of a kilobyte stand
for gigabytes; and PyYAML raises whatever it trips over. So structure is looked at first, as events, in one loop.
"""

from __future__ import annotations

from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 20  #: levels of lists and keys; what is read here needs seven
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
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        what = ""
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            what = f"more than {_DEEPEST} lists and keys inside each other" if depth > _DEEPEST else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            what = f"an alias (*{event.anchor}); write it out"
        if what:
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            raise ValueError(f"line {line}: {what}")


def word(value: object) -> str:
    """A value as it was given, cut where it is long."""
    try:
        text = "nothing" if value is None else repr(value)
    except ValueError:  # of a number with thousands of digits
        text = "a number far too large"
    return text if len(text) <= 60 else f"{text[:57]}..."
