"""Applies a description of objects to those of this process, in place."""

from __future__ import annotations

import ast
import collections
import functools
import io
import itertools
import logging
import os
import pickle
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch

from . import frames, loaders
from .describing import base_of, cached, gradient_hooks
from .kinds import PLAIN, MoveError, Node, around, by_name, function_of, is_variable, place_of, reference_of

_NOTHING: Any = object()  #: there is no counterpart


class Restoration:
    """Applies a description to the objects of this process, in place."""

    def __init__(self, storages: list[torch.Tensor]) -> None:
        """``storages``: bytes of each storage of the description, flat, on the CPU."""
        self.storages = storages
        self._objects: dict[int, Any] = {}  #: by number in the description
        self._claimed: set[int] = set()  #: identities of these
        self._alive: list[Any] = []
        self._own_storage: dict[int, torch.Tensor] = {}  #: by number of the storage: one of this process, flat
        self._filled: set[int] = set()
        self._path: list[str] = []
        self.later: list[Callable[[], None]] = []  #: what waits until all else is in place: loaders

    def frame(self, node: Node, frame: FrameType) -> None:
        """Apply the description of a frame."""
        _, variables, loops, operands = node
        here = frame.f_locals
        iterators = frames.loop_iterators(frame) if loops else []
        if len(iterators) != len(loops):
            raise MoveError(f"{frame.f_code.co_qualname} is in {len(iterators)} loops here, and in {len(loops)} there")
        with _At(self, frame.f_code.co_qualname):
            for index, (loop, iterator) in enumerate(zip(loops, iterators, strict=True)):
                with _At(self, f"loop {index + 1}"):
                    if self.value(loop, iterator) is not iterator:
                        raise self.error("the iterator of a loop is of another kind here")
            self._set_operands(operands, frame)
            values = {}
            for name, each in variables:
                with _At(self, name):
                    values[name] = self.value(each, here.get(name, _NOTHING))
            module = frame.f_code.co_name == "<module>"
            gone = {name for name in here if name not in values and (not module or is_variable(name))}
            frames.set_variables(frame, values, gone)

    def _set_operands(self, operands: list[Node | None], frame: FrameType) -> None:
        if not operands:
            return
        here = frames.operands(frame)
        if [each is None for each in operands] != [each is None for each in here]:
            raise self.error("another part of an expression has been evaluated here")
        for index, (node, own) in enumerate(zip(operands, here, strict=True)):
            if node is not None and own is not None:
                after = self._item(f"operand {index}", node, own[0])
                if after is not own[0]:
                    frames.set_operand(own[1], after)

    def module(self, node: Node, module: types.ModuleType) -> None:
        """Apply the description of a module of the user's."""
        with _At(self, module.__name__):
            self._set_variables(node[1], vars(module))

    def value(self, node: Node, here: Any) -> Any:
        """What stands for a described value in this process: ``here``, changed in place, or another object."""
        kind = node[0]
        if kind == "plain":
            return node[1]
        if kind == "keep":
            if type(here).__name__ != node[1]:
                raise self.error(f"an object of type {node[1]} is not here yet")
            return here
        if kind == "named":
            found = by_name(node[1])
            if found is None:
                raise self.error(f"{'.'.join(filter(None, node[1]))} is not here")
            return found
        if kind == "tuple":
            return self._tuple(node, here)
        if kind == "again":
            return self._objects[node[1]]
        return getattr(self, "_" + kind.replace(" ", "_"))(node, here)

    # -- parts

    def error(self, what: str) -> MoveError:
        """The error with the path of the variable that is being applied."""
        return MoveError(f"{'.'.join(self._path)}: {what}")

    def _is_mine(self, node: Node, here: Any, *kinds: type) -> bool:
        """Whether ``here`` can stand for the described object; it does so from now on."""
        if here is _NOTHING or not isinstance(here, kinds) or id(here) in self._claimed:
            return False
        self._claim(node, here)
        return True

    def _claim(self, node: Node, value: Any) -> None:
        self._objects[node[1]] = value
        self._claimed.add(id(value))
        self._alive.append(value)

    def _need(self, node: Node, here: Any, *kinds: type) -> None:
        if not self._is_mine(node, here, *kinds):
            raise self.error(f"a {node[0]} has no counterpart here")

    def _tuple(self, node: Node, here: Any) -> Any:
        parts = here if type(here) is tuple and len(here) == len(node[1]) else [_NOTHING] * len(node[1])
        made = tuple(
            self._item(index, each, part) for index, (each, part) in enumerate(zip(node[1], parts, strict=True))
        )
        same = type(here) is tuple and len(made) == len(here) and all(map(_is_same, made, here))
        return here if same else made

    def _item(self, index: object, node: Node, here: Any) -> Any:
        with _At(self, f"[{index!r}]"):
            return self.value(node, here)

    # -- tensors

    def _tensor(self, node: Node, here: Any) -> Any:
        _, _, storage, (size, stride, offset, dtype, device), (kind, requires_grad), grad, attributes, *hooks = node
        fits = (
            isinstance(here, torch.Tensor)
            and here.layout is torch.strided
            and here.device.type == device
            and here.dtype is dtype
            and reference_of(type(here)) == kind
        )
        if not (fits and self._is_mine(node, here, torch.Tensor)):
            source = here.device if isinstance(here, torch.Tensor) and here.device.type == device else device
            here = torch.empty(0, dtype=dtype, device=source)
            if kind == reference_of(torch.nn.Parameter):
                here = torch.nn.Parameter(here, requires_grad)
            elif kind != reference_of(torch.Tensor):
                raise self.error(f"a tensor of type {kind[1]} is not here yet")
            self._claim(node, here)
            here.requires_grad_(requires_grad)
        own = here.untyped_storage()
        flat = self._own_storage.get(storage)
        same_shape = (tuple(here.size()), here.stride(), here.storage_offset()) == (size, stride, offset)
        if flat is None and same_shape and own.nbytes() == self.storages[storage].numel():
            flat = torch.empty(0, dtype=torch.uint8, device=here.device).set_(own)
        elif flat is None:
            flat = torch.empty(self.storages[storage].numel(), dtype=torch.uint8, device=here.device)
        self._own_storage[storage] = flat
        if storage not in self._filled:
            self._filled.add(storage)
            flat.copy_(self.storages[storage])
        if here.untyped_storage()._cdata != flat.untyped_storage()._cdata or not same_shape:
            there = torch.empty(0, dtype=dtype, device=here.device)
            there.set_(flat.untyped_storage(), offset, size, stride)
            here.data = there
        if here.is_leaf:
            with _At(self, "grad"):
                here.grad = self.value(grad, here.grad if here.grad is not None else _NOTHING)
            if here.requires_grad != requires_grad:  # frozen, or thawed, meanwhile
                here.requires_grad_(requires_grad)
        if attributes:
            self._set_variables(attributes, vars(here))
        before = here._backward_hooks
        after = self._item("hooks", hooks[0], _NOTHING if before is None else before)
        if after is not before:
            here._backward_hooks = after
        own_hooks = gradient_hooks(here)
        if len(own_hooks) != len(hooks[1]):
            raise self.error("a tensor has other hooks here")
        for each, mine in zip(hooks[1], own_hooks, strict=True):
            if self._item("hooks", each, mine) is not mine:
                raise self.error("a tensor has other hooks here")
        return here

    def _sparse(self, node: Node, here: Any) -> Any:
        _, _, (indices, values), size, coalesced = node
        made = torch.sparse_coo_tensor(
            self.value(indices, _NOTHING), self.value(values, _NOTHING), size, check_invariants=False
        )
        made = made._coalesced_(coalesced)
        self._claim(node, made)
        return made

    def _array(self, node: Node, here: Any) -> Any:
        array = node[2]
        if (
            isinstance(here, np.ndarray)
            and (here.shape, here.dtype) == (array.shape, array.dtype)
            and here.flags.writeable
            and self._is_mine(node, here, np.ndarray)
        ):
            here[...] = array
            return here
        array = array.copy()  # as it comes it is in the memory of what was read
        self._claim(node, array)
        return array

    def _part(self, node: Node, here: Any) -> Any:
        """An array in the memory of another one, of a bytearray or of a tensor."""
        _, _, of, (at, shape, strides, dtype), kind = node
        mine = here if isinstance(here, np.ndarray) else np.empty(0)
        own = base_of(mine)
        base = self._item("base", of, _NOTHING if own is None else own)
        is_same = base is own and (mine.shape, mine.strides, str(mine.dtype)) == (shape, strides, dtype)
        if is_same and self._is_mine(node, here, np.ndarray):
            return here
        if not isinstance(base, np.ndarray) or kind != "ndarray":
            raise self.error("a part of another array is not here yet")
        made: np.ndarray[Any, Any] = np.ndarray(shape, dtype, base, at, strides)
        self._claim(node, made)
        return made

    def _mapped_array(self, node: Node, here: Any) -> Any:
        name, dtype, offset, shape = node[2]
        is_same = isinstance(here, np.memmap) and not here.flags.writeable
        if not (is_same and (str(here.filename), str(here.dtype), here.offset, here.shape) == node[2]):
            here = np.memmap(name, dtype, "r", offset, shape)
        self._claim(node, here)
        return here

    def _bytearray(self, node: Node, here: Any) -> Any:
        if not self._is_mine(node, here, bytearray):
            here = bytearray()
            self._claim(node, here)
        here[:] = node[2]
        return here

    def _buffer(self, node: Node, here: Any) -> Any:
        kind = io.StringIO if isinstance(node[2], str) else io.BytesIO
        if not self._is_mine(node, here, kind):
            here = kind()
            self._claim(node, here)
        here.seek(0)
        here.truncate()
        here.write(node[2])
        here.seek(node[3])
        return here

    def _same(self, node: Node, here: Any) -> Any:
        self._need(node, here, object)
        if type(here).__name__ != node[2] or pickle.dumps(here) != node[3]:
            raise self.error(
                f"an object of type {node[2]} has changed since, and it is not known how to change it here"
            )
        return here

    # -- random generators

    def _generator_state(self, node: Node, here: Any) -> Any:
        self._need(node, here, torch.Generator)
        here.set_state(torch.frombuffer(bytearray(node[2]), dtype=torch.uint8))
        return here

    def _bits(self, node: Node, here: Any) -> Any:
        self._need(node, here, np.random.Generator)
        here.bit_generator.state = node[2]
        if more := node[3] - int(getattr(getattr(here.bit_generator, "seed_seq", None), "n_children_spawned", 0)):
            here.bit_generator.seed_seq.spawn(more)
        return here

    def _random_state(self, node: Node, here: Any) -> Any:
        self._need(node, here, np.random.RandomState)
        here.set_state(node[2])
        return here

    def _random(self, node: Node, here: Any) -> Any:
        self._need(node, here, random.Random)
        here.setstate(node[2])
        self._set_attributes(node[3], here)
        return here

    # -- code

    def _method(self, node: Node, here: Any) -> Any:
        is_one = isinstance(here, types.MethodType)
        function = self.value(node[2], here.__func__ if is_one else _NOTHING)
        owner = self.value(node[3], here.__self__ if is_one else _NOTHING)
        if not (is_one and here.__func__ is function and here.__self__ is owner):
            here = types.MethodType(function, owner)
        self._claim(node, here)
        return here

    def _bound(self, node: Node, here: Any) -> Any:
        owner = self.value(node[3], getattr(here, "__self__", _NOTHING))
        made = getattr(owner, node[2])
        self._claim(node, made)
        return made

    def _around(self, node: Node, here: Any) -> Any:
        _, _, name, attribute, inner, others = node
        if name is not None:
            here = by_name(name)
        own = getattr(here, attribute, _NOTHING)
        if own is _NOTHING or around(here) != attribute:
            raise self.error("what a decorator, or torch.compile, has made is not here")
        self._claim(node, here)
        if self.value(inner, own) is not own:
            raise self.error("a decorator, or torch.compile, has wrapped another object here")
        if others:
            self._set_variables(others, vars(here))
        return here

    def _cache(self, node: Node, here: Any) -> Any:
        _, _, inner, (most, size, misses), contents = node
        if not hasattr(here, "cache_info") or here.cache_info().maxsize != most:
            raise self.error("a cache is not here")
        self._claim(node, here)
        if self.value(inner, here.__wrapped__) is not here.__wrapped__:
            raise self.error("a cache is of another function here")
        about = here.cache_info()
        if contents is None:
            if (about.currsize, about.misses) != (size, misses):
                raise self.error("a cache of bounded size has been filled since")
            return here
        own = cached(here)
        if own is None or self.value(contents, own) is not own:
            raise self.error("a cache cannot be read here")
        return here

    def _weak_reference(self, node: Node, here: Any) -> Any:
        own = here() if isinstance(here, weakref.ReferenceType) else None
        target = self._item("target", node[2], _NOTHING if own is None else own)
        if target is own and isinstance(here, weakref.ReferenceType):
            self._claim(node, here)
            return here
        if node[3] or target is None:
            raise self.error("a weak reference is to another object here")
        made = weakref.ref(target)
        self._claim(node, made)
        return made

    def _member(self, node: Node, here: Any) -> Any:
        _, _, reference, name, attributes = node
        kind = by_name(reference)
        found = None if kind is None else kind.__members__.get(name)
        if found is None:
            raise self.error(f"{reference[1]}.{name} is not here")
        self._claim(node, found)
        self._set_variables(attributes, vars(found))
        return found

    def _event(self, node: Node, here: Any) -> Any:
        self._need(node, here, threading.Event)
        (here.set if node[2] else here.clear)()
        return here

    def _logger(self, node: Node, here: Any) -> Any:
        _, _, name, (level, propagate, disabled), handlers, filters = node
        here = logging.getLogger(name or None)
        self._claim(node, here)
        here.setLevel(level)
        here.propagate, here.disabled = propagate, disabled
        here.handlers = self._item("handlers", handlers, here.handlers)
        here.filters = self._item("filters", filters, here.filters)
        return here

    def _function(self, node: Node, here: Any) -> Any:
        _, _, name, place, contents, attributes, defaults = node
        if name is not None:
            here = by_name(name)
        code = getattr(here, "__code__", None)
        if code is None or place_of(code) != place:
            raise self.error(f"the function {place[1]} of line {place[2]} is not here")
        self._claim(node, here)
        cells = here.__closure__ or ()
        for cell, content in zip(cells, contents, strict=True):
            if content[0] != "empty":
                try:
                    before = cell.cell_contents
                except ValueError:
                    before = _NOTHING
                after = self._item(here.__name__, content, before)
                if after is not before:
                    cell.cell_contents = after
        self._set_variables(attributes, vars(here))
        own = [*(here.__defaults__ or ()), *(here.__kwdefaults__ or {}).values()]
        for before, each in zip(own, defaults, strict=True):
            if not _is_same(self._item("defaults", each, before), before):
                raise self.error("a default value is another one here")
        return here

    def _class(self, node: Node, here: Any) -> Any:
        _, _, name, reference, attributes = node
        if name is not None:
            here = by_name(name)
        if not isinstance(here, type) or reference_of(here) != reference:
            raise self.error(f"the class {reference[1]} is not here")
        self._claim(node, here)
        for attribute, each in attributes:
            held = vars(here).get(attribute, _NOTHING)
            before = function_of(held)
            after = self._item(attribute, each, before)
            if not _is_same(after, before):
                if before is not held:
                    raise self.error(f"{attribute} is another function here")
                setattr(here, attribute, after)
        return here

    def _partial(self, node: Node, here: Any) -> Any:
        own = [here.func, here.args, here.keywords] if isinstance(here, functools.partial) else _NOTHING
        function, arguments, named = self.value(node[2], own)
        same = own is not _NOTHING and here.func is function and here.args is arguments and here.keywords is named
        if not same:
            here = functools.partial(function, *arguments, **named)
        self._claim(node, here)
        return here

    # -- iterators

    def _generator(self, node: Node, here: Any) -> Any:
        self._need(node, here, types.GeneratorType)
        _, _, name, at, frame = node
        if here.gi_frame is None or here.gi_code.co_qualname != name or here.gi_frame.f_lasti != at:
            raise self.error(f"the generator {name} is at another place here")
        self.frame(frame, here.gi_frame)
        return here

    def _ended(self, node: Node, here: Any) -> Any:
        if not self._is_mine(node, here, types.GeneratorType):
            here = _ended()
            self._claim(node, here)
        here.close()
        return here

    def _count(self, node: Node, here: Any) -> Any:
        _, _, start, step = node
        if self._is_mine(node, here, itertools.count):
            mine = (*ast.literal_eval(f"[{repr(here)[6:-1]}]"), 1)[:2]
            whole = all(isinstance(each, int) for each in (start, step, *mine))
            if whole and mine[1] == step and (start - mine[0]) * step >= 0 and not (start - mine[0]) % (step or 1):
                frames.skip(here, (start - mine[0]) // (step or 1))
                return here
        here = itertools.count(start, step)
        self._claim(node, here)
        return here

    def _counted(self, node: Node, here: Any) -> Any:
        _, _, kind, left, items = node
        self._need(node, here, object)
        if type(here).__name__ != kind:
            raise self.error(f"a {kind} is a {type(here).__name__} here")
        over = frames.over(here)
        after = self._item("of", items, over)
        if after is not over and not (items[0] == "plain" and after == over):
            raise self.error("what a loop goes over is not the same here")
        if kind in ("list_iterator", "tuple_iterator") and len(over) >= left > 0:
            here.__setstate__(len(over) - left)  # back too: the other run may be at the beginning of a later pass
            return here
        more = (frames.remaining(here) or 0) - left
        if more < 0:
            raise self.error(f"a {kind} has {-more} items less here")
        frames.skip(here, more)
        return here

    def _compound(self, node: Node, here: Any) -> Any:
        _, _, kind, parts, count = node
        self._need(node, here, object)
        mine = frames.parts_of(here)
        if type(here).__name__ != kind or mine is None or len(mine) != len(parts):
            raise self.error(f"a {kind} is a {type(here).__name__} here")
        for index, (part, own) in enumerate(zip(parts, mine, strict=True)):
            if self._item(index, part, own) is not own:
                raise self.error(f"what a {kind} takes from is of another kind here")
        if count is not None:
            frames.set_count(here, count)
        return here

    def _loader(self, node: Node, here: Any) -> Any:
        self._need(node, here, object)
        if not loaders.is_iterator(here):
            raise self.error("the iterator of a loader is not here")
        _, _, position, attributes = node
        if attributes:
            self._set_variables(attributes, vars(here))
            loaders.set_beginning(here, position)
        else:
            self.later.append(lambda: loaders.set_position(here, position))
        return here

    def _file(self, node: Node, here: Any) -> Any:
        self._need(node, here, object)
        if getattr(here, "name", None) != node[2] or here.closed or here.writable():
            raise self.error(f"the file {node[2]} is not open here")
        here.seek(node[3])
        return here

    def _closed_file(self, node: Node, here: Any) -> Any:
        _, _, kind, name, mode = node
        mine = (type(here).__name__, getattr(here, "name", None), getattr(here, "mode", None)) == (kind, name, mode)
        if not (mine and here.closed and self._is_mine(node, here, object)):
            here = _closed_file(name, mode, unbuffered=kind == "FileIO")
            self._claim(node, here)
        return here

    # -- containers and objects

    def _list(self, node: Node, here: Any) -> Any:
        _, _, reference, items, extra, most = node
        kind = _resolved(reference, here)
        changeable = issubclass(kind, list | collections.deque)
        mine = changeable and type(here) is kind and getattr(here, "maxlen", None) == most
        mine = mine and self._is_mine(node, here, kind)
        before = list(here) if type(here) is kind else []
        if changeable and not mine:
            made: Any = kind.__new__(kind)
            if most is not None:
                made.__init__((), most)
            self._claim(node, made)
            here = made
        after = [
            self._item(index, each, before[index] if index < len(before) else _NOTHING)
            for index, each in enumerate(items)
        ]
        if not changeable:  # a named tuple
            made = kind(after) if hasattr(kind, "n_sequence_fields") else tuple.__new__(kind, after)
            same = len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True))
            made = here if same else made
            self._claim(node, made)
            return made
        here.clear()
        here.extend(after)
        self._set_attributes(extra, here)
        return here

    def _set(self, node: Node, here: Any) -> Any:
        _, _, reference, items, extra = node
        kind = _resolved(reference, here)
        own = list(here) if isinstance(here, set | frozenset) else []
        plain = all(map(_is_value, items))
        if not plain and not len(own) == len(items) == 1:
            raise self.error("members of a set of objects cannot be told apart")
        after = [self._item(i, each, _NOTHING if plain else own[i]) for i, each in enumerate(items)]
        if issubclass(kind, frozenset):
            made = kind(after)
            self._claim(node, made)
            return made
        if not (type(here) is kind and self._is_mine(node, here, kind)):
            here = kind.__new__(kind)
            self._claim(node, here)
        here.clear()
        here.update(after)
        self._set_attributes(extra, here)
        return here

    def _dict(self, node: Node, here: Any) -> Any:
        _, _, reference, items, extra = node
        kind = _resolved(reference, here)
        if not (type(here) is kind and self._is_mine(node, here, kind)):
            if issubclass(kind, collections.defaultdict):
                raise self.error("a defaultdict is not here yet, nor what makes its values")
            here = kind.__new__(kind)
            self._claim(node, here)
        before = dict(here)
        if all(_is_value(key) for key, _ in items):
            after = []
            for key, each in items:
                mine = self.value(key, _NOTHING)
                after.append((mine, self._item(mine, each, before.get(mine, _NOTHING))))
        else:  # keys with an identity, such as parameters: they correspond in order
            own = list(before.items())
            if len(own) != len(items):
                raise self.error(f"a dict by object has {len(own)} entries here, and {len(items)} there")
            after = [
                (self._item("key", key, mine), self._item(index, each, value))
                for index, ((key, each), (mine, value)) in enumerate(zip(items, own, strict=True))
            ]
        if not _is_unchanged(before, after):
            # past what a class of the script's may do besides; an OrderedDict keeps its order itself
            plain = collections.OrderedDict if isinstance(here, collections.OrderedDict) else dict
            plain.clear(here)
            for key_, value in after:
                plain.__setitem__(here, key_, value)
        self._set_attributes(extra, here)
        return here

    def _object(self, node: Node, here: Any) -> Any:
        _, _, reference, attributes = node
        kind = _resolved(reference, here)
        if not (type(here) is kind and self._is_mine(node, here, kind)):
            try:
                here = kind.__new__(kind)
            except TypeError as error:
                raise self.error(f"an object of type {kind.__name__} is not here yet: {error}") from None
            self._claim(node, here)
        self._set_attributes(attributes, here)
        return here

    def _set_attributes(self, attributes: list[tuple[str, Node]], here: Any) -> None:
        if not attributes and not getattr(here, "__dict__", None):
            return
        own = vars(here) if hasattr(here, "__dict__") else {}
        for name, each in attributes:
            with _At(self, name):
                is_slot = isinstance(getattr(type(here), name, None), types.MemberDescriptorType)
                before = getattr(here, name, _NOTHING) if is_slot else own.get(name, _NOTHING)
                after = self.value(each, before)
                if after is not before:
                    if is_slot:
                        object.__setattr__(here, name, after)
                    else:
                        own[name] = after  # past any __setattr__: a module's would register it
        names = {name for name, _ in attributes}
        for name in [name for name in own if name not in names]:
            del own[name]

    def _set_variables(self, variables: list[tuple[str, Node]], own: dict[str, Any]) -> None:
        for name, each in variables:
            with _At(self, name):
                before = own.get(name, _NOTHING)
                after = self.value(each, before)
                if after is not before:
                    own[name] = after


