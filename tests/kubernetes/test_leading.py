"""Leader election: never two leaders, and one before long; on a lease as client-go has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hived.engines.kubernetes.client.api import ApiError, KubeApi
from hived.engines.kubernetes.client.leader_election import LeaderElector

from .virtual_time import Time

Story = Callable[["Election"], Coroutine[Any, Any, None]]


class Store:
    """The lease, as the API server keeps it."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec

    def read(self) -> bytes:
        if self.lease is None:
            raise ApiError("no lease", 404, "NotFound")
        return json.dumps(self.lease).encode()

    def create(self, body: Any) -> bytes:
        if self.lease is not None:
            raise ApiError("there is one", 409, "AlreadyExists")
        return self._keep(body)

    def replace(self, body: Any) -> bytes:
        if self.lease is None:
            raise ApiError("no lease", 404, "NotFound")
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError("it has changed", 409, "Conflict")
        return self._keep(body)

    def _keep(self, body: Any) -> bytes:
        self.version += 1
        kept: dict[str, Any] = json.loads(json.dumps(body))
        kept["metadata"]["resourceVersion"] = str(self.version)
        self.lease = kept
        return self.read()


class Reaching(KubeApi):
    """One candidate's way to the store."""

    def __init__(self, store: Store, time: Time) -> None:
        self._store = store
        self._time = time
        self.mood = ""  #: down, deaf (its writes arrive, their answers are lost), slow, hanging, garbage
        self.going = asyncio.Event()  #: not set: the process is suspended
        self.going.set()

    async def _carry(self, act: Callable[[], bytes]) -> bytes:
        await self.going.wait()
        if self.mood == "down":
            raise ApiError("nobody there", 0, "NoAnswer")
        if self.mood == "hanging":
            await asyncio.Event().wait()
        if self.mood == "garbage":
            return b"<html>"
        if self.mood == "slow":
            await self._time.sleep(0.7)
        answer = act()
        if self.mood == "slow":
            await self._time.sleep(0.7)
        await self.going.wait()
        return answer

    async def _change(self, act: Callable[[], bytes]) -> bytes:
        answer = await self._carry(act)
        if self.mood == "deaf":
            raise ApiError("no answer in time", 0, "Timeout")
        return answer

    async def get(self, path: str, params: Any = None) -> bytes:
        assert path == "/apis/coordination.k8s.io/v1/namespaces/hived/leases/hived"
        return await self._carry(self._store.read)

    async def put(self, path: str, body: Any) -> bytes:
        return await self._change(lambda: self._store.replace(body))

    async def post(self, path: str, body: Any) -> bytes:
        assert path == "/apis/coordination.k8s.io/v1/namespaces/hived/leases"
        return await self._change(lambda: self._store.create(body))


class Candidate:
    """A process that wants to lead."""

    def __init__(self, store: Store, time: Time, identity: str) -> None:
        self.api = Reaching(store, time)
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
        self.store = Store()
        self.candidates: list[Candidate] = []

    async def join(self, identity: str = "") -> Candidate:
        candidate = Candidate(self.store, self.time, identity or f"hived-{len(self.candidates)}")
        self.candidates.append(candidate)
        await self.time.run_ready()
        return candidate

    async def until(self, condition: Callable[[], bool], seconds: float) -> float:
        """How long it took; checks all the while that there are not two leaders."""
        waited = 0.0
        while not condition():
            assert waited < seconds, f"not within {seconds} s"
            await self.advance(0.5)
            waited += 0.5
        return waited

    async def advance(self, seconds: float) -> None:
        """In small steps, and no step has two leaders."""
        while seconds > 0:
            await self.time.advance(min(0.5, seconds))
            seconds -= 0.5
            assert sum(candidate.leads for candidate in self.candidates) <= 1


@asynccontextmanager
async def election() -> AsyncIterator[Election]:
    held = Election()
    try:
        yield held
    finally:
        for candidate in held.candidates:
            await candidate.kill()


