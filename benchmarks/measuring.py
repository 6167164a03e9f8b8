"""How things are timed: the same work in turns, the best of several, quantiles of single requests."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    aim: str = ""  #: the target, as in docs/reference/measured.md; "" without one
    better: str = "lower"


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection while timing."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds(work: Callable[[], object], repeat: int = 1) -> float:
    """Wall seconds of ``work``, the best of ``repeat``."""
    best = float("inf")
    for _ in range(repeat):
        with quiet():
            start = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - start)
    return best


def quantile(ordered: list[float], share: float) -> float:
    """Nearest-rank quantile of ascending values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
