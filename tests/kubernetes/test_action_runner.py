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


def evicting(api: OutOfReach, spared: bool = False) -> int:
    """A pod gets an Event, and is evicted unless it is spared meanwhile; how many Events were given up."""

    async def story() -> int:
        counts = Counts()

        def nothing(*_: object) -> None:
            pass

        runner = ActionRunner(cast(KubeApi, api), counts, lambda: 0.0, nothing, lambda uid: not spared, nothing)
        runner.carry_out(RecordEvent("uid", "default/pod", "HivedPreempted", "preempted by job of a", True))
        runner.carry_out(Evict("uid", "default/pod", "preempted by job of a"))
        await runner.stop(5)
        return counts.events_dropped

    return asyncio.run(story())


@pytest.mark.parametrize(("broken", "tokens"), [(0, 10.0), (0, 0.0), (2, 10.0)])
def test_no_pod_is_evicted_before_there_is_an_event_about_it(
    broken: int, tokens: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_runner, "_RETRY_S", (0.001,) * 5)
    monkeypatch.setattr(action_runner, "_EVENTS_PER_S", 0.0)
    monkeypatch.setattr(action_runner, "_EVENTS_AT_ONCE", tokens)
    api = OutOfReach(broken, 503, answers=True)
    evicting(api)
    assert api.done == ["HivedPreempted", "evicted"]


@pytest.mark.parametrize(
    ("broken", "status", "sent"), [(3, 0, 1), (1, 503, 1), (2, 403, 1), (1, 404, 0), (100, 0, 0), (100, 403, 0)]
)
def test_an_event_that_is_not_answered_holds_no_eviction_up_and_is_repeated(
    broken: int, status: int, sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_runner, "_RETRY_S", (0.001,) * 5)
    monkeypatch.setattr(action_runner, "_WARNING_S", 0.01)
    api = OutOfReach(broken, status)
    dropped = evicting(api)
    assert (api.done, dropped) == (["evicted"] + ["HivedPreempted"] * sent, 1 - sent)


@pytest.mark.parametrize("spared", [False, True])
def test_a_pod_that_is_gone_when_it_is_evicted_gets_the_event_that_could_not_be_sent_and_a_spared_one_does_not(
    spared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_runner, "_RETRY_S", ())
    api = OutOfReach(1, 503, answers=True, gone=True)  # the one attempt at an Event fails; then kube-scheduler deletes
    evicting(api, spared)
    assert api.done == ([] if spared else ["HivedPreempted"])
