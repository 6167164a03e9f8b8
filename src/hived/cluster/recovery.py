"""Taking over groups that run already: after a restart, or under a new spec.

A placement says where each pod runs, and at which level its VC had reserved the cell that it stands in. That is enough:
the physical cell of that level is the one reserved, every other cell follows. Records are taken in one fixed order,
whatever order they come in, so the same records give the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hived.errors import RequestError

from .allocation import Part
from .decisions import Placement
from .floor import Floor
from .groups import Group
from .requests import OPPORTUNISTIC, Request
from .state import State
from .states import GroupEvent

#: a group that runs: its name, what it asked for, and where it is
Record = tuple[str, Request, Placement]


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """What a new spec meant for the groups that ran."""

    kept: tuple[str, ...]  #: run as they did
    downgraded: tuple[tuple[str, str], ...]  #: were guaranteed, run on as opportunistic: name and why
    lost: tuple[tuple[str, tuple[str, ...]], ...]  #: have pods on nodes or devices that are no more: name, and nodes
    cancelled: tuple[str, ...]  #: had reserved, and wait again


class Names:
    """Nodes and devices by name. O(nodes) to make."""

    __slots__ = ("_floors", "_leaves", "nodes", "numbers")

    def __init__(self, floors: Sequence[Floor]) -> None:
        self._floors = floors
        #: per chain: number of each node
        self.numbers = [{name: n for n, name in enumerate(f.chain.hierarchy.spec.node_names)} for f in floors]
        #: per node name: the chains it is in, and its number there
        self.nodes: dict[str, list[tuple[int, int]]] = {}
        for chain, numbers in enumerate(self.numbers):
            for name, node in numbers.items():
                self.nodes.setdefault(name, []).append((chain, node))
        self._leaves: dict[tuple[int, int], dict[int, int]] = {}

    def leaves(self, chain: int, node: int) -> dict[int, int]:
        """Leaf number by device index."""
        found = self._leaves.get((chain, node))
        if found is None:
            hierarchy = self._floors[chain].chain.hierarchy
            devices = (hierarchy.spec.device_index(node, leaf) for leaf in range(hierarchy.node_size))
            found = self._leaves[chain, node] = {device: leaf for leaf, device in enumerate(devices)}
        return found

    def part(self, chain: int, node_name: str, devices: Sequence[int]) -> Part | None:
        """The leaves with these device indices; None when the chain has them not."""
        node = self.numbers[chain].get(node_name)
        if node is None:
            return None
        leaves = self.leaves(chain, node)
        mask = 0
        for device in devices:
            leaf = leaves.get(device)
            if leaf is None or mask >> leaf & 1:
                return None
            mask |= 1 << leaf
        return Part(chain, node, mask)


def in_order(records: Iterable[Record]) -> list[Record]:
    """Records in the order in which they are taken: the higher priority first, then by name."""
    return sorted(records, key=lambda record: (-record[1].priority, record[0]))


def located(state: State, names: Names, placement: Placement) -> tuple[int, tuple[Part, ...], tuple[int, ...]]:
    """Chain, parts and the numbers of the pods that still exist; chain -1 when none does.

    The chain named by the placement first, else the one in which most pods exist.
    """
    order = sorted(
        range(len(state.floors)), key=lambda n: (state.floors[n].chain.hierarchy.spec.name != placement.chain, n)
    )
    best: tuple[int, tuple[Part, ...], tuple[int, ...]] = (-1, (), ())
    for chain in order:
        parts = [names.part(chain, node, devices) for node, devices in placement.pods]
        pods = tuple(i for i, part in enumerate(parts) if part is not None)
        if len(pods) > len(best[2]):
            best = chain, tuple(part for part in parts if part is not None), pods
    return best


def free_on_floor(state: State, parts: Iterable[Part]) -> bool:
    """Whether nobody has any of these leaves."""
    taken: dict[tuple[int, int], int] = {}
    for chain, node, mask in parts:
        used = state.floors[chain].states.used[node] | taken.get((chain, node), 0)
        if used & mask:
            return False
        taken[chain, node] = taken.get((chain, node), 0) | mask
    return True


def reserved_levels(state: State, tenant: int, chain: int, wanted: Sequence[int]) -> list[tuple[int, ...]]:
    """The levels at which a VC may have reserved the cells of some pods: those recorded first, then all it reserves."""
    levels = sorted(
        {
            tenancy.pool.cells[cell].level
            for tenancy in state.tenancies[tenant]
            if tenancy.floor.number == chain
            for cell in [number for number, c in enumerate(tenancy.pool.cells) if c.parent < 0]
        }
    )
    same = [(level,) * len(wanted) for level in levels]
    return [tuple(wanted), *same] if all(level in levels for level in wanted) else same


def admit_running(
    state: State,
    names: Names,
    record: Record,
    tenant: int,
    now: float,
    levels: Sequence[tuple[int, ...]] | None,
) -> Group:
    """Put a running group where it runs: guaranteed at the first of ``levels`` that can be, else opportunistic.

    ``levels`` None: what the placement says, guaranteed or not. The caller has checked that its leaves are free.
    """
    name, request, placement = record
    chain, parts, pods = located(state, names, placement)
    state.version += 1
    state.sequence += 1
    group = Group(request, tenant, state.sequence, now)
    group.chain, group.parts = chain, parts
    kept = tuple(placement.pods[i] for i in pods)
    chain_name = state.floors[chain].chain.hierarchy.spec.name if chain >= 0 else placement.chain
    group.placement = Placement(chain_name, kept, ())
    if request.priority > OPPORTUNISTIC and len(pods) == len(placement.pods):
        tries = [placement.reserved_levels] if levels is None else levels
        for try_levels in tries:
            found = state.readmitted(tenant, request, chain, parts, try_levels) if try_levels else None
            if found is not None:
                tenancy, spots = found
                group.tenancy, group.spots = tenancy.number, spots
                group.placement = Placement(chain_name, kept, tuple(try_levels))
                tenancy.take(group)
                break
    if not group.guaranteed:
        if request.priority > OPPORTUNISTIC:
            group.priority = OPPORTUNISTIC
            state.displaced[group] = None
        state.lend(group)
    if chain >= 0:
        state.floors[chain].start(group, parts)
        group.level = common_level(state, chain, parts)
    group.happens(GroupEvent.BIND)
    state.groups[name] = group
    return group


def common_level(state: State, chain: int, parts: Sequence[Part]) -> int:
    """The level of the lowest physical cell with all these leaves, 0 for none."""
    hierarchy = state.floors[chain].chain.hierarchy
    leaves = [
        node * hierarchy.node_size + leaf
        for _, node, mask in parts
        for leaf in ((mask & -mask).bit_length() - 1, mask.bit_length() - 1)
    ]
    for level in range(1, hierarchy.top + 1):
        if len({leaf // hierarchy.gpus[level] for leaf in leaves}) == 1:
            return level
    return 0


def recover(state: State, names: Names, records: Iterable[Record], now: float) -> None:
    """Take over groups that run in this very cluster. Raises :class:`RequestError`, before anything has changed."""
    ordered = in_order(records)
    taken: dict[tuple[int, int], tuple[int, str]] = {}
    seen: set[str] = set()
    for name, request, placement in ordered:
        where = f"records[{name!r}]"
        demand = state.demands.of(request)
        if name != request.group:
            raise RequestError(where, f"its request is of group {request.group!r}")
        if name in seen or name in state.groups:
            raise RequestError(where, "this group is known already; give each group once")
        seen.add(name)
        chain, parts, pods = located(state, names, placement)
        if len(pods) < len(placement.pods) or len(pods) != demand.pods:
            raise RequestError(
                where, f"{len(pods)} of {demand.pods} pods are on nodes and devices of this cluster; use reconfigure()"
            )
        for _, node, mask in parts:
            used = state.floors[chain].states.used[node]
            other, by = taken.get((chain, node), (0, ""))
            if mask & (used | other):
                raise RequestError(where, f"devices of {names_of(state, chain, node)} are in use{by and f' by {by}'}")
            taken[chain, node] = other | mask, name
    admitted: list[Group] = []
    for record in ordered:
        name, request, placement = record
        tenant = state.demands.of(request).tenant
        group = admit_running(state, names, record, tenant, now, None)
        admitted.append(group)
        if placement.reserved_levels and not group.guaranteed:
            for undone in reversed(admitted):
                state.end(undone)
            raise RequestError(
                f"records[{name!r}]",
                f"no cells of {request.vc!r} can stand where it runs; if the spec has changed, use reconfigure()",
            )


def names_of(state: State, chain: int, node: int) -> str:
    """A node's name."""
    return state.floors[chain].chain.hierarchy.spec.node_names[node]
