"""A spec as plain data with the source line of each part.

A *key path* leads from the top to a value: mapping keys and list positions, e.g.
``("physicalCluster", "physicalCells", 2, "cellType")``, shown as ``physicalCluster.physicalCells[2].cellType``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hived.errors import Location, SpecError

KeyPath = tuple[str | int, ...]

#: the longest word of the input that a message repeats in full
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data (``dict`` with ``str`` keys, ``list``, scalars) and the line of every key path in it."""

    data: object
    source: str  #: the file, or a placeholder for it, in messages
    line_of: Callable[[KeyPath], int]  #: 1-based; 0 if lines are unknown

    def where(self, path: KeyPath) -> Location:
        """The location of ``path``, or of its nearest ancestor in the source if ``path`` itself is missing."""
        return Location(self.source, self.line_of(path))

    def error(self, path: KeyPath, message: str) -> SpecError:
        """The error ``message`` about the value at ``path``."""
        return SpecError(located(path, message), self.where(path))

    def place(self, path: KeyPath) -> str:
        """``line 12``, or the dotted key if lines are unknown: for a message about another place."""
        line = self.line_of(path)
        return f"line {line}" if line else dotted(path)


def dotted(path: KeyPath) -> str:
    """``path`` in dotted form: ``a.b[2].c``; the empty path is ``""``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{shown(part)}" if text else shown(part)
    return text


def located(path: KeyPath, message: str) -> str:
    """``message`` prefixed by its key."""
    return f"{dotted(path)}: {message}" if path else message


def shown(word: str) -> str:
    """``word`` for one line of a message: no line breaks, limited length."""
    word = word if word.isprintable() else repr(word)[1:-1]
    return word if len(word) <= _SHOWN else word[: _SHOWN - 3] + "..."


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """`` (did you mean `x`?)`` for the closest allowed word, ignoring case; ``""`` if none is close."""
    by_folded: dict[str, str] = {}
    for candidate in allowed:
        by_folded.setdefault(candidate.casefold(), candidate)
    close = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return f" (did you mean `{shown(by_folded[close[0]])}`?)" if close else ""
