"""Address ranges: one address that expands to many, ``10.0.1.[0-7]`` or ``r[0-3]-n[00-15,20]``.

Brackets contain whole numbers and ranges ``a-b`` (both ends included), separated by commas. A lower end with leading
zeros fixes the width: ``[00-15]`` is 00, 01, ... 15. Several brackets give every combination, the last bracket varying
fastest.
"""

from __future__ import annotations

import itertools
import re

from .model import MAX_CELLS

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class RangeError(ValueError):
    """An address with brackets that is not a valid range; the message has the reason."""


def has_range(address: str) -> bool:
    """Whether ``address`` has brackets, so that it is a range (or a bad one)."""
    return "[" in address or "]" in address


def expand(address: str) -> list[str]:
    """Expand ``address``; without brackets it is returned alone. O(addresses).

    Raises :class:`RangeError`: brackets that do not pair, ends that are not numbers or the wrong way round, more than
    ``MAX_CELLS`` addresses.
    """
    pieces = _BRACKETS.split(address)  # text, inside of brackets, text, ...
    if any(has_range(text) for text in pieces[::2]):
        raise RangeError(f"bad range `{address}`: a bracket without its pair")
    choices = [_numbers(inside, address) for inside in pieces[1::2]]
    total = 1
    for numbers in choices:
        total *= len(numbers)
    if total > MAX_CELLS:
        raise _too_many(address, total)
    texts = pieces[::2]
    if len(choices) == 1:  # by far the most frequent case, and the one with long ranges
        before, after = texts
        return [f"{before}{number}{after}" for number in choices[0]]
    parts: list[list[str]] = [[texts[0]]]
    for numbers, text in zip(choices, texts[1:], strict=True):
        parts += [numbers, [text]]
    return ["".join(combination) for combination in itertools.product(*parts)]


def _numbers(inside: str, address: str) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise RangeError(
                f"bad range `{address}`: `{part.strip()}` is not a whole number or a range of them like 0-7"
            )
        low, high = match[1], match[2] or match[1]
        if max(len(low), len(high)) > 18:
            raise RangeError(f"bad range `{address}`: a number of more than 18 digits")
        first, last = int(low), int(high)
        if first > last:
            raise RangeError(f"bad range `{address}`: {low} is above {high}; write [{high}-{low}]")
        if len(high) > 1 and high[0] == "0" and len(low) != len(high):
            raise RangeError(
                f"bad range `{address}`: write both ends with the same number of digits, "
                f"[{low.zfill(len(high))}-{high}]"
            )
        if last - first >= MAX_CELLS - len(numbers):
            raise _too_many(address, last - first + 1 + len(numbers))
        width = len(low) if low[0] == "0" else 0
        if width > 1:
            numbers.extend(str(number).zfill(width) for number in range(first, last + 1))
        else:
            numbers.extend(map(str, range(first, last + 1)))
    return numbers


def _too_many(address: str, total: int) -> RangeError:
    return RangeError(f"range `{address}` stands for {total:,} cells or more; the most is {MAX_CELLS:,}")
