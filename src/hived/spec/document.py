"""A spec as plain data that still knows where each part of it was written.

A *key path* is how to get to a value from the top: mapping keys and list positions, e.g.
``("physicalCluster", "physicalCells", 2, "cellType")``, shown as ``physicalCluster.physicalCells[2].cellType``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hived.errors import Location, SpecError

KeyPath = tuple[str | int, ...]

#: the longest word of a user's that is repeated in full in a message
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data (``dict`` with ``str`` keys, ``list``, scalars) and the line of every key path in it."""

    data: object
    source: str  #: the file, or what stands for it, in messages
    line_of: Callable[[KeyPath], int]  #: 1-based; 0 where lines are not known

    def where(self, path: KeyPath) -> Location:
        """The place of ``path``; that of the nearest part above it that was written, when it was not."""
        return Location(self.source, self.line_of(path))

    def error(self, path: KeyPath, message: str) -> SpecError:
        """The error ``message`` about what is at ``path``."""
        return SpecError(located(path, message), self.where(path))

    def place(self, path: KeyPath) -> str:
        """``line 12``, or the dotted key where lines are not known: for a message about another place."""
        line = self.line_of(path)
        return f"line {line}" if line else dotted(path)


def dotted(path: KeyPath) -> str:
    """``path`` as a person writes it: ``a.b[2].c``; the empty path is ``""``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{shown(part)}" if text else shown(part)
    return text


def located(path: KeyPath, message: str) -> str:
    """``message`` with the key it is about in front."""
    return f"{dotted(path)}: {message}" if path else message


def shown(word: str) -> str:
    """``word`` fit for one line of a message: no line breaks, not endless."""
    word = word if word.isprintable() else repr(word)[1:-1]
    return word if len(word) <= _SHOWN else word[: _SHOWN - 3] + "..."


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """`` (did you mean `x`?)`` for the closest allowed word, whatever its case; ``""`` when none is close."""
    by_folded: dict[str, str] = {}
    for candidate in allowed:
        by_folded.setdefault(candidate.casefold(), candidate)
    close = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return f" (did you mean `{shown(by_folded[close[0]])}`?)" if close else ""
