"""What other threads of a process may do: whether they run code of the script, and whether they could use tensors."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_LIBRARIES = tuple(
    str(Path(path)) for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_OURS = tuple(str(Path(__file__).parents[1] / package) for package in ("hived_control", "hived_runtime"))
_MOST = 20_000  #: objects that are looked at: a thread that reaches more could reach anything


def is_users(file: str | None) -> bool:
    """Whether a file is the user's: of no library, and not ours."""
    return (
        bool(file)
        and not str(file).startswith((*_LIBRARIES, *_OURS, "<frozen"))
        and "site-packages" not in str(file)
        and "dist-packages" not in str(file)
    )


def others_may_compute() -> bool:
    """Whether code of the script in another thread can reach a tensor, a module, an optimizer, or torch itself.

    From its variables, the globals that its code names, and what these hold and call. A thread that writes a log
    cannot, so memory may be taken while it runs. O(objects that it reaches), at most :data:`_MOST`.
    """
    todo: list[Any] = [frame for stack in _stacks_of_script() for frame in stack]
    seen: set[int] = set()
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if type(each) in weakref.ProxyTypes:  # it would be asked as what it stands for; a dead one answers by an error
            with contextlib.suppress(ReferenceError):
                todo.append(each.__init__.__self__)
            continue
        is_torch = isinstance(each, types.ModuleType) and each.__name__.partition(".")[0] == "torch"
        if is_torch or isinstance(each, torch.Tensor | torch.nn.Module | torch.optim.Optimizer) or len(seen) > _MOST:
            return True
        todo += _reached(each)
    return False


def _stacks_of_script() -> list[list[FrameType]]:
    mine = threading.get_ident()
    stacks = [list(_outer_frames(frame)) for thread, frame in sys._current_frames().items() if thread != mine]
    return [stack for stack in stacks if any(is_users(each.f_code.co_filename) for each in stack)]


def _outer_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that have called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _reached(value: Any) -> Iterator[Any]:
    """What a thread that has a value can get from it."""
    if isinstance(value, FrameType):
        yield from value.f_locals.values()
        if is_users(value.f_code.co_filename):
            yield from _named(value.f_code, value.f_globals)
    elif isinstance(value, types.FunctionType):
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # empty
                continue
        if is_users(value.__code__.co_filename):
            yield from _named(value.__code__, value.__globals__)
        elif value.__module__.partition(".")[0] == "torch":
            yield torch
    elif isinstance(value, types.MethodType):
        yield value.__func__
        yield value.__self__
    elif isinstance(value, types.GeneratorType):
        if value.gi_frame is not None:
            yield value.gi_frame
    elif isinstance(value, types.ModuleType):
        if is_users(getattr(value, "__file__", None)):
            yield from vars(value).values()
    elif isinstance(value, type):
        if is_users(getattr(sys.modules.get(value.__module__), "__file__", None)):
            yield from vars(value).values()
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield from filter(None, (value.fget, value.fset))
    elif isinstance(value, Mapping):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from list(value)
    else:
        yield type(value)
        yield from getattr(value, "__dict__", {}).values()
        yield from (getattr(value, name, None) for name in getattr(type(value), "__slots__", ()))


def _named(code: types.CodeType, variables: Mapping[str, Any]) -> Iterator[Any]:
    """The globals that code names, with the functions within it."""
    for name in code.co_names:
        if name in variables:
            yield variables[name]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _named(constant, variables)
