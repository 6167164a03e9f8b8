"""The three sharing schemes that the papers compare, behind one contract: what the simulator runs. Pure."""

from .hived import HivedCluster
from .private import PrivateClusters
from .quota import QuotaCluster
from .sharing import NamedPlacement, SharedCluster

__all__ = ["HivedCluster", "NamedPlacement", "PrivateClusters", "QuotaCluster", "SharedCluster"]
