"""The state of a training script, as the script names it: what a move hands over, and nothing else.

The names are those of a checkpoint: objects with ``state_dict`` and ``load_state_dict`` (``Stateful``, the protocol of
``torch.distributed.checkpoint``), random generators, and plain values, which are attributes of the state. Added are
gradients and modes of modules, the states of the random generators of the process, and how far the loops of
:meth:`NamedState.range` and :meth:`NamedState.each` are. So a new process that runs the same script to where it names
its state, and takes these over there, goes on bit for bit.

It is whole at *points*: between two items of these loops, and at :meth:`NamedState.point`.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch

from .randomness import RandomStates, generators_of

T = TypeVar("T")


class MoveError(RuntimeError):
    """A process does not move: why. It goes on where it is."""


class _Loop:
    """A loop that is under way, or was where the state was saved."""

    def __init__(self, before: int) -> None:
        self.before = before  #: loops that were done before it within the same item of the loop around it
        self.done = 0  #: items
        self.inner = 0  #: loops that were begun within the present item
        self.began: RandomStates | None = None  #: when its iterator was made
        self.again = False  #: whether its loader had workers already, which stay over passes
        self.iterated: Any = None


class NamedState:
    """What a script has named. ``state.NAME`` is the value of a plain one, and is set as any attribute."""

    def __init__(self, named: dict[str, Any], reach: Callable[[], None]) -> None:
        """``reach``: called at every point."""
        self._named: dict[str, Any]
        self._loops: list[_Loop]
        self._outside: _Loop
        self._started: set[tuple[int, ...]]
        object.__setattr__(self, "_named", named)
        object.__setattr__(self, "_reach", reach)
        object.__setattr__(self, "_loops", [])
        object.__setattr__(self, "_outside", _Loop(0))
        #: loops whose loaders have workers that stay, by how many loops came before each and before those around it
        object.__setattr__(self, "_started", set())
        #: of the process that this one took over from: loops to be brought to where they were, and the generators then
        object.__setattr__(self, "_to_resume", [])
        object.__setattr__(self, "_random", None)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._named[name]
        except KeyError:
            raise AttributeError(f"the state has no {name!r}; it has {', '.join(self._named) or 'nothing'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        known = self._named.get(name)
        if name not in self._named or _kept_by(known) is not None:
            what = "is an object that is named once" if name in self._named else "was not named at first"
            raise AttributeError(f"state.{name} cannot be set: it {what}")
        self._named[name] = value

    # -- the script's loops -------------------------------------------------------------------------------------------

    def range(self, *numbers: int) -> Iterator[int]:
        """``range``, that goes on where it was."""
        return self.each(range(*numbers))

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The items of a loader, or of anything, from the one on that comes next.

        Those before it are read again and dropped, under the same states of random generators; of a loader that has a
        ``state_dict`` itself, not.
        """
        around = self._loops[-1] if self._loops else self._outside
        loop = _Loop(around.inner)
        around.inner += 1
        to_resume: list[_Loop] = self._to_resume
        depth = len(self._loops)
        there = to_resume[depth] if depth < len(to_resume) else None
        if there is not None and loop.before < there.before:
            return  # it was done there
        own = generators_of(items)
        self._loops.append(loop)
        try:
            loop.iterated = items
            iterator = self._begun(loop, items, own, there)
            if there is not None and depth == len(to_resume) - 1:
                to_resume.clear()
                self._random.set()
            for item in iterator:
                loop.inner = 0
                yield item
                loop.done += 1
                self._reach()
        finally:
            self._loops.remove(loop)

    def _begun(self, loop: _Loop, items: Iterable[T], own: list[torch.Generator], there: _Loop | None) -> Iterator[T]:
        if there is None or there.again:
            self._start_workers(items, own)
        loop.again = getattr(items, "_iterator", None) is not None
        if getattr(items, "persistent_workers", False):
            self._started.add(self._key())
        if there is None or there.began is None:
            loop.began = RandomStates.now(own)
            return iter(items)
        there.began.set(own)
        loop.began, loop.done = there.began, there.done
        if _is_stateful(items):
            items.load_state_dict(there.iterated)  # type: ignore[attr-defined]
            return iter(items)
        iterator = iter(items)
        skipped = sum(1 for _ in islice(iterator, there.done))
        if skipped < there.done:
            raise MoveError(f"a loop has {skipped} items here, and had given {there.done} there")
        return iterator

    def _start_workers(self, items: Any, own: list[torch.Generator]) -> None:
        """Of a loader whose workers stay over its passes: they draw a number when they start, which they did there."""
        if getattr(items, "persistent_workers", False) and items._iterator is None and self._key() in self._started:
            now = RandomStates.now(own)
            iter(items)
            now.set(own)

    def _key(self) -> tuple[int, ...]:
        return tuple([loop.before for loop in self._loops])

    def point(self) -> None:
        """The state is whole here, and the script goes on from here: it may be handed over now. Else costs nothing."""
        self._reach()

    # -- as data ------------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """All of it. Tensors are those of the script, not copies. :class:`MoveError` for a value that has no state."""
        found: dict[str, Any] = {}
        for name, value in self._named.items():
            try:
                found[name] = _saved(value)
            except Exception as error:
                raise MoveError(f"state.{name} cannot be saved: {type(error).__name__}: {error}") from error
        loops = []
        for loop in self._loops:
            kept = copy.copy(loop)
            kept.iterated = loop.iterated.state_dict() if _is_stateful(loop.iterated) else None
            loops.append(kept)
        return {"named": found, "loops": loops, "random": RandomStates.now(), "started": self._started}

    def load(self, saved: dict[str, Any]) -> None:
        """Become what was saved. :class:`MoveError` where the script has named other things; it is spoilt then."""
        there = saved["named"]
        if list(there) != list(self._named):
            raise MoveError(f"the script names {', '.join(self._named)} here, and {', '.join(there)} there")
        for name, state in there.items():
            try:
                self._named[name] = _loaded(self._named[name], state)
            except Exception as error:
                raise MoveError(f"state.{name} cannot be taken over: {type(error).__name__}: {error}") from error
        object.__setattr__(self, "_random", saved["random"])
        self._to_resume[:] = saved["loops"]
        self._started.update(saved["started"])
        if not self._to_resume:
            self._random.set()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that are named."""
        return [each for each in self._named.values() if isinstance(each, torch.optim.Optimizer)]


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _kept_by(value: Any) -> str | None:
    """How an object keeps its state, which is changed in place; ``None``: it is its value."""
    if isinstance(value, torch.nn.Module):
        return "module"
    if _is_stateful(value):
        return "stateful"
    if isinstance(value, torch.Generator | np.random.Generator | random.Random):
        return "generator"
    return "tensor" if isinstance(value, torch.Tensor) else None


def _saved(value: Any) -> Any:
    match _kept_by(value):
        case "module":
            gradients = {name: each.grad for name, each in value.named_parameters() if each.grad is not None}
            return value.state_dict(), gradients, [each.training for each in value.modules()]
        case "stateful":
            return value.state_dict()
        case "generator":
            if isinstance(value, np.random.Generator):
                return value.bit_generator.state
            return value.getstate() if isinstance(value, random.Random) else value.get_state()
    return value


def _loaded(value: Any, state: Any) -> Any:
    """The value with a state: the object itself, or for a plain value another."""
    match _kept_by(value):
        case "module":
            weights, gradients, training = state
            value.load_state_dict(weights)
            for name, each in value.named_parameters():
                each.grad = None if name not in gradients else gradients[name].to(each.device)
            for module, trains in zip(value.modules(), training, strict=True):
                module.training = trains
        case "stateful":
            value.load_state_dict(state)
        case "generator":
            if isinstance(value, np.random.Generator):
                value.bit_generator.state = state
            elif isinstance(value, random.Random):
                value.setstate(state)
            else:
                value.set_state(state)
        case "tensor":
            with torch.no_grad():
                value.copy_(state)
        case _:
            return _contents_set(value, state)
    return value


def _contents_set(value: Any, state: Any) -> Any:
    """A plain value; a container of the script keeps its identity."""
    if type(value) is not type(state) or not isinstance(value, list | dict | set | deque):
        return state
    value.clear()
    if isinstance(value, dict | set):
        value.update(state)
    else:
        value.extend(state)
    return value
