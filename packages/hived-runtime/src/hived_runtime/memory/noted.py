"""What the process has made that uses device memory, noted as it is made: nobody walks over all objects to find it.

Modules are noted when they get their first parameter or buffer, CUDA graphs when their capture begins. Copies of
modules (``copy.deepcopy``, ``pickle``) get neither: for these there is :func:`all_objects`.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

_modules: dict[int, weakref.ref[torch.nn.Module]] = {}
_graphs: dict[int, weakref.ref[Any]] = {}


def watch() -> None:
    """Note what is made from now on. O(1) for each parameter that a module gets."""
    register_module_parameter_registration_hook(_note_module)
    register_module_buffer_registration_hook(_note_module)
    torch.cuda.CUDAGraph.capture_begin = _noting(torch.cuda.CUDAGraph.capture_begin)


def modules() -> list[torch.nn.Module]:
    """Those that are there, of those that were noted."""
    return [found for reference in list(_modules.values()) if (found := reference()) is not None]


def has_graphs() -> bool:
    """Whether there is a CUDA graph: it holds addresses of device memory."""
    return bool(_graphs)


def all_objects() -> list[Any]:
    """All objects that the garbage collector knows, those that were frozen too. O(objects).

    Frozen ones are not shown: they are thawed and frozen again, and what is garbage by then is collected before.
    """
    if not gc.get_freeze_count():
        return gc.get_objects()
    gc.unfreeze()
    gc.collect()
    found = gc.get_objects()
    gc.freeze()
    return found


def _note_module(module: torch.nn.Module, name: str, value: Any) -> None:
    _note(_modules, module)


def _note(there: dict[int, weakref.ref[Any]], made: Any) -> None:
    key = id(made)
    if key not in there:
        there[key] = weakref.ref(made, lambda _: there.pop(key, None))


def _noting(begin: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(begin)
    def noted(graph: Any, *arguments: Any, **named: Any) -> None:
        _note(_graphs, graph)
        begin(graph, *arguments, **named)

    return noted
