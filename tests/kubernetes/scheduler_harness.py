"""A gang scheduler without Kubernetes: a test sets pods and nodes, and the harness stands in for the engine."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from hived import CheckedCluster
from hived.cluster.cluster import Cluster
from hived.engines.kubernetes.counters import Counts
from hived.engines.kubernetes.gangs.gang import Gang, GangState
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Pod
from hived.policies import YarnCS
from hived.server.kubernetes.view import kubernetes_view
from hived.server.live import DashboardView
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from .pods import foreign, node, node_names, on, pod

#: two racks of two nodes of four, one node with devices of other numbers, and a VC for each kind of cell
SPEC: dict[str, Any] = {
    "physicalCluster": {
        "cellTypes": {
            "NODE": {"childCellType": "V100", "childCellNumber": 4, "isNodeLevel": True},
            "RACK": {"childCellType": "NODE", "childCellNumber": 2},
            "HALF": {"childCellType": "K80", "childCellNumber": 2},
            "OLD": {"childCellType": "HALF", "childCellNumber": 2, "isNodeLevel": True},
        },
        "physicalCells": [
            {"cellType": "RACK", "cellAddress": "r0", "cellChildren": [{"cellAddress": "a0"}, {"cellAddress": "a1"}]},
            {"cellType": "RACK", "cellAddress": "r1", "cellChildren": [{"cellAddress": "a2"}, {"cellAddress": "a3"}]},
            {"cellType": "OLD", "cellAddress": "b0", "cellChildren": [
                {"cellAddress": "0", "cellChildren": [{"cellAddress": "6"}, {"cellAddress": "7"}]},
                {"cellAddress": "1", "cellChildren": [{"cellAddress": "2"}, {"cellAddress": "3"}]},
            ]},
        ],
    },
    "virtualClusters": {
        "vision": {"virtualCells": [{"cellType": "RACK", "cellNumber": 1}]},
        "speech": {"virtualCells": [{"cellType": "RACK.NODE", "cellNumber": 1}]},
        "research": {"virtualCells": [{"cellType": "OLD.HALF", "cellNumber": 1}]},
    },
}  # fmt: skip
NODES = ("a0", "a1", "a2", "a3", "b0")


def other_spec() -> ClusterSpec:
    """The same nodes reserved by other VCs, without ``b0``."""
    types = {key: SPEC["physicalCluster"]["cellTypes"][key] for key in ("NODE", "RACK")}
    cells = SPEC["physicalCluster"]["physicalCells"][:2]
    shares = {
        "vision": {"virtualCells": [{"cellType": "RACK.NODE", "cellNumber": 1}]},
        "speech": {"virtualCells": [{"cellType": "RACK.NODE", "cellNumber": 2}]},
    }
    return spec_from_dict({"physicalCluster": {"cellTypes": types, "physicalCells": cells}, "virtualClusters": shares})


class World:
    """A cluster changed by its methods; also the engine, as far as dashboard, metrics and API read one."""

    started_at = 0.0
    ready = True
    leader = True
    identity = "hived-0"
    holder = ""
    spec_source = "a test"
    spec_loaded_at = 0.0
    spec_problem = ""

    def __init__(self, spec: ClusterSpec | None = None) -> None:
        self.spec = spec or spec_from_dict(SPEC)
        self.now = 1000.0
        self.counts = Counts()
        self.pods: dict[str, Pod] = {}  #: live pods, by uid
        self.nodes = {name: node(name) for name in node_names(self.spec)}
        self._numbers = itertools.count(1)
        self._news = asyncio.Event()
        self.gang_scheduler: GangScheduler | None = self._new()

    def _new(self) -> GangScheduler:
        gang_scheduler = GangScheduler(CheckedCluster(self.spec), YarnCS())
        gang_scheduler.start(self.nodes.values(), [(pod, None) for pod in self.pods.values()], self.now)
        return gang_scheduler

    # -- interface of an engine -----------------------------------------------------------------------------------

    def clock(self) -> float:
        """Seconds since the epoch."""
        return self.now

    async def changed(self, seq: int) -> None:
        """Return once the gang scheduler has a new event, or is another."""
        gang_scheduler = self.gang_scheduler
        while self.gang_scheduler is gang_scheduler and (gang_scheduler is None or gang_scheduler.seq <= seq):
            await self._news.wait()

    @property
    def cluster(self) -> Cluster:
        """The core."""
        return self.known.cluster

    def active_scheduler(self) -> GangScheduler:
        """The gang scheduler of an engine that leads."""
        return self.known

    # -- updates --------------------------------------------------------------------------------------------------

    @property
    def known(self) -> GangScheduler:
        """The gang scheduler, which must exist."""
        assert self.gang_scheduler is not None
        return self.gang_scheduler

    def come(self, vc: str, gpus: int, pods: int = 1, priority: int = 0, lazy: bool = False, late: int = 0) -> Gang:
        """Create a gang's pods except ``late`` of them; kube-scheduler asks for them."""
        gang = self.made(vc, gpus, pods, priority, lazy, late)
        self.ask(gang)
        return gang

    def made(self, vc: str, gpus: int, pods: int = 1, priority: int = 0, lazy: bool = False, late: int = 0) -> Gang:
        """Create a gang's pods except ``late`` of them."""
        name = f"job{next(self._numbers)}"
        labels = {
            keys.VC: vc,
            keys.PRIORITY: str(priority) if priority >= 0 else "opportunistic",
            keys.GROUP: name,
            keys.GROUP_SIZE: str(pods),
            keys.LAZY_PREEMPTION: str(lazy).lower(),
        }
        for rank in range(pods - late):
            self._make(name, rank, labels, gpus)
        self.step()
        return self.known.gangs[f"team/{name}"]

    def complete(self, gang: Gang) -> None:
        """Create the late pods of a gang."""
        first = next(iter(gang.pods.values())).pod
        name, _, _ = first.metadata.name.rpartition("-")
        ranks = {int(entry.pod.metadata.name.rpartition("-")[2]) for entry in gang.pods.values()}
        for rank in sorted(set(range(gang.ask.size)) - ranks):
            self._make(name, rank, first.metadata.labels or {}, gang.ask.leaf_cells)
        self.ask(gang)

    def _make(self, name: str, rank: int, labels: dict[str, str], gpus: int) -> None:
        uid = f"{name}-{rank}-{next(self._numbers)}"
        made = pod(f"{name}-{rank}", gpus, None, namespace="team", uid=uid)
        created = datetime.fromtimestamp(self.now, UTC).isoformat()
        self.pods[uid] = replace(made, metadata=replace(made.metadata, labels=labels, creation_timestamp=created))
        self.known.pod_changed(self.pods[uid], None, self.now)

    def ask(self, gang: Gang) -> None:
        """kube-scheduler asks for each pod of a gang, and offers every node."""
        for entry in list(gang.pods.values()):
            if not entry.holds:
                self.known.asked(entry.pod, None, list(self.nodes), self.now)
        self.step()

    def bind(self, gang: Gang, most: int = 1000) -> None:
        """Bind the first ``most`` pods that can be bound."""
        ready = [entry for entry in gang.pods.values() if entry.slot is not None and not entry.holds]
        for entry in ready[:most]:
            assert gang.placement is not None
            assert entry.slot is not None
            written = self.known.binding(entry.uid, gang.placement.pods[entry.slot].node)
            self.pods[entry.uid] = on(entry.pod, written.node, written.annotations)
            self.known.bound(entry.uid, self.now)
            self.known.pod_changed(self.pods[entry.uid], None, self.now)
        self.step()

    def runs(self, vc: str, gpus: int, pods: int = 1, priority: int = 0, lazy: bool = False) -> Gang:
        """Create a gang and bind it."""
        gang = self.come(vc, gpus, pods, priority, lazy)
        self.bind(gang)
        return gang

    def foreign(self, gpus: int, where: str) -> str:
        """Another scheduler binds a pod; its uid."""
        there = foreign(f"serve{next(self._numbers)}", gpus, where)
        self.pods[there.metadata.uid] = there
        self.known.pod_changed(there, None, self.now)
        self.step()
        return there.metadata.uid

    def foreign_ends(self, uid: str) -> None:
        """Remove a foreign pod."""
        del self.pods[uid]
        self.known.pod_removed(uid, self.now)
        self.step()

    def end(self, gang: Gang, most: int = 1000) -> None:
        """Remove the first ``most`` pods of a gang."""
        for uid in list(gang.pods)[:most]:
            del self.pods[uid]
            self.known.pod_removed(uid, self.now)
            self.step()

    def node(self, name: str, ready: bool = True, cordoned: bool = False, bad: str | None = None) -> None:
        """Add or change a node."""
        self.nodes[name] = node(name, ready, cordoned, bad)
        self.known.node_changed(self.nodes[name], self.now)
        self.step()

    def without_node(self, name: str) -> None:
        """Remove a node."""
        self.nodes.pop(name, None)
        self.known.node_removed(name, self.now)
        self.step()

    def reconfigure(self, spec: ClusterSpec) -> None:
        """Apply a new spec."""
        self.spec = spec
        self.known.reconfigure(spec, self.now)
        self.step()

    def stand_by(self) -> None:
        """Stop deciding."""
        self.gang_scheduler, self.leader = None, False
        self.step()

    def lead(self) -> None:
        """Decide with a new gang scheduler."""
        self.gang_scheduler, self.leader = self._new(), True
        self.step()

    def step(self) -> None:
        """Dispatch, and notify watchers."""
        if self.gang_scheduler is not None:
            self.gang_scheduler.dispatch(self.now)
            self.gang_scheduler.turn()
        self._news.set()
        self._news = asyncio.Event()


