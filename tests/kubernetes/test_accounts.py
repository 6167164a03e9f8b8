"""Accounts on Kubernetes: equal to an independent sum over what gangs held, through kills and writes that fail."""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from collections import Counter, defaultdict
from typing import Any

import pytest

from hived.engine.holdings import Holding, Use, summed
from hived.engines.kubernetes import stored_accounts as module
from hived.engines.kubernetes.account_pages import packed, page_of, text_of, unpacked
from hived.engines.kubernetes.client.api import ApiError, KubeApi
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.stored_accounts import StoredAccounts, stored_accounts
from hived.errors import UnavailableError

from . import walking
from .fake_kubernetes import World
from .pods import flat_spec, pod
from .stored_object import StoredObject
from .walking import Walk

MAPS = "/api/v1/namespaces/hived/configmaps"
#: GPU seconds by user, VC and use
Sums = dict[tuple[str, str, str], float]


class Maps(KubeApi):
    """ConfigMaps. ``mood``: "", down, refuses, or deaf (writes arrive, and their answers are lost)."""

    def __init__(self) -> None:
        self.objects: defaultdict[str, StoredObject] = defaultdict(StoredObject)
        self.mood = ""
        self.writes = 0

    def _reach(self, writes: bool = False) -> None:
        if self.mood == "down":
            raise ApiError("nobody there", 0, "NoAnswer")
        if self.mood == "refuses" and writes:
            raise ApiError("not permitted", 403)
        self.writes += writes

    def _answered(self, answer: bytes) -> bytes:
        if self.mood == "deaf":
            raise ApiError("no answer in time", 0, "Timeout")
        return answer

    async def get(self, path: str, params: Any = None) -> bytes:
        self._reach()
        return self.objects[path.rpartition("/")[2]].read()

    async def put(self, path: str, body: Any) -> bytes:
        self._reach(writes=True)
        return self._answered(self.objects[path.rpartition("/")[2]].replace(body))

    async def post(self, path: str, body: Any) -> bytes:
        assert path == MAPS
        self._reach(writes=True)
        return self._answered(self.objects[body["metadata"]["name"]].create(body))

    def there(self) -> set[str]:
        return {name for name, one in self.objects.items() if one.there is not None}


