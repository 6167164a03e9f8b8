"""Compilation of physical cells to chains: positions, node names, device indices and pinned cells, with all defaults.

No objects are made for cells: a chain only has the names of its nodes, and the device indices of nodes where these are
not 0, 1, 2, ... Omitted cells cost nothing but node names; cells spelled out in the spec are visited once.

Default addresses: entry ``i`` of ``physicalCells`` has number ``i`` (ranges counted as the entries they expand to),
child ``j`` of a cell with number ``d`` has ``d * childCellNumber + j``, and below a node the count starts from 0 again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .compiled import ChainSpec, PinnedCellSpec
from .document import Document, KeyPath, shown
from .hierarchy import CellTypes, Hierarchy
from .model import MAX_CELLS, PhysicalCell, PhysicalCluster
from .ranges import RangeError, expand, has_range

_DEVICE = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned cell and where the spec defines it."""

    cell: PinnedCellSpec
    path: KeyPath


@dataclass(frozen=True, slots=True)
class Physical:
    """The hardware of a spec, compiled."""

    chains: tuple[ChainSpec, ...]  #: in order of first appearance
    hierarchies: tuple[Hierarchy, ...]  #: of the chains
    pins: dict[str, Pin]  #: by pinned cell id


@dataclass(frozen=True, slots=True)
class _Entry:
    """The cells of one entry of the spec: contiguous, and equal in all but their addresses."""

    cell: PhysicalCell
    path: KeyPath
    names: Sequence[str]  #: their addresses as given; empty when the one cell has its default address
    offset: int  #: the first one's position in its parent (at the top: in the whole list)

    @property
    def count(self) -> int:
        return len(self.names) or 1


def compile_physical(physical: PhysicalCluster, document: Document) -> Physical:
    """The chains of the cluster. Raises :class:`SpecError`. O(nodes + cells spelled out)."""
    types = CellTypes(physical.cell_types, document)
    pins: dict[str, Pin] = {}
    chains: dict[str, _Chain] = {}
    list_path: KeyPath = ("physicalCluster", "physicalCells")
    nodes = 0
    for entry in _entries(physical.physical_cells, list_path, document):
        top_type = entry.cell.cell_type
        assert top_type is not None  # the form requires it of top cells
        chain = chains.get(top_type)
        if chain is None:
            hierarchy = types.hierarchy(top_type, (*entry.path, "cellType"))
            chain = chains[top_type] = _Chain(hierarchy, document, pins)
        nodes += entry.count * chain.hierarchy.nodes_in(chain.hierarchy.top_level)
        if nodes > MAX_CELLS:
            raise document.error(entry.path, f"{nodes:,} nodes up to here; the most is {MAX_CELLS:,}")
        chain.add(entry)
    hierarchies = [chain.hierarchy for chain in chains.values()]
    _refuse_nested_pins(pins, hierarchies, document)
    _refuse_duplicate_nodes(list(chains.values()), document)
    return Physical(tuple(chain.compiled() for chain in chains.values()), tuple(hierarchies), pins)


def _entries(cells: Sequence[PhysicalCell], path: KeyPath, document: Document) -> Iterator[_Entry]:
    """The entries of a list of cells, ranges expanded."""
    offset = 0
    for number, cell in enumerate(cells):
        entry = _entry(cell, (*path, number), offset, document)
        offset += entry.count
        yield entry


def _entry(cell: PhysicalCell, path: KeyPath, offset: int, document: Document) -> _Entry:
    address = cell.cell_address
    if address is None:
        return _Entry(cell, path, (), offset)
    if isinstance(address, int) or not has_range(address):
        return _Entry(cell, path, (str(address),), offset)
    try:
        names = expand(address)
    except RangeError as error:
        raise document.error((*path, "cellAddress"), str(error)) from None
    _refuse_pins_in_range(cell, path, address, document)
    return _Entry(cell, path, names, offset)


