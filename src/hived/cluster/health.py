"""Nodes and devices turn bad, and good again."""

from __future__ import annotations

from hived.errors import RequestError

from .names import Names
from .state import State
from .states import LeafState


def set_health(state: State, names: Names, name: str, device: int | None, healthy: bool) -> None:
    """All devices of a node, or one, are bad or healthy from now on. Raises :class:`RequestError`. O(its cells)."""
    if type(healthy) is not bool:
        raise RequestError("healthy", f"true or false, not {healthy!r}")
    places = names.nodes.get(name) if isinstance(name, str) else None
    if places is None:
        raise RequestError("node", f"there is no node {name!r}")
    found = False
    for chain, node in places:
        nodes = state.chains[chain]
        if device is None:
            mask = nodes.shapes[node].full
        else:
            leaf = names.leaves(chain, node).get(device) if type(device) is int else None
            if leaf is None:
                continue
            mask = 1 << leaf
        found = True
        bad = nodes.bad[node]
        state.set_bad(chain, node, bad & ~mask if healthy else bad | mask)
    if not found:
        raise RequestError("device", f"node {name!r} has no device {device!r}")


def leaf_state(state: State, names: Names, node: str, device: int) -> LeafState:
    """What one device is doing. Raises :class:`RequestError` when there is none."""
    for chain, number in names.nodes.get(node, ()) if isinstance(node, str) else ():
        leaf = names.leaves(chain, number).get(device) if type(device) is int else None
        if leaf is not None:
            return state.chains[chain].leaf_state(number, leaf)
    raise RequestError("node", f"there is no device {device!r} on a node {node!r}")
