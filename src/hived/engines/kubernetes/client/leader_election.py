"""Leader election by a Lease, compatible with client-go.

A candidate writes its identity into the lease and renews it every 2 seconds. Another candidate takes the lease when it
has not changed for the 15 seconds of its duration, by the candidate's own clock: clocks of two machines are never
compared. The leader stops 10 seconds after it *began* its last successful renewal, hence before another can begin.
resourceVersion prevents concurrent writes.
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
    """Seconds of a monotonic clock that runs on while the machine is suspended, if there is one."""
    which = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if which is None else time.clock_gettime(which)


@dataclass(eq=False)
class LeaderElector:
    """A candidate for leadership."""

    api: KubeApi
    namespace: str
    name: str
    identity: str  #: of this process in the lease
    changed: Callable[[bool], None]  #: called soon after ``is_leader`` has changed
    _: KW_ONLY
    duration_s: int = DURATION_S
    deadline_s: float = DEADLINE_S  #: less than ``duration_s``
    retry_s: float = RETRY_S
    clock: Callable[[], float] = elapsed  #: measures
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], datetime] = lambda: datetime.now(UTC)  #: for timestamps in the lease only
    holder: str = field(init=False, default="")  #: last seen holder of the lease; empty: none
    #: why the last read or write of the lease failed
    problem: ApiError | None = field(init=False, default=None)
    _reported: bool = field(init=False, default=False)
    _logged: str = field(init=False, default="")  #: the last logged problem: each is logged once
    _leads_until: float = field(init=False, default=_NEVER)
    #: the acquireTime that this process last wrote, or may have written. It identifies an own lease: an answer may
    #: have been lost, and another process may have the same identity
    _claim: str = field(init=False, default="")
    _seen: dict[str, Any] = field(init=False, default_factory=dict)  #: the lease's spec
    _seen_at: float = field(init=False, default=_NEVER)  #: when it last changed

    @property
    def is_leader(self) -> bool:
        """Whether no other candidate can be leader now. Check it right before acting: it expires by the clock alone."""
        return self.clock() < self._leads_until

    async def run(self) -> None:
        """Run for leadership until cancelled; then hand over, unless the API server is away."""
        try:
            while True:
                await self._turn()
        finally:
            await self._release()

    async def _turn(self) -> None:
        """One attempt at the lease, and the pause after it."""
        # an answer after the deadline is of no use to a leader
        await self._at_most(self._leads_until - self.clock() if self._reported else self.deadline_s, self._try())
        self._report()
        if self._reported:
            await self.sleep(max(0.0, min(self.retry_s, self._leads_until - self.clock())))
            self._report()
        else:
            await self.sleep(self.retry_s)

    async def _try(self) -> None:
        """Take or renew the lease if possible. A failure is retried in 2 seconds."""
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
        except msgspec.DecodeError as error:  # another server answers at that address
            self.problem = ApiError(f"lease {self.namespace}/{self.name}: {error}", 0, "Unreadable")

    async def _read(self) -> dict[str, Any]:
        """Read the lease; empty: there is none."""
        try:
            data = await self.api.get(lease_path(self.namespace, self.name))
        except ApiError as error:
            if error.status != 404:
                raise
            return {}  # a former holder keeps it for its duration
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
        """Whether the lease has no holder, or has expired."""
        promised = self._seen.get("leaseDurationSeconds") or self.duration_s
        return not self.holder or self.clock() >= self._seen_at + promised

    async def _take(self, lease: dict[str, Any], began: float) -> None:
        self._claim = self._stamp()
        transitions = int((lease.get("spec") or {}).get("leaseTransitions") or 0) + 1 if lease else 0
        await self._write(lease, began, acquireTime=self._claim, leaseTransitions=transitions)

    async def _write(self, lease: dict[str, Any], began: float, **more: Any) -> None:
        """Write this process as the holder over exactly the lease that was read, and lead from then on."""
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
        """Give up leadership, report that first, and let another candidate begin at once."""
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
        """Cancel ``attempt`` after ``seconds`` of :attr:`sleep`."""
        tasks = [asyncio.ensure_future(attempt), asyncio.ensure_future(self.sleep(max(0.0, seconds)))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()  # raises a bug
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _stamp(self) -> str:
        return self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LeaderLabel:
    """Labels the own pod with its role. ``own_pod``: namespace and name; None: not in a pod, so no label."""

    def __init__(self, api: KubeApi, own_pod: tuple[str, str] | None) -> None:
        self._api, self._pod = api, own_pod

    async def set(self, role: str) -> None:
        """Label the own pod, so that the Service routes to the leader."""
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
        """Relabel pods of former leaders that could not do it themselves."""
        former, _ = await self._api.list(api_path("pods", namespace), Pod, {"labelSelector": f"{keys.ROLE}=leader"})
        for pod in former:
            if pod.metadata.name != own:
                await self._label(namespace, pod.metadata.name, "standby")
