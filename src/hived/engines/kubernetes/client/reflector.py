"""A reflector: lists a collection of the API server, then watches it, and lists again when a watch expires."""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, TypeVar

from hived.engines.kubernetes.pods.objects import ConfigMap, Node, Pod

from .api import ApiError, GoneError, KubeApi, Params

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
#: a watch that ends sooner and without an event counts as a failure
_WORTH_S = 5.0
#: uids of deleted objects that are remembered; late events come within fewer deletions
_MOST_DELETED = 10_000


#: objects with metadata
T = TypeVar("T", bound=Pod | Node | ConfigMap)


@dataclass(eq=False)
class Reflector(Generic[T]):
    """Notifies a receiver of all objects of a collection. Callbacks are synchronous and sequential.

    The receiver gets each uid ADDED (or listed) once, MODIFIED with newer versions only, and DELETED once and last.
    Duplicate and late events are dropped.
    """

    api: KubeApi
    path: str
    of: type[T]
    replace: Callable[[list[T], str], None]  #: gets a whole list and its version; other objects did not exist then
    changed: Callable[[str, T], None]  #: gets an event and its object
    #: gets the reason why a watch ended early: ``expired`` (410: listed again), ``refused`` (listed again),
    #: ``disconnected`` (resumed), or ``list`` (a list failed)
    restarted: Callable[[str], None]
    rng: random.Random
    _: KW_ONLY
    params: Params | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    synced: asyncio.Event = field(init=False, default_factory=asyncio.Event)  #: set after the first list
    problem: ApiError | None = field(init=False, default=None)  #: why the watch is down at the moment
    _failures: int = field(init=False, default=0)  #: in a row
    _known: dict[str, str] = field(init=False, default_factory=dict)  #: resourceVersion by uid
    _deleted: OrderedDict[str, None] = field(init=False, default_factory=OrderedDict)

    async def run(self) -> None:
        """List and watch until cancelled. An exception of a callback is a bug, and ends it."""
        while True:
            try:
                items, version = await self.api.list(self.path, self.of, self.params)
            except ApiError as error:
                await self._fail_and_pause("list", error)
                continue
            self.problem = None
            self._list(items, version)
            self.synced.set()
            await self._follow(version)

    async def _follow(self, version: str) -> None:
        """Watch, and resume after interruptions, until a new list is needed."""
        while True:
            began, received = self.clock(), False
            try:
                async with aclosing(self.api.watch(self.path, self.of, version, self.params)) as events:
                    async for kind, item in events:
                        received = True
                        self._failures = 0
                        self.problem = None
                        version = item.metadata.resource_version or version
                        if kind != "BOOKMARK":
                            self._apply(kind, item)
            except GoneError as error:
                await self._fail_and_pause("expired", error)
                return
            except ApiError as error:
                await self._fail_and_pause("disconnected" if error.status == 0 else "refused", error)
                if error.status != 0:
                    return
            else:  # its time was over
                if received or self.clock() - began >= _WORTH_S:
                    self._failures = 0
                else:
                    await self._pause()

    def _list(self, items: list[T], version: str) -> None:
        """Replace the known versions by a list."""
        self._known = {item.metadata.uid: item.metadata.resource_version for item in items}
        for uid in self._known:
            self._deleted.pop(uid, None)
        self.replace(items, version)

    def _apply(self, kind: str, item: T) -> None:
        """Pass an event on, unless it is late or a duplicate. O(1)."""
        uid, version = item.metadata.uid, item.metadata.resource_version
        known = self._known.get(uid)
        if kind == "DELETED":
            self._deleted[uid] = None
            if len(self._deleted) > _MOST_DELETED:
                self._deleted.popitem(last=False)
            if known is not None:
                del self._known[uid]
                self.changed("DELETED", item)
            return
        if uid in self._deleted or (known is not None and not _newer(version, known)):
            return
        self._known[uid] = version
        self.changed("ADDED" if known is None else "MODIFIED", item)

    async def _fail_and_pause(self, reason: str, error: ApiError) -> None:
        self.problem = error
        self.restarted(reason)
        await self._pause()

    async def _pause(self) -> None:
        """Sleep with exponential backoff and jitter, so that clients of one server do not retry in step."""
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures, 30))
        self._failures += 1
        await self.sleep(max(FIRST_PAUSE_S, longest * self.rng.uniform(0.5, 1.0)))


def _newer(version: str, known: str) -> bool:
    """Whether a version is newer. Versions are numbers in practice but not by contract: others only have to differ."""
    numbers = version.isdecimal() and known.isdecimal()
    return is_after(version, known) if numbers else version != known


def is_after(version: str, of_list: str) -> bool:
    """Whether an object is surely younger than a list of that version."""
    return version.isdecimal() and of_list.isdecimal() and int(version) > int(of_list)
