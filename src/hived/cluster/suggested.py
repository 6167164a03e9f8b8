"""Suggested nodes: a group that may only go to some nodes, and finds its way there if there is one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from .floor import Floor
from .tenancy import Pods, Tenancy, by_host

#: how many ways to stand are tried for one choice of virtual hosts
STEPS = 2_000


class Suggested:
    """The nodes, per chain, that a request may use. O(nodes named)."""

    __slots__ = ("names", "nodes", "number", "searched_all")

    def __init__(self, names: frozenset[str], floors: Sequence[Floor], numbers: Sequence[dict[str, int]]) -> None:
        #: as given
        self.names = names
        #: per chain: the nodes, ascending
        self.nodes = [sorted(by_name[name] for name in names if name in by_name) for by_name in numbers]
        #: how many nodes of the cluster are among them
        self.number = len({name for name in names if any(name in by_name for by_name in numbers)})
        #: whether no search was cut short
        self.searched_all = True

    def hosts_elsewhere(self, tenancy: Tenancy) -> list[int]:
        """The hosts of a pool that stand on other nodes, ascending. O(hosts)."""
        allowed = set(self.nodes[tenancy.floor.number])
        pool = tenancy.pool
        found = []
        for host in range(pool.hosts):
            cell = tenancy.binder.bound[host]
            if cell >= 0 and cell * pool.shapes[host].leaves // pool.hierarchy.node_size not in allowed:
                found.append(host)
        return found

    def could_stand(self, tenancy: Tenancy, host: int, mask: int) -> bool:
        """Whether there is a cell for ``host`` on these nodes at all."""
        return next(self.cells(tenancy, host, mask), -1) >= 0

    def cells(self, tenancy: Tenancy, host: int, mask: int) -> Iterator[int]:
        """The cells on these nodes that an unbound ``host`` can stand on with enough healthy leaves, best first.

        The fewest leaves in opportunistic use, then the lowest number. O(nodes named).
        """
        pool, chain, binder = tenancy.pool, tenancy.floor.chain, tenancy.binder
        shape = pool.shapes[host]
        per_node = pool.hierarchy.node_size // shape.leaves
        usable = []
        for node in self.nodes[tenancy.floor.number]:
            for part in range(per_node):
                bad = chain.bad[node] >> part * shape.leaves & shape.full
                if shape.leaves - bad.bit_count() >= mask.bit_count():
                    crowd = chain.opportunistic[node] >> part * shape.leaves & shape.full
                    usable.append((crowd.bit_count(), bad.bit_count(), node * per_node + part))
        usable.sort()
        return (cell for _, _, cell in usable if binder.can_stand(host, cell))


def stand_on_suggested(tenancy: Tenancy, pods: Pods, suggested: Suggested) -> dict[int, int] | None:
    """A cell on the suggested nodes for every host that is not bound yet; None when there is no such way.

    A search that goes back on its choices: a host standing in one rack can shut another out of it. At most ``STEPS``
    choices are tried. Nothing is bound afterwards.
    """
    binder, pool = tenancy.binder, tenancy.pool
    hosts = [(host, mask) for host, mask in by_host(pods) if binder.bound[host] < 0]
    standing: dict[int, int] = {}
    steps = 0

    def go_on(position: int) -> bool:
        nonlocal steps
        if position == len(hosts):
            return True
        host, mask = hosts[position]
        if binder.bound[host] >= 0:  # anchored there meanwhile, since its neighbours stand beside bad hardware
            return False
        for cell in list(suggested.cells(tenancy, host, mask)):
            steps += 1
            if steps > STEPS:
                suggested.searched_all = False
                return False
            binder.stand(host, cell, mask)
            standing[host] = cell
            healthy = not pool.bad[host] & mask
            if healthy and go_on(position + 1):
                binder.unbind(host, 0)
                return True
            binder.unbind(host, 0)
            del standing[host]
        return False

    return standing if go_on(0) else None


def nodes_named(names: Collection[str], floors: Sequence[Floor], numbers: Sequence[dict[str, int]]) -> Suggested | None:
    """The suggestion, None where it names every node and so restricts nothing."""
    wanted = frozenset(names)
    if all(name in wanted for by_name in numbers for name in by_name):
        return None
    return Suggested(wanted, floors, numbers)
