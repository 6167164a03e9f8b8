"""The consistency check of the whole state: for tests after every event, and for debugging in production."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hived.cells import assert_safe
from hived.cells.checks import check_allocator
from hived.cluster.groups import Group
from hived.cluster.sharing import Quota, QuotaPool
from hived.cluster.state import State
from hived.cluster.states import GroupState
from hived.errors import ensure

from .guests import check_guests
from .nodes import check_nodes
from .pools import check_pool


def check_state(state: State) -> None:
    """Re-derive the state from the groups, the spec and the bad leaves, and compare. O(cluster)."""
    assert_safe(state.safety())
    groups = list(state.groups.values())
    ensure(list(state.groups) == [group.name for group in groups], "groups by name")
    ensure(not state.groups.keys() & state.waiting.keys(), "a group waits or holds, not both")
    line = [waiting.sequence for waiting in state.waiting.values()]
    ensure(
        line == sorted(set(line)) and max(line, default=0) <= state.sequence,
        "waiting groups are in the order of arrival",
    )
    _check_groups(state, groups)
    for chain, guests in zip(state.chain_bindings, state.guests_on, strict=True):
        nodes = chain.nodes
        nodes.update_allocator()
        check_nodes(nodes, [group for group in groups if not group.guest])
        if guests is not None:
            check_guests(guests, [group for group in groups if group.guest and group.chain == nodes.number])
        check_allocator(nodes.allocator)
        allocated = [0] * (nodes.allocator.hierarchy.top + 1)
        for (level, cell), (binding, virtual) in chain.owners.items():
            ensure(binding.bound[virtual] == cell, f"reserved cell {cell} of level {level} is bound")
            allocated[level] += 1
        ensure(allocated == nodes.allocator.allocated, "allocated cells per level")
        lent = [mask.bit_count() for mask in nodes.lent]
        for level in nodes.allocator.levels:
            if level >= nodes.hierarchy.node_level:
                size = nodes.hierarchy.gpus[level] // nodes.hierarchy.node_size
                gpus = [sum(lent[i : i + size]) for i in range(0, len(lent), size)]
                ensure(nodes.allocator.opportunistic[level] == gpus, f"opportunistic GPUs at level {level}")
    for of_tenant in state.pools:
        for pool in of_tenant:
            check_pool(pool, [group for group in groups if state.pool_of(group) is pool])
    counted: Counter[tuple[Quota, bool]] = Counter()  # leaf cells of running groups, and of preempting ones
    for group in groups:
        of_group = state.pool_of(group)
        if isinstance(of_group, QuotaPool):
            counted[of_group.quota, group.running] += group.gpus
    for quota, _ in counted:
        running, reserved = counted[quota, True], counted[quota, False]
        ensure(max(running, reserved) <= quota.limit, "a quota is not exceeded")
        ensure(quota.left == quota.limit - running - reserved, "what is left of a quota")
    loans = [group for group in groups if not group.guaranteed and not group.guest]
    for number in range(len(state.chains)):
        gpus = [0] * len(state.tenants)
        for group in loans:
            gpus[group.tenant] += group.gpus_in(number)
        ensure(
            gpus == [of_tenant.get(number, 0) for of_tenant in state.opportunistic_gpus], "leaf cells lent per tenant"
        )
    of_tenants = [{group for group in loans if group.tenant == tenant} for tenant in range(len(state.tenants))]
    ensure(of_tenants == [set(of_tenant) for of_tenant in state.loans], "opportunistic groups per tenant")


def _check_groups(state: State, groups: Iterable[Group]) -> None:
    alive = set(groups)
    for group in alive:
        ensure(
            group.state in (GroupState.PREEMPTING, GroupState.ALLOCATED, GroupState.BEING_PREEMPTED),
            f"{group} holds",
        )
        ensure((group.state is GroupState.BEING_PREEMPTED) == bool(group.preempted_by), f"{group} is preempted by some")
        ensure(group.running or not group.preempted_by, f"{group} only waits for its victims")
        ensure(not group.victims or group.state is GroupState.PREEMPTING, f"{group} has victims while preempting")
        ensure(all(group in victim.preempted_by and victim in alive for victim in group.victims), f"victims of {group}")
        ensure(all(group in other.victims and other in alive for other in group.preempted_by), f"who preempts {group}")
        ensure(group.guaranteed == (group.priority >= 0) == bool(group.spots), f"{group} stands in its VC or not")
        downgraded = group.priority != group.request.priority
        ensure((group in state.downgraded) == downgraded, f"{group} is displaced or not")
        for victim in group.victims:
            same_vc = victim.tenant == group.tenant and victim.guaranteed and victim.priority <= group.priority
            ensure(
                same_vc or not victim.guaranteed,
                f"{group} preempts opportunistic groups, or of its own VC none that is higher",
            )
