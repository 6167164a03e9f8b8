"""The frames of a running script: their variables, and the iterators of the loops that they are in.

Python gives the variables of a frame, and lets them be set. The iterator of a ``for`` loop is on the frame's value
stack, which no interface shows: it is read from memory here, at the place that the bytecode tells (the depth of the
stack at each ``FOR_ITER`` whose loop the frame is in). Which layouts are known is a table by version of CPython, and
:func:`supported` tries them on a frame of its own first: where they do not hold, nothing is read, and jobs do not move.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import itertools
import sys
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from types import CodeType, FrameType
from typing import Any

POINTER = ctypes.sizeof(ctypes.c_void_p)
#: of struct _PyInterpreterFrame, where the local variables and then the value stack begin, by version of CPython
_LOCALS_AT = {(3, 11): 72, (3, 12): 72, (3, 13): 72}
_FRAME_AT = 3 * POINTER  #: of struct _frame: after the object's head and f_back
_ENUMERATE_COUNT_AT = 2 * POINTER  #: of struct enumobject: after the object's head


class PlaceError(RuntimeError):
    """A frame is at a place whose loops cannot be told."""


@functools.cache
def supported() -> str:
    """Why frames cannot be read in this Python; "" if they can."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] not in _LOCALS_AT:
        known = ", ".join(f"{major}.{minor}" for major, minor in _LOCALS_AT)
        return f"the layout of frames is known for CPython {known}, and this is {sys.version.split()[0]}"
    marks = range(7)
    for _ in marks:
        for each in enumerate(marks, 3):
            found = loop_iterators(sys._getframe())
            kinds = [type(one).__name__ for one in found]
            if kinds == ["range_iterator", "enumerate"] and each == (3, 0):
                _set_count(found[1], 40)
                if next(found[1]) == (40, 1):
                    return ""
            return f"the layout of frames is not what it should be: {kinds}"
    return "unreachable"


def loop_iterators(frame: FrameType) -> list[Any]:
    """The iterators of the loops that a frame is in, the outermost first. The frame must be suspended in a call.

    O(instructions of its code), once for each code.
    """
    code = frame.f_code
    stack = _stack_of(frame)
    if not stack:
        return []
    return [
        ctypes.cast(ctypes.c_void_p.from_address(stack + (depth - 1) * POINTER).value or 0, ctypes.py_object).value
        for depth in loop_depths(code, frame.f_lasti)
    ]


#: instructions within which a frame may be when another one runs: how many slots they have taken off the stack
_TAKEN: dict[str, Callable[[int], int]] = {
    # in 3.11 dis counts the arguments for PRECALL, which comes before
    "CALL": lambda count: count + 2 if sys.version_info >= (3, 12) else 2,
    "CALL_KW": lambda count: count + 3,
    "CALL_FUNCTION_EX": lambda flags: 3 + (flags & 1),
    "FOR_ITER": lambda _: 0,
    "SEND": lambda _: 0,
    "YIELD_VALUE": lambda _: 1,
}


#: functions in C that call the script back, and hold what they go over, or have made so far, where nothing shows it
_ITERATING = frozenset(
    (sorted, min, max, sum, any, all, list, tuple, set, frozenset, dict, bytes, functools.reduce, deque, Counter)
)


def operands(frame: FrameType) -> list[tuple[Any, int] | None]:
    """What waits on a frame's stack besides the iterators of its loops, the lowest first: an object and its address.

    The values of an expression that have been evaluated before the call that the frame is in, ``w(i)`` of
    ``w(i) * f(model(x))``; the exits of ``with`` blocks. ``None``: an empty slot. :class:`PlaceError` if unknown.
    """
    code = frame.f_code
    instructions = list(dis.get_instructions(code))
    depths = _depths(code, instructions, {each.offset: index for index, each in enumerate(instructions)})
    index = max(index for index, each in enumerate(instructions) if each.offset <= frame.f_lasti)
    name = instructions[index].opname
    if name not in _TAKEN or index not in depths:
        raise PlaceError(f"{code.co_qualname} is within {name}")
    live = depths[index] - _TAKEN[name](instructions[index].arg or 0)
    if name == "CALL" and (function := _called_by_name(frame, instructions[:index], depths, live)) in _ITERATING:
        raise PlaceError(f"{code.co_qualname} is within {function.__name__}(), which holds what it goes over")
    stack = _stack_of(frame)
    loops = set(loop_depths(code, frame.f_lasti))
    found: list[tuple[Any, int] | None] = []
    for depth in range(1, live + 1):
        if depth not in loops:
            address = stack + (depth - 1) * POINTER
            pointer = ctypes.c_void_p.from_address(address).value
            found.append(None if not pointer else (ctypes.cast(pointer, ctypes.py_object).value, address))
    return found


def _called_by_name(frame: FrameType, before: list[dis.Instruction], depths: dict[int, int], live: int) -> Any:
    """The function of a call, if the code names it; ``before``: the instructions before the call."""
    for index in range(len(before) - 1, -1, -1):
        if depths.get(index, live + 2) <= live + 1:  # it has put the function on the stack, above what is live
            if before[index].opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
                return None
            name = before[index].argval
            for names in (frame.f_locals, frame.f_globals, frame.f_builtins):
                if name in names:
                    found = names[name]
                    return found if isinstance(found, Hashable) else None
            return None
    return None


