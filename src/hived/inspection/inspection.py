"""A snapshot of all cells of a cluster: their states, and the bindings between virtual and physical cells.

The mutable state is copied at once. Cells are made lazily from the copy, so a caller that renders a large cluster can
yield to other tasks in between and still shows one moment.

A cell is *used* if a group runs in it; but *reserving* or *reserved* if all its leaves are; else *free*. It is bad if
one of its leaves is. These are the states of deployed HiveD, with one difference: a virtual cell is used or reserved
only by groups of its VC that are placed in it, not by loans of other tenants on the physical cell that it is bound to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain as chain_of

from hived.cells import leaves_of
from hived.cluster import OPPORTUNISTIC, Cluster
from hived.cluster.binding import Binding
from hived.cluster.states import GroupState
from hived.errors import RequestError

from .cell import Cell
from .numbering import Reserved, numbering
from .sides import PhysicalSide, Spot, VirtualSide

#: groups per step of :meth:`Inspection.collect_claims`: about a millisecond of work
GROUPS_AT_ONCE = 1024


class Inspection:
    """The cells of a cluster in pre-order: each cell right before the cells inside it.

    A cell costs O(groups on its hosts).
    """

    __slots__ = ("_chains", "_groups", "_reserved", "_sides", "_tenants", "vcs")

    def __init__(self, cluster: Cluster) -> None:
        """Copy the state of ``cluster``: a few numbers per group and per host."""
        state = cluster.state_now()
        known = len(state.spec.virtual_clusters)
        self._tenants = {
            name: tenant for tenant, name in enumerate(state.tenants) if tenant < known or state.loans[tenant]
        }
        #: the VCs to inspect: those of the spec, and removed ones whose groups still run
        self.vcs = tuple(self._tenants)
        # the mutable attributes of the groups, until their claims are collected
        self._groups = [
            (group.tenant, group.priority, group.state, state.pool_of(group), group.spots, group.parts)
            for group in state.groups.values()
            if not group.guest  # it holds no cells
        ]
        self._chains: list[PhysicalSide] = []
        self._sides: dict[Binding, VirtualSide] = {}
        tops = 0
        for chain in state.chain_bindings:
            self._chains.append(PhysicalSide(chain, tops, tuple(state.tenants), self._sides))
            tops += chain.nodes.hierarchy.count[chain.nodes.hierarchy.top]
        #: per VC: its reserved cells, in the order of the spec
        self._reserved: dict[str, list[tuple[Reserved, VirtualSide]]] = {}
        for name, tenant in self._tenants.items():
            found = []
            for pool, reserved in zip(state.pools[tenant], numbering(state, tenant), strict=True):
                side = self._sides[pool.binding] = VirtualSide(name, pool, reserved, self._chains[pool.nodes.number])
                found += [(kind, side) for kind in reserved]
            self._reserved[name] = sorted(found, key=lambda of_kind: of_kind[0].number)

    def collect_claims(self) -> Iterator[None]:
        """Collect the leaves that each group claims, a batch of groups per step. O(pods), once.

        The first cell triggers it; a caller that has to yield to other tasks iterates over it before.
        """
        while self._groups:
            some = self._groups[-GROUPS_AT_ONCE:]
            del self._groups[-GROUPS_AT_ONCE:]
            for tenant, priority, state, pool, spots, parts in some:
                running, borrower = state is not GroupState.PREEMPTING, tenant if pool is None else -1
                for number, node, mask in parts:
                    chain = self._chains[number]
                    chain.claims.setdefault(node, []).append((mask, priority, running, borrower))
                    if pool is None:
                        chain.loans.setdefault(tenant, set()).add(node)
                if pool is not None:
                    claims = self._sides[pool.binding].claims
                    for host, mask in spots:
                        claims.setdefault(host, []).append((mask, priority, running, -1))
            yield

    def _walks(self, roots: Iterable[Spot]) -> Iterator[Cell]:
        for _ in self.collect_claims():
            pass
        for root in roots:
            yield from _walk(root)

    def physical(self) -> Iterator[Cell]:
        """The physical cells, chain by chain."""
        return self._walks(top for chain in self._chains for top in chain.tops())

    def virtual(self, vc: str) -> Iterator[Cell]:
        """The virtual cells of a VC, in the order of the spec; then the leaf cells of its opportunistic groups.

        Under a quota there are only the latter. Raises :class:`RequestError` if there is no such VC.
        """
        if vc not in self._tenants:
            raise RequestError("vc", f"there is no virtual cluster {vc!r}")
        roots = (side.reserved_cell(host) for kind, side in self._reserved[vc] for host in kind.first_hosts())
        loans = (cell for chain in self._chains for cell in self._loans(chain, vc))
        return chain_of(self._walks(roots), loans)

    def _loans(self, chain: PhysicalSide, vc: str) -> Iterator[Cell]:
        """The leaf cells on loan to opportunistic groups of a VC, as cells of it."""
        tenant = self._tenants[vc]
        for node in sorted(chain.loans.get(tenant, ())):
            for leaf in leaves_of(chain.lent(node, tenant)):
                spot = chain.at(1, node * chain.hierarchy.node_size + leaf)
                cell = chain.cell(spot, chain.borrower(spot))
                yield cell._replace(
                    depth=0, address=f"{cell.address}-opp", priority=OPPORTUNISTIC, vc=vc, other=cell, lent=True
                )


def _walk(root: Spot) -> Iterator[Cell]:
    """A cell of either side and all cells inside it, each with the cell of the other side that it is bound to."""
    side = root.side
    left: list[tuple[Spot, Spot | None]] = [(root, None)]
    while left:
        here, there = left.pop()
        there = there or side.partner(here)
        if there is None:
            yield side.cell(here, side.vc or side.borrower(here))
        else:
            vc = side.vc or there.side.vc
            yield side.cell(here, vc, there.side.cell(there, vc))
        if here.level > 1:
            on = {} if there is None else {child.on: child for child in there.side.children(there)}
            left += [(child, on.get(child.on)) for child in reversed(side.children(here))]
