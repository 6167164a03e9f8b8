"""The way back: every step that changes the state notes what undoes it, until somebody keeps what was done.

A request is carried out in an open transaction and its answer read off the result. A commit keeps it; whatever else
comes next rolls it back. So trying something out needs no code of its own, and cannot differ from doing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Undo:
    """A log of steps, each with its arguments, that are carried out last first to go back."""

    __slots__ = ("keep", "log", "mark", "note")

    def __init__(self) -> None:
        #: the steps since something was last kept; none outside of a transaction
        self.log: list[tuple[Any, ...]] = []
        #: takes a tuple: what undoes a change that was just made, and its arguments. O(1)
        self.note: Callable[[tuple[Any, ...]], None] = self.log.append
        #: the present moment, for :meth:`rollback`
        self.mark: Callable[[], int] = self.log.__len__
        #: what was done stays
        self.keep: Callable[[], None] = self.log.clear

    def assign(self, owner: object, **attributes: object) -> None:
        """Set attributes of an object. O(attributes)."""
        for name, value in attributes.items():
            self.note((setattr, owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def rollback(self, mark: int = 0) -> None:
        """All is as it was at ``mark``. O(steps since)."""
        log = self.log
        for number in range(len(log) - 1, mark - 1, -1):
            step = log[number]
            step[0](*step[1:])
        del log[mark:]  # the steps back have noted steps of their own

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is done while this is open is undone at its end."""
        mark = self.mark()
        try:
            yield
        finally:
            self.rollback(mark)
