"""Trades on Kubernetes: the market of the leader, and its record in a ConfigMap.

The record is written before a trade begins. Meanwhile the cells of the trade are nobody's: if this process ends, the
next leader reads the record as it was before, or as it is after, and in neither case has a virtual cluster a cell that
another one has used meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hived.engine.trading import LiveTrading
from hived.engines.kubernetes.client.api import ApiError
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.errors import ForbiddenError, InputError, UnavailableError
from hived.exchange import Arbiter, MarketState
from hived.spec.compiled import ClusterSpec

from .config_map import ConfigMapRecord

_log = logging.getLogger("hived.kubernetes")
#: of the ConfigMap
KEY = "trades.json"
_PAUSE_S = 2.0  #: after a write that has failed
_NOT_WRITTEN = (400, 401, 403, 413, 422, 429)  #: statuses of writes that have certainly not taken place
T = TypeVar("T")


class RecordConflictError(UnavailableError):
    """Somebody else has written the record: this process does not know any more what is in force."""


@dataclass(eq=False)
class StoredMarket:
    """The market of a replica that leads."""

    record: ConfigMapRecord | None
    arbiter: Arbiter
    clock: Callable[[], float]
    #: why trades are not in force; "": they are
    problem: str = ""
    _text: str | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: the market before the change that is being stored
    _before: MarketState | None = None
    #: whether something is not written down that a reader of the record finds by the clock or the spec: what is over
    _behind: bool = False
    #: whether it is being found out what a write has come to
    _unknown: bool = False
    #: when the next attempt to write is made
    _not_before: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether a change is being stored."""
        return self._lock.locked()

    async def load(self) -> None:
        """Read the record, before this replica leads. Raises :class:`~.client.api.ApiError`."""
        if self.record is not None:
            self._text = await self.record.load()

    def restored(self, spec: ClusterSpec) -> LiveTrading:
        """The market as it was read; without trades where the record cannot be used, which :attr:`problem` says."""
        trading = LiveTrading(spec, self.arbiter)
        if self._text is not None and self.record is not None:
            try:
                for left_out in trading.restore(self._text, self.clock()):
                    _log.warning("%s: left out: %s", self.record.name, left_out)
                trading.expire(self.clock())  # before the pods are taken over: their owners have these cells again
                self._behind = trading.changed
            except InputError as error:
                self.problem = (
                    f"{self.record.name}: {error}; no trade is in force until that is mended and this service started "
                    "again; without the ConfigMap there are no trades"
                )
                _log.error("%s", self.problem)
        return trading

    async def change(self, active: Callable[[], GangScheduler], act: Callable[[LiveTrading, float], T]) -> T:
        """Change the market by ``act``, store it, and have the core follow. One at a time.

        ``active``: the gang scheduler, or its error. Raises what ``act`` raises, :class:`ForbiddenError` where trades
        are not kept anywhere, and :class:`~.client.api.ApiError`; nothing has changed then.
        """
        record = self.record
        if record is None:
            raise ForbiddenError("trades are not kept: start hived serve kubernetes with --exchange-configmap NS/NAME")
        if self.problem:
            raise UnavailableError(self.problem)
        if self._unknown:
            raise UnavailableError(f"whether {record.name} was written is not known yet; ask again in a while")
        async with self._lock:
            gang_scheduler = active()
            trading, at = gang_scheduler.trading, self.clock()
            self._end_due(gang_scheduler, at)
            before = trading.state()
            try:
                answer = act(trading, at)
                if trading.changed or self._behind:
                    self._before = before
                    gang_scheduler.follow(trading.before_stored(before), at)
                    await self._save(record, trading.record())
                    active()  # it may not lead any more
            except BaseException:
                trading.go_back(before)
                raise
            finally:
                self._before = None
                trading.expire(self.clock())  # what has ended meanwhile is over, whatever became of the write
                self._behind = self._behind or trading.changed
                trading.settle(self.clock())
            return answer

    async def _save(self, record: ConfigMapRecord, text: str) -> None:
        """Write the record. Raises :class:`~.client.api.ApiError` if it is certain that it is as it was before.

        :class:`RecordConflictError` if it is neither as before nor what was to be written.
        """
        try:
            await record.save(text)
        except ApiError as error:
            self._not_before = self.clock() + _PAUSE_S
            if error.status in _NOT_WRITTEN:
                raise
            # it may have been written: until that is known, nobody has the cells of a trade that begins
            found = await self._read_again(record)
            if found == text:
                _log.info("%s was written: %s", record.name, error)
            elif found == self._text or found is None:
                raise
            else:
                raise RecordConflictError(f"{record.name} was written by somebody else; this process ends") from error
        self._text = text
        self._behind = False

    async def _read_again(self, record: ConfigMapRecord) -> str | None:
        self._unknown = True
        try:
            while True:
                try:
                    return await record.load()
                except ApiError as error:
                    _log.warning("%s cannot be read, and whether it was written is not known: %s", record.name, error)
                await asyncio.sleep(_PAUSE_S)
        finally:
            self._unknown = False

    def _end_due(self, gang_scheduler: GangScheduler, at: float) -> None:
        """Cells go back to their owners at the end of a trade whether that can be written down or not."""
        trading = gang_scheduler.trading
        if trading.next_end <= at:
            trading.expire(at)
            if self._before is None:
                trading.settle(at)
            else:
                gang_scheduler.follow(trading.before_stored(self._before), at)
            self._behind = self._behind or trading.changed

    def tick(self, gang_scheduler: GangScheduler) -> bool:
        """End the trades whose time is over; whether :meth:`change` has something to begin, or to write."""
        if self.record is None or self.problem:
            return False
        at = self.clock()
        due = gang_scheduler.trading.next_change <= at or self._behind  # a window that opens may be a match
        self._end_due(gang_scheduler, at)
        return due and at >= self._not_before and not self.busy

    def spec_changed(self) -> None:
        """The market has a new spec, by which trades may have ended: the record has to follow."""
        self._behind = self.record is not None

    async def when_stored(self, act: Callable[[], None]) -> None:
        """Do something that changes the market without a record, while no change is being stored."""
        async with self._lock:
            act()
