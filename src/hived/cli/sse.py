"""Server-sent events, read from a stream of bytes (WHATWG HTML, 9.2.6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event."""

    name: str
    data: str


def server_events(chunks: Iterable[bytes]) -> Iterator[ServerEvent]:
    r"""Events in order; comments (keep-alives) are left out, and so is an event that was cut off.

    >>> list(server_events([b"event: log\r\nda", b"ta: 1\r\n\r\n: ping\n\ndata: 2\n"]))
    [ServerEvent(name='log', data='1')]
    """
    name, data = "message", list[str]()
    for line in _lines(chunks):
        if not line:
            if data:
                yield ServerEvent(name, "\n".join(data))
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        if field == "event":
            name = value.removeprefix(" ")
        elif field == "data":
            data.append(value.removeprefix(" "))


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Whole lines; only CR LF and LF end one, since JSON may hold whatever else some call a line end."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
