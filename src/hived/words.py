"""Formatting of numbers, times and paths in messages.

>>> ranges([0, 1, 2, 3, 6]), ranges([0, 1, 4], ", "), runs([4, 5, 7])
('0-3,6', '0-1, 4', [(4, 5), (7, 7)])
>>> counted(1, "GPU"), counted(1200, "GPU"), duration(200), duration(86400)
('1 GPU', '1,200 GPUs', '3 m 20 s', '1 d')
"""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, word: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number:,} {plural(number, word)}"


def path_text(path: object) -> str:
    r"""A path as text that any encoding can write: bytes that are not UTF-8 as ``\udcff``."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def plural(number: int, word: str) -> str:
    """``job`` for one, ``jobs`` for any other number."""
    return word if number == 1 else f"{word}s"


def shortened(text: str, most: int) -> str:
    """At most ``most`` characters of ``text``, cut between words.

    >>> shortened("it starts when others end", 20)
    'it starts when ...'
    """
    if len(text) <= most:
        return text
    head, space, _ = text[: most - 3].rpartition(" ")
    return f"{head}{space}..." if space else f"{text[: most - 3]}..."


def duration(seconds: float) -> str:
    """``3 m 20 s``: the two largest units that are not 0."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of ascending neighbours, in the order given."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def ranges(numbers: Iterable[int], between: str = ",") -> str:
    """``0-3,6``: numbers as runs of ascending neighbours, in the order given."""
    return between.join(str(first) if first == last else f"{first}-{last}" for first, last in runs(numbers))


def encoded(name: str) -> str:
    """A node's name with the delimiters of a placement percent-encoded, as in a URL: ``node:0,1;node2:4``.

    >>> encoded("rack;1:a")
    'rack%3B1%3Aa'
    """
    return "".join(f"%{ord(sign):02X}" if sign in "%:;," else sign for sign in name)


def limits_text(memory: int, share: float) -> str:
    """``is limited to 30% of the time and 6 GiB``; "" without limits."""
    parts = [f"{100 * share:.3g}% of the time"] * (share < 1.0) + [f"{memory / 2**30:.3g} GiB"] * bool(memory)
    return f"is limited to {' and '.join(parts)}" if parts else ""
