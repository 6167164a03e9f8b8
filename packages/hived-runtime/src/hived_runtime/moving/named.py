"""The state of a training script, as the script names it: what a move hands over, and nothing else.

The names are those of a checkpoint: objects with ``state_dict`` and ``load_state_dict`` (``Stateful``, the protocol of
``torch.distributed.checkpoint``), random generators, and plain values, which are attributes of the state. Added are
gradients and modes of modules, the states of the random generators of the process, and how far the loops of
:meth:`NamedState.range` and :meth:`NamedState.each` are. So a new process that runs the same script to where it names
its state, takes these over there, and comes to the item that is next, goes on bit for bit.

It is whole at *points*: between two items of these loops, and at :meth:`NamedState.point`.
"""

from __future__ import annotations

import copy
import datetime
import enum
import pathlib
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

from . import sharded
from .randomness import RandomStates, generators_of

T = TypeVar("T")

#: values that are what they are, with containers of them
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device, torch.Size, np.ndarray,
    np.generic, enum.Enum, datetime.date, datetime.timedelta, pathlib.PurePath,
)  # fmt: skip


class MoveError(RuntimeError):
    """A process does not move: why. It goes on where it is."""


class _Loop:
    """A loop that is under way, or was where the state was saved."""

    def __init__(self, line: str = "", nth: int = 0) -> None:
        self.line = line  #: of the script, where it is
        self.nth = nth  #: of the loops of that line within the same item of the loop around it
        self.done = 0  #: items
        self.inner: Counter[str] = Counter()  #: by line, the loops that were begun within the present item
        self.has_inner = False
        self.began: RandomStates | None = None  #: when its iterator was made
        self.at_item: RandomStates | None = None  #: when the present item was given, if there are loops within
        self.asked: RandomStates | None = None  #: when it was asked for, of a loader that reads the one after it then
        self.again = False  #: whether its loader had workers already, which stay over passes
        self.iterated: Any = None


