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
    if not isinstance(name, str) or name not in names.nodes:
        raise RequestError("node", f"there is no node {name!r}")
    parts = names.of(name, device)
    if not parts:
        raise RequestError("device", f"node {name!r} has no device {device!r}")
    for chain, node, mask in parts:
        bad = state.chains[chain].bad[node]
        state.set_bad(chain, node, bad & ~mask if healthy else bad | mask)


def leaf_state(state: State, names: Names, node: str, device: int) -> LeafState:
    """What one device is doing. Raises :class:`RequestError` when there is none."""
    for chain, number, mask in names.of(node, device) if isinstance(node, str) and device is not None else ():
        return state.chains[chain].leaf_state(number, mask.bit_length() - 1)
    raise RequestError("node", f"there is no device {device!r} on a node {node!r}")
