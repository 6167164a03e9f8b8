"""Operations on a real control plane, as admin: nodes, pods, and fake kubelets."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx

from .plane import ControlPlane

T = TypeVar("T")
Json = dict[str, Any]

PATIENCE_S = 120.0
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
#: statuses and words of an API server that fills its caches at its start, or ends: nothing was done
_NOT_NOW = ((429, "storage is"), (503, "apiserver is shutting down"))


class RefusedError(Exception):
    """The API server refuses a request."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


def connect(kubeconfig: Path, timeout: float | httpx.Timeout) -> httpx.Client:
    """A client with a kubeconfig by :class:`ControlPlane`; ``timeout`` in seconds."""
    config = json.loads(kubeconfig.read_text())
    ((server,), (user,)) = config["clusters"], config["users"]
    return httpx.Client(
        base_url=server["cluster"]["server"],
        headers={"Authorization": f"Bearer {user['user']['token']}"},
        verify=ssl.create_default_context(cafile=server["cluster"]["certificate-authority"]),
        timeout=timeout,
        trust_env=False,
    )


class Api:
    """Sequential requests to the API server, with retries while it is away."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = connect(kubeconfig, PATIENCE_S)
        self.warnings: list[str] = []  #: what the API server has said beside its answers: deprecations and the like

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def __call__(self, verb: str, path: str, body: Any = None, kind: str = "application/json", **params: str) -> Json:
        """Send a request. Raises :class:`RefusedError`."""
        give_up = time.monotonic() + PATIENCE_S
        content = None if body is None else json.dumps(body)
        while True:
            try:
                answer = self._client.request(
                    verb, path, content=content, params=params, headers={"Content-Type": kind}
                )
                come_back = any(answer.status_code == status and words in answer.text for status, words in _NOT_NOW)
                if not come_back or time.monotonic() > give_up:
                    break
                time.sleep(0.1)
            except httpx.TransportError:
                # only what does no harm when it is done twice
                if verb == "POST" or time.monotonic() > give_up:
                    raise
                time.sleep(0.1)
        self.warnings += answer.headers.get_list("warning")
        found: Json = answer.json()
        if answer.is_error:
            raise RefusedError(answer.status_code, str(found.get("reason")), str(found.get("message")))
        return found


class Cluster:
    """One namespace, and the nodes that are made by it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        self.api = Api(plane.kubeconfig())
        self._nodes: list[str] = []
        self._kubelets: FakeKubelets | None = None

    def close(self) -> None:
        """Delete everything that was created by it."""
        self.plane.start_api_server()  # a test that failed may have left it stopped
        if self._kubelets is not None:
            self._kubelets.stop()
        self.empty()
        for name in self._nodes:
            self.delete_node(name)
        self.api.close()

    def delete(self, path: str) -> None:
        """Delete an object, if it exists."""
        try:
            self.api("DELETE", path)
        except RefusedError as error:
            if error.status != 404:
                raise

    def empty(self) -> None:
        """Delete the pods of the namespace at once, after the controllers that would replace them."""
        jobs = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        self.api("DELETE", jobs, propagationPolicy="Background")
        self.api("DELETE", self._path("pods"), gracePeriodSeconds="0")

    # --- nodes

    def create_nodes(
        self,
        names: Iterable[str],
        cpu: str = "64",
        memory: str = "256Gi",
        pods: int = 110,
        resources: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Register ready nodes, as a kubelet does. ``resources``: extra ones that they advertise."""
        for name in names:
            capacity = {"cpu": cpu, "memory": memory, "pods": str(pods), **(resources or {})}
            self.api(
                "POST",
                "/api/v1/nodes",
                {
                    "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
                    "status": {"capacity": capacity, "allocatable": capacity, "conditions": [_ready(True)]},
                },
            )
            self._nodes.append(name)

    def delete_node(self, name: str) -> None:
        """Delete a node, if it exists."""
        self.delete(f"/api/v1/nodes/{name}")

    def set_ready(self, node: str, ready: bool) -> None:
        """Set the status that a node's kubelet reports."""
        self.api("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"conditions": [_ready(ready)]}}, STRATEGIC)

    def allocatable(self, node: str, resources: Mapping[str, str | None]) -> None:
        """Set the resources that a node's kubelet advertises; None takes one away."""
        status = {"capacity": resources, "allocatable": resources}
        self.api("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, MERGE)

    def cordon(self, node: str, cordoned: bool = True) -> None:
        """Cordon or uncordon a node."""
        self.api("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": cordoned}}, STRATEGIC)

    def annotate_node(self, node: str, **annotations: str | None) -> None:
        """Set annotations of ours, ``bad_devices="0,3"`` for ``hived.io/bad-devices``; None takes one away."""
        named = {f"hived.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
        self.api("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"annotations": named}}, MERGE)

    def node(self, name: str) -> Json:
        """As it is now."""
        return self.api("GET", f"/api/v1/nodes/{name}")

    # --- pods

    def create_pod(self, manifest: Mapping[str, Any]) -> Json:
        """In the namespace, unless it names another; a container is added where there is none."""
        metadata = {"namespace": self.namespace, **manifest.get("metadata", {})}
        spec = {"containers": [{"name": "main", "image": "none"}], **manifest.get("spec", {})}
        body = {**manifest, "metadata": metadata, "spec": spec}
        return self.api("POST", f"/api/v1/namespaces/{metadata['namespace']}/pods", body)

    def create_pods(self, *manifests: Mapping[str, Any]) -> None:
        """Several, in this order."""
        for manifest in manifests:
            self.create_pod(manifest)

    def pods(self, namespace: str | None = None) -> dict[str, Json]:
        """By name."""
        found = self.api("GET", self._path("pods", namespace))["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def pod(self, name: str) -> Json:
        """As it is now. Raises :class:`RefusedError` (404) when it is not there."""
        return self.api("GET", self._path(f"pods/{name}"))

    def placed(self) -> dict[str, str]:
        """The node of every pod that has one."""
        return {name: pod["spec"]["nodeName"] for name, pod in self.pods().items() if pod["spec"].get("nodeName")}

    def delete_pod(self, name: str, force: bool = False) -> None:
        """As ``kubectl delete``; ``force``: without waiting for its kubelet."""
        self.api("DELETE", self._path(f"pods/{name}"), **({"gracePeriodSeconds": "0"} if force else {}))

    def wake_pod(self, name: str) -> None:
        """Make kube-scheduler retry a pod, as the service does."""
        self.api("PATCH", self._path(f"pods/{name}"), {"metadata": {"labels": {"hived.io/turn": "1"}}}, MERGE)

    def set_phase(self, name: str, phase: str) -> None:
        """Set the phase that a pod's kubelet reports: ``Running``, ``Succeeded``, ``Failed``."""
        self.api("PATCH", self._path(f"pods/{name}/status"), {"status": {"phase": phase}}, MERGE)

    def create_priority_class(self, name: str, value: int) -> None:
        """Of the cluster; one that is there already stays."""
        body = {"metadata": {"name": name}, "value": value}
        try:
            self.api("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        except RefusedError as error:
            if error.reason != "AlreadyExists":
                raise

    def events(self, namespace: str | None = None) -> list[Json]:
        """All stored Events, in no order."""
        found: list[Json] = self.api("GET", self._path("events", namespace))["items"]
        return found

    def messages(self, name: str, reason: str = "HivedWaiting") -> list[str]:
        """Of all Events about a pod with this reason, sorted."""
        return sorted(
            event["message"]
            for event in self.events()
            if (event["involvedObject"]["name"], event["reason"]) == (name, reason)
        )

    def start_kubelets(self) -> FakeKubelets:
        """Fake kubelets of all nodes; those that run already, if there are some."""
        if self._kubelets is None:
            self._kubelets = FakeKubelets(self.plane)
            self._kubelets.start()
        return self._kubelets

    # --- waiting

    def wait_until(self, condition: Callable[[], T], what: str, timeout: float = PATIENCE_S) -> T:
        """The first true value of ``condition``; a timeout fails with the state of the namespace."""
        return wait_until(condition, what, timeout, self.picture)

    def wait_placed(self, *names: str) -> dict[str, str]:
        """Wait until these pods are bound; returns the nodes of all that are.

        A kube-scheduler whose cache keeps pods that are gone is restarted, once: kubernetes#141255.
        """

        def placed() -> dict[str, str] | None:
            found = self.placed()
            return found if set(names) <= set(found) else None

        what = f"{', '.join(names)} are placed"
        try:
            return self.wait_until(placed, what) or {}
        except AssertionError:
            if not self.plane.pods_kept_for_nothing():
                raise
        self.plane.restart_scheduler()
        return self.wait_until(placed, f"{what} after a restart of kube-scheduler") or {}

    def wait_gone(self, *names: str) -> None:
        """Wait until no pods of these names are left."""
        self.wait_until(lambda: not set(names) & set(self.pods()), f"{', '.join(names)} are gone")

    def wait_terminating(self, *names: str) -> None:
        """Wait until these pods are being deleted."""
        self.wait_until(
            lambda: all("deletionTimestamp" in self.pod(name)["metadata"] for name in names),
            f"{', '.join(names)} are being deleted",
        )

    def wait_event(self, name: str, *words: str, reason: str = "HivedWaiting") -> None:
        """Wait until Events with this reason have said all of these about a pod."""

        def said() -> bool:
            text = "\n".join(self.messages(name, reason))
            return all(word in text for word in words)

        self.wait_until(said, f"Events say {words} of {name}")

    def picture(self) -> str:
        """The pods and the last Events of the namespace, to be read after a failure."""
        lines = []
        for name, pod in self.pods().items():
            status, metadata = pod["status"], pod["metadata"]
            state = "Terminating" if "deletionTimestamp" in metadata else status.get("phase")
            where = pod["spec"].get("nodeName") or f"no node (nominated: {status.get('nominatedNodeName')})"
            why = "; ".join(c["message"] for c in status.get("conditions", ()) if c.get("message"))
            lines.append(f"  pod {name}: {state}, {where}{': ' + why if why else ''}")
        lines += [
            f"  event {event['involvedObject'].get('name')}: {event.get('reason')}: {event.get('message')}"
            for event in sorted(self.events(), key=_when)[-15:]
        ]
        return "\n".join(lines) or "  no pods and no events"

    def _path(self, what: str, namespace: str | None = None) -> str:
        return f"/api/v1/namespaces/{namespace or self.namespace}/{what}"


def wait_until(
    condition: Callable[[], T], what: str, timeout: float = PATIENCE_S, seen: Callable[[], object] | None = None
) -> T:
    """The first true value of ``condition``; a timeout fails with its last value and with what is ``seen`` then."""
    give_up = time.monotonic() + timeout
    while True:
        last = condition()
        if last:
            return last
        if time.monotonic() > give_up:
            more = f"\n{seen()}" if seen is not None else ""
            raise AssertionError(f"not within {timeout:g} s: {what}; last seen: {last!r}{more}")
        time.sleep(0.03)


class FakeKubelets(threading.Thread):
    """Fake kubelets of all nodes: bound pods run without doing anything, and end when they are deleted."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(daemon=True)
        self._api = Api(plane.kubeconfig())
        self._ending = threading.Event()
        self._slow = False
        self.problems: list[str] = []  #: refusals that nothing explains

    def stop(self) -> None:
        """Stop the kubelets."""
        self._ending.set()
        self.join()
        self._api.close()
        assert self.problems == []

    @contextlib.contextmanager
    def slow(self) -> Iterator[None]:
        """Within the context, nothing is reported: pods that are deleted stay."""
        self._slow = True
        try:
            yield
        finally:
            self._slow = False

    def run(self) -> None:
        """Poll all pods, often enough to seem immediate."""
        while not self._ending.wait(0.05):
            try:
                for pod in self._api("GET", "/api/v1/pods", fieldSelector="spec.nodeName!=")["items"]:
                    if not self._slow:
                        self._care_for(pod)
            except httpx.HTTPError:
                pass  # the API server is away: a kubelet goes on
            except RefusedError as error:
                self.problems.append(str(error))

    def _care_for(self, pod: Json) -> None:
        metadata, phase = pod["metadata"], pod["status"].get("phase")
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            if "deletionTimestamp" in metadata:
                if phase not in ("Succeeded", "Failed"):  # a Job makes no other pod before this one has failed
                    self._report(path, metadata, {"phase": "Failed"})
                self._api("DELETE", path, {"preconditions": {"uid": metadata["uid"]}, "gracePeriodSeconds": 0})
            elif phase == "Pending":
                self._report(path, metadata, {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
        except RefusedError as error:
            if error.status not in (404, 409):  # it has gone meanwhile, or another has its name
                raise

    def _report(self, path: str, seen: Json, status: Json) -> None:
        as_seen = {key: seen[key] for key in ("uid", "resourceVersion")}  # others set phases, too
        self._api("PATCH", f"{path}/status", {"metadata": as_seen, "status": status}, STRATEGIC)


def _ready(ready: bool) -> Json:
    """A node's condition."""
    return {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": "KubeletReady" if ready else "KubeletDown",
    }


def _when(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")
