"""The state of a running script as data, and its application to another run of the same script.

Two processes run one script; the second has come to the same place in its first mini-batches. So both have the same
objects, at the same paths from the same variables, with other contents. :class:`.describing.Description` walks the
graph of the first and writes contents down; :class:`.restoring.Restoration` walks that of the second along it and
changes objects *in place*: what the script, PyTorch's C++ side or a library wires to an object (hooks, gradient
accumulators, buckets of DDP) stays wired. Only what has no counterpart yet is made anew: a copy of the best weights, an
entry of a list.

Objects that stand for something outside of Python (files, locks, threads, process groups) are kept as the second
process has made them. Tensors go as bytes of their storages, so views and tied weights stay what they are.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.hooks import RemovableHandle

from hived_control.stopping import handlers

from ..threads import others_of_script
from . import frames, loaders, outside
from .describing import Description, first_difference
from .kinds import OURS, MoveError, calls_hooks, is_ours, is_users
from .restoring import Restoration


@dataclass(frozen=True, slots=True)
class Place:
    """Where the frames of a thread are: code and instruction of each, the outermost first."""

    frames: tuple[tuple[str, str, int, int], ...]  #: file, name, first line, instruction

    @classmethod
    def of(cls, stack: Iterable[FrameType]) -> Place:
        """The place of a stack, as :func:`script_stack` gives it."""
        return cls(
            tuple((f.f_code.co_filename, f.f_code.co_qualname, f.f_code.co_firstlineno, f.f_lasti) for f in stack)
        )


_DEEP = 8  #: iterators within iterators


def items_left(stack: Iterable[FrameType]) -> list[int]:
    """How many items the loops of frames have left, where that can be told; else -1."""
    left = []
    for frame in stack:
        if not calls_hooks(frame.f_code.co_filename):
            for iterator in frames.loop_iterators(frame):
                left += _left_in(iterator)
    return left


def _left_in(iterator: Any, deep: int = 0) -> list[int]:
    """The same for one iterator, and for those that it takes its items from."""
    left = frames.remaining(iterator)
    if left is not None:
        return [left]
    inner: list[Any] = list(frames.parts_of(iterator) or ())
    if loaders.is_iterator(iterator) and loaders.walks(iterator):
        inner = [iterator._sampler_iter]
    elif isinstance(iterator, types.GeneratorType) and iterator.gi_frame is not None:
        values = iterator.gi_frame.f_locals
        inner = [*frames.loop_iterators(iterator.gi_frame), *(values[name] for name in sorted(values))]
    found = [-1]
    if deep < _DEEP:
        for each in inner:
            if hasattr(type(each), "__next__"):
                found += _left_in(each, deep + 1)
    return found


def script_stack() -> list[FrameType]:
    """The frames of this thread, the outermost first, without those of hived."""
    stack = [each for each in frames.outer_frames(sys._getframe(1)) if not each.f_code.co_filename.startswith(OURS)]
    stack = [each for each in stack if not each.f_code.co_filename.startswith("<frozen")]
    return stack[::-1]


def _of_autocast(device: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    def read() -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def write(state: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, state[0])
        torch.set_autocast_dtype(device, state[1])

    return read, write


def _set_hook_id(there: int) -> None:
    """Past those of both processes: none is given twice."""
    RemovableHandle.next_id = max(there, RemovableHandle.next_id)


#: of torch, which a script may change as it goes: how each is read and set
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "autocast on the CPU": _of_autocast("cpu"),
    "autocast on a GPU": _of_autocast("cuda"),
    "cache of autocast": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    "ids of hooks": (lambda: RemovableHandle.next_id, _set_hook_id),
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
}
#: variables of the environment that each process has its own of
_OF_PROCESS = ("HIVED_", "CUDA_", "NVIDIA_", "MASTER_", "TORCHELASTIC_", "PYTHONPATH")


def _settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def _modes() -> dict[str, Any]:
    """What both processes must have in common, as it cannot be handed over."""
    hooks = [
        *(each for name, each in vars(torch.nn.modules.module).items() if name.startswith("_global_")),
        *(each for name, each in vars(sys.modules["torch.optim.optimizer"]).items() if name.startswith("_global_")),
    ]
    return {
        "mode of gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "mode of functions": [type(each).__qualname__ for each in _get_current_function_mode_stack()],
        "mode of dispatch": [type(each).__qualname__ for each in _get_current_dispatch_mode_stack()],
        "global hooks": [
            _name_of(one) for each in hooks if isinstance(each, dict) for one in each.values() if _name_of(one)
        ],
        "handlers of signals": {number: _name_of(each) for number, each in handlers().items()},
        "number of functions at exit": atexit._ncallbacks(),
    }


def _name_of(function: Any) -> str:
    """A name by which functions are compared; "" for ours."""
    module = str(getattr(function, "__module__", ""))
    return "" if is_ours(module) else f"{module}.{getattr(function, '__qualname__', type(function).__name__)}"


def _hooks_of(stack: Iterable[FrameType]) -> list[Any]:
    """The hooks of the modules whose calls the stack is within: PyTorch goes over a copy of them already."""
    found = []
    for frame in stack:
        module = frame.f_locals.get("self") if frame.f_code.co_name == "_call_impl" else None
        if isinstance(module, torch.nn.Module):
            found.append([*module._forward_pre_hooks.items(), *module._backward_pre_hooks.items()])
    return found


def _check(job: Path, destination: int) -> None:
    """Raise :class:`MoveError` where more than the frames of this thread is the script's state."""
    if others_of_script():
        raise MoveError("code of the script runs in another thread too")
    outside.check(job, destination)
    if "asyncio" in sys.modules and sys.modules["asyncio"]._get_running_loop() is not None:
        raise MoveError("the script runs in an event loop")
    if sys.flags.hash_randomization and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise MoveError("hash() of texts would be another one: start it by hived train run, or set PYTHONHASHSEED")


