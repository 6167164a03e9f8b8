"""Records as plain data (what JSON has) and back, driven by the types of their fields.

A record (dataclass) is an object with the keys in the order of the fields; a field at its default is left out, and so
is one that takes no part in comparisons. A tuple, named or not, is a list; a mapping a list of pairs by ascending key.
Where one of several records can stand, the key ``is`` names it. Equal values of one type have one form, to the byte.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from hived.errors import InputError

_WORDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


class Mismatch(Exception):  # noqa: N818  # always caught: the event log makes an error of it
    """A value has not the type of its field; the text leads from the outermost field inward."""

    @classmethod
    def of(cls, wanted: str, value: object) -> Mismatch:
        """``value`` is not what was ``wanted``."""
        text = repr(value)
        return cls(f"expected {wanted}, not {text if len(text) <= 60 else text[:57] + '...'}")


class Codec(NamedTuple):
    """How the values of one type are written as plain data, and read from it. Both raise :class:`Mismatch`."""

    write: Callable[[Any], object]
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, repr=False)
class Opaque:
    """Stands for a value that has no form as plain data. It looks the same, so a message that shows it is the same."""

    text: str  #: its ``repr``

    def __repr__(self) -> str:
        return self.text


@cache
def codec_of(kind: Any) -> Codec:
    """The codec of a type, as a field declares it. A field can name its own as ``metadata={"codec": ...}``."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind)
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin in (UnionType, Union):
        return _union(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _row(tuple, [codec_of(item) for item in arguments])
    if origin in (tuple, Sequence):
        return _items(codec_of(arguments[0]))
    if origin is Mapping:
        return _pairs(codec_of(arguments[0]), codec_of(arguments[1]))
    if issubclass(origin, tuple):  # a named one
        hints = get_type_hints(origin)
        return _row(origin._make, [codec_of(hints[name]) for name in origin._fields])
    raise NotImplementedError(f"no codec for {kind}")


# ------------------------------------------------------------------------------------------------ scalars


def _exactly(*kinds: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) not in kinds:
            raise Mismatch.of(_WORDS[kinds[0]], value)
        return value

    return check


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Mismatch.of(_WORDS[str], value)
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise Mismatch.of(_WORDS[int], value)
    return int(value)


def _finite(value: object) -> float:
    """Any number that a float holds exactly, so that 1 and 1.0, and 0.0 and -0.0, have one form."""
    try:
        if isinstance(value, int | float) and math.isfinite(value) and float(value) == value:
            return float(value) + 0.0
    except OverflowError:
        pass
    raise Mismatch.of(_WORDS[float], value)


_list, _dict = _exactly(list), _exactly(dict)

_SCALARS: dict[object, Codec] = {
    str: Codec(_text, _exactly(str)),
    int: Codec(_whole, _exactly(int)),
    float: Codec(_finite, lambda plain: _finite(_exactly(float, int)(plain))),
    bool: Codec(_exactly(bool), _exactly(bool)),
}

# -------------------------------------------------------------------------------------------- collections


def _sequence(value: Any) -> Sequence[Any]:
    if type(value) is not tuple and (isinstance(value, str) or not isinstance(value, Sequence)):
        raise Mismatch.of("a sequence", value)
    return value


def _items(item: Codec) -> Codec:
    return Codec(
        lambda values: [item.write(value) for value in _sequence(values)],
        lambda plain: tuple(map(item.read, _list(plain))),
    )


def _row(make: Callable[[Any], Any], items: Sequence[Codec]) -> Codec:
    """A tuple with one type per place."""

    def long(values: Sequence[Any]) -> Sequence[Any]:
        if len(values) != len(items):
            raise Mismatch.of(f"{len(items)} values", values)
        return values

    return Codec(
        lambda values: [item.write(value) for item, value in zip(items, long(_sequence(values)), strict=True)],
        lambda plain: make([item.read(value) for item, value in zip(items, long(_list(plain)), strict=True)]),
    )


def _pairs(key: Codec, value: Codec) -> Codec:
    pair = _row(tuple, (key, value))

    def write(values: Any) -> list[object]:
        if not isinstance(values, Mapping):
            raise Mismatch.of("a mapping", values)
        return [pair.write(entry) for entry in sorted(values.items())]

    return Codec(write, lambda plain: dict(map(pair.read, _list(plain))))


# ------------------------------------------------------------------------------------------------ records


class _Field(NamedTuple):
    name: str
    codec: Codec
    required: bool
    default: object  #: meaningless when required


def _record(kind: Any) -> Codec:
    fields = _fields(kind)
    names = [field.name for field in fields]

    def write(value: Any) -> dict[str, object]:
        if type(value) is not kind:
            raise Mismatch.of(f"a {kind.__name__}", value)
        plain = {}
        name = ""
        try:
            for name, codec, required, default in fields:
                part = getattr(value, name)
                if required or part != default:
                    plain[name] = codec.write(part)
        except Mismatch as error:
            raise Mismatch(f"{name}: {error}") from None
        return plain

    def read(plain: Any) -> Any:
        unknown = next((key for key in _dict(plain) if key not in names), None)
        if unknown is not None:
            raise Mismatch(f"unknown key {unknown!r}: {kind.__name__} has {', '.join(names)}")
        missing = next((field.name for field in fields if field.required and field.name not in plain), None)
        if missing is not None:
            raise Mismatch(f"missing key {missing!r} of {kind.__name__}")
        parts = {}
        name = ""
        try:
            for name, codec, _, _ in fields:
                if name in plain:
                    parts[name] = codec.read(plain[name])
        except Mismatch as error:
            raise Mismatch(f"{name}: {error}") from None
        return kind(**parts)

    return Codec(write, read)


def _fields(kind: Any) -> list[_Field]:
    hints = get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        if field.compare:
            default: object = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            codec = field.metadata.get("codec") or codec_of(hints[field.name])
            found.append(_Field(field.name, codec, default is dataclasses.MISSING, default))
    return found


def _union(kinds: Iterable[Any]) -> Codec:
    """One type or None, or one of several records, told apart by the key ``is``."""
    some = [kind for kind in kinds if kind is not NoneType]
    if len(some) == 1:
        codec = codec_of(some[0])
        return Codec(
            lambda value: None if value is None else codec.write(value),
            lambda plain: None if plain is None else codec.read(plain),
        )
    codecs = {kind.__name__: _record(kind) for kind in some}
    wanted = f"one of {', '.join(codecs)}"

    def write(value: Any) -> object:
        name = type(value).__name__
        if name not in codecs:
            raise Mismatch.of(wanted, value)
        parts: Any = codecs[name].write(value)
        return {"is": name, **parts}

    def read(plain: Any) -> Any:
        parts = dict(_dict(plain))
        name = parts.pop("is", None)
        if not isinstance(name, str) or name not in codecs:
            raise Mismatch.of(wanted, name)
        try:
            return codecs[name].read(parts)
        except Mismatch as error:
            raise Mismatch(f"{name}: {error}") from None

    return Codec(write, read)


# ----------------------------------------------------------------------------------------------- anything

_COLLECTIONS: dict[str, Any] = {"list": list, "set": set, "frozenset": frozenset, "dict": dict}


def anything(records: Iterable[type]) -> Codec:
    """For values of any type: what a caller gave in error. Plain values, ``records`` and collections of these keep
    their types, whatever their fields hold; all else becomes :class:`Opaque`."""
    known: dict[str, Any] = {kind.__name__: kind for kind in records}

    def write(value: Any) -> object:
        kind = type(value)
        if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
            return value
        if kind is tuple:
            return [write(item) for item in value]
        name = kind.__name__
        if known.get(name) is kind:
            return {"is": name, **{part: write(getattr(value, part)) for part in _parts(kind)}}
        if _COLLECTIONS.get(name) is kind:
            items = value if kind is list else sorted(value.items() if kind is dict else value, key=repr)
            return {"is": name, "items": [write(item) for item in items]}
        return {"is": "float" if kind is float else "other", "text": repr(value)}

    def read(plain: Any) -> Any:
        if isinstance(plain, list):
            return tuple(map(read, plain))
        if not isinstance(plain, dict):
            return plain
        try:
            match plain:
                case {"is": "float", "text": str(text)}:
                    return float(text)
                case {"is": "other", "text": str(text)}:
                    return Opaque(text)
                case {"is": str(name), "items": list(items)} if name in _COLLECTIONS:
                    return _COLLECTIONS[name](map(read, items))
                case {"is": str(name), **parts} if name in known:
                    return known[name](**{key: read(part) for key, part in parts.items()})
        except (TypeError, ValueError, InputError):
            pass
        raise Mismatch.of("any value as the log has it", plain)

    return Codec(write, read)


def _parts(kind: Any) -> list[str]:
    if issubclass(kind, tuple):
        return list(kind._fields)
    return [field.name for field in dataclasses.fields(kind) if field.compare]
