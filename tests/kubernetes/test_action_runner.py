"""The writes of the engine, against an API server that does not answer at the wrong moment."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from hived.engines.kubernetes import action_runner
from hived.engines.kubernetes.action_runner import ActionRunner
from hived.engines.kubernetes.client.api import ApiError, KubeApi
from hived.engines.kubernetes.counters import Counts
from hived.engines.kubernetes.gangs.gang import Evict, RecordEvent


class OutOfReach:
    """An API server that evicts at once, and breaks the first so many Events off once the pod is gone."""

    def __init__(self, broken: int, status: int = 0) -> None:
        self.broken, self.status = broken, status
        self.evicted = asyncio.Event()
        self.events: list[str] = []

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        if path.endswith("/eviction"):
            self.evicted.set()
            return b'{"kind": "Status", "status": "Success"}'
        await self.evicted.wait()
        if self.broken > 0:
            self.broken -= 1
            raise ApiError("the connection is lost", self.status)
        self.events.append(body["reason"])
        return b"{}"


@pytest.mark.parametrize(("broken", "status", "sent"), [(3, 0, 1), (1, 503, 1), (1, 403, 0), (100, 0, 0)])
def test_a_warning_about_a_pod_that_is_evicted_meanwhile_is_repeated(
    broken: int, status: int, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_runner, "_RETRY_S", (0.001,) * 5)

    async def story() -> tuple[list[str], int]:
        api, counts = OutOfReach(broken, status), Counts()

        def nothing(*_: object) -> None:
            pass

        runner = ActionRunner(cast(KubeApi, api), counts, lambda: 0.0, nothing, lambda uid: True, nothing)
        runner.carry_out(RecordEvent("uid", "default/pod", "HivedPreempted", "preempted by job of a", True))
        runner.carry_out(Evict("uid", "default/pod", "preempted by job of a"))
        await runner.stop(5)
        return api.events, counts.events_dropped

    events, dropped = asyncio.run(story())
    assert (events, dropped) == (["HivedPreempted"] * sent, 1 - sent)
