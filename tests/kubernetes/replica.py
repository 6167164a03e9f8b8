"""A replica of the service around a fake cluster, as dashboard, metrics and API read one."""

from __future__ import annotations

from typing import Any

from hived.cluster.cluster import Cluster
from hived.engines.kubernetes.counters import Counts
from hived.engines.kubernetes.gangs.gang import Gang
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.errors import UnavailableError
from hived.server.kubernetes.engine_service import EngineService
from hived.server.kubernetes.view import kubernetes_view
from hived.server.live import DashboardView
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from .fake_kubernetes import World

_RACKS: dict[str, Any] = {
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
}  # fmt: skip


def _racks(**shares: tuple[str, int]) -> ClusterSpec:
    vcs = {vc: {"virtualCells": [{"cellType": name, "cellNumber": number}]} for vc, (name, number) in shares.items()}
    return spec_from_dict({"physicalCluster": _RACKS, "virtualClusters": vcs})


#: two racks of two nodes of four, one node with devices of other numbers, and a VC for each kind of cell
RACKS = _racks(vision=("RACK", 1), speech=("RACK.NODE", 1), research=("OLD.HALF", 1))
#: the same nodes reserved by other VCs, without ``b0``
OTHER_RACKS = _racks(vision=("RACK.NODE", 1), speech=("RACK.NODE", 2))


class Replica:
    """An engine, which decides unless it stands by."""

    started_at = 0.0
    ready = True
    identity = "hived-0"
    holder = ""
    spec_source = "a test"
    spec_loaded_at = 0.0
    spec_problem = ""
    spec_text = ""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or racks()
        self.leader = True
        self.counts = Counts()

    @property
    def gang_scheduler(self) -> GangScheduler | None:
        return self.world.gang_scheduler if self.leader else None

    def active_scheduler(self) -> GangScheduler:
        if not self.leader:
            raise UnavailableError("it stands by")
        return self.world.gang_scheduler

    @property
    def cluster(self) -> Cluster:
        return self.world.gang_scheduler.cluster

    @property
    def spec(self) -> ClusterSpec:
        return self.world.spec

    def clock(self) -> float:
        return self.world.now

    async def changed(self, seq: int) -> None:
        """Return once the gang scheduler has a new event, or is another."""
        known = self.gang_scheduler
        while self.gang_scheduler is known and (known is None or known.seq <= seq):
            await self.world.news.wait()

    def stand_by(self) -> None:
        self.leader = False
        self.world.step()

    def lead(self) -> None:
        self.leader = True
        self.world.restart(compare=False)


def racks() -> World:
    """A cluster of :data:`RACKS`, some time after the epoch."""
    world = World(RACKS)
    world.now = 1000.0
    return world


def looking_at(replica: Replica) -> DashboardView[Gang]:
    """The dashboard of a replica."""
    return kubernetes_view(replica, "the cluster")  # type: ignore[arg-type]  # as much as is read of an engine


def service_of(world: World) -> EngineService:
    """What the API, the status and the inspection read of a replica that decides."""
    return EngineService(Replica(world), may_change=False)  # type: ignore[arg-type]  # as much as is read of an engine