def as_test(story: Story) -> Callable[[], None]:
    """A scenario as a test."""

    def test() -> None:
        async def run() -> None:
            async with election() as held:
                await story(held)

        asyncio.run(run())

    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    return test


def both(*awaitables: Awaitable[Any]) -> Awaitable[list[Any]]:
    return asyncio.gather(*awaitables)


@as_test
async def test_the_first_creates_the_lease_and_leads(held: Election) -> None:
    first = await held.join("a")
    assert first.leads
    assert first.events == [True]
    assert held.store.spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }


@as_test
async def test_it_renews_and_stays_the_only_one(held: Election) -> None:
    first, second = await held.join("a"), await held.join("b")
    await held.advance(120)
    assert first.leads
    assert second.events == []
    assert second.leader.holder == "a"
    assert held.store.spec["renewTime"] == "2026-01-01T00:02:00.000000Z"
    assert held.store.spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"


@as_test
async def test_one_that_stops_hands_over_at_once(held: Election) -> None:
    first, second = await held.join("a"), await held.join("b")
    await first.stop()
    assert not first.leads
    assert first.events == [True, False]
    assert held.store.spec["holderIdentity"] == ""
    assert await held.until(lambda: second.leads, 5) <= 2
    assert held.store.spec["leaseTransitions"] == 1


@as_test
async def test_one_that_is_killed_is_followed_when_its_lease_is_over(held: Election) -> None:
    first, second = await held.join("a"), await held.join("b")
    await first.kill()
    assert 13 <= await held.until(lambda: second.leads, 20) <= 17


@as_test
async def test_one_that_cannot_renew_stops_by_itself_before_the_other_begins(held: Election) -> None:
    first, second = await held.join("a"), await held.join("b")
    await held.advance(4)
    first.api.mood = "down"
    lost = await held.until(lambda: not first.leads, 11)
    assert first.events == [True, False]
    assert not second.leads
    assert lost + await held.until(lambda: second.leads, 20) >= 14
    first.api.mood = ""
    await held.advance(30)
    assert first.events == [True, False]


@as_test
async def test_a_suspended_leader_does_not_lead_when_it_resumes(held: Election) -> None:
    first, second = await held.join("a"), await held.join("b")
    first.api.going.clear()
    await held.until(lambda: second.leads, 20)
    assert first.events == [True]  # it has had no chance to notice
    assert not first.leads  # but it does not lead any more
    first.api.going.set()
    await held.advance(10)
    assert first.events == [True, False]
    assert second.leads


@as_test
async def test_a_leader_suspended_during_a_renewal_counts_from_its_request(held: Election) -> None:
    first, second = await held.join("a"), await held.join("b")
    first.api.mood = "slow"
    await held.time.advance(4.3)  # renewed; the answer is on its way
    assert held.store.spec["renewTime"] > held.store.spec["acquireTime"]
    first.api.going.clear()
    await held.until(lambda: second.leads, 20)
    first.api.going.set()
    await held.advance(0.5)
    assert not first.leads


@as_test
async def test_one_that_finds_another_name_in_its_lease_stops_at_once(held: Election) -> None:
    first = await held.join("a")
    held.store.spec["holderIdentity"] = "somebody with kubectl"
    await held.advance(2.5)
    assert first.events == [True, False]


@as_test
async def test_a_bug_ends_the_elector(held: Election) -> None:
    candidate = await held.join("a")
    held.store.lease = {"spec": ["not one"]}
    await held.advance(3)
    assert isinstance(candidate.task.exception(), AttributeError)


@as_test
async def test_an_answer_that_hangs_does_not_delay_the_callback(held: Election) -> None:
    first = await held.join("a")
    first.api.mood = "hanging"
    await held.advance(12)
    assert first.events == [True, False]
    await held.advance(3)  # the next one hangs as well
    first.api.mood = ""
    await held.until(lambda: first.leads, 15)


