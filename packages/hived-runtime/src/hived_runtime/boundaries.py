"""Where one mini-batch ends and the next has not begun: the minimum of the memory cycle (Gandiva, OSDI'18, 3.3, 4.1).

After the last ``optimizer.step`` of a mini-batch gradients are still allocated. They are dropped by ``zero_grad``,
which most scripts call before the next forward pass. So the boundary is at the first call, after that step, of a module
that is trained: one that holds parameters of an optimizer that has stepped. Transforms, losses and frozen teachers are
modules too, and are called within a loader or with gradients alive. A script that calls no such module (or whose
compiled function hides the call) has its boundary in the step itself; where the optimizers hold copies of what modules
have (ZeRO, master weights), a module with parameters that require gradients is one.

Nothing is installed in the model. One hook of all optimizers stays; the hook of module calls is there between a step
and the next call of a module only, which takes it away.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from threading import get_ident
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook  # the module attribute is shadowed

_WINDOW = 64  #: steps that the rule for several optimizers looks back
_MOST_MODULES = 1000  #: that are known
_RARE = 8  #: an optimizer that steps less than once in so many steps of others is not waited for


class _Holds(Enum):
    """What the parameters of a module are."""

    TRAINED = 1  #: some are those of an optimizer that has stepped
    GRADIENTS = 2  #: none, but some require gradients
    NOTHING = 3


class MiniBatches:
    """Which step of an optimizer is the last of its mini-batch. Pure; O(1) with one optimizer, else O(window of 64).

    With several optimizers (a GAN; sparse and dense parameters) a mini-batch has a step of each, and one of them may
    take several: it ends with the step of the one that has stepped least of late; of several such, of the one that
    came last. So D, G, D, G ends with G, and D, D, D, G with G too. One that has not stepped for a while is forgotten.
    Gradient accumulation needs no rule: there is no step within.
    """

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=_WINDOW)
        self._only: int | None = None
        self._rank: dict[int, int] = {}  #: in the order in which they stepped first

    def ends_with(self, optimizer: int) -> bool:
        """Whether a step of this optimizer ends a mini-batch."""
        if optimizer == self._only:
            return True
        if not self._rank:
            self._only = optimizer
            self._rank[optimizer] = 0
            return True
        if self._only is not None:
            self._recent.append(self._only)
            self._only = None
        self._recent.append(optimizer)
        self._rank.setdefault(optimizer, len(self._rank))
        counts = Counter(self._recent)
        if len(counts) == 1 and len(self._recent) == _WINDOW:  # the others are gone
            self._only, self._rank = optimizer, {optimizer: 0}
            self._recent.clear()
            return True
        most = max(counts.values())
        last = min(
            (one for one, count in counts.items() if count * _RARE >= most),
            key=lambda one: (counts[one], -self._rank[one]),
        )
        return optimizer == last


class Boundaries:
    """Calls ``act`` at the boundaries of the training thread, and tells the optimizers that have stepped.

    ``ended`` is called once for each mini-batch, when its last step is done; ``act`` once after it, at the boundary.
    """

    def __init__(self, ended: Callable[[], None], act: Callable[[], None]) -> None:
        self._ended, self._act = ended, act
        self._rule = MiniBatches()
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}  #: that have stepped, by identity
        self._thread = 0  #: that trains
        self._armed: Any = None  #: handle of the hook of module calls
        self._since_call: set[int] = set()  #: optimizers that have stepped since a trained module was called
        self._functional = False  #: the script calls no trained modules
        self._parameters: set[int] = set()  #: of the optimizers that have stepped, by identity
        self._groups: dict[int, int] = {}  #: of each of them: how many groups these are of
        #: what the modules that were called are, by identity; forgotten when there are other parameters
        self._modules: dict[int, tuple[weakref.ref[Any], _Holds]] = {}
        self._copied = False  #: optimizers hold copies of the modules' parameters
        self._passed = (
            False  #: a module that requires gradients, and is in no optimizer, was called since the last step
        )
        self._phase: Any = None  #: handle of the hook of phases without steps
        self._steps = register_optimizer_step_post_hook(self._stepped)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that have stepped, and are still there."""
        return [found for reference in self._optimizers.values() if (found := reference()) is not None]

    def remove(self) -> None:
        """Take all hooks away."""
        self._steps.remove()
        self.disarm()

    def disarm(self) -> None:
        """Take the hooks of module calls away."""
        for handle in (self._armed, self._phase):
            if handle is not None:
                handle.remove()
        self._armed = self._phase = None

    def look_for_phase(self) -> None:
        """Act at the next call of a module without gradients too: the script may be in an evaluation.

        Called by another thread, when a command has waited for longer than mini-batches take.
        """
        if self._phase is None:
            self._phase = register_module_forward_pre_hook(self._in_phase)

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling():  # the step is part of a compiled function, which has a break here
            self._stepped_natively(optimizer)
        else:
            self._after_step(optimizer)

    @torch._disable_dynamo  # type: ignore[untyped-decorator]  # the public one would import it now
    def _stepped_natively(self, optimizer: Optimizer) -> None:
        self._after_step(optimizer)

    def _after_step(self, optimizer: Optimizer) -> None:
        if _is_capturing():
            return
        key = id(optimizer)
        known = self._optimizers.get(key)
        if known is None or known() is not optimizer:  # a new one, perhaps with the number of one that is gone
            self._optimizers = {number: one for number, one in self._optimizers.items() if one() is not None}
            self._optimizers[key] = weakref.ref(optimizer)
            self._thread = get_ident()
        if self._groups.get(key) != len(optimizer.param_groups) or known is None:
            self._note_parameters()
        if key in self._since_call and not (self._functional or self._copied):
            # twice, and no trained module between: there are none, or a compiled function hides them
            self._copied, self._functional = self._passed, not self._passed
            self.disarm()
        self._since_call.add(key)
        self._passed = False
        if not self._rule.ends_with(key):
            return
        self._ended()
        if self._functional:
            self._act()
        elif self._armed is None:
            self._armed = register_module_forward_pre_hook(self._called)

    def _note_parameters(self) -> None:
        """Collect the parameters of the optimizers that have stepped. O(their number), once for each change."""
        self._groups = {id(one): len(one.param_groups) for one in self.optimizers}
        self._parameters = {id(p) for one in self.optimizers for group in one.param_groups for p in group["params"]}
        self._modules.clear()

    def _holds(self, module: Any) -> _Holds:
        """What a module is, as its parameters say. O(1) for one that was called before."""
        known = self._modules.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        found = _Holds.NOTHING
        for parameter in module.parameters():
            if id(parameter) in self._parameters:
                found = _Holds.TRAINED
                break
            if parameter.requires_grad:
                found = _Holds.GRADIENTS
        if len(self._modules) >= _MOST_MODULES:
            self._modules.clear()
        self._modules[id(module)] = weakref.ref(module), found
        return found

    def _called(self, module: Any, inputs: Any) -> None:
        if torch.compiler.is_compiling() or get_ident() != self._thread or _is_capturing():
            return  # the first: a compiled network has nothing of ours in it, and no break
        holds = self._holds(module)
        if holds is not _Holds.TRAINED and not (self._copied and holds is _Holds.GRADIENTS):
            self._passed |= holds is _Holds.GRADIENTS
            return
        armed, self._armed = self._armed, None
        if armed is not None:
            armed.remove()
        self._since_call.clear()
        self._act()

    def _in_phase(self, module: Any, inputs: Any) -> None:
        if torch.compiler.is_compiling() or get_ident() != self._thread:
            return
        if torch.is_grad_enabled() or _within_module() or _is_capturing():
            return
        if next(module.parameters(), None) is None:  # a transform, in a loader
            return
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.remove()
        self._act()


def _is_capturing() -> bool:
    """Whether a CUDA graph is recorded: nothing runs then, and a boundary would end the capture."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _within_module() -> bool:
    """Whether the call of the module that is about to happen is made by another module."""
    frame = sys._getframe(2)  # the machinery of this very call comes first
    while frame is not None and frame.f_code.co_name in ("_call_impl", "_wrapped_call_impl", "inner"):
        frame = frame.f_back  # type: ignore[assignment]
    while frame is not None:
        if frame.f_code.co_name == "_call_impl":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
