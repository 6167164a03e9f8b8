"""The virtual cells of a VC in one chain, or of one pinned cell, as they were at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from hived.cells import leaves_of

from .groups import Group
from .inspected import NOBODY, Cell, Claims, Facts, claims_of, highest, preorder, state_of
from .physical_side import PhysicalSide
from .tenancy import Tenancy


class VirtualSide:
    """A VC's cells in one chain as they were when it was made, and the virtual cells of it. O(hosts) to make."""

    __slots__ = (
        "_at",
        "_claims",
        "_facts",
        "_inner",
        "_marks",
        "_names",
        "_numbers",
        "_roots",
        "_takers",
        "bad",
        "bound",
        "children",
        "physical",
        "pool",
        "vc",
    )

    def __init__(
        self,
        vc: str,
        tenancy: Tenancy,
        physical: PhysicalSide,
        facts: Mapping[Group, Facts],
        numbers: Mapping[int, Iterable[range]],
    ) -> None:
        """``facts``: of all groups that take its leaves; ``numbers``: of its reserved cells in the VC, by level."""
        binder = tenancy.binder
        self.vc = vc
        self.pool = binder.pool
        #: the chain that it is bound to
        self.physical = physical
        #: the virtual cells right below an upper one
        self.children = binder.children
        self.bound = list(binder.bound)
        self.bad = list(self.pool.bad)
        self._inner = [None if inner is None else inner[:] for inner in binder.inner]
        self._takers = {host: takers.copy() for host, takers in tenancy.takers.items()}
        self._facts = facts
        self._numbers = numbers
        self._names = ["", *(level.cell_type for level in physical.spec.levels)]
        self._roots: dict[int, int] = {}
        self._at: dict[int, list[int]] = {}
        self._claims: dict[int, Claims] = {}
        self._marks: dict[int, tuple[int, int]] = {}

    # -- numbers and addresses ----------------------------------------------------------------------------------------

    def roots(self) -> dict[int, int]:
        """The cells that the VC reserved, each with its number in the VC. O(cells) once."""
        if not self._roots:
            numbers = {level: chain.from_iterable(ranges) for level, ranges in self._numbers.items()}
            self._roots = {
                cell: next(numbers[level]) for cell, (level, parent) in enumerate(self.pool.cells) if parent < 0
            }
        return self._roots

    def _first_host(self, cell: int) -> int:
        while cell >= self.pool.hosts:
            cell = self.children(cell)[0]
        return cell

    def _address(self, cell: int) -> str:
        """Of a cell that is a host or above."""
        hierarchy = self.pool.hierarchy
        root = self.pool.reserved_cell(cell)
        leaf = (self._first_host(cell) - self._first_host(root)) * hierarchy.node_size
        levels = range(self.pool.cells[root].level - 1, self.pool.cells[cell].level - 1, -1)
        return f"{self.vc}/{self.roots()[root]}" + "".join(f"/{leaf // hierarchy.gpus[level]}" for level in levels)

    def _addresses(self, host: int) -> list[str]:
        """Of the inner cells of a host."""
        pool, hierarchy, shape = self.pool, self.pool.hierarchy, self.pool.shapes[host]
        offset = (host - self._first_host(pool.reserved_cell(host))) * hierarchy.node_size
        addresses = [self._address(host), *[""] * (len(shape.masks) - 1)]
        first, count, level = 0, 1, pool.cells[host].level
        while level > 1:
            fanout, gpus = hierarchy.fanout[level], hierarchy.gpus[level - 1]
            number = offset // gpus
            for cell in range(first, first + count):
                for child in shape.children[cell]:
                    addresses[child] = f"{addresses[cell]}/{number}"
                    number += 1
            first, count, level = first + count, count * fanout, level - 1
        return addresses

    def leaves(self, host: int, mask: int) -> Iterator[tuple[str, str]]:
        """Addresses of leaves of a host, each behind that of its reserved cell. O(cells of the host)."""
        root = self._address(self.pool.reserved_cell(host))
        addresses = self._addresses(host)[-self.pool.shapes[host].leaves :]  # leaves have the last numbers
        for leaf in leaves_of(mask):
            yield root, addresses[leaf]

    # -- what stands where --------------------------------------------------------------------------------------------

    def at(self, host: int) -> list[int]:
        """Per inner cell of a host, the inner cell it stands on, -1 where it is not bound. O(cells of the host).

        Cells taken as a whole are not told apart below (see :meth:`.binding.Binder.leaves`): whoever is on one of
        their leaves is on all, so they stand in order on what the others leave.
        """
        at = self._at.get(host)
        if at is None:
            at = self._at[host] = self._bound_inside(host) if self.bound[host] >= 0 else [-1] * self._size(host)
        return at

    def _size(self, host: int) -> int:
        return len(self.pool.shapes[host].masks)

    def _bound_inside(self, host: int) -> list[int]:
        shape = self.pool.shapes[host]
        at = list(self._inner[host] or [-1] * self._size(host))
        at[0] = 0
        taken = 0
        for mask in self._takers.get(host, {}).values():
            taken |= mask
        if not taken:
            return at
        for cell, children in enumerate(shape.children):
            if children and at[cell] >= 0:
                on = {at[child] for child in children}
                spare = (physical for physical in shape.children[at[cell]] if physical not in on)
                for child in children:
                    if at[child] < 0 and shape.masks[child] & taken:
                        at[child] = next(spare)
        return at

    def _host_on(self, host: int) -> tuple[int, int]:
        """The node that a bound host stands on, and which part of it."""
        return divmod(self.bound[host], self.pool.hierarchy.node_size // self.pool.shapes[host].leaves)

    def _mark(self, host: int) -> tuple[int, int]:
        """The leaves of a host that are used, and that are reserved, by groups of the VC. O(leaves) while any is."""
        marks = self._marks.get(host)
        if marks is None:
            runs = reserved = 0
            for group, mask in self._takers.get(host, {}).items():
                if self._facts[group].running:
                    runs |= mask
                else:
                    reserved |= mask
            if reserved & ~runs:  # who runs on what is reserved may have it on loan
                runs |= self._used_by_others(host, reserved & ~runs)
            marks = self._marks[host] = runs, reserved
        return marks

    def claims(self, host: int) -> Claims:
        """Who takes leaves of a host. O(1) once asked."""
        found = self._claims.get(host)
        if found is None:
            found = self._claims[host] = claims_of(self._takers.get(host, {}), self._facts)
        return found

    def _used_by_others(self, host: int, leaves: int) -> int:
        shape = self.pool.shapes[host]
        node, part = self._host_on(host)
        used = self.physical.used[node] >> part * shape.leaves
        at, first, found = self.at(host), len(shape.masks) - shape.leaves, 0
        for leaf in leaves_of(leaves):
            if shape.masks[at[first + leaf]] & used:
                found |= 1 << leaf
        return found

    # -- cells --------------------------------------------------------------------------------------------------------

    def upper(self, cell: int, physical: Cell | None = None) -> Cell:
        """A virtual cell above its hosts. O(its hosts)."""
        hierarchy = self.pool.hierarchy
        level = self.pool.cells[cell].level
        first = self._first_host(cell)
        hosts = range(first, first + hierarchy.gpus[level] // hierarchy.node_size)
        used = reserved = 0
        priority = NOBODY
        for host in hosts:
            claims = self.claims(host)
            if claims:
                marks = self._mark(host)
                used += marks[0].bit_count()
                reserved += marks[1].bit_count()
                priority = max(priority, claims[0][0])
        spec = hierarchy.spec
        return Cell(
            self.pool.cells[self.pool.reserved_cell(cell)].level - level,
            spec.name,
            self._names[1],
            self._names[level],
            level,
            False,
            self._address(cell),
            state_of(used, reserved, hierarchy.gpus[level]),
            not any(self.bad[first : hosts.stop]),
            priority,
            self.vc,
            physical,
        )

    def inside(self, host: int, physical: list[Cell | None] | None = None) -> list[Cell]:
        """The inner cells of a host, by number. ``physical``: what each stands on. O(cells of the host)."""
        pool, hierarchy, shape = self.pool, self.pool.hierarchy, self.pool.shapes[host]
        spec, vc, bad = hierarchy.spec, self.vc, self.bad[host]
        claims = self.claims(host)
        used, reserved = self._mark(host) if claims else (0, 0)
        level = pool.cells[host].level
        depth = pool.cells[pool.reserved_cell(host)].level - level
        addresses = self._addresses(host)
        cells = []
        first, count = 0, 1
        while level:
            name, is_node = self._names[level], level == hierarchy.node_level
            for inner in range(first, first + count):
                mask = shape.masks[inner]
                cells.append(
                    Cell(
                        depth,
                        spec.name,
                        self._names[1],
                        name,
                        level,
                        is_node,
                        addresses[inner],
                        state_of(used & mask, reserved & mask, mask),
                        not bad & mask,
                        highest(claims, mask),
                        vc,
                        None if physical is None else physical[inner],
                    )
                )
            first, count, level, depth = first + count, count * hierarchy.fanout[level], level - 1, depth + 1
        return cells

    def stand(self, host: int, standing: dict[tuple[int, int], Cell]) -> None:
        """Add the cells of a bound host by level and number (in their node) of what they stand on."""
        node, part = self._host_on(host)
        places = self.physical.places(self.pool.cells[host].level, node, part)
        for cell, on in zip(self.inside(host), self.at(host), strict=True):
            if on >= 0:
                standing[places[on].level, places[on].position] = cell

    def below(self, host: int) -> Iterator[Cell]:
        """A host and the cells in it, each with what it stands on."""
        stands_on: list[Cell | None] | None = None
        if self.bound[host] >= 0:
            node, part = self._host_on(host)
            physical = self.physical
            places = physical.places(self.pool.cells[host].level, node, part)
            address = physical.address(physical.hierarchy.node_level, node)
            stands_on = [None if on < 0 else physical.inner(node, address, places[on], self.vc) for on in self.at(host)]
        cells = self.inside(host, stands_on)
        for inner in preorder(self.pool.shapes[host]):
            yield cells[inner]

    def walk(self, cell: int) -> Iterator[Cell]:
        """A virtual cell and all in it, each with what it stands on."""
        if cell < self.pool.hosts:
            yield from self.below(cell)
            return
        on = self.bound[cell]
        physical = None
        if on >= 0:
            physical = self.physical.upper(self.pool.cells[cell].level, on, self.vc)
        yield self.upper(cell, physical)
        for child in self.children(cell):
            yield from self.walk(child)
