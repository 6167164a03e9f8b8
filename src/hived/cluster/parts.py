"""Leaves of one node, by numbers: what everything inside the cluster says where."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """Leaf cells of one node."""

    chain: int  #: number of the chain
    node: int  #: number of the node in it
    mask: int  #: its leaves, a bit each
