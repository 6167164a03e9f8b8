"""The random generators of a process: of Python, NumPy, torch and its device, and those that a loader draws from."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class RandomStates:
    """Their states at a moment. Some 20 us to take."""

    python: Any
    numpy: Any
    cpu: bytes  #: torch's
    cuda: tuple[bytes, ...]
    own: tuple[bytes, ...] = ()  #: of the generators of a loader and of its samplers

    @classmethod
    def now(cls, own: Iterable[torch.Generator] = ()) -> RandomStates:
        """The states now."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return cls(
            random.getstate(),
            np.random.get_state(),  # the script's own use of it
            torch.get_rng_state().numpy().tobytes(),
            tuple(state.numpy().tobytes() for state in cuda),
            tuple(each.get_state().numpy().tobytes() for each in own),
        )

    def set(self, own: Iterable[torch.Generator] = ()) -> None:
        """Bring the generators to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(_tensor(self.cpu))
        if self.cuda:
            torch.cuda.set_rng_state_all([_tensor(state) for state in self.cuda])
        for generator, state in zip(own, self.own, strict=True):
            generator.set_state(_tensor(state))


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that a loader and its samplers draw from, each once."""
    outer = getattr(loader, "batch_sampler", None)
    inner = getattr(outer, "batch_sampler", None)  # of Accelerate's, if there are several ranks
    samplers = [getattr(each, "sampler", None) for each in (loader, outer, inner)]
    # one with an initial seed gives its generator a seed for each pass (Accelerate's SeedableRandomSampler)
    holders = [each for each in (loader, outer, inner, *samplers) if not hasattr(each, "initial_seed")]
    found = [getattr(each, "generator", None) for each in holders]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
