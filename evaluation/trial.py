"""A trial: a function and its arguments as a task of a reproduction, whose plain result is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hived import __version__
from hived.simulator.parallel import Task

from .simulations import Workload

#: of what trials compute: results that were kept under another one are not read
TRIALS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """``function`` is one of a module, its arguments plain data or a workload, its result plain data."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    cost: float = 1.0  #: roughly, to begin with the longest

    def task(self, label: str) -> Task:
        """The task that runs it."""
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        given = [one.identity if isinstance(one, Workload) else one for one in self.arguments]
        identity = {"hived": __version__, "trials": TRIALS, "function": name, "arguments": given}
        return Task(label, self.function, self.arguments, identity)
