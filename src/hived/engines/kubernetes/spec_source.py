"""Sources of the cluster spec: a file that is polled, or a ConfigMap that is watched."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from hived.cluster import check_feasible
from hived.engines.kubernetes.client.api import ApiError, KubeApi, api_path
from hived.engines.kubernetes.client.reflector import Reflector
from hived.engines.kubernetes.pods.objects import ConfigMap
from hived.errors import InputError, SpecError
from hived.spec import ClusterSpec, parse_spec

_POLL_S = 1.0
_POLLS = 5  #: failed polls after which the file counts as removed
KEY = "spec.yaml"  #: in a ConfigMap; a single key may have another name


def parsed_spec(text: str, source: str) -> ClusterSpec:
    """Parse a spec and check that it is feasible. Raises :class:`~hived.errors.InputError` with line and remedy."""
    spec = parse_spec(text, source)
    check_feasible(spec)
    return spec


class FileSpec:
    """A spec file, polled once a second; also in a mounted ConfigMap, whose files are changing links.

    ``name``: its path, for messages.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._last: bytes | None = None

    async def read(self) -> str:
        """The text of the file. Raises :class:`InputError`."""
        try:
            self._last = self._path.read_bytes()
        except OSError as error:
            raise SpecError(f"{self.name}: cannot be read: {error.strerror or error}") from None
        return _text(self._last, self.name)

    async def follow(self, changed: Callable[[str], None], refused: Callable[[InputError], None]) -> None:
        """Call ``changed`` with every new content, or ``refused`` with the error, until cancelled.

        A file that cannot be read may be in replacement; it is refused after a few polls.
        """
        away = 0
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                now = self._path.read_bytes()
            except OSError as error:
                away += 1
                if away == _POLLS:
                    self._last = None
                    refused(InputError(f"{self.name}: cannot be read any more: {error.strerror or error}"))
                continue
            away = 0
            if now != self._last:
                self._last = now
                try:
                    text = _text(now, self.name)
                except InputError as error:
                    refused(error)
                else:
                    changed(text)


class ConfigMapSpec:
    """A spec in a ConfigMap, watched."""

    def __init__(self, api: KubeApi, namespace: str, name: str, restarted: Callable[[str], None]) -> None:
        self.name = f"configmap/{namespace}/{name}"
        self._api, self._namespace, self._map, self._restarted = api, namespace, name, restarted
        self._last: str | None = None

    async def read(self) -> str:
        """The text of the spec. Raises :class:`InputError`."""
        try:
            answer = await self._api.get(api_path("configmaps", self._namespace, self._map))
        except ApiError as error:
            if error.status != 404:
                raise
            raise InputError(f"{self.name}: there is none; {self._way_out}") from None
        self._last = self._spec_of(msgspec.json.decode(answer, type=ConfigMap))
        return self._last

    async def follow(self, changed: Callable[[str], None], refused: Callable[[InputError], None]) -> None:
        """As :meth:`FileSpec.follow`."""

        def received(config: ConfigMap | None) -> None:
            try:
                text = self._spec_of(config)
            except InputError as error:
                self._last = None
                refused(error)
                return
            if text != self._last:
                self._last = text
                changed(text)

        await Reflector(
            self._api,
            api_path("configmaps", self._namespace),
            ConfigMap,
            lambda maps, _version: received(maps[0] if maps else None),  # the field selector matches one
            lambda kind, config: received(None if kind == "DELETED" else config),
            self._restarted,
            random.Random(),
            params={"fieldSelector": f"metadata.name={self._map}"},
        ).run()

    @property
    def _way_out(self) -> str:
        return f"kubectl -n {self._namespace} create configmap {self._map} --from-file={KEY}"

    def _spec_of(self, config: ConfigMap | None) -> str:
        """The spec in a ConfigMap. Raises :class:`InputError` if it is deleted (None): the last spec stays in use."""
        if config is None:
            raise InputError(f"{self.name}: it is not there any more; {self._way_out}")
        data = config.data or {}
        if KEY not in data and len(data) != 1:
            raise InputError(f"{self.name}: it has no key {KEY} (it has {', '.join(sorted(data)[:10]) or 'none'})")
        return data[KEY] if KEY in data else next(iter(data.values()))


#: a source of a spec that may change
SpecSource = FileSpec | ConfigMapSpec


def _text(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(f"{name}: not a UTF-8 text; save the spec as UTF-8") from None
