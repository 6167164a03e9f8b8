"""What the engine finds of GPUs through NVML, and the spec that it makes of them."""

from __future__ import annotations

import asyncio
import os
import platform
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hived import Cluster
from hived.engines.local import devices
from hived.engines.local.devices import Nvml, Simulated, find_gpus, spec_for
from hived.engines.local.engine import Engine
from hived.engines.local.environment import MARK
from hived.engines.local.strangers import is_of_a_job
from hived.errors import InputError
from hived.server.local_service import LocalService
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from ..contract.specs import cell_types, cluster_spec
from .living import Lives, ended, printed, shell

NODE = spec_for("node", 4, "GPU", [])
FATAL = 79  # "GPU has fallen off the bus"
LOST = "NVML: GPU is lost"


class NVMLError(Exception):  # as the library calls it
    """What the library raises."""


class FakeNvml:
    """The module ``pynvml`` of a machine whose GPUs break as a test wants."""

    NVMLError = NVMLError
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, names: tuple[str | bytes, ...] = ("NVIDIA H200",) * 4) -> None:
        self.names = names
        self.driver = True
        self.lost: set[int] = set()
        self.unmapped: set[int] = set()
        self.without_rows: set[int] = set()
        self.without_events: set[int] = set()
        self.hidden: set[int] = set()  #: of which not even a handle can be had
        self.there: list[int] | None = None  #: the boards that NVML counts, in its order; None: all
        self.xids: list[tuple[int, int]] = []
        self.watched: set[int] = set()
        self.open = 0
        self.divided: set[int] = set()  #: by MIG
        self.minors = [0, 1, 2, 3]
        self.running: dict[int, list[int]] = {}  #: pids of processes that compute, by number

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:  # noqa: N802
        return int(self.number(handle) in self.divided), 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in self.running.get(self.number(handle), ())]

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.names if self.there is None else self.there)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:  # noqa: N802
        if number in self.hidden:
            raise NVMLError("GPU is lost")
        return f"handle {number}"

    def number(self, handle: str) -> int:
        found = int(handle.removeprefix("handle "))
        if found in self.lost:
            raise NVMLError("GPU is lost")
        return found

    def nvmlDeviceGetMinorNumber(self, handle: str) -> int:  # noqa: N802
        return self.minors[self.number(handle)]

    nvmlDeviceGetIndex = nvmlDeviceGetMemoryInfo = number  # noqa: N815

    def nvmlDeviceGetName(self, handle: str) -> str | bytes:  # noqa: N802
        return self.names[self.number(handle)]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        board = int(handle[7:]) if self.there is None else self.there[int(handle[7:])]
        return f"GPU-{board}"  # the library remembers it, even of one that is lost

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, int, int, int]:  # noqa: N802
        if self.number(handle) in self.without_rows:
            raise NVMLError("Not Supported")
        return 3, 0, 1, int(self.number(handle) in self.unmapped)

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "events"

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: str) -> None:  # noqa: N802
        if self.number(handle) in self.without_events:
            raise NVMLError("Not Supported")
        self.watched.add(self.number(handle))

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:  # noqa: N802
        assert milliseconds == 0, "nobody else has a turn while this waits"
        if not self.xids:
            raise NVMLError("Timeout")
        number, xid = self.xids.pop(0)
        return SimpleNamespace(device=f"handle {number}", eventData=xid)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    made = FakeNvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", made)
    yield made
    assert made.open == 0, "it was not let go"


@pytest.fixture
def gpus(nvml: FakeNvml) -> Nvml:
    return start(nvml)


def start(nvml: FakeNvml, known: tuple[str, ...] = (), there: list[int] | None = None, same_boot: bool = True) -> Nvml:
    """What a start finds while NVML counts the boards ``there``."""
    nvml.there = there
    found = find_gpus("node", known, same_boot)
    assert found is not None
    found.close()
    return found


# -- finding ------------------------------------------------------------------------------------------------------


def test_machine_without_driver_or_gpus(nvml: FakeNvml) -> None:
    nvml.names = ()
    assert find_gpus() is None
    nvml.driver = False
    assert find_gpus() is None


def test_gpus_have_a_short_description(nvml: FakeNvml) -> None:
    nvml.names = ("NVIDIA H200", b"NVIDIA H200", "Tesla \xff")
    found = start(nvml)
    assert found.what == "2 x NVIDIA H200 and 1 x Tesla \xff on node"
    assert not found.simulated
    assert found.health(NODE) == {}


