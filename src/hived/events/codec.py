"""Codec of events: to lines of JSON, and back.

A record (dataclass) is an object with the keys in the order of the fields; fields at their default and fields excluded
from comparison are left out. A tuple, named or not, is a list; a mapping a list of pairs by ascending key. In a union
of records the key ``is`` names the record. Lines are ASCII without spaces between tokens; equal events have equal
lines, to the byte. Pydantic checks that a value has the type of its field; nothing is converted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_type_hints

from pydantic import AfterValidator, ConfigDict, Discriminator, Tag, TypeAdapter, ValidationError
from pydantic.functional_serializers import PlainSerializer, WrapSerializer
from pydantic_core import PydanticCustomError, PydanticSerializationUnexpectedValue
from typing_extensions import TypedDict

from hived.cluster.decisions import Decision, Placement, PodPlacement, Record, VirtualLeaves, Wait
from hived.cluster.explain.reasons import Reason
from hived.cluster.requests import Member, Request
from hived.errors import InputError
from hived.spec import compiled

from .journal import Committed, Event, Opened, Placed, Reconfigured, Recovered, Refused, Scheduled, Traded

_DUMP = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def to_line(event: Event) -> str:
    """Encode ``event`` as one line, without a line end.

    Raises :class:`InputError` when a value has not the type of its field; only a :class:`Refused` may record such
    values. O(length).
    """
    events = _events()
    try:
        line = _DUMP(events.dump_python(event, mode="json", exclude_defaults=True, warnings=False))
        events.validate_json(line)  # a line that cannot be read back is never written
    except (TypeError, ValueError):  # base classes of pydantic's errors
        what = f"{_short(event)} has a field of another type than is expected of it"
        raise InputError(f"cannot be written to the event log: {what}; log calls that were carried out only") from None
    return line


def from_line(line: str, number: int = 1) -> Event:
    """Decode ``line``, which is the ``number``-th of its log (1-based).

    Raises :class:`InputError` with the number, what is wrong and the way out. O(length).
    """
    try:
        return _events().validate_json(line)
    except ValidationError as error:
        problem = _first_error(error)
        cut = error.errors()[0]["type"] == "json_invalid"
    way = "if the log was cut short there, drop that line" if cut else "give the log as this version of hived wrote it"
    raise InputError(f"event log, line {number}: {problem}; {way}")


def _first_error(error: ValidationError) -> str:
    """The first error as text, with its path from the outermost field inward."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"not one line of JSON ({first['ctx']['error']})"
    problem = _WORDS.get(first["type"]) or first["msg"].replace("Input should be", "expected")
    if problem.startswith("expected"):
        problem += f", not {_short(first['input'])}"
    return ": ".join([*map(str, first["loc"]), problem])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


#: replacements of pydantic's messages
_WORDS = {"missing": "missing key", "extra_forbidden": "unknown key"}


# ------------------------------------------------------------------------------------------------- types


@cache
def _events() -> TypeAdapter[Event]:
    """The adapter of all events, made at first use since that takes some milliseconds."""
    many: Any = tuple  # so that type checkers accept types made at run time
    number: Any = Annotated[float, PlainSerializer(_finite)]
    access = _record(compiled.AccessSpec)
    vc = _record(compiled.VirtualClusterSpec, opportunistic_weight=number | None, access=access | None)
    names = Annotated[tuple[str, ...], WrapSerializer(lambda names, write: write(tuple(names)))]
    chain = _record(compiled.ChainSpec, node_names=names, device_indices=_PAIRS)
    spec = _record(compiled.ClusterSpec, chains=many[chain, ...], virtual_clusters=many[vc, ...])
    decision = _one_of(Decision, {Wait: {"reasons": many[_one_of(Reason), ...]}})
    event = _one_of(
        Event,
        {
            Opened: {"spec": spec},
            Scheduled: {"now": number, "decision": decision},
            Placed: {"now": number, "answer": decision | None},
            Committed: {"decision": decision},
            Recovered: {"records": many[_RECORD, ...]},
            Reconfigured: {"spec": spec},
            Traded: {"spec": spec},
            Refused: {"arguments": Annotated[tuple[Any, ...], AfterValidator(_read), PlainSerializer(_write)]},
        },
    )
    return TypeAdapter(event, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))


def _finite(value: float) -> float:
    """Normalize a number that a float holds exactly, so that 1 and 1.0, and 0.0 and -0.0, have one form."""
    if not math.isfinite(value) or float(value) != value:
        raise ValueError(f"expected a finite number, not {value!r}")
    return float(value) + 0.0


def _trimmed(record: Record, write: Callable[[Record], list[object]]) -> object:
    """A record without the time of its start, where that is not known."""
    return write(record) if record.since else write(record)[:-1]


_RECORD = Annotated[Record, WrapSerializer(_trimmed)]
#: a mapping of numbers to numbers
_PAIRS = Annotated[
    tuple[tuple[int, tuple[int, ...]], ...],
    AfterValidator(dict),
    WrapSerializer(lambda mapping, write: write(tuple(sorted(mapping.items())))),
]


