"""Accounts as text, in base64: pages of holdings that have ended, by columns, and the head of a replica that leads.

A page costs about ten bytes a holding: starts are sorted and stored as differences, in milliseconds.
"""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from itertools import accumulate
from typing import Annotated, Any, TypeVar

import msgspec

from hived.engine.holdings import Holding, Use

_MOST = 1 << 26  #: bytes of a page, unpacked: of a compressed text that is not ours
_USES = tuple(Use)
_Moment = Annotated[int, msgspec.Meta(ge=-(10**15), le=10**15)]  #: milliseconds
_Length = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Gpus = Annotated[int, msgspec.Meta(ge=1, le=10**7)]
T = TypeVar("T")


class _Page(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    names: list[str]  #: of users and virtual clusters, each once
    jobs: list[int]  #: the number of each after that of the one before; of a virtual cluster 0 above that
    starts: list[_Moment]  #: each after the one before
    lengths: list[_Length]
    users: list[_Number]  #: in ``names``
    vcs: list[_Number]
    uses: list[_Number]
    gpus: list[_Gpus]


class Slot(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A full page, in an object of its own."""

    number: _Number
    first: float  #: the earliest start in it, in seconds since the epoch
    last: float  #: the latest end


class OpenHolding(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A holding without an end."""

    group: str  #: "": of the virtual cluster
    job: _Number
    user: str
    vc: str
    use: Use
    gpus: _Gpus
    start: float


class Head(msgspec.Struct, forbid_unknown_fields=True):
    """What the next leader goes on with."""

    begins: float  #: from when on accounts are whole, in seconds since the epoch
    as_of: float  #: when it was written
    next_job: _Number
    slots: list[Slot]  #: the oldest first
    ended: bytes  #: a page: what has ended since the last slot
    open: list[OpenHolding]


def packed(holdings: Iterable[Holding]) -> bytes:
    """Holdings that have ended, as a page. O(holdings)."""
    rows = sorted(holdings, key=lambda of: (of.start, of.job or 0))
    names = {name: number for number, name in enumerate(dict.fromkeys(n for of in rows for n in (of.user, of.vc)))}
    starts = [round(of.start * 1000) for of in rows]
    jobs = [0 if of.job is None else of.job + 1 for of in rows]
    page = _Page(
        list(names),
        _differences(jobs),
        _differences(starts),
        [max(0, round((of.end or of.start) * 1000) - start) for of, start in zip(rows, starts, strict=True)],
        [names[of.user] for of in rows],
        [names[of.vc] for of in rows],
        [_USES.index(of.use) for of in rows],
        [of.gpus for of in rows],
    )
    return zlib.compress(msgspec.msgpack.encode(page), 9)


def unpacked(data: bytes) -> list[Holding]:
    """The inverse of :func:`packed`. Raises :class:`ValueError` for what is no page."""
    page = _decoded(data, _Page)
    found = []
    columns = zip(
        accumulate(page.jobs), accumulate(page.starts), page.lengths, page.users, page.vcs, page.uses, page.gpus,
        strict=True,
    )  # fmt: skip
    try:
        for job, start, length, user, vc, use, gpus in columns:
            of = None if job == 0 else job - 1
            times = start / 1000, (start + length) / 1000
            found.append(Holding(of, page.names[user], page.names[vc], _USES[use], gpus, *times))
    except IndexError:
        raise ValueError("a name that is not in the page") from None
    return found


def text_of(data: bytes | Head) -> str:
    """A page, or the head, as it is written."""
    found = data if isinstance(data, bytes) else zlib.compress(msgspec.msgpack.encode(data), 9)
    return b64encode(found).decode()


def page_of(text: str) -> list[Holding]:
    """The holdings of a page as it was written. Raises :class:`ValueError`."""
    return unpacked(_bytes(text))


def head_of(text: str) -> Head:
    """The head as it was written. Raises :class:`ValueError`."""
    return _decoded(_bytes(text), Head)


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64 ({error})") from None


def _decoded(data: bytes, of: type[T]) -> T:
    try:
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(data, _MOST)
        if not unpacking.eof:
            raise ValueError("not whole")
        found: Any = msgspec.msgpack.decode(plain, type=of)
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(str(error)) from None
    return found  # type: ignore[no-any-return]


def _differences(numbers: list[int]) -> list[int]:
    return [number - before for number, before in zip(numbers, [0, *numbers], strict=False)]
