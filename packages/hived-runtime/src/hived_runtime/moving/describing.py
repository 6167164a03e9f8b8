"""Writes the contents of a graph of objects down, as data that another process applies to its own."""

from __future__ import annotations

import ast
import bisect
import collections
import enum
import functools
import gc
import io
import itertools
import logging
import pickle
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import frames, loaders
from .kinds import (
    KEPT,
    PLAIN,
    MoveError,
    Node,
    around,
    calls_hooks,
    function_of,
    has_own_layout,
    is_ours,
    is_own,
    is_shared,
    is_users,
    is_variable,
    named,
    place_of,
    reference_of,
)

_Lock = type(threading.Lock())
_Cache = type(functools.lru_cache(len))
#: what ``open`` makes
CLOSED_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedReader, io.BufferedRandom, io.FileIO)
_LEAST_ADDRESS = 1 << 32  #: smaller numbers are no addresses of objects
#: attributes of classes that have no state of their own
_OF_CLASSES = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
)


@dataclass(slots=True)
class Storages:
    """The bytes of tensors, each storage once."""

    tensors: list[torch.Tensor] = field(default_factory=list)  #: flat views of whole storages
    number_of: dict[int, int] = field(default_factory=dict)  #: by identity of the storage

    def add(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage."""
        storage = tensor.untyped_storage()
        number = self.number_of.setdefault(storage._cdata, len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
        return number


class Description:
    """Writes down the contents of a graph of objects. O(objects reachable from the script's variables)."""

    def __init__(self) -> None:
        self.storages = Storages()
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  #: so that no identity is used twice meanwhile
        self._addresses: set[int] = set()  #: numbers in the script that may be identities of objects
        self._arrays: list[tuple[int, int, int]] = []  #: address and bytes of those with memory of their own; number

    def frame(self, frame: FrameType, suspended: bool = False) -> Node:
        """A frame: its variables, and what waits on its stack.

        That is iterators of loops, operands of the expression that the call is in, exits of ``with`` blocks.
        """
        module = frame.f_code.co_name == "<module>"
        names = [name for name in frame.f_locals if not module or is_variable(name)]
        # loops first: a variable may be an item of what its loop goes over, another one in the other run
        loops: list[Node] = []
        operands: list[Node | None] = []
        # PyTorch's own loops that a call of a module is within go over the hooks: see state.hooks_of
        if suspended or not calls_hooks(frame.f_code.co_filename):
            loops = [self.node(iterator) for iterator in frames.loop_iterators(frame)]
            if any(loop[0] == "keep" for loop in loops):
                raise MoveError(f"{frame.f_code.co_qualname} is in a loop over what has no position")
            operands = [None if each is None else self.node(each[0]) for each in frames.operands(frame)]
        values = frame.f_locals
        return ("frame", self._variables({name: values[name] for name in names}), loops, operands)

    def module(self, module: types.ModuleType) -> Node:
        """The variables of a module of the user's."""
        return ("module", self._variables({n: v for n, v in vars(module).items() if is_variable(n)}))

    def node(self, value: Any) -> Node:
        """The description of a value."""
        kind = type(value)
        if isinstance(value, PLAIN) and not (kind.__dictoffset__ and has_attributes(value)):
            if isinstance(value, int) and value > _LEAST_ADDRESS:
                self._addresses.add(value)
            return ("plain", value)
        if isinstance(value, types.ModuleType | types.BuiltinFunctionType | types.FunctionType | type):
            name = named(value)
            if name is not None and not self._is_of_script(value):
                return ("named", name)
        if isinstance(value, KEPT) or (is_own(kind) and not isinstance(value, torch.Generator) and not around(value)):
            return ("keep", kind.__name__)
        if is_shared(kind):
            raise MoveError(f"{kind.__qualname__}, an object of {kind.__module__}, which other processes may have too")
        if kind is _Lock:
            return ("keep", kind.__name__, value.locked())
        if kind is tuple:  # without an identity that anybody changes
            return ("tuple", [self.node(each) for each in value])
        if id(value) in self._numbers:
            return ("again", self._numbers[id(value)])
        number = self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        described = self._describer(value)(number, value)
        if described[0] in ("keep", "plain"):
            del self._numbers[id(value)]  # it says so again wherever it is met
        return described

    def check(self) -> None:
        """Raise :class:`MoveError` for what can be told only when all has been described."""
        if self._addresses & self._numbers.keys():
            raise MoveError("the script keeps id() of objects, which are others in the destination")

    def aliases(self) -> list[tuple[int, int, int]]:
        """Storages that are in the memory of arrays: numbers of both, and the distance of their beginnings in bytes."""
        found = []
        arrays = sorted(self._arrays)
        starts = [each[0] for each in arrays]
        for index, tensor in enumerate(self.storages.tensors):
            if tensor.device.type == "cpu" and tensor.numel():
                first = max(bisect.bisect_right(starts, tensor.data_ptr()) - 1, 0)
                for at, size, number in arrays[first:]:
                    if at >= tensor.data_ptr() + tensor.numel():
                        break
                    if at + size > tensor.data_ptr():
                        found.append((index, number, tensor.data_ptr() - at))
        return found

    def _is_of_script(self, value: Any) -> bool:
        """Whether a function or class is the script's own: it may have a state."""
        if isinstance(value, types.FunctionType):
            return is_users(value.__code__.co_filename) or bool(around(value))
        return isinstance(value, type) and is_users(getattr(sys.modules.get(value.__module__), "__file__", None))

    def _describer(self, value: Any) -> Callable[[int, Any], Node]:
        kind = type(value)
        if around(value):
            return self._around
        if isinstance(value, enum.Enum):
            return self._member
        if isinstance(value, PLAIN):
            raise MoveError(f"a {kind.__qualname__} with attributes, which is a value by its class")
        if isinstance(value, threading.Thread) and value.is_alive():
            return lambda number, one: ("keep", type(one).__name__)
        for types_, describe in (
            (torch.Tensor, self._tensor),
            (np.ndarray, self._array),
            (torch.Generator, lambda number, one: ("generator state", number, one.get_state().numpy().tobytes())),
            (np.random.Generator, lambda number, one: ("bits", number, one.bit_generator.state, _spawned(one))),
            (np.random.RandomState, lambda number, one: ("random state", number, one.get_state())),
            (random.Random, lambda number, one: ("random", number, one.getstate(), self._attributes(one))),
            (weakref.ReferenceType, self._weak_reference),
            (
                types.MethodType,
                lambda number, one: ("method", number, self.node(one.__func__), self.node(one.__self__)),
            ),
            (types.BuiltinFunctionType, self._bound),
            (types.FunctionType, self._function),
            (functools.partial, lambda number, one: ("partial", number, self.node([one.func, one.args, one.keywords]))),
            (types.GeneratorType, self._generator),
            (type, self._class),
            (bytearray, lambda number, one: ("bytearray", number, bytes(one))),
            (io.StringIO | io.BytesIO, lambda number, one: ("buffer", number, one.getvalue(), one.tell())),
            (threading.Event, lambda number, one: ("event", number, one.is_set())),
            (logging.Logger, self._logger),
            (_Cache, self._cache),
        ):
            if isinstance(value, types_):
                return describe
        if isinstance(value, BaseException):
            return self._error
        if isinstance(value, io.IOBase):
            return self._file
        if loaders.is_iterator(value):
            return self._loader
        if frames.remaining(value) is not None:
            return self._counted
        if frames.parts_of(value) is not None:
            return self._compound
        if isinstance(value, dict | list | set | frozenset | tuple | collections.deque):
            return self._container
        if kind is itertools.count:
            return self._count
        if isinstance(value, types.CoroutineType | types.AsyncGeneratorType):
            return self._stuck
        if has_own_layout(kind) and not isinstance(value, threading.local):  # of that, what this thread has
            return self._stuck if hasattr(kind, "__next__") else self._other
        return lambda number, one: ("object", number, reference_of(type(one)), self._attributes(one))

    def _tensor(self, number: int, tensor: torch.Tensor) -> Node:
        if tensor.layout is torch.sparse_coo:
            parts = (self.node(tensor._indices()), self.node(tensor._values()))
            return ("sparse", number, parts, tensor.size(), tensor.is_coalesced())
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise MoveError(f"a tensor of layout {tensor.layout}, quantized, or conjugate")
        if tensor.device.type == "meta":
            return ("keep", type(tensor).__name__)
        if is_traceable_wrapper_subclass(tensor):
            raise MoveError(f"a tensor of type {type(tensor).__qualname__}, which is made of others")
        if tensor.device.type == "cpu" and tensor.untyped_storage().filename is not None:
            raise MoveError(
                f"a tensor in the file {tensor.untyped_storage().filename}, which both processes would write"
            )
        if tensor.grad_fn is not None and _is_alive(tensor.grad_fn):
            raise MoveError(f"a tensor of shape {tuple(tensor.shape)} has a graph that backward has not been called on")
        grad = self.node(tensor.grad) if tensor.is_leaf else ("plain", None)
        shape = (tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device.type)
        return (
            "tensor",
            number,
            self.storages.add(tensor),
            shape,
            (reference_of(type(tensor)), tensor.requires_grad and tensor.is_leaf),
            grad,
            self._variables(vars(tensor)) if getattr(tensor, "__dict__", None) else [],
            self.node(tensor._backward_hooks),
            [self.node(each) for each in gradient_hooks(tensor)],
        )

    def _other(self, number: int, value: Any) -> Node:
        """An object of a C library: it may not have changed."""
        try:
            return ("same", number, type(value).__name__, pickle.dumps(value))
        except Exception:
            raise MoveError(f"an object of type {type(value).__name__}, whose state cannot be read") from None

    def _error(self, number: int, error: BaseException) -> Node:
        """An exception that the script keeps: by value."""
        try:
            pickle.dumps(error)
        except Exception:
            raise MoveError(f"an exception of type {type(error).__name__}, which cannot be written down") from None
        return ("plain", error)

    def _weak_reference(self, number: int, reference: Any) -> Node:
        return ("weak reference", number, self.node(reference()), reference.__callback__ is not None)

    def _member(self, number: int, member: enum.Enum) -> Node:
        others = {name: value for name, value in vars(member).items() if not name.startswith("_")}
        return ("member", number, reference_of(type(member)), member.name, self._variables(others))

    def _logger(self, number: int, logger: logging.Logger) -> Node:
        name = "" if logger is logging.root else logger.name
        state = [logger.level, logger.propagate, logger.disabled]
        return ("logger", number, name, state, self.node(logger.handlers), self.node(logger.filters))

    def _cache(self, number: int, cache: Any) -> Node:
        """``functools.lru_cache``, of a function of the user's: what is in it, or that it has not grown."""
        inner = cache.__wrapped__
        if not is_users(getattr(getattr(inner, "__code__", None), "co_filename", None)):
            return ("keep", type(cache).__name__)
        about = cache.cache_info()
        unbounded = cached(cache) if about.maxsize is None else None
        if unbounded is None and about.currsize and not _has_values_alone(cache):
            raise MoveError(f"{inner.__qualname__} has a cache of bounded size, with objects in it")
        of = (about.maxsize, about.currsize if unbounded is None else 0, about.misses if unbounded is None else 0)
        return ("cache", number, self.node(inner), of, None if unbounded is None else self.node(unbounded))

    def _file(self, number: int, file: Any) -> Node:
        if file in (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__):
            return ("keep", type(file).__name__)
        name = getattr(file, "name", None)
        if file.closed:
            return self._closed_file(number, file, name)
        try:
            if file.writable() or not isinstance(name, str):
                raise MoveError(f"the file {name!r}, which the script has open for writing")
            return ("file", number, name, file.tell())
        except OSError as error:
            raise MoveError(f"the file {name!r} has no position: {error}") from None

    def _closed_file(self, number: int, file: Any, name: object) -> Node:
        """A file that the script has done with has no state: where the other run has none yet, one is made."""
        mode = getattr(file, "mode", None)
        if type(file) not in CLOSED_FILES or not isinstance(name, str) or not isinstance(mode, str) or "x" in mode:
            return ("keep", type(file).__name__)
        return ("closed file", number, type(file).__name__, name, mode)

    def _array(self, number: int, array: np.ndarray[Any, Any]) -> Node:
        if array.dtype.hasobject:
            raise MoveError("an array of Python objects")
        if type(array) not in (np.ndarray, np.memmap) and getattr(array, "__dict__", None):
            raise MoveError(f"an array of type {type(array).__qualname__}, with attributes")
        if isinstance(array, np.memmap):
            if array.flags.writeable:
                raise MoveError(f"an array in the file {array.filename}, which both processes would write")
            about = (str(array.filename), str(array.dtype), array.offset, array.shape)
            return ("mapped array", number, about)
        base = base_of(array)
        if base is None or isinstance(base, bytes):
            if base is None and array.nbytes:
                self._arrays.append((array.ctypes.data, array.nbytes, number))
            return ("array", number, array)
        if not isinstance(base, np.ndarray | bytearray | torch.Tensor) or isinstance(base, np.memmap):
            raise MoveError(f"an array in memory of a {type(base).__qualname__}")
        at = array.ctypes.data - _address(base)
        return (
            "part",
            number,
            self.node(base),
            (at, array.shape, array.strides, str(array.dtype)),
            type(array).__name__,
        )

    def _bound(self, number: int, method: types.BuiltinFunctionType) -> Node:
        if method.__self__ is None or isinstance(method.__self__, types.ModuleType):
            raise MoveError(f"the function {method.__name__} of a C library, which has no name to be found by")
        return ("bound", number, method.__name__, self.node(method.__self__))

    def _function(self, number: int, function: types.FunctionType) -> Node:
        code = function.__code__
        if not is_users(code.co_filename):
            return ("keep", "function")
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.node(cell.cell_contents))
            except ValueError:  # empty
                cells.append(("empty",))
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        return (
            "function",
            number,
            named(function),
            place_of(code),
            cells,
            self._variables(vars(function)),
            [self.node(each) for each in defaults],
        )

    def _around(self, number: int, wrapper: Any) -> Node:
        attribute = around(wrapper)
        inner = self.node(getattr(wrapper, attribute))
        if not isinstance(wrapper, types.FunctionType):
            return ("around", number, None, attribute, inner, [])
        others = {name: value for name, value in vars(wrapper).items() if name != attribute}
        return ("around", number, named(wrapper), attribute, inner, self._variables(others))

    def _class(self, number: int, kind: type) -> Node:
        values = {}
        for name, value in vars(kind).items():
            function = function_of(value)
            if isinstance(function, types.FunctionType):
                if is_users(function.__code__.co_filename) or around(function):
                    values[name] = function
            elif not name.startswith(("__", "_abc_")) and function is value and not isinstance(value, _OF_CLASSES):
                values[name] = value
        return ("class", number, named(kind), reference_of(kind), self._variables(values))

    def _generator(self, number: int, generator: types.GeneratorType[Any, Any, Any]) -> Node:
        frame = generator.gi_frame
        if frame is None:
            return ("ended", number)
        return ("generator", number, generator.gi_code.co_qualname, frame.f_lasti, self.frame(frame, suspended=True))

    def _counted(self, number: int, iterator: Any) -> Node:
        # what it goes over is nowhere else perhaps, and may have other items in the other run
        return (
            "counted",
            number,
            type(iterator).__name__,
            frames.remaining(iterator),
            self.node(frames.over(iterator)),
        )

    def _count(self, number: int, iterator: Any) -> Node:
        """``itertools.count``: its next number, and its step, as its text has them."""
        try:
            start, step = (*ast.literal_eval(f"[{repr(iterator)[6:-1]}]"), 1)[:2]
        except (ValueError, SyntaxError):  # of numbers that have no literals
            return self._stuck(number, iterator)
        return ("count", number, start, step)

    def _stuck(self, number: int, iterator: Any) -> Node:
        raise MoveError(f"the position of an iterator of type {type(iterator).__name__} cannot be handed over")

    def _compound(self, number: int, iterator: Any) -> Node:
        count = frames.count_of(iterator) if type(iterator) is enumerate else None
        parts = [self.node(part) for part in frames.parts_of(iterator) or ()]
        return ("compound", number, type(iterator).__name__, parts, count)

    def _loader(self, number: int, iterator: Any) -> Node:
        return (
            "loader",
            number,
            loaders.position(iterator),
            self._attributes(iterator) if loaders.walks(iterator) else [],
        )

    def _container(self, number: int, value: Any) -> Node:
        kind = type(value)
        extra = self._attributes(value) if hasattr(value, "__dict__") else []
        if isinstance(value, dict):
            items: list[Any] = [(self.node(key), self._part(key, each)) for key, each in value.items()]
            return ("dict", number, reference_of(kind), items, extra)
        if isinstance(value, set | frozenset):
            return ("set", number, reference_of(kind), [self.node(each) for each in value], extra)
        most = value.maxlen if isinstance(value, collections.deque) else None
        parts = [self._part(index, each) for index, each in enumerate(value)]
        return ("list", number, reference_of(kind), parts, extra, most)

    def _attributes(self, value: Any) -> list[tuple[str, Node]]:
        found = dict(vars(value)) if hasattr(value, "__dict__") else {}
        for base in type(value).__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    found[name] = getattr(value, name)
        return self._variables(found)

    def _variables(self, values: dict[str, Any]) -> list[tuple[str, Node]]:
        return [(name, self._part(name, values[name])) for name in sorted(values, key=str)]

    def _part(self, name: object, value: Any) -> Node:
        """The description of a part, which a refusal names."""
        try:
            return self.node(value)
        except MoveError as error:
            raise error.within(name) from None


def gradient_hooks(tensor: torch.Tensor) -> list[Any]:
    """What is called when a gradient is complete, without what is ours."""
    hooks: dict[int, Any] = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
    return [each for each in hooks.values() if not is_ours(str(getattr(each, "__module__", "")))]


def base_of(array: np.ndarray[Any, Any]) -> Any:
    """The object whose memory an array is in; ``None``: its own."""
    return array.base.obj if isinstance(array.base, memoryview) else array.base


def _spawned(generator: np.random.Generator) -> int:
    """How many generators have been made of this one."""
    return int(getattr(getattr(generator.bit_generator, "seed_seq", None), "n_children_spawned", 0))


def _address(base: Any) -> int:
    if isinstance(base, torch.Tensor):
        return int(base.untyped_storage().data_ptr())
    return int(base.ctypes.data) if isinstance(base, np.ndarray) else int(np.frombuffer(base, np.uint8).ctypes.data)


def cached(cache: Any) -> dict[Any, Any] | None:
    """The results that a cache without a bound holds, as it holds them itself."""
    size = cache.cache_info().currsize
    return next(
        (
            each
            for each in gc.get_referents(cache)
            if type(each) is dict and each is not cache.__dict__ and len(each) == size
        ),
        None,
    )


def _has_values_alone(cache: Any) -> bool:
    results = [each for each in gc.get_referents(cache) if type(each) is dict and each is not cache.__dict__]
    entries = [part for each in results for entry in each.values() for part in gc.get_referents(entry)]
    known = (*PLAIN, tuple, type, type(results[0]) if results else dict)
    return all(isinstance(each, known) or type(each).__name__ == "_lru_list_elem" for each in entries)


def has_attributes(value: Any) -> bool:
    """Whether a value has been given attributes by the script."""
    return any(not name.startswith("_") for name in getattr(value, "__dict__", ()))


def _is_alive(node: Any, most: int = 4096) -> bool:
    """Whether a graph may be for a backward pass that has not come: that would have freed what it keeps.

    One that keeps nothing, and leads to parameters, is taken for alive.
    """
    seen, todo, freed, to_leaf = {node}, [node], False, False
    while todo and len(seen) < most:
        each = todo.pop()
        to_leaf = to_leaf or type(each).__name__ == "AccumulateGrad"
        for name in dir(each):
            if name.startswith("_saved_") or name == "saved_tensors":
                try:
                    saved = getattr(each, name)
                except RuntimeError:
                    freed = True
                    break
                parts = saved if isinstance(saved, tuple | list) else (saved,)
                if any(isinstance(part, torch.Tensor) for part in parts):
                    return True
        for following, _ in each.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return not freed and (to_leaf or bool(todo))


def first_difference(there: Any, here: Any) -> str:
    """The path to the first difference of two descriptions; "" if there is none."""
    if type(there) is not type(here):
        return f": {type(there).__name__} and {type(here).__name__}"
    if is_dataclass(there) and not isinstance(there, type):
        pairs = [(f".{each.name}", getattr(there, each.name), getattr(here, each.name)) for each in fields(there)]
    elif isinstance(there, dict):
        if list(there) != list(here):
            return ": other keys"
        pairs = [(f".{key}", there[key], here[key]) for key in there]
    elif isinstance(there, list | tuple):
        if len(there) != len(here):
            return f": {len(there)} and {len(here)}"
        pairs = [(_step(each, index), each, here[index]) for index, each in enumerate(there)]
    elif isinstance(there, np.ndarray):
        return "" if np.array_equal(there, here, equal_nan=there.dtype.kind in "fc") else ": other items"
    else:
        try:
            same = bool(there == here) or bool(there != there)  # NaN
        except Exception:
            same = False  # what cannot be compared
        if not same and "__eq__" not in vars(type(there)):  # told apart by identity alone
            same = getattr(there, "__dict__", None) == getattr(here, "__dict__", None)
        return "" if same else f": {there!r:.80} and {here!r:.80}"
    for step, one, other in pairs:
        if found := first_difference(one, other):
            return step + found
    return ""


def _step(node: Any, index: int) -> str:
    """The name of a variable, or a number."""
    named = isinstance(node, tuple) and len(node) == 2 and isinstance(node[0], str) and isinstance(node[1], tuple)
    return f".{node[0]}" if named else f"[{index}]"
