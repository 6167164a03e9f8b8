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
        """Whether there is a cell for ``host`` on these nodes at all. O(nodes named)."""
        return any(tenancy.binder.can_stand(host, cell) for cell in self.cells(tenancy, host, mask))

    def cells(self, tenancy: Tenancy, host: int, mask: int) -> list[int]:
        """The cells on these nodes of the size of ``host`` with enough healthy leaves, best first. O(n log n).

        The fewest leaves in opportunistic use, then the fewest bad ones, then the lowest number.
        """
        chain, shape = tenancy.floor.chain, tenancy.pool.shapes[host]
        per_node = tenancy.pool.hierarchy.node_size // shape.leaves
        usable = []
        for node in self.nodes[tenancy.floor.number]:
            for part in range(per_node):
                bad = chain.bad[node] >> part * shape.leaves & shape.full
                if shape.leaves - bad.bit_count() >= mask.bit_count():
                    crowd = chain.opportunistic[node] >> part * shape.leaves & shape.full
                    usable.append((crowd.bit_count(), bad.bit_count(), node * per_node + part))
        return [cell for _, _, cell in sorted(usable)]


def stand_on_suggested(tenancy: Tenancy, pods: Pods, suggested: Suggested) -> dict[int, int] | None:
    """A cell on the suggested nodes for every host that is not bound yet; None when there is no such way.

    A search that goes back on its choices: a host standing in one rack can shut another out of it. At most ``STEPS``
    choices more than there are hosts are tried. Nothing is bound afterwards. O(n log n + hosts^2 + steps * levels).
    """
    binder, pool = tenancy.binder, tenancy.pool
    hosts = [(host, mask) for host, mask in by_host(pods) if binder.bound[host] < 0]
    lists: dict[tuple[int, int], list[int]] = {}
    for host, mask in hosts:
        kind = pool.shapes[host].leaves, mask.bit_count()
        if kind not in lists:
            lists[kind] = suggested.cells(tenancy, host, mask)
    for leaves, least in lists:
        alike = [pool.shapes[host].leaves == leaves and mask.bit_count() >= least for host, mask in hosts]
        if len(lists[leaves, least]) < sum(alike):
            return None
    standing: dict[int, int] = {}
    taken: set[tuple[int, int]] = set()
    steps = STEPS + len(hosts)
    choices: list[Iterator[int]] = []
    try:
        while len(standing) < len(hosts):
            if len(choices) == len(standing):
                host, mask = hosts[len(standing)]
                fits = lists[pool.shapes[host].leaves, mask.bit_count()]
                # anchored meanwhile, since its neighbours stand beside bad hardware: then there is no choice
                choices.append(iter(fits if binder.bound[host] < 0 else ()))
            host, mask = hosts[len(choices) - 1]
            for cell in choices[-1]:
                if (pool.shapes[host].leaves, cell) in taken or not binder.can_stand(host, cell):
                    continue
                steps -= 1
                if steps < 0:
                    suggested.searched_all = False
                    return None
                binder.stand(host, cell, mask)
                if pool.bad[host] & mask:
                    binder.unbind(host, 0)
                    continue
                standing[host] = cell
                taken.add((pool.shapes[host].leaves, cell))
                break
            else:  # back to the host before, and its next cell
                choices.pop()
                if not choices:
                    return None
                host, _ = hosts[len(choices) - 1]
                taken.discard((pool.shapes[host].leaves, standing.pop(host)))
                binder.unbind(host, 0)
        return dict(standing)
    finally:
        for host in reversed(standing):
            binder.unbind(host, 0)


def nodes_named(names: Collection[str], floors: Sequence[Floor], numbers: Sequence[dict[str, int]]) -> Suggested | None:
    """The suggestion, None where it names every node and so restricts nothing."""
    wanted = frozenset(names)
    if all(name in wanted for by_name in numbers for name in by_name):
        return None
    return Suggested(wanted, floors, numbers)
