"""What a receiver hears is what there is, whatever happens to the watch on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.engines.kubernetes.client.api import ApiError, GoneError, KubeApi
from hived.engines.kubernetes.client.reflector import FIRST_PAUSE_S, LONGEST_PAUSE_S, Reflector
from hived.engines.kubernetes.pods.objects import Metadata, Pod

from .virtual_time import Time

#: kind, uid, resourceVersion
Event = tuple[str, str, str]
#: of a server that is asked for a list or a watch
Answer = list[Event] | ApiError
Lists = list[Answer]


def pod(uid: str, version: str) -> Pod:
    return Pod(metadata=Metadata(name=f"name-{uid}", namespace="default", uid=uid, resource_version=version))


class Receiver:
    """A receiver that keeps the objects and checks the contract of the callbacks."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}  #: resourceVersion by uid
        self.deleted: set[str] = set()
        self.received: list[Event] = []
        self.lists = 0
        self.restarts: list[str] = []

    def replace(self, items: list[Pod], _version: str) -> None:
        self.lists += 1
        self.pods = {item.metadata.uid: item.metadata.resource_version for item in items}
        self.deleted -= set(self.pods)

    def changed(self, kind: str, item: Pod) -> None:
        uid, version = item.metadata.uid, item.metadata.resource_version
        self.received.append((kind, uid, version))
        if kind == "DELETED":
            del self.pods[uid]  # it was there
            self.deleted.add(uid)
            return
        assert uid not in self.deleted
        assert kind == ("MODIFIED" if uid in self.pods else "ADDED")
        assert uid not in self.pods or int(self.pods[uid]) < int(version)
        self.pods[uid] = version


class Server(KubeApi):
    """An API server with scripted lists and watches; the last watch stays open."""

    def __init__(self, lists: Lists, watches: Lists | None = None) -> None:
        self.lists, self.watches = [*lists], [*(watches or ())]
        self.asked: list[str] = []  #: resourceVersions that were watched from

    async def list(self, path: str, of: Any, params: Any = None) -> Any:
        answer = self.lists.pop(0) if self.lists else []
        if isinstance(answer, ApiError):
            raise answer
        return [pod(uid, version) for _, uid, version in answer], "10"

    async def watch(
        self, path: str, of: Any, resource_version: str, params: Any = None, timeout_s: int = 300
    ) -> AsyncGenerator[tuple[str, Any], None]:
        self.asked.append(resource_version)
        answer = self.watches.pop(0) if self.watches else [("HANG", "", "")]
        if isinstance(answer, ApiError):
            raise answer
        for kind, uid, version in answer:
            if kind == "HANG":
                await asyncio.Event().wait()
            if kind == "BREAK":
                raise ApiError("connection lost", 0, "NoAnswer")
            if kind == "EXPIRE":
                raise GoneError("too old", 410, "Expired")
            yield kind, pod(uid, version)