class Accounted(World):
    """A cluster whose leaders keep accounts, and what its gangs held, second by second."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.maps = Maps()
        self.held: Counter[tuple[str, str, str]] = Counter()
        self.fresh = True
        super().__init__(*args, **more)

    def new_scheduler(self) -> GangScheduler:
        made = super().new_scheduler()
        self.accounts = stored_accounts(self.maps, "hived", "accounts", lambda: self.now)
        asyncio.run(self.accounts.load())
        if not self.accounts.problem:
            self.accounts.attach(made)
        self.fresh = True
        return made

    def step(self) -> None:
        if self.fresh and not self.accounts.problem:
            self.accounts.begin(self.gang_scheduler)
        self.fresh = False
        super().step()
        open_now = {of.key: of for of in self.gang_scheduler.holdings.open.values()}
        holding = {str(gang.id): gang for gang in self.gang_scheduler.gangs.values() if gang.holds}
        assert {key for key in open_now if not key.startswith("vc ")} == holding.keys()
        for key, gang in holding.items():
            assert gang.placement is not None
            assert open_now[key].gpus == gang.placement.gpus
            assert open_now[key].use is (Use.GUARANTEED if gang.guaranteed else Use.OPPORTUNISTIC)

    def pass_on(self, seconds: float) -> None:
        """Time passes, and nothing else."""
        for gang in self.gang_scheduler.gangs.values():
            if gang.holds and gang.placement is not None:
                use = "guaranteed" if gang.guaranteed else "opportunistic"
                self.held[gang.entry.view.user, gang.vc, use] += gang.placement.gpus * seconds  # type: ignore[assignment]
        for vc in self.gang_scheduler.cluster.spec.virtual_clusters:
            reserved = self.gang_scheduler.cluster.spec.reserved(vc)
            self.held["", vc.name, "reserved"] += reserved * seconds  # type: ignore[assignment]
        self.now += seconds

    def write(self, there: Any = None) -> None:
        """Have the accounts written; or a pod, as any cluster does."""
        if there is not None:
            super().write(there)
        else:
            asyncio.run(self.accounts.write(self.gang_scheduler))

    def kept(self, start: float = 0.0, end: float = 1e12) -> Sums:
        found = asyncio.run(self.accounts.between(start, end))
        return {(of.user, of.vc, of.use.value): of.gpu_s for of in found.of}

    def truth(self) -> Sums:
        return {key: seconds for key, seconds in self.held.items() if seconds}


def same(ours: Sums, theirs: Sums) -> None:
    assert ours.keys() == theirs.keys()
    for key, seconds in ours.items():
        assert seconds == pytest.approx(theirs[key], abs=0.2), key


@pytest.mark.parametrize("seed", range(6))
def test_accounts_are_the_sum_of_what_was_held(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods come, end, are preempted; nodes and specs change, cells are traded, replicas are killed at any moment."""
    monkeypatch.setattr(walking, "World", Accounted)
    monkeypatch.setattr(module, "HEAD_HOLDINGS", 6)
    monkeypatch.setattr(module, "SLOT_BYTES", 110)
    walk = Walk(flat_spec(a=2, b=2), seed, [flat_spec(a=1, b=3), flat_spec(a=3, b=1)])
    world = walk.world
    assert isinstance(world, Accounted)
    for _ in range(400):
        world.pass_on(walk.random.choice([0.1, 0.5, 1.0, 3.0]))
        world.write()
        event = walk.event()
        if event.__name__ != "time_passes":  # time within an event is not seen here
            event()
    same(world.kept(), world.truth())
    middle = (1.0 + world.now) / 2
    halves = Counter(world.kept(0.0, middle))
    halves.update(world.kept(middle, 1e12))
    same(dict(halves), world.truth())
    assert sum(name.startswith("accounts-") for name in world.maps.there()) > 1, "several slots are in use"


def test_what_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill costs at most what has ended since the last write; who runs on has run all the time."""
    world = Accounted(a=2, b=2)
    first, second = pod("first", 4, "a"), pod("second", 4, "b")
    for one in (first, second):
        world.create(one)
        world.ask(one)
    user = first.user
    world.pass_on(10)
    world.write()
    world.pass_on(30)
    world.remove(second)
    world.deliver_all()
    world.pass_on(5)
    world.restart(compare=False)
    world.pass_on(5)
    assert world.kept()[user, "a", "guaranteed"] == 4 * 50
    assert world.kept()[user, "b", "guaranteed"] == 4 * 10, "until the last write"
    assert world.kept()["", "b", "reserved"] == 8 * 50
    counted = world.gang_scheduler.holdings.gpu_seconds(world.now)
    assert counted["a", Use.GUARANTEED] == 4 * 5, "a counter begins anew with its process"


def test_jobs_are_counted_once_over_replicas() -> None:
    world = Accounted(a=2, b=2)
    for number in range(2):
        one = pod(f"p{number}", 4)
        world.create(one)
        world.ask(one)
        world.pass_on(10)
        world.write()
        world.restart()
        world.write()
    world.pass_on(10)
    (of,) = [of for of in asyncio.run(world.accounts.between(0, 1e9)).of if of.use is Use.GUARANTEED]
    assert (of.jobs, of.gpu_s) == (2, 4 * 30 + 4 * 20)


@pytest.mark.parametrize("mood", ["down", "refuses", "deaf"])
def test_writes_that_fail(mood: str) -> None:
    """They cost nothing: what they were about is written with the next one."""
    world = Accounted(a=2, b=2)
    world.write()
    for number in range(6):
        one = pod(f"p{number}", 4)
        world.create(one)
        world.ask(one)
        world.pass_on(10)
        world.maps.mood = mood if number % 2 else ""
        world.remove(one)
        world.deliver_all()
        world.write()
        world.maps.mood = ""
    world.write()
    world.restart()
    same(world.kept(), world.truth())


def one_after_another(world: Accounted, number: int, first: int = 0) -> None:
    """So many pods that run and end, each of them written."""
    for n in range(first, first + number):
        one = pod(f"p{n}", 4)
        world.create(one)
        world.ask(one)
        world.pass_on(7)
        world.remove(one)
        world.deliver_all()
        world.write()


def label(world: Accounted) -> None:
    """Somebody changes a label of the head."""
    head = world.maps.objects["accounts"]
    head.replace({**head.now, "metadata": {**head.now["metadata"], "labels": {"a": "b"}}})


def test_what_ends_while_it_is_written() -> None:
    """It was neither among what had ended nor among what was held, and is lost with its leader."""
    world = Accounted(a=2, b=2)
    one = pod("one", 4)
    world.create(one)
    world.ask(one)
    world.pass_on(100)
    world.write()
    label(world)
    plain = world.maps.get

    async def ends_meanwhile(path: str, params: Any = None) -> bytes:
        world.maps.get = plain  # type: ignore[method-assign]
        world.remove(one)
        world.deliver_all()
        return await plain(path, params)

    world.maps.get = ends_meanwhile  # type: ignore[method-assign]
    world.write()
    world.restart()
    same(world.kept(), world.truth())


@pytest.mark.parametrize("what", ["labelled", "removed"])
def test_a_head_that_somebody_has_touched(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, also where something has just gone to a slot; a head that was removed is made again."""
    monkeypatch.setattr(module, "HEAD_HOLDINGS", 4)
    monkeypatch.setattr(module, "SLOT_BYTES", 90)
    world = Accounted(a=2, b=2)
    for number in range(20):
        one_after_another(world, 1, number)
        if what == "labelled":
            label(world)
        elif number == 18:
            world.maps.objects["accounts"].there = None
    world.write()
    same(world.kept(), world.truth())
    world.restart()
    same(world.kept(), world.truth())
    assert len(world.maps.there()) >= 2