def _is_unchanged(before: dict[Any, Any], after: list[tuple[Any, Any]]) -> bool:
    """Whether nothing would change, told by identity alone: values may have any ``__eq__``."""
    return len(before) == len(after) and all(
        key is mine and value is own for (key, value), (mine, own) in zip(before.items(), after, strict=True)
    )


def _ended() -> Iterator[None]:
    yield


def _closed_file(name: str, mode: str, unbuffered: bool) -> Any:
    """A file that was opened so, and closed."""
    with open(os.devnull, mode, -1 if not unbuffered else 0) as made:  # noqa: PTH123  # the file itself is left alone
        raw: Any = made
        while not isinstance(raw, io.FileIO):
            raw = raw.buffer if isinstance(raw, io.TextIOWrapper) else raw.raw
        raw.name = name
    return made


def _is_value(node: Node) -> bool:
    """Whether a description is of a value, which is equal in both processes."""
    return node[0] in ("plain", "named") or (node[0] == "tuple" and all(map(_is_value, node[1])))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, PLAIN) and bool(one == other))


def _resolved(reference: tuple[str, str], here: Any) -> Any:
    """The class of that name in this process."""
    if reference_of(type(here)) == reference:
        return type(here)
    found: Any = sys.modules.get(reference[0])
    for name in reference[1].split("."):
        found = getattr(found, name, None)
    if not isinstance(found, type):
        raise MoveError(f"the class {reference[0]}.{reference[1]} is not here")
    return found


class _At:
    """One step of a path, for messages."""

    def __init__(self, restoration: Restoration, name: str) -> None:
        self._path, self._name = restoration._path, name

    def __enter__(self) -> None:
        self._path.append(self._name)

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            self._path.pop()