def test_gpu_broken_at_the_start_is_bad(nvml: FakeNvml) -> None:
    # one GPU of which no handle could be had, and the engine did not start at all
    nvml.hidden = {0}
    nvml.lost = {2}
    found = start(nvml)
    assert len(found.names) == 4
    assert found.names[0] == "NVIDIA H200", "of its neighbours: a spec can be made of it"
    assert dict(found.health(NODE)) == {("node", 0): LOST, ("node", 2): LOST}
    nvml.hidden.clear()
    assert dict(found.health(NODE)) == {("node", 0): None}


# -- health -------------------------------------------------------------------------------------------------------


def test_lost_gpu_is_bad_until_it_is_back(nvml: FakeNvml, gpus: Nvml) -> None:
    assert gpus.health(NODE) == {}
    nvml.lost = {1, 3}
    assert dict(gpus.health(NODE)) == {("node", 1): LOST, ("node", 3): LOST}
    nvml.lost = {3}
    assert dict(gpus.health(NODE)) == {("node", 1): None}


@pytest.mark.parametrize(
    ("faults", "bad"),
    [
        # of two it cannot be asked, and they are healthy
        ({"without_rows": {0, 1}, "unmapped": {2}}, {2: "NVML: a memory row could not be remapped"}),
        ({"xids": [(2, FATAL), (0, 48)]}, {0: "NVML: XID 48", 2: f"NVML: XID {FATAL}"}),
        # those that a program causes say nothing of the GPU
        ({"xids": [(2, 13), (2, 31), (2, 43), (1, FATAL), (2, 45), (2, 68)]}, {1: f"NVML: XID {FATAL}"}),
        ({"xids": [(2, FATAL), (1, FATAL)], "lost": {2}}, {1: f"NVML: XID {FATAL}", 2: LOST}),
    ],
    ids=["memory beyond repair", "fatal XIDs", "XIDs of a program", "an XID of a lost GPU"],
)
def test_bad_gpu_is_reported_once(nvml: FakeNvml, gpus: Nvml, faults: dict[str, Any], bad: dict[int, str]) -> None:
    for name, value in faults.items():
        setattr(nvml, name, value)
    assert dict(gpus.health(NODE)) == {("node", device): why for device, why in bad.items()}
    assert gpus.health(NODE) == {}, "that is no news"


def test_gpu_without_events_hides_no_other(nvml: FakeNvml) -> None:
    # the first that could not be watched, and none was
    nvml.without_events = {0}
    found = start(nvml)
    assert nvml.watched == {1, 2, 3}
    nvml.xids = [(3, FATAL)]
    assert dict(found.health(NODE)) == {("node", 3): f"NVML: XID {FATAL}"}