def test_a_slot_that_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left as it is, and nobody is told sums without it; one that may not be written costs nothing."""
    monkeypatch.setattr(module, "HEAD_HOLDINGS", 4)
    world = Accounted(a=2, b=2)
    one_after_another(world, 5)
    slot = world.maps.objects["accounts-0"]
    slot.now["binaryData"] = {"accounts": "AAAA"}
    one_after_another(world, 5, 5)
    assert slot.now["binaryData"] == {"accounts": "AAAA"}
    assert "accounts-1" in world.maps.there()
    with pytest.raises(UnavailableError, match="accounts-0 is not what HiveD has written"):
        world.kept()

    world = Accounted(a=2, b=2)
    plain = world.maps.post

    async def refuses(path: str, body: Any) -> bytes:
        if body["metadata"]["name"] != "accounts":
            raise ApiError("no such right", 403)
        return await plain(path, body)

    world.maps.post = refuses  # type: ignore[method-assign]
    one_after_another(world, 10)
    world.restart()
    same(world.kept(), world.truth())


def test_a_bug_of_accounts_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Accounted(a=2, b=2)
    monkeypatch.setattr(module, "packed", lambda _: 1 / 0)
    world.write()
    assert "ZeroDivisionError" in world.accounts.problem
    assert not world.accounts.due


def test_a_counter_begins_with_its_process() -> None:
    """Also where no accounts are kept: pods may have been bound long before."""
    world = World(a=2, b=2)
    one = pod("one", 4)
    world.create(one)
    world.ask(one)
    world.now += 1000
    world.restart()
    world.gang_scheduler.holdings.count_from(world.now)  # as the engine does
    world.now += 5
    assert world.gang_scheduler.holdings.gpu_seconds(world.now)["a", Use.GUARANTEED] == 20


def test_a_leader_before_writes_late() -> None:
    """Nothing of either is lost, and nothing counted twice."""
    world = Accounted(a=2, b=2)
    one = pod("one", 4)
    world.create(one)
    world.ask(one)
    world.pass_on(10)
    world.write()
    before, known = world.accounts, world.gang_scheduler
    world.restart()
    world.pass_on(10)
    known.pod_removed(one.metadata.uid, world.now)  # it has seen an end that was none
    asyncio.run(before.write(known))
    world.pass_on(10)
    world.write()
    same(world.kept(), world.truth())
    world.restart()
    same(world.kept(), world.truth())


def test_the_oldest_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_HOLDINGS", 4)
    monkeypatch.setattr(module, "SLOT_BYTES", 110)
    monkeypatch.setattr(module, "SLOTS", 3)
    world = Accounted(a=2, b=2)
    began = world.accounts.begins
    for number in range(100):
        one = pod(f"p{number}", 4)
        world.create(one)
        world.ask(one)
        world.pass_on(round(world.random.uniform(1, 9), 3))
        world.remove(one)
        world.deliver_all()
        world.write()
    assert world.maps.there() == {"accounts", "accounts-0", "accounts-1", "accounts-2"}
    begins = world.accounts.begins
    assert began < begins < world.now
    whole = {key: seconds for key, seconds in world.kept(begins).items() if key[2] == "guaranteed"}
    assert list(whole.values()) == [pytest.approx(4 * (world.now - begins), abs=0.1)], "from then on all of it is there"
    world.restart()
    assert world.accounts.begins == begins
    same({key: value for key, value in world.kept(begins).items() if key[2] == "guaranteed"}, whole)


@pytest.mark.parametrize("text", ["", "no base64 \xff", b64encode(b"not zlib").decode(), text_of(packed([]))])
def test_a_head_that_is_not_ours(text: str) -> None:
    """It stays as it is, it is said, and pods are decided about."""
    world = Accounted(a=2, b=2)
    asyncio.run(world.maps.post(MAPS, {"metadata": {"name": "accounts"}, "binaryData": {"accounts": text}}))
    world.restart()
    assert "is not what HiveD has written" in world.accounts.problem
    assert not world.accounts.due
    one = pod("one", 4)
    world.create(one)
    world.ask(one)
    assert world.pods[one.metadata.uid].spec.node_name
    with pytest.raises(UnavailableError, match="delete it, and accounts begin anew"):
        world.kept()
    assert world.maps.objects["accounts"].now["binaryData"] == {"accounts": text}


def test_no_right_to_read_is_no_reason_to_wait() -> None:
    maps = Maps()

    async def refuse(path: str, params: Any = None) -> bytes:
        raise ApiError("configmaps is forbidden", 403)

    maps.get = refuse  # type: ignore[method-assign]
    accounts = stored_accounts(maps, "hived", "accounts", lambda: 0.0)
    asyncio.run(accounts.load())
    assert "configmaps is forbidden" in accounts.problem


def test_when_it_is_written() -> None:
    """Some seconds after a change, every minute, and less often where that is much."""
    world = Accounted(a=2, b=2)
    world.write()
    one = pod("one", 4)
    world.create(one)
    world.ask(one)
    assert not world.accounts.due
    world.now += 15
    assert world.accounts.due
    world.write()
    world.now += 59
    assert not world.accounts.due
    world.now += 1
    assert world.accounts.due
    large: StoredAccounts = world.accounts
    large._size = 200_000
    assert not large.due
    world.now += 40
    assert large.due


def test_pages() -> None:
    """What is packed is the same unpacked, to the millisecond, in some ten bytes a holding."""
    draw = random.Random(5)
    at, found = 1.7e9, []
    for number in range(5_000):
        at += draw.expovariate(1 / 30)
        user, start = f"team-{draw.randrange(12)}/default", round(at, 3)
        use = draw.choice([Use.GUARANTEED, Use.OPPORTUNISTIC])
        found.append(
            Holding(number, user, "vc", use, draw.choice([1, 2, 4, 8]), start, round(start + draw.random() * 9e4, 3))
        )
    found.append(Holding(None, "", "vc", Use.RESERVED, 64, 1.7e9, round(at, 3)))
    data = packed(found)
    again = unpacked(data)
    assert sorted(again, key=str) == sorted(found, key=str)
    assert len(data) / len(found) < 16
    assert page_of(text_of(data)) == again
    assert summed(again, 0.0, 2e9) == summed(found, 0.0, 2e9)
    assert unpacked(packed([])) == []
    with pytest.raises(ValueError, match="not whole"):
        unpacked(data[:-20])
