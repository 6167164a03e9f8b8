"""What Kubernetes says: all there is first, then every change, each pod with the size of its gang."""

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
#: those that hold nothing are none of our business
_LIVING = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
_QUIET_S = 10.0  #: between two lines of the log about one failure
_PATIENCE_S = 0.2  #: with the watch
_AGAIN_S = 5.0  #: between two looks at owners of gangs that lack pods

T = TypeVar("T", Node, Pod)
#: a pod, and the gang that its owner makes of it
Sized = tuple[Pod, tuple[Member, ...] | None]


@dataclass(eq=False)
class Informers:
    """Watches pods and nodes. ``begin`` is called once, with all there is; after that, what it returns is on_change."""

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
        #: what was heard before there is a gang scheduler
        self._pods: dict[str, Pod] | None = None
        self._nodes: dict[str, Node] | None = None
        #: pods whose owners are being read: the latest of each
        self._resolving: dict[str, Pod] = {}
        #: who wants to know that a pod is known, by its uid
        self._awaited: dict[str, asyncio.Event] = {}
        #: when a failure was last told, by what is watched
        self._told_at: dict[str, float] = {}
        path, again = api_path("pods"), partial(self._restarted, "pods")
        dice = random.Random()
        self.pods = Reflector(self.api, path, Pod, self._pods_are, self._pod_changed, again, dice, params=_LIVING)
        path, again = api_path("nodes"), partial(self._restarted, "nodes")
        self.nodes = Reflector(self.api, path, Node, self._nodes_are, self._node_changed, again, dice)

    def start(self) -> None:
        """Begin to listen."""
        self.spawn(self.nodes.run())
        self.spawn(self.pods.run())

    def _restarted(self, name: str, reason: str) -> None:
        self.counts.watch_restarts[name, reason] += 1
        if reason == "list" and time.monotonic() - self._told_at.get(name, float("-inf")) < _QUIET_S:
            return  # it is tried every few seconds
        self._told_at[name] = time.monotonic()
        _log.warning("watching %s: %s: %s", name, reason, (self.pods if name == "pods" else self.nodes).problem)

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _nodes_are(self, nodes: list[Node], _version: str) -> None:
        if self._gang_scheduler is None:
            self._nodes = {node.metadata.name: node for node in nodes}
            self._start_soon()
        else:
            self._gang_scheduler.nodes_replaced(nodes, self.clock())
            self.on_change()

    def _node_changed(self, kind: str, node: Node) -> None:
        name = node.metadata.name
        if self._gang_scheduler is None:
            _heard(self._nodes, kind, name, node)
        elif kind == "DELETED":
            self._gang_scheduler.node_gone(name, self.clock())
        else:
            self._gang_scheduler.node_changed(node, self.clock())
        self.on_change()

    # -- pods -----------------------------------------------------------------------------------------------------

    def _pods_are(self, pods: list[Pod], version: str) -> None:
        there = {pod.metadata.uid: pod for pod in pods}
        if self._gang_scheduler is None:
            self._pods = there
            self._start_soon()
            return
        known = {uid: entry.pod for uid, entry in self._gang_scheduler.pods.items()} | self._resolving
        versions = {uid: pod.metadata.resource_version for uid, pod in known.items()}
        versions |= {uid: foreign.version for uid, foreign in self._gang_scheduler.foreign.pods.items()}
        for uid, known_version in versions.items():
            # a pod that was read meanwhile for a question, and is younger than the list, the watch will bring
            if uid not in there and not is_after(known_version, version):
                self._pod_gone(self._gang_scheduler, uid)
        for pod in pods:
            self._pod_is(self._gang_scheduler, pod)
        self.on_change()

    def _pod_changed(self, kind: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        if self._gang_scheduler is None:
            _heard(self._pods, kind, uid, pod)
        elif kind == "DELETED":
            self._pod_gone(self._gang_scheduler, uid)
        else:
            self._pod_is(self._gang_scheduler, pod)
        self.on_change()

    def _pod_gone(self, gang_scheduler: GangScheduler, uid: str) -> None:
        self._resolving.pop(uid, None)
        gang_scheduler.pod_gone(uid, self.clock())

    def _pod_is(self, gang_scheduler: GangScheduler, pod: Pod) -> None:
        uid = pod.metadata.uid
        # bound pods say themselves how large their gang is
        known, members = (True, None) if pod.spec.node_name else self.owners.known(pod)
        if known:
            self._resolving.pop(uid, None)
            self._is_known(gang_scheduler, pod, members)
            return
        first = uid not in self._resolving
        self._resolving[uid] = pod
        if first:
            self.spawn(self._resolve(gang_scheduler, pod))

    async def _resolve(self, gang_scheduler: GangScheduler, pod: Pod) -> None:
        """Read the pod's owner; then the gang scheduler may know it."""
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
            self._is_known(gang_scheduler, latest, members)
        self.on_change()

    def _is_known(self, gang_scheduler: GangScheduler, pod: Pod, members: tuple[Member, ...] | None) -> None:
        gang_scheduler.pod_changed(pod, members, self.clock())
        awaited = self._awaited.pop(pod.metadata.uid, None)
        if awaited is not None:
            awaited.set()

    async def confirm(self, gang_scheduler: GangScheduler, pod: Pod) -> Pod | None:
        """``pod`` as the API server has it; None: there is no such pod. Whoever asks may be late, or lie.

        The watch brings it as a rule, a moment after kube-scheduler's; else it is read. :class:`PodRequestError` where
        its owner cannot be read, and what the API server raises.
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
        """The same, of the API server alone."""
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

    async def _look_again(self, gang_scheduler: GangScheduler) -> None:
        """Owners of gangs that lack pods may make fewer by now, since some have succeeded. O(gangs) each time."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            for entry in gang_scheduler.lacking():
                try:
                    gang_scheduler.sized(entry.uid, await self.owners.members(entry.pod), self.clock())
                except PodRequestError:
                    continue  # it has been told when it came, and waits as it did
            self.on_change()

    # -- the beginning --------------------------------------------------------------------------------------------

    def _start_soon(self) -> None:
        if self._nodes is not None and self._pods is not None and not self._starting:
            self._starting = True
            self.spawn(self._start())

    async def _start(self) -> None:
        """Read the owners of pods that wait, then begin; what changes meanwhile changes in what was heard."""
        assert self._pods is not None
        sizes: dict[str, tuple[Member, ...] | None] = {}

        async def size(pod: Pod) -> None:
            try:
                sizes[pod.metadata.uid] = await self.owners.members(pod)
            except PodRequestError as error:
                _log.warning("pod %s: %s", pod.key, error)

        await asyncio.gather(*(size(pod) for pod in self._pods.values() if not pod.spec.node_name))
        assert self._nodes is not None
        known = [pod for pod in self._pods.values() if pod.spec.node_name or pod.metadata.uid in sizes]
        sized = [(pod, sizes.get(pod.metadata.uid)) for pod in known]
        late = [pod for uid, pod in self._pods.items() if not pod.spec.node_name and uid not in sizes]
        gang_scheduler = self.begin(list(self._nodes.values()), sized)
        self._gang_scheduler, self._pods, self._nodes = gang_scheduler, None, None
        for pod in late:
            self._pod_is(gang_scheduler, pod)
        self.spawn(self._look_again(gang_scheduler))
        self.on_change()


def _heard(there: dict[str, T] | None, kind: str, key: str, item: T) -> None:
    """Something has changed of what there is, before it is told as a whole."""
    assert there is not None
    if kind == "DELETED":
        there.pop(key, None)
    else:
        there[key] = item