def test_platform_without_events_is_asked(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported() -> None:
        raise NVMLError("Not Supported")

    monkeypatch.setattr(nvml, "nvmlEventSetCreate", unsupported)
    found = start(nvml)
    nvml.lost = {0}
    assert list(found.health(NODE)) == [("node", 0)]


# -- numbers that stay --------------------------------------------------------------------------------------------


FOUR = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")


def test_gpu_missed_for_one_start_keeps_its_number(nvml: FakeNvml) -> None:
    # NVML counts those behind it anew: number 2 was another board then, and had a job already
    missed = start(nvml, FOUR, [0, 2, 3])
    assert missed.uuids == FOUR
    assert dict(missed.health(NODE)) == {("node", 1): "NVML does not find it since the engine was started"}
    missed.check(spec_for("node", 4, "GPU", []))
    assert "1 not found" in missed.what
    assert missed.visible([0, 2]) == "GPU-0,GPU-2"
    assert missed.visible([1, 3]) == "GPU-1,GPU-3"
    nvml.xids = [(1, FATAL)]  # by the number that NVML gives it now
    nvml.lost = {2}
    assert dict(missed.health(NODE)) == {("node", 2): "NVML: XID 79", ("node", 3): LOST}
    back = start(nvml, missed.uuids)
    nvml.lost = set()
    assert back.uuids == FOUR
    assert back.health(NODE) == {}
    assert back.visible([0, 2]) == "0,2"


def test_gpus_are_named_by_uuid_once_one_is_lost(nvml: FakeNvml, gpus: Nvml) -> None:
    # CUDA leaves out the lost one and counts the others anew: number 2 was 3
    gpus.health(NODE)
    assert gpus.visible([2, 3]) == "2,3"
    nvml.lost = {1}
    gpus.health(NODE)
    assert gpus.visible([2, 3]) == "GPU-2,GPU-3"


@pytest.mark.parametrize(
    ("known", "there", "same_boot", "numbers"),
    [
        ((), [0, 1], True, ("GPU-0", "GPU-1")),
        (FOUR[:2], [3, 0, 1], True, ("GPU-0", "GPU-1", "GPU-3")),
        (FOUR[:2], [3, 0], True, ("GPU-0", "GPU-1", "GPU-3")),
        (FOUR[:2], [3, 0], False, ("GPU-0", "GPU-3")),
        (("GPU-0", ""), [0, 1], True, ("GPU-0", "GPU-1")),
        (FOUR, [3, 2, 1, 0], False, FOUR),
        (FOUR, [1], False, FOUR),
    ],
    ids=["first start", "one more", "one missed", "exchanged", "silent before", "re-ordered", "one left"],
)
def test_gpu_keeps_its_number(
    nvml: FakeNvml, known: tuple[str, ...], there: list[int], same_boot: bool, numbers: tuple[str, ...]
) -> None:
    assert start(nvml, known, there, same_boot).uuids == numbers


def test_two_gpus_without_a_uuid(nvml: FakeNvml) -> None:
    nvml.hidden = {1, 2}
    found = start(nvml)
    assert sorted(found.health(NODE)) == [("node", 1), ("node", 2)]
    nvml.hidden = set()
    assert dict(found.health(NODE)) == {("node", 1): None, ("node", 2): None}


# -- a spec for them ----------------------------------------------------------------------------------------------


def test_spec_of_other_devices_is_refused(gpus: Nvml) -> None:
    gpus.check(spec_for("node", 4, "GPU", [("a", 4)]))
    gpus.check(spec_for("node", 2, "GPU", [("a", 2)]))
    with pytest.raises(InputError, match="names device 4, and this machine has 4, numbered from 0"):
        gpus.check(spec_for("node", 8, "GPU", [("a", 4)]))
    two = spec_from(nodes=["one", "two"])
    with pytest.raises(InputError, match="has 2 nodes, and this is one machine"):
        gpus.check(two)
    Simulated().check(two)


def spec_from(nodes: list[str]) -> ClusterSpec:
    cells = [{"cellType": "NODE", "cellAddress": node} for node in nodes]
    return spec_from_dict(cluster_spec(cell_types(), cells, {}))


def test_bad_gpu_is_reported_under_a_new_name(nvml: FakeNvml, gpus: Nvml) -> None:
    # the node had a new name in a new spec, and the broken GPU had jobs put on it
    nvml.lost = {1}
    assert list(gpus.health(NODE)) == [("node", 1)]
    gpus.check(spec_from(["another"]))  # which may still be refused
    assert gpus.health(NODE) == {}
    assert dict(gpus.health(spec_from(["another"]))) == {("another", 1): LOST}


@pytest.mark.parametrize("count", [*range(1, 10), 12, 15, 16, 1024])
def test_any_number_of_devices_can_be_shared(count: int) -> None:
    whole = spec_for("node", count, "GPU", [("all", count)])
    assert [chain.gpus for chain in whole.chains] == [count]
    assert Cluster(whole).check_safety()
    levels = [level.gpus for level in whole.chains[0].levels]
    powers = {2: [1, 2], 4: [1, 2, 4], 8: [1, 2, 4, 8], 16: [1, 2, 4, 8, 16]}
    if count <= 16:
        assert levels == powers.get(count, [1, count])
    for share in range(1, min(count, 16)):
        shared = spec_for("node", count, "GPU", [("a", share), ("b", count - share)])
        reserved = {
            vc.name: sum(c.number * shared.chain(c.chain).levels[c.level - 1].gpus for c in vc.cells)
            for vc in shared.virtual_clusters
        }
        assert reserved == {"a": share, "b": count - share}
        assert Cluster(shared).check_safety()


@pytest.mark.parametrize(
    ("count", "shares", "why"),
    [
        (0, [], "--devices 0"),
        (1025, [], "--devices 1025"),
        (-1, [], "--devices -1"),
        (8, [("a", 0)], "--vc a=0: must be at least 1 GPU"),
        (8, [("a", -4)], "--vc a=-4"),
        (8, [("a", 1), ("a", 2)], "--vc a: is given twice"),
        (8, [("a", 8), ("b", 1)], "9 GPUs are shared out .*, and there are 8"),
    ],
)
def test_nonsense_is_refused_by_its_option(count: int, shares: list[tuple[str, int]], why: str) -> None:
    with pytest.raises(InputError, match=why):
        spec_for("node", count, "GPU", shares)


def test_this_node_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "gpu7.cluster.example")
    assert devices.this_node() == "gpu7"
    monkeypatch.setattr(platform, "node", lambda: "")
    assert devices.this_node() == "this-machine"


def test_simulated_devices_are_never_bad() -> None:
    simulated = Simulated("eight")
    assert (simulated.health(NODE), simulated.simulated, simulated.what) == ({}, True, "eight")
    simulated.close()


# -- GPUs that others use -----------------------------------------------------------------------------------------


