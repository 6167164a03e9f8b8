"""Scenarios in one line: what runs, what is asked for, and at whose cost it is had."""

from __future__ import annotations

from typing import NamedTuple

from hived import Bind, Preempt, Request, Wait

from .driver import running
from .specs import Spec


class Case(NamedTuple):
    """A request beside running groups, some of these on nodes given by name."""

    spec: Spec
    running: list[Request | tuple[Request, str]]
    request: Request
    #: in the order of their starts; none: it starts at once; None: it has to wait
    victims: tuple[str, ...] | None = ()
    downgraded: tuple[str, ...] = ()
    #: the only nodes that it may use
    suggested: str | None = None

    def check(self) -> None:
        """Ask, and compare the answer."""
        driver = running(self.spec, *self.running)
        decision = driver.ask(self.request, None if self.suggested is None else self.suggested.split())
        if self.victims is None:
            assert isinstance(decision, Wait)
        else:
            assert isinstance(decision, Preempt if self.victims else Bind), decision
            assert (getattr(decision, "victims", ()), decision.downgraded) == (self.victims, self.downgraded), decision
