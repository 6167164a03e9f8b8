"""The undo log: every step that changes the state logs its inverse until the transaction is committed.

A request is carried out in an open transaction, and its answer read off the result. A commit keeps it; any other call
rolls it back. So a dry run needs no code of its own, and cannot differ from the real run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Undo:
    """A log of inverse steps with their arguments; a rollback runs them, the last first."""

    __slots__ = ("keep", "log", "mark", "note")

    def __init__(self) -> None:
        #: the inverse steps of the open transaction; empty outside of one
        self.log: list[tuple[Any, ...]] = []
        #: logs the inverse of a change that was just made: a tuple of a function and its arguments. O(1)
        self.note: Callable[[tuple[Any, ...]], None] = self.log.append
        #: a savepoint for :meth:`rollback`
        self.mark: Callable[[], int] = self.log.__len__
        #: commits the transaction
        self.keep: Callable[[], None] = self.log.clear

    def assign(self, owner: object, **attributes: object) -> None:
        """Set attributes of an object. O(attributes)."""
        for name, value in attributes.items():
            self.note((setattr, owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    def rollback(self, mark: int = 0) -> None:
        """Restore the state at ``mark``. O(steps since)."""
        log = self.log
        for number in range(len(log) - 1, mark - 1, -1):
            step = log[number]
            step[0](*step[1:])
        del log[mark:]  # the inverse steps have logged steps of their own

    @contextmanager
    def trial(self) -> Iterator[None]:
        """A context whose changes are rolled back at its end."""
        mark = self.mark()
        try:
            yield
        finally:
            self.rollback(mark)
