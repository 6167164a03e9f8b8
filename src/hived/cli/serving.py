"""The service on Kubernetes, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hived.engines.kubernetes.api import KubeApi, connect
from hived.engines.kubernetes.counts import Counts
from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.leading import Leader
from hived.engines.kubernetes.specs import ConfigMapSpec, FileSpec, SpecSource
from hived.server.kubernetes.app import make_kubernetes_app
from hived.server.kubernetes.metrics import Metrics
from hived.server.kubernetes.view import kubernetes_view
from hived.server.serving import Server

from .addresses import ANY, link

_log = logging.getLogger("hived.kubernetes")


class Serving:
    """From the start of the service to its end."""

    def __init__(
        self,
        spec: Path | None,
        config_map: tuple[str, str] | None,
        kubeconfig: Path | None,
        context: str | None,
        listen: tuple[str, int],
        hosts: list[str],
        token: str | None,
        tls: ssl.SSLContext | None,
        identity: str,
        evict: tuple[float, float],
        event_log: Callable[[str], None] | None,
    ) -> None:
        self._spec, self._config_map, self._kubeconfig, self._context = spec, config_map, kubeconfig, context
        self._listen, self._hosts, self._token, self._tls = listen, hosts, token, tls
        self._identity = identity
        self._evict_after, self._evict_patience = evict
        self._event_log = event_log

    async def run(self, lease: tuple[str, str] | None, needs_certificate: bool) -> int:
        """The exit code: 0 when told to stop. Raises what it cannot go on with."""

        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what clients do wrong is answered, not logged
        loop = asyncio.get_running_loop()
        told: asyncio.Future[int] = loop.create_future()

        def tell() -> None:
            if not told.done():
                told.set_result(0)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, tell)
        counts = Counts()

        def failed(verb: str, resource: str, code: int) -> None:
            counts.api_errors[verb, resource, code] += 1

        connecting = loop.create_task(connect(self._kubeconfig, self._context, failed))
        if not await _before(told, connecting):
            return 0
        engine = self._engine(await connecting, counts, lease)
        server = Server()
        sampling: asyncio.Task[None] | None = None
        try:
            starting = loop.create_task(engine.start())
            if not await _before(told, starting):
                _log.info("stopping, before it has started")
                return 0
            await starting
            assert engine.failed is not None
            source = kubernetes_view(engine, "Kubernetes")
            app = make_kubernetes_app(
                engine,
                source,
                Metrics(engine),
                token=self._token,
                hosts=self._hosts,
                needs_certificate=needs_certificate,
            )
            await server.start(app, listen=self._listen, tls=self._tls)
            sampling = loop.create_task(source.sample())
            self._greet(server.address)
            ends: set[asyncio.Future[Any]] = {told, engine.failed, sampling}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if sampling.done():
                sampling.result()  # it does not end by itself: a bug
            if engine.failed.done():
                raise engine.failed.result()
            _log.info("stopping")
        finally:
            if sampling is not None:
                sampling.cancel()
            # questions that are being answered are answered, and then nobody decides here any more
            await server.stop()
            await engine.stop()
        return 0

    def _engine(self, api: KubeApi, counts: Counts, lease: tuple[str, str] | None) -> Engine:

        def restarted(reason: str) -> None:
            counts.watch_restarts["configmaps", reason] += 1

        def elect(changed: Callable[[bool], None]) -> Leader:
            assert lease is not None
            return Leader(api, *lease, self._identity, changed)

        source: SpecSource
        if self._config_map is not None:
            source = ConfigMapSpec(api, *self._config_map, restarted)
        else:
            assert self._spec is not None
            source = FileSpec(self._spec)
        pod, namespace = os.environ.get("POD_NAME"), os.environ.get("POD_NAMESPACE")
        return Engine(
            api,
            source,
            identity=self._identity,
            evict_after=self._evict_after,
            evict_patience=self._evict_patience,
            elect=elect if lease is not None else None,
            own_pod=(namespace, pod) if pod and namespace else None,
            counts=counts,
            event_log=self._event_log,
        )

    def _greet(self, at: tuple[str, int] | None) -> None:
        assert at is not None
        url = link(*at, self._token or "")
        if self._tls is not None:
            url = url.replace("http://", "https://", 1)
        _log.info("listening on %s:%d", *at)
        _log.info("dashboard: %s", url.partition("?")[0])
        if self._tls is None and at[0] in ANY:
            _log.info("it is plain HTTP: give --tls-cert and --tls-key where the network is not to be trusted")


async def _before(told: asyncio.Future[int], work: asyncio.Task[Any]) -> bool:
    """Wait for ``work``; whether it is done before somebody has told us to end. If not, it is cancelled."""
    await asyncio.wait({told, work}, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return False
    return True
