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

from .virtual_time import played


class OutOfReach:
    """An API server that evicts at once, and does not answer Events before that; then it breaks so many of them off."""

    def __init__(self, broken: int, status: int = 0, answers: bool = False, gone: bool = False) -> None:
        self.broken, self.status, self.gone = broken, status, gone
        self.evicted = asyncio.Event()
        self.answers = answers
        self.done: list[str] = []

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        if path.endswith("/eviction"):
            self.evicted.set()
            if self.gone:
                raise ApiError("no such pod", 404)
            self.done.append("evicted")
            return b'{"kind": "Status", "status": "Success"}'
        await (asyncio.sleep(0.01) if self.answers else self.evicted.wait())
        if self.broken > 0:
            self.broken -= 1
            raise ApiError("the connection is lost", self.status)
        self.done.append(body["reason"])
        return b"{}"


async def evicting(api: OutOfReach, spared: bool = False) -> int:
    """A pod gets an Event, and is evicted unless it is spared meanwhile; how many Events were given up."""
    counts = Counts()

    def nothing(*_: object) -> None:
        pass

    runner = ActionRunner(cast(KubeApi, api), counts, lambda: 0.0, nothing, lambda uid: not spared, nothing)
    runner.carry_out(RecordEvent("uid", "default/pod", "HivedPreempted", "preempted by job of a", True))
    runner.carry_out(Evict("uid", "default/pod", "preempted by job of a"))
    await runner.stop(120)
    return counts.events_dropped


@pytest.mark.parametrize(("broken", "tokens"), [(0, 10.0), (0, 0.0), (2, 10.0)])
@played
async def test_event_before_eviction(broken: int, tokens: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_runner, "_RETRY_S", (0.001,) * 5)
    monkeypatch.setattr(action_runner, "_EVENTS_PER_S", 0.0)
    monkeypatch.setattr(action_runner, "_EVENTS_AT_ONCE", tokens)
    monkeypatch.setattr(action_runner, "_WARNING_S", 120.0)
    api = OutOfReach(broken, 503, answers=True)
    await evicting(api)
    assert api.done == ["HivedPreempted", "evicted"]


@pytest.mark.parametrize(
    ("broken", "status", "sent"), [(3, 0, 1), (1, 503, 1), (2, 403, 1), (1, 404, 0), (100, 0, 0), (100, 403, 0)]
)
@played
async def test_unanswered_event_is_repeated(
    broken: int, status: int, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds no eviction up."""
    monkeypatch.setattr(action_runner, "_RETRY_S", (0.001,) * 5)
    monkeypatch.setattr(action_runner, "_WARNING_S", 0.01)
    api = OutOfReach(broken, status)
    dropped = await evicting(api)
    assert (api.done, dropped) == (["evicted"] + ["HivedPreempted"] * sent, 1 - sent)


@pytest.mark.parametrize("spared", [False, True])
@played
async def test_event_of_a_pod_that_is_gone(spared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent if the pod was evicted, and not if it was spared."""
    monkeypatch.setattr(action_runner, "_RETRY_S", ())
    api = OutOfReach(1, 503, answers=True, gone=True)  # the one attempt at an Event fails; then kube-scheduler deletes
    await evicting(api, spared)
    assert api.done == ([] if spared else ["HivedPreempted"])
