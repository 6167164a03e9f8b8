"""The bulletin board: what tenants offer and ask for (the draft of HiveD, Figure 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, TypeVar

from hived.errors import ConflictError, NotFoundError, RequestError
from hived.spec.compiled import EXACT, ClusterSpec

from .cells import Cells, check_cells, translated
from .trades import Trades


@dataclass(frozen=True, slots=True)
class Offer:
    """Cells that a tenant gives away for a while."""

    tenant: str
    cells: Cells
    start: float  #: seconds by the clock of the caller, included
    end: float  #: excluded
    #: cells that it wants for them, for the same time: few of a high level for more of a low one, or the reverse
    wants: Cells | None = None
    price: float = 0.0  #: the least credit that it takes for a GPU hour; for an auction


@dataclass(frozen=True, slots=True)
class Request:
    """Cells that a tenant asks for."""

    tenant: str
    cells: Cells
    start: float
    end: float
    gives: Cells | None = None  #: cells that it gives for them, for the same time
    bid: float = 1.0  #: the most credit that it pays for a GPU hour; for an auction
    times: int = 1  #: so many such requests at once; each may be met by another offer


_Post = TypeVar("_Post", Offer, Request)
#: of a clock, in seconds: 30,000 years
_LATEST = 1e12
_NONE: Mapping[int, Any] = MappingProxyType({})


class Board:
    """The offers and requests that have not been matched, by number. A call that raises has changed nothing."""

    def __init__(
        self,
        trades: Trades,
        offers: Mapping[int, Offer] = _NONE,
        requests: Mapping[int, Request] = _NONE,
        next_number: int = 1,
    ) -> None:
        self._trades = trades
        self.offers: dict[int, Offer] = dict(offers)
        self.requests: dict[int, Request] = dict(requests)
        #: of the next post
        self.next_number = next_number

    def offer(self, offer: Offer, now: float) -> int:
        """Post an offer; its number. Raises :class:`~hived.errors.RequestError` for cells that it has not got.

        All cells of the tenant count that are its own for the whole window, less those that it has offered already.
        """
        self.check_offer(offer, now)
        return self._post(self.offers, offer)

    def check_offer(self, offer: Offer, now: float) -> None:
        """Raise as :meth:`offer`."""
        spec = self._trades.spec
        self._check(spec, offer, offer.wants, "wants", now)
        if not _is_credit(offer.price):
            raise RequestError("price", f"a number of credits for a GPU hour, at least 0, not {offer.price!r}")
        if offer.wants is not None:
            self._check_others_have(offer.tenant, offer.wants, "wants")
        has = self._trades.least(offer.tenant, offer.cells.kind, offer.start, offer.end)
        posted = sum(
            other.cells.number
            for other in self.offers.values()
            if other.tenant == offer.tenant and other.cells.kind == offer.cells.kind and _meet(other, offer)
        )
        if offer.cells.number > has - posted:
            beside = f", {posted} of which it has offered already" if posted else ""
            raise RequestError(
                "number",
                f"{offer.tenant} has {has} x {_path(spec, offer.cells)} in that time{beside}, and offers "
                f"{offer.cells.number}; offer at most {max(0, has - posted)}",
            )

    def request(self, request: Request, now: float) -> int:
        """Post a request; its number. Raises :class:`~hived.errors.RequestError` for one that nobody could meet."""
        self.check_request(request, now)
        return self._post(self.requests, request)

    def check_request(self, request: Request, now: float) -> None:
        """Raise as :meth:`request`."""
        spec = self._trades.spec
        self._check(spec, request, request.gives, "gives", now)
        if not _is_credit(request.bid):
            raise RequestError("bid", f"a number of credits for a GPU hour, at least 0, not {request.bid!r}")
        if type(request.times) is not int or request.times < 1:
            raise RequestError("times", f"a number of equal requests, at least 1, not {request.times!r}")
        self._check_others_have(request.tenant, request.cells, "number")
        if request.gives is not None:
            has = self._trades.least(request.tenant, request.gives.kind, request.start, request.end)
            if request.gives.number > has:
                raise RequestError(
                    "gives",
                    f"{request.tenant} has {has} x {_path(spec, request.gives)} in that time, and gives "
                    f"{request.gives.number}",
                )

    def _check_others_have(self, tenant: str, cells: Cells, field: str) -> None:
        spec, own = self._trades.spec, self._trades.own
        most = max([own[vc.name, cells.kind] for vc in spec.virtual_clusters if vc.name != tenant], default=0)
        if cells.number > most:
            raise RequestError(field, f"no other tenant has {cells.in_words(spec)}; the most that one has is {most}")

    def _check(self, spec: ClusterSpec, post: Offer | Request, other: Cells | None, name: str, now: float) -> None:
        safety = {vc.name: vc.safety for vc in spec.virtual_clusters}
        if post.tenant not in safety:
            raise RequestError("tenant", f"{post.tenant!r}: no such virtual cluster; there is {', '.join(safety)}")
        if safety[post.tenant] == EXACT:
            raise RequestError(
                "tenant",
                f"{post.tenant} is of exact safety: its jobs end as in a private cluster, which trades no cells; "
                "make it work-conserving in the spec first",
            )
        check_cells(spec, post.cells, "cells")
        if other is not None:
            check_cells(spec, other, name)
            if other.kind == post.cells.kind:
                raise RequestError(name, "cells of another level or chain; these are the same")
        for field, at in (("start", post.start), ("end", post.end)):
            if isinstance(at, bool) or not isinstance(at, (int, float)) or not -_LATEST <= at <= _LATEST:
                raise RequestError(field, f"seconds, not {at!r}")
        if post.end <= post.start:
            raise RequestError("end", f"{post.end:g}: the window ends where it starts ({post.start:g}), or before")
        if post.start < now:
            raise RequestError("start", f"{post.start:g} is over ({now:g} now); start now, or later")

    def _post(self, posts: dict[int, _Post], post: _Post) -> int:
        number = self.next_number
        self.next_number += 1
        posts[number] = post
        return number

    def withdraw(self, number: int, tenant: str) -> Offer | Request:
        """Remove a post. Raises :class:`~hived.errors.NotFoundError`, ``ConflictError`` for one of another."""
        post = self.offers.get(number) or self.requests.get(number)
        if post is None:
            raise NotFoundError(f"no offer or request {number} on the board")
        if post.tenant != tenant:
            raise ConflictError(f"{number} is of {post.tenant}, not of {tenant}")
        self.offers.pop(number, None)
        self.requests.pop(number, None)
        return post

    def expire(self, now: float) -> list[tuple[int, Offer | Request]]:
        """Remove posts whose window is over; the numbers and they. Cut those that have begun. O(posts)."""
        return [*_cut(self.offers, now), *_cut(self.requests, now)]

    def next_change(self, now: float) -> float:
        """When the next window of a post opens after ``now``, or is over; infinity for none. O(posts)."""
        return min([post.start if post.start > now else post.end for post in self._all()], default=inf)

    def count(self, tenant: str) -> int:
        """Posts of a tenant. O(posts)."""
        return sum(post.tenant == tenant for post in self._all())

    def _all(self) -> Iterator[Offer | Request]:
        yield from self.offers.values()
        yield from self.requests.values()

    def posts(self) -> dict[int, Offer | Request]:
        """Offers and requests, by number. O(posts log posts)."""
        found: dict[int, Offer | Request] = {**self.offers, **self.requests}
        return dict(sorted(found.items()))

    def take_over(self, board: Board, spec: ClusterSpec) -> list[tuple[int, Offer | Request, str]]:
        """Take over the posts of a board under another ``spec``; those that cannot be posted here, with the reason.

        The time is not asked: a post whose window is over stays for :meth:`expire`.
        """
        dropped: list[tuple[int, Offer | Request, str]] = []
        new = self._trades.spec

        def cells_of(cells: Cells) -> Cells:
            found = translated(cells, spec, new)
            if found is None:
                raise RequestError("cells", f"there is no {spec.chain(cells.chain).path_to(cells.level)} any more")
            return found

        for number, post in board.posts().items():
            try:
                if isinstance(post, Offer):
                    wants = None if post.wants is None else cells_of(post.wants)
                    offer = replace(post, cells=cells_of(post.cells), wants=wants)
                    self.check_offer(offer, -inf)
                    self.offers[number] = offer
                else:
                    gives = None if post.gives is None else cells_of(post.gives)
                    request = replace(post, cells=cells_of(post.cells), gives=gives)
                    self.check_request(request, -inf)
                    self.requests[number] = request
            except RequestError as error:
                dropped.append((number, post, error.message))
        return dropped

    def take(self, request: int, offer: int) -> None:
        """Remove one request that was matched, and from its offer what it got."""
        asked, offered = self.requests.pop(request), self.offers.pop(offer)
        if asked.times > 1:
            self.requests[request] = replace(asked, times=asked.times - 1)
        left = offered.cells.number - asked.cells.number
        if left and offered.wants is None:
            self.offers[offer] = replace(offered, cells=offered.cells._replace(number=left))

    def clear(self, tenant: str | None = None) -> None:
        """Remove all posts, or those of a tenant."""
        self.offers = {number: of for number, of in self.offers.items() if tenant not in (None, of.tenant)}
        self.requests = {number: of for number, of in self.requests.items() if tenant not in (None, of.tenant)}

    def qualified(self, request: Request) -> Iterator[tuple[int, Offer]]:
        """The offers that meet a request: of its level, of enough cells, for all of its window, of another tenant.

        Where one wants cells for it, the request gives them. O(offers).
        """
        for number, offer in self.offers.items():
            if (
                offer.tenant != request.tenant
                and offer.cells.kind == request.cells.kind
                and offer.cells.number >= request.cells.number
                and offer.start <= request.start
                and offer.end >= request.end
                and _agree(offer, request)
            ):
                yield number, offer


def _cut(posts: dict[int, _Post], now: float) -> list[tuple[int, _Post]]:
    over = []
    for number, post in list(posts.items()):
        if post.end <= now:
            over.append((number, posts.pop(number)))
        elif post.start < now:
            posts[number] = replace(post, start=now)
    return over


def _path(spec: ClusterSpec, cells: Cells) -> str:
    return spec.chain(cells.chain).path_to(cells.level)


def _agree(offer: Offer, request: Request) -> bool:
    """Whether both mean the same cells in return; whole offers are taken then."""
    if offer.wants is None or request.gives is None:
        return offer.wants is None and request.gives is None
    enough = request.gives.number >= offer.wants.number and request.cells.number == offer.cells.number
    return request.gives.kind == offer.wants.kind and enough


def _meet(one: Offer, other: Offer) -> bool:
    return one.start < other.end and other.start < one.end


def _is_credit(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value >= 0
