"""The clusters of the papers, as specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from hived.simulator.traces import TABLE1
from hived.spec import ClusterSpec, equal_nodes, share_nodes, share_out, spec_from_dict

GPUS_PER_NODE = 8
#: nodes of the paper's cluster, and of the smaller one
FULL_NODES, CROWDED_NODES = 279, 200
QUOTAS = tuple((row.tenant, Decimal(repr(row.quota_percent))) for row in TABLE1)
TENANTS = tuple(tenant for tenant, _ in QUOTAS)
#: the one VC of a cluster without quotas
EVERYBODY = "everybody"
_HALVES = {8: "NODE", 4: "NODE.SOCKET", 2: "NODE.SOCKET.GPU-PAIR", 1: "NODE.SOCKET.GPU-PAIR.GPU"}


def shares_of(nodes: int) -> dict[str, int]:
    """GPUs of each tenant of Table 1: whole nodes, or single GPUs of a cluster too small for that."""
    if nodes >= 100:
        return {
            tenant: GPUS_PER_NODE * number for tenant, number in zip(TENANTS, share_nodes(nodes, QUOTAS), strict=True)
        }
    percents = [int(100 * percent) for _, percent in QUOTAS]
    return dict(zip(TENANTS, share_out(GPUS_PER_NODE * nodes, percents, [1] * len(QUOTAS)), strict=True))


def cluster_of(nodes: int, gone: Sequence[str] = (), *, quotas: bool = True, guests: str = "none") -> ClusterSpec:
    """``nodes`` nodes of 8 GPUs shared by Table 1's quotas, without the tenants ``gone`` and their GPUs.

    ``guests``: whose guests every tenant accepts.

    Each tenant's GPUs are as many nodes as possible, and one cell of each smaller size where the rest has it.
    """
    shares = {tenant: gpus for tenant, gpus in shares_of(nodes).items() if tenant not in gone}
    left = nodes - sum(gpus for tenant, gpus in shares_of(nodes).items() if tenant in gone) // GPUS_PER_NODE
    if not quotas:
        shares = {EVERYBODY: GPUS_PER_NODE * left}
    clusters = {}
    for tenant, gpus in shares.items():
        cells = [(GPUS_PER_NODE, gpus // GPUS_PER_NODE), *((size, gpus // size % 2) for size in (4, 2, 1))]
        clusters[tenant] = {_HALVES[size]: number for size, number in cells if number}
    return cluster_with(equal_nodes(left, GPUS_PER_NODE), clusters, guests)


def cluster_with(
    physical: Mapping[str, object], cells: Mapping[str, Mapping[str, int]], guests: str = "none"
) -> ClusterSpec:
    """A physical cluster, and by tenant the number of cells of each type that it reserves."""
    clusters = {
        tenant: {
            "guests": guests,
            "virtualCells": [{"cellType": of, "cellNumber": number} for of, number in own.items()],
        }
        for tenant, own in cells.items()
    }
    return spec_from_dict({"physicalCluster": physical, "virtualClusters": clusters})


def servers(gpus: int, shares: Mapping[str, int], guests: str = "none") -> ClusterSpec:
    """Equal servers of so many GPUs, shared by tenants in servers."""
    number = sum(shares.values())
    types = {
        "SERVER": {"childCellType": "GPU", "childCellNumber": gpus, "isNodeLevel": True},
        "CLUSTER": {"childCellType": "SERVER", "childCellNumber": number},
    }
    cells = [{"cellType": "CLUSTER", "cellChildren": [{"cellAddress": f"server-{n}"} for n in range(number)]}]
    own = {tenant: {"CLUSTER.SERVER": of} for tenant, of in shares.items()}
    return cluster_with({"cellTypes": types, "physicalCells": cells}, own, guests)