def _record(kind: Any, /, tag: str | None = None, **instead: Any) -> Any:
    """The wire type of a record; ``instead``: types of fields that replace the declared ones."""
    parts = [field for field in fields(kind) if field.compare]
    defaults = {field.name: field.default for field in parts if field.default is not MISSING}
    defaults |= {field.name: field.default_factory() for field in parts if field.default_factory is not MISSING}
    hints = {**get_type_hints(kind), **instead}
    keys = {name: NotRequired[hints[name]] if name in defaults else hints[name] for name in (p.name for p in parts)}

    def read(plain: dict[str, Any]) -> Any:
        plain.pop("is", None)
        return kind(**plain)

    def write(value: Any, dump: Callable[[dict[str, Any]], object]) -> object:
        if type(value) is not kind:
            raise PydanticSerializationUnexpectedValue(kind.__name__)  # so the next member of a union is tried
        plain = {name: getattr(value, name) for name in keys}
        plain = {name: part for name, part in plain.items() if name not in defaults or part != defaults[name]}
        return dump(plain if tag is None else {"is": tag, **plain})

    # the keys come from the dataclass, which no type checker can follow here
    form: Any = TypedDict(kind.__name__, keys if tag is None else {"is": Literal[tag], **keys})  # type: ignore[misc]
    return Annotated[form, AfterValidator(read), WrapSerializer(write)]


def _one_of(kinds: Any, instead: dict[Any, dict[str, Any]] | None = None) -> Any:
    """The wire type of a union of records, discriminated by the key ``is``."""
    names = {kind.__name__: kind for kind in get_args(kinds)}
    records = [
        Annotated[_record(kind, name, **(instead or {}).get(kind, {})), Tag(name)] for name, kind in names.items()
    ]

    def name_of(value: Any) -> str | None:
        name = value.get("is") if isinstance(value, dict) else type(value).__name__
        return name if isinstance(name, str) and name in names else None

    wanted = f"expected one of {', '.join(names)}"
    tag = Discriminator(name_of, custom_error_type="is", custom_error_message=wanted)
    return Annotated[Union[tuple(records)], tag]  # noqa: UP007 - the number of members varies


# ----------------------------------------------------------------------------------------------- anything


@dataclass(frozen=True, slots=True, repr=False)
class Opaque:
    """Placeholder of a value without a plain form. Its repr is the same, so error messages replay unchanged."""

    text: str  #: its ``repr``

    def __repr__(self) -> str:
        return self.text


#: types, besides plain values, that are kept among the arguments of a refused call
_KNOWN: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Request, Member, Placement, PodPlacement, Record, VirtualLeaves, *get_args(Decision), *get_args(Reason)),
        *(compiled.AccessSpec, compiled.ClusterSpec, compiled.ChainSpec, compiled.LevelSpec),
        *(compiled.PinnedCellSpec, compiled.VirtualCellsSpec, compiled.VirtualClusterSpec),
    )
}
#: parts of these that earlier logs have not, which are left out at their default
_LATER: dict[str, object] = {"saves_work": False, "since": 0.0, "access": None, "operators": []}
_COLLECTIONS: dict[str, Any] = {"list": list, "set": set, "frozenset": frozenset, "dict": dict}


def _write(value: Any) -> object:
    """Encode a value of any type, as in a wrong argument. Values neither plain nor known become :class:`Opaque`."""
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is tuple:
        return [_write(item) for item in value]
    name = kind.__name__
    if _KNOWN.get(name) is kind:
        parts = {part: _write(getattr(value, part)) for part in _parts(kind)}
        return {"is": name, **{part: plain for part, plain in parts.items() if _LATER.get(part, ...) != plain}}
    if _COLLECTIONS.get(name) is kind:
        items = value if kind is list else sorted(value.items() if kind is dict else value, key=repr)
        return {"is": name, "items": [_write(item) for item in items]}
    return {"is": "float" if kind is float else "other", "text": repr(value)}


def _read(plain: Any) -> Any:
    """Decode a value of :func:`_write`."""
    if isinstance(plain, list | tuple):
        return tuple(map(_read, plain))
    if not isinstance(plain, dict):
        return plain
    try:
        match plain:
            case {"is": "float", "text": str(text)}:
                return float(text)
            case {"is": "other", "text": str(text)}:
                return Opaque(text)
            case {"is": str(name), "items": list(items)} if name in _COLLECTIONS:
                return _COLLECTIONS[name](map(_read, items))
            case {"is": str(name), **parts} if name in _KNOWN:
                return _KNOWN[name](**{key: _read(part) for key, part in parts.items()})
    except (TypeError, ValueError, InputError):
        pass
    raise PydanticCustomError("any", "expected any value as the log has it")


def to_plain(value: Any) -> object:
    """A value of plain and known types (requests, placements, ...) as JSON."""
    return _write(value)


def from_plain(plain: Any) -> Any:
    """The inverse of :func:`to_plain`; lists become tuples. Raises :class:`ValueError`."""
    try:
        return _read(plain)
    except PydanticCustomError as error:
        raise ValueError(error.message()) from None


def _parts(kind: Any) -> list[str]:
    return list(kind._fields) if issubclass(kind, tuple) else [field.name for field in fields(kind) if field.compare]
