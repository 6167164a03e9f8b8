"""Any values that an event log can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that an event can hold: all fields are drawn, those with defaults too."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        fields = [field for field in dataclasses.fields(kind) if field.compare]
        return st.builds(kind, **{field.name: values(hints[field.name]) for field in fields})
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (UnionType, Union):
        return st.one_of(*map(values, arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(values, arguments))
    if origin in (tuple, Sequence):
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(*map(values, arguments), max_size=3).map(lambda mapping: dict(sorted(mapping.items())))
    if issubclass(origin, tuple):
        hints = get_type_hints(origin)
        return st.tuples(*(values(hints[name]) for name in origin._fields)).map(origin._make)
    return _PLAIN[kind]


_TEXT = st.text('ab/-\n\u00e4\u2028\U0001f600"\\\x7f ', max_size=6)
_PLAIN: dict[type, st.SearchStrategy[Any]] = {
    str: _TEXT,
    int: st.integers(-1, 8) | st.integers(),
    float: (st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.1, 1e300, 5e-324])).map(
        (0.0).__add__
    ),
    bool: st.booleans(),
    NoneType: st.none(),
    object: st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
        lambda some: (
            st.tuples(some, some)
            | st.lists(some, max_size=3)
            | st.dictionaries(_TEXT, some, max_size=3).map(lambda mapping: dict(sorted(mapping.items(), key=repr)))
            | st.frozensets(st.integers(), max_size=1)
        ),
        max_leaves=6,
    ),
}
