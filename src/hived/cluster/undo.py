"""The undo log: every step that changes the state logs its inverse until the transaction is committed.

A request is carried out in an open transaction, and its answer read off the result. A commit keeps it; any other call
rolls it back. So a dry run needs no code of its own, and cannot differ from the real run. In a *what-if* whole
transactions are committed, and all of them are rolled back at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Undo:
    """A log of inverse steps with their arguments; a rollback runs them, the last first."""

    __slots__ = ("base", "commit", "is_what_if", "log", "mark", "note")

    def __init__(self) -> None:
        #: the inverse steps of an enclosing what-if, if any, then of the open transaction
        self.log: list[tuple[Any, ...]] = []
        #: where those of the open transaction begin
        self.base = 0
        #: whether what is committed now is rolled back later
        self.is_what_if = False
        #: logs the inverse of a change that was just made: a tuple of a function and its arguments. O(1)
        self.note: Callable[[tuple[Any, ...]], None] = self.log.append
        #: a savepoint for :meth:`rollback`
        self.mark: Callable[[], int] = self.log.__len__
        #: commits the transaction
        self.commit: Callable[[], None] = self.log.clear

    def assign(self, owner: object, **attributes: object) -> None:
        """Set attributes of an object. O(attributes)."""
        for name, value in attributes.items():
            self.note((setattr, owner, name, getattr(owner, name)))
            setattr(owner, name, value)

    @property
    def is_open(self) -> bool:
        """Whether a transaction has changed anything."""
        return len(self.log) > self.base

    def rollback(self, mark: int = -1) -> None:
        """Restore the state at ``mark``, by default before the open transaction. O(steps since)."""
        log, mark = self.log, self.base if mark < 0 else mark
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

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """A context whose transactions are rolled back at its end, those too that were committed."""
        base, commit, is_what_if, mark = self.base, self.commit, self.is_what_if, self.mark()
        self.base, self.commit, self.is_what_if = mark, self._commit_inner, True
        try:
            yield
        finally:
            self.rollback(mark)
            self.base, self.commit, self.is_what_if = base, commit, is_what_if

    def _commit_inner(self) -> None:
        """Commit a transaction inside a what-if."""
        self.base = len(self.log)
