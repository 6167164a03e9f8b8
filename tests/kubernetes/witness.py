"""A witness of every change of every pod, in the API server's order: finds GPUs given twice, keeps removed pods."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx
import yaml
from tools.control_plane.cluster import connect
from tools.control_plane.plane import ControlPlane
from tools.control_plane.service import Service
from tools.control_plane.workloads import PREFIX, places

Json = dict[str, Any]
Place = tuple[str, int]


class Witness(threading.Thread):
    """Watches the pods of one namespace from its creation. All attributes may be read from other threads."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        super().__init__(daemon=True)
        self.found: list[str] = []  #: GPUs that were given twice, in words
        self.pods: dict[str, Json] = {}  #: existing pods, by uid
        self.gone: dict[str, Json] = {}  #: last version of removed pods, by uid
        self.bound_at: dict[str, float] = {}  #: by uid; monotonic
        self.changed_at = time.monotonic()  #: time of the last change
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._client = connect(plane.kubeconfig(), httpx.Timeout(10.0, read=3600.0))
        self._places: dict[Place, str] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.start()

    def stop(self) -> None:
        self._ending.set()

    def living(self) -> dict[str, Json]:
        """A copy of the existing pods, by uid."""
        with self._lock:
            return dict(self.pods)

    def run(self) -> None:
        """Watch until stopped, which takes effect at the next event."""
        version = ""
        while not self._ending.is_set():
            try:
                version = version or self._list()
                version = self._watch(version)
            except (httpx.HTTPError, ValueError):
                version = ""  # away, or the version has expired: the next list has the changes of meanwhile
                self._ending.wait(0.1)
        self._client.close()

    def _list(self) -> str:
        answer = self._client.get(self._path, timeout=10.0)
        if answer.is_error:
            raise ValueError(answer.text)
        found = answer.json()
        there = {pod["metadata"]["uid"]: pod for pod in found["items"]}
        for uid in [uid for uid in self.pods if uid not in there]:
            self._gone(uid)
        for pod in there.values():
            self._is(pod)
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "300", "allowWatchBookmarks": "1"}
        with self._client.stream("GET", self._path, params=params) as answer:
            if answer.is_error:
                raise ValueError(answer.status_code)
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR" or self._ending.is_set():
                    raise ValueError(line)
                if event["type"] == "DELETED":
                    self._gone(event["object"]["metadata"]["uid"])
                elif event["type"] != "BOOKMARK":
                    self._is(event["object"])
                version = event["object"]["metadata"]["resourceVersion"]
        return version

    def _is(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        with self._lock:
            self.changed_at = time.monotonic()
            self.pods[uid] = pod
            if not pod["spec"].get("nodeName"):
                return
            self.bound_at.setdefault(uid, self.changed_at)
            if has_ended(pod):
                self._frees(uid)
                return
            for place in places(pod):
                owner = self._places.setdefault(place, uid)
                if owner != uid:
                    other = self.pods[owner]["metadata"]["name"]
                    self.found.append(f"{place} is given to {other} and to {pod['metadata']['name']}")
                    self._places[place] = uid

    def _gone(self, uid: str) -> None:
        with self._lock:
            self.changed_at = time.monotonic()
            pod = self.pods.pop(uid, None)
            if pod is not None:
                self.gone[uid] = pod
                self._frees(uid)

    def _frees(self, uid: str) -> None:
        for place in [place for place, owner in self._places.items() if owner == uid]:
            del self._places[place]


def nobody_shares(pods: dict[str, Json]) -> None:
    """Assert that no GPU is given to two pods that live."""
    given: dict[Place, str] = {}
    for name, pod in pods.items():
        for place in places(pod) if is_bound(pod) else ():
            other = given.setdefault(place, name)
            assert other == name, f"{place} is given to {other} and to {name}"


def snapshot(service: Service) -> dict[str, tuple[str, str, list[tuple[str, str, list[int]]]]]:
    """Of all groups: state, kind, and the pods with their nodes and devices."""
    found = {}
    for name, group in service.groups().items():
        pods = sorted((pod["name"], pod["node"], pod["devices"]) for pod in group["tasks"])
        found[name] = group["state"], group["kind"], pods
    return found


def has_ended(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def is_bound(pod: Json) -> bool:
    """Whether a pod is bound and has not ended."""
    return bool(pod["spec"].get("nodeName")) and not has_ended(pod)


def kind(pod: Json) -> str:
    """``guaranteed`` or ``opportunistic``: the kind of a bound pod's group by its annotations."""
    text = pod["metadata"].get("annotations", {}).get(f"{PREFIX}/pod-bind-info", "")
    info: Any = yaml.load(text, yaml.CSafeLoader)
    if info is None:
        return "not known"
    types = {
        cell_type
        for member in info["affinityGroupBindInfo"]
        for place in member["podPlacements"]
        for cell_type in place["preassignedCellTypes"]
    }
    return "opportunistic" if "" in types else "guaranteed"
