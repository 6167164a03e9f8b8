"""A preemption inside a VC: the host and the leaves whose taking loses others least, and then the closest ones.

A group that loses a leaf loses all it has, so what counts is who ends, not how many leaves are taken: the other leaves
of a group that ends anyway cost nobody anything.

    A A B .    a pod of 2 in place of A: both leaves of A, and not one of them and the idle one
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from heapq import nsmallest
from itertools import islice
from operator import or_

from hived.cells import Found, Leaves, Need, Rank, Space, level_of, place

from .groups import Group
from .tenancy import Tenancy

#: groups of a host among which those who lose are chosen: all subsets of them are looked at
GROUPS = 8
#: hosts that are looked at for pods that go to one host
HOSTS = 16


def on_one_host(
    tenancy: Tenancy, space: Space, needs: Sequence[Need], rank: Rank, found: Found, cap: int, key: int
) -> Found:
    """``found``, which is on one host, or the same on another where the groups of ranks up to ``key`` lose less.

    Hosts are looked at in the order of ``rank`` until no other can lose less. O(``HOSTS``) times :func:`losing_least`.
    """
    level, size = max((need.level, need.gpus if need.level else 0) for need in needs)
    gpus = sum(need.gpus for need in needs)
    best, least = found, -1
    for host in islice(space.ranking(rank, level, size, cap).in_order(gpus), HOSTS):
        masks = space.place(host, tuple(needs), cap)
        if masks is None:
            continue
        there = Found(tuple((host, mask) for mask in masks), level_of(space.shapes[host], sum(masks)))
        there = losing_least(tenancy, space, needs, there, cap, key)
        taken = sum(mask for _, mask in there.pods) & ~space.idle[host]
        takers = tenancy.takers.get(host, {}).items()
        lost = sum(_loss(group) for group, mask in takers if mask & taken)
        if least < 0 or lost < least:
            best, least = there, lost
        if lost <= taken.bit_count() << 32:
            break  # no more is lost than taken, and the hosts behind take no less
    return best


def losing_least(tenancy: Tenancy, space: Space, needs: Sequence[Need], found: Found, cap: int, key: int) -> Found:
    """``found`` on the same hosts, with the leaves taken there that lose the groups of ranks up to ``key`` least.

    First the fewest GPUs of groups that end (on all their nodes, once), then of those that lose no work, then as close
    as can be. O(2^``GROUPS``) for a host where more is lost than taken, or where closer leaves could be had.
    """
    pods = list(found.pods)
    ended: set[Group] = set()
    hosts = list(dict.fromkeys(host for host, _ in pods))
    for host in hosts:
        at = [i for i, (where, _) in enumerate(pods) if where == host]
        here = tuple([needs[i] for i in at])
        masks: Sequence[int] = [pods[i][1] for i in at]
        if sum(masks) & ~space.idle[host]:
            takers = {group: mask for group, mask in tenancy.takers[host].items() if group.rank <= key}
            lose = {group: mask for group, mask in takers.items() if group not in ended}
            masks = _on_host(space, host, here, masks, lose, cap)
            ended.update(group for group, mask in takers.items() if mask & sum(masks))
        for i, mask in zip(at, masks, strict=True):
            pods[i] = host, mask
    level = found.level if len(hosts) > 1 else level_of(space.shapes[hosts[0]], sum(mask for _, mask in pods))
    return Found(tuple(pods), level)


def _on_host(
    space: Space,
    host: int,
    needs: tuple[Need, ...],
    masks: Sequence[int],
    lose: dict[Group, int],
    cap: int,
) -> Sequence[int]:
    """Masks for pods on one host that lose the groups ``lose``, with their leaves there, least."""
    shape, obtainable, idle, taken = space.shapes[host], space.free[host], space.idle[host], sum(masks)
    lost = sum(group.gpus for group, mask in lose.items() if mask & taken)
    closest = len(needs) == 1 and level_of(shape, taken) == shape.profile(obtainable).level_for(needs[0].gpus)
    if closest and lost <= (taken & ~idle).bit_count():
        return masks
    groups = nsmallest(GROUPS, lose, key=lambda group: (not lose[group] & taken, _loss(group), group.sequence))
    needed = sum(need.gpus for need in needs)
    never = reduce(or_, (mask for group, mask in lose.items() if group not in groups), 0)
    losses, leaves = [0], [never]  # of every subset of the groups, by the bits of who is in it
    for group in groups:
        losses += [loss + _loss(group) for loss in losses]
        leaves += [held | lose[group] for held in leaves]
    best: tuple[int, int, int, int, Sequence[int]] | None = None
    for ends in sorted(range(len(losses)), key=losses.__getitem__):
        if best is not None and losses[ends] > best[0]:
            break
        free = obtainable & ~leaves[~ends]  # the leaves of those who stay are not to be had
        if free.bit_count() >= needed and (found := _place(Leaves(shape, free, free, 0), needs, cap)) is not None:
            apart = sum(level_of(shape, mask) for mask in found)
            worth = losses[ends], level_of(shape, sum(found)), apart, (sum(found) & ~idle).bit_count(), found
            best = worth if best is None else min(best, worth)
    return masks if best is None else best[-1]


def _loss(group: Group) -> int:
    """GPUs of a group: any of one that ends weigh more than all of those that lose no work."""
    return group.gpus << 32 if group.rank % 2 else group.gpus


_place = lru_cache(maxsize=4096)(place)
