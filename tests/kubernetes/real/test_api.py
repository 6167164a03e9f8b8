"""The client, the reflector and the election against a real API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import pytest

from hived.engines.kubernetes.client.api import ApiError, KubeApi, api_path, connect
from hived.engines.kubernetes.pods.objects import ConfigMap, Node, Object, Pod

from ..cluster import Cluster
from ..control_plane import ControlPlane

T = TypeVar("T")

PATIENCE_S = 120.0


def with_api(plane: ControlPlane, story: Callable[[KubeApi], Coroutine[Any, Any, T]], user: str = "admin") -> T:
    """Tell a story with a client; it has a minute."""

    async def run() -> T:
        api = await connect(plane.kubeconfig(user))
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await story(api)
        finally:
            await api.close()

    return asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


def test_it_says_which_version_it_is(control_plane: ControlPlane) -> None:
    assert with_api(control_plane, lambda api: api.version()) == control_plane.binaries.version


async def create_config_maps(api: KubeApi, namespace: str, number: int) -> None:
    for first in range(0, number, 50):
        some = range(first, min(first + 50, number))
        bodies = ({"metadata": {"name": f"map-{each}"}, "data": {"number": str(each)}} for each in some)
        await asyncio.gather(*(api.post(api_path("configmaps", namespace), body) for body in bodies))


def test_a_long_list_comes_in_pages(control_plane: ControlPlane, namespace: str) -> None:
    async def story(api: KubeApi) -> None:
        await create_config_maps(api, namespace, 1203)
        items, _ = await api.list(
            api_path("configmaps", namespace), ConfigMap, {"fieldSelector": "metadata.name!=root"}
        )
        assert len({item.metadata.name for item in items if item.data and "number" in item.data}) == 1203
        assert len(items) == len({item.metadata.uid for item in items})

    with_api(control_plane, story)


def test_a_list_whose_history_is_forgotten_between_two_pages_is_asked_for_again(
    control_plane: ControlPlane, namespace: str
) -> None:
    async def story(api: KubeApi) -> None:
        await create_config_maps(api, namespace, 620)
        asked: list[dict[str, str]] = []
        request = api._request

        async def forgetting(method: str, path: str, params: Any = None, **more: Any) -> bytes:
            answer = await request(method, path, params=params, **more)
            if more.get("verb") != "list":
                return answer
            asked.append(dict(params))
            if len(asked) == 1:
                await api.post(api_path("configmaps", namespace), {"metadata": {"name": "later"}})
                control_plane.compact()
                await asyncio.to_thread(control_plane.restart_api_server)  # from 1.34 on it has pages in memory, too
            return answer

        api._request = forgetting  # type: ignore[assignment,method-assign]  # to be there between two pages
        items, _ = await api.list(api_path("configmaps", namespace), ConfigMap)
        assert [sorted(params) for params in asked] == [["limit"], []]  # the second page was refused
        assert {"map-0", "map-619", "later"} <= {item.metadata.name for item in items}

    with_api(control_plane, story)


def test_a_watch_says_what_happens_and_ends_when_its_time_is_over(
    control_plane: ControlPlane, cluster: Cluster
) -> None:
    async def story(api: KubeApi) -> None:
        path = api_path("pods", cluster.namespace)
        _, version = await api.list(path, Pod)
        cluster.create_pod({"metadata": {"name": "pod"}})
        cluster.set_phase("pod", "Failed")
        cluster.delete_pod("pod", force=True)
        events = [(kind, pod) async for kind, pod in api.watch(path, Pod, version, timeout_s=1)]
        told = [(kind, pod.metadata.name, pod.ended) for kind, pod in events if kind != "BOOKMARK"]
        assert told[:2] == [("ADDED", "pod", False), ("MODIFIED", "pod", True)]
        assert told[-1] == ("DELETED", "pod", True)
        # and from the middle of it
        middle = events[1][1].metadata.resource_version
        rest = [kind async for kind, _ in api.watch(path, Pod, middle, timeout_s=1) if kind != "BOOKMARK"]
        assert rest == [kind for kind, _, _ in told[2:]]

    with_api(control_plane, story)


def test_a_line_that_is_longer_than_any_buffer_is_read(control_plane: ControlPlane, namespace: str) -> None:
    async def story(api: KubeApi) -> None:
        path = api_path("configmaps", namespace)
        _, version = await api.list(path, ConfigMap)
        text = "x" * 900_000
        await api.post(path, {"metadata": {"name": "long"}, "data": {"text": text}})
        async with aclosing(api.watch(path, ConfigMap, version)) as events:
            async for _, item in events:
                if item.metadata.name == "long":
                    assert item.data == {"text": text}
                    return

    with_api(control_plane, story)


def test_objects_are_made_changed_and_deleted(control_plane: ControlPlane, cluster: Cluster) -> None:
    cluster.create_pod({"metadata": {"name": "pod", "labels": {"a": "1", "b": "2"}}})

    async def story(api: KubeApi) -> None:
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

    with_api(control_plane, story)


def test_what_it_may_not_do_is_refused_with_the_way_out_and_counted(
    control_plane: ControlPlane, namespace: str
) -> None:
    counted: list[tuple[str, str, int]] = []

    async def run() -> None:
        api = await connect(control_plane.kubeconfig("hived"), on_error=lambda *what: counted.append(what))
        try:
            with pytest.raises(ApiError, match=r'cannot list resource "pods".*grant it by RBAC'):
                await api.list(api_path("pods"), Pod)
            with pytest.raises(ApiError, match="403 Forbidden"):
                await api.post(
                    api_path("pods", namespace, "pod", "binding"), {"target": {"name": "node-1"}, "metadata": {}}
                )
            with pytest.raises(ApiError, match="403 Forbidden"):
                async for _ in api.watch(api_path("nodes"), Node, "0"):
                    pass
        finally:
            await api.close()

    asyncio.run(run())
    assert counted == [("list", "pods", 403), ("create", "pods/binding", 403), ("watch", "nodes", 403)]
