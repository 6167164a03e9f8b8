"""The compiled cluster spec: plain, frozen, regular.

A spec file is free in form (defaults, ranges, nested children); the rest of the system reads only the types here. A
*chain* is one kind of top cell, with every level below it. All cells of one level of a chain have the same number of
children, so a cell is a pair ``(level, index)`` and is not stored:

    level 3 (top)          0                     1          children of (k, i):  (k-1, i*fanout .. i*fanout+fanout-1)
    level 2            0       1             2       3      parent of (k, i):    (k+1, i // fanout of level k+1)
    level 1 (leaf)   0   1   2   3         4   5   6   7    leaves of (k, i):    i*gpus .. i*gpus+gpus-1

Levels are counted from 1 (a leaf cell: one device), as in the paper (HiveD, OSDI'20, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from hived.errors import InputError

#: node and device index
Device = tuple[str, int]
#: the longest grace period of a loan between SIGTERM and SIGKILL, where the virtual cluster gives no other
OPPORTUNISTIC_GRACE_SECONDS = 30
#: who may be guests of a virtual cluster, beside its own groups: nobody, opportunistic groups of its own, or of all
GuestsOf: TypeAlias = Literal["none", "own", "all"]
NO_GUESTS: Final = "none"
#: what is promised to a virtual cluster whose jobs start before their turn: its cells; or besides, each job's end
SafetyOf: TypeAlias = Literal["work-conserving", "exact"]
WORK_CONSERVING: Final = "work-conserving"
EXACT: Final = "exact"


@dataclass(frozen=True, slots=True)
class LevelSpec:
    """One level of a chain."""

    cell_type: str  #: cell type of this level in the spec, e.g. ``DGX2-V100-NODE``
    fanout: int  #: children of one cell; 1 at the leaf level
    gpus: int  #: leaf cells under one cell; 1 at the leaf level


@dataclass(frozen=True, slots=True)
class ChainSpec:
    """All physical cells of one top cell type."""

    name: str  #: the top cell's type
    levels: tuple[LevelSpec, ...]  #: from the leaf (level 1, index 0 here) to the top
    node_level: int  #: the level (1-based) whose cells are nodes
    top_cells: int  #: how many top cells there are
    node_names: tuple[str, ...]  #: name of node ``i``; length ``top_cells * gpus(top) / gpus(node)``
    #: device indices of node ``i``'s leaves in leaf order, for the nodes whose spec gives other than 0, 1, 2, ...
    device_indices: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def leaf_type(self) -> str:
        """The device type, e.g. ``V100``."""
        return self.levels[0].cell_type

    @property
    def gpus(self) -> int:
        """Leaf cells in the whole chain."""
        return self.top_cells * self.levels[-1].gpus

    @property
    def gpus_per_node(self) -> int:
        """Leaf cells in one node."""
        return self.levels[self.node_level - 1].gpus

    def path_to(self, level: int) -> str:
        """The qualified name of the cells at ``level`` (1-based): ``RACK.NODE.SOCKET``."""
        return ".".join(part.cell_type for part in reversed(self.levels[level - 1 :]))

    def cells_at(self, level: int) -> int:
        """How many cells the chain has at ``level`` (1-based)."""
        return self.gpus // self.levels[level - 1].gpus

    def device_index(self, node: int, leaf: int) -> int:
        """The device index on ``node`` of its ``leaf``-th leaf cell."""
        devices = self.device_indices.get(node)
        return devices[leaf] if devices else leaf


@dataclass(frozen=True, slots=True)
class PinnedCellSpec:
    """A physical cell permanently bound to one VC."""

    pinned_cell_id: str
    chain: str  #: name of its chain
    level: int  #: 1-based
    index: int  #: the cell is ``(level, index)`` of the chain


@dataclass(frozen=True, slots=True)
class VirtualCellsSpec:
    """``number`` preassigned cells of one kind."""

    chain: str
    level: int  #: 1-based
    number: int


@dataclass(frozen=True, slots=True)
class AccessSpec:
    """Who may use a virtual cluster, by the texts of the spec (:class:`hived.spec.subjects.Subject`), and how much."""

    members: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    max_priority: int | None = None  #: that a member may ask for; None: any, here and below
    max_jobs: int | None = None  #: of a member, that have not ended
    max_gpus: int | None = None  #: of guaranteed jobs of a member at work or in line; others are held
    max_grace_seconds: int | None = None  #: of a guaranteed job of a member, between SIGTERM and SIGKILL
    file_group: str = ""  #: of the machine, who may read the files of its jobs; "": nobody but their owners


@dataclass(frozen=True, slots=True)
class VirtualClusterSpec:
    """A virtual cluster: the reservation of one tenant."""

    name: str
    cells: tuple[VirtualCellsSpec, ...]
    pinned: tuple[PinnedCellSpec, ...] = ()
    opportunistic_weight: float | None = None  #: of its share of what is lent, above 0; None: the size of the VC
    opportunistic_grace_seconds: int = OPPORTUNISTIC_GRACE_SECONDS  #: longest grace period of its loans
    guests: GuestsOf = NO_GUESTS  #: whose opportunistic groups may run beside its groups, on their leaf cells
    policy: str = ""  #: the name of its scheduling policy; "": the default of the engine
    #: ``exact``: none of its jobs ends later than in a private cluster (docs/explanation/exact-safety.md)
    safety: SafetyOf = WORK_CONSERVING
    access: AccessSpec | None = None  #: None: of nobody but operators

    def reserved(self) -> list[tuple[str, int, int]]:
        """Chain, level and number of the cells that it reserved, each pinned one after the others."""
        cells = [(found.chain, found.level, found.number) for found in self.cells]
        return cells + [(pin.chain, pin.level, 1) for pin in self.pinned]


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A physical cluster and its virtual clusters, checked for form (not yet for feasibility)."""

    chains: tuple[ChainSpec, ...]  #: in the order in which the spec first names them
    virtual_clusters: tuple[VirtualClusterSpec, ...]  #: in the order of the spec
    source: str = "<dict>"  #: the file it came from, for messages
    ignored: tuple[tuple[str, int], ...] = ()  #: ignored keys, with their line
    #: cells that count as reserved and are no VC's: they change hands just now
    withheld: tuple[VirtualCellsSpec, ...] = ()
    operators: tuple[str, ...] = ()  #: subjects who may do everything, beside the engine's owner

    def check(self) -> None:
        """Raise :class:`~hived.errors.InputError` where a virtual cluster reserves cells that no chain has.

        Or where two pinned cells share leaf cells. A spec that was read has been checked. O(virtual clusters).
        """
        pinned: list[tuple[str, int, int, str]] = []  # chain, first leaf cell, the one after the last, and whose
        chains = {chain.name: chain for chain in self.chains}
        for vc in self.virtual_clusters:
            for name, level, number in vc.reserved():
                chain = chains.get(name)
                if chain is None:
                    raise InputError(f"{vc.name} reserves cells of chain {name!r}; there is {', '.join(chains)}")
                if not 1 <= level <= len(chain.levels) or number < 0:
                    have = f"chain {name} has levels 1 to {len(chain.levels)}"
                    raise InputError(f"{vc.name} reserves {number} cells of level {level}: {have}")
            for pin in vc.pinned:
                chain = chains[pin.chain]
                what = f"{pin.pinned_cell_id!r} of {vc.name}"
                if not 0 <= pin.index < chain.cells_at(pin.level):
                    have = f"chain {pin.chain} has {chain.cells_at(pin.level)} cells there, from 0"
                    raise InputError(f"pinned cell {what} is cell {pin.index} of level {pin.level}: {have}")
                gpus = chain.levels[pin.level - 1].gpus
                pinned.append((pin.chain, pin.index * gpus, (pin.index + 1) * gpus, what))
        pinned.sort()
        for (name, _, end, one), (other_name, start, _, other) in pairwise(pinned):
            if name == other_name and start < end:
                raise InputError(f"pinned cells {one} and {other} share leaf cells; pin each to cells of its own")

    def chain(self, name: str) -> ChainSpec:
        """The chain named ``name``; ``KeyError`` if there is none."""
        for chain in self.chains:
            if chain.name == name:
                return chain
        raise KeyError(name)

    @property
    def gpus(self) -> int:
        """Leaf cells of all chains."""
        return sum(chain.gpus for chain in self.chains)

    @property
    def node_names(self) -> tuple[str, ...]:
        """All nodes, each once, in the order of the spec: a node may have cells of several chains. O(nodes)."""
        return tuple(dict.fromkeys(name for chain in self.chains for name in chain.node_names))

    def devices(self) -> Iterator[Device]:
        """All devices, in the order of the spec. A node's chains follow one another. O(devices)."""
        for chain in self.chains:
            for number, node in enumerate(chain.node_names):
                for leaf in range(chain.gpus_per_node):
                    yield node, chain.device_index(number, leaf)

    def reserved(self, vc: VirtualClusterSpec) -> int:
        """Leaf cells that a virtual cluster reserved, pinned ones among them. O(its cells)."""
        return sum(number * self.chain(chain).levels[level - 1].gpus for chain, level, number in vc.reserved())
