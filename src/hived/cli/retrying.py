"""Staying with an engine that goes away for a while: whoever follows something goes on where it was."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from .client import EngineGoneError
from .console import note
from .formats import clean

_FIRST_S, _LONGEST_S = 0.2, 5.0
_PATIENCE_S = 600.0  #: after which it is given up, so that no script hangs for ever on an engine that was shut down
_Answer = TypeVar("_Answer")


class Retrying:
    """Tries again with growing pauses while no engine answers; says so once, and once when it is back."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._pause = _FIRST_S

    def __call__(self, ask: Callable[[], _Answer]) -> _Answer:
        """What ``ask`` answers, as soon as it does. Raises :class:`EngineGoneError` when patience is at its end."""
        while True:
            try:
                answer = ask()
            except EngineGoneError as error:
                self.failed(error)
            else:
                self.well()
                return answer

    def stream(self, begin: Callable[[], Iterator[_Answer]]) -> Iterator[_Answer]:
        """What streams bring, begun one after the other where they break off, for whoever reads them to go on."""
        while True:
            try:
                for one in begin():
                    self.well()
                    yield one
            except EngineGoneError as error:
                self.failed(error)

    def failed(self, error: EngineGoneError) -> None:
        """The engine was not there: pause, or give up."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            note(f"hived: {clean(str(error))}; trying again")
        elif now - self._since > _PATIENCE_S:
            raise error
        time.sleep(self._pause * random.uniform(0.8, 1.2))  # not all who follow come back at the same moment
        self._pause = min(2 * self._pause, _LONGEST_S)

    def well(self) -> None:
        """The engine answered."""
        if self._since is not None:
            note("hived: the engine is back")
        self._since, self._pause = None, _FIRST_S
