"""Positions of data loaders, and the states of the random generators that they depend on.

A pass over a :class:`torch.utils.data.DataLoader` that the training process reads itself is handed over as the object
that it is, with the generators of its samplers. With workers a pass is told by the states of the random generators when
it began and the number of batches that it has given. From these it is begun again in the destination, and brought to
the same batch by its workers, which load and drop what is past, so that their own generators come to the same state.
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .kinds import MoveError


@dataclass(frozen=True, slots=True)
class RandomStates:
    """The states of the generators of Python, NumPy, torch and its device."""

    python: Any
    numpy: Any
    cpu: bytes  #: torch's
    cuda: tuple[bytes, ...]
    own: tuple[bytes | None, ...] = ()  #: of the generators of a loader and of its samplers

    @classmethod
    def now(cls, *own: torch.Generator | None) -> RandomStates:
        """The states now."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return cls(
            random.getstate(),
            np.random.get_state(),  # the script's own use of it
            torch.get_rng_state().numpy().tobytes(),
            tuple(state.numpy().tobytes() for state in cuda),
            tuple(None if each is None else each.get_state().numpy().tobytes() for each in own),
        )

    def set(self, *own: torch.Generator | None) -> None:
        """Bring the generators to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(_tensor(self.cpu))
        if self.cuda:
            torch.cuda.set_rng_state_all([_tensor(state) for state in self.cuda])
        set_states(own, self.own)


def set_states(generators: Iterable[torch.Generator | None], states: Iterable[bytes | None]) -> None:
    """Bring generators to states; either may be missing."""
    for generator, state in zip(generators, states, strict=False):
        if generator is not None and state is not None:
            generator.set_state(_tensor(state))


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class LoaderPosition:
    """Where a pass over a loader is."""

    began: RandomStates
    given: int  #: batches
    own: tuple[bytes | None, ...]  #: states of the generators of the loader and its samplers now


@dataclass(slots=True)
class _Pass:
    loader: Any  #: held: an inline loader has no other holder
    began: RandomStates


_passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
_original: Callable[[Any], Any] | None = None


def watch() -> None:
    """Remember for every pass over a loader how it began: some 20 us each, and nothing for a batch."""
    global _original
    if _original is not None:
        return
    original = DataLoader.__iter__
    _original = original

    def begin(self: Any) -> Any:
        began = None
        with contextlib.suppress(Exception):  # such a pass cannot be told: the job does not move
            began = RandomStates.now(*_generators(self))
        iterator = original(self)
        if began is not None and is_iterator(iterator):
            _passes[iterator] = _Pass(self, began)
        return iterator

    begin.__wrapped__ = original  # type: ignore[attr-defined]
    DataLoader.__iter__ = begin


def _samplers(loader: Any) -> list[Any]:
    batches = getattr(loader, "batch_sampler", None)
    found = (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    return [each for each in found if each is not None]


def _generators(loader: Any) -> tuple[torch.Generator | None, ...]:
    batches = getattr(loader, "batch_sampler", None)
    samplers = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    found = (getattr(each, "generator", None) for each in samplers)
    return tuple(each if isinstance(each, torch.Generator) else None for each in found)


def worker_pids() -> set[int]:
    """The processes that load data for passes that are under way."""
    return {each.pid for iterator in list(_passes) for each in getattr(iterator, "_workers", ())}


def is_iterator(value: Any) -> bool:
    """Whether this is a pass over a loader."""
    return isinstance(value, _BaseDataLoaderIter)


def walks(iterator: Any) -> bool:
    """Whether the pass is handed over as an object: this process reads the dataset itself."""
    return bool(iterator._num_workers == 0)


def position(iterator: Any) -> LoaderPosition:
    """Where a pass is."""
    known = _passes.get(iterator)
    if known is None:
        raise MoveError("a pass over a loader began before the runtime was there")
    if iterator._num_workers and iterator._persistent_workers:
        raise MoveError("persistent workers of a loader have random states that cannot be handed over")
    if iterator._num_workers and not all(
        type(each).__module__.startswith("torch.") for each in _samplers(known.loader)
    ):
        raise MoveError("a sampler of the script's own, with workers: what it has drawn cannot be told from its state")
    own = RandomStates.now(*_generators(known.loader)).own
    return LoaderPosition(known.began, iterator._num_yielded, own)


def set_beginning(iterator: Any, there: LoaderPosition) -> None:
    """A pass that was handed over as an object began as it did there."""
    _passes[iterator].began = there.began


def set_position(iterator: Any, there: LoaderPosition) -> None:
    """Bring a pass to a position: it is begun again, under the random states with which it began there."""
    known = _passes[iterator]
    loader = known.loader
    if _original is None:
        raise RuntimeError("passes over loaders are not watched")
    there.began.set(*_generators(loader))
    made = _original(loader)
    for _ in range(there.given):
        next(made)
    set_states(_generators(loader), there.own)
    old = dict(vars(iterator))
    vars(iterator).clear()
    vars(iterator).update(vars(made))
    vars(made).clear()
    vars(made).update(old)  # so that it ends the workers of the pass that is not needed
    _passes[iterator] = _Pass(loader, there.began)
    if hasattr(made, "_shutdown_workers"):
        made._shutdown_workers()
