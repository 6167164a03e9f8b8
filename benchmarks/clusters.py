"""Large clusters to measure on: synthetic, regular, named by their number of GPUs."""

from __future__ import annotations

from hived.spec import ClusterSpec, parse_spec

_SPEC = """
physicalCluster:
  cellTypes:
    PAIR: {{childCellType: GPU, childCellNumber: 2}}
    SOCKET: {{childCellType: PAIR, childCellNumber: 2}}
    NODE: {{childCellType: SOCKET, childCellNumber: 2, isNodeLevel: true}}
    RACK: {{childCellType: NODE, childCellNumber: 1024}}
  physicalCells:
  - cellType: RACK
    cellAddress: rack-[1-{racks}]
virtualClusters:
"""

TENANTS = 8
#: racks by the number of their GPUs
SIZES = {"65,536": 8, "1,048,576": 128}


def racks_of_1024_nodes(racks: int) -> ClusterSpec:
    """``racks`` racks of 1,024 nodes of 8 GPUs, shared by 8 tenants that reserve nodes: 7/8 of them, 1/8 is spare.

    Tenant 0 reserves half of its share as single sockets, so that cells below a node are bound too.
    """
    nodes = racks * 1024 * 7 // 8 // TENANTS
    text = _SPEC.format(racks=racks)
    for tenant in range(TENANTS):
        text += f"  t{tenant}:\n    virtualCells:\n"
        if tenant == 0:
            text += f"    - {{cellType: RACK.NODE.SOCKET, cellNumber: {nodes}}}\n"
            text += f"    - {{cellType: RACK.NODE, cellNumber: {nodes - nodes // 2}}}\n"
        else:
            text += f"    - {{cellType: RACK.NODE, cellNumber: {nodes}}}\n"
    return parse_spec(text, f"{racks} racks")
