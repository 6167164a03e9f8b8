"""Informers of pods and nodes: a list first, then every change, each pod with the members of its gang."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from hived.cluster.requests import Member
from hived.engines.kubernetes.client.api import ApiError, KubeApi, api_path, pod_path
from hived.engines.kubernetes.client.reflector import Reflector, is_after
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.pods.objects import Node, Pod
from hived.engines.kubernetes.pods.owners import Owners
from hived.engines.kubernetes.pods.pod_request import PodRequestError

from .counters import Counts

_log = logging.getLogger("hived.kubernetes")
#: pods that have ended hold nothing; those that have failed say whether a kubelet has rejected them
_LIVING = {"fieldSelector": "status.phase!=Succeeded"}
_QUIET_S = 10.0  #: between two log lines about one failure
_PATIENCE_S = 0.2  #: for the watch to bring a pod before it is read
_REFRESH_S = 5.0  #: between two reads of the owners of incomplete gangs

T = TypeVar("T", Node, Pod)
#: a pod, and its gang as its owner defines it
Sized = tuple[Pod, tuple[Member, ...] | None]


@dataclass(eq=False)
class Informers:
    """Watches pods and nodes. ``begin`` is called once, with all of them, and returns the receiver of later changes."""

    api: KubeApi
    owners: Owners
    counts: Counts
    clock: Callable[[], float]
    spawn: Callable[[Coroutine[Any, Any, Any]], None]
    begin: Callable[[list[Node], list[Sized]], GangScheduler]
    on_change: Callable[[], None]

    def __post_init__(self) -> None:
        self._gang_scheduler: GangScheduler | None = None
        self._starting = False
        #: objects received before there is a gang scheduler
        self._pods: dict[str, Pod] | None = None
        self._nodes: dict[str, Node] | None = None
        #: pods whose owners are being read, each in its latest version
        self._resolving: dict[str, Pod] = {}
        #: set once the gang scheduler has the pod, by uid
        self._awaited: dict[str, asyncio.Event] = {}
        #: when a failure was last logged, by resource
        self._logged_at: dict[str, float] = {}
        path, again = api_path("pods"), partial(self._restarted, "pods")
        rng = random.Random()
        self.pods = Reflector(self.api, path, Pod, self._pods_listed, self._pod_changed, again, rng, params=_LIVING)
        path, again = api_path("nodes"), partial(self._restarted, "nodes")
        self.nodes = Reflector(self.api, path, Node, self._nodes_listed, self._node_changed, again, rng)

    def start(self) -> None:
        """Start the watches."""
        self.spawn(self.nodes.run())
        self.spawn(self.pods.run())

    def _restarted(self, name: str, reason: str) -> None:
        self.counts.watch_restarts[name, reason] += 1
        if reason == "list" and time.monotonic() - self._logged_at.get(name, float("-inf")) < _QUIET_S:
            return  # a list is retried every few seconds
        self._logged_at[name] = time.monotonic()
        _log.warning("watching %s: %s: %s", name, reason, (self.pods if name == "pods" else self.nodes).problem)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _nodes_listed(self, nodes: list[Node], _version: str) -> None:
        if self._gang_scheduler is None:
            self._nodes = {node.metadata.name: node for node in nodes}
            self._start_soon()
        else:
            self._gang_scheduler.nodes_replaced(nodes, self.clock())
            self.on_change()

    def _node_changed(self, kind: str, node: Node) -> None:
        name = node.metadata.name
        if self._gang_scheduler is None:
            _buffer(self._nodes, kind, name, node)
        elif kind == "DELETED":
            self._gang_scheduler.node_removed(name, self.clock())
        else:
            self._gang_scheduler.node_changed(node, self.clock())
        self.on_change()

    # -- pods -----------------------------------------------------------------------------------------------------

    def _pods_listed(self, pods: list[Pod], version: str) -> None:
        there = {pod.metadata.uid: pod for pod in pods}
        if self._gang_scheduler is None:
            self._pods = there
            self._start_soon()
            return
        known = {uid: entry.pod for uid, entry in self._gang_scheduler.pods.items()} | self._resolving
        versions = {uid: pod.metadata.resource_version for uid, pod in known.items()}
        versions |= {uid: foreign.version for uid, foreign in self._gang_scheduler.foreign.pods.items()}
        for uid, known_version in versions.items():
            # a pod that was read meanwhile for a request, and is younger than the list, comes with the watch
            if uid not in there and not is_after(known_version, version):
                self._pod_removed(self._gang_scheduler, uid)
        for pod in pods:
            self._pod_updated(self._gang_scheduler, pod)
        self.on_change()

    def _pod_changed(self, kind: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        if self._gang_scheduler is None:
            _buffer(self._pods, kind, uid, pod)
        elif kind == "DELETED":
            self._pod_removed(self._gang_scheduler, uid)
        else:
            self._pod_updated(self._gang_scheduler, pod)
        self.on_change()

    def _pod_removed(self, gang_scheduler: GangScheduler, uid: str) -> None:
        self._resolving.pop(uid, None)
        gang_scheduler.pod_removed(uid, self.clock())

    def _pod_updated(self, gang_scheduler: GangScheduler, pod: Pod) -> None:
        uid = pod.metadata.uid
        # the annotations of bound pods give the members of their gang
        known, members = (True, None) if pod.spec.node_name or pod.ended else self.owners.known(pod)
        if known:
            self._resolving.pop(uid, None)
            self._deliver(gang_scheduler, pod, members)
            return
        first = uid not in self._resolving
        self._resolving[uid] = pod
        if first:
            self.spawn(self._resolve(gang_scheduler, pod))

    async def _resolve(self, gang_scheduler: GangScheduler, pod: Pod) -> None:
        """Read the pod's owner, then deliver the pod to the gang scheduler."""
        members: tuple[Member, ...] | PodRequestError | None
        try:
            members = await self.owners.members(pod)
        except PodRequestError as error:
            members = error
        latest = self._resolving.pop(pod.metadata.uid, None)
        if latest is None:
            return
        if isinstance(members, PodRequestError):
            gang_scheduler.unreadable(latest, members, self.clock())
        else:
            self._deliver(gang_scheduler, latest, members)
        self.on_change()

    def _deliver(self, gang_scheduler: GangScheduler, pod: Pod, members: tuple[Member, ...] | None) -> None:
        gang_scheduler.pod_changed(pod, members, self.clock())
        awaited = self._awaited.pop(pod.metadata.uid, None)
        if awaited is not None:
            awaited.set()

    async def confirm(self, gang_scheduler: GangScheduler, pod: Pod) -> Pod | None:
        """``pod`` as the API server has it; None: there is no such pod. A request may be late, or forged.

        The watch usually brings it, a moment after kube-scheduler's watch; else it is read. Raises
        :class:`PodRequestError` if its owner cannot be read, and what the API server raises.
        """
        uid = pod.metadata.uid
        if uid in gang_scheduler.pods:
            return gang_scheduler.pods[uid].pod
        awaited = self._awaited.setdefault(uid, asyncio.Event())
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await awaited.wait()
        except TimeoutError:
            if self._awaited.get(uid) is awaited:
                del self._awaited[uid]
        return gang_scheduler.pods[uid].pod if uid in gang_scheduler.pods else await self._read(gang_scheduler, pod)

    async def _read(self, gang_scheduler: GangScheduler, pod: Pod) -> Pod | None:
        """:meth:`confirm` by a read of the API server."""
        try:
            answer = await self.api.get(pod_path(pod.key))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        found = msgspec.json.decode(answer, type=Pod)
        if found.metadata.uid != pod.metadata.uid:
            return None
        if found.metadata.uid not in gang_scheduler.pods:
            gang_scheduler.pod_changed(
                found, None if found.spec.node_name else await self.owners.members(found), self.clock()
            )
        return found

    async def _refresh_owners(self, gang_scheduler: GangScheduler) -> None:
        """Refresh the members of incomplete gangs: pods may have succeeded by now. O(gangs) each time."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            for entry in gang_scheduler.incomplete():
                try:
                    gang_scheduler.resize(entry.uid, await self.owners.members(entry.pod), self.clock())
                except PodRequestError:
                    continue  # it was reported when the pod was added; the gang waits on
            self.on_change()

    # -- startup --------------------------------------------------------------------------------------------------

    def _start_soon(self) -> None:
        if self._nodes is not None and self._pods is not None and not self._starting:
            self._starting = True
            self.spawn(self._start())

    async def _start(self) -> None:
        """Read the owners of waiting pods, then begin; changes meanwhile go to the buffers."""
        assert self._pods is not None
        sizes: dict[str, tuple[Member, ...] | None] = {}

        async def size(pod: Pod) -> None:
            try:
                sizes[pod.metadata.uid] = await self.owners.members(pod)
            except PodRequestError as error:
                _log.warning("pod %s: %s", pod.key, error)

        self._pods = {uid: pod for uid, pod in self._pods.items() if not pod.ended}
        await asyncio.gather(*(size(pod) for pod in self._pods.values() if not pod.spec.node_name))
        assert self._nodes is not None
        known = [pod for pod in self._pods.values() if pod.spec.node_name or pod.metadata.uid in sizes]
        resize = [(pod, sizes.get(pod.metadata.uid)) for pod in known]
        late = [pod for uid, pod in self._pods.items() if not pod.spec.node_name and uid not in sizes]
        gang_scheduler = self.begin(list(self._nodes.values()), resize)
        self._gang_scheduler, self._pods, self._nodes = gang_scheduler, None, None
        for pod in late:
            self._pod_updated(gang_scheduler, pod)
        self.spawn(self._refresh_owners(gang_scheduler))
        self.on_change()


def _buffer(objects: dict[str, T] | None, kind: str, key: str, item: T) -> None:
    """Apply a change to the objects that were received before objects is a gang scheduler."""
    assert objects is not None
    if kind == "DELETED":
        objects.pop(key, None)
    else:
        objects[key] = item