class Scene:
    """A reflector between a server and a receiver."""

    def __init__(self, server: KubeApi) -> None:
        self.receiver = Receiver()
        self.time = Time()
        self.slept: list[float] = []
        self.reflector = Reflector(
            server,
            "/api/v1/pods",
            Pod,
            replace=self.receiver.replace,
            changed=self.receiver.changed,
            restarted=self.receiver.restarts.append,
            rng=random.Random(1),
            sleep=self._sleep,
            clock=self.time.clock,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.time.sleep(seconds)

    def play(self, seconds: float = 60, then: Callable[[], Coroutine[Any, Any, None]] | None = None) -> Receiver:
        """For so long; what the reflector raises is the test's failure."""

        async def run() -> None:
            task = asyncio.ensure_future(self.reflector.run())
            await self.time.advance(seconds)
            if then is not None:
                await then()
            if task.done():
                task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(run())
        return self.receiver


A, B = ("", "a", "1"), ("", "b", "2")  # listed
BREAK = ("BREAK", "", "")
AWAY, NO = ApiError("away", 0, "NoAnswer"), ApiError("no", 403, "Forbidden")
NEW_A = ("MODIFIED", "a", "12")
CHANGES = [("ADDED", "c", "11"), NEW_A, ("DELETED", "b", "13")]


@pytest.mark.parametrize(
    ("lists", "watches", "asked", "there", "restarts"),
    [
        ([[A, B]], [CHANGES], ["10", "13"], {"a": "12", "c": "11"}, []),
        # resumed where it was
        ([[]], [[("ADDED", "a", "11"), BREAK], [NEW_A]], ["10", "11", "12"], {"a": "12"}, ["disconnected"]),
        ([[]], [[("BOOKMARK", "", "40"), BREAK]], ["10", "40"], {}, ["disconnected"]),
        ([[A], [B]], [GoneError("old", 410, "")], ["10", "10"], {"b": "2"}, ["expired"]),
        # listed again, and a list that fails is tried again
        ([[], NO, [A]], [ApiError("no", 500, "Internal")], ["10", "10"], {"a": "1"}, ["refused", "list"]),
    ],
    ids=["changes", "break", "bookmark", "expired", "refused"],
)
def test_watch(lists: Lists, watches: Lists, asked: list[str], there: dict[str, str], restarts: list[str]) -> None:
    server = Server(lists, watches)
    scene = Scene(server)
    receiver = scene.play()
    assert (server.asked, receiver.pods, receiver.restarts) == (asked, there, restarts)
    told = [event for watch in watches if isinstance(watch, list) for event in watch]
    assert receiver.received == [event for event in told if event[1]]
    assert receiver.lists == sum(isinstance(one, list) for one in lists)
    assert scene.reflector.synced.is_set()
    assert restarts == ["disconnected"] or scene.reflector.problem is None


def test_late_events_are_dropped() -> None:
    """And those that arrive twice."""
    late = [("DELETED", "a", "13"), ("MODIFIED", "a", "12"), ("ADDED", "a", "14")]
    first = [("ADDED", "a", "1"), ("MODIFIED", "a", "12"), ("MODIFIED", "a", "11"), ("DELETED", "a", "13")]
    receiver = Scene(Server([[A]], [[*first, *late]])).play()
    assert receiver.received == [("MODIFIED", "a", "12"), ("DELETED", "a", "13")]


def test_pauses_grow_within_bounds() -> None:
    """And the problem is reported."""
    scene = Scene(Server([AWAY] * 99))
    receiver = scene.play(200)
    assert (scene.reflector.problem, scene.reflector.synced.is_set(), receiver.lists) == (AWAY, False, 0)
    assert all(FIRST_PAUSE_S <= pause <= LONGEST_PAUSE_S for pause in scene.slept)
    assert scene.slept[0] == FIRST_PAUSE_S
    assert min(scene.slept[-5:]) >= LONGEST_PAUSE_S / 2
    assert len(set(scene.slept[-5:])) == 5


def test_pauses_are_short_after_an_event() -> None:
    scene = Scene(Server([[]], [*[AWAY] * 10, [("ADDED", "a", "11"), BREAK]]))
    scene.play(200)
    assert scene.slept[9] > 1
    assert scene.slept[10] == FIRST_PAUSE_S


def test_watches_that_end_at_once() -> None:
    server = Server([[]], [[]] * 1000)
    Scene(server).play(60)
    assert len(server.asked) < 20


def test_versions_that_are_no_numbers() -> None:
    heard: list[str] = []
    scene = Scene(Server([[("", "a", "x9")]], [[("MODIFIED", "a", version) for version in ("x2", "x2", "y")]]))
    # the receiver's own check is about numbers
    scene.reflector.changed = lambda kind, item: heard.append(f"{kind} {item.metadata.resource_version}")
    scene.play()
    assert heard == ["MODIFIED x2", "MODIFIED y"]


KINDS = st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK"])
EVENTS = st.lists(st.tuples(KINDS, st.sampled_from("abcd"), st.integers(1, 40).map(str)), max_size=20)
WATCHES = st.lists(st.one_of(EVENTS, EVENTS.map(lambda events: [*events, ("BREAK", "", "")])), max_size=4)


@given(EVENTS, WATCHES)
def test_any_order_of_events(listed: list[Event], watches: list[list[Event]]) -> None:
    first = {uid: ("", uid, version) for _, uid, version in listed}
    scene = Scene(Server([[*first.values()]], [*watches]))
    scene.play()  # it checks each call
    deleted = {uid for watch in watches for kind, uid, _ in watch if kind == "DELETED"}
    assert not deleted & set(scene.receiver.pods)


class Living(KubeApi):
    """A server with a history, which objects, watches and their accidents are drawn for."""

    def __init__(self, accidents: random.Random) -> None:
        self._accidents = accidents
        self._version = 0
        self.pods: dict[str, str] = {}
        self._history: list[tuple[int, str, str]] = []
        self._forgotten = 0
        self._news = asyncio.Event()
        self.calm = False

    def live(self) -> None:
        """Something happens to some pod."""
        self._version += 1
        kind = self._accidents.choice(["ADDED", "MODIFIED", "MODIFIED", "DELETED"]) if self.pods else "ADDED"
        uid = f"uid-{self._version}" if kind == "ADDED" else self._accidents.choice(sorted(self.pods))
        if kind == "DELETED":
            del self.pods[uid]
        else:
            self.pods[uid] = str(self._version)
        self._history.append((self._version, kind, uid))
        self._news.set()
        self._news = asyncio.Event()

    def forget(self) -> None:
        self._forgotten = self._version

    def _accident(self, chance: float) -> bool:
        return not self.calm and self._accidents.random() < chance

    async def list(self, path: str, of: Any, params: Any = None) -> Any:
        if self._accident(0.3):
            raise ApiError("not now", self._accidents.choice([0, 429, 500]), "")
        return [pod(uid, version) for uid, version in self.pods.items()], str(self._version)

    async def watch(
        self, path: str, of: Any, resource_version: str, params: Any = None, timeout_s: int = 300
    ) -> AsyncGenerator[tuple[str, Any], None]:
        seen = int(resource_version)
        while True:
            if seen < self._forgotten:
                raise GoneError("too old", 410, "Expired")
            if self._accident(0.1):
                raise ApiError("lost", self._accidents.choice([0, 0, 500]), "")
            if self._accident(0.1):
                return
            for version, kind, uid in [each for each in self._history if each[0] > seen]:
                yield kind, pod(uid, str(version))
                if self._accident(0.2):
                    yield kind, pod(uid, str(version))  # twice
                seen = version
            if self._accident(0.2):
                yield "BOOKMARK", pod("", str(self._version))
                seen = self._version
            news = self._news
            await news.wait()


@given(st.integers(0, 2**32), st.lists(st.sampled_from(["live", "forget", "wait"]), max_size=40))
def test_any_accidents(seed: int, story: list[str]) -> None:
    server = Living(random.Random(seed))
    scene = Scene(server)

    async def then() -> None:
        for step in story:
            if step == "wait":
                await scene.time.advance(0.3)
            else:
                getattr(server, step)()
        server.calm = True
        await scene.time.advance(60)
        server.live()
        await scene.time.advance(60)

    assert scene.play(0, then).pods == server.pods
