"""Accounts on Kubernetes: who has had GPUs, in ConfigMaps, through replicas that come and go.

The *head* is the object ``NAME``: what is held now, and what has ended of late. It is written some seconds after a
change, and every minute. When enough has ended, that goes to a *slot*: ``NAME-0`` to ``NAME-11``, each of which holds
as much as an object may; when all are full the oldest is overwritten. A query reads the slots of its time.

Nothing is counted twice: a holding is known by its job and its start, so that a write which is repeated, or whose
outcome is unknown, changes nothing. A new leader goes on with what is held as it finds it; what has ended while nobody
led is counted until the last write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import TypeAlias

from hived.engine.holdings import Accounts, Holding, Holdings, summed
from hived.engines.kubernetes.client.api import ApiError, KubeApi
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.errors import UnavailableError

from .account_pages import Head, OpenHolding, Slot, head_of, packed, page_of, text_of, unpacked
from .config_map import ConfigMapRecord

_log = logging.getLogger("hived.kubernetes")
#: of the ConfigMaps, in ``binaryData``
KEY = "accounts"
SLOTS = 12
SLOT_BYTES = 900_000  #: of a page: an object has at most 1 MiB
HEAD_HOLDINGS = 2_000  #: that have ended: the head is written often
MOST_SEALED = 40_000  #: of these, at a time: as many as one slot has room for, of any kind
_AFTER_S = 15.0  #: from a change until it is written
_AGAIN_S = 60.0  #: between two writes where nothing changes
_BYTES_PER_S = 2_000  #: of the head: that of a large cluster is written less often
_TRIES = 3
_PAUSE_S = 1.0  #: between them
#: by job and start, to the millisecond
_Holdings: TypeAlias = dict[tuple[str, float], Holding]


@dataclass(eq=False)
class StoredAccounts:
    """The accounts of a replica that leads."""

    head: ConfigMapRecord
    slot: Callable[[int], ConfigMapRecord]  #: by its number
    clock: Callable[[], float]
    #: why nothing is kept; "": it is
    problem: str = ""
    #: from when on they are whole, in seconds since the epoch
    begins: float = inf
    _loaded: Head | None = None
    _slots: list[Slot] = field(default_factory=list)
    #: what has ended and is in no slot, by job and start
    _ended: _Holdings = field(default_factory=dict)
    #: the number of a gang in the accounts: of those that the leader before knew; of others it follows from theirs
    _numbers: dict[int, int] = field(default_factory=dict)
    _first: int = 0
    _next: int = 0
    _holdings: Holdings = field(default_factory=Holdings)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _writing: bool = False
    _written: float = -inf  #: when an attempt was made to write
    _size: int = 0  #: of the head

    # -- a replica begins to lead ---------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the head, before this replica leads; where it cannot be read :attr:`problem` says why."""
        for left in reversed(range(_TRIES)):
            try:
                text = await self.head.load()
                break
            except ApiError as error:
                if not left or error.status in (401, 403):
                    self._give_up(str(error))
                    return
            await asyncio.sleep(_PAUSE_S)
        try:
            self._loaded = None if text is None else head_of(text)
            self._take_over(self._loaded)
        except ValueError as error:
            self._give_up(
                f"{self.head.name} is not what HiveD has written ({error}); delete it, and accounts begin anew"
            )
        self._first = self._next

    def _give_up(self, why: str) -> None:
        """Decide without keeping accounts: who may run where does not depend on them."""
        self.problem = f"no accounts are kept until this service starts again: {why}"
        _log.error("%s", self.problem)

    def _take_over(self, head: Head | None) -> None:
        """Go on with what somebody else has written."""
        if head is not None:
            self._ended = _by_identity(unpacked(head.ended)) | self._ended
            self._slots, self.begins = list(head.slots), min(self.begins, head.begins)
            self._next = max(self._next, head.next_job)

    def attach(self, gang_scheduler: GangScheduler) -> None:
        """Follow the holdings of a new gang scheduler, before it has any."""
        known, at = self._loaded, self.clock()
        self._holdings = holdings = gang_scheduler.holdings = Holdings(records=not self.problem)
        if self.begins == inf:
            self.begins = at
        if known is not None:
            reserved = [of for of in known.open if not of.group]
            holdings.restore([Holding(None, "", of.vc, of.use, of.gpus, of.start) for of in reserved], at)

    def begin(self, gang_scheduler: GangScheduler) -> None:
        """The gang scheduler has found all pods: go on with what they have held. O(gangs)."""
        head, holdings = self._loaded, self._holdings
        holdings.count_from(self.clock())
        before = {of.group: of for of in head.open if of.group} if head is not None else {}
        as_of = self.begins if head is None else head.as_of
        for key, now in list(holdings.open.items()):
            if now.job is None:
                continue
            of = before.pop(gang_scheduler.job(now.job).name, None)
            if of is None:
                holdings.since(key, max(now.start, as_of))
                continue
            self._numbers[now.job] = of.job
            # another one of that name, which began while nobody led, is counted as if it had run on
            same = (of.user, of.vc, of.use, of.gpus) == (now.user, now.vc, now.use, now.gpus)
            holdings.since(key, of.start if same else max(now.start, as_of))
            if not same:
                self._close(of, as_of)
        for of in before.values():
            self._close(of, as_of)
        holdings.take()  # what is open is known, and nothing was so before

    def _close(self, of: OpenHolding, at: float) -> None:
        self._add([Holding(of.job, of.user, of.vc, of.use, of.gpus, of.start, at)])

    # -- what changes ---------------------------------------------------------------------------------------------

    def _add(self, ended: Iterable[Holding]) -> None:
        found = (of._replace(start=round(of.start, 3), end=round(of.end, 3)) for of in ended if of.end is not None)
        self._ended |= _by_identity(of for of in found if of.end is not None and of.end > of.start)

    def _collect(self) -> None:
        """Take in what has changed. O(that)."""
        self._add(self._numbered(of) for of in self._holdings.take())

    def _numbered(self, of: Holding) -> Holding:
        """A holding by the number of its job in the accounts."""
        if of.job is None:
            return of
        number = self._numbers.get(of.job, self._first + of.job)
        self._next = max(self._next, number + 1)
        return of._replace(job=number)

    @property
    def due(self) -> bool:
        """Whether there is something to write."""
        if self.problem or self._writing:
            return False
        since = self.clock() - self._written
        return since >= max(_AFTER_S if self._holdings.changed else _AGAIN_S, self._size / _BYTES_PER_S)

    async def write(self, gang_scheduler: GangScheduler) -> None:
        """Write what has changed. What cannot be written now is written with the next change.

        Raises nothing: who may run where does not depend on accounts.
        """
        self._writing = True
        try:
            async with self._lock:
                self._written = self.clock()
                await self._write(gang_scheduler)
        except ApiError as error:
            _log.warning("accounts were not written, and will be with the next ones: %s", error)
        except Exception as error:
            _log.exception("a bug of hived")
            self._give_up(repr(error))
        finally:
            self._writing = False

    async def _write(self, gang_scheduler: GangScheduler) -> None:
        self._collect()
        try:
            await self._save_head(gang_scheduler)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            # a write of a leader before has come late, or somebody has changed a label or removed it
            found = await self.head.load()
            try:
                self._take_over(None if found is None else head_of(found))
            except ValueError:
                _log.warning("%s was overwritten by somebody else, and is written again", self.head.name)
            await self._save_head(gang_scheduler)
        if len(self._ended) >= HEAD_HOLDINGS:
            await self._seal()  # until the head is written again, what is in the slot is in the head too
            await self._save_head(gang_scheduler)

    async def _save_head(self, gang_scheduler: GangScheduler) -> None:
        self._collect()  # of one moment with what is open: what ends later is written later
        held = []
        for now in self._holdings.open.values():
            group = "" if now.job is None else gang_scheduler.job(now.job).name
            of = self._numbered(now)
            held.append(OpenHolding(group, of.job or 0, of.user, of.vc, of.use, of.gpus, of.start))
        ended = await asyncio.to_thread(packed, list(self._ended.values()))
        head = Head(self.begins, self.clock(), self._next, self._slots, ended, held)
        text = await asyncio.to_thread(text_of, head)
        self._size = len(text)
        await self.head.save(text)

    async def _seal(self) -> None:
        """Move what has ended to the last slot, or to another one if that is full, or cannot be read."""
        ended = dict(islice(self._ended.items(), MOST_SEALED))
        rows, number = dict(ended), 0
        slots = list(self._slots)
        before = await _read(self.slot(slots[-1].number)) if slots else {}
        if slots:
            number = slots[-1].number
            rows = {} if before is None else before | rows
        page = await asyncio.to_thread(packed, rows.values())
        if slots and before is not None and len(page) <= SLOT_BYTES:
            slots.pop()
        elif slots:
            number, rows = (number + 1) % SLOTS, ended
            page = await asyncio.to_thread(packed, rows.values())
        record = self.slot(number)
        await record.load()  # it may be there: of a replica that was killed here, or the oldest
        await record.save(text_of(page))
        starts, ends = [of.start for of in rows.values()], [of.end or of.start for of in rows.values()]
        if any(slot.number == number for slot in slots):  # the oldest
            self.begins = max(self.begins, slots[0].last)
            slots = [slot for slot in slots if slot.number != number]
        self._slots = [*slots, Slot(number, min(starts), max(ends))]
        for key in ended:
            self._ended.pop(key, None)

    # -- queries --------------------------------------------------------------------------------------------------

    async def between(self, start: float, end: float) -> Accounts:
        """GPU seconds between two times. O(holdings of the slots of that time).

        Raises :class:`~hived.errors.UnavailableError` where nothing is kept, and :class:`~.client.api.ApiError`.
        """
        if self.problem:
            raise UnavailableError(self.problem)
        async with self._lock:  # what is being moved to a slot is in both, or in neither
            self._collect()
            found: _Holdings = {}
            for slot in self._slots:
                if slot.first < end and slot.last > start:
                    there = await _read(self.slot(slot.number))
                    if there is None:
                        raise UnavailableError(f"{self.slot(slot.number).name} is not what HiveD has written")
                    found |= await asyncio.to_thread(_within, there, start, end)
            found |= self._ended
            # a leader before may have written late that it has ended
            found |= _by_identity(self._numbered(of) for of in self._holdings.open.values())
            # one after another: each may take much memory
            return await asyncio.to_thread(summed, list(found.values()), start, min(end, self.clock()))


def stored_accounts(api: KubeApi, namespace: str, name: str, clock: Callable[[], float]) -> StoredAccounts:
    """Accounts in the ConfigMap ``name`` and its slots."""

    def record(of: str) -> ConfigMapRecord:
        return ConfigMapRecord(api, namespace, of, KEY, "binaryData")

    return StoredAccounts(record(name), lambda number: record(f"{name}-{number}"), clock)


def _by_identity(holdings: Iterable[Holding]) -> _Holdings:
    return {(of.key, round(of.start, 3)): of for of in holdings}


def _within(holdings: _Holdings, start: float, end: float) -> _Holdings:
    """Those of a time."""
    return {key: of for key, of in holdings.items() if of.start < end and (of.end is None or of.end > start)}


async def _read(record: ConfigMapRecord) -> _Holdings | None:
    """The holdings of a slot: {}, if somebody has removed it; None if it is not what HiveD has written."""
    text = await record.load()
    try:
        return {} if text is None else await asyncio.to_thread(lambda: _by_identity(page_of(text)))
    except ValueError as error:
        _log.warning("%s is not what HiveD has written: %s", record.name, error)
        return None
