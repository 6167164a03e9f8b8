"""Leaf cells of one node, by numbers: the location type inside the cluster."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """Leaf cells of one node."""

    chain: int  #: number of the chain
    node: int  #: number of the node in it
    mask: int  #: the leaves, one bit each
