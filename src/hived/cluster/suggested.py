"""Suggested nodes: the restriction of a request to some nodes, and the search for a binding on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import islice, tee

from hived.cells import Steps, backtrack

from .node_index import NodeIndex
from .nodes import Nodes
from .pool import Pool
from .requests import NodeFilter
from .undo import Undo
from .virtual import Spots, by_host

#: how many bindings are tried for one choice of virtual hosts
MAX_STEPS = 2_000

#: whether a node, by its number in its chain, may be used
Allowed = Callable[[int], bool]


class Suggested:
    """The nodes, per chain, that a request may use: the named ones, or all but the named ones. O(names) to make."""

    def __init__(self, node_filter: NodeFilter, index: NodeIndex) -> None:
        """``node_filter``: names of suggested nodes, None for all; and names of excluded nodes."""
        #: as given
        self.node_filter = node_filter
        names, excluded = node_filter
        self._chains = index.chains
        # whether all but the named ones are allowed
        self._others = names is None
        named = excluded if names is None else names - excluded
        # per chain: the named ones
        self._named: list[set[int]] = []
        for numbers in index.numbers:
            fewer, more = (named, numbers) if len(named) < len(numbers) else (numbers, named)
            self._named.append({numbers[name] for name in fewer if name in more})
        #: whether no search was cut short
        self.searched_all = True

    @property
    def restricts(self) -> bool:
        """Whether there is a node that is not allowed. O(1)."""
        named = [len(of_chain) for of_chain in self._named]
        return any(named) if self._others else named != [len(chain.names) for chain in self._chains]

    @property
    def number(self) -> int:
        """How many nodes with a healthy leaf are allowed. O(nodes)."""
        return len({n.names[i] for n in self._chains for i in self.nodes(n) if n.bad[i] != n.shapes[i].full})

    def of(self, chain: int) -> Allowed:
        """Whether a node of this chain is allowed."""
        named, others = self._named[chain], self._others
        return lambda node: (node in named) is not others

    def nodes(self, nodes: Nodes) -> Iterable[int]:
        """The allowed nodes of a chain, ascending. O(nodes named), or O(nodes) where all others are allowed."""
        return self._picked(nodes, not self._others)

    def others(self, nodes: Nodes) -> Iterable[int]:
        """The other nodes of a chain, ascending. O(nodes named), or O(nodes) where only the named ones are allowed."""
        return self._picked(nodes, self._others)

    def _picked(self, nodes: Nodes, is_named: bool) -> Iterable[int]:
        named = self._named[nodes.number]
        return sorted(named) if is_named else (node for node in range(len(nodes.names)) if node not in named)

    def hosts_elsewhere(self, pool: Pool) -> list[int]:
        """The hosts of a pool that are bound to other nodes, ascending. O(hosts)."""
        binding, allowed = pool.binding, self.of(pool.nodes.number)
        bound = binding.bound
        return [host for host in range(pool.virtual.hosts) if bound[host] >= 0 and not allowed(binding.node_of(host))]

    def could_bind(self, pool: Pool, host: int, mask: int) -> bool:
        """Whether there is a cell for ``host`` on these nodes at all. O(nodes)."""
        return any(pool.binding.can_bind(host, cell) for cell in self.cells(pool, host, mask))

    def cells(self, pool: Pool, host: int, mask: int) -> Iterator[int]:
        """The cells on these nodes of the size of ``host`` with enough healthy leaves, best first. O(nodes) for all.

        The fewest leaves in opportunistic use, then the fewest bad ones, then the lowest number. Cells with guaranteed
        leaves are left out: other hosts are bound to them.
        """
        chain, shape = pool.nodes, pool.virtual.shapes[host]
        per_node = pool.virtual.hierarchy.node_size // shape.leaves
        wanted = mask.bit_count()
        rest = []
        for node in self.nodes(pool.nodes):
            for part in range(per_node):
                if chain.owned[node] >> part * shape.leaves & shape.full:
                    continue
                bad = chain.bad[node] >> part * shape.leaves & shape.full
                opportunistic = chain.lent[node] >> part * shape.leaves & shape.full
                if not (bad or opportunistic):
                    yield node * per_node + part
                elif shape.leaves - bad.bit_count() >= wanted:
                    rest.append((opportunistic.bit_count(), bad.bit_count(), node * per_node + part))
        for _, _, cell in sorted(rest):
            yield cell


def bind_on_suggested(pool: Pool, pods: Spots, suggested: Suggested, undo: Undo) -> bool:
    """Bind every unbound host to a cell on the suggested nodes; ``False`` where the search finds no way.

    A backtracking search, since a host bound in one rack can shut another out of it. At most ``MAX_STEPS`` choices more
    than there are hosts are tried. Where it fails, the caller rolls back. O(n log n + hosts^2 + steps * levels).
    """
    binding, shapes = pool.binding, pool.virtual.shapes
    hosts = [(host, mask) for host, mask in by_host(pods) if binding.bound[host] < 0]
    cells: dict[tuple[int, int], Iterator[int]] = {}  # by leaves of a host, and the number of healthy leaves needed
    for host, mask in hosts:
        kind = shapes[host].leaves, mask.bit_count()
        if kind not in cells:
            (cells[kind],) = tee(
                suggested.cells(pool, host, mask), 1
            )  # copied by each attempt, and read as far as needed
    for leaves, least in cells:
        alike = sum([shapes[host].leaves == leaves and mask.bit_count() >= least for host, mask in hosts])
        if sum(1 for _ in islice(copy(cells[leaves, least]), alike)) < alike:
            return False
    steps = Steps(MAX_STEPS + len(hosts))

    def attempts(at: int) -> Iterator[bool]:
        host, mask = hosts[at]
        # a host may be anchored by now, with a neighbour bound beside bad hardware: then there is no choice
        for cell in copy(cells[shapes[host].leaves, mask.bit_count()]) if binding.bound[host] < 0 else ():
            if not binding.can_bind(host, cell):
                continue
            steps.left -= 1
            if steps.left < 0:
                suggested.searched_all = False
                return
            mark = undo.mark()
            binding.acquire(host, mask, cell, exactly=True)
            if not binding.bad[host] & mask:
                yield True
            undo.rollback(mark)
            if steps.left < 0:
                return

    return backtrack(len(hosts), attempts)
