"""One object as the API server keeps it: created once, and replaced only by those who have read its latest version."""

from __future__ import annotations

import json
from typing import Any

from hived.engines.kubernetes.client.api import ApiError


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
