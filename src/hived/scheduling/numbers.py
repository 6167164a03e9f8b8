"""Numbers that are parameters of policies, and numbers that are rounded."""

from __future__ import annotations

from math import ceil, inf

from hived.errors import InputError

#: by how much a sum of work done at several rates may be off
ROUNDED = 1e-6


def whole(units: float) -> int:
    """The first whole unit of time at which so many have passed; what is off by rounding is no unit more."""
    return ceil(round(units, 6))


def check_number(what: str, name: str, value: object, least_is_0: bool = False) -> None:
    """Raise :class:`~hived.errors.InputError` unless ``value`` is a finite number above 0, or an allowed 0."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (0 < value < inf or (least_is_0 and value == 0))
    ):
        need = "of 0 or more" if least_is_0 else "above 0"
        raise InputError(f"{what}: {name} is {value!r}; it must be a number {need}")