@as_test
async def test_a_write_whose_answer_was_lost_is_known_as_ones_own(held: Election) -> None:
    first = await held.join("a")
    await first.stop()
    second = Candidate(held.store, held.time, "b")
    held.candidates.append(second)
    second.api.mood = "deaf"
    await held.advance(1)
    assert held.store.spec["holderIdentity"] == "b"
    assert not second.leads
    second.api.mood = ""
    await held.advance(2)
    assert second.leads


@as_test
async def test_another_process_of_the_same_name_is_another(held: Election) -> None:
    first, twin = await held.join("a"), await held.join("a")
    await held.advance(60)
    assert first.leads
    assert not twin.leads
    await first.kill()
    assert 13 <= await held.until(lambda: twin.leads, 20) <= 17


@as_test
async def test_a_deleted_lease_is_made_again_by_its_holder(held: Election) -> None:
    first, second = await held.join("a"), await held.join("b")
    held.store.lease = None
    await held.advance(60)
    assert first.events == [True]
    assert second.events == []
    assert held.store.spec["holderIdentity"] == "a"


@as_test
async def test_the_duration_in_the_lease_counts_and_not_the_own_one(held: Election) -> None:
    held.store.create(
        {"metadata": {"labels": {"of": "helm"}}, "spec": {"holderIdentity": "go", "leaseDurationSeconds": 40}}
    )
    first = await held.join("a")
    assert 38 <= await held.until(lambda: first.leads, 50) <= 42
    assert held.store.lease is not None
    assert held.store.lease["metadata"]["labels"] == {"of": "helm"}


@as_test
async def test_the_problem_with_the_lease_is_reported(held: Election) -> None:
    candidate = await held.join("a")
    candidate.api.mood = "down"
    await held.advance(4)
    assert str(candidate.leader.problem) == "nobody there"
    candidate.api.mood = ""
    await held.advance(4)
    assert candidate.leader.problem is None


@as_test
async def test_an_invalid_answer_is_survived(held: Election) -> None:
    candidate = await held.join("a")
    candidate.api.mood = "garbage"
    await held.advance(12)
    assert candidate.events == [True, False]
    candidate.api.mood = ""
    await held.advance(4)
    assert candidate.leads


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["sound", "down", "deaf", "slow", "hanging", "garbage", "freeze", "thaw", "delete", "restart", "stop"]
        ),
        st.integers(0, 2),
        st.integers(1, 24),
    ),
    max_size=20,
)


@given(ACTIONS)
def test_whatever_goes_wrong_there_are_never_two_and_afterwards_there_is_one(
    actions: list[tuple[str, int, int]],
) -> None:
    async def run() -> None:
        async with election() as held:
            for _ in range(3):
                await held.join()
            for action, which, wait in actions:
                candidate = held.candidates[which]
                match action:
                    case "sound" | "down" | "deaf" | "slow" | "hanging" | "garbage":
                        candidate.api.mood = action.replace("sound", "")
                    case "freeze":
                        candidate.api.going.clear()
                    case "thaw":
                        candidate.api.going.set()
                    case "delete":
                        held.store.lease = None
                    case "restart" | "stop":
                        stopping = candidate.kill() if action == "restart" else candidate.stop()
                        await both(stopping, held.time.advance(6))
                        held.candidates[which] = Candidate(held.store, held.time, f"hived-{which}")
                await held.advance(wait / 2)
            for candidate in held.candidates:
                candidate.api.mood = ""
                candidate.api.going.set()
            await held.until(lambda: any(candidate.leads for candidate in held.candidates), 60)
            await held.advance(30)
            leaders = [candidate for candidate in held.candidates if candidate.leads]
            assert len(leaders) == 1
            assert [candidate.events[-1:] == [True] for candidate in held.candidates] == [
                candidate.leads for candidate in held.candidates
            ]

    asyncio.run(run())
