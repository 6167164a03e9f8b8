"""Suggested nodes: a group that may only go to some nodes, and finds its way there if there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice

from .nodes import Nodes
from .pool import Pool, Spots, by_host
from .requests import Given
from .undo import Undo

#: how many ways to stand are tried for one choice of virtual hosts
STEPS = 2_000

#: whether a node, by its number in its chain, may be used
Allowed = Callable[[int], bool]


class Suggested:
    """The nodes, per chain, that a request may use: those that are named, or all but those. O(1) to make."""

    __slots__ = ("_chains", "_named", "_numbers", "_others", "given", "searched_all")

    def __init__(
        self,
        names: frozenset[str] | None,
        excluded: frozenset[str],
        chains: Sequence[Nodes],
        numbers: Sequence[dict[str, int]],
    ) -> None:
        """``names``: None for all nodes; ``excluded``: not these; ``numbers``: of the nodes of each chain."""
        #: as given
        self.given: Given = names, excluded
        self._chains, self._numbers = chains, numbers
        # whether all but the named ones are allowed
        self._others = names is None
        self._named = excluded if names is None else names - excluded
        #: whether no search was cut short
        self.searched_all = True

    @property
    def restricts(self) -> bool:
        """Whether there is a node that is not allowed. O(names) at most."""
        if self._others:
            return any(name in by_name for name in self._named for by_name in self._numbers)
        return any(name not in self._named for by_name in self._numbers for name in by_name)

    @property
    def number(self) -> int:
        """How many nodes with a healthy leaf are allowed. O(nodes)."""
        found: set[str] = set()
        for chain in self._chains:
            healthy = (node for node in self.nodes(chain) if chain.bad[node] != chain.shapes[node].full)
            found.update(chain.names[node] for node in healthy)
        return len(found)

    def of(self, chain: int) -> Allowed:
        """Whether a node of this chain is allowed."""
        names, named = self._chains[chain].names, self._named
        return (lambda node: names[node] not in named) if self._others else (lambda node: names[node] in named)

    def nodes(self, nodes: Nodes) -> Iterable[int]:
        """Those of a chain that are allowed, ascending. O(nodes named), or O(nodes) where all others are allowed."""
        return self._picked(nodes, not self._others)

    def others(self, nodes: Nodes) -> Iterable[int]:
        """Those of a chain that are not allowed, ascending. O(nodes named), or O(nodes) where only these are."""
        return self._picked(nodes, self._others)

    def _picked(self, nodes: Nodes, is_named: bool) -> Iterable[int]:
        by_name, named = self._numbers[nodes.number], self._named
        if is_named:
            return sorted(by_name[name] for name in named if name in by_name)
        return (node for node, name in enumerate(nodes.names) if name not in named)

    def hosts_elsewhere(self, pool: Pool) -> list[int]:
        """The hosts of a pool that stand on other nodes, ascending. O(hosts)."""
        binding, allowed = pool.binding, self.of(pool.nodes.number)
        bound = binding.bound
        return [host for host in range(pool.virtual.hosts) if bound[host] >= 0 and not allowed(binding.node_of(host))]

    def could_stand(self, pool: Pool, host: int, mask: int) -> bool:
        """Whether there is a cell for ``host`` on these nodes at all. O(nodes)."""
        return any(pool.binding.can_stand(host, cell) for cell in self.cells(pool, host, mask))

    def cells(self, pool: Pool, host: int, mask: int) -> Iterator[int]:
        """The cells on these nodes of the size of ``host`` with enough healthy leaves, best first. O(nodes) for all.

        The fewest leaves in opportunistic use, then the fewest bad ones, then the lowest number. Cells with guaranteed
        leaves are left out: they are bound to others.
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
                crowd = chain.lent[node] >> part * shape.leaves & shape.full
                if not (bad or crowd):
                    yield node * per_node + part
                elif shape.leaves - bad.bit_count() >= wanted:
                    rest.append((crowd.bit_count(), bad.bit_count(), node * per_node + part))
        for _, _, cell in sorted(rest):
            yield cell


class _AsNeeded:
    """What an iterator gives, for several readers, and not asked of it before one of them needs it."""

    __slots__ = ("_found", "_source")

    def __init__(self, source: Iterator[int]) -> None:
        self._source = source
        self._found: list[int] = []

    def has(self, number: int) -> bool:
        """Whether there are so many."""
        self._found += islice(self._source, max(0, number - len(self._found)))
        return len(self._found) >= number

    def __iter__(self) -> Iterator[int]:
        for place in count():
            if not self.has(place + 1):
                return
            yield self._found[place]


def stand_on_suggested(pool: Pool, pods: Spots, suggested: Suggested, undo: Undo) -> bool:
    """Bind every host that is not bound yet to a cell on the suggested nodes; ``False`` when there is no such way.

    A search that goes back on its choices: a host standing in one rack can shut another out of it. At most ``STEPS``
    choices more than there are hosts are tried. Where it fails, the caller rolls back.
    O(n log n + hosts^2 + steps * levels).
    """
    binding, shapes = pool.binding, pool.virtual.shapes
    hosts = [(host, mask) for host, mask in by_host(pods) if binding.bound[host] < 0]
    lists: dict[tuple[int, int], _AsNeeded] = {}
    for host, mask in hosts:
        kind = shapes[host].leaves, mask.bit_count()
        if kind not in lists:
            lists[kind] = _AsNeeded(suggested.cells(pool, host, mask))
    for leaves, least in lists:
        alike = [shapes[host].leaves == leaves and mask.bit_count() >= least for host, mask in hosts]
        if not lists[leaves, least].has(sum(alike)):
            return False
    steps = STEPS + len(hosts)
    taken: set[tuple[int, int]] = set()
    chosen: list[tuple[int, tuple[int, int]]] = []  # per host that stands: the moment before, and its cell
    choices: list[Iterator[int]] = []
    while len(chosen) < len(hosts):
        host, mask = hosts[len(chosen)]
        leaves = shapes[host].leaves
        if len(choices) == len(chosen):
            # anchored meanwhile, since its neighbours stand beside bad hardware: then there is no choice
            choices.append(iter(lists[leaves, mask.bit_count()] if binding.bound[host] < 0 else ()))
        for cell in choices[-1]:
            if (leaves, cell) in taken or not binding.can_stand(host, cell):
                continue
            steps -= 1
            if steps < 0:
                suggested.searched_all = False
                return False
            mark = undo.mark()
            binding.stand(host, cell, mask)
            if binding.bad[host] & mask:
                undo.rollback(mark)
                continue
            chosen.append((mark, (leaves, cell)))
            taken.add((leaves, cell))
            break
        else:  # back to the host before, and its next cell
            choices.pop()
            if not choices:
                return False
            mark, cell_before = chosen.pop()
            taken.discard(cell_before)
            undo.rollback(mark)
    return True


def nodes_named(
    names: frozenset[str] | None, excluded: frozenset[str], chains: Sequence[Nodes], numbers: Sequence[dict[str, int]]
) -> Suggested | None:
    """The suggestion, None where it restricts nothing. ``names``: None for all nodes."""
    if names is None and not excluded:
        return None
    suggested = Suggested(names, excluded, chains, numbers)
    return suggested if suggested.restricts else None
