"""Leader election: never two leaders, and one before long; on a lease as client-go has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from hived.engines.kubernetes.client.leader_election import LeaderElector

from ..strategies import given_in_tiers
from .stored_object import ObjectApi, StoredObject
from .virtual_time import Time, played


class Reaching(ObjectApi):
    """One candidate's way to the lease; more moods: slow, hanging, garbage."""

    def __init__(self, lease: StoredObject, time: Time) -> None:
        super().__init__("/apis/coordination.k8s.io/v1/namespaces/hived/leases", "hived", lease)
        self._time = time
        self.going = asyncio.Event()  #: not set: the process is suspended
        self.going.set()

    async def reach(self, act: Callable[[], bytes]) -> bytes:
        await self.going.wait()
        if self.mood == "hanging":
            await asyncio.Event().wait()
        if self.mood == "garbage":
            return b"<html>"
        if self.mood == "slow":
            await self._time.sleep(0.7)
        answer = await super().reach(act)
        if self.mood == "slow":
            await self._time.sleep(0.7)
        await self.going.wait()
        return answer


class Candidate:
    """A process that wants to lead."""

    def __init__(self, lease: StoredObject, time: Time, identity: str) -> None:
        self.api = Reaching(lease, time)
        self.events: list[bool] = []

        async def sleep(seconds: float) -> None:
            await time.sleep(seconds)
            await self.api.going.wait()

        self.leader = LeaderElector(
            self.api, "hived", "hived", identity, self.events.append, clock=time.clock, sleep=sleep, now=time.date
        )
        self.task = asyncio.ensure_future(self.leader.run())

    @property
    def leads(self) -> bool:
        return self.leader.is_leader

    async def stop(self) -> None:
        """Stop as by SIGTERM: the lease is handed over."""
        self.api.going.set()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def kill(self) -> None:
        """As by -9: the lease stays."""
        self.api.mood = "down"
        await self.stop()


class Election:
    """Candidates of one lease."""

    def __init__(self) -> None:
        self.time = Time()
        self.lease = StoredObject()
        self.candidates: list[Candidate] = []

    @property
    def spec(self) -> dict[str, Any]:
        """What the lease says."""
        spec: dict[str, Any] = self.lease.now["spec"]
        return spec

    async def join(self, identity: str = "") -> Candidate:
        candidate = Candidate(self.lease, self.time, identity or f"hived-{len(self.candidates)}")
        self.candidates.append(candidate)
        await self.time.run_ready()
        return candidate

    async def advance(self, seconds: float) -> None:
        """In small steps, and no step has two leaders."""
        while seconds > 0:
            await self.time.advance(min(0.5, seconds))
            seconds -= 0.5
            assert sum(candidate.leads for candidate in self.candidates) <= 1

    async def aclose(self) -> None:
        for candidate in self.candidates:
            await candidate.kill()

    async def until(self, condition: Callable[[], bool], seconds: float) -> float:
        """How long it took; checks all the while that there are not two leaders."""
        waited = 0.0
        while not condition():
            assert waited < seconds, f"not within {seconds} s"
            await self.advance(0.5)
            waited += 0.5
        return waited


@pytest.fixture
def held() -> Election:
    return Election()


@played
async def test_first_leads_renews_hands_over(held: Election) -> None:
    first, second = await held.join("a"), await held.join("b")
    assert first.leads
    lease = {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }
    assert held.spec == lease
    await held.advance(120)
    assert (first.events, second.events) == ([True], [])
    assert second.leader.holder == "a"
    assert held.spec == lease | {"renewTime": "2026-01-01T00:02:00.000000Z"}
    await first.stop()
    assert (first.leads, first.events) == (False, [True, False])
    assert held.spec["holderIdentity"] == ""
    assert await held.until(lambda: second.leads, 5) <= 2
    assert held.spec["leaseTransitions"] == 1


@pytest.mark.parametrize("identity", ["b", "a"])
@played
async def test_killed_leader_is_followed(held: Election, identity: str) -> None:
    """When its lease is over; another process of the same name is another."""
    first, second = await held.join("a"), await held.join(identity)
    await held.advance(60)
    assert (first.leads, second.leads) == (True, False)
    await first.kill()
    assert 13 <= await held.until(lambda: second.leads, 20) <= 17


@played
async def test_leader_that_cannot_renew_stops_first(held: Election) -> None:
    """By itself, before the other begins."""
    first, second = await held.join("a"), await held.join("b")
    await held.advance(4)
    first.api.mood = "down"
    lost = await held.until(lambda: not first.leads, 11)
    assert not second.leads
    assert lost + await held.until(lambda: second.leads, 20) >= 14
    first.api.mood = ""
    await held.advance(30)
    assert first.events == [True, False]


