"""Binding pods: the node and the annotations in one call, and what has become of a call that was not answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from hived.engines.kubernetes.client.api import ApiError, KubeApi
from hived.engines.kubernetes.client.paths import pod_path
from hived.engines.kubernetes.gangs.actions import Binding
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.pods.objects import Pod
from hived.errors import ConflictError

from .counters import Counts

#: a request that the API server has not answered can still come true for so long
_LATE_S = 65.0


class PodBinder:
    """Writes Bindings for a gang scheduler, and tells it what came of them."""

    def __init__(
        self,
        api: KubeApi,
        counts: Counts,
        clock: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, Any]], None],
    ) -> None:
        self._api, self._counts, self._clock, self._spawn = api, counts, clock, spawn

    async def bind(self, gang_scheduler: GangScheduler, binding: Binding) -> None:
        """Bind a pod. Raises :class:`ConflictError` where that was refused, or is not known."""
        namespace, _, name = binding.key.partition("/")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": binding.uid, "annotations": binding.notes},
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
        try:
            await self._api.post(pod_path(binding.key, "binding"), body)
        except ApiError as error:
            result = await self._result(gang_scheduler, binding, error)
            self._counts.bindings[result] += 1
            if result != "ok":
                raise ConflictError(f"pod {binding.key} was not bound to {binding.node}: {error}") from None
        else:
            self._counts.bindings["ok"] += 1
            gang_scheduler.bound(binding.uid, self._clock())

    async def _result(self, gang_scheduler: GangScheduler, binding: Binding, error: ApiError) -> str:
        """What a Binding that was not confirmed has come to, in one word: the pod itself says it."""
        try:
            pod = msgspec.json.decode(await self._api.get(pod_path(binding.key)), type=Pod)
        except ApiError as unread:
            if unread.status != 404:
                return self._unknown(gang_scheduler, binding)
            gang_scheduler.pod_gone(binding.uid, self._clock())
            return "conflict"
        if pod.metadata.uid != binding.uid:
            gang_scheduler.pod_gone(binding.uid, self._clock())
            return "conflict"
        if pod.spec.node_name:
            gang_scheduler.pod_changed(pod, None, self._clock())
            entry = gang_scheduler.pods.get(binding.uid)
            return "ok" if entry is not None and entry.bound and entry.gang is not None else "conflict"
        if 400 <= error.status < 500 and error.status != 429:
            gang_scheduler.bind_failed(binding.uid, self._clock())
            return "refused"
        return self._unknown(gang_scheduler, binding)

    def _unknown(self, gang_scheduler: GangScheduler, binding: Binding) -> str:
        """Until the request can come true no more, the pod counts as bound."""
        self._spawn(self._look(gang_scheduler, binding))
        return "unknown"

    async def _look(self, gang_scheduler: GangScheduler, binding: Binding) -> None:
        await asyncio.sleep(_LATE_S)
        entry = gang_scheduler.pods.get(binding.uid)
        if entry is not None and entry.binding and not entry.bound:
            await self._result(gang_scheduler, binding, ApiError("it never came", 400))
