"""A text that outlives a replica: one key of a ConfigMap."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hived.engines.kubernetes.client.api import ApiError, KubeApi, api_path


class ConfigMapRecord:
    """A key of a ConfigMap, written by the leader alone. Whatever else the object has stays as it is."""

    def __init__(
        self, api: KubeApi, namespace: str, name: str, key: str, part: Literal["data", "binaryData"] = "data"
    ) -> None:
        """``part``: of the object, which has ``key``; in ``binaryData`` the text is base64."""
        self.name = f"configmap/{namespace}/{name}"
        self._api, self._namespace, self._map, self._key, self._part = api, namespace, name, key, part
        #: the object as it was last read or written; None: there is none
        self._there: dict[str, Any] | None = None

    async def load(self) -> str | None:
        """The record; None: there is none yet. Raises :class:`~.client.api.ApiError`."""
        try:
            answer = await self._api.get(api_path("configmaps", self._namespace, self._map))
        except ApiError as error:
            if error.status != 404:
                raise
            self._there = None
            return None
        return self._take(answer)

    def _take(self, answer: bytes) -> str | None:
        try:
            there = msgspec.json.decode(answer, type=dict[str, Any])
            text = (there.get(self._part) or {}).get(self._key)
        except (msgspec.DecodeError, AttributeError) as error:
            raise ApiError(f"{self.name}: an answer that is not of Kubernetes ({error})", 0, "Unreadable") from None
        self._there = there
        return None if text is None else str(text)

    async def save(self, text: str) -> None:
        """Replace the record. Raises :class:`~.client.api.ApiError`: status 409 if somebody else has changed it."""
        there = self._there
        if there is None:
            metadata = {"name": self._map, "namespace": self._namespace}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, self._part: {self._key: text}}
            answer = await self._api.post(api_path("configmaps", self._namespace), body)
        else:
            body = {**there, self._part: {**(there.get(self._part) or {}), self._key: text}}
            answer = await self._api.put(api_path("configmaps", self._namespace, self._map), body)
        self._take(answer)