class _Chain:
    """One chain while its cells are being placed, in the order of the spec."""

    __slots__ = ("_devices", "_document", "_first_nodes", "_paths", "_pins", "_top_cells", "hierarchy", "names")

    def __init__(self, hierarchy: Hierarchy, document: Document, pins: dict[str, Pin]) -> None:
        self.hierarchy = hierarchy
        #: node names, in order
        self.names: list[str] = []
        self._document = document
        self._pins = pins
        self._top_cells = 0
        self._devices: dict[int, tuple[int, ...]] = {}
        #: nodes from ``_first_nodes[i]`` on were named by the entry at ``_paths[i]``: only read for messages
        self._first_nodes: list[int] = []
        self._paths: list[KeyPath] = []

    def add(self, entry: _Entry) -> None:
        """Append the top cells of ``entry``."""
        self._place(entry, self.hierarchy.top_level, self._top_cells, entry.offset)
        self._top_cells += entry.count

    def compiled(self) -> ChainSpec:
        """The finished chain."""
        hierarchy = self.hierarchy
        return ChainSpec(
            name=hierarchy.name,
            levels=hierarchy.levels,
            node_level=hierarchy.node_level,
            top_cells=self._top_cells,
            node_names=tuple(self.names),
            device_indices=self._devices,
        )

    def devices_of(self, node: int) -> tuple[int, ...]:
        """The device indices of a node, in leaf order."""
        return self._devices.get(node) or tuple(range(self.hierarchy.node_gpus))

    def path_of(self, node: int) -> KeyPath:
        """The entry that named a node."""
        return self._paths[bisect_right(self._first_nodes, node) - 1]

    def _place(self, entry: _Entry, level: int, index: int, number: int) -> None:
        """Place cells at or above node level: ``(level, index)`` on, whose default addresses are ``number`` on."""
        self._pin(entry, level, index)
        first = len(self.names)
        if level == self.hierarchy.node_level:
            self._named_by(entry.path)
            self.names.extend(entry.names or (str(number),))
            devices = self._devices_in(entry, index)
            if devices is not None:
                self._devices.update(dict.fromkeys(range(first, first + entry.count), devices))
        elif not entry.cell.cell_children:
            self._named_by(entry.path)
            nodes = self.hierarchy.nodes_in(level)
            self.names.extend(map(str, range(number * nodes, (number + entry.count) * nodes)))
        else:
            children, fanout = self._children(entry, level)
            for n in range(entry.count):
                for child in children:
                    position = n * fanout + child.offset
                    self._place(child, level - 1, index * fanout + position, number * fanout + position)

    def _devices_in(self, node: _Entry, index: int) -> tuple[int, ...] | None:
        """The device indices of each node of the entry ``node``; ``None`` if they are 0, 1, 2, ..."""
        if not node.cell.cell_children:
            return None
        found: list[tuple[int, KeyPath]] = []
        self._collect_devices(_Entry(node.cell, node.path, (), 0), self.hierarchy.node_level, index, 0, found)
        first: dict[int, KeyPath] = {}
        for device, path in found:
            if device in first:
                name = node.names[0] if node.names else "with its default name"
                raise self._document.error(
                    path,
                    f"device {device} is in node `{shown(name)}` twice (first at "
                    f"{self._document.place(first[device])}); give every device of a node another cellAddress",
                )
            first[device] = path
        devices = tuple(first)
        return None if devices == tuple(range(len(devices))) else devices

    def _collect_devices(
        self, entry: _Entry, level: int, index: int, number: int, found: list[tuple[int, KeyPath]]
    ) -> None:
        """Append the devices of cells in a node, whose default addresses are ``number`` on, with their entries."""
        if level < self.hierarchy.node_level:
            self._pin(entry, level, index)
        if level == 1:
            if entry.cell.cell_children:
                raise self._document.error((*entry.path, "cellChildren"), "a device has no children")
            devices = [self._device(name, entry.path) for name in entry.names] or [number]
            found.extend((device, entry.path) for device in devices)
        elif not entry.cell.cell_children:
            gpus = self.hierarchy.levels[level - 1].gpus
            found.extend((device, entry.path) for device in range(number * gpus, (number + entry.count) * gpus))
        else:
            children, fanout = self._children(entry, level)
            for n in range(entry.count):
                for child in children:
                    position = n * fanout + child.offset
                    self._collect_devices(
                        child, level - 1, index * fanout + position, number * fanout + position, found
                    )

    def _device(self, address: str, path: KeyPath) -> int:
        if not _DEVICE.fullmatch(address):
            raise self._document.error(
                (*path, "cellAddress"),
                f"the address of a device is its index in the node, a whole number, not `{shown(address)}`",
            )
        return int(address)

    def _children(self, entry: _Entry, level: int) -> tuple[list[_Entry], int]:
        """The children spelled out for cells at ``level``, and their number; their type and number are checked."""
        parent, expected = (self.hierarchy.levels[n - 1] for n in (level, level - 1))
        path: KeyPath = (*entry.path, "cellChildren")
        children = []
        for child in _entries(entry.cell.cell_children or (), path, self._document):
            given = child.cell.cell_type
            if given is not None and given != expected.cell_type:
                raise self._document.error(
                    (*child.path, "cellType"),
                    f"`{shown(given)}` cannot be inside `{shown(parent.cell_type)}`, whose children are "
                    f"`{shown(expected.cell_type)}`; leave cellType out or write that",
                )
            children.append(child)
        have = sum(child.count for child in children)
        if have != parent.fanout:
            raise self._document.error(
                path,
                f"`{shown(parent.cell_type)}` has {parent.fanout} children (childCellNumber), {have} given; "
                "write all of them, or leave cellChildren out",
            )
        return children, parent.fanout

    def _pin(self, entry: _Entry, level: int, index: int) -> None:
        name = entry.cell.pinned_cell_id
        if name is None:
            return
        path: KeyPath = (*entry.path, "pinnedCellId")
        if name in self._pins:
            place = self._document.place(self._pins[name].path)
            raise self._document.error(
                path, f"pinned cell `{shown(name)}` is given twice (first at {place}); an id names one cell"
            )
        self._pins[name] = Pin(PinnedCellSpec(name, self.hierarchy.name, level, index), path)

    def _named_by(self, path: KeyPath) -> None:
        self._first_nodes.append(len(self.names))
        self._paths.append(path)


