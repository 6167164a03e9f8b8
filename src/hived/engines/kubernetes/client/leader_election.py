"""One leader among replicas, by a Lease: what client-go's leader election does, so that both understand each other.

Who wants to lead writes its name into the lease, and again every 2 seconds. Others take it when it has not changed for
the 15 seconds that its holder asked for, as they themselves measured: clocks of two machines are never compared. The
holder stops 10 seconds after it *began* the last renewal that succeeded, so it has stopped before another can have
begun. That two write at once is what resourceVersion is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Pod

from .api import ApiError, KubeApi, api_path, lease_path

_log = logging.getLogger("hived.kubernetes")

DURATION_S = 15
DEADLINE_S = 10.0
RETRY_S = 2.0
_NEVER = float("-inf")


def elapsed() -> float:
    """Seconds on this machine's own clock, with those that it slept, where there is such a clock."""
    which = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if which is None else time.clock_gettime(which)


@dataclass(eq=False)
class LeaderElector:
    """A candidate, and sometimes the leader."""

    api: KubeApi
    namespace: str
    name: str
    identity: str  #: names this process to people
    changed: Callable[[bool], None]  #: hears each time that ``is_leader`` has become another, soon after it has
    _: KW_ONLY
    duration_s: int = DURATION_S
    deadline_s: float = DEADLINE_S  #: less than ``duration_s``
    retry_s: float = RETRY_S
    clock: Callable[[], float] = elapsed  #: measures
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], datetime] = lambda: datetime.now(UTC)  #: only tells people when
    holder: str = field(init=False, default="")  #: who leads, as last seen; empty: nobody
    #: why the lease could not be read or written the last time
    problem: ApiError | None = field(init=False, default=None)
    _reported: bool = field(init=False, default=False)
    _logged: str = field(init=False, default="")  #: the problem of before, which is said once
    _leads_until: float = field(init=False, default=_NEVER)
    #: what we last wrote, or may have written, as acquireTime. By this a lease is known to be ours: an answer may
    #: have been lost, and another process may have the same identity
    _claim: str = field(init=False, default="")
    _seen: dict[str, Any] = field(init=False, default_factory=dict)  #: the lease's spec
    _seen_at: float = field(init=False, default=_NEVER)  #: when it became what it is

    @property
    def is_leader(self) -> bool:
        """Whether nobody else can be leader now. Ask it right before acting: it needs nobody to run to become false."""
        return self.clock() < self._leads_until

    async def run(self) -> None:
        """Stand for election until cancelled; then hand over, unless the API server is away."""
        try:
            while True:
                await self._turn()
        finally:
            await self._release()

    async def _turn(self) -> None:
        """One look at the lease, and the pause after it."""
        # a leader has no use for an answer that comes too late
        await self._at_most(self._leads_until - self.clock() if self._reported else self.deadline_s, self._try())
        self._report()
        if self._reported:
            await self.sleep(max(0.0, min(self.retry_s, self._leads_until - self.clock())))
            self._report()
        else:
            await self.sleep(self.retry_s)

    async def _try(self) -> None:
        """Take the lease, or renew it, if that can be. What cannot be is tried again in 2 seconds."""
        began = self.clock()
        try:
            lease = await self._read()
            ours = self._is_ours()
            if not ours:
                self._leads_until = _NEVER
            if ours and lease:
                await self._write(lease, began)
            elif ours or self._is_free():
                await self._take(lease, began)
            self.problem = None
        except ApiError as error:
            self.problem = error
        except msgspec.DecodeError as error:  # something else answers in the API server's place
            self.problem = ApiError(f"lease {self.namespace}/{self.name}: {error}", 0, "Unreadable")

    async def _read(self) -> dict[str, Any]:
        """The lease, and what of it is new; empty: there is none."""
        try:
            data = await self.api.get(lease_path(self.namespace, self.name))
        except ApiError as error:
            if error.status != 404:
                raise
            return {}  # whoever had it keeps it for as long as was promised
        lease: dict[str, Any] = msgspec.json.decode(data)
        self._see(lease.get("spec") or {})
        return lease

    def _see(self, spec: dict[str, Any]) -> None:
        if spec != self._seen:
            self._seen, self._seen_at = spec, self.clock()
            self.holder = spec.get("holderIdentity") or ""

    def _is_ours(self) -> bool:
        return self.holder == self.identity and self._seen.get("acquireTime") == self._claim

    def _is_free(self) -> bool:
        """Nobody holds it, or its holder has not been heard of for as long as it asked for."""
        promised = self._seen.get("leaseDurationSeconds") or self.duration_s
        return not self.holder or self.clock() >= self._seen_at + promised

    async def _take(self, lease: dict[str, Any], began: float) -> None:
        self._claim = self._stamp()
        transitions = int((lease.get("spec") or {}).get("leaseTransitions") or 0) + 1 if lease else 0
        await self._write(lease, began, acquireTime=self._claim, leaseTransitions=transitions)

    async def _write(self, lease: dict[str, Any], began: float, **more: Any) -> None:
        """Write that we lead, over exactly the lease that was read; from then on we do."""
        spec = {
            **(lease.get("spec") or {}),
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.duration_s,
            "renewTime": self._stamp(),
            **more,
        }
        await self._put(lease, spec)
        self._leads_until = began + self.deadline_s

    async def _put(self, lease: dict[str, Any], spec: dict[str, Any]) -> None:
        if lease:
            written = await self.api.put(lease_path(self.namespace, self.name), {**lease, "spec": spec})
        else:
            metadata = {"namespace": self.namespace, "name": self.name}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
            written = await self.api.post(lease_path(self.namespace), body)
        self._see(msgspec.json.decode(written).get("spec") or {})

    async def _release(self) -> None:
        """Lead no more, say so here first, and let another begin at once."""
        self._leads_until = _NEVER
        self._report()
        await self._at_most(self.deadline_s / 2, self._hand_over())

    async def _hand_over(self) -> None:
        with contextlib.suppress(ApiError, msgspec.DecodeError):
            lease = await self._read()
            if lease and self._is_ours():
                stamp = self._stamp()
                spec = {**self._seen, "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._put(lease, {**spec, "acquireTime": stamp, "renewTime": stamp})

    def _report(self) -> None:
        leads = self.is_leader
        if leads is not self._reported:
            self._reported = leads
            self.changed(leads)
        problem = "" if self.problem is None else str(self.problem)
        if problem and problem != self._logged:
            _log.warning("the lease: %s", problem)
        self._logged = problem

    async def _at_most(self, seconds: float, attempt: Awaitable[None]) -> None:
        """Wait for it for so long, by the sleep that was given, and then give it up."""
        tasks = [asyncio.ensure_future(attempt), asyncio.ensure_future(self.sleep(max(0.0, seconds)))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()  # a bug of ours is not lost
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _stamp(self) -> str:
        return self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LeaderLabel:
    """Labels the own pod, given by namespace and name; None: there is none, and nothing is done."""

    def __init__(self, api: KubeApi, own_pod: tuple[str, str] | None) -> None:
        self._api, self._pod = api, own_pod

    async def set(self, role: str) -> None:
        """Label the own pod, so that the Service leads to who decides."""
        if self._pod is None:
            return
        while True:
            try:
                if role == "leader":
                    await self._depose(*self._pod)
                await self._label(*self._pod, role)
            except ApiError as error:
                _log.warning("the own pod cannot be labelled: %s", error)
                await asyncio.sleep(1.0)
            else:
                return

    async def _label(self, namespace: str, pod: str, role: str) -> None:
        await self._api.patch(api_path("pods", namespace, pod), {"metadata": {"labels": {keys.ROLE: role}}})

    async def _depose(self, namespace: str, own: str) -> None:
        """Pods that led before us and could not say any more that they do not."""
        former, _ = await self._api.list(api_path("pods", namespace), Pod, {"labelSelector": f"{keys.ROLE}=leader"})
        for pod in former:
            if pod.metadata.name != own:
                await self._label(namespace, pod.metadata.name, "standby")