@pytest.mark.parametrize("mood", ["down", "hanging", "garbage"])
@played
async def test_server_without_answers(held: Election, mood: str) -> None:
    """The callback is not delayed, and the candidate leads again; the problem is reported meanwhile."""
    candidate = await held.join("a")
    candidate.api.mood = mood
    await held.advance(4)
    assert mood != "down" or str(candidate.leader.problem) == "nobody there"
    await held.advance(8)
    assert candidate.events == [True, False]
    await held.advance(3)  # the next one hangs as well
    candidate.api.mood = ""
    await held.until(lambda: candidate.leads, 15)
    await held.advance(4)
    assert candidate.leader.problem is None


@played
async def test_suspended_leader_leads_no_more(held: Election) -> None:
    """When it resumes."""
    first, second = await held.join("a"), await held.join("b")
    first.api.going.clear()
    await held.until(lambda: second.leads, 20)
    assert first.events == [True]  # it has had no chance to notice
    assert not first.leads  # but it does not lead any more
    first.api.going.set()
    await held.advance(10)
    assert first.events == [True, False]
    assert second.leads


@played
async def test_lease_counts_from_its_request(held: Election) -> None:
    """Of a leader that is suspended during a renewal."""
    first, second = await held.join("a"), await held.join("b")
    first.api.mood = "slow"
    await held.time.advance(4.3)  # renewed; the answer is on its way
    assert held.spec["renewTime"] > held.spec["acquireTime"]
    first.api.going.clear()
    await held.until(lambda: second.leads, 20)
    first.api.going.set()
    await held.advance(0.5)
    assert not first.leads


@played
async def test_lease_written_by_others(held: Election) -> None:
    """With another name it is lost; a form that is none ends the elector as a bug does."""
    first = await held.join("a")
    held.spec["holderIdentity"] = "somebody with kubectl"
    await held.advance(2.5)
    assert first.events == [True, False]
    held.lease.there = {"spec": ["not one"]}
    await held.advance(3)
    assert isinstance(first.task.exception(), AttributeError)


@played
async def test_write_whose_answer_is_lost(held: Election) -> None:
    """It is known as one's own."""
    first, second = await held.join("a"), await held.join("b")
    second.api.mood = "deaf"
    await first.stop()
    await held.until(lambda: held.spec["holderIdentity"] == "b", 5)
    assert not second.leads
    second.api.mood = ""
    await held.advance(2)
    assert second.leads


@played
async def test_deleted_lease_is_made_again(held: Election) -> None:
    """By its holder."""
    first, second = await held.join("a"), await held.join("b")
    held.lease.there = None
    await held.advance(60)
    assert (first.events, second.events) == ([True], [])
    assert held.spec["holderIdentity"] == "a"


@played
async def test_duration_in_the_lease_counts(held: Election) -> None:
    """And not one's own; labels stay."""
    spec = {"holderIdentity": "go", "leaseDurationSeconds": 40}
    held.lease.create({"metadata": {"labels": {"of": "helm"}}, "spec": spec})
    first = await held.join("a")
    assert 38 <= await held.until(lambda: first.leads, 50) <= 42
    assert held.lease.now["metadata"]["labels"] == {"of": "helm"}


MOODS = ["sound", "down", "deaf", "slow", "hanging", "garbage"]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from([*MOODS, "freeze", "thaw", "delete", "restart", "stop"]), st.integers(0, 2), st.integers(1, 24)
    ),
    max_size=20,
)


@played
async def one_leader_at_most(held: Election, actions: list[tuple[str, int, int]]) -> None:
    """Whatever goes wrong; and one afterwards."""
    for _ in range(3):
        await held.join()
    for action, which, wait in actions:
        candidate = held.candidates[which]
        match action:
            case "freeze":
                candidate.api.going.clear()
            case "thaw":
                candidate.api.going.set()
            case "delete":
                held.lease.there = None
            case "restart" | "stop":
                stopping = candidate.kill() if action == "restart" else candidate.stop()
                await asyncio.gather(stopping, held.time.advance(6))
                held.candidates[which] = Candidate(held.lease, held.time, f"hived-{which}")
            case mood:
                candidate.api.mood = mood.replace("sound", "")
        await held.advance(wait / 2)
    for candidate in held.candidates:
        candidate.api.mood = ""
        candidate.api.going.set()
    await held.until(lambda: any(candidate.leads for candidate in held.candidates), 60)
    await held.advance(30)
    assert sum(candidate.leads for candidate in held.candidates) == 1
    assert all((candidate.events[-1:] == [True]) is candidate.leads for candidate in held.candidates)


@given_in_tiers(12, 100, ACTIONS)
def test_never_two_leaders(actions: list[tuple[str, int, int]]) -> None:
    one_leader_at_most(Election(), actions)
