"""The physical cells of one chain as they were at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hived.cells import leaves_of

from .anchoring import Anchoring, Owners
from .floor import Floor
from .groups import Group
from .inspected import NOBODY, Cell, Claims, Facts, Place, claims_of, highest, preorder, state_of
from .requests import OPPORTUNISTIC

if TYPE_CHECKING:
    from .virtual_side import VirtualSide


class PhysicalSide:
    """A copy of who is on which node of a chain, and the cells it makes of that. O(nodes) to make."""

    __slots__ = (
        "_above",
        "_claims",
        "_facts",
        "_first_top",
        "_holders",
        "_lower",
        "_names",
        "_owners",
        "_places",
        "_sides",
        "bad",
        "hierarchy",
        "number",
        "reserved",
        "spec",
        "tenants",
        "used",
    )

    def __init__(
        self, floor: Floor, first_top: int, tenants: Sequence[str], facts: Mapping[Group, Facts], nodes: Iterable[int]
    ) -> None:
        """``nodes``: those that will be asked about, with all their groups among ``facts``.

        ``first_top``: how many top cells the chains before it have.
        """
        hierarchy = self.hierarchy = floor.chain.hierarchy
        self.spec = hierarchy.spec
        #: of the chain
        self.number = floor.number
        #: names, by number
        self.tenants = tenants
        self.used = list(floor.states.used)
        self.reserved = list(floor.states.reserved)
        self.bad = list(floor.chain.bad)
        holders = floor.holders
        self._holders = {node: holders[node].copy() for node in nodes if node in holders}
        self._facts = facts
        # reserved cells that are bound, by level and number of what they stand on; and whose bindings are whose
        self._owners: Owners = {}
        self._sides: Mapping[Anchoring, VirtualSide] = {}
        self._lower: tuple[int, ...] = ()
        self._first_top = first_top
        self._names = ["", *(level.cell_type for level in self.spec.levels)]
        self._claims: dict[int, Claims] = {}
        self._above: dict[tuple[int, int], str] = {}
        self._places: dict[tuple[int, int, tuple[int, ...] | None], tuple[Place, ...]] = {}

    def owned_by(self, floor: Floor, sides: Mapping[Anchoring, VirtualSide]) -> None:
        """Learn which reserved cells stand on its cells."""
        self._owners, self._sides = dict(floor.owners), sides
        self._lower = tuple(level for level in floor.allocator.levels if level < self.hierarchy.node_level)

    def owner(self, level: int, number: int) -> tuple[VirtualSide, int] | None:
        """The reserved cell that stands on this one."""
        found = self._owners.get((level, number))
        return None if found is None else (self._sides[found[0]], found[1])

    def claims(self, node: int) -> Claims:
        """Who has or has reserved leaves of a node. O(1) once asked."""
        found = self._claims.get(node)
        if found is None:
            found = self._claims[node] = claims_of(self._holders.get(node, {}), self._facts)
        return found

    def loans(self, node: int) -> list[tuple[int, int]]:
        """Tenants, and the leaves of their opportunistic groups that nobody else has reserved. O(groups there)."""
        reserved = self.reserved[node]
        found = []
        for group, mask in self._holders.get(node, {}).items():
            facts = self._facts[group]
            if facts.tenancy < 0:
                found.append((group.tenant, mask & ~reserved if facts.running else mask))
        return found

    def address(self, level: int, number: int) -> str:
        """Of a cell at node level or above."""
        hierarchy = self.hierarchy
        if level == hierarchy.node_level:
            own = self.spec.node_names[number]
        else:
            own = str(self._first_top * (hierarchy.gpus[hierarchy.top] // hierarchy.gpus[level]) + number)
        if level == hierarchy.top:
            return own
        parent = level + 1, number // hierarchy.fanout[level + 1]
        above = self._above.get(parent)
        if above is None:
            above = self._above[parent] = self.address(*parent)
        return f"{above}/{own}"

    def places(self, level: int, node: int, part: int = 0) -> tuple[Place, ...]:
        """The inner cells of the ``part``-th cell of ``level`` in ``node``, by their numbers in it. O(1) once seen."""
        devices = self.spec.device_indices.get(node)
        found = self._places.get((level, part, devices))
        if found is None:
            found = self._places[level, part, devices] = tuple(self._placed(level, part, devices))
        return found

    def _placed(self, level: int, part: int, devices: tuple[int, ...] | None) -> Iterator[Place]:
        hierarchy = self.hierarchy
        shape = hierarchy.shape_at(level)
        at, cells = level, 1
        left = cells
        for mask in shape.masks:  # from the top, level by level
            if not left:
                at, cells = at - 1, cells * hierarchy.fanout[at]
                left = cells
            left -= 1
            leaf = part * shape.leaves + (mask & -mask).bit_length() - 1
            numbers = [leaf // hierarchy.gpus[k] for k in range(hierarchy.node_level - 1, at - 1, -1)]
            if at == 1 and devices is not None and numbers:
                numbers[-1] = devices[leaf]
            suffix = "".join(f"/{number}" for number in numbers)
            yield Place(at, leaf // hierarchy.gpus[at], mask << part * shape.leaves, suffix)

    def nodes_of(self, level: int, number: int) -> slice:
        """The nodes of a cell at node level or above."""
        nodes = self.hierarchy.gpus[level] // self.hierarchy.node_size
        return slice(number * nodes, (number + 1) * nodes)

    def upper(self, level: int, number: int, vc: str | None, virtual: Cell | None = None) -> Cell:
        """A cell above nodes, and whose it is. O(its nodes)."""
        nodes = self.nodes_of(level, number)
        priority = NOBODY
        for node in range(nodes.start, nodes.stop):
            claims = self.claims(node)
            if claims and claims[0][0] > priority:
                priority = claims[0][0]
        used = sum(map(int.bit_count, self.used[nodes]))
        reserved = sum(map(int.bit_count, self.reserved[nodes]))
        return Cell(
            self.hierarchy.top - level,
            self.spec.name,
            self._names[1],
            self._names[level],
            level,
            False,
            self.address(level, number),
            state_of(used, reserved, self.hierarchy.gpus[level]),
            not any(self.bad[nodes]),
            priority,
            vc,
            virtual,
        )

    def inner(self, node: int, address: str, place: Place, vc: str | None = None, virtual: Cell | None = None) -> Cell:
        """A cell at or below node level, and whose it is where a virtual one stands on it. ``address``: the node's."""
        level, _, mask, suffix = place
        hierarchy = self.hierarchy
        claims = self.claims(node)
        if vc is None and level == 1 and claims:
            vc = next((self.tenants[tenant] for tenant, held in self.loans(node) if held & mask), None)
        return Cell(
            hierarchy.top - level,
            hierarchy.spec.name,
            self._names[1],
            self._names[level],
            level,
            level == hierarchy.node_level,
            address + suffix,
            state_of(self.used[node] & mask, self.reserved[node] & mask, mask),
            not self.bad[node] & mask,
            highest(claims, mask),
            vc,
            virtual,
        )

    def below(self, node: int, host: tuple[VirtualSide, int] | None) -> Iterator[Cell]:
        """A node and the cells in it; ``host``: the virtual cell of its level that stands on it."""
        hierarchy = self.hierarchy
        standing: dict[tuple[int, int], Cell] = {}
        if host is not None:
            host[0].stand(host[1], standing)
        else:
            for level in self._lower:
                parts = hierarchy.node_size // hierarchy.gpus[level]
                for number in range(node * parts, (node + 1) * parts):
                    owner = self.owner(level, number)
                    if owner is not None:
                        owner[0].stand(owner[1], standing)
        address = self.address(hierarchy.node_level, node)
        places = self.places(hierarchy.node_level, node)
        for inner in preorder(hierarchy.shape):
            place = places[inner]
            virtual = standing.get((place.level, place.position))
            yield self.inner(node, address, place, None if virtual is None else virtual.vc, virtual)

    def loans_of(self, tenant: int, groups: Iterable[Group]) -> Iterator[Cell]:
        """The leaf cells of a tenant's opportunistic ``groups``, as cells of its VC."""
        size, node_level, vc = self.hierarchy.node_size, self.hierarchy.node_level, self.tenants[tenant]
        nodes = {part.node for group in groups for part in group.parts if part.chain == self.number}
        for node in sorted(nodes):
            mask = 0
            for other, held in self.loans(node):
                if other == tenant:
                    mask |= held
            for leaf in leaves_of(mask):
                place = self.places(node_level, node)[leaf - size]  # leaves have the last numbers
                physical = self.inner(node, self.address(node_level, node), place)
                yield physical._replace(
                    depth=0, address=f"{physical.address}-opp", priority=OPPORTUNISTIC, vc=vc, other=physical, lent=True
                )
