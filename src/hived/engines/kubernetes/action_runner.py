"""Carries out instructions of the gang scheduler: pods and Events in the background, Bindings within a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from hived.engines.kubernetes.client.api import ApiError, KubeApi, Status, api_path, pod_path
from hived.engines.kubernetes.gangs.gang import Annotate, Binding, Evict, RecordEvent, Wake
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.pods.objects import Event, Pod
from hived.engines.kubernetes.pods.pod_request import may_concern
from hived.errors import ConflictError
from hived.words import shortened

from .counters import Counts
from .pods import keys

_log = logging.getLogger("hived.kubernetes")
_COMPONENT = "hived"  #: source of Events and conditions
_AT_ONCE = 16
_TRIES = 5
_PAUSE_S = 0.5  #: after the first failure; doubled
_EVENTS_PER_S, _EVENTS_AT_ONCE = 50.0, 300.0
#: HTTP statuses after which a write is pointless
_GONE = (404, 409, 422)
#: HTTP statuses of an API server that may answer otherwise in a while
_NOT_YET = (401, 403, 429)
_MOST_UNSENT = 1_000  #: unsent warnings that are kept
_LONGEST = 1024  #: characters of an Event's message
#: a Binding that the API server has not answered can still take effect for so long
_LATE_S = 65.0
_RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  #: pauses before a warning is sent again while there is no answer
_WARNING_S = 5.0  #: for so long an eviction waits for the Event about it
_RECALL_S = 5.0  #: to list existing Events
#: reasons of Events about lasting conditions: recorded once while the condition lasts, even across restarts
_LASTING = ("HivedWaiting", "HivedForeign", "HivedRefused", "HivedConflict", "HivedReplaced")


def _names(key: str) -> dict[str, str]:
    """Namespace and name of the pod with this ``namespace/name``."""
    return dict(zip(("namespace", "name"), key.split("/", 1), strict=True))


def _options(evict: Evict) -> dict[str, object]:
    """DeleteOptions: the precondition on the uid, and the grace period."""
    grace = {} if evict.grace is None else {"gracePeriodSeconds": evict.grace}
    return {"preconditions": {"uid": evict.uid}, **grace}


def _summary(event: RecordEvent) -> str:
    """Distinguishes an Event from others for the same reason."""
    return event.summary or shortened(event.message, _LONGEST)


def _age(event: Event) -> int:
    """The resourceVersion as a number, which is larger for later Events."""
    version = event.metadata.resource_version
    return int(version) if version.isdecimal() else 0


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(eq=False)
class ActionRunner:
    """Writes pods and Events: a few at a time, with retries, and Events at a limited rate.

    None of these writes has to succeed: the gang scheduler repeats what matters. It gets the result of every Binding.
    """

    api: KubeApi
    counts: Counts
    clock: Callable[[], float]
    spawn: Callable[[Coroutine[Any, Any, Any]], None]
    preempted: Callable[[str], bool]  #: whether a pod, by uid, is of a gang that is (still) preempted
    evict_failed: Callable[[str], None]
    policy: str = field(init=False, default="policy/v1")  #: the API version of evictions

    def __post_init__(self) -> None:
        #: latest annotations to write, by uid
        self._annotations: dict[str, dict[str, str]] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        #: unsent warnings, the latest of each uid: they are sent when the pod is deleted
        self._unsent: dict[str, RecordEvent] = {}
        #: warnings that are being sent, by uid
        self._warnings: dict[str, asyncio.Task[None]] = {}
        #: summary of the last Event before this process began, by uid and reason
        self._sent: dict[tuple[str, str], str] = {}
        self._tokens, self._filled_at = _EVENTS_AT_ONCE, time.monotonic()

    def carry_out(self, instruction: Evict | Wake | Annotate | RecordEvent) -> None:
        """Carry out an instruction in the background."""
        match instruction:
            case Evict():
                self._start(self._evict(instruction))
            case Wake():
                self._start(self._wake(instruction))
            case Annotate():
                first = instruction.uid not in self._annotations
                self._annotations[instruction.uid] = dict(instruction.annotations)
                if first:
                    self._start(self._annotate(instruction.uid, instruction.key))
            case RecordEvent():
                if self._sent.pop((instruction.uid, instruction.reason), None) == _summary(instruction):
                    return
                if self._take_token():
                    self._send(instruction)
                else:
                    self._keep_unsent(instruction)

    async def recall(self) -> None:
        """List Events of earlier processes, so that lasting conditions are not recorded again. O(Events of HiveD)."""
        try:
            async with asyncio.timeout(_RECALL_S):
                of_ours = {"fieldSelector": f"source={_COMPONENT}"}
                events, _ = await self.api.list(api_path("events"), Event, of_ours)
        except (ApiError, TimeoutError) as error:
            _log.warning(
                "Events about what is as it was may be written again: %s", str(error) or "reading them takes long"
            )
            return
        for event in sorted(events, key=_age):
            if event.reason in _LASTING:
                summary = (event.metadata.annotations or {}).get(keys.SUMMARY, event.message)
                self._sent[event.involved_object.uid, event.reason] = summary

    async def stop(self, within_s: float) -> None:
        """Let running writes end within that time, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _send(self, event: RecordEvent) -> None:
        task = self._start(self._record_event(event))
        if event.warning:
            self._warnings[event.uid] = task

            def sent(_: object) -> None:
                if self._warnings.get(event.uid) is task:
                    del self._warnings[event.uid]

            task.add_done_callback(sent)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("something could not be written, which is a bug of hived", exc_info=error)

    async def _evict(self, evict: Evict) -> None:
        """Evict or delete a pod, once: the gang scheduler schedules retries.

        Its Event is written first, for a process that ends in between knows nothing of the pod when it starts again.
        """
        if evict.uid in self._unsent and self.preempted(evict.uid):
            self._send(self._unsent.pop(evict.uid))
        if evict.uid in self._warnings:
            await asyncio.wait((self._warnings[evict.uid],), timeout=_WARNING_S)
        status = None  # not asked for: it was spared meanwhile, or is removed
        async with self._gate:
            if self.preempted(evict.uid):
                try:
                    await (self._delete(evict) if evict.delete else self._request_eviction(evict))
                except ApiError as error:
                    status = error.status
                    _log.info("pod %s has to go (%s), and stays for now: %s", evict.key, evict.why, error)
                else:
                    status = 200
                    _log.info("pod %s %s: %s", evict.key, "deleted" if evict.delete else "evicted", evict.why)
        done = "deleted" if evict.delete else "ok"
        self.counts.evictions[{200: done, 404: "gone", None: "gone", 429: "blocked"}.get(status, "failed")] += 1
        if status not in (200, 404, None):
            self.evict_failed(evict.uid)
        elif (unsent := self._unsent.pop(evict.uid, None)) is not None and status is not None:
            # no pod is evicted without an Event; if it is gone already, kube-scheduler was told of it, and was faster
            await self._record_event(unsent)

    async def _request_eviction(self, evict: Evict) -> None:
        """Use the Eviction API: it honours disruption budgets and sets the pod's DisruptionTarget condition."""
        pod, options = _names(evict.key), _options(evict)
        body = {"apiVersion": self.policy, "kind": "Eviction", "metadata": pod, "deleteOptions": options}
        answer = msgspec.json.decode(await self.api.post(pod_path(evict.key, "eviction"), body), type=Status)
        if answer.status == "Failure":  # sent with HTTP success if a pod has several budgets
            raise ApiError(answer.message or "", answer.code or 0)

    async def _delete(self, evict: Evict) -> None:
        """Delete as kube-scheduler does: with the DisruptionTarget condition, so that the pod's Job need not fail."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{_COMPONENT}: {evict.why}",
            "lastTransitionTime": _now(),
        }
        body = {"metadata": {"uid": evict.uid}, "status": {"conditions": [condition]}}
        try:
            await self.api.patch(pod_path(evict.key, "status"), body, "strategic")
        except ApiError as error:
            if error.status != 403:  # without that right the victims are deleted all the same
                raise
            _log.warning("pod %s: it cannot be noted that it is disrupted: %s", evict.key, error)
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **_options(evict)}
        await self.api.delete(pod_path(evict.key), options)

    async def _annotate(self, uid: str, key: str) -> None:
        """Write the annotations of a pod one by one, so that the latest wins; retried until the pod is removed."""
        pause = _PAUSE_S
        while True:
            annotations = self._annotations[uid]
            status = await self._patch(uid, key, {"annotations": annotations})
            if self._annotations[uid] is annotations and status in (200, 400, 401, 403, *_GONE):
                del self._annotations[uid]
                return
            if status != 200:
                await asyncio.sleep(pause)
                pause = min(30.0, pause * 2)

    async def _wake(self, wake: Wake) -> None:
        await self._patch(wake.uid, wake.key, {"labels": {keys.TURN: str(time.time_ns() // 1_000_000)}})

    async def _patch(self, uid: str, key: str, metadata: dict[str, object]) -> int:
        """The final HTTP status: 200, or that of the last failure."""
        body = {"metadata": {"uid": uid, **metadata}}  # refused if the uid is another
        number = 0
        while True:
            try:
                async with self._gate:
                    await self.api.patch(pod_path(key), body)
            except ApiError as error:
                number += 1
                if error.status in _GONE:
                    return error.status
                # a starting API server forbids everything for a second or two
                if error.status in (400, 401) or number == _TRIES:
                    _log.warning("pod %s: given up: %s", key, error)
                    return error.status
                await asyncio.sleep(_PAUSE_S * 2 ** (number - 1))
            else:
                return 200

    async def _record_event(self, event: RecordEvent) -> None:
        now, pod = _now(), _names(event.key)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{pod['name'][:200]}.",
                "namespace": pod["namespace"],
                "annotations": {keys.SUMMARY: event.summary} if event.summary else {},
            },
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **pod, "uid": event.uid},
            "reason": event.reason,
            "message": shortened(event.message, _LONGEST),
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": _COMPONENT},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        # a warning is repeated: its pod may be evicted by the time at which this attempt fails
        for pause in (*_RETRY_S, 0.0) if event.warning else (0.0,):
            async with self._gate:
                try:
                    await self.api.post(api_path("events", pod["namespace"]), body)
                except ApiError as error:
                    _log.debug("no Event for pod %s: %s", event.key, error)
                    # a starting API server forbids everything for a second or two
                    if 400 <= error.status < 500 and error.status not in _NOT_YET:
                        break
                else:
                    return
            await asyncio.sleep(pause)
        self._keep_unsent(event)

    def _keep_unsent(self, event: RecordEvent) -> None:
        self.counts.events_dropped += 1
        if event.warning:
            self._unsent[event.uid] = event
            if len(self._unsent) > _MOST_UNSENT:
                del self._unsent[next(iter(self._unsent))]

    def _take_token(self) -> bool:
        now = time.monotonic()
        self._tokens = min(_EVENTS_AT_ONCE, self._tokens + (now - self._filled_at) * _EVENTS_PER_S)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    # -- Bindings -----------------------------------------------------------------------------------------------------

    async def bind(self, gang_scheduler: GangScheduler, binding: Binding) -> None:
        """Bind a pod. Raises :class:`ConflictError` if that is refused, or its outcome unknown."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {**_names(binding.key), "uid": binding.uid, "annotations": binding.annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": binding.node},
        }
        try:
            await self.api.post(pod_path(binding.key, "binding"), body)
        except ApiError as error:
            result = await self._result(gang_scheduler, binding, error)
            self.counts.bindings[result] += 1
            if result != "ok":
                raise ConflictError(f"pod {binding.key} was not bound to {binding.node}: {error}") from None
        else:
            self.counts.bindings["ok"] += 1
            gang_scheduler.bound(binding.uid, self.clock())

    async def bind_other(self, uid: str, key: str, node: str) -> bool:
        """Bind a pod without GPUs for kube-scheduler; ``False``: it is none. Raises :class:`ConflictError`."""
        try:
            pod = msgspec.json.decode(await self.api.get(pod_path(key)), type=Pod)
            if pod.metadata.uid != uid or may_concern(pod):
                return False
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {**_names(key), "uid": uid}, "target": target}
            await self.api.post(pod_path(key, "binding"), body)
        except ApiError as error:
            raise ConflictError(f"pod {key} was not bound to {node}: {error}") from None
        return True

    async def _result(self, gang_scheduler: GangScheduler, binding: Binding, error: ApiError) -> str:
        """The result label of an unconfirmed Binding, read from the pod."""
        try:
            pod = msgspec.json.decode(await self.api.get(pod_path(binding.key)), type=Pod)
        except ApiError as unread:
            if unread.status != 404:
                return self._unknown(gang_scheduler, binding)
            gang_scheduler.pod_removed(binding.uid, self.clock())
            return "conflict"
        if pod.metadata.uid != binding.uid:
            gang_scheduler.pod_removed(binding.uid, self.clock())
            return "conflict"
        if pod.spec.node_name:
            gang_scheduler.pod_changed(pod, None, self.clock())
            entry = gang_scheduler.pods.get(binding.uid)
            return "ok" if entry is not None and entry.bound and entry.gang is not None else "conflict"
        if 400 <= error.status < 500 and error.status != 429:
            gang_scheduler.bind_failed(binding.uid, self.clock())
            return "refused"
        return self._unknown(gang_scheduler, binding)

    def _unknown(self, gang_scheduler: GangScheduler, binding: Binding) -> str:
        """Count the pod as bound until the request cannot take effect any more."""
        self.spawn(self._check_late_binding(gang_scheduler, binding))
        return "unknown"

    async def _check_late_binding(self, gang_scheduler: GangScheduler, binding: Binding) -> None:
        await asyncio.sleep(_LATE_S)
        entry = gang_scheduler.pods.get(binding.uid)
        if entry is not None and entry.binding and not entry.bound:
            await self._result(gang_scheduler, binding, ApiError("it never came", 400))