def looking_at(world: World) -> DashboardView[Gang]:
    """The dashboard of ``world``."""
    return kubernetes_view(world, "the cluster")  # type: ignore[arg-type]  # as much as is read of an engine


def one_event(world: World, choose: random.Random) -> None:
    """A random event."""
    gangs = list(world.known.gangs.values())
    placed = [gang for gang in gangs if gang.state is GangState.PLACED]
    preempted = [gang for gang in gangs if gang.state is GangState.PREEMPTED]
    name = choose.choice(NODES)
    strangers = list(world.known.foreign.pods)
    match choose.randrange(20):
        case 0 | 1 | 2 | 3:
            pods = choose.choice((1, 1, 2, 3))
            world.come(
                choose.choice(("vision", "vision", "speech", "research")),
                choose.choice((1, 2, 4)),
                pods,
                choose.choice((-1, -1, 0, 0, 5)),
                choose.random() < 0.3,
                late=choose.randrange(pods) if choose.random() < 0.4 else 0,
            )
        case 4:
            world.made("vision", 1, choose.choice((1, 2)))
        case 5 | 6 if gangs:
            world.complete(choose.choice(gangs))
        case 7 | 8 | 9 | 10 if placed:
            world.bind(choose.choice(placed), choose.choice((1, 1000)))
        case 11 | 12 if preempted:
            world.end(choose.choice(preempted), choose.choice((1, 1000)))
        case 13 if gangs:
            world.end(choose.choice(gangs), choose.choice((1, 1000, 1000)))
        case 14:
            world.node(name, ready=choose.random() < 0.6, cordoned=choose.random() < 0.3)
        case 15:
            world.node(name, bad=choose.choice(("", "", "0", "2,3,7")))
        case 16 if choose.random() < 0.4:
            world.without_node(name)
        case 17 if choose.random() < 0.5:
            world.reconfigure(other_spec() if choose.random() < 0.5 else spec_from_dict(SPEC))
        case 18:
            world.foreign(choose.choice((1, 2, 4)), name)
        case 19 if strangers:
            world.foreign_ends(choose.choice(strangers))
        case _:
            world.now += choose.uniform(0, 30)
