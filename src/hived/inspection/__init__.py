"""All cells of a cluster at one moment, physical and virtual, with what stands on what. Pure.

Upstream's inspection API is the one caller; nothing that decides needs any of it. It reads
:meth:`hived.cluster.Cluster.state_now`.
"""

from .cell import Cell
from .inspection import Inspection
from .numbering import virtual_leaves

__all__ = ["Cell", "Inspection", "virtual_leaves"]
