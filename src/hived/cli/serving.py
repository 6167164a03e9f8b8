"""The service on Kubernetes, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hived.engines.kubernetes.client.api import KubeApi, connect
from hived.engines.kubernetes.client.leader_election import LeaderElector
from hived.engines.kubernetes.client.token_review import TokenReviews
from hived.engines.kubernetes.config_map import ConfigMapRecord
from hived.engines.kubernetes.counters import Counts
from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.spec_source import ConfigMapSpec, FileSpec, SpecSource
from hived.engines.kubernetes.stored_market import KEY
from hived.server.kubernetes.app import make_kubernetes_app
from hived.server.kubernetes.people import People
from hived.server.kubernetes.view import kubernetes_view
from hived.server.serving import Server

from .addresses import ANY, exit_signal, link, until

_log = logging.getLogger("hived.kubernetes")


@dataclass(frozen=True)
class Serving:
    """A run of the service."""

    spec: Path | None
    config_map: tuple[str, str] | None
    kubeconfig: Path | None
    context: str | None
    listen: tuple[str, int]
    hosts: list[str]
    token: str | None
    tls: ssl.SSLContext | None
    engine: Callable[..., Engine]  #: with the settings of options alone
    identity: str
    trades: tuple[str, str] | None = None
    audience: str | None = None  #: of tokens of Kubernetes that are accepted

    async def run(self, lease: tuple[str, str] | None, needs_certificate: bool) -> None:
        """Serve until a signal stops it. Raises fatal errors."""
        loop, stopped = asyncio.get_running_loop(), exit_signal(terminated=0, hung_up=0)
        counts = Counts()

        def failed(verb: str, resource: str, code: int) -> None:
            counts.api_errors[verb, resource, code] += 1

        connecting = loop.create_task(connect(self.kubeconfig, self.context, failed))
        if not await _before(stopped, connecting):
            return
        api = await connecting
        engine = self._engine(api, counts, lease)
        people = None if self.audience is None else People(TokenReviews(api, self.audience))
        server = Server()
        sampling: asyncio.Task[None] | None = None
        try:
            starting = loop.create_task(engine.start())
            if not await _before(stopped, starting):
                _log.info("stopping, before it has started")
                return
            await starting
            assert engine.failed is not None
            source = kubernetes_view(engine, "Kubernetes")
            app = make_kubernetes_app(
                engine,
                source,
                token=self.token,
                hosts=self.hosts,
                needs_certificate=needs_certificate,
                people=people,
            )
            await server.start(app, listen=self.listen, tls=self.tls)
            sampling = loop.create_task(source.sample())
            self._greet(server.address)
            await until(stopped, engine.failed, [sampling])
            if engine.failed.done():
                raise engine.failed.result()
            _log.info("stopping")
        finally:
            if sampling is not None:
                sampling.cancel()
            # finish open requests, then end the engine
            await server.stop()
            await engine.stop()

    def _engine(self, api: KubeApi, counts: Counts, lease: tuple[str, str] | None) -> Engine:

        def restarted(reason: str) -> None:
            counts.watch_restarts["configmaps", reason] += 1

        elect = None if lease is None else partial(LeaderElector, api, *lease, self.identity)
        source: SpecSource
        if self.config_map is not None:
            source = ConfigMapSpec(api, *self.config_map, restarted)
        else:
            assert self.spec is not None
            source = FileSpec(self.spec)
        record = None if self.trades is None else ConfigMapRecord(api, *self.trades, KEY)
        pod, namespace = os.environ.get("POD_NAME"), os.environ.get("POD_NAMESPACE")
        own_pod = (namespace, pod) if pod and namespace else None
        return self.engine(
            api, source, identity=self.identity, elect=elect, own_pod=own_pod, counts=counts, trade_record=record
        )

    def _greet(self, at: tuple[str, int] | None) -> None:
        assert at is not None
        _log.info("listening on %s:%d", *at)
        _log.info("dashboard: %s", link(*at, scheme="http" if self.tls is None else "https"))
        if self.tls is None and at[0] in ANY:
            _log.info("it is plain HTTP: give --tls-cert and --tls-key where the network is not to be trusted")


async def _before(stopped: asyncio.Future[int], work: asyncio.Task[Any]) -> bool:
    """Wait for ``work``; whether it is done before ``stopped``. If not, it is cancelled."""
    await asyncio.wait({stopped, work}, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return False
    return True
