"""Inspection: all physical and virtual cells of a cluster at one moment, with their bindings. Pure.

Its one caller is the inspection API of deployed HiveD; no decision depends on it. It reads
:meth:`hived.cluster.Cluster.state_now`.
"""

from .cell import Cell
from .inspection import Inspection
from .numbering import virtual_leaves

__all__ = ["Cell", "Inspection", "virtual_leaves"]
