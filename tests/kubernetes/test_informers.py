"""What the engine hears of pods (by lists, by the watch, by reading those that questions are about) and of specs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hived.engines.kubernetes import spec_source as specs
from hived.engines.kubernetes.client.api import GoneError, KubeApi
from hived.engines.kubernetes.counters import Counts
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.informers import Informers, Sized
from hived.engines.kubernetes.pods.objects import Node, Pod
from hived.engines.kubernetes.pods.owners import Owners
from hived.errors import InputError

from .fake_kubernetes import World
from .pods import flat_spec, node, node_names, pod
from .virtual_time import played

SPEC = flat_spec(a=2, b=1)


def of_version(one: Pod, version: int) -> Pod:
    return replace(one, metadata=replace(one.metadata, resource_version=str(version)))


class Server(KubeApi):
    """An API server with scripted lists; its watches are silent, and break on request."""

    def __init__(self) -> None:
        self.there: dict[str, Pod] = {}
        self.lists: asyncio.Queue[tuple[list[Pod], str]] = asyncio.Queue()
        self.breaks = asyncio.Event()

    async def list(self, path: str, of: Any, params: Any = None) -> Any:
        if of is Node:
            return [node(name) for name in node_names(SPEC)], "1"
        return await self.lists.get()

    async def watch(
        self, path: str, of: Any, resource_version: str, params: Any = None, timeout_s: int = 300
    ) -> AsyncGenerator[tuple[str, Any], None]:
        if of is Node:
            await asyncio.Event().wait()
        await self.breaks.wait()
        self.breaks.clear()
        raise GoneError("too old", 410, "Expired")
        yield

    async def get(self, path: str, params: Any = None) -> bytes:
        return msgspec.json.encode(self.there[path.rpartition("/")[2]])


@played
async def test_list_removes_no_pod_read_meanwhile() -> None:
    # its GPUs were given to another gang while it ran, or requests for it were refused for ever as for a removed pod
    server, world, tasks = Server(), World(SPEC), []

    def spawn(task: Coroutine[Any, Any, Any]) -> None:
        tasks.append(asyncio.get_running_loop().create_task(task))

    def begin(_nodes: list[Node], _pods: list[Sized]) -> GangScheduler:
        return world.gang_scheduler

    feed = Informers(server, Owners(server), Counts(), lambda: world.now, spawn, begin, lambda: None)
    feed.start()
    old = of_version(pod("old", 4), 3)
    server.lists.put_nowait(([old], "5"))
    await feed.pods.synced.wait()
    while feed._gang_scheduler is None:
        await asyncio.sleep(0)
    world.gang_scheduler.pod_changed(old, None, world.now)

    server.breaks.set()  # it lists again, and while it does a pod comes that kube-scheduler asks about
    young = of_version(pod("young", 4), 12)
    server.there["young"] = young
    assert await feed.confirm(world.gang_scheduler, young) is not None
    world.gang_scheduler.asked(young, None, node_names(SPEC), world.now)
    before = world.gang_scheduler.gangs["t/young"].placement
    assert before is not None
    server.lists.put_nowait(([], "10"))  # of the moment when it began: `old` was gone, `young` not yet there
    while "uid-t-old" in world.gang_scheduler.pods:
        await asyncio.sleep(0)
    assert world.gang_scheduler.gangs["t/young"].placement == before
    assert "uid-t-young" in world.gang_scheduler.pods
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@played
async def test_removed_spec_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported once, and read when it is back."""
    monkeypatch.setattr(specs, "_POLL_S", 0.001)
    file = tmp_path / "spec.yaml"
    file.write_text("one")
    heard: list[str] = []
    back = asyncio.Event()

    def changed(text: str) -> None:
        heard.append(text)
        back.set()

    def refused(error: InputError) -> None:
        heard.append(str(error))
        file.write_text("one")

    source = specs.FileSpec(file)
    await source.read()
    file.unlink()
    following = asyncio.create_task(source.follow(changed, refused))
    await asyncio.wait_for(back.wait(), 120)
    following.cancel()
    assert heard == [f"{file}: cannot be read any more: No such file or directory", "one"]
