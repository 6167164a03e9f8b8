"""Victim selection for a preemption inside a VC: the hosts and leaves with the least loss, and then the closest ones.

A group that loses a leaf loses all of its leaves, so the loss counts the groups that end, not the leaves taken: the
other leaves of a group that ends anyway cost nothing.

    A A B .    a pod of 2 in place of A: both leaves of A, and not one of them and the idle one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from heapq import nsmallest
from itertools import islice
from operator import or_

from hived.cells import Demand, Found, Leaves, Need, Rank, Space, apart, level_of, place

from .groups import Group
from .pool import Pool
from .virtual import Spots, by_host

#: groups of a host among which victims are chosen: all subsets of them are examined
MAX_GROUPS = 8
#: hosts examined for pods that go to one host, or for the first pod of a gang on several hosts
MAX_HOSTS = 16
#: hosts examined for all pods of a gang on several hosts; the search from the first host is always completed
MAX_STEPS = 1_000
#: pods of the largest gang on several hosts for which other hosts are examined
MAX_PODS = 64


def least_loss(
    pool: Pool, space: Space, needs: Sequence[Need], rank: Rank, found: Found, cap: int, up_to: int
) -> Found:
    """``found``, or leaves for the same pods elsewhere with less loss among the groups ``up_to`` a precedence."""
    search = _Search(pool, space, needs, rank, cap, up_to)
    one_host = len({host for host, _ in found.pods}) == 1
    return (search.on_one_host() or found) if one_host else search.on_hosts(found)


class _Search:
    """The search for the hosts and leaves of a pool with the least loss among the groups ``up_to`` a precedence."""

    def __init__(self, pool: Pool, space: Space, needs: Sequence[Need], rank: Rank, cap: int, up_to: int) -> None:
        self._pool, self._space, self._needs, self._rank, self._cap, self._up_to = pool, space, needs, rank, cap, up_to
        self._demand = Demand(needs)
        # hosts examined so far, for all pods of a gang on several hosts
        self._steps = 0
        # per host, pods there, and groups whose end would be a loss: the leaves with the least loss
        self._known: dict[tuple[int, tuple[Need, ...], frozenset[Group]], Sequence[int] | None] = {}

    def on_one_host(self) -> Found | None:
        """Place all pods on the host with the least loss.

        Hosts are examined in the order of the rank until no other can have less; among equals the host where the pods
        of a gang are closest wins. O(``MAX_HOSTS``) times :meth:`_least`.
        """
        space, needs, gpus = self._space, tuple(self._needs), self._demand.gpus
        level, size = max((need.level, need.gpus if need.level else 0) for need in needs)
        best: Found | None = None
        least = (0, 0, 0)
        for host in islice(space.in_order(self._rank, gpus, level, size, self._cap), MAX_HOSTS):
            masks = self._masks(host, needs, self._held_by(host))
            if masks is None:
                continue
            shape, pods = space.shapes[host], tuple([(host, mask) for mask in masks])
            cost = _lost(self._pool.on(pods)), level_of(shape, sum(masks)), apart(shape, masks)
            if best is None or cost < least:
                best, least = Found(pods, cost[1]), cost
            closest = sum([shape.profile(shape.full).level_for(need.gpus) for need in needs])
            if (len(needs) == 1 or cost[2] == closest) and cost[0] <= _at_least(gpus - space.idle[host].bit_count()):
                break  # the loss is the least possible, and the hosts behind need no fewer leaves
        return best

    def on_hosts(self, found: Found) -> Found:
        """``found``, on several hosts, or other hosts in one cell of its level with less loss.

        The first pod goes to one of the first hosts by rank, each in turn, and then every pod, the largest first, to
        the host with the least additional loss. At most ``MAX_STEPS``, or hosts times pods, times the cost of one host
        (see :meth:`_least`); repeated hosts are cached.
        """
        pool, space, demand = self._pool, self._space, self._demand
        best = found._replace(pods=self._on_the_same(found.pods))
        least = _lost(pool.on(best.pods))
        if least <= _at_least(demand.gpus - pool.total()) or len(demand.needs) > MAX_PODS:
            return best  # the loss is the least possible
        hosts = dict.fromkeys(host for host, _ in best.pods)
        for need in (demand.needs[0], demand.needs[-1]):
            usable = space.in_order(self._rank, need.gpus, need.level, need.gpus)
            hosts.update(dict.fromkeys(islice(usable, MAX_HOSTS)))
        ends_too = pool.on((host, space.free[host] & ~space.idle[host]) for host in hosts)
        hosts.update(
            dict.fromkeys(islice(sorted({host for group in ends_too for host, _ in group.spots}), 4 * MAX_HOSTS))
        )
        for first in list(hosts)[: MAX_HOSTS + len(best.pods)]:
            near = list(hosts)
            if found.level:
                cell_of = space.groups[found.level - space.node_level - 1]
                near = [host for host in hosts if cell_of[host] == cell_of[first] >= 0]
            pods = self._from(first, near)
            if pods is not None and _lost(pool.on(pods)) < least:
                best, least = found._replace(pods=pods), _lost(pool.on(pods))
            if self._steps > MAX_STEPS:
                break
        return best

    def _on_the_same(self, spots: Spots) -> Spots:
        """The same hosts, with the leaves of the least loss; a group that ends on one host is no loss on the next."""
        pods = list(spots)
        ended: set[Group] = set()
        for host, taken in by_host(spots):
            if taken & ~self._space.idle[host]:
                at = [i for i, (where, _) in enumerate(spots) if where == host]
                held = self._held_by(host)
                lose = {group: mask for group, mask in held.items() if group not in ended}
                masks = self._least(host, tuple([self._needs[i] for i in at]), [spots[i][1] for i in at], lose)
                ended.update(group for group, mask in held.items() if mask & sum(masks))
                for i, mask in zip(at, masks, strict=True):
                    pods[i] = host, mask
        return tuple(pods)

    def _from(self, first: int, hosts: Iterable[int]) -> Spots | None:
        """Hosts and leaves chosen pod by pod, the largest pod on ``first``; None where some pod does not fit."""
        shares: dict[int, tuple[list[int], Sequence[int]]] = {}
        ends: dict[int, list[Group]] = {}
        ended: Counter[Group] = Counter()
        for at in range(len(self._demand.needs)):
            best: tuple[int, bool, int] | None = None
            chosen = -1, list[int](), tuple[int, ...]()
            for position, host in enumerate(hosts if at else [first]):
                self._steps += 1
                here = [*shares[host][0], at] if host in shares else [at]
                alone = {group for group in ends.get(host, ()) if ended[group] == 1}
                held = self._held_by(host)
                lose = {group: mask for group, mask in held.items() if group in alone or not ended[group]}
                masks = self._masks(host, tuple([self._demand.needs[i] for i in here]), lose)
                if masks is None:
                    continue
                lost = [group for group, mask in lose.items() if mask & sum(masks)]
                cost = _lost(lost) - _lost(alone), host not in shares, position
                if best is None or cost < best:
                    best, chosen = cost, (host, here, tuple(masks))
            if best is None:
                return None
            host, here, found = chosen
            ended.subtract(ends.get(host, ()))
            ends[host] = [group for group, mask in self._held_by(host).items() if mask & sum(found)]
            ended.update(ends[host])
            shares[host] = here, found
        pods = [(-1, 0)] * len(self._demand.needs)
        for host, (here, masks) in shares.items():
            for at, mask in zip(here, masks, strict=True):
                pods[self._demand.order[at]] = host, mask
        return tuple(pods)

    def _held_by(self, host: int) -> dict[Group, int]:
        """The groups on a host that can be preempted, and their leaves."""
        return {group: mask for group, mask in self._pool.held.get(host, {}).items() if group.precedence <= self._up_to}

    def _masks(self, host: int, needs: tuple[Need, ...], lose: dict[Group, int]) -> Sequence[int] | None:
        """Masks for pods on one host with the least loss among the groups ``lose``, given with their leaves there.

        None where they do not fit.
        """
        known = host, needs, frozenset(lose)
        if known not in self._known:
            masks: Sequence[int] | None = self._space.place(host, needs, self._cap)
            if masks is not None and sum(masks) & ~self._space.idle[host]:
                masks = self._least(host, needs, masks, lose)
            self._known[known] = masks
        return self._known[known]

    def _least(self, host: int, needs: tuple[Need, ...], masks: Sequence[int], lose: dict[Group, int]) -> Sequence[int]:
        """``masks``, or others for the same pods on the same host, with the least loss among the groups ``lose``.

        First the fewest GPUs of groups that end (on all their nodes, once), then of groups that lose no work, then the
        closest leaves. O(2^``MAX_GROUPS``) for a host where more is lost than taken, or where closer leaves are
        obtainable.
        """
        space, cap = self._space, self._cap
        shape, obtainable, idle, taken = space.shapes[host], space.free[host], space.idle[host], sum(masks)
        needed = sum(need.gpus for need in needs)
        theirs = reduce(or_, lose.values(), 0)
        lost = sum(group.gpus for group, mask in lose.items() if mask & taken)
        closest = len(needs) == 1 and level_of(shape, taken) == shape.profile(obtainable).level_for(needed)
        if closest and lost <= max(0, needed - (obtainable & ~theirs).bit_count()):
            return masks
        groups = nsmallest(MAX_GROUPS, lose, key=lambda group: (not lose[group] & taken, _loss(group), group.sequence))
        never = reduce(or_, (mask for group, mask in lose.items() if group not in groups), 0)
        losses, leaves = [0], [never]  # of every subset of the groups, by its bits
        for group in groups:
            losses += [loss + _loss(group) for loss in losses]
            leaves += [held | lose[group] for held in leaves]
        best: tuple[int, int, int, int, Sequence[int]] | None = None
        for ends in sorted(range(len(losses)), key=losses.__getitem__):
            if best is not None and losses[ends] > best[0]:
                break
            free = obtainable & ~leaves[~ends]  # without the leaves of the groups that stay
            if free.bit_count() >= needed and (found := _place(Leaves(shape, free, free, 0), needs, cap)) is not None:
                spread = apart(shape, found)
                cost = losses[ends], level_of(shape, sum(found)), spread, (sum(found) & ~idle).bit_count(), found
                best = cost if best is None else min(best, cost)
        return masks if best is None else best[-1]


def _lost(groups: Iterable[Group]) -> int:
    return sum(map(_loss, groups))


def _at_least(gpus: int) -> int:
    """The loss of so many GPUs of groups that end."""
    return max(0, gpus) << 32


def _loss(group: Group) -> int:
    """The weighted GPUs of a group: one GPU of a group that ends outweighs all of groups that lose no work."""
    return group.gpus << 32 if group.precedence % 2 else group.gpus


_place = lru_cache(maxsize=4096)(place)