def test_mig_is_refused_with_the_way_out(nvml: FakeNvml, gpus: Nvml) -> None:
    """A job was started on the parent of its instances, and had nothing to compute on."""
    nvml.divided = {2}
    ((place, why),) = gpus.health(NODE).items()
    assert place == ("node", 2)
    assert why is not None
    assert "MIG is on" in why
    assert "nvidia-smi -i 2 -mig 0" in why
    nvml.divided.clear()
    assert dict(gpus.health(NODE)) == {("node", 2): None}


def test_a_gpu_is_nobodys_while_strangers_use_it(nvml: FakeNvml, gpus: Nvml) -> None:
    """A job was started where a process of another user had 79 of 80 GiB."""
    own = os.getpid()
    nvml.running = {1: [own], 3: [own, 2**22 + 1]}
    assert gpus.health(NODE) == {}, "nobody has said whose processes are ours"
    gpus.tell_strangers(lambda pid: pid == own)
    assert gpus.health(NODE) == {}, "and one that has ended is nobody's"
    gpus.tell_strangers(lambda pid: False)
    found = gpus.health(NODE)
    assert set(found) == {("node", 1), ("node", 3)}
    program = Path(f"/proc/{own}/comm").read_text().strip()
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert found["node", 1] == f"a process uses it that hived did not start: {program} (pid {own}) of {user}"
    nvml.running.clear()
    assert dict(gpus.health(NODE)) == {("node", 1): None, ("node", 3): None}


def test_which_processes_are_of_jobs(lives: Lives) -> None:
    """By the supervisor that has started them."""

    async def story(engine: Engine) -> None:
        cleared = engine.submit(shell("vision", "echo here; exec env -i sleep 600"))
        await printed(engine, cleared, "here")
        task = engine.task(cleared, 0)
        (child,) = Path(f"/proc/{task.pid}/task/{task.pid}/children").read_text().split()
        assert is_of_a_job(task.pid, engine.folder)
        assert is_of_a_job(int(child), engine.folder)
        assert not is_of_a_job(int(child), Path("/another")), "it is another engine's"
        assert is_of_a_job(2**22 + 1, engine.folder), "it has ended"
        moved = engine.folder.rename(engine.folder.parent / "moved")
        assert is_of_a_job(int(child), moved), "its supervisor was started at another path"
        assert not is_of_a_job(int(child), moved.parent / "state"), "nor is it of what comes there"
        moved.rename(engine.folder)
        with subprocess.Popen(["sleep", "600"]) as stranger:
            assert not is_of_a_job(stranger.pid, engine.folder)
            stranger.kill()
        with subprocess.Popen(["sleep", "600"], env={MARK: f"{engine.store.database}/1.1.0"}) as marked:
            assert not is_of_a_job(marked.pid, engine.folder), "what it says of itself is its user's word"
            marked.kill()

    lives.live(story)


def test_a_job_waits_for_strangers_and_says_whose_they_are(nvml: FakeNvml, lives: Lives) -> None:
    lives.spec = spec_for("node", 4, "GPU", [("vision", 4)])
    gpus = find_gpus("node")
    assert gpus is not None
    nvml.running = {number: [os.getpid()] for number in range(4)}
    gpus.tell_strangers(lambda pid: False)
    gpus.tell_strangers = lambda is_ours: None  # type: ignore[method-assign]  # in a container nobody can be told

    async def story(engine: Engine) -> None:
        waits = engine.submit(shell("vision", "true"))
        await asyncio.sleep(0)
        service = LocalService(engine)
        assert service.job(str(waits.id)).state == "queued"
        assert f"(pid {os.getpid()}) of" in service.explain(str(waits.id)).text
        (node,) = service.nodes(None, 0, 10).nodes
        assert "a process uses it that hived did not start" in node.devices[0].why
        nvml.running.clear()
        engine._take_in(engine.devices.health(engine.cluster.spec))
        engine._soon()
        await ended(engine, waits)

    lives.live(story, devices=gpus)


def test_fenced_tasks_have_their_files_and_uuids(nvml: FakeNvml, gpus: Nvml) -> None:
    """NVML's order need not be that of the files, and CUDA numbers anew what a task can open."""
    nvml.minors = [3, 1, 0, 2]
    assert gpus.minors([0, 2]) == [3, 0]
    assert (gpus.visible([0, 2]), gpus.visible([0, 2], fenced=True)) == ("0,2", "GPU-0,GPU-2")
    nvml.lost = {2}
    with pytest.raises(OSError, match="NVML does not say which file it is: 'GPU 2'"):
        gpus.minors([0, 2])
    assert Simulated().minors([0, 2]) is None