class NamedState:
    """What a script has named. ``state.NAME`` is the value of a plain one, and is set as any attribute."""

    _named: dict[str, Any]
    _objects: frozenset[str]
    _reach: Callable[[], None]
    _accumulating: list[Any]
    _loops: list[_Loop]
    _outside: _Loop
    _started: set[tuple[tuple[str, int], ...]]
    _counting: dict[tuple[tuple[str, int], ...], Any]
    _passes: dict[tuple[tuple[str, int], ...], int]
    _taken: dict[str, Any] | None
    _resumed: Callable[[], None]
    _lost: Callable[[MoveError], None]

    def __init__(self, named: dict[str, Any], reach: Callable[[], None]) -> None:
        """``reach``: called at every point."""
        if wrong := [name for name in named if name.startswith("_") or hasattr(type(self), name)]:
            raise ValueError(f"the state cannot have a name of its own for {wrong[0]!r}: call it otherwise")
        made: dict[str, Any] = {
            "_named": named,
            #: names of objects that are changed in place; all others are plain values
            "_objects": frozenset(name for name, value in named.items() if _kept_by(value) is not None),
            "_reach": reach,
            #: of optimizers that Accelerate has prepared: it counts the batches of a step where nobody names it, so no
            #: point is within a step
            "_accumulating": [each.gradient_state for each in named.values() if hasattr(each, "gradient_state")],
            "_loops": [],
            "_outside": _Loop(),
            #: loops whose loaders have workers that stay, each with those around it
            "_started": set(),
            #: loaders that count their passes themselves (Accelerate's), and how far those there were
            "_counting": {},
            "_passes": {},
            #: of the process that this one takes over from, until the loops are where they were; what is called then,
            #: or if they do not come to be
            "_taken": None,
            "_resumed": None,
            "_lost": None,
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._named[name]
        except KeyError:
            raise AttributeError(f"the state has no {name!r}; it has {', '.join(self._named) or 'nothing'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._named or name in self._objects:
            what = "is an object that is named once" if name in self._named else "was not named at first"
            raise AttributeError(f"state.{name} cannot be set: it {what}")
        self._named[name] = value

    # -- the script's loops -------------------------------------------------------------------------------------------

    def range(self, *numbers: int) -> Iterator[int]:
        """``range``, that goes on where it was."""
        return self._loop(range(*numbers), _line())

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The items of a loader, or of anything, from the one on that comes next.

        Those before it are read again and dropped, under the same states of random generators; of a loader that has a
        ``state_dict`` itself, not.
        """
        return self._loop(items, _line())

    def passes(self, items: Iterable[T]) -> Iterator[T]:
        """As :meth:`each`, for a loop of a library, which comes to a pass by itself: each is the same loop."""
        self._outside.inner.clear()
        return self._loop(items, "")

    def _loop(self, items: Iterable[T], line: str) -> Iterator[T]:
        loops = self._loops
        around, depth = loops[-1] if loops else self._outside, len(loops)
        loop = _Loop(line, around.inner[line])
        around.inner[line] += 1
        around.has_inner = True
        there = self._there(depth)
        if there is not None and (line, loop.nth) != (there.line, there.nth):
            return  # it was done there
        loops.append(loop)
        try:
            loop.iterated = items
            iterator = self._begun(loop, items, there, depth)
            reads_ahead = _inner(items) is not items
            for item in iterator:
                loop.inner.clear()
                if there is not None and self._taken is not None and there.at_item is not None:
                    there.at_item.set()  # what the script draws until the next loop, it has drawn there
                if loop.has_inner or not loop.done:
                    loop.at_item = RandomStates.now()
                there = None
                yield item
                del loops[depth + 1 :]  # that were left, and are kept by somebody
                loop.done += 1
                if self._taken is not None:
                    self._fail("the script does not come to the loop in which it was there")
                self.point()
                if reads_ahead:
                    loop.asked = RandomStates.now()
        finally:
            if loop in loops:
                loops.remove(loop)

    def _there(self, depth: int) -> _Loop | None:
        """The loop at this depth, of those that are to be brought to where they were."""
        loops = () if self._taken is None else self._taken["loops"]
        return loops[depth] if depth < len(loops) else None

    def _begun(self, loop: _Loop, items: Iterable[T], there: _Loop | None, depth: int) -> Iterator[T]:
        own = generators_of(items)
        if there is None or there.again:
            self._start_workers(items, own)
        loop.again = getattr(items, "_iterator", None) is not None
        if getattr(items, "persistent_workers", False):
            self._started.add(self._key())
        if hasattr(items, "base_dataloader") and hasattr(items, "iteration"):
            items.iteration = self._passes.pop(self._key(), items.iteration)
            self._counting[self._key()] = items
        if there is None or there.began is None:
            loop.began = RandomStates.now(own)
            return iter(items)
        there.began.set(own)
        loop.began, loop.done, loop.has_inner = there.began, there.done, there.has_inner
        if there.iterated is not None:
            items.load_state_dict(there.iterated)  # type: ignore[attr-defined]
            iterator = iter(items)
        else:
            iterator = iter(items)
            skipped = sum(1 for _ in islice(iterator, max(there.done - 1, 0)))
            if there.asked is not None:
                there.asked.set()
            skipped += sum(1 for _ in islice(iterator, there.done - skipped))
            if skipped < there.done:
                self._fail(f"a loop has {skipped} items here, and had given {there.done} there")
        loop.asked = there.asked
        if self._taken is not None and depth == len(self._taken["loops"]) - 1:
            loop.asked = self._taken["random"]
            self._resume()
        return iterator

    def _fail(self, why: str) -> NoReturn:
        """The loops do not come to be where they were: before any more of the script runs."""
        error = MoveError(why)
        self._lost(error)
        raise error

    def _resume(self) -> None:
        """All loops are where they were: what the script has done since it took over is undone, and it goes on."""
        taken = self._taken
        assert taken is not None
        self._take(taken)
        object.__setattr__(self, "_taken", None)
        taken["random"].set()
        self._resumed()

    def _start_workers(self, items: Any, own: list[torch.Generator]) -> None:
        """Of a loader whose workers stay over its passes: they draw a number when they start, which they did there."""
        if getattr(items, "persistent_workers", False) and items._iterator is None and self._key() in self._started:
            now = RandomStates.now(own)
            iter(_inner(items))
            now.set(own)

    def _key(self) -> tuple[tuple[str, int], ...]:
        return tuple([(loop.line, loop.nth) for loop in self._loops])

    def point(self) -> None:
        """The state is whole here, and the script goes on from here: it may be handed over now. Else costs nothing."""
        if all(each.sync_gradients for each in self._accumulating):
            self._reach()

    # -- as data ------------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """All of it. Tensors are those of the script, not copies. :class:`MoveError` for a value that has no state."""
        found: dict[str, Any] = {}
        for name, value in self._named.items():
            if name not in self._objects and (other := not_plain(value)) is not None:
                raise MoveError(f"state.{name} holds a {type(other).__qualname__}: name what has a state by itself")
            if isinstance(value, torch.nn.Module) and sharded.awaits_reduction(value):
                raise MoveError(f"state.{name} has gradients that are not reduced over its ranks yet")
            try:
                found[name] = _saved(value) if name in self._objects else value
            except Exception as error:
                raise MoveError(f"state.{name} cannot be saved: {type(error).__name__}: {error}") from error
        loops = []
        for loop in self._loops:
            kept = copy.copy(loop)
            innermost = loop is self._loops[-1] and _is_stateful(_inner(loop.iterated))
            kept.iterated = loop.iterated.state_dict() if innermost else None
            loops.append(kept)
        passes = {key: loader.iteration for key, loader in self._counting.items()}
        return {
            "named": found, "loops": loops, "random": RandomStates.now(), "started": self._started, "passes": passes,
            "layouts": self._layouts(),
        }  # fmt: skip

    def load(self, saved: dict[str, Any], resumed: Callable[[], None], lost: Callable[[MoveError], None]) -> None:
        """Become what was saved; ``resumed`` is called once the loops are where they were, ``lost`` if they cannot be.

        :class:`MoveError` where the script has named other things; it is spoilt then.
        """
        there = saved["named"]
        if list(there) != list(self._named):
            raise MoveError(f"the script names {', '.join(self._named)} here, and {', '.join(there)} there")
        for tensor, layout in self._layouts().items():
            if layout != (other := saved["layouts"].get(tensor)):
                raise MoveError(f"{tensor} is {layout} here, and {other or 'not sharded'} there")
        object.__setattr__(self, "_resumed", resumed)
        object.__setattr__(self, "_lost", lost)
        object.__setattr__(self, "_taken", saved)
        self._started.update(saved["started"])
        self._passes.update(saved["passes"])
        if saved["loops"]:
            self._take(saved)
        else:
            self._resume()

    def _layouts(self) -> dict[str, sharded.Layout]:
        return sharded.layouts({name: value for name, value in self._named.items() if name in self._objects})

    def _take(self, saved: Mapping[str, Any]) -> None:
        meshes = sharded.meshes(self._named)
        for name, state in saved["named"].items():
            try:
                value = self._named[name]
                own = copy.deepcopy(state, dict(meshes))  # an object may keep what it is given, and this comes twice
                if name in self._objects:
                    _load(value, own)
                else:
                    self._named[name] = _replaced(value, own)
            except Exception as error:
                raise MoveError(f"state.{name} cannot be taken over: {type(error).__name__}: {error}") from error

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that are named."""
        return [each for each in self._named.values() if isinstance(each, torch.optim.Optimizer)]


def _line() -> str:
    """The line of the script that calls a method of the state."""
    frame = sys._getframe(2)
    return f"{pathlib.Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _inner(items: Any) -> Any:
    """The loader within one of Accelerate's, which reads one item ahead, and passes on what it has not itself."""
    return getattr(items, "base_dataloader", items)


def _is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def not_plain(value: Any) -> Any:
    """What is no plain value, of a value and what it contains; ``None``: all is."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return next((found for each in value if (found := not_plain(each)) is not None), None)
    return None if isinstance(value, _PLAIN) else value


def _kept_by(value: Any) -> str | None:
    """How an object keeps its state, which is changed in place; ``None``: it is its value."""
    if isinstance(value, torch.nn.Module):
        return "module"
    if _is_stateful(value):
        return "stateful"
    if isinstance(value, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
        return "generator"
    if isinstance(value, torch.Tensor):
        return "tensor"
    return "array" if isinstance(value, np.ndarray) else None


def more_of(module: torch.nn.Module) -> dict[str, Any]:
    """What the ``state_dict`` of a module lacks: gradients, buffers that are not kept, what trains and is trained."""
    kept = module.state_dict().keys()
    parameters = list(module.named_parameters())
    return {
        "gradients": {name: each.grad for name, each in parameters if each.grad is not None},
        "trained": [each.requires_grad for _, each in parameters],
        "training": [each.training for each in module.modules()],
        "buffers": {name: each for name, each in module.named_buffers() if name not in kept},
    }


def _saved(value: Any) -> Any:
    match _kept_by(value):
        case "module":
            return value.state_dict(), more_of(value)
        case "stateful":
            return value.state_dict()
        case "generator" if isinstance(value, np.random.Generator):
            return value.bit_generator.state
        case "generator" if isinstance(value, random.Random):
            return value.getstate()
        case "generator":
            return value.get_state()
        case "tensor":
            return value.detach(), value.grad
    return value


def _load(value: Any, state: Any) -> None:
    """Bring an object to a state."""
    match _kept_by(value):
        case "module":
            value.load_state_dict(state[0])
            load_more(value, state[1])
        case "stateful":
            value.load_state_dict(state)
        case "generator" if isinstance(value, np.random.Generator):
            value.bit_generator.state = state
        case "generator" if isinstance(value, random.Random):
            value.setstate(state)
        case "generator":
            value.set_state(state)
        case "tensor":
            with torch.no_grad():
                value.copy_(state[0])
            _set_gradient(value, state[1])
        case "array":
            value[...] = state


def load_more(module: torch.nn.Module, more: dict[str, Any]) -> None:
    """Bring a module to what :func:`more_of` has said."""
    for (name, each), trained in zip(module.named_parameters(), more["trained"], strict=True):
        each.requires_grad_(trained)
        _set_gradient(each, more["gradients"].get(name))
    for part, trains in zip(module.modules(), more["training"], strict=True):
        part.training = trains
    buffers = dict(module.named_buffers())
    for name, each in more["buffers"].items():
        buffers[name].copy_(each)


def _set_gradient(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    tensor.grad = None if gradient is None else gradient.to(tensor.device)


def _replaced(value: Any, state: Any) -> Any:
    """A plain value; a container of the script keeps its identity."""
    if type(value) is not type(state) or not isinstance(value, list | dict | set | deque):
        return state
    value.clear()
    if isinstance(value, dict | set):
        value.update(state)
    else:
        value.extend(state)
    return value