def user_modules() -> dict[str, types.ModuleType]:
    """The modules of the user's that are imported, by name, but for the script itself."""
    return {
        name: module
        for name, module in sorted(sys.modules.items())
        if name not in ("__main__", "__mp_main__")
        and is_users(file := getattr(module, "__file__", None))
        and Path(str(file)).is_absolute()  # torch.ops has names of files that there are not
    }


def describe(stack: list[FrameType], job: Path, destination: int = 0) -> tuple[bytes, list[torch.Tensor]]:
    """The state of the script: a description, and the bytes of its storages; :class:`MoveError` if it has none.

    ``job``: the job's folder. ``destination``: pid of the process that is to take over, if it is there.
    """
    if why := frames.supported():
        raise MoveError(why)
    _check(job, destination)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 20_000))
    try:
        described = Description()
        tree = {
            "place": Place.of(stack),
            **_contents(described, stack),
            "random": loaders.RandomStates.now(),
            "settings": _settings(),
            "modes": _modes(),
            "aliases": described.aliases(),
            "environment": {name: value for name, value in os.environ.items() if not name.startswith(_OF_PROCESS)},
            "folder": os.getcwd(),  # noqa: PTH109
        }
        described.check()
        return pickle.dumps(tree, protocol=5), described.storages.tensors
    except frames.PlaceError as error:
        raise MoveError(str(error)) from None
    except RecursionError:
        raise MoveError("objects within objects, deeper than can be followed") from None
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise MoveError(f"a value of the script cannot be written down: {error}") from None
    finally:
        sys.setrecursionlimit(limit)


def _contents(described: Description, stack: list[FrameType]) -> dict[str, Any]:
    return {
        "loggers": [described.node(each) for each in _loggers()],
        "frames": [described.frame(frame) for frame in stack],
        "modules": {name: described.module(module) for name, module in user_modules().items()},
    }


def _loggers() -> list[logging.Logger]:
    """The root logger, and those with handlers, by name: handlers may keep what they are given."""
    named = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    having = [each for each in named if each.handlers and each.name.partition(".")[0] != "torch"]
    return [logging.root, *sorted(having, key=lambda each: each.name)]


def apply(data: bytes, storages: list[torch.Tensor], stack: list[FrameType]) -> None:
    """Bring this run of the script to where the described one is; after a :class:`MoveError` it is spoilt."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 20_000))
    restored = Restoration(storages)
    try:
        modes = _modes()
        with torch.no_grad():
            _apply(pickle.loads(data), restored, stack, modes)
    except MoveError:
        raise
    except Exception as error:
        raise restored.error(f"{type(error).__name__}: {error}") from error
    finally:
        sys.setrecursionlimit(limit)


def _apply(tree: dict[str, Any], restored: Restoration, stack: list[FrameType], modes: dict[str, Any]) -> None:
    if tree["place"] != Place.of(stack):
        raise MoveError("the script is at another place there")
    for what, there in tree["modes"].items():
        if there != modes[what]:
            raise MoveError(f"the {what}: {there!r:.120} there, and {modes[what]!r:.120} here")
    hooks = _hooks_of(stack)
    loggers = _loggers()
    if len(loggers) != len(tree["loggers"]):
        raise MoveError("other loggers have handlers here")
    for node, logger in zip(tree["loggers"], loggers, strict=True):
        restored.value(node, logger)
    for node, frame in zip(tree["frames"], stack, strict=True):
        restored.frame(node, frame)
    modules = user_modules()
    for name, node in tree["modules"].items():
        if name not in modules:
            raise MoveError(f"the module {name} is not imported here yet")
        restored.module(node, modules[name])
    for step in restored.later:
        step()
    if _hooks_of(stack) != hooks:
        raise MoveError("a module that is being called has other hooks here")
    # look whether it is the same now: whatever the walk does not know shows here
    again = Description()
    found = _contents(again, stack)
    for part in ("loggers", "frames", "modules"):
        if difference := first_difference(tree[part], found[part]):
            raise MoveError(f"after it was handed over this is not the same here: {part}{difference}")
    if tree["aliases"] != again.aliases():
        raise MoveError("tensors and arrays that share memory do not do so here")
    for number, (there, here) in enumerate(zip(restored.storages, again.storages.tensors, strict=True)):
        if not torch.equal(there, here.cpu()):
            raise MoveError(f"after they were handed over the bytes of storage {number} are not the same here")
    tree["random"].set()
    for name, value in tree["settings"].items():
        if value != _settings()[name]:
            _SETTINGS[name][1](value)
    os.environ.update(tree["environment"])
    for name in os.environ.keys() - tree["environment"].keys():
        if not name.startswith(_OF_PROCESS):
            del os.environ[name]
    os.chdir(tree["folder"])