def set_operand(address: int, value: Any) -> None:
    """Put another object where :func:`operands` has found one."""
    before = ctypes.cast(ctypes.c_void_p.from_address(address).value or 0, ctypes.py_object)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    ctypes.c_void_p.from_address(address).value = id(value)
    ctypes.pythonapi.Py_DecRef(before)


def _stack_of(frame: FrameType) -> int:
    """The address of a frame's value stack; 0: it has none."""
    interpreter_frame = ctypes.c_void_p.from_address(id(frame) + _FRAME_AT).value
    if not interpreter_frame:
        return 0
    return interpreter_frame + _LOCALS_AT[sys.version_info[:2]] + len(_slots(frame.f_code)) * POINTER


def _slots(code: CodeType) -> list[str]:
    """Names of the variables that a frame has room for, in order: an argument that is a cell too has one place."""
    own = list(code.co_varnames)
    return own + [name for name in code.co_cellvars if name not in own] + list(code.co_freevars)


@functools.lru_cache(maxsize=512)
def loop_depths(code: CodeType, at: int) -> tuple[int, ...]:
    """Depths of the value stack at which the iterators of the loops around instruction ``at`` are, outermost first."""
    instructions = list(dis.get_instructions(code))
    index_of = {instruction.offset: index for index, instruction in enumerate(instructions)}
    depths = _depths(code, instructions, index_of)
    # the frame may be at one of the cache entries that follow an instruction, which dis leaves out
    if max((index for offset, index in index_of.items() if offset <= at), default=-1) not in depths:
        raise PlaceError(f"{code.co_qualname} is in an exception handler, at line {code.co_firstlineno} or after")
    found = []
    for index, instruction in enumerate(instructions):
        if instruction.opname == "FOR_ITER":
            end = instruction.argval  # where it jumps when the iterator is exhausted
            if instruction.offset < at < end and index in depths and instructions[index].offset <= at:
                found.append(depths[index])
        elif instruction.opname == "SEND" and instruction.offset <= at < instruction.argval and index in depths:
            found.append(depths[index] - 1)  # yield from: the iterator is below the value that is sent
    return tuple(sorted(found))


def _depths(code: CodeType, instructions: list[dis.Instruction], index_of: dict[int, int]) -> dict[int, int]:
    """Depth of the value stack before each instruction that is reached without an exception."""
    depths: dict[int, int] = {}
    todo = [(0, 0)]
    while todo:
        index, depth = todo.pop()
        while index < len(instructions) and index not in depths:
            depths[index] = depth
            instruction = instructions[index]
            name, argument = instruction.opname, instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
            if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
                target = index_of[instruction.argval]
                if name == "FOR_ITER":
                    # up to 3.11 the jump pops the iterator; from 3.12 on END_FOR at its target does
                    todo.append((target, depth - 1 if sys.version_info < (3, 12) else depth + 1))
                else:
                    todo.append((target, depth + dis.stack_effect(instruction.opcode, argument, jump=True)))
                if name in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"):
                    break
            if name in ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"):
                break
            pushes = name in ("FOR_ITER", "RETURN_GENERATOR")  # of the latter dis says it in newer versions only
            depth += 1 if pushes else dis.stack_effect(instruction.opcode, argument, jump=False)
            index += 1
    return depths


def set_variables(frame: FrameType, values: dict[str, Any], gone: set[str]) -> None:
    """Set variables of a frame, and delete those in ``gone``. Of a module's frame the globals are the variables."""
    variables = frame.f_locals
    for name, value in values.items():
        variables[name] = value
    for name in gone:
        variables.pop(name, None)
    if sys.version_info < (3, 13) and frame.f_code.co_name != "<module>":
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(1))


def outer_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that have called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


# -- iterators whose position can be moved


def remaining(iterator: Any) -> int | None:
    """How many items are left in an iterator over a range, list, tuple or string; ``None`` for other kinds."""
    if type(iterator).__name__ in _COUNTED:
        left: int = iterator.__length_hint__()
        return left
    return None


_COUNTED = frozenset(
    {"range_iterator", "longrange_iterator", "list_iterator", "tuple_iterator", "str_iterator", "str_ascii_iterator"}
)


def over(iterator: Any) -> Any:
    """What such an iterator goes over: a list, a tuple, a string; of a range its end and step. Of one at its end ()."""
    found = iterator.__reduce__()[1][0]
    return (found.stop, found.step) if isinstance(found, range) else found


def skip(iterator: Any, items: int) -> None:
    """Move an iterator on by so many items. O(items), about 10 ns each."""
    deque(itertools.islice(iterator, items), maxlen=0)


def parts_of(iterator: Any) -> tuple[Any, ...] | None:
    """The iterators that an ``enumerate``, ``zip`` or ``map`` takes from; ``None`` for other kinds."""
    if type(iterator) is enumerate:
        return (iterator.__reduce__()[1][0],)
    if type(iterator) in (zip, map):
        made: tuple[Any, ...] = iterator.__reduce__()[1]
        return made if type(iterator) is zip else made[1:]
    return None


def count_of(iterator: Any) -> int:
    """The next number of an ``enumerate``."""
    number: int = iterator.__reduce__()[1][1]
    return number


def set_count(iterator: Any, number: int) -> None:
    """Set the next number of an ``enumerate``."""
    if supported():
        raise RuntimeError(supported())
    _set_count(iterator, number)


def _set_count(iterator: Any, number: int) -> None:
    if type(iterator) is not enumerate:
        raise TypeError(f"{type(iterator).__name__} is no enumerate")
    ctypes.c_ssize_t.from_address(id(iterator) + _ENUMERATE_COUNT_AT).value = number
