"""VCs on a physical cluster, and the two schemes they are compared with: private clusters and quotas. Pure."""

from .allocation import Allocation, ClusterView, Grant, Kind, Part, Place, Spots
from .feasibility import Shortage, check_feasible, initial_safety, shortages
from .schemes import HivedCluster, NamedPlacement, PrivateClusters, QuotaCluster, SharedCluster

__all__ = [
    "Allocation",
    "ClusterView",
    "Grant",
    "HivedCluster",
    "Kind",
    "NamedPlacement",
    "Part",
    "Place",
    "PrivateClusters",
    "QuotaCluster",
    "SharedCluster",
    "Shortage",
    "Spots",
    "check_feasible",
    "initial_safety",
    "shortages",
]
