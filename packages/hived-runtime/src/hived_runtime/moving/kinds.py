"""Kinds of objects: those that are their value, those that each process has its own of, and all others."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import re
import sys
import sysconfig
import threading
import types
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import frames

Node = tuple[Any, ...]  #: a kind, and what it needs


class MoveError(RuntimeError):
    """The state cannot be handed over exactly: what, and where it is in the script."""

    def __init__(self, what: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(path)}: {what}" if path else what)
        self._what, self._path = what, path

    def within(self, name: object) -> MoveError:
        """The same, of a variable or attribute of this name."""
        return MoveError(self._what, (str(name), *self._path))


PLAIN: tuple[type, ...] = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type(NotImplemented),
    enum.Enum, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction,
    uuid.UUID, re.Pattern, pathlib.PurePath, np.generic, np.dtype,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.finfo, torch.iinfo,
)  # fmt: skip
KEPT: tuple[type, ...] = (
    types.CodeType, types.FrameType, types.TracebackType,
    type(threading.RLock()), types.GenericAlias, types.UnionType,
)  # fmt: skip
#: modules, with what is below them, whose objects are this process's own
_OWN_MODULES = (
    "hived_control", "hived_runtime", "multiprocessing.context", "torch._C", "torch._dynamo", "torch._functorch",
    "torch._inductor", "torch.distributed.distributed_c10d", "torch.distributed.constants", "subprocess", "typing",
)  # fmt: skip
#: modules whose objects are shared with other processes
_SHARING_MODULES = ("multiprocessing", "torch.multiprocessing")
_DYNAMO = ("__compiled_fn_", "__resume_at_", "__import_", "__builtins_dict__", "___")  #: its names among variables
_LIBRARIES = tuple(
    str(Path(path)) for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_TORCH = Path(torch.__file__).parent
_HOOKS_CALLED_BY = (str(_TORCH / "nn" / "modules" / "module.py"), str(_TORCH / "optim" / "optimizer.py"))
_OUR_PACKAGES = ("hived_control", "hived_runtime")
OURS = tuple(str(Path(__file__).parents[2] / package) for package in _OUR_PACKAGES)  #: where our files are


def is_ours(module: str) -> bool:
    """Whether a module is of this distribution."""
    return module.partition(".")[0] in _OUR_PACKAGES


def is_users(file: str | None) -> bool:
    """Whether a file is the user's: of no library, and not ours."""
    return (
        bool(file)
        and not str(file).startswith((*_LIBRARIES, *OURS, "<frozen"))
        and "site-packages" not in str(file)
        and "dist-packages" not in str(file)
    )


def _is_in(kind: type, modules: tuple[str, ...]) -> bool:
    return any(kind.__module__ == each or kind.__module__.startswith(f"{each}.") for each in modules)


def is_own(kind: type) -> bool:
    """Whether objects of a class are this process's own."""
    return _is_in(kind, _OWN_MODULES)


def is_shared(kind: type) -> bool:
    """Whether objects of a class are shared with other processes, so that a move would part them."""
    return _is_in(kind, _SHARING_MODULES) and not is_own(kind)


def is_variable(name: str) -> bool:
    """Whether a name among those of a module is one of the script's, not of Python's or of the compiler's."""
    return not (name.startswith("__") and name.endswith("__")) and not name.startswith(_DYNAMO)


def calls_hooks(file: str) -> bool:
    """Whether a frame of a file may be PyTorch's own loop over the hooks that we are called from."""
    return file.startswith(_HOOKS_CALLED_BY)


def has_own_layout(kind: type) -> bool:
    """Whether objects of a class have more than attributes: a state in C that Python does not show."""
    slots = sum(isinstance(each, types.MemberDescriptorType) for base in kind.__mro__ for each in vars(base).values())
    held = slots + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    return kind.__basicsize__ != object.__basicsize__ + held * frames.POINTER


def function_of(attribute: Any) -> Any:
    """The function of an attribute of a class: below ``staticmethod``, ``classmethod``, ``property``; else itself."""
    if isinstance(attribute, staticmethod | classmethod):
        return attribute.__func__
    if isinstance(attribute, property):
        return attribute.fget
    return attribute.func if isinstance(attribute, functools.cached_property) else attribute


def around(value: Any) -> str:
    """The attribute of a library's object that is all of its state: what it is a wrapper of; "" if it is none.

    A function of the user's under a decorator (``torch.no_grad()``, ``torch.compile``), a compiled module.
    """
    if isinstance(value, types.FunctionType):
        inner: Any = value
        while isinstance(inner, types.FunctionType) and not is_users(inner.__code__.co_filename):
            inner = getattr(inner, "__wrapped__", None)
        return "__wrapped__" if isinstance(inner, types.FunctionType) and inner is not value else ""
    is_compiled = reference_of(type(value)) == ("torch._dynamo.eval_frame", "OptimizedModule")
    return "_orig_mod" if is_compiled else ""


def reference_of(kind: type) -> tuple[str, str]:
    """How a class is found in the other process."""
    return kind.__module__, kind.__qualname__


_MODULES_OF_C = ("torch", "torch._C._nn", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft", "numpy")


def named(value: Any) -> tuple[str, str] | None:
    """Module and qualified name of a module, class or function, if it is found by them; a module's own name is ""."""
    names = [
        (value.__name__, "")
        if isinstance(value, types.ModuleType)
        else (getattr(value, "__module__", None), getattr(value, "__qualname__", None))
    ]
    if isinstance(value, types.BuiltinFunctionType):  # functions of C libraries often do not say where they are
        names += [(module, value.__name__) for module in _MODULES_OF_C]
    for module, qualified in names:
        if isinstance(module, str) and isinstance(qualified, str) and by_name((module, qualified)) is value:
            return module, qualified
    return None


def by_name(name: tuple[str, str]) -> Any:
    """What has this name in this process; ``None`` if nothing has."""
    found: Any = sys.modules.get(name[0])
    for part in name[1].split(".") if name[1] else ():
        found = getattr(found, part, None)
    return found


def place_of(code: types.CodeType) -> tuple[Any, ...]:
    """What tells a function's code from all others, in every run of the script."""
    constants = [each if isinstance(each, PLAIN) else type(each).__name__ for each in code.co_consts]
    return code.co_filename, code.co_qualname, code.co_firstlineno, code.co_code, repr(constants), code.co_names
