"""The client against a real API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from tools.control_plane.cluster import Cluster
from tools.control_plane.plane import ControlPlane

from hived.engines.kubernetes.client import api as client
from hived.engines.kubernetes.client.api import ApiError, KubeApi, api_path, connect
from hived.engines.kubernetes.pods.objects import ConfigMap, Node, Object, Pod

from ..virtual_time import played

PATIENCE_S = 120.0


@asynccontextmanager
async def connected(plane: ControlPlane, user: str = "admin", **options: Any) -> AsyncIterator[KubeApi]:
    api = await connect(plane.kubeconfig(user), **options)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield api
    finally:
        await api.close()


async def create_config_maps(api: KubeApi, namespace: str, number: int) -> None:
    bodies = ({"metadata": {"name": f"map-{each}"}, "data": {"number": str(each)}} for each in range(number))
    await asyncio.gather(*(api.post(api_path("configmaps", namespace), body) for body in bodies))


@played
async def test_list_in_pages(control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, also where the history of the first page is forgotten before the second: then it is asked for again."""
    monkeypatch.setattr(client, "PAGE", 20)
    async with connected(control_plane) as api:
        assert await api.version() == control_plane.binaries.version
        path = api_path("configmaps", namespace)
        await create_config_maps(api, namespace, 50)
        asked: list[dict[str, str]] = []
        request, forgets = api._request, False

        async def forgetting(method: str, path: str, params: Any = None, **more: Any) -> bytes:
            answer = await request(method, path, params=params, **more)
            if more.get("verb") == "list":
                asked.append(dict(params))
                if forgets and len(asked) == 1:
                    await api.post(path, {"metadata": {"name": "later"}})
                    control_plane.compact()
                    # from 1.34 on it has pages in memory, too
                    await asyncio.to_thread(control_plane.restart_api_server)
            return answer

        api._request = forgetting  # type: ignore[assignment,method-assign]  # to be there between two pages
        items, _ = await api.list(path, ConfigMap, {"fieldSelector": "metadata.name!=root"})
        assert {item.metadata.name for item in items} >= {f"map-{each}" for each in range(50)}
        assert len(items) == len({item.metadata.uid for item in items})
        assert len(asked) == 3
        asked.clear()
        forgets = True
        items, _ = await api.list(path, ConfigMap)
        assert [sorted(params) for params in asked] == [["limit"], []]  # the second page was refused
        assert {"map-0", "map-49", "later"} <= {item.metadata.name for item in items}


@played
async def test_watch(control_plane: ControlPlane, cluster: Cluster) -> None:
    """It has what happens, from its beginning or from the middle of it, and ends when its time is over."""
    async with connected(control_plane) as api:
        path = api_path("pods", cluster.namespace)

        async def events_since(version: str) -> list[tuple[str, Pod]]:
            """Until a pod is gone."""
            found = []
            async with aclosing(api.watch(path, Pod, version)) as events:
                async for kind, pod in events:
                    if kind != "BOOKMARK":
                        found.append((kind, pod))
                    if kind == "DELETED":
                        break
            return found

        _, version = await api.list(path, Pod)
        cluster.create_pod({"metadata": {"name": "pod"}})
        cluster.set_phase("pod", "Failed")
        cluster.delete_pod("pod", force=True)
        seen = await events_since(version)
        events = [(kind, pod.metadata.name, pod.ended) for kind, pod in seen]
        assert events[:2] == [("ADDED", "pod", False), ("MODIFIED", "pod", True)]
        assert events[-1] == ("DELETED", "pod", True)
        rest = await events_since(seen[1][1].metadata.resource_version)
        assert [kind for kind, _ in rest] == [kind for kind, _ in seen[2:]]
        last = seen[-1][1].metadata.resource_version
        assert {kind async for kind, _ in api.watch(path, Pod, last, timeout_s=1)} <= {"BOOKMARK"}


@played
async def test_changes_of_objects(control_plane: ControlPlane, cluster: Cluster) -> None:
    cluster.create_pod({"metadata": {"name": "pod", "labels": {"a": "1", "b": "2"}}})
    async with connected(control_plane) as api:
        path = api_path("pods", cluster.namespace, "pod")
        await api.patch(path, {"metadata": {"labels": {"a": None, "c": "3"}}})
        condition = {"type": "PodScheduled", "status": "False", "reason": "Waits"}
        await api.patch(f"{path}/status", {"status": {"conditions": [condition]}}, "strategic")
        read: Object = json.loads(await api.get(path))
        assert read["metadata"]["labels"] == {"b": "2", "c": "3"}
        assert read["status"]["conditions"][0]["reason"] == "Waits"
        with pytest.raises(ApiError) as caught:
            await api.put(path, {**read, "metadata": {**read["metadata"], "resourceVersion": "1"}})
        assert caught.value.reason == "Conflict"
        await api.put(path, {**read, "metadata": {**read["metadata"], "labels": {"d": "4"}}})
        with pytest.raises(ApiError) as caught:  # not this pod, but another of its name
            await api.delete(path, {"preconditions": {"uid": "another"}})
        assert caught.value.status == 409
        await api.delete(path, {"preconditions": {"uid": read["metadata"]["uid"]}, "gracePeriodSeconds": 0})
        with pytest.raises(ApiError) as caught:
            await api.get(path)
        assert (caught.value.status, caught.value.reason) == (404, "NotFound")


@played
async def test_forbidden(control_plane: ControlPlane, namespace: str) -> None:
    """It is refused with the way out, and counted."""
    counted: list[tuple[str, str, int]] = []
    async with connected(control_plane, "stranger", on_error=lambda *what: counted.append(what)) as api:
        with pytest.raises(ApiError, match=r'cannot list resource "pods".*grant it by RBAC'):
            await api.list(api_path("pods"), Pod)
        binding = {"target": {"name": "node-1"}, "metadata": {}}
        with pytest.raises(ApiError, match="403 Forbidden"):
            await api.post(api_path("pods", namespace, "pod", "binding"), binding)
        with pytest.raises(ApiError, match="403 Forbidden"):
            async for _ in api.watch(api_path("nodes"), Node, "0"):
                pass
    assert counted == [("list", "pods", 403), ("create", "pods/binding", 403), ("watch", "nodes", 403)]
