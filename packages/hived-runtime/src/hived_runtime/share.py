"""A share of the device's time: work is paced inside the mini-batch (AntMan, OSDI'20, 3.1.2).

AntMan delays launches in the framework's queue of GPU operations. Here the training thread, which launches them, waits
at points between them: before modules and when the gradient of a parameter is complete. Order is kept. Work between
mini-batches (loading data, logging) is not counted and not delayed. The hooks are there while a share is in force.

On the CPU, a limited job is in the idle class of the operating system too, where it may come back from there: so it has
a core when nobody else does, and no other job waits for it.

At a point that comes more than ``_BOUND_S`` after the last wait, what is queued on the device is waited for, and then
``active * (1 / share - 1)`` seconds: so queued work is bounded, and another job on the device meets no long burst.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer

from .idle import yield_processor

_BOUND_S = 0.0015  #: work between two waits, about
_LONGEST_S = 1.0  #: of one wait: a share that is raised meanwhile is soon noticed


class Pacer:
    """Paces the work of one process on its device."""

    def __init__(
        self,
        device: torch.device,
        optimizers: Callable[[], Iterable[Optimizer]],
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        work: Callable[[], float] | None = None,
    ) -> None:
        """``work``: a clock that runs while the device works; on the CPU that of the process, else ``clock``."""
        self._device = device
        self._optimizers = optimizers
        self._clock, self._sleep = clock, sleep
        if device.type == "cuda":
            yield_processor(False)  # what :mod:`.starting` did before it was known what is limited
        self._work = work or (clock if device.type == "cuda" else time.process_time)
        self._share = 1.0
        self._handles: list[Any] = []
        self._parameters: set[int] = set()
        self._from: float | None = None  #: when the work that has not been paid for began; None: between mini-batches
        self._work_from = 0.0  #: the same by the clock of the work
        self._owed = 0.0  #: seconds of waiting that did not fit into one wait, or that sleep has given too much
        self.active_s = 0.0  #: work so far, while a share is in force
        self.waited_s = 0.0

    @property
    def share(self) -> float:
        """The share in force; 1: nothing is paced, and no hook is installed."""
        return self._share

    def set(self, share: float) -> None:
        """Pace by another share from now on, in (0, 1]."""
        if share == self._share:
            return
        if self._device.type == "cpu" and (share < 1) is not (self._share < 1):
            yield_processor(share < 1)
        self._share = share
        self._owed = 0.0
        if share < 1 and not self._handles:
            self._handles.append(register_module_forward_pre_hook(self._before_module))
            self._watch_gradients()
        elif share >= 1:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            self._parameters.clear()
            self._from = None

    def hurry(self, hurries: bool) -> None:
        """Whether somebody waits until it pauses or goes on: then it yields to nobody."""
        if self._device.type == "cpu" and self._share < 1:
            yield_processor(not hurries)

    def begin(self) -> None:
        """A mini-batch begins."""
        if self._share < 1:
            self._watch_gradients()
            self._from, self._work_from = self._clock(), self._work()

    def end(self) -> None:
        """Its last step is done."""
        if self._share < 1:
            self.point(always=True)
            self._from = None

    def point(self, always: bool = False) -> None:
        """Between two operations: wait, if there has been enough work since the last wait."""
        began = self._from
        if began is None or (not always and self._clock() - began < _BOUND_S):
            return
        if self._device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():  # a graph: nothing runs, and to wait would end the capture
                return
            torch.cuda.current_stream(self._device).synchronize()
        # several threads may work at once; one that waits for other ranks does not work
        active = min(self._clock() - began, self._work() - self._work_from)
        self.active_s += active
        self._owed += active * (1 / self._share - 1)
        before = self._clock()
        if self._owed > 0:
            self._sleep(min(self._owed, _LONGEST_S))
        self._from, self._work_from = self._clock(), self._work()
        self.waited_s += self._from - before
        self._owed -= self._from - before

    def _before_module(self, module: Any, inputs: Any) -> None:
        if torch.compiler.is_compiling():  # a compiled network has nothing of ours in it, and no break
            return
        with contextlib.suppress(Exception):  # an error of ours is not the script's
            self.point()

    def _watch_gradients(self) -> None:
        for optimizer in self._optimizers():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in self._parameters and parameter.requires_grad and parameter.is_leaf:
                        self._parameters.add(id(parameter))
                        self._handles.append(parameter.register_post_accumulate_grad_hook(self._after_gradient))

    def _after_gradient(self, parameter: Any) -> None:
        if torch.compiler.is_compiling():
            return
        with contextlib.suppress(Exception):
            self.point()
