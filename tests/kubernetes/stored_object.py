"""One object as the API server keeps it: created once, and replaced only by those who have read its latest version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from hived.engines.kubernetes.client.api import ApiError, KubeApi


class StoredObject:
    """A lease or a ConfigMap."""

    def __init__(self) -> None:
        self.there: dict[str, Any] | None = None
        self._version = 0

    @property
    def now(self) -> dict[str, Any]:
        """The object, which is there."""
        assert self.there is not None
        return self.there

    def read(self) -> bytes:
        if self.there is None:
            raise ApiError("there is none", 404, "NotFound")
        return json.dumps(self.there).encode()

    def create(self, body: Any) -> bytes:
        if self.there is not None:
            raise ApiError("there is one", 409, "AlreadyExists")
        return self._keep(body)

    def replace(self, body: Any) -> bytes:
        if self.there is None:
            raise ApiError("there is none", 404, "NotFound")
        if body["metadata"]["resourceVersion"] != self.there["metadata"]["resourceVersion"]:
            raise ApiError("it has changed", 409, "Conflict")
        return self._keep(body)

    def _keep(self, body: Any) -> bytes:
        self._version += 1
        self.there = json.loads(json.dumps(body))
        self.now["metadata"]["resourceVersion"] = str(self._version)
        return self.read()


class ObjectApi(KubeApi):
    """The way to one object. ``mood``: sound (""), down, or deaf (writes arrive, and their answers are lost)."""

    def __init__(self, path: str, name: str, stored: StoredObject) -> None:
        self._path, self._name = path, name
        self.stored = stored
        self.mood = ""

    async def reach(self, act: Callable[[], bytes]) -> bytes:
        """A request and its answer."""
        await asyncio.sleep(0)
        if self.mood == "down":
            raise ApiError("nobody there", 0, "NoAnswer")
        return act()

    async def write(self, act: Callable[[], bytes]) -> bytes:
        answer = await self.reach(act)
        if self.mood == "deaf":
            raise ApiError("no answer in time", 0, "Timeout")
        return answer

    async def get(self, path: str, params: Any = None) -> bytes:
        assert path == f"{self._path}/{self._name}"
        return await self.reach(self.stored.read)

    async def put(self, path: str, body: Any) -> bytes:
        assert path == f"{self._path}/{self._name}"
        return await self.write(lambda: self.stored.replace(body))

    async def post(self, path: str, body: Any) -> bytes:
        assert path == self._path
        return await self.write(lambda: self.stored.create(body))