def _refuse_pins_in_range(cell: PhysicalCell, path: KeyPath, address: str, document: Document) -> None:
    if cell.pinned_cell_id is not None:
        raise document.error(
            (*path, "pinnedCellId"),
            f"pinned cell `{shown(cell.pinned_cell_id)}` in the range `{shown(address)}`: an id names one cell; "
            "give that cell an entry of its own",
        )
    for number, child in enumerate(cell.cell_children or ()):
        _refuse_pins_in_range(child, (*path, "cellChildren", number), address, document)


def _refuse_nested_pins(pins: dict[str, Pin], hierarchies: Sequence[Hierarchy], document: Document) -> None:
    by_cell = {(pin.cell.chain, pin.cell.level, pin.cell.index): pin for pin in pins.values()}
    levels = {hierarchy.name: hierarchy.levels for hierarchy in hierarchies}
    for pin in pins.values():
        index = pin.cell.index
        chain = levels[pin.cell.chain]
        for level in range(pin.cell.level + 1, len(chain) + 1):
            index //= chain[level - 1].fanout
            outer = by_cell.get((pin.cell.chain, level, index))
            if outer is not None:
                raise document.error(
                    pin.path,
                    f"pinned cell `{shown(pin.cell.pinned_cell_id)}` is inside pinned cell "
                    f"`{shown(outer.cell.pinned_cell_id)}` ({document.place(outer.path)}); pin one of the two",
                )


def _refuse_duplicate_nodes(chains: Sequence[_Chain], document: Document) -> None:
    """Names are unique in a chain; a name in two chains is one machine with two kinds of device, indices disjoint."""
    by_name: list[dict[str, int]] = []
    for chain in chains:
        nodes = {name: node for node, name in enumerate(chain.names)}
        if len(nodes) < len(chain.names):
            # the dict keeps the last node of each name: the first node that is not the last of its name is a duplicate
            node = next(node for node, name in enumerate(chain.names) if nodes[name] != node)
            name = chain.names[node]
            again = chain.names.index(name, node + 1)
            raise document.error(
                chain.path_of(again),
                f"node `{shown(name)}` is given twice (first at {document.place(chain.path_of(node))}); "
                "give every node another cellAddress",
            )
        by_name.append(nodes)
    for b, second in enumerate(chains):
        for a, first in enumerate(chains[:b]):
            shared = by_name[a].keys() & by_name[b].keys()
            for name in sorted(shared, key=by_name[b].__getitem__):
                node, again = by_name[a][name], by_name[b][name]
                both = set(first.devices_of(node)) & set(second.devices_of(again))
                if both:
                    raise document.error(
                        second.path_of(again),
                        f"node `{shown(name)}` is given twice (first in chain `{shown(first.hierarchy.name)}` at "
                        f"{document.place(first.path_of(node))}) and both have device {min(both)}; give it another "
                        "cellAddress, or, if one machine has both kinds of device, give its devices different "
                        "addresses",
                    )
